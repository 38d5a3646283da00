// fuzz_run.c -- targets for options, settings, logs; each is built alone, with -DFUZZ_NAME (dev/fuzz.sh).
#include "fuzz.h"

#ifdef FUZZ_line_log
// line_log: any bytes as the main.log that a killed run left, the first one the step that a run goes
// on from: cut back to whole lines of steps so far, and gone on from. libFuzzer: -max_len=400
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../trainer/run_files.h"

static char folder[64], path[80];
static int fd;
static char text[8192];  // the file as it is, or as it was

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    (void)argc;
    (void)argv;
    snprintf(folder, sizeof folder, "build/fuzz/line_log_%ld", (long)getpid());
    snprintf(path, sizeof path, "%s/main.log", folder);
    REQUIRE(mkdir(folder, 0755) == 0);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    REQUIRE(fd >= 0);
    return 0;
}

static void put(const uint8_t* data, size_t num_bytes) {
    REQUIRE(ftruncate(fd, 0) == 0 && pwrite(fd, data, num_bytes, 0) == (ssize_t)num_bytes);
}

static size_t look(void) {
    ssize_t num_bytes = pread(fd, text, sizeof text, 0);
    REQUIRE(num_bytes >= 0);
    return (size_t)num_bytes;
}

// The step that a line begins with as the program writes it; -1: none.
static int step_of(const uint8_t* line, size_t num_bytes) {
    char begin[24] = "";
    int step, num_chars = 0;
    memcpy(begin, line, num_bytes < sizeof begin - 1 ? num_bytes : sizeof begin - 1);
    bool is_step = sscanf(begin, "s:%9d trl:%n", &step, &num_chars) == 1 && num_chars > 0;
    return is_step ? step : -1;
}

static void require_cut(const uint8_t* data, size_t num_bytes, size_t num_kept, int step) {
    REQUIRE(num_kept <= num_bytes && memcmp(text, data, num_kept) == 0);
    REQUIRE(num_kept == 0 || data[num_kept - 1] == '\n');
    for (size_t at = 0; at < num_kept; at++) {
        if (at == 0 || data[at - 1] == '\n') { REQUIRE(step_of(data + at, num_kept - at) <= step); }
    }
    bool is_torn = memchr(data + num_kept, '\n', num_bytes - num_kept) == NULL;
    REQUIRE(is_torn || (data[num_kept] == 's' && data[num_kept + 1] == ':'));
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    int step = data[0];
    data++, num_bytes--;
    LineLog log;
    put(data, num_bytes);
    REQUIRE(main_log_open(&log, folder) == STATUS_OK);
    REQUIRE(look() == num_bytes);
    REQUIRE(line_log_cut(&log, step) == STATUS_OK);
    size_t num_kept = look();
    require_cut(data, num_bytes, num_kept, step);
    REQUIRE(line_log_cut(&log, step) == STATUS_OK && look() == num_kept);
    main_log_train(&log, step + 1, 1, 1e-4f, 1);
    size_t num_now = look();
    REQUIRE(num_now > num_kept && text[num_now - 1] == '\n' && memcmp(text, data, num_kept) == 0);
    main_log_train(&log, step + 1, 1, 1e-4f, 1);  // the same again takes its place
    REQUIRE(look() == num_now && log.num_lost == 0);
    line_log_close(&log);
    return 0;
}
#endif

#ifdef FUZZ_measure_kept
// measure_kept: any bytes as costs kept from an earlier start: not used, with a reason where the
// file cannot be read, or costs of this very model and these ranks. libFuzzer: -max_len=3072
#include "../../dynapipe_plugin/measure/measure.h"
#include "memory_files.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static CostModel model;
    Machine machine;
    const CostMeasured about = {
        .interface = 1, .num_ranks = 4, .ranks_per_host = 4, .num_replicas = 1, .seq_tokens = 64};
    char why[STATUS_MESSAGE_BYTES];
    memory_files_set("memory/kept.costs", data, num_bytes);
    if (measure_kept_load(&model, &machine, why, "memory/kept.costs", "gpt2 C 64 NH 4", &about)) {
        REQUIRE(cost_model_check(&model) == STATUS_OK);
        REQUIRE(model.measured.num_ranks == 4 && model.measured.seq_tokens >= 64 && why[0] == '\0');
        REQUIRE(machine.num_ranks == 0 || machine_check(&machine, 4) == STATUS_OK);
        free((void*)machine.ranks);
    }
    return 0;
}
#endif

