// test_sample_file.c -- what was written is read; whatever else is in a file is refused with a remedy.
#include "../dataloader/sample_file.h"

#include <signal.h>
#include <sys/resource.h>
#include "../util/numbers.h"
#include "data_maker.h"

static uint64_t seed;

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
        int32_t tokens[1000], all[1000], length = sample.n_input + sample.n_target;
        CHECK_EQ(file->index[id].n_input, sample.n_input);
        CHECK_EQ(file->index[id].n_target, sample.n_target);
        CHECK(strcmp(file->task_names[file->index[id].task], maker_task_name(sample.task)) == 0);
        CHECK_OK(sample_file_read(file, id, 0, length, tokens));
        CHECK_OK(sample_file_read_tokens(file, at, length, all));
        for (int32_t i = 0; i < length; i++) {
            CHECK_EQ(tokens[i], maker_token(data, id, i));
            CHECK_EQ(tokens[i], all[i]);
        }
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
        CHECK_OK(sample_file_open(&file, path, true));
        check_equal(&file, &data);
        sample_file_close(&file);
        CHECK_OK(sample_file_open_tokens(&file, path));
        CHECK(file.num_samples == 0 && file.index == NULL && file.num_tokens >= 2 * data.num_samples);
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

static Status parse(const SmallFile* small, size_t num_bytes, bool verify) {
    // A block of exactly this length, so that the address sanitizer sees a read behind the end.
    unsigned char* copy = malloc(num_bytes + (num_bytes == 0));
    memcpy(copy, small->bytes, num_bytes < small->num_bytes ? num_bytes : small->num_bytes);
    if (num_bytes > small->num_bytes) { memset(copy + small->num_bytes, 0, num_bytes - small->num_bytes); }
    SampleFile file = {0};
    Status status = sample_file_parse(&file, "small.bin", copy, num_bytes, verify);
    sample_file_close(&file);
    free(copy);
    return status;
}

static void every_wrong_length_is_refused(void) {
    for (int32_t vocab = 300; vocab < 90000; vocab += 70000) {
        SmallFile small = small_file(vocab);
        for (size_t n = 0; n <= small.num_bytes + 40; n++) {
            if (n == small.num_bytes) {
                CHECK_OK(parse(&small, n, true));
            } else {
                CHECK_FAILS(parse(&small, n, false), STATUS_BAD_FORMAT, "small.bin");
                CHECK_FAILS(parse(&small, n, false), STATUS_BAD_FORMAT, "---> run prepare_data again");
            }
        }
        free(small.bytes);
    }
}

