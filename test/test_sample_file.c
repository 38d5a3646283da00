// test_sample_file.c -- sample files: written and read back, damaged, cut, verified beside the training;
// llm.c's own token files.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "../dataloader/sample_file.h"
#include "../util/numbers.h"
#include "data_maker.h"
#include "../util/program.h"
#include "slow_disk.h"
#include "../dataloader/prepare/sample_writer.h"
#include "test.h"

static uint64_t seed;

// --- sample file --------------------

static void check_equal(const SampleFile* file, const MadeData* data) {
    CHECK_EQ(file->num_samples, data->num_samples);
    CHECK_EQ(file->vocab, data->vocab);
    CHECK_EQ(file->eot_token, data->vocab - 1);
    CHECK_EQ(file->tokenizer, TOKENIZER_BYTES);
    CHECK_EQ(file->pad_token, -1);
    CHECK_EQ(file->input_end, INPUT_END_NEWLINE);
    CHECK_EQ(file->bytes_per_token, data->vocab <= 65536 ? 2 : 4);
    int64_t at = 0;
    for (int32_t id = 0; id < data->num_samples && test_failures == 0; id++) {
        MadeSample sample = data->samples[id];
        int32_t tokens[1000], length = sample.n_input + sample.n_target;
        CHECK_EQ(file->index[id].n_input, sample.n_input);
        CHECK_EQ(file->index[id].n_target, sample.n_target);
        CHECK(strcmp(file->task_names[file->index[id].task], maker_task_name(sample.task)) == 0);
        CHECK_OK(sample_file_read(file, id, 0, length, tokens));
        for (int32_t i = 0; i < length; i++) { CHECK_EQ(tokens[i], maker_token(data, id, i)); }
        CHECK_OK(sample_file_read(file, id, length / 2, length - length / 2, tokens));
        CHECK_EQ(tokens[0], maker_token(data, id, length / 2));
        CHECK_FAILS(sample_file_read(file, id, 1, length, tokens), STATUS_OUT_OF_RANGE, "tokens 1");
        at += length;
    }
    CHECK_EQ(at, file->num_tokens);
}

static void what_is_written_is_read(void) {
    static const int32_t vocabs[] = {2, 257, 65536, 65537, 128256, INT32_MAX};
    char dir[64], path[128];
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/a.bin", dir);
    Rng rng = rng_seed(seed);
    for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++) {
        MadeData data = maker_random(&rng, (int32_t)v * 40, 1 + (int32_t)v, 900, vocabs[v]);
        maker_write(&data, 0, data.num_samples, dir, "a.bin");
        SampleFile file;
        CHECK_OK(sample_file_open(&file, path));
        check_equal(&file, &data);
        sample_file_close(&file);
        maker_free(&data);
    }
    CHECK_EQ(maker_dir_count(dir), 1);  // no temporary file is left
    maker_dir_remove(dir);
}

// The bytes of a file with three samples of two tasks, and where its sections begin.
typedef struct {
    unsigned char* bytes;
    size_t num_bytes, hashes_at, tokens_at;
} SmallFile;

static SmallFile small_file(int32_t vocab) {
    static MadeSample samples[] = {{0, 3, 2}, {1, 0, 4}, {0, 1, 1}};
    static MadeGaps gaps[] = {{0, {{0, 0}}}, {1, {{1, 3}}}, {0, {{0, 0}}}};
    MadeData data = {.vocab = vocab, .num_samples = 3, .samples = samples, .gaps = gaps};
    char dir[64], path[128], *text;
    maker_dir_create(dir);
    maker_write(&data, 0, 3, dir, "small.bin");
    snprintf(path, sizeof path, "%s/small.bin", dir);
    // names: 2 + 3 + 2 + 4 and 5 zeros; the index; a gap; one chunk
    SmallFile small = {.hashes_at = 104 + 3 * 24 + 8, .tokens_at = 104 + 3 * 24 + 8 + 8};
    CHECK_OK(file_read_text(&text, &small.num_bytes, path));
    small.bytes = (unsigned char*)text;
    CHECK_EQ(small.num_bytes, small.tokens_at + 11u * (vocab <= 65536 ? 2 : 4));
    maker_dir_remove(dir);
    return small;
}

