// test_token_stream.c -- the stock loader: consecutive windows, every one once per epoch, in any order.
#include "../dataloader/streams.h"

#include "data_maker.h"

static uint64_t seed;

enum { B = 3, T = 7, BT = B * T, NUM_FILES = 3, FILE_TOKENS = 200 };

// Three shards whose tokens count up, so that a window is known by its first token.
static void write_shards(const char* dir, int32_t num_tokens) {
    int32_t tokens[FILE_TOKENS];
    for (int32_t f = 0; f < NUM_FILES; f++) {
        for (int32_t i = 0; i < num_tokens; i++) { tokens[i] = 1000 * f + i; }
        char path[128];
        snprintf(path, sizeof path, "%s/shard_%d.bin", dir, f);
        maker_write_llmc(path, 20240520, 1, tokens, num_tokens - f);
    }
}

static int32_t check_window(const int32_t* inputs, const int32_t* targets) {
    for (int32_t i = 0; i < BT; i++) {
        CHECK_EQ(inputs[i], inputs[0] + i);
        CHECK_EQ(targets[i], inputs[0] + i + 1);
    }
    return inputs[0];
}

// As llm.c: windows of a file in order, the rest of the file dropped, then the next file, then from the
// start.
static void windows_follow_each_other(void) {
    char dir[64], pattern[128];
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/shard_*.bin", dir);
    for (int32_t num_tokens = BT + NUM_FILES; num_tokens <= FILE_TOKENS; num_tokens += 5) {
        write_shards(dir, num_tokens);
        TokenStream* stream = NULL;
        CHECK_OK(token_stream_open(&stream, pattern, B, T, false, seed));
        CHECK_EQ(token_stream_info(stream)->num_tokens, 3 * num_tokens - 3);
        CHECK(token_stream_info(stream)->vocab == 50257 && token_stream_info(stream)->eot_token == 50256);
        int32_t inputs[BT], targets[BT];
        int64_t position = 0;
        for (int pass = 0; pass < 3; pass++) {
            if (pass == 2) {
                token_stream_info(stream)->position = 0;
                position = 0;
            }
            for (int32_t f = 0; f < NUM_FILES; f++) {
                for (int32_t begin = 0; begin + BT + 1 <= num_tokens - f; begin += BT) {
                    CHECK_EQ(token_stream_info(stream)->position, position);
                    CHECK_OK(token_stream_next_batch(stream, inputs, targets));
                    CHECK_EQ(check_window(inputs, targets), 1000 * f + begin);
                    position++;
                }
            }
            CHECK_EQ(position, token_stream_info(stream)->num_batches * (pass == 1 ? 2 : 1));
        }
        token_stream_close(stream);
    }
    maker_dir_remove(dir);
}

// Shuffled: each epoch has every window once, files stay together, epochs differ, and seek finds any batch.
static void shuffled_epochs_are_complete(void) {
    enum { EPOCHS = 6, PER_EPOCH = 9 + 9 + 9 };
    char dir[64], pattern[128];
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/shard_*.bin", dir);
    write_shards(dir, FILE_TOKENS);
    TokenStream* stream = NULL;
    CHECK_OK(token_stream_open(&stream, pattern, B, T, true, seed));
    CHECK_EQ(token_stream_info(stream)->num_batches, PER_EPOCH);
    int32_t inputs[BT], targets[BT], first[EPOCHS * PER_EPOCH];
    for (int32_t e = 0; e < EPOCHS; e++) {
        int seen[NUM_FILES][10] = {{0}}, num_file_changes = 0, num_equal = 0;
        for (int32_t i = 0; i < PER_EPOCH; i++) {
            CHECK_OK(token_stream_next_batch(stream, inputs, targets));
            int32_t* at = &first[e * PER_EPOCH + i];
            *at = check_window(inputs, targets);
            CHECK_EQ(*at % 1000 % BT, 0);
            seen[*at / 1000][*at % 1000 / BT]++;
            num_file_changes += i > 0 && at[-1] / 1000 != *at / 1000;
            num_equal += e > 0 && at[-PER_EPOCH] == *at;
        }
        for (int32_t f = 0; f < NUM_FILES; f++) {
            for (int32_t w = 0; w < 9; w++) { CHECK_EQ(seen[f][w], 1); }
        }
        CHECK_EQ(num_file_changes, NUM_FILES - 1);
        int num_alike = 0;  // places where the first two files have the same window
        for (int32_t i = 0; i < 9; i++) {
            num_alike += first[e * PER_EPOCH + i] % 1000 == first[e * PER_EPOCH + 9 + i] % 1000;
        }
        CHECK(num_alike < 9);
        CHECK(num_equal < PER_EPOCH);
    }
    Rng rng = rng_seed(seed);
    for (int i = 0; i < 100; i++) {
        int32_t position = (int32_t)rng_below(&rng, EPOCHS * PER_EPOCH);
        token_stream_info(stream)->position = position;
        CHECK_OK(token_stream_next_batch(stream, inputs, targets));
        CHECK_EQ(inputs[0], first[position]);
    }
    token_stream_close(stream);
    maker_dir_remove(dir);
}

