// test_loader_files.c -- which files a stream may be drawn from: of one tokenizer, and those it was drawn
// from before.
#include "../dataloader/loader.h"

#include "data_maker.h"

static uint64_t seed;

enum { NUM_SAMPLES = 300, LONGEST = 200, VOCAB = 500 };

// Three files of random samples that every test reads.
static char dir[64], pattern[80];
static MadeData data;

static LoaderOptions usual_options(void) {
    return (LoaderOptions){.batch_tokens = 700, .max_seq_tokens = LONGEST, .seed = seed, .shuffle = true};
}

static Loader* open_loader(const LoaderOptions* options) {
    Loader* loader = NULL;
    CHECK_OK(loader_open(&loader, pattern, options));
    if (loader == NULL) { exit(1); }
    return loader;
}

// Other text of the same lengths is another file; the same under another name is not. Nor are all but one of
// the files, or one more, the same data.
static void a_position_is_of_the_contents(void) {
    LoaderOptions options = usual_options();
    Arena arena = {0};
    LoaderBatch batch;
    Loader* loader = open_loader(&options);
    CHECK_OK(loader_next(loader, &batch, &arena));
    int64_t num_tokens = loader_info(loader)->num_tokens;
    loader_close(loader);
    char other[64], files[80];
    maker_dir_create(other);
    snprintf(files, sizeof files, "%s/*.bin", other);
    maker_write(&data, 0, 100, other, "a.bin");
    maker_write(&data, 100, 200, other, "b.bin");
    maker_write(&data, 200, 300, other, "c.bin");
    CHECK_OK(loader_open(&loader, files, &options));
    CHECK_OK(loader_restore(loader, batch.position, batch.position_bytes));
    loader_close(loader);
    char fewer[80];
    snprintf(fewer, sizeof fewer, "%s/[ab].bin", other);
    CHECK_OK(loader_open(&loader, fewer, &options));
    CHECK_FAILS(loader_restore(loader, batch.position, batch.position_bytes), STATUS_MISMATCH,
                "a.bin: saved with 3 files of data, now it is one of 2");
    loader_close(loader);
    maker_write(&data, 0, 100, other, "d.bin");
    CHECK_OK(loader_open(&loader, files, &options));
    CHECK_FAILS(loader_restore(loader, batch.position, batch.position_bytes), STATUS_MISMATCH,
                "a.bin: saved with 3 files of data, now it is one of 4");
    loader_close(loader);
    snprintf(fewer, sizeof fewer, "%s/d.bin", other);
    CHECK_EQ(unlink(fewer), 0);
    MadeData changed = {.vocab = VOCAB, .num_samples = 100, .samples = data.samples + 100};
    maker_write(&changed, 0, 100, other, "b.bin");  // tokens are by id: other ones
    CHECK_OK(loader_open(&loader, files, &options));
    CHECK_EQ(loader_info(loader)->num_tokens, num_tokens);
    CHECK_FAILS(loader_restore(loader, batch.position, batch.position_bytes), STATUS_MISMATCH,
                "b.bin: saved with other contents of this file");
    loader_close(loader);
    maker_dir_remove(other);
    arena_free(&arena);
}

// A batch that cannot hold one sample: these are counted, and each is a batch in one pass.
static void samples_longer_than_a_batch_are_counted(void) {
    MadeSample samples[] = {
        {0, 30, 6}, {0, 2, 3}, {0, 2, 3}, {1, 10, 2}, {0, 3, 3}};  // 35, 4, 4, 11, 5 tokens
    MadeData made = {.vocab = VOCAB, .num_samples = 5, .samples = samples};
    static const struct {
        int64_t batch_tokens, num_alone, num_batches;
    } cases[] = {{10, 2, 2 + 2}, {3, 5, 5}, {11, 1, 1 + 3}, {35, 0, 2}, {1000, 0, 1}};
    char one[64], path[80];
    maker_dir_create(one);
    maker_write(&made, 0, 5, one, "long.bin");
    snprintf(path, sizeof path, "%s/long.bin", one);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        LoaderOptions options = usual_options();
        Loader* loader;
        options.batch_tokens = cases[i].batch_tokens;
        CHECK_OK(loader_open(&loader, path, &options));
        CHECK_EQ(loader_info(loader)->num_alone, cases[i].num_alone);
        CHECK_EQ(loader_info(loader)->num_batches, cases[i].num_batches);
        CHECK_EQ(loader_info(loader)->longest_tokens, 35);
        loader_close(loader);
    }
    maker_dir_remove(one);
}

