// fuzz_train_flags.c -- any words as the trainer's flags: all values in range, or one line that names the
// flag and a remedy. libFuzzer: -max_len=128
#include <math.h>

#include "../../llmc/train_flags.h"
#include "fuzz_words.h"

static void require_sane(const TrainFlags* flags) {
    REQUIRE(flags->rows >= 1 && flags->seq_tokens >= 1 && flags->batch_tokens >= 0 && flags->steps >= -1);
    REQUIRE(flags->warmup_steps >= 0 && flags->resume >= 0 && flags->val_batches >= -1 &&
            flags->sample_tokens >= 1);
    REQUIRE(isfinite(flags->lr) && flags->lr >= 0 && isfinite(flags->weight_decay) && flags->dropout >= 0 &&
            flags->dropout < 1);
    REQUIRE(flags->final_lr_fraction >= 0 && flags->final_lr_fraction <= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    FuzzWords words;
    TrainFlags flags;
    fuzz_words_split(&words, "train_gpt2", data, num_bytes);
    const char* error = train_flags_parse(&flags, words.argc, words.argv);
    if (error == NULL) {
        require_sane(&flags);
    } else {
        REQUIRE(fuzz_has_remedy(error));
    }
    (void)train_flags_want_help(words.argc, words.argv);
    free(words.text);
    return 0;
}
