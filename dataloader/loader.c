#include "loader.h"

#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/base/hash.h"
#include "mixture.h"
#include "sample_shards.h"
#include "shuffle.h"

static const char POSITION_MAGIC[8] = "DPPOS\0\0\1";  // the last byte is the version

// What a position record holds, followed by `drawn` of every task and a hash of all before it.
typedef struct {
    char magic[8];
    int32_t num_tasks;
    int32_t shuffle;
    int64_t num_samples;
    uint64_t data_hash;
    uint64_t seed;
    int64_t step;
    uint64_t point;
    int64_t next_id;
} PositionHead;

struct Loader {
    LoaderOptions options;  // without `weights`, which is only borrowed while opening
    SampleShards shards;
    int64_t num_samples, num_tokens, num_truncated, num_skipped;
    int64_t* task_begin;  // [num_tasks + 1] into `order`
    uint32_t* order;      // [num_samples] ids by task, then in file order
    Mixture mixture;      // shuffle only
    uint64_t data_hash;
    // the position
    uint64_t seed;
    int64_t step;
    uint64_t point;   // of the mixture: decides the task of the next sample
    uint64_t* drawn;  // [num_tasks] samples of the task so far: epoch and place in it
    int64_t next_id;  // without shuffle: the next sample in file order
    // the batch being drawn
    LoaderSample* samples;
    int64_t capacity;
};

static int32_t model_tokens(const LoaderSample* sample) {
    return sample->n_input + sample->n_target - 1;
}

static int32_t supervised_tokens(const Loader* loader, const LoaderSample* sample) {
    return loader->options.supervise_inputs || sample->n_input == 0 ? model_tokens(sample) : sample->n_target;
}

static LoaderSample whole_sample(const Loader* loader, int64_t id) {
    int32_t f = sample_shards_file(&loader->shards, id);
    SampleIndex index = loader->shards.files[f].index[id - loader->shards.first_sample[f]];
    return (LoaderSample){.id = id,
                          .task = loader->shards.task_of[f][index.task],
                          .n_input = (int32_t)index.n_input,
                          .n_target = (int32_t)index.n_target};
}

static bool too_long(const Loader* loader, const LoaderSample* sample) {
    return model_tokens(sample) > loader->options.max_seq_tokens;
}

static LoaderSample truncated_sample(const Loader* loader, int64_t id) {
    LoaderSample sample = whole_sample(loader, id);
    if (!too_long(loader, &sample)) { return sample; }
    int32_t spare = loader->options.max_seq_tokens + 1 - (sample.n_input > 0);  // for the target
    if (sample.n_target > spare) { sample.n_target = spare; }
    int32_t n_input = loader->options.max_seq_tokens + 1 - sample.n_target;
    sample.first_token = sample.n_input - n_input;
    sample.n_input = n_input;
    return sample;
}

// --- opening ---------------------------------------------------------------------------------------------

static Status check_options(const LoaderOptions* options) {
    if (options->batch_tokens < 1) {
        return FAIL(STATUS_BAD_OPTION, "-d: %lld tokens in a batch ---> use 1 or more",
                    (long long)options->batch_tokens);
    }
    if (options->max_seq_tokens < 1 || options->max_seq_tokens == INT32_MAX) {
        return FAIL(STATUS_BAD_OPTION, "-t: %d tokens in a sequence ---> use 1 or more",
                    options->max_seq_tokens);
    }
    return STATUS_OK;
}

// Count what can be drawn, then list it by task.
static Status list_samples(Loader* loader, const char* pattern) {
    const SampleShards* shards = &loader->shards;
    int64_t num_ids = shards->first_sample[shards->num_files];
    if (num_ids == 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: no samples ---> check the input of prepare_data", pattern);
    }
    if (num_ids > UINT32_MAX) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: %lld samples, more than 2^32 - 1 ---> name fewer files",
                    pattern, (long long)num_ids);
    }
    bool skip = loader->options.long_samples == LONG_SKIP;
    for (int64_t id = 0; id < num_ids; id++) {
        LoaderSample sample = whole_sample(loader, id);
        bool is_long = too_long(loader, &sample);
        loader->num_truncated += is_long && !skip;
        loader->num_skipped += is_long && skip;
        if (is_long && skip) { continue; }
        loader->num_samples++;
        loader->num_tokens += is_long ? loader->options.max_seq_tokens : model_tokens(&sample);
        loader->task_begin[sample.task + 1]++;
    }
    if (loader->num_samples == 0) {
        return FAIL(STATUS_BAD_OPTION,
                    "%s: all %lld samples are longer than -t %d and skipped ---> raise -t, or truncate them",
                    pattern, (long long)num_ids, loader->options.max_seq_tokens);
    }
    loader->order = malloc((size_t)loader->num_samples * sizeof *loader->order);
    if (loader->order == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the order", pattern); }
    for (int32_t k = 0; k < shards->num_tasks; k++) { loader->task_begin[k + 1] += loader->task_begin[k]; }
    for (int64_t id = 0; id < num_ids; id++) {
        LoaderSample sample = whole_sample(loader, id);
        if (too_long(loader, &sample) && skip) { continue; }
        uint64_t place = loader->drawn[sample.task]++;
        loader->order[loader->task_begin[sample.task] + (int64_t)place] = (uint32_t)id;
    }
    return STATUS_OK;
}

