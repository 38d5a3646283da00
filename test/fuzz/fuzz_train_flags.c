// fuzz_train_flags.c -- any words as the trainer's flags: all values in range, or one line that names the
// flag and a remedy. libFuzzer: -max_len=128
#include <math.h>

#include "../../trainer/train_flags.h"
#include "fuzz_words.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    FuzzWords words;
    TrainFlags f;
    fuzz_words_split(&words, "train_gpt2", data, num_bytes);
    (void)train_flags_want_help(words.argc, words.argv);
    if (train_flags_parse(&f, words.argc, words.argv, NULL) == STATUS_OK) {
        REQUIRE(f.rows >= 1 && f.seq_tokens >= 1 && f.batch_tokens >= 0 && f.steps >= -1);
        REQUIRE(f.warmup_steps >= 0 && f.resume >= 0 && f.val_batches >= -1 && f.sample_tokens >= 1);
        REQUIRE(isfinite(f.lr) && f.lr >= 0 && isfinite(f.weight_decay) && f.dropout >= 0 && f.dropout < 1);
        REQUIRE(f.final_lr_fraction >= 0 && f.final_lr_fraction <= 1);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    free(words.text);
    return 0;
}
