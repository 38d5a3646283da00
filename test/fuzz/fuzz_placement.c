// fuzz_placement.c -- a byte for the number of stages and whether the head has a layer, then --placement, and
// behind the first line's end --head: a placement that keeps its rules, or an error. libFuzzer: -max_len=128
#include "../../dynapipe_plugin/plan/placement.h"
#include "fuzz.h"

enum { NUM_ENC_LAYERS = 7, NUM_DEC_LAYERS = 5, MOST_STAGES = 16 };

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    const int32_t P = 1 + data[0] % MOST_STAGES;
    const bool head_has_layer = data[0] & 128;
    static Placement placement;
    char *text = fuzz_text(data + 1, num_bytes - 1), *head = strchr(text, '\n');
    if (head != NULL) { *head++ = 0; }
    placement = (Placement){.head = HEAD_WHOLE};
    Status status = placement_parse(&placement, P, NUM_ENC_LAYERS, NUM_DEC_LAYERS, head_has_layer, text);
    REQUIRE(status == STATUS_OK || placement.num_chunks == 0);
    if (status == STATUS_OK && head != NULL) { status = placement_parse_head(&placement, P, head); }
    if (status == STATUS_OK) {
        REQUIRE(placement_check(&placement, P, NUM_ENC_LAYERS + NUM_DEC_LAYERS, head_has_layer) == STATUS_OK);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    free(text);
    return 0;
}