static Status parse(const SmallFile* small, size_t num_bytes) {
    // A block of exactly this length, so that the address sanitizer sees a read behind the end.
    unsigned char* copy = malloc(num_bytes + (num_bytes == 0));
    memcpy(copy, small->bytes, num_bytes < small->num_bytes ? num_bytes : small->num_bytes);
    if (num_bytes > small->num_bytes) { memset(copy + small->num_bytes, 0, num_bytes - small->num_bytes); }
    SampleFile file = {0};
    Status status = sample_file_parse(&file, "small.bin", copy, num_bytes);
    sample_file_close(&file);
    free(copy);
    return status;
}

static void every_wrong_length_is_refused(void) {
    for (int32_t vocab = 300; vocab < 90000; vocab += 70000) {
        SmallFile small = small_file(vocab);
        for (size_t n = 0; n <= small.num_bytes + 40; n++) {
            if (n == small.num_bytes) {
                CHECK_OK(parse(&small, n));
            } else {
                CHECK_FAILS(parse(&small, n), STATUS_BAD_FORMAT, "small.bin");
                CHECK(strstr(status_message(), "--->") != NULL);
            }
        }
        free(small.bytes);
    }
}

// All but the tokens is guarded by every reader; these by one_rank_finds_each_damage().
static void every_flipped_bit_is_found(void) {
    SmallFile small = small_file(300);
    for (size_t bit = 0; bit < 8 * small.tokens_at; bit++) {
        small.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK_FAILS(parse(&small, small.num_bytes), STATUS_BAD_FORMAT, "small.bin");
        small.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    CHECK_OK(parse(&small, small.num_bytes));
    free(small.bytes);
}

static void repair_checksums(SmallFile* small) {
    SampleFormatHeader header;
    memcpy(&header, small->bytes, sizeof header);
    uint64_t chunk =
        sample_format_chunk_hash(small->bytes + small->tokens_at, small->num_bytes - small->tokens_at);
    memcpy(small->bytes + small->hashes_at, &chunk, sizeof chunk);
    header.checksum =
        hash_finish(hash_bytes(HASH_SEED, small->bytes + sizeof header, small->tokens_at - sizeof header));
    header.header_checksum = hash_finish(hash_bytes(HASH_SEED, &header, SAMPLE_FORMAT_HASHED_BYTES));
    memcpy(small->bytes, &header, sizeof header);
}

// Files that someone made on purpose: all checksums fit, one field lies.
static void lies_are_found_despite_good_checksums(void) {
    static const struct {
        size_t at, num_bytes;
        uint64_t value;
        const char* words;
    } lies[] = {
        {8, 4, 3, "version 3, this program reads 4"},
        {12, 4, 3, "bytes per token is 3"},
        {16, 8, 4, "truncated"},
        {16, 8, UINT64_MAX, "truncated"},
        {16, 8, 2, "too long"},
        {24, 8, UINT64_MAX, "truncated"},
        {32, 4, 4097, "number of tasks is 4097"},
        {32, 4, 3, "name of task 2 is"},
        {36, 4, 0, "vocab is 0"},
        {40, 4, 300, "end-of-text token is 300, outside 0 ... 299"},
        {44, 4, 5, "tokenizer is 5"},
        {48, 4, 300, "padding token is 300, outside 0 ... 299"},
        {52, 4, 4, "end of the input is 4"},
        {64, 4, 0xffffffffu, "truncated"},
        {68, 4, 0x80000000u, "tail of the input is 2147483648"},
        {88, 2, 0, "name of task 0 is"},
        {103, 1, 1, "is not 0"},
        {104, 8, 1, "index of sample 0: tokens 1 + 3 + 2"},
        {116, 4, 0xffffffffu, "index of sample 0"},
        {120, 4, 2, "index of sample 0: tokens 0 + 3 + 2, task 2"},
        {124, 4, 1, "index of sample 0"},
        {148, 4, 1, "index of sample 0"},
        {172, 4, 0, "index of sample 2"},
        {180, 4, 4, "index of sample 1"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        SmallFile small = small_file(300);
        memcpy(small.bytes + lies[i].at, &lies[i].value, lies[i].num_bytes);
        repair_checksums(&small);
        CHECK_FAILS(parse(&small, small.num_bytes), STATUS_BAD_FORMAT, lies[i].words);
        CHECK(strstr(status_message(), "--->") != NULL);
        free(small.bytes);
    }
    SmallFile small = small_file(300);
    small.bytes[small.tokens_at + 1] = 2;  // token 0 is 512 + something: only its reader notices
    repair_checksums(&small);
    SampleFile file;
    int32_t tokens[11];
    CHECK_OK(sample_file_parse(&file, "small.bin", small.bytes, small.num_bytes));
    CHECK_FAILS(sample_file_read(&file, 0, 0, 5, tokens), STATUS_BAD_FORMAT, "small.bin: token id");
    CHECK_OK(sample_file_read(&file, 0, 1, 4, tokens));
    sample_file_close(&file);
    free(small.bytes);
}

static void other_files_are_named_for_what_they_are(void) {
    SampleFile file;
    _Alignas(8) int32_t checkpoint[256] = {20240326, 3};
    _Alignas(8) char text[] = "{\"task\": \"add\", \"inputs\": \"1+1\"}";
    CHECK_FAILS(sample_file_parse(&file, "m.bin", checkpoint, sizeof checkpoint), STATUS_BAD_FORMAT,
                "m.bin: this is a model checkpoint");
    CHECK_FAILS(sample_file_parse(&file, "t.jsonl", text, sizeof text), STATUS_BAD_FORMAT,
                "---> make one with prepare_data");
    CHECK_FAILS(sample_file_open(&file, "/nowhere/x.bin"), STATUS_IO, "/nowhere/x.bin: cannot open");
    CHECK_FAILS(sample_file_open(&file, "/tmp"), STATUS_IO, "/tmp: not a regular file");
}

// A sample that is refused is not in the file; the writer goes on. Nothing appears before finish.
static void writer_refuses_bad_samples_and_goes_on(void) {
    char dir[64], path[128], name[300];
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/w.bin", dir);
    SampleWriter* writer;
    SampleVocab vocab = {10, 9, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 0, 0};
    CHECK_FAILS(sample_writer_open(&writer, "/nowhere/w.bin", &vocab), STATUS_IO, "/nowhere/w.bin");
    CHECK_OK(sample_writer_open(&writer, path, &vocab));
    static const int32_t good[] = {1, 2, 1, 2, 9};
    memset(name, 'n', sizeof name);
    name[256] = '\0';
    CHECK_OK(sample_writer_add(writer, "a", good, 2, 3, NULL, 0));
    static const struct {
        int32_t tokens[3], n_input, n_target;
        SampleGap gap;  // end 0: none
    } bad[] = {
        {{1, 10, 9}, 0, 3, {0, 0}}, {{-1, 2, 9}, 0, 3, {0, 0}}, {{1, 2, 3}, 0, 3, {0, 0}},
        {{9}, 0, 1, {0, 0}},        {{1, 2, 9}, 2, 0, {0, 0}},  {{1, 2, 9}, INT32_MAX, 3, {0, 0}},
        {{1, 2, 9}, 0, 3, {0, 1}},  {{1, 2, 9}, 0, 3, {1, 3}},  {{1, 2, 9}, 1, 2, {1, 2}},
        {{1, 2, 9}, 0, 3, {2, 2}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_FAILS(sample_writer_add(writer, "a", bad[i].tokens, bad[i].n_input, bad[i].n_target,
                                      &bad[i].gap, bad[i].gap.end > 0),
                    STATUS_OUT_OF_RANGE, "w.bin: sample of");
    }
    CHECK_FAILS(sample_writer_add(writer, "", good, 2, 3, NULL, 0), STATUS_OUT_OF_RANGE, "0 bytes");
    CHECK_FAILS(sample_writer_add(writer, name, good, 2, 3, NULL, 0), STATUS_OUT_OF_RANGE, "256 bytes");
    name[255] = '\0';
    CHECK_OK(sample_writer_add(writer, name, good + 2, 0, 3, NULL, 0));
    for (int i = 2; i < SAMPLE_FILE_MAX_TASKS; i++) {
        char task[32];
        snprintf(task, sizeof task, "task %d", i);
        CHECK_OK(sample_writer_add(writer, task, good + 1, 1, 3, NULL, 0));
    }
    CHECK_FAILS(sample_writer_add(writer, "one more", good + 1, 1, 3, NULL, 0), STATUS_OUT_OF_RANGE,
                "one more than 4096");
    CHECK_OK(sample_writer_add(writer, "a", good + 1, 1, 3, NULL, 0));
    CHECK_EQ(maker_dir_count(dir), 0);
    CHECK_OK(sample_writer_finish(writer));
    // An abandoned writer leaves what was there.
    CHECK_OK(sample_writer_open(&writer, path, &vocab));
    CHECK_OK(sample_writer_add(writer, "a", good + 1, 1, 3, NULL, 0));
    sample_writer_abort(writer);
    SampleFile file;
    CHECK_OK(sample_file_open(&file, path));
    CHECK_EQ(file.num_samples, SAMPLE_FILE_MAX_TASKS + 1);
    CHECK_EQ(file.num_tokens, 5 + 3 + 4094 * 4 + 4);
    CHECK(strcmp(file.task_names[1], name) == 0 && strcmp(file.task_names[4095], "task 4095") == 0);
    CHECK_EQ(file.index[4096].task, 0);
    sample_file_close(&file);
    maker_dir_remove(dir);
}

// One field differs at a time; what is unknown agrees with anything.
static void files_of_different_tokenizers_do_not_mix(void) {
    const SampleVocab first = {300, 1, 0, TOKENIZER_BYT5, INPUT_END_EOT, 7, 0};
    static const struct {
        SampleVocab vocab;
        const char* words;  // NULL: it agrees
    } others[] = {
        {{300, 1, 0, TOKENIZER_BYT5, INPUT_END_EOT, 7, 0}, NULL},
        {{300, 1, 0, TOKENIZER_BYT5, INPUT_END_UNKNOWN, 0, 0}, NULL},
        {{301, 1, 0, TOKENIZER_BYT5, INPUT_END_EOT, 7, 0}, "vocab 300"},
        {{300, 2, 0, TOKENIZER_BYT5, INPUT_END_EOT, 7, 0}, "end-of-text token 1"},
        {{300, 1, 2, TOKENIZER_BYT5, INPUT_END_EOT, 7, 0}, "padding token 0"},
        {{300, 1, 0, TOKENIZER_GPT2, INPUT_END_EOT, 7, 0}, "tokenizer 3"},
        {{300, 1, 0, TOKENIZER_BYT5, INPUT_END_NONE, 7, 0}, "ends its inputs another way"},
        {{300, 1, 0, TOKENIZER_BYT5, INPUT_END_EOT, 8, 0}, "but not the same"},
    };
    char dir[64], path[128];
    maker_dir_create(dir);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        for (int f = 0; f < 2; f++) {
            const SampleVocab* vocab = f == 0 ? &first : &others[i].vocab;
            int32_t tokens[2] = {5, vocab->eot_token};
            SampleWriter* writer;
            snprintf(path, sizeof path, "%s/%d.bin", dir, f);
            CHECK_OK(sample_writer_open(&writer, path, vocab));
            CHECK_OK(sample_writer_add(writer, "a", tokens, 0, 2, NULL, 0));
            CHECK_OK(sample_writer_finish(writer));
        }
        snprintf(path, sizeof path, "%s/*.bin", dir);
        SampleShards shards = {0};
        if (others[i].words == NULL) {
            CHECK_OK(sample_shards_open(&shards, path, 0));
        } else {
            CHECK_FAILS(sample_shards_open(&shards, path, 0), STATUS_MISMATCH, others[i].words);
        }
        sample_shards_close(&shards);
    }
    maker_dir_remove(dir);
}

// No room for the tokens, or later for the file itself: an error, no litter, and the old file is whole.
static void a_full_disk_keeps_the_old_file(void) {
    static MadeSample sample = {0, 99000, 1000};
    MadeData data = {.vocab = 1000, .num_samples = 1, .samples = &sample};
    char dir[64], path[128];
    maker_dir_create(dir);
    maker_write(&data, 0, 1, dir, "f.bin");
    snprintf(path, sizeof path, "%s/f.bin", dir);
    int32_t* tokens = calloc(100000, sizeof *tokens);
    tokens[99999] = 999;
    struct rlimit limit, before;
    getrlimit(RLIMIT_FSIZE, &before);
    for (int num_bytes = 0; num_bytes <= 250000; num_bytes += 10000) {
        limit = (struct rlimit){(rlim_t)num_bytes, before.rlim_max};
        SampleWriter* writer = NULL;
        setrlimit(RLIMIT_FSIZE, &limit);
        SampleVocab vocab = {1000, 999, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 0, 0};
        Status status = sample_writer_open(&writer, path, &vocab);
        if (status == STATUS_OK) { status = sample_writer_add(writer, "new", tokens, 0, 100000, NULL, 0); }
        Status finished = writer == NULL ? STATUS_IO : sample_writer_finish(writer);
        setrlimit(RLIMIT_FSIZE, &before);
        CHECK_EQ(finished, num_bytes <= 200000 ? STATUS_IO : STATUS_OK);
        CHECK(finished == STATUS_OK || strstr(status_message(), "--->") != NULL);
        CHECK_EQ(maker_dir_count(dir), 1);
        SampleFile file;
        CHECK_OK(sample_file_open(&file, path));
        CHECK(strcmp(file.task_names[0], num_bytes <= 200000 ? maker_task_name(0) : "new") == 0);
        sample_file_close(&file);
    }
    free(tokens);
    maker_dir_remove(dir);
}

// --- llmc tokens --------------------

typedef struct {
    int32_t magic, version, eot_token, vocab;
} Kind;
static const Kind kinds[] = {{20240520, 1, 50256, 50257}, {20240801, 7, 128000, 128256}};

// Random documents, empty ones among them, the first perhaps without its end-of-text token.
static int32_t random_tokens(Rng* rng, const Kind* kind, int32_t* tokens) {
    int32_t num_tokens = (int32_t)rng_below(rng, 400);
    uint32_t mean = 1 + rng_below(rng, 40);
    for (int32_t i = 0; i < num_tokens; i++) {
        tokens[i] =
            rng_below(rng, mean) == 0 ? kind->eot_token : (int32_t)rng_below(rng, (uint32_t)kind->eot_token);
    }
    return num_tokens;
}

// Brute force: place i begins a document where i is 0 or an end-of-text token stands there.
static void check_documents(const SampleFile* file, const Kind* kind, const int32_t* tokens,
                            int32_t num_tokens) {
    int64_t sample = 0, num_dropped = 0;
    for (int32_t i = 0; i < num_tokens; i++) {
        if (i > 0 && tokens[i] != kind->eot_token) { continue; }
        int32_t length = 1, read[400];
        while (i + length < num_tokens && tokens[i + length] != kind->eot_token) { length++; }
        if (length < 2) {
            num_dropped++;
            continue;
        }
        CHECK(sample < file->num_samples);
        if (test_failures > 0) { return; }
        CHECK_EQ(file->index[sample].n_input, 1);
        CHECK_EQ(file->index[sample].n_target, length - 1);
        CHECK_OK(sample_file_read(file, sample, 0, length, read));
        for (int32_t k = 0; k < length; k++) { CHECK_EQ(read[k], tokens[i + k]); }
        sample++;
    }
    CHECK_EQ(file->num_samples, sample);
    CHECK_EQ(file->num_dropped, num_dropped);
}

// Cut, every prediction inside a document is still made exactly once, none spans two documents, and no piece
// runs more than the limit.
static void check_pieces(const SampleFile* file, const Kind* kind, const int32_t* tokens, int32_t num_tokens,
                         int32_t limit) {
    int predicted[401] = {0};
    for (int64_t s = 0; s < file->num_samples; s++) {
        int64_t first = (int64_t)file->index[s].first_token;
        CHECK(file->index[s].n_target >= 1 && file->index[s].n_target <= (uint32_t)limit);
        CHECK_EQ(file->index[s].n_input, 1);
        for (int64_t i = 1; i <= file->index[s].n_target; i++) { predicted[first + i]++; }
    }
    for (int32_t i = 0; i < num_tokens; i++) {
        CHECK_EQ(predicted[i], i > 0 && tokens[i] != kind->eot_token);
    }
}

static void documents_become_samples(void) {
    char dir[64], path[128];
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/t.bin", dir);
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 200 && test_failures == 0; round++) {
        const Kind* kind = &kinds[round % 2];
        int32_t tokens[400], num_tokens = random_tokens(&rng, kind, tokens);
        maker_write_llmc(path, kind->magic, kind->version, tokens, num_tokens);
        SampleFile file;
        CHECK_OK(sample_file_open(&file, path));
        CHECK_EQ(file.vocab, kind->vocab);
        CHECK_EQ(file.eot_token, kind->eot_token);
        int32_t num_ids = 0;
        for (int32_t i = 0; i < num_tokens; i++) { num_ids = tokens[i] >= num_ids ? tokens[i] + 1 : num_ids; }
        CHECK_EQ(file.num_ids, num_ids);
        CHECK_EQ(file.num_tokens, num_tokens);
        check_documents(&file, kind, tokens, num_tokens);
        int32_t limit = rng_between(&rng, 1, 50);
        CHECK_OK(sample_file_cut(&file, limit));
        check_pieces(&file, kind, tokens, num_tokens, limit);
        sample_file_close(&file);
    }
    maker_dir_remove(dir);
}

static void task_bears_the_name_of_the_data_set(void) {
    static const char* const names[][2] = {{"TinyStories_train.bin", "TinyStories"},
                                           {"fineweb_val_000012.bin", "fineweb"},
                                           {"tokens", "tokens"},
                                           {"_train.bin", "_train"}};
    _Alignas(8) int32_t words[258] = {20240520, 1, 4};
    words[256] = 50256;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        SampleFile file;
        CHECK_OK(sample_file_parse(&file, names[i][0], words, sizeof words));
        CHECK(file.num_tasks == 1 && strcmp(file.task_names[0], names[i][1]) == 0);
        sample_file_close(&file);
    }
}

