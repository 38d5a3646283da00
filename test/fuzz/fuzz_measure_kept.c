// fuzz_measure_kept.c -- any bytes as costs kept from an earlier start: not used, with a reason where the
// file cannot be read, or costs of this very model and these ranks. libFuzzer: -max_len=3072
#include "../../dynapipe_plugin/measure/measure.h"
#include "fuzz.h"
#include "memory_files.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static CostModel model;
    Machine machine;
    const CostMeasured about = {
        .interface = 1, .num_ranks = 4, .ranks_per_host = 4, .num_replicas = 1, .seq_tokens = 64};
    char why[256];
    memory_files_set("memory/kept.costs", data, num_bytes);
    if (measure_kept_load(&model, &machine, why, "memory/kept.costs", "gpt2 C 64 NH 4", &about)) {
        REQUIRE(cost_model_check(&model) == STATUS_OK);
        REQUIRE(model.measured.num_ranks == 4 && model.measured.seq_tokens >= 64 && why[0] == '\0');
        REQUIRE(machine.num_ranks == 0 || machine_check(&machine, 4) == STATUS_OK);
        free((void*)machine.ranks);
    }
    return 0;
}