// All but the tokens is guarded by every reader, these by their chunk.
static void every_flipped_bit_is_found(void) {
    SmallFile small = small_file(300);
    for (size_t bit = 0; bit < 8 * small.num_bytes; bit++) {
        small.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK_FAILS(parse(&small, small.num_bytes, true), STATUS_BAD_FORMAT, "small.bin");
        Status quick = parse(&small, small.num_bytes, false);
        CHECK_EQ(quick, bit / 8 < small.tokens_at ? STATUS_BAD_FORMAT : STATUS_OK);
        small.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    CHECK_OK(parse(&small, small.num_bytes, true));
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
static void lies_are_found_behind_good_checksums(void) {
    static const struct {
        size_t at, num_bytes;
        uint64_t value;
        const char* words;
        bool only_verify;
    } lies[] = {
        {8, 4, 3, "version 3, this program reads 4", false},
        {12, 4, 3, "bytes per token is 3", false},
        {16, 8, 4, "truncated", false},
        {16, 8, UINT64_MAX, "truncated", false},
        {16, 8, (uint64_t)1 << 61, "truncated", false},
        {16, 8, UINT64_MAX / 24 + 1, "truncated", false},
        {16, 8, 2, "too long", false},
        {24, 8, UINT64_MAX, "truncated", false},
        {24, 8, (uint64_t)1 << 63, "truncated", false},
        {24, 8, 10, "too long", false},
        {32, 4, 4097, "more than 4096", false},
        {32, 4, 1, "is not 0", false},
        {32, 4, 3, "name of task 2: 0 bytes", false},
        {36, 4, 0, "vocab is 0", false},
        {36, 4, 0x80000000u, "vocab is 2147483648", false},
        {40, 4, 300, "end-of-text token is 300, beyond the vocabulary of 300", false},
        {44, 4, 5, "tokenizer is 5", false},
        {48, 4, 300, "padding token is 300, beyond the vocabulary of 300", false},
        {48, 4, 0xfffffffeu, "padding token is 4294967294", false},
        {52, 4, 4, "end of the input is 4", false},
        {88, 2, 0, "name of task 0: 0 bytes", false},
        {88, 2, 256, "name of task 0: 256 bytes", false},
        {88, 2, 200, "name of task 0: 200 bytes", false},
        {90, 1, 0, "contains a zero byte", false},
        {103, 1, 1, "is not 0", false},
        {104, 8, 1, "index of sample 0: tokens 1", false},
        {112, 4, 0xffffffffu, "index of sample 0", false},
        {116, 4, 0xffffffffu, "index of sample 0", false},
        {116, 4, 3, "index of sample 1", false},
        {120, 4, 2, "task is 2 of 2", false},
        {124, 4, 1, "index of sample 0: gaps 1 to 0 of 1", false},
        {148, 4, 1, "index of sample 0: gaps 0 to 1 of 1", false},
        {172, 4, 0, "index of sample 2: gaps 0 to 1 of 1", false},
        {172, 4, 2, "index of sample 1: gaps 0 to 2 of 1", false},
        {176, 4, 0, "index of sample 1: gaps 0 to 1 of 1", false},
        {176, 4, 3, "index of sample 1: gaps", false},
        {180, 4, 4, "index of sample 1: gaps", false},
        {64, 4, 0, "too long", false},
        {64, 4, 2, "truncated", false},
        {64, 4, 0xffffffffu, "truncated", false},
        {68, 4, 0x80000000u, "tail of the input is 2147483648", false},
        {128, 8, 6, "index of sample 1", false},
        {128, 8, UINT64_MAX - 2, "index of sample 1", false},
        {164, 4, 0, "index of sample 2", false},
        {192, 2, 300, "token id 300 beyond the vocabulary of 300", true},
        {192 + 8, 2, 7, "target of sample 0 ends with token 7", true},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        SmallFile small = small_file(300);
        memcpy(small.bytes + lies[i].at, &lies[i].value, lies[i].num_bytes);
        repair_checksums(&small);
        CHECK_FAILS(parse(&small, small.num_bytes, true), STATUS_BAD_FORMAT, lies[i].words);
        CHECK_FAILS(parse(&small, small.num_bytes, true), STATUS_BAD_FORMAT, "--->");
        CHECK_EQ(parse(&small, small.num_bytes, false), lies[i].only_verify ? STATUS_OK : STATUS_BAD_FORMAT);
        free(small.bytes);
    }
    SmallFile small = small_file(300);
    small.bytes[small.tokens_at + 1] = 2;  // token 0 is 512 + something: only its reader notices
    repair_checksums(&small);
    SampleFile file;
    int32_t tokens[11];
    CHECK_OK(sample_file_parse(&file, "small.bin", small.bytes, small.num_bytes, false));
    CHECK_FAILS(sample_file_read(&file, 0, 0, 5, tokens), STATUS_BAD_FORMAT, "small.bin: token id");
    CHECK_OK(sample_file_read(&file, 0, 1, 4, tokens));
    CHECK_FAILS(sample_file_read(&file, 3, 0, 1, tokens), STATUS_OUT_OF_RANGE, "sample 3 of 3");
    CHECK_FAILS(sample_file_read_tokens(&file, 5, INT64_MAX, tokens), STATUS_OUT_OF_RANGE, "of 11");
    CHECK_FAILS(sample_file_read_tokens(&file, -1, 1, tokens), STATUS_OUT_OF_RANGE, "of 11");
    sample_file_close(&file);
    free(small.bytes);
}

static void other_files_are_named_for_what_they_are(void) {
    SampleFile file;
    _Alignas(8) int32_t checkpoint[256] = {20240326, 3};
    _Alignas(8) char text[] = "{\"task\": \"add\", \"inputs\": \"1+1\"}";
    CHECK_FAILS(sample_file_parse(&file, "m.bin", checkpoint, sizeof checkpoint, false), STATUS_BAD_FORMAT,
                "m.bin: magic: this is a model checkpoint");
    CHECK_FAILS(sample_file_parse(&file, "t.jsonl", text, sizeof text, false), STATUS_BAD_FORMAT,
                "---> make one with prepare_data");
    CHECK_FAILS(sample_file_open(&file, "/nowhere/x.bin", false), STATUS_IO, "/nowhere/x.bin: cannot open");
    CHECK_FAILS(sample_file_open(&file, "/tmp", false), STATUS_IO, "/tmp: not a regular file");
}

// A sample that is refused is not in the file; the writer goes on. Nothing appears before finish.
static void writer_refuses_bad_samples_and_goes_on(void) {
    char dir[64], path[128], name[300];
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/w.bin", dir);
    SampleWriter* writer;
    SampleVocab vocab = {10, 9, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 0, 0}, bad_eot = vocab,
                bad_pad = vocab;
    bad_eot.eot_token = 10;
    bad_pad.pad_token = 10;
    CHECK_FAILS(sample_writer_open(&writer, path, &bad_eot), STATUS_OUT_OF_RANGE, "end-of-text");
    CHECK_FAILS(sample_writer_open(&writer, path, &bad_pad), STATUS_OUT_OF_RANGE, "padding token 10");
    CHECK_FAILS(sample_writer_open(&writer, "/nowhere/w.bin", &vocab), STATUS_IO, "/nowhere/w.bin");
    CHECK_OK(sample_writer_open(&writer, path, &vocab));
    int32_t good[] = {1, 2, 9}, beyond[] = {1, 10, 9}, negative[] = {-1, 2, 9}, open_end[] = {1, 2, 3};
    memset(name, 'n', sizeof name);
    name[256] = '\0';
    CHECK_OK(sample_writer_add(writer, "a", good, 2, good, 3));
    CHECK_FAILS(sample_writer_add(writer, "a", beyond, 2, good, 3), STATUS_OUT_OF_RANGE, "token id 10");
    CHECK_FAILS(sample_writer_add(writer, "a", good, 2, negative, 3), STATUS_OUT_OF_RANGE, "token id -1");
    CHECK_FAILS(sample_writer_add(writer, "a", good, 2, open_end, 3), STATUS_OUT_OF_RANGE, "end it with");
    CHECK_FAILS(sample_writer_add(writer, "a", good, 0, good + 2, 1), STATUS_OUT_OF_RANGE,
                "0 input and 1 target");
    CHECK_FAILS(sample_writer_add(writer, "a", good, 2, good, 0), STATUS_OUT_OF_RANGE,
                "2 input and 0 target");
    CHECK_FAILS(sample_writer_add(writer, "a", good, INT32_MAX, good, 3), STATUS_OUT_OF_RANGE,
                "2147483647 input");
    CHECK_FAILS(sample_writer_add(writer, "", good, 2, good, 3), STATUS_OUT_OF_RANGE, "0 bytes");
    CHECK_FAILS(sample_writer_add(writer, name, good, 2, good, 3), STATUS_OUT_OF_RANGE, "256 bytes");
    name[255] = '\0';
    CHECK_OK(sample_writer_add(writer, name, NULL, 0, good, 3));
    for (int i = 2; i < SAMPLE_FILE_MAX_TASKS; i++) {
        char task[32];
        snprintf(task, sizeof task, "task %d", i);
        CHECK_OK(sample_writer_add(writer, task, good, 1, good, 3));
    }
    CHECK_FAILS(sample_writer_add(writer, "one more", good, 1, good, 3), STATUS_OUT_OF_RANGE,
                "one more than 4096");
    CHECK_OK(sample_writer_add(writer, "a", good, 1, good, 3));
    CHECK_EQ(maker_dir_count(dir), 0);
    CHECK_OK(sample_writer_finish(writer));
    SampleFile file;
    CHECK_OK(sample_file_open(&file, path, true));
    CHECK_EQ(file.num_samples, SAMPLE_FILE_MAX_TASKS + 1);
    CHECK_EQ(file.num_tasks, SAMPLE_FILE_MAX_TASKS);
    CHECK(strcmp(file.task_names[1], name) == 0 && strcmp(file.task_names[4095], "task 4095") == 0);
    CHECK_EQ(file.index[4096].task, 0);
    sample_file_close(&file);
    // An abandoned writer leaves what was there.
    CHECK_OK(sample_writer_open(&writer, path, &vocab));
    CHECK_OK(sample_writer_add(writer, "a", good, 1, good, 3));
    sample_writer_abort(writer);
    CHECK_OK(sample_file_open(&file, path, true));
    CHECK_EQ(file.num_tokens, 5 + 3 + 4094 * 4 + 4);
    sample_file_close(&file);
    maker_dir_remove(dir);
}

// Padding, end of the input and the vocabulary's hash come back as they were written.
static void what_t5_needs_is_in_the_header(void) {
    char dir[64], path[128];
    maker_dir_create(dir);
    snprintf(path, sizeof path, "%s/t5.bin", dir);
    const SampleVocab vocabs[2] = {
        {32100, 1, 0, TOKENIZER_SENTENCEPIECE, INPUT_END_EOT, 0xfedcba9876543210u, 0},
        {300, 299, 298, TOKENIZER_BYT5, INPUT_END_NONE, 1, 0}};
    for (int i = 0; i < 2; i++) {
        int32_t tokens[2] = {5, vocabs[i].eot_token};
        SampleWriter* writer;
        SampleFile file;
        CHECK_OK(sample_writer_open(&writer, path, &vocabs[i]));
        CHECK_OK(sample_writer_add(writer, "a", tokens, 2, tokens, 2));
        CHECK_OK(sample_writer_finish(writer));
        CHECK_OK(sample_file_open(&file, path, true));
        CHECK(file.vocab == vocabs[i].num_tokens && file.eot_token == vocabs[i].eot_token);
        CHECK(file.pad_token == vocabs[i].pad_token && file.tokenizer == vocabs[i].tokenizer);
        CHECK(file.input_end == vocabs[i].input_end && file.vocab_hash == vocabs[i].hash);
        sample_file_close(&file);
    }
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
            CHECK_OK(sample_writer_add(writer, "a", tokens, 2, tokens, 2));
            CHECK_OK(sample_writer_finish(writer));
        }
        snprintf(path, sizeof path, "%s/*.bin", dir);
        SampleShards shards = {0};
        if (others[i].words == NULL) {
            CHECK_OK(sample_shards_open(&shards, path, 0, false));
        } else {
            CHECK_FAILS(sample_shards_open(&shards, path, 0, false), STATUS_MISMATCH, others[i].words);
        }
        sample_shards_close(&shards);
    }
    maker_dir_remove(dir);
}