static void damaged_files_are_refused(void) {
    _Alignas(8) int32_t words[300] = {20240520, 1, 88};  // 1024 bytes, then 88 tokens of 2 bytes
    words[256] = 50256;
    SampleFile file;
    CHECK_OK(sample_file_parse(&file, "x_train.bin", words, sizeof words));
    CHECK_EQ(file.num_samples, 1);
    sample_file_close(&file);
    for (size_t n = 0; n < sizeof words; n++) {
        CHECK_FAILS(sample_file_parse(&file, "x.bin", words, n), STATUS_BAD_FORMAT, "x.bin: ");
    }
    words[2] = -1;
    CHECK_FAILS(sample_file_parse(&file, "x.bin", words, sizeof words), STATUS_BAD_FORMAT,
                "version 1, -1 tokens and 1200 bytes");
    words[1] = 2;
    CHECK_FAILS(sample_file_parse(&file, "x.bin", words, sizeof words), STATUS_BAD_FORMAT,
                "this program reads version 1 with 2 bytes a token");
}

// --- sample verify --------------------

enum { NUM_FILES = 3, LONG_TOKENS = 700000 };  // a sample of 1.3 MiB

static Status wait_all(SampleVerify* verify) {
    bool is_done = false;
    for (int turn = 0; turn < 60; turn++) {
        TRY(sample_verify_wait(verify, 1000000000, &is_done));
        if (is_done) { return STATUS_OK; }
    }
    printf("FAIL verification does not end\n");
    exit(1);
}
static char dir[64];

