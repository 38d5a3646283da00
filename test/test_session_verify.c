// test_session_verify.c -- ranks train on the same text, undamaged and of one tokenizer, or not at all.
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "../util/program.h"
#include "../dynapipe_plugin/run/session.h"
#include "data_maker.h"
#include "ranks.h"
#include "slow_disk.h"

enum { NUM_RANKS = 3 };

// What each rank is given, and what it found.
typedef struct {
    char train[NUM_RANKS][128], val[NUM_RANKS][128];
    bool with_val, skip_verify;
    int watching_rank;   // that is told of signals; -1: none
    int64_t timeout_ns;  // of messages
    Status open[NUM_RANKS], wait[NUM_RANKS], damage[NUM_RANKS];
    bool verifies[NUM_RANKS];
    int64_t left_bytes[NUM_RANKS], took_ns[NUM_RANKS];
    int32_t stop_signal[NUM_RANKS];
    char message[NUM_RANKS][1024];
} Start;

static char here[64], there[64];  // two folders, as on two machines

static Status open_session(Dynapipe* dp, Transport* transport, const Start* start) {
    char* argv[] = {"test", NULL};
    int argc = 1;
    int32_t ranks[NUM_RANKS] = {0, 1, 2};
    dp->transport = *transport;
    dp->num_stages = NUM_RANKS;
    dp->num_replicas = 1;
    dp->watches_signals = start->watching_rank == transport->rank;
    TRY(session_options_take(&dp->options, &argc, argv, NULL));
    TRY(collective_init(&dp->world, &dp->transport, ranks, NUM_RANKS, start->timeout_ns));
    DynapipeRun_v1 run = {.train_pattern = start->train[transport->rank],
                          .val_pattern = start->with_val ? start->val[transport->rank] : NULL,
                          .batch_tokens = 4096,
                          .max_seq_tokens = 1024,
                          .num_steps = 1,
                          .skip_verify = start->skip_verify};
    return (Status)dynapipe_open_data(dp, &run);
}

static Status start_body(Transport* t, void* arg) {
    Start* start = arg;
    int32_t r = t->rank;
    Dynapipe* dp = calloc(1, sizeof *dp);
    EXPECT(dp != NULL);
    start->open[r] = open_session(dp, t, start);
    start->verifies[r] = dp->verify != NULL;
    if (start->open[r] == STATUS_OK) {
        // As before a checkpoint, after a step: it waits until all of the part is verified.
        uint8_t record[8] = {0};
        SessionStep step = {.batch = {.position = record, .position_bytes = sizeof record}};
        const void* position;
        size_t num_bytes;
        dp->now = &step;
        int64_t begin_ns = clock_now_ns();
        start->wait[r] = (Status)dynapipe_position(dp, &position, &num_bytes);
        start->took_ns[r] = clock_now_ns() - begin_ns;
        start->stop_signal[r] = dynapipe_stop_signal(dp);
        start->left_bytes[r] = sample_verify_left_bytes(dp->verify);
        // Once all have asked, one may ask alone.
        if (start->wait[r] == STATUS_OK && r == 0) {
            EXPECT(dynapipe_position(dp, &position, &num_bytes) == STATUS_OK);
        }
        start->damage[r] = sample_verify_damage(dp->verify);
    }
    if (start->open[r] != STATUS_OK || start->wait[r] != STATUS_OK) {
        snprintf(start->message[r], sizeof start->message[r], "%s", status_message());
    }
    dp->transport = (Transport){0};  // the test's
    dynapipe_close(dp);
    return STATUS_OK;
}

// Rank 1 reads `there`, the others `here`.
static Start* run_start_of(const char* train, const char* val, bool skip_verify, int watching_rank,
                           int64_t timeout_ns) {
    static Start start;
    RankResult results[NUM_RANKS];
    memset(&start, 0, sizeof start);
    start.with_val = val != NULL;
    start.skip_verify = skip_verify;
    start.watching_rank = watching_rank;
    start.timeout_ns = timeout_ns;
    for (int r = 0; r < NUM_RANKS; r++) {
        snprintf(start.train[r], 128, "%s/%s", r == 1 ? there : here, train);
        snprintf(start.val[r], 128, "%s/%s", r == 1 ? there : here, val != NULL ? val : "");
    }
    CHECK_EQ(ranks_run(NUM_RANKS, RANKS_CHECKED, start_body, &start, results, 1), 0);
    return &start;
}

static Start* run_start(const char* train, const char* val, bool skip_verify) {
    Start* start = run_start_of(train, val, skip_verify, -1, INT64_C(20000000000));
    for (int r = 0; r < NUM_RANKS && start->wait[r] == STATUS_OK; r++) { CHECK_EQ(start->left_bytes[r], 0); }
    return start;
}

