// test_llmc_tokens.c -- llm.c's token files: documents as samples, whole or in pieces.
#include "../dataloader/sample_file.h"

#include "data_maker.h"

static uint64_t seed;

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
        CHECK_OK(sample_file_open(&file, path, true));
        CHECK_EQ(file.vocab, kind->vocab);
        CHECK_EQ(file.eot_token, kind->eot_token);
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
    static const struct {
        const char *name, *task;
    } cases[] = {
        {"TinyStories_train.bin", "TinyStories"},
        {"fineweb_train_000012.bin", "fineweb"},
        {"fineweb_val_000000.bin", "fineweb"},
        {"edu_fineweb10B_000001.bin", "edu_fineweb10B"},
        {"tokens", "tokens"},
        {"_12.bin", "_12"},
        {"_train.bin", "_train"},
        {"12.bin", "12"},
    };
    char dir[64], path[128];
    maker_dir_create(dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t tokens[] = {50256, 1, 2};
        snprintf(path, sizeof path, "%s/%s", dir, cases[i].name);
        maker_write_llmc(path, 20240520, 1, tokens, 3);
        SampleFile file;
        CHECK_OK(sample_file_open(&file, path, true));
        CHECK_EQ(file.num_tasks, 1);
        if (strcmp(file.task_names[0], cases[i].task) != 0) {
            printf("%s gives %s, expected %s\n", cases[i].name, file.task_names[0], cases[i].task);
            test_failures++;
        }
        sample_file_close(&file);
    }
    maker_dir_remove(dir);
}

static void damaged_files_are_refused(void) {
    _Alignas(8) int32_t words[300] = {20240520, 1, 88};  // 1024 bytes, then 88 tokens of 2 bytes
    words[256] = 50256;
    SampleFile file;
    CHECK_OK(sample_file_parse(&file, "x_train.bin", words, sizeof words, true));
    CHECK_EQ(file.num_samples, 1);
    sample_file_close(&file);
    for (size_t n = 0; n < sizeof words; n++) {
        CHECK_FAILS(sample_file_parse(&file, "x.bin", words, n, false), STATUS_BAD_FORMAT, "x.bin: ");
    }
    words[299] = 50257;
    CHECK_FAILS(sample_file_parse(&file, "x.bin", words, sizeof words, true), STATUS_BAD_FORMAT,
                "token 86 is 50257, beyond the vocabulary of 50257");
    words[2] = -1;
    CHECK_FAILS(sample_file_parse(&file, "x.bin", words, sizeof words, false), STATUS_BAD_FORMAT,
                "number of tokens is -1, the file's length says 88 --->");
    words[1] = 2;
    CHECK_FAILS(sample_file_parse(&file, "x.bin", words, sizeof words, false), STATUS_BAD_FORMAT,
                "version 2, this program reads 1 --->");
    _Alignas(8) int32_t wide[258] = {20240801, 7, 2};
    wide[257] = -5;
    CHECK_FAILS(sample_file_parse(&file, "w.bin", wide, sizeof wide, true), STATUS_BAD_FORMAT,
                "token 1 is 4294967291, beyond the vocabulary of 128256");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(documents_become_samples);
    RUN(task_bears_the_name_of_the_data_set);
    RUN(damaged_files_are_refused);
    return test_end();
}