// Files of 2.7, 0.0 and 1.3 MiB: 5 chunks or so.
static void write_files(void) {
    static MadeSample samples[] = {{0, LONG_TOKENS, 3}, {1, 5, LONG_TOKENS}, {0, 3, 2}, {2, LONG_TOKENS, 1}};
    MadeData data = {.vocab = 300, .num_samples = 4, .samples = samples};
    maker_write(&data, 0, 2, dir, "a.bin");
    maker_write(&data, 2, 3, dir, "b.bin");
    maker_write(&data, 3, 4, dir, "c.bin");
}

static void path_of(char path[128], const char* name) {
    snprintf(path, 128, "%s/%s", dir, name);
}

static void flip(const char* name, int64_t bit) {
    char path[128];
    unsigned char byte = 0;
    path_of(path, name);
    int fd = open(path, O_RDWR);
    CHECK(pread(fd, &byte, 1, bit / 8) == 1);
    byte ^= (unsigned char)(1 << bit % 8);
    CHECK(pwrite(fd, &byte, 1, bit / 8) == 1);
    close(fd);
}

static SampleShards open_all(void) {
    SampleShards shards = {0};
    char pattern[128];
    path_of(pattern, "*.bin");
    CHECK_OK(sample_shards_open(&shards, pattern, 0));
    return shards;
}