#ifdef FUZZ_printable
// printable: any bytes as a name in a message: what comes out is UTF-8 without control characters,
// fits, and is the same again where nothing had to be changed. The first byte is the room there is.
// libFuzzer: -max_len=128
#include "../../util/status.h"

// Bytes of the character that begins here; 0: none, or one that steers a terminal (C0, C1, DEL).
static size_t character(const unsigned char* at) {
    size_t num_bytes = at[0] < 0x80                    ? 1
                       : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
                       : at[0] >= 0xe0 && at[0] < 0xf0 ? 3
                       : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                       : 0;
    if (at[0] < 0x20 || at[0] == 0x7f || (at[0] == 0xc2 && at[1] < 0xa0)) { return 0; }
    for (size_t i = 1; i < num_bytes; i++) {
        if ((at[i] & 0xc0) != 0x80) { return 0; }
    }
    bool is_long = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool is_surrogate = at[0] == 0xed && at[1] >= 0xa0, is_beyond = at[0] == 0xf4 && at[1] >= 0x90;
    return is_long || is_surrogate || is_beyond ? 0 : num_bytes;
}

static bool is_clean(const char* text) {
    for (const unsigned char* at = (const unsigned char*)text; *at != '\0';) {
        size_t num_bytes = character(at);
        if (num_bytes == 0) { return false; }
        at += num_bytes;
    }
    return true;
}

// All below U+0600: no marks that turn the direction of a line.
static bool is_plain(const char* text) {
    for (const char* at = text; *at != '\0'; at++) {
        if ((unsigned char)*at >= 0xd8) { return false; }
    }
    return is_clean(text);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    enum { ALL = 4 * 128 + 4 };
    if (num_bytes < 1 || data[0] < 4) { return 0; }
    size_t room = data[0];
    char *text = fuzz_text(data + 1, num_bytes - 1), *some = malloc(room);
    char all[ALL], of_bytes[ALL], again[ALL];
    REQUIRE(some != NULL);
    REQUIRE(printable(some, room, text) == some && strlen(some) < room && is_clean(some));
    REQUIRE(is_clean(printable(all, sizeof all, text)));
    REQUIRE(!is_plain(text) || strcmp(all, text) == 0);
    REQUIRE(strcmp(printable(again, sizeof again, all), all) == 0);
    REQUIRE(is_clean(printable_bytes(of_bytes, sizeof of_bytes, (const char*)data + 1, num_bytes - 1)));
    REQUIRE(strlen(text) < num_bytes - 1 || strcmp(of_bytes, all) == 0);
    free(text);
    free(some);
    return 0;
}
#endif

#ifdef FUZZ_session_options
// session_options: any words as the plugin's options: all values in range, or an error; words that
// are none stay where they were. libFuzzer: -max_len=160
#include "../../dynapipe_plugin/plan/plan.h"
#include "../../dynapipe_plugin/run/session.h"

static void require_sane(const SessionOptions* options) {
    REQUIRE(options->num_stages >= 0 && options->num_stages <= PLAN_MAX_STAGES && options->replicas >= 0 &&
            options->replicas <= 512);
    REQUIRE(options->memory_limit_bytes >= 0 && options->plan_ahead >= 1 && options->plan_ahead <= 64);
    REQUIRE(options->noise_density > 0 && options->noise_density < 1 && options->mixture_cap >= 0);
    REQUIRE(options->batching >= 0 && options->batching < 7 && options->schedule >= 0 &&
            options->schedule < 4);
    REQUIRE(options->refit == REFIT_AUTO || options->refit == REFIT_OFF);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static const char* const own[] = {"--dropout", "--answers", NULL};
    FuzzWords words;
    SessionOptions options = {0};
    fuzz_words_split(&words, "train_gpt2", data, num_bytes);
    int argc = words.argc;
    Status status = session_options_take(&options, &argc, words.argv, own);
    REQUIRE(status == STATUS_OK || status == STATUS_BAD_OPTION);
    if (status == STATUS_OK) {
        REQUIRE(argc >= 1 && argc <= words.argc && words.argv[argc] == NULL);
        require_sane(&options);
    } else {
        REQUIRE(strlen(status_message()) > 0);
    }
    free(words.text);
    return 0;
}
#endif

