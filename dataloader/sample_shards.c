#include "sample_shards.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "llmc_tokens.h"
#include "text_cut.h"

static Status check_vocab(const SampleFile* a, const SampleFile* b) {
    if (a->vocab != b->vocab) {
        return FAIL(STATUS_MISMATCH, "%s has vocab %d, %s has %d ---> prepare both with one tokenizer",
                    a->path, a->vocab, b->path, b->vocab);
    }
    if (a->eot_token != b->eot_token) {
        return FAIL(STATUS_MISMATCH,
                    "%s has end-of-text token %d, %s has %d ---> prepare both with one tokenizer", a->path,
                    a->eot_token, b->path, b->eot_token);
    }
    if (a->tokenizer != b->tokenizer) {
        return FAIL(STATUS_MISMATCH, "%s has tokenizer %d, %s has %d ---> prepare both with one tokenizer",
                    a->path, (int)a->tokenizer, b->path, (int)b->tokenizer);
    }
    if (a->pad_token != b->pad_token) {
        return FAIL(STATUS_MISMATCH,
                    "%s has padding token %d, %s has %d ---> prepare both with one tokenizer", a->path,
                    a->pad_token, b->path, b->pad_token);
    }
    if (a->vocab_hash != b->vocab_hash && a->vocab_hash != 0 && b->vocab_hash != 0) {
        return FAIL(STATUS_MISMATCH,
                    "%s and %s have vocabularies of %d tokens each, but not the same ---> prepare both with "
                    "one tokenizer",
                    a->path, b->path, a->vocab);
    }
    return STATUS_OK;
}

static Status check_agreement(const SampleFile* a, const SampleFile* b) {
    TRY(check_vocab(a, b));
    if (a->input_end != b->input_end && a->input_end != INPUT_END_UNKNOWN &&
        b->input_end != INPUT_END_UNKNOWN) {
        return FAIL(STATUS_MISMATCH,
                    "%s ends its inputs another way than %s ---> prepare both with one --input-end", a->path,
                    b->path);
    }
    return STATUS_OK;
}

// Number of the task, or num_tasks. Most files list the same tasks in the same order, so look at `guess`
// first.
static int32_t find_task(const SampleShards* shards, const char* name, int32_t guess) {
    if (guess < shards->num_tasks && strcmp(shards->task_names[guess], name) == 0) { return guess; }
    int32_t k = 0;
    while (k < shards->num_tasks && strcmp(shards->task_names[k], name) != 0) { k++; }
    return k;
}

static Status unite_tasks(SampleShards* shards, const SampleFile* file, int32_t** task_of) {
    size_t most_tasks = (size_t)shards->num_tasks + (size_t)file->num_tasks;
    const char** names = realloc(shards->task_names, (most_tasks + 1) * sizeof *names);
    if (names != NULL) { shards->task_names = names; }
    *task_of = malloc(((size_t)file->num_tasks + 1) * sizeof **task_of);
    if (names == NULL || *task_of == NULL) {
        return FAIL(STATUS_NO_MEMORY, "%s: no memory for its tasks", file->path);
    }
    for (int32_t k = 0; k < file->num_tasks; k++) {
        int32_t task = find_task(shards, file->task_names[k], k);
        if (task == shards->num_tasks) { shards->task_names[shards->num_tasks++] = file->task_names[k]; }
        (*task_of)[k] = task;
    }
    return STATUS_OK;
}

static Status open_file(SampleShards* shards, const char* path, int32_t cut_tokens, bool tokens_only) {
    SampleFile* file = &shards->files[shards->num_files];
    TRY(tokens_only ? sample_file_open_tokens(file, path) : sample_file_open(file, path, false));
    int32_t f = shards->num_files++;
    if (f == 0) { shards->known = file; }
    if (f > 0) { TRY(check_agreement(shards->known, file)); }
    if (shards->known->vocab_hash == 0 && file->vocab_hash != 0) { shards->known = file; }
    if (cut_tokens > 0) { TRY(llmc_tokens_cut(file, cut_tokens)); }
    if (cut_tokens > 0) { TRY(text_cut(file, cut_tokens)); }
    shards->first_sample[f + 1] = shards->first_sample[f] + file->num_samples;
    return unite_tasks(shards, file, &shards->task_of[f]);
}

static int compare_paths(const void* a, const void* b) {
    return strcmp(*(char* const*)a, *(char* const*)b);
}

static Status open_paths(SampleShards* shards, char** paths, size_t num_paths, int32_t cut_tokens,
                         bool tokens_only) {
    shards->files = calloc(num_paths, sizeof *shards->files);
    shards->first_sample = calloc(num_paths + 1, sizeof *shards->first_sample);
    shards->task_of = calloc(num_paths, sizeof *shards->task_of);
    if (shards->files == NULL || shards->first_sample == NULL || shards->task_of == NULL) {
        return FAIL(STATUS_NO_MEMORY, "%s: no memory for %zu files", paths[0], num_paths);
    }
    for (size_t i = 0; i < num_paths; i++) { TRY(open_file(shards, paths[i], cut_tokens, tokens_only)); }
    return STATUS_OK;
}