// What must be equal for a position to mean the same samples.
static uint64_t hash_data(const Loader* loader) {
    uint64_t hash = HASH_SEED;
    for (int32_t k = 0; k < loader->shards.num_tasks; k++) {
        const char* name = loader->shards.task_names[k];
        hash = hash_bytes(hash, name, strlen(name));
        int64_t num_samples = loader->task_begin[k + 1] - loader->task_begin[k];
        hash = hash_bytes(hash, &num_samples, sizeof num_samples);
    }
    hash = hash_bytes(hash, &loader->num_tokens, sizeof loader->num_tokens);
    return hash_finish(hash);
}

static Status open_in(Loader* loader, const char* pattern, const char* weights) {
    bool cut = loader->options.long_samples == LONG_TRUNCATE;
    TRY(sample_shards_open(&loader->shards, pattern, cut ? loader->options.max_seq_tokens : 0, false));
    int32_t num_tasks = loader->shards.num_tasks;
    loader->task_begin = calloc((size_t)num_tasks + 1, sizeof *loader->task_begin);
    loader->drawn = calloc((size_t)num_tasks + 1, sizeof *loader->drawn);
    int64_t* num_samples = calloc((size_t)num_tasks + 1, sizeof *num_samples);
    Status status = loader->task_begin == NULL || loader->drawn == NULL || num_samples == NULL
                        ? FAIL(STATUS_NO_MEMORY, "%s: no memory for %d tasks", pattern, num_tasks)
                        : list_samples(loader, pattern);
    if (status == STATUS_OK && loader->options.shuffle) {
        for (int32_t k = 0; k < num_tasks; k++) {
            num_samples[k] = loader->task_begin[k + 1] - loader->task_begin[k];
        }
        LoaderOptions options = loader->options;
        options.weights = weights;
        status =
            mixture_create(&loader->mixture, &options, num_tasks, loader->shards.task_names, num_samples);
    }
    free(num_samples);
    if (status == STATUS_OK) {
        loader->data_hash = hash_data(loader);
        loader_rewind(loader);
    }
    return status;
}