static void disagreeing_files_are_both_named(void) {
    LoaderOptions options = usual_options();
    Loader* loader;
    char path[128];
    MadeSample sample = {0, 1, 1};
    MadeData other = {.vocab = 300, .num_samples = 1, .samples = &sample};
    maker_write(&other, 0, 1, dir, "train_9.bin");
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_MISMATCH, "train_0.bin has vocab 500");
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_MISMATCH, "train_9.bin has 300 --->");
    snprintf(path, sizeof path, "%s/train_9.bin", dir);
    CHECK_EQ(truncate(path, 98), 0);
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_BAD_FORMAT, "train_9.bin: truncated");
    unlink(path);
    snprintf(path, sizeof path, "%s/val*.bin", dir);
    CHECK_FAILS(loader_open(&loader, path, &options), STATUS_IO, "val*.bin: no file matches --->");
    maker_write(&other, 0, 0, dir, "empty.bin");
    snprintf(path, sizeof path, "%s/empty.bin", dir);
    CHECK_FAILS(loader_open(&loader, path, &options), STATUS_BAD_FORMAT, "empty.bin: no samples --->");
    unlink(path);
    options.batch_tokens = 0;
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_BAD_OPTION, "-d: 0");
    options = usual_options();
    options.max_seq_tokens = 0;
    CHECK_FAILS(loader_open(&loader, pattern, &options), STATUS_BAD_OPTION, "-t: 0");
    MadeSample pair[] = {{0, 50, 10}, {0, 10, 80}};
    MadeData only_long = {.vocab = VOCAB, .num_samples = 2, .samples = pair};
    maker_write(&only_long, 0, 2, dir, "long.bin");
    snprintf(path, sizeof path, "%s/long.bin", dir);
    options.max_seq_tokens = 58;
    options.long_samples = LONG_SKIP;
    CHECK_FAILS(loader_open(&loader, path, &options), STATUS_BAD_OPTION,
                "long.bin: all 2 samples are longer than -t 58");
    unlink(path);
}

// A file of one sample whose vocabulary has this hash.
static void write_of_vocab(const char* name, uint64_t hash) {
    char path[128];
    int32_t tokens[] = {1, 2, 9};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    SampleVocab vocab = {10, 9, -1, TOKENIZER_GPT2, INPUT_END_NEWLINE, hash, 0};
    SampleWriter* writer;
    CHECK_OK(sample_writer_open(&writer, path, &vocab));
    CHECK_OK(sample_writer_add(writer, "t", tokens, 2, tokens, 3));
    CHECK_OK(sample_writer_finish(writer));
}

static Loader* open_named(const char* name) {
    char path[128];
    LoaderOptions options = usual_options();
    Loader* loader = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK_OK(loader_open(&loader, path, &options));
    return loader;
}

// Vocabularies of one size are told apart by their hash wherever both are known: among the files of a stream,
// one of which may not know its own, and between two streams.
static void other_vocabularies_are_refused(void) {
    char path[128];
    LoaderOptions options = usual_options();
    Loader* refused;
    write_of_vocab("v_unknown.bin", 0);
    write_of_vocab("v_one.bin", 1);
    write_of_vocab("v_two.bin", 2);
    Loader *unknown = open_named("v_unknown.bin"), *one = open_named("v_one.bin"),
           *two = open_named("v_two.bin");
    Loader* both = open_named("v_[ou]n[ek]*.bin");
    CHECK_EQ(loader_info(unknown)->vocab_hash, 0);
    CHECK_EQ(loader_info(both)->vocab_hash, 1);
    Loader* all[] = {unknown, one, two, both};
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < 4; b++) {
            bool differ = (a == 2) != (b == 2) && a != 0 && b != 0;
            Status status = sample_shards_check_vocab(loader_shards(all[a]), loader_shards(all[b]));
            CHECK_EQ(status, differ ? STATUS_MISMATCH : STATUS_OK);
        }
    }
    CHECK_FAILS(sample_shards_check_vocab(loader_shards(both), loader_shards(two)), STATUS_MISMATCH,
                "v_one.bin");
    CHECK(strstr(status_message(), "v_two.bin") != NULL &&
          strstr(status_message(), "---> prepare both") != NULL);
    for (int i = 0; i < 4; i++) { loader_close(all[i]); }
    write_of_vocab("v_three.bin",
                   2);  // of v_one, v_three, v_two, v_unknown; then with the unknown one in front
    snprintf(path, sizeof path, "%s/v_*.bin", dir);
    CHECK_FAILS(loader_open(&refused, path, &options), STATUS_MISMATCH, "v_three.bin have vocabularies");
    write_of_vocab("v_a.bin", 0);
    CHECK_FAILS(loader_open(&refused, path, &options), STATUS_MISMATCH, "v_one.bin and");
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    Rng rng = rng_seed(seed);
    maker_dir_create(dir);
    snprintf(pattern, sizeof pattern, "%s/train_*.bin", dir);
    data = maker_random(&rng, NUM_SAMPLES, 4, LONGEST, VOCAB);
    maker_write(&data, 0, 100, dir, "train_0.bin");
    maker_write(&data, 100, 200, dir, "train_1.bin");
    maker_write(&data, 200, 300, dir, "train_2.bin");
    RUN(a_position_is_of_the_contents);
    RUN(samples_longer_than_a_batch_are_counted);
    RUN(disagreeing_files_are_both_named);
    RUN(other_vocabularies_are_refused);
    maker_free(&data);
    maker_dir_remove(dir);
    return test_end();
}