// Of how many parts each finds damage; `message`: of the last that did.
static int parts_with_damage(SampleShards* shards, int32_t num_parts, char message[1024]) {
    int found = 0;
    for (int32_t p = 0; p < num_parts; p++) {
        SampleVerify* verify;
        CHECK_OK(sample_verify_start(&verify, &shards, 1, p, num_parts));
        Status status = wait_all(verify);
        CHECK(status == STATUS_OK || status == STATUS_BAD_FORMAT);
        CHECK_EQ(sample_verify_damage(verify), status);
        CHECK(status != STATUS_OK || sample_verify_left_bytes(verify) == 0);
        found += status != STATUS_OK;
        if (status != STATUS_OK) { snprintf(message, 1024, "%s", status_message()); }
        sample_verify_stop(verify);
    }
    return found;
}

// A flipped token is found by one rank of however many there are, and the message says where.
static void one_rank_finds_each_damage(void) {
    SampleShards shards = open_all();
    Rng rng = rng_seed(seed);
    for (int32_t round = 0; round < 40; round++) {
        static const char* const names[] = {"a.bin", "b.bin", "c.bin"};
        int32_t f = round % NUM_FILES, num_parts = 1 + (int32_t)rng_below(&rng, 9);
        const SampleFile* file = &shards.files[f];
        int64_t at = file->tokens_at + (int64_t)rng_below(&rng, (uint32_t)file->num_tokens * 2);
        if (round < 6) { at = round < 3 ? file->tokens_at : (int64_t)file->map.num_bytes - 1; }
        char message[1024] = "", *words;
        CHECK_EQ(parts_with_damage(&shards, num_parts, message), 0);
        flip(names[f], 8 * at + round % 8);
        CHECK_EQ(parts_with_damage(&shards, num_parts, message), 1);
        CHECK(strstr(message, file->path) != NULL && strstr(message, "---> run prepare_data again") != NULL);
        words = strstr(message, ": bytes ");
        long long begin = -1, last = -1;
        CHECK(words != NULL && sscanf(words, ": bytes %lld ... %lld are not", &begin, &last) == 2);
        CHECK(begin <= at && at <= last && last - begin < SAMPLE_FORMAT_CHUNK_BYTES);
        flip(names[f], 8 * at + round % 8);
    }
    sample_shards_close(&shards);
}