Status loader_open(Loader** out, const char* pattern, const LoaderOptions* options) {
    TRY(check_options(options));
    Loader* loader = calloc(1, sizeof *loader);
    if (loader == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a loader", pattern); }
    loader->options = *options;
    loader->options.weights = NULL;
    Status status = open_in(loader, pattern, options->weights);
    if (status != STATUS_OK) {
        loader_close(loader);
        return status;
    }
    *out = loader;
    return STATUS_OK;
}

void loader_close(Loader* loader) {
    if (loader == NULL) { return; }
    mixture_free(&loader->mixture);
    sample_shards_close(&loader->shards);
    free(loader->task_begin);
    free(loader->order);
    free(loader->drawn);
    free(loader->samples);
    free(loader);
}

// --- drawing ---------------------------------------------------------------------------------------------

// The next sample, without drawing it; false where a pass in file order has ended.
static bool peek(Loader* loader, LoaderSample* out) {
    if (!loader->options.shuffle) {
        int64_t num_ids = loader->shards.first_sample[loader->shards.num_files];
        for (; loader->next_id < num_ids; loader->next_id++) {
            *out = whole_sample(loader, loader->next_id);
            if (loader->options.long_samples == LONG_SKIP && too_long(loader, out)) { continue; }
            *out = truncated_sample(loader, loader->next_id);
            return true;
        }
        return false;
    }
    int32_t task = mixture_task(&loader->mixture, loader->point);
    int64_t begin = loader->task_begin[task];
    uint64_t num_samples = (uint64_t)(loader->task_begin[task + 1] - begin);
    uint64_t epoch = loader->drawn[task] / num_samples, place = loader->drawn[task] % num_samples;
    uint64_t key = rng_mix(rng_mix(loader->seed + (uint64_t)task * 0x9e3779b97f4a7c15u) + epoch);
    *out = truncated_sample(loader, loader->order[begin + (int64_t)shuffle_index(num_samples, key, place)]);
    return true;
}

static void draw(Loader* loader, const LoaderSample* sample) {
    if (!loader->options.shuffle) {
        loader->next_id++;
        return;
    }
    loader->drawn[sample->task]++;
    loader->point = mixture_next(loader->point);
}

static Status reserve_sample(Loader* loader, int64_t num_samples) {
    if (num_samples < loader->capacity) { return STATUS_OK; }
    int64_t capacity = loader->capacity * 2 + 256;
    LoaderSample* grown = realloc(loader->samples, (size_t)capacity * sizeof *grown);
    if (grown == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a batch of %lld samples", (long long)capacity);
    }
    loader->samples = grown;
    loader->capacity = capacity;
    return STATUS_OK;
}

static size_t position_bytes_of(const Loader* loader) {
    return sizeof(PositionHead) + (size_t)loader->shards.num_tasks * sizeof(uint64_t) + sizeof(uint64_t);
}

static void write_position(const Loader* loader, uint8_t* position) {
    PositionHead head = {.num_tasks = loader->shards.num_tasks,
                         .shuffle = loader->options.shuffle,
                         .num_samples = loader->num_samples,
                         .data_hash = loader->data_hash,
                         .seed = loader->seed,
                         .step = loader->step,
                         .point = loader->point,
                         .next_id = loader->next_id};
    memcpy(head.magic, POSITION_MAGIC, sizeof head.magic);
    size_t hashed_bytes = position_bytes_of(loader) - sizeof(uint64_t);
    memcpy(position, &head, sizeof head);
    memcpy(position + sizeof head, loader->drawn, hashed_bytes - sizeof head);
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, position, hashed_bytes));
    memcpy(position + hashed_bytes, &hash, sizeof hash);
}

Status loader_next(Loader* loader, LoaderBatch* out, Arena* arena) {
    LoaderBatch batch = {.step = loader->step};
    LoaderSample sample;
    int64_t num_samples = 0;
    bool any = peek(loader, &sample);
    while (any && num_samples < INT32_MAX &&
           (num_samples == 0 || batch.num_tokens + model_tokens(&sample) <= loader->options.batch_tokens)) {
        TRY(reserve_sample(loader, num_samples));
        loader->samples[num_samples++] = sample;
        batch.num_tokens += model_tokens(&sample);
        batch.supervised_tokens += supervised_tokens(loader, &sample);
        draw(loader, &sample);
        any = peek(loader, &sample);
    }
    loader->step++;
    batch.end = !any;
    batch.num_samples = (int32_t)num_samples;
    batch.samples = ARENA_NEW(arena, LoaderSample, num_samples);
    batch.lengths = ARENA_NEW(arena, PlanSample, num_samples);
    batch.position_bytes = position_bytes_of(loader);
    batch.position = ARENA_NEW(arena, uint8_t, batch.position_bytes);
    if (batch.samples == NULL || batch.lengths == NULL || batch.position == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a batch of %lld samples", (long long)num_samples);
    }
    for (int64_t i = 0; i < num_samples; i++) {
        batch.samples[i] = loader->samples[i];
        batch.lengths[i] = (PlanSample){.enc_tokens = model_tokens(&loader->samples[i]),
                                        .supervised_tokens = supervised_tokens(loader, &loader->samples[i])};
    }
    write_position(loader, batch.position);
    *out = batch;
    return STATUS_OK;
}

// --- position --------------------------------------------------------------------------------------------

void loader_rewind(Loader* loader) {
    loader->seed = loader->options.seed;
    loader->step = 0;
    loader->point = mixture_start(loader->seed);
    loader->next_id = 0;
    memset(loader->drawn, 0, (size_t)loader->shards.num_tasks * sizeof *loader->drawn);
}

uint64_t loader_seed(const Loader* loader) {
    return loader->seed;
}

