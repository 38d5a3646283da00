#include "loader.h"

#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"
#include "mixture.h"
#include "sample_source.h"
#include "shuffle.h"

static const char POSITION_MAGIC[8] = "DPPOS\0\0\4";  // the last byte is the version

// What a position record holds, followed by the content_id of every file, `drawn` of every task, and a hash
// of all before it.
typedef struct {
    char magic[8];
    int32_t num_tasks;
    int32_t shuffle;
    int64_t num_files;
    int64_t num_samples;
    uint64_t data_hash;
    uint64_t options_hash;
    uint64_t seed;
    int64_t step;
    uint64_t point;
    int64_t next_id;
} PositionHead;

struct Loader {
    SampleSource source;
    int64_t num_samples, num_tokens, num_cut, num_skipped;
    int64_t num_alone, alone_tokens, longest_tokens;  // samples that are a batch alone; the longest of all
    LargestSamples largest;
    int64_t *task_cut, *task_skipped;  // [num_tasks]
    int64_t* task_begin;               // [num_tasks + 1] into `order`
    uint32_t* order;                   // [num_samples] ids by task, then in file order
    Mixture mixture;                   // shuffle only
    uint64_t data_hash, options_hash;
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

static int64_t model_tokens(const PlanSample* lengths) {
    return (int64_t)lengths->enc_tokens + lengths->dec_tokens;
}

// --- opening ---------------------------------------------------------------------------------------------

static void count_tokens(Loader* loader, int64_t num_tokens) {
    bool alone = num_tokens > loader->source.options.batch_tokens;
    loader->num_tokens += num_tokens;
    loader->num_alone += alone;
    loader->alone_tokens += alone ? num_tokens : 0;
    if (num_tokens > loader->longest_tokens) { loader->longest_tokens = num_tokens; }
}

// Count what can be drawn, then list it by task.
static Status list_samples(Loader* loader, const char* pattern) {
    const SampleSource* source = &loader->source;
    if (source->num_ids == 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: no samples ---> check the input of prepare_data", pattern);
    }
    if (source->num_ids > UINT32_MAX) {
        return FAIL(STATUS_OUT_OF_RANGE, "%s: %lld samples, more than 2^32 - 1 ---> name fewer files",
                    pattern, (long long)source->num_ids);
    }
    LoaderSample sample;
    loader->num_skipped = source->pieces.num_empty;
    for (int64_t id = 0; id < source->num_ids; id++) {
        SampleFate fate = sample_source_get(source, id, 0, &sample);
        loader->num_cut += fate == SAMPLE_CUT;
        loader->num_skipped += fate == SAMPLE_SKIPPED;
        loader->task_cut[sample.task] += fate == SAMPLE_CUT;
        loader->task_skipped[sample.task] += fate == SAMPLE_SKIPPED;
        if (fate == SAMPLE_SKIPPED) { continue; }
        PlanSample lengths = sample_source_lengths(source, &sample);
        loader->num_samples++;
        count_tokens(loader, model_tokens(&lengths));
        TRY(largest_samples_add(&loader->largest, &lengths));
        loader->task_begin[sample.task + 1]++;
    }
    if (loader->num_samples == 0) {
        const LoaderOptions* options = &source->options;
        return FAIL(
            STATUS_BAD_OPTION,
            "%s: all %lld samples are longer than -t %d%s and skipped ---> raise %s, or let --long-samples "
            "cut inputs (targets are kept whole)",
            pattern, (long long)source->num_ids, options->max_seq_tokens,
            options->encoder_decoder ? " or the longest target" : "",
            options->encoder_decoder ? "them" : "-t");
    }
    loader->order = malloc((size_t)loader->num_samples * sizeof *loader->order);
    if (loader->order == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the order", pattern); }
    int32_t num_tasks = source->shards.num_tasks;
    for (int32_t k = 0; k < num_tasks; k++) { loader->task_begin[k + 1] += loader->task_begin[k]; }
    for (int64_t id = 0; id < source->num_ids; id++) {
        if (sample_source_get(source, id, 0, &sample) == SAMPLE_SKIPPED) { continue; }
        uint64_t place = loader->drawn[sample.task]++;
        loader->order[loader->task_begin[sample.task] + (int64_t)place] = (uint32_t)id;
    }
    return STATUS_OK;
}

// What must be equal for a position to mean the same samples.
static uint64_t hash_data(const Loader* loader) {
    uint64_t hash = HASH_SEED;
    for (int32_t k = 0; k < loader->source.shards.num_tasks; k++) {
        const char* name = loader->source.shards.task_names[k];
        hash = hash_bytes(hash, name, strlen(name));
        int64_t num_samples = loader->task_begin[k + 1] - loader->task_begin[k];
        hash = hash_bytes(hash, &num_samples, sizeof num_samples);
    }
    hash = hash_bytes(hash, &loader->num_tokens, sizeof loader->num_tokens);
    return hash_finish(hash);
}

// What makes other sequences of the same samples. -t shows in the data's number of tokens.
static uint64_t hash_options(const SampleSource* source) {
    const LoaderOptions* options = &source->options;
    const SpanCorruption* spans = &source->spans;  // zeros without
    int64_t fields[] = {options->long_samples,    options->encoder_decoder ? options->max_target_tokens : 0,
                        options->span_corruption, source->pieces.piece_tokens,
                        spans->sentinel_first,    spans->sentinel_step,
                        spans->num_sentinels};
    double shares[] = {spans->noise_density, spans->mean_span};
    uint64_t hash = hash_bytes(HASH_SEED, fields, sizeof fields);
    return hash_finish(hash_bytes(hash, shares, sizeof shares));
}

static Status open_in(Loader* loader, const char* pattern, const LoaderOptions* options) {
    TRY(sample_source_open(&loader->source, pattern, options));
    int32_t num_tasks = loader->source.shards.num_tasks;
    loader->task_begin = calloc((size_t)num_tasks + 1, sizeof *loader->task_begin);
    loader->drawn = calloc((size_t)num_tasks + 1, sizeof *loader->drawn);
    int64_t* num_samples = calloc((size_t)num_tasks + 1, sizeof *num_samples);
    loader->task_cut = calloc((size_t)num_tasks + 1, sizeof *loader->task_cut);
    loader->task_skipped = calloc((size_t)num_tasks + 1, sizeof *loader->task_skipped);
    bool has_counts = loader->task_cut != NULL && loader->task_skipped != NULL;
    Status status = !has_counts || loader->task_begin == NULL || loader->drawn == NULL || num_samples == NULL
                        ? FAIL(STATUS_NO_MEMORY, "%s: no memory for %d tasks", pattern, num_tasks)
                        : list_samples(loader, pattern);
    if (status == STATUS_OK && options->shuffle) {
        for (int32_t k = 0; k < num_tasks; k++) {
            num_samples[k] = loader->task_begin[k + 1] - loader->task_begin[k];
        }
        status = mixture_create(&loader->mixture, options, num_tasks, loader->source.shards.task_names,
                                num_samples);
    }
    free(num_samples);
    if (status == STATUS_OK) {
        loader->data_hash = hash_data(loader);
        loader->options_hash = hash_options(&loader->source);
        loader_rewind(loader);
    }
    return status;
}

Status loader_open(Loader** out, const char* pattern, const LoaderOptions* options) {
    if (options->batch_tokens < 1) {
        return FAIL(STATUS_BAD_OPTION, "-d: %lld tokens in a batch ---> use 1 or more",
                    (long long)options->batch_tokens);
    }
    Loader* loader = calloc(1, sizeof *loader);
    if (loader == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a loader", pattern); }
    Status status = open_in(loader, pattern, options);
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
    sample_source_close(&loader->source);
    largest_samples_free(&loader->largest);
    free(loader->task_cut);
    free(loader->task_skipped);
    free(loader->task_begin);
    free(loader->order);
    free(loader->drawn);
    free(loader->samples);
    free(loader);
}

// --- drawing ---------------------------------------------------------------------------------------------

// The next sample, without drawing it; false where a pass in file order has ended.
static bool peek(Loader* loader, LoaderSample* out) {
    if (!loader->source.options.shuffle) {
        for (; loader->next_id < loader->source.num_ids; loader->next_id++) {
            if (sample_source_get(&loader->source, loader->next_id, 0, out) != SAMPLE_SKIPPED) {
                return true;
            }
        }
        return false;
    }
    int32_t task = mixture_task(&loader->mixture, loader->point);
    int64_t begin = loader->task_begin[task];
    uint64_t num_samples = (uint64_t)(loader->task_begin[task + 1] - begin);
    uint64_t epoch = loader->drawn[task] / num_samples, place = loader->drawn[task] % num_samples;
    uint64_t key = rng_mix(rng_mix(loader->seed + (uint64_t)task * 0x9e3779b97f4a7c15u) + epoch);
    int64_t n = begin + (int64_t)shuffle_index(num_samples, key, place);
    sample_source_get(&loader->source, loader->order[n], sample_source_pass(loader->seed, epoch), out);
    return true;
}

static void draw(Loader* loader, const LoaderSample* sample) {
    if (!loader->source.options.shuffle) {
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
    const SampleShards* shards = &loader->source.shards;
    return sizeof(PositionHead) +
           ((size_t)shards->num_files + (size_t)shards->num_tasks + 1) * sizeof(uint64_t);
}

static void write_position(const Loader* loader, uint8_t* position) {
    PositionHead head = {.num_tasks = loader->source.shards.num_tasks,
                         .shuffle = loader->source.options.shuffle,
                         .num_files = loader->source.shards.num_files,
                         .num_samples = loader->num_samples,
                         .data_hash = loader->data_hash,
                         .options_hash = loader->options_hash,
                         .seed = loader->seed,
                         .step = loader->step,
                         .point = loader->point,
                         .next_id = loader->next_id};
    memcpy(head.magic, POSITION_MAGIC, sizeof head.magic);
    size_t hashed_bytes = position_bytes_of(loader) - sizeof(uint64_t);
    memcpy(position, &head, sizeof head);
    sample_shards_write_contents(&loader->source.shards, position + sizeof head);
    size_t drawn_bytes = (size_t)head.num_tasks * sizeof *loader->drawn;
    memcpy(position + hashed_bytes - drawn_bytes, loader->drawn, drawn_bytes);
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, position, hashed_bytes));
    memcpy(position + hashed_bytes, &hash, sizeof hash);
}

Status loader_next(Loader* loader, LoaderBatch* out, Arena* arena) {
    LoaderBatch batch = {.step = loader->step};
    const SampleSource* source = &loader->source;
    LoaderSample sample;
    int64_t num_samples = 0;
    bool any = peek(loader, &sample);
    while (any && num_samples < INT32_MAX) {
        PlanSample lengths = sample_source_lengths(source, &sample);
        int64_t num_tokens = batch.num_tokens + model_tokens(&lengths);
        if (num_samples > 0 && num_tokens > source->options.batch_tokens) { break; }
        TRY(reserve_sample(loader, num_samples));
        loader->samples[num_samples++] = sample;
        batch.num_tokens = num_tokens;
        batch.supervised_tokens += lengths.supervised_tokens;
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
        batch.lengths[i] = sample_source_lengths(source, &batch.samples[i]);
    }
    write_position(loader, batch.position);
    *out = batch;
    return STATUS_OK;
}

// --- position --------------------------------------------------------------------------------------------

Status loader_position(const Loader* loader, const uint8_t** out, size_t* num_bytes, Arena* arena) {
    *num_bytes = position_bytes_of(loader);
    uint8_t* position = ARENA_NEW(arena, uint8_t, *num_bytes);
    if (position == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    write_position(loader, position);
    *out = position;
    return STATUS_OK;
}

void loader_rewind(Loader* loader) {
    loader->seed = loader->source.options.seed;
    loader->step = 0;
    loader->point = mixture_start(loader->seed);
    loader->next_id = 0;
    memset(loader->drawn, 0, (size_t)loader->source.shards.num_tasks * sizeof *loader->drawn);
}

uint64_t loader_seed(const Loader* loader) {
    return loader->seed;
}

// A record says itself how long it is: damage is told from other data before these are compared.
static Status check_record(const uint8_t* position, size_t position_bytes, const PositionHead* head) {
    bool counts = head->num_tasks >= 0 && head->num_files >= 0 && head->num_files <= INT32_MAX;
    size_t words = counts ? (size_t)head->num_files + (size_t)head->num_tasks : 0;
    size_t hashed_bytes = sizeof *head + words * sizeof(uint64_t);
    uint64_t hash = 0;
    bool whole = counts && position_bytes == hashed_bytes + sizeof hash;
    if (whole) { memcpy(&hash, position + hashed_bytes, sizeof hash); }
    if (!whole || hash != hash_finish(hash_bytes(HASH_SEED, position, hashed_bytes)) || head->next_id < 0 ||
        head->step < 0) {
        return FAIL(STATUS_BAD_FORMAT, "data position: damaged record ---> resume from an older checkpoint");
    }
    return STATUS_OK;
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
    TRY(check_record(position, position_bytes, &head));
    TRY(sample_shards_check_contents(&loader->source.shards, position + sizeof head, head.num_files));
    if (head.num_tasks != loader->source.shards.num_tasks) {
        return FAIL(STATUS_MISMATCH,
                    "data position: saved with %d tasks, the data has %d ---> resume with the same data",
                    head.num_tasks, loader->source.shards.num_tasks);
    }
    if (head.num_samples != loader->num_samples) {
        return FAIL(STATUS_MISMATCH,
                    "data position: saved with %lld samples, the data has %lld ---> resume with the same "
                    "data, -t and "
                    "--long-samples",
                    (long long)head.num_samples, (long long)loader->num_samples);
    }
    if (head.data_hash != loader->data_hash) {
        return FAIL(
            STATUS_MISMATCH,
            "data position: saved with other task names or lengths ---> resume with the same data and -t");
    }
    if ((head.shuffle != 0) != loader->source.options.shuffle) {
        return FAIL(STATUS_MISMATCH,
                    "data position: saved %s shuffling ---> resume with the same data options",
                    head.shuffle ? "with" : "without");
    }
    if (head.options_hash != loader->options_hash) {
        return FAIL(STATUS_MISMATCH,
                    "data position: saved with another longest target, other cuts or other span corruption "
                    "---> resume with the same --target-tokens (without it: -t), --long-samples and "
                    "--span-corruption options");
    }
    loader->seed = head.seed;
    loader->step = head.step;
    loader->point = head.point;
    loader->next_id = head.next_id;
    size_t drawn_bytes = (size_t)head.num_tasks * sizeof *loader->drawn;
    memcpy(loader->drawn, position + position_bytes - sizeof(uint64_t) - drawn_bytes, drawn_bytes);
    return STATUS_OK;
}

// --- looking ---------------------------------------------------------------------------------------------

Status loader_sample(const Loader* loader, int64_t n, LoaderSample* out) {
    if (n < 0 || n >= loader->num_samples) {
        return FAIL(STATUS_OUT_OF_RANGE, "sample %lld of %lld", (long long)n, (long long)loader->num_samples);
    }
    sample_source_get(&loader->source, loader->order[n], 0, out);
    return STATUS_OK;
}

bool loader_sample_by_id(const Loader* loader, int64_t id, uint64_t pass, LoaderSample* out) {
    return id >= 0 && id < loader->source.num_ids &&
           sample_source_get(&loader->source, id, pass, out) != SAMPLE_SKIPPED;
}

int32_t loader_gaps(const Loader* loader, const LoaderSample* sample, const SampleGap** out) {
    return sample_source_gaps(&loader->source, sample, out);
}

Status loader_read(const Loader* loader, const LoaderSample* sample, int32_t* out) {
    return sample_source_read(&loader->source, sample, out);
}

int32_t loader_num_tasks(const Loader* loader) {
    return loader->source.shards.num_tasks;
}

const char* loader_task_name(const Loader* loader, int32_t task) {
    return task >= 0 && task < loader->source.shards.num_tasks ? loader->source.shards.task_names[task] : "?";
}

int32_t loader_vocab(const Loader* loader) {
    return loader->source.shards.files[0].vocab;
}

int32_t loader_eot_token(const Loader* loader) {
    return loader->source.shards.files[0].eot_token;
}

int32_t loader_tokenizer(const Loader* loader) {
    return (int32_t)loader->source.shards.files[0].tokenizer;
}

int32_t loader_pad_token(const Loader* loader) {
    return loader->source.shards.files[0].pad_token;
}

int32_t loader_input_end(const Loader* loader) {
    return (int32_t)loader->source.shards.files[0].input_end;
}

uint64_t loader_vocab_hash(const Loader* loader) {
    return loader->source.shards.known->vocab_hash;
}

SampleShards* loader_shards(Loader* loader) {
    return &loader->source.shards;
}

int64_t loader_num_samples(const Loader* loader) {
    return loader->num_samples;
}

int64_t loader_num_tokens(const Loader* loader) {
    return loader->num_tokens;
}

int64_t loader_num_cut(const Loader* loader) {
    return loader->num_cut;
}

int64_t loader_task_cut(const Loader* loader, int32_t task) {
    return loader->task_cut[task];
}

int64_t loader_task_skipped(const Loader* loader, int32_t task) {
    return loader->task_skipped[task];
}

int64_t loader_num_skipped(const Loader* loader) {
    return loader->num_skipped;
}

int64_t loader_num_alone(const Loader* loader) {
    return loader->num_alone;
}

const LargestSamples* loader_largest(const Loader* loader) {
    return &loader->largest;
}

int64_t loader_longest_tokens(const Loader* loader) {
    return loader->longest_tokens;
}

int64_t loader_num_batches(const Loader* loader) {
    int64_t batch_tokens = loader->source.options.batch_tokens;
    int64_t shared_tokens = loader->num_tokens - loader->alone_tokens;
    return loader->num_alone + shared_tokens / batch_tokens + (shared_tokens % batch_tokens != 0);
}