// Nobody need wait for the end, nor ask; nothing is left running (the sanitizers would say so).
static void it_can_be_stopped_at_any_time(void) {
    SampleShards shards = open_all();
    SampleShards* twice[] = {&shards, &shards};
    for (int round = 0; round < 20; round++) {
        SampleVerify* verify;
        CHECK_OK(sample_verify_start(&verify, twice, round % 3, 0, 1));
        if (round % 4 == 1) { usleep(300); }
        CHECK_OK(sample_verify_damage(verify));
        if (round % 4 == 2) { CHECK_OK(wait_all(verify)); }
        if (round % 4 == 2) { CHECK_OK(wait_all(verify)); }
        sample_verify_stop(verify);
    }
    sample_verify_stop(NULL);
    CHECK_OK(sample_verify_damage(NULL));
    CHECK_OK(wait_all(NULL));
    sample_shards_close(&shards);
}

// Who waits is back in time, even where a single chunk takes longer; a thread that it brought goes on.
static void nobody_waits_longer_than_he_will(void) {
    SampleShards shards = open_all();
    SampleShards* list[] = {&shards};
    SampleVerify* verify;
    bool is_done;
    slow_disk_set(2000, 1000);  // all of them
    CHECK_OK(sample_verify_start(&verify, list, 1, 0, 1));
    int64_t begin_ns = clock_now_ns();
    for (int turn = 0; turn < 4; turn++) {
        CHECK_OK(sample_verify_wait(verify, 50000000, &is_done));
        CHECK(!is_done);
    }
    int64_t took_ns = clock_now_ns() - begin_ns;
    CHECK(took_ns >= 200000000 && took_ns < 1800000000);
    CHECK(sample_verify_left_bytes(verify) > 3 << 20);
    CHECK(slow_disk_asked() <= 2);  // the thread and the one at this priority
    slow_disk_set(0, 0);
    CHECK_OK(wait_all(verify));
    CHECK_EQ(sample_verify_left_bytes(verify), 0);
    sample_verify_stop(verify);
    sample_shards_close(&shards);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(what_is_written_is_read);
    RUN(every_wrong_length_is_refused);
    RUN(every_flipped_bit_is_found);
    RUN(lies_are_found_despite_good_checksums);
    RUN(other_files_are_named_for_what_they_are);
    RUN(writer_refuses_bad_samples_and_goes_on);
    RUN(files_of_different_tokenizers_do_not_mix);
    RUN(a_full_disk_keeps_the_old_file);
    RUN(documents_become_samples);
    RUN(task_bears_the_name_of_the_data_set);
    RUN(damaged_files_are_refused);
    maker_dir_create(dir);
    write_files();
    RUN(one_rank_finds_each_damage);
    RUN(it_can_be_stopped_at_any_time);
    RUN(nobody_waits_longer_than_he_will);
    maker_dir_remove(dir);
    return test_end();
}