Status loader_restore(Loader* loader, const uint8_t* position, size_t position_bytes) {
    PositionHead head;
    if (position_bytes < sizeof head || memcmp(position, POSITION_MAGIC, sizeof head.magic) != 0) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "data position: %zu bytes that are no position of this version ---> start without resuming",
            position_bytes);
    }
    memcpy(&head, position, sizeof head);
    if (head.num_tasks != loader->shards.num_tasks) {
        return FAIL(STATUS_MISMATCH,
                    "data position: saved with %d tasks, the data has %d ---> resume with the same data",
                    head.num_tasks, loader->shards.num_tasks);
    }
    if (head.num_samples != loader->num_samples) {
        return FAIL(
            STATUS_MISMATCH,
            "data position: saved with %lld samples, the data has %lld ---> resume with the same data and "
            "-t",
            (long long)head.num_samples, (long long)loader->num_samples);
    }
    if (head.data_hash != loader->data_hash) {
        return FAIL(
            STATUS_MISMATCH,
            "data position: saved with other task names or lengths ---> resume with the same data and -t");
    }
    if ((head.shuffle != 0) != loader->options.shuffle) {
        return FAIL(STATUS_MISMATCH,
                    "data position: saved %s shuffling ---> resume with the same data options",
                    head.shuffle ? "with" : "without");
    }
    size_t hashed_bytes = position_bytes_of(loader) - sizeof(uint64_t);
    uint64_t hash = 0;
    if (position_bytes == position_bytes_of(loader)) { memcpy(&hash, position + hashed_bytes, sizeof hash); }
    if (position_bytes != position_bytes_of(loader) ||
        hash != hash_finish(hash_bytes(HASH_SEED, position, hashed_bytes)) || head.next_id < 0 ||
        head.step < 0) {
        return FAIL(STATUS_BAD_FORMAT, "data position: damaged record ---> resume from an older checkpoint");
    }
    loader->seed = head.seed;
    loader->step = head.step;
    loader->point = head.point;
    loader->next_id = head.next_id;
    memcpy(loader->drawn, position + sizeof head, hashed_bytes - sizeof head);
    return STATUS_OK;
}

// --- looking ---------------------------------------------------------------------------------------------

Status loader_sample(const Loader* loader, int64_t n, LoaderSample* out) {
    if (n < 0 || n >= loader->num_samples) {
        return FAIL(STATUS_OUT_OF_RANGE, "sample %lld of %lld", (long long)n, (long long)loader->num_samples);
    }
    *out = truncated_sample(loader, loader->order[n]);
    return STATUS_OK;
}

Status loader_read(const Loader* loader, const LoaderSample* sample, int32_t* out) {
    const SampleShards* shards = &loader->shards;
    if (sample->id < 0 || sample->id >= shards->first_sample[shards->num_files]) {
        return FAIL(STATUS_OUT_OF_RANGE, "sample %lld of %lld", (long long)sample->id,
                    (long long)shards->first_sample[shards->num_files]);
    }
    int32_t f = sample_shards_file(shards, sample->id);
    return sample_file_read(&shards->files[f], sample->id - shards->first_sample[f], sample->first_token,
                            (int64_t)sample->n_input + sample->n_target, out);
}

int32_t loader_num_tasks(const Loader* loader) {
    return loader->shards.num_tasks;
}

const char* loader_task_name(const Loader* loader, int32_t task) {
    return task >= 0 && task < loader->shards.num_tasks ? loader->shards.task_names[task] : "?";
}

int32_t loader_vocab(const Loader* loader) {
    return loader->shards.files[0].vocab;
}

int32_t loader_eot_token(const Loader* loader) {
    return loader->shards.files[0].eot_token;
}

int32_t loader_tokenizer(const Loader* loader) {
    return (int32_t)loader->shards.files[0].tokenizer;
}

int32_t loader_pad_token(const Loader* loader) {
    return loader->shards.files[0].pad_token;
}

int32_t loader_input_end(const Loader* loader) {
    return (int32_t)loader->shards.files[0].input_end;
}

uint64_t loader_vocab_hash(const Loader* loader) {
    return loader->shards.files[0].vocab_hash;
}

int64_t loader_num_samples(const Loader* loader) {
    return loader->num_samples;
}

int64_t loader_num_tokens(const Loader* loader) {
    return loader->num_tokens;
}

int64_t loader_num_truncated(const Loader* loader) {
    return loader->num_truncated;
}

int64_t loader_num_skipped(const Loader* loader) {
    return loader->num_skipped;
}