// A sample longer than the writer's own buffers.
static void long_samples_are_written_whole(void) {
    static MadeSample sample = {0, 1500000, 7};
    for (int32_t vocab = 1000; vocab < 90000; vocab += 70000) {
        MadeData data = {.vocab = vocab, .num_samples = 1, .samples = &sample};
        char dir[64], path[128];
        maker_dir_create(dir);
        maker_write(&data, 0, 1, dir, "l.bin");
        snprintf(path, sizeof path, "%s/l.bin", dir);
        SampleFile file;
        CHECK_OK(sample_file_open(&file, path, true));
        int32_t* tokens = malloc(1500007 * sizeof *tokens);
        CHECK_OK(sample_file_read(&file, 0, 0, 1500007, tokens));
        int64_t num_wrong = 0;
        for (int32_t i = 0; i < 1500007; i++) { num_wrong += tokens[i] != maker_token(&data, 0, i); }
        CHECK_EQ(num_wrong, 0);
        free(tokens);
        sample_file_close(&file);
        maker_dir_remove(dir);
    }
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
    signal(SIGXFSZ, SIG_IGN);
    for (int num_bytes = 0; num_bytes <= 250000; num_bytes += 10000) {
        limit = (struct rlimit){(rlim_t)num_bytes, before.rlim_max};
        SampleWriter* writer = NULL;
        setrlimit(RLIMIT_FSIZE, &limit);
        SampleVocab vocab = {1000, 999, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 0, 0};
        Status status = sample_writer_open(&writer, path, &vocab);
        if (status == STATUS_OK) { status = sample_writer_add(writer, "new", tokens, 0, tokens, 100000); }
        Status finished = writer == NULL ? STATUS_IO : sample_writer_finish(writer);
        setrlimit(RLIMIT_FSIZE, &before);
        CHECK_EQ(finished, num_bytes <= 200000 ? STATUS_IO : STATUS_OK);
        CHECK(finished == STATUS_OK || strstr(status_message(), "--->") != NULL);
        CHECK_EQ(maker_dir_count(dir), 1);
        SampleFile file;
        CHECK_OK(sample_file_open(&file, path, true));
        CHECK(strcmp(file.task_names[0], num_bytes <= 200000 ? maker_task_name(0) : "new") == 0);
        sample_file_close(&file);
    }
    free(tokens);
    maker_dir_remove(dir);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(what_is_written_is_read);
    RUN(every_wrong_length_is_refused);
    RUN(every_flipped_bit_is_found);
    RUN(lies_are_found_behind_good_checksums);
    RUN(other_files_are_named_for_what_they_are);
    RUN(writer_refuses_bad_samples_and_goes_on);
    RUN(what_t5_needs_is_in_the_header);
    RUN(files_of_different_tokenizers_do_not_mix);
    RUN(long_samples_are_written_whole);
    RUN(a_full_disk_keeps_the_old_file);
    return test_end();
}