#ifdef FUZZ_settings
/*
settings: any bytes as what a checkpoint keeps of a run's options: what is said of them is lines fit
for a terminal, and a position that is given back is one that was added.

An input's first byte, bit 0: the rest is the settings saved and, behind the first empty line, those of now;
else a position in the data, bit 1: its first bytes as a section of options.
*/
// libFuzzer: -max_len=300
#include <stdio.h>

#include "../../util/options.h"
#include "../../dynapipe_plugin/run/session.h"

enum { TEXTS = 1, MARKED = 2 };

static void try_texts(const uint8_t* data, size_t num_bytes) {
    size_t now_at, saved_bytes = fuzz_first_bytes(data, num_bytes, &now_at), num_chars;
    char *saved = fuzz_text(data, saved_bytes), *now = fuzz_text(data + now_at, num_bytes - now_at);
    char* said = NULL;
    FILE* out = open_memstream(&said, &num_chars);
    REQUIRE(out != NULL);
    int num_differences = settings_print_differences(out, saved, now), num_lines = 0;
    fclose(out);
    for (size_t i = 0; i < num_chars; i++) {
        unsigned char byte = (unsigned char)said[i];
        REQUIRE((byte >= 0x20 && byte != 0x7f) || byte == '\n');
        num_lines += byte == '\n';
    }
    REQUIRE(num_lines == num_differences);
    free(said);
    free(saved);
    free(now);
}

static void try_position(const uint8_t* data, size_t num_bytes, bool marked) {
    static Dynapipe session;
    session.transport.rank = 1;  // that says nothing
    Text input, section;
    size_t length = marked && num_bytes > 0 ? data[0] % (num_bytes + 1) : 0;
    REQUIRE(text_open(&input) == STATUS_OK);
    if (marked) {
        REQUIRE(text_open(&section) == STATUS_OK);
        fwrite(data, 1, length, section.out);
        REQUIRE(section_write(input.out, "dpipopt2", &section) == STATUS_OK);
    }
    fwrite(data + length, 1, num_bytes - length, input.out);
    REQUIRE(text_close(&input) == STATUS_OK);
    const void* position = input.text;
    size_t position_bytes = input.num_chars;
    if (session_settings_take(&session, &position, &position_bytes) == STATUS_OK) {
        REQUIRE((const char*)position + position_bytes == input.text + input.num_chars);
        Text all;
        REQUIRE(text_open(&all) == STATUS_OK && session_settings_write(&session, all.out) == STATUS_OK);
        fwrite(position, 1, position_bytes, all.out);
        REQUIRE(text_close(&all) == STATUS_OK);
        const void* back = all.text;
        size_t all_bytes = all.num_chars;
        REQUIRE(session_settings_take(&session, &back, &all_bytes) == STATUS_OK);
        REQUIRE(all_bytes == position_bytes && memcmp(back, position, position_bytes) == 0);
        free(all.text);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    free(input.text);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    if (data[0] & TEXTS) {
        try_texts(data + 1, num_bytes - 1);
    } else {
        try_position(data + 1, num_bytes - 1, data[0] & MARKED);
    }
    return 0;
}
#endif

#ifdef FUZZ_train_flags
// train_flags: any words as the trainer's flags: all values in range, or one line that names the
// flag and a remedy. libFuzzer: -max_len=128
#include <math.h>

#include "../../trainer/train_flags.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    FuzzWords words;
    TrainFlags f;
    fuzz_words_split(&words, "train_gpt2", data, num_bytes);
    (void)train_flags_want_help(words.argc, words.argv);
    if (train_flags_parse(&f, words.argc, words.argv, NULL) == STATUS_OK) {
        REQUIRE(f.rows >= 1 && f.seq_tokens >= 1 && f.batch_tokens >= 0 && f.steps >= -1);
        REQUIRE(f.warmup_steps >= 0 && f.resume >= 0 && f.val_samples >= -1 && f.sample_tokens >= 1);
        REQUIRE(isfinite(f.lr) && f.lr >= 0 && isfinite(f.weight_decay) && f.dropout >= 0 && f.dropout < 1);
        REQUIRE(f.final_lr_fraction >= 0 && f.final_lr_fraction <= 1);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    free(words.text);
    return 0;
}
#endif
