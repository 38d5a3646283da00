// fuzz_session_options.c -- any words as the plugin's options: all values in range, or an error; words that
// are none stay where they were. libFuzzer: -max_len=160
#include "../../dynapipe_plugin/plan/plan.h"
#include "../../dynapipe_plugin/run/session.h"
#include "fuzz_words.h"

static void require_sane(const SessionOptions* options) {
    REQUIRE(options->stages >= 1 && options->stages <= PLAN_MAX_STAGES && options->replicas >= 0 &&
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
    session_options_free(&options);
    free(words.text);
    return 0;
}