static void expect_opened(const Start* start) {
    for (int r = 0; r < NUM_RANKS; r++) {
        CHECK_EQ(start->open[r], STATUS_OK);
        CHECK_EQ(start->wait[r], STATUS_OK);
        if (start->message[r][0] != '\0') { printf("rank %d: %s\n", r, start->message[r]); }
    }
}

// On all ranks, each with its own path.
static void expect_refused(const Start* start, const char* words) {
    for (int r = 0; r < NUM_RANKS; r++) {
        CHECK_EQ(start->open[r], STATUS_MISMATCH);
        bool is_said = strstr(start->message[r], words) != NULL && strstr(start->message[r], "--->") != NULL;
        if (!is_said) { printf("rank %d: \"%s\", expected \"%s\"\n", r, start->message[r], words); }
        CHECK(is_said);
    }
}

// Five samples of the same lengths; `text` says which tokens.
static void write_text(const char* dir, const char* name, int32_t text) {
    MadeSample samples[20];
    for (int32_t i = 0; i < 20; i++) { samples[i] = (MadeSample){i % 2, 40 + i % 5, 8}; }
    MadeData data = {.vocab = 50, .num_samples = 20, .samples = samples};
    maker_write(&data, 5 * text, 5 * text + 5, dir, name);
}

static void write_both(const char* name, int32_t text, int32_t text_there) {
    write_text(here, name, text);
    write_text(there, name, text_there);
}

static void begin(void) {
    maker_dir_create(here);
    maker_dir_create(there);
    write_both("train_0.bin", 0, 0);
    write_both("train_1.bin", 1, 1);
    write_both("val.bin", 2, 2);
}

static void end(void) {
    maker_dir_remove(here);
    maker_dir_remove(there);
}

static void the_same_text_may_lie_elsewhere(void) {
    begin();
    expect_opened(run_start("train_*.bin", "val.bin", false));
    const Start* start = run_start("train_*.bin", NULL, true);
    expect_opened(start);
    for (int r = 0; r < NUM_RANKS; r++) { CHECK(!start->verifies[r]); }
    end();
}

static void other_text_of_the_same_lengths_is_refused(void) {
    begin();
    write_both("train_1.bin", 1, 3);
    expect_refused(run_start("train_*.bin", "val.bin", false), "/train_1.bin: contents (-i): rank 1 has");
    expect_refused(run_start("train_*.bin", "val.bin", true), "/train_1.bin: contents (-i): rank 1 has");
    write_both("train_1.bin", 1, 1);
    write_both("val.bin", 2, 0);
    expect_refused(run_start("train_*.bin", "val.bin", false), "/val.bin: contents (-j): rank 1 has");
    write_both("val.bin", 2, 2);
    write_text(there, "train_2.bin", 3);
    expect_refused(run_start("train_*.bin", NULL, false), "number of files of -i");
    end();
}

static void llmc_files_are_compared_too(void) {
    int32_t tokens[64];
    begin();
    for (int text = 0; text < 2; text++) {
        char path[128];
        for (int i = 0; i < 64; i++) { tokens[i] = i % 16 == 0 ? 50256 : i; }
        snprintf(path, sizeof path, "%s/web.bin", here);
        maker_write_llmc(path, 20240520, 1, tokens, 64);
        tokens[63] += text;
        snprintf(path, sizeof path, "%s/web.bin", there);
        maker_write_llmc(path, 20240520, 1, tokens, 64);
        const Start* start = run_start("web.bin", NULL, false);
        if (text == 0) { expect_opened(start); }
        if (text == 1) { expect_refused(start, "/web.bin: contents (-i): rank 1 has"); }
    }
    end();
}