static bool is_tokenizer(const char* path) {
    const char* slash = strrchr(path, '/');
    return strcmp(slash != NULL ? slash + 1 : path, "tokenizer.bin") == 0;
}

// The files of samples among those that match, sorted, in front; the others behind. globfree() takes all of
// them.
static Status match(glob_t* out, size_t* num_paths, const char* pattern) {
    *out = (glob_t){0};
    int error = glob(pattern, GLOB_NOSORT, NULL, out);
    size_t num = 0;
    for (size_t i = 0; error == 0 && i < out->gl_pathc; i++) {
        char* path = out->gl_pathv[i];
        if (is_tokenizer(path) && strcmp(path, pattern) != 0) { continue; }
        out->gl_pathv[i] = out->gl_pathv[num];
        out->gl_pathv[num++] = path;
    }
    if (num == 0) {
        globfree(out);
        return error == GLOB_NOSPACE
                   ? FAIL(STATUS_NO_MEMORY, "%s: no memory for the list of files", pattern)
                   : FAIL(STATUS_IO, "%s: no file matches ---> check the path, and quote a pattern with '*'",
                          pattern);
    }
    // glob() itself would sort by the locale, which may differ between machines.
    qsort(out->gl_pathv, num, sizeof *out->gl_pathv, compare_paths);
    *num_paths = num;
    return STATUS_OK;
}

Status sample_shards_first_path(char** out, const char* pattern) {
    glob_t matches;
    size_t num_paths;
    bool is_pattern = strpbrk(pattern, "*?[") != NULL && access(pattern, F_OK) != 0;
    if (is_pattern) { TRY(match(&matches, &num_paths, pattern)); }
    char* path = strdup(is_pattern ? matches.gl_pathv[0] : pattern);
    if (is_pattern) { globfree(&matches); }
    if (path == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the list of files", pattern); }
    *out = path;
    return STATUS_OK;
}

Status sample_shards_open(SampleShards* out, const char* pattern, int32_t cut_tokens, bool tokens_only) {
    glob_t matches;
    size_t num_paths;
    TRY(match(&matches, &num_paths, pattern));
    SampleShards shards = {0};
    Status status = open_paths(&shards, matches.gl_pathv, num_paths, cut_tokens, tokens_only);
    globfree(&matches);
    if (status != STATUS_OK) {
        sample_shards_close(&shards);
        return status;
    }
    *out = shards;
    return STATUS_OK;
}

void sample_shards_close(SampleShards* shards) {
    for (int32_t f = 0; f < shards->num_files; f++) {
        sample_file_close(&shards->files[f]);
        free(shards->task_of[f]);
    }
    free(shards->files);
    free(shards->first_sample);
    free(shards->task_of);
    free(shards->task_names);
    *shards = (SampleShards){0};
}

Status sample_shards_check_vocab(const SampleShards* a, const SampleShards* b) {
    return check_vocab(a->known, b->known);
}

void sample_shards_write_contents(const SampleShards* shards, void* ids) {
    unsigned char* at = ids;
    for (int32_t f = 0; f < shards->num_files; f++, at += sizeof(uint64_t)) {
        memcpy(at, &shards->files[f].content_id, sizeof(uint64_t));
    }
}

Status sample_shards_check_contents(const SampleShards* shards, const void* ids, int64_t num_ids) {
    if (num_ids != shards->num_files) {
        return FAIL(STATUS_MISMATCH,
                    "%s: saved with %lld files of data, now it is one of %d ---> resume with the same data",
                    shards->files[0].path, (long long)num_ids, shards->num_files);
    }
    const unsigned char* at = ids;
    for (int32_t f = 0; f < shards->num_files; f++, at += sizeof(uint64_t)) {
        const SampleFile* file = &shards->files[f];
        uint64_t id;
        memcpy(&id, at, sizeof id);
        if (id == file->content_id || id == 0 || file->content_id == 0) { continue; }
        return FAIL(STATUS_MISMATCH,
                    "%s: saved with other contents of this file (%016llx, now %016llx) ---> resume with the "
                    "same data",
                    file->path, (unsigned long long)id, (unsigned long long)file->content_id);
    }
    return STATUS_OK;
}

int32_t sample_shards_file(const SampleShards* shards, int64_t id) {
    int32_t begin = 0, end = shards->num_files;  // the file lies in [begin, end)
    while (end - begin > 1) {
        int32_t middle = begin + (end - begin) / 2;
        *(shards->first_sample[middle] <= id ? &begin : &end) = middle;
    }
    return begin;
}
