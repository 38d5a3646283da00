// fuzz_stage_split.c -- a byte for the number of stages and whether the head has a layer, then --stage-split:
// stages that cover all layers in order, or an error. libFuzzer: -max_len=96
#include "../../dynapipe_plugin/plan/planner.h"
#include "../../dynapipe_plugin/plan/placement.h"
#include "fuzz.h"

enum { NUM_LAYERS = 12, MOST_STAGES = 16 };

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    LayerRange stages[MOST_STAGES];
    const int32_t P = 1 + data[0] % MOST_STAGES;
    const bool head_has_layer = data[0] & 128;
    char* text = fuzz_text(data + 1, num_bytes - 1);
    if (stage_split_parse(stages, P, NUM_LAYERS, head_has_layer, text) == STATUS_OK) {
        int32_t next_layer = 0;
        for (int32_t s = 0; s < P; s++) {
            REQUIRE(stages[s].layer_begin == next_layer && stage_may_have(&stages[s], s, P, head_has_layer));
            next_layer = stages[s].layer_end;
        }
        REQUIRE(next_layer == NUM_LAYERS);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    free(text);
    return 0;
}