// A damaged chunk is seen by the rank whose part it is: rank 0's and 2's are of train_0 and val, `there` is
// whole.
// A bit of a token, `from_end` bytes before the file's end; again: as it was.
static void flip(const char* folder, const char* name, off_t from_end) {
    char path[128];
    unsigned char byte = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR);
    off_t at = lseek(fd, -from_end, SEEK_END);
    CHECK(at > 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

// Rank 1 has files of its own: whichever is damaged, the first or the last, nobody else would see it.
static void a_copy_is_read_by_who_has_it(void) {
    static const char* const names[] = {"train_0.bin", "val.bin"};
    begin();
    for (int i = 0; i < 2; i++) {
        flip(there, names[i], 3);
        const Start* start = run_start("train_*.bin", "val.bin", false);
        for (int r = 0; r < NUM_RANKS; r++) { CHECK_EQ(start->wait[r], STATUS_BAD_FORMAT); }
        CHECK_EQ(start->damage[1], STATUS_BAD_FORMAT);
        flip(there, names[i], 3);
    }
    end();
}

static void one_rank_finds_damage(void) {
    begin();
    flip(here, "val.bin", 3);
    const Start* start = run_start("train_*.bin", "val.bin", false);
    for (int r = 0; r < NUM_RANKS; r++) {
        CHECK_EQ(start->open[r], STATUS_OK);
        CHECK_EQ(start->wait[r], STATUS_BAD_FORMAT);  // they end together, by the words of one
        CHECK_EQ(start->damage[r], r == 2 ? STATUS_BAD_FORMAT : STATUS_OK);
        CHECK(strstr(start->message[r], "val.bin: bytes ") != NULL);
    }
    expect_opened(run_start("train_*.bin", "val.bin", true));
    end();
}

// The validation data of another vocabulary of the same size.
static void another_tokenizer_is_refused(void) {
    begin();
    char path[128];
    int32_t tokens[] = {1, 2, 49};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s.bin", i % 2 ? here : there, i < 2 ? "val" : "train");
        SampleVocab vocab = {.num_tokens = 50,
                             .eot_token = 49,
                             .pad_token = -1,
                             .tokenizer = TOKENIZER_BYTES,
                             .input_end = INPUT_END_NEWLINE,
                             .hash = i < 2 ? 7 : 8};
        SampleWriter* writer;
        CHECK_OK(sample_writer_open(&writer, path, &vocab));
        CHECK_OK(sample_writer_add(writer, "t", tokens, 2, tokens, 3));
        CHECK_OK(sample_writer_finish(writer));
    }
    const Start* start = run_start("train.bin", "val.bin", false);
    expect_refused(start, "/train.bin and ");
    expect_refused(start, "/val.bin have vocabularies of 50 tokens each, but not the same");
    expect_opened(run_start("train_*.bin", "val.bin", false));  // whose hash is not known
    end();
}

// One rank's part takes four times as long as messages may: they all are whole in the end, and nobody gave
// up.
static void a_slow_part_is_waited_for(void) {
    begin();
    atomic_store(&slow_disk_ms, 1600);
    atomic_store(&slow_disk_chunks, 1);
    const Start* start = run_start_of("train_*.bin", "val.bin", false, -1, 400000000);
    expect_opened(start);
    for (int r = 0; r < NUM_RANKS; r++) {
        CHECK_EQ(start->left_bytes[r], 0);
        CHECK_EQ(start->stop_signal[r], 0);
        CHECK(start->took_ns[r] > 1000000000);
    }
    end();
}

// Signals that ranks have seen, and which of them all end by: SIGINT, as it gives the exit status.
static void of_different_signals_all_take_one(void) {
    const double seen[][NUM_RANKS] = {{0, 0, 0},
                                      {SIGTERM, SIGINT, SIGUSR1},
                                      {SIGINT, 0, SIGTERM},
                                      {0, SIGTERM, SIGINT},
                                      {SIGTERM, 0, SIGUSR1},
                                      {0, 0, SIGTERM}};
    const int expected[] = {0, SIGINT, SIGINT, SIGINT, SIGUSR1, SIGTERM};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        Dynapipe dp = {.transport = {.num_ranks = NUM_RANKS}};
        double of_ranks[2 * NUM_RANKS];
        for (int r = 0; r < 2 * NUM_RANKS; r++) { of_ranks[r] = r % 2 == 0 ? seen[i][r / 2] : 99; }
        session_stop_take(&dp, of_ranks, 2);
        CHECK_EQ(dp.stop_signal, expected[i]);
    }
    Dynapipe later = {.transport = {.num_ranks = NUM_RANKS}, .stop_signal = SIGTERM};
    session_stop_take(&later, seen[0], 1);
    CHECK_EQ(later.stop_signal, SIGTERM);
    session_stop_take(&later, seen[2], 1);
    CHECK_EQ(later.stop_signal, SIGINT);
}

// Rank 2 is told to end: no rank waits for a chunk of anybody's, and all know why. (Signals stay noted: the
// last test.)
static void who_is_told_to_end_does_not_wait(void) {
    begin();
    atomic_store(&slow_disk_ms, 2000);
    atomic_store(&slow_disk_chunks, 1000);  // all
    stop_signal_watch();
    raise(SIGUSR1);
    const Start* start = run_start_of("train_*.bin", "val.bin", false, 2, INT64_C(20000000000));
    for (int r = 0; r < NUM_RANKS; r++) {
        CHECK_EQ(start->wait[r], STATUS_OK);
        CHECK_EQ(start->stop_signal[r], SIGUSR1);
        CHECK(start->took_ns[r] < 1500000000);
        CHECK(start->left_bytes[r] > 0);
    }
    end();
}

int main(int argc, char** argv) {
    test_seed(argc, argv);
    RUN(the_same_text_may_lie_elsewhere);
    RUN(other_text_of_the_same_lengths_is_refused);
    RUN(llmc_files_are_compared_too);
    RUN(one_rank_finds_damage);
    RUN(a_copy_is_read_by_who_has_it);
    RUN(another_tokenizer_is_refused);
    RUN(a_slow_part_is_waited_for);
    RUN(of_different_signals_all_take_one);
    RUN(who_is_told_to_end_does_not_wait);
    return test_end();
}