// Of a sample file: the tokens of all samples, one after the other.
static void sample_files_are_streams_too(void) {
    char dir[64], pattern[128];
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/a.bin", dir);
    Rng rng = rng_seed(seed);
    MadeData data = maker_random(&rng, 100, 3, 50, 90000);
    maker_write(&data, 0, 100, dir, "a.bin");
    int32_t* all = malloc(100 * 50 * sizeof *all);
    int32_t num_tokens = 0;
    for (int32_t id = 0; id < 100; id++) {
        int32_t length = data.samples[id].n_input + data.samples[id].n_target;
        for (int32_t i = 0; i < length; i++) { all[num_tokens++] = maker_token(&data, id, i); }
    }
    TokenStream* stream = NULL;
    CHECK_OK(token_stream_open(&stream, pattern, B, T, false, seed));
    CHECK_EQ(token_stream_info(stream)->tokenizer, TOKENIZER_BYTES);
    for (int32_t begin = 0; begin + BT + 1 <= num_tokens; begin += BT) {
        int32_t inputs[BT], targets[BT];
        CHECK_OK(token_stream_next_batch(stream, inputs, targets));
        for (int32_t i = 0; i < BT; i++) {
            CHECK_EQ(inputs[i], all[begin + i]);
            CHECK_EQ(targets[i], all[begin + i + 1]);
        }
    }
    CHECK_EQ(token_stream_info(stream)->num_batches, (num_tokens - 1) / BT);
    token_stream_close(stream);
    free(all);
    maker_free(&data);
    maker_dir_remove(dir);
}

static void what_cannot_be_read_is_named(void) {
    char dir[64], pattern[128];
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/shard_*.bin", dir);
    TokenStream* stream;
    CHECK_FAILS(token_stream_open(&stream, pattern, B, T, false, 0), STATUS_IO, "no file matches");
    write_shards(dir, BT + 2);
    CHECK_FAILS(token_stream_open(&stream, pattern, B, T, false, 0), STATUS_BAD_OPTION,
                "shard_2.bin: 21 tokens, a batch of -b 3 x -t 7 needs 22 --->");
    CHECK_FAILS(token_stream_open(&stream, pattern, 0, T, false, 0), STATUS_BAD_OPTION, "-b 0, -t 7");
    CHECK_FAILS(token_stream_open(&stream, pattern, 65536, 32768, false, 0), STATUS_BAD_OPTION, "-b 65536");
    int32_t tokens[BT + 1] = {0}, inputs[BT], targets[BT];
    tokens[5] = 50257;
    char path[128];
    snprintf(path, sizeof path, "%s/bad.bin", dir);
    maker_write_llmc(path, 20240520, 1, tokens, BT + 1);
    CHECK_OK(token_stream_open(&stream, path, B, T, false, 0));
    CHECK_FAILS(token_stream_next_batch(stream, inputs, targets), STATUS_BAD_FORMAT,
                "bad.bin: token id 50257");
    CHECK_EQ(token_stream_info(stream)->position, 0);
    token_stream_close(stream);
    maker_dir_remove(dir);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(windows_follow_each_other);
    RUN(shuffled_epochs_are_complete);
    RUN(sample_files_are_streams_too);
    RUN(what_cannot_be_read_is_named);
    return test_end();
}
