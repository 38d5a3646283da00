// fuzz_plan.c -- any bytes as plan text: a plan comes out, or an error; and print(parse(text)) is a fixed
// point: parsing it gives a plan of the same hash that prints the same text.
#include <stdlib.h>
#include <string.h>

#include "../../dynapipe_plugin/plan/replay.h"

#define REQUIRE(condition)                      \
    do {                                        \
        if (!(condition)) { __builtin_trap(); } \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

static char* print_text(const Plan* plan) {
    char* text = NULL;
    size_t num_bytes;
    FILE* stream = open_memstream(&text, &num_bytes);
    REQUIRE(stream != NULL);
    plan_print(plan, stream);
    fclose(stream);
    return text;
}

// The text carries a hash of its contents, which random changes never meet: put it right, so that what lies
// behind that check is tried as well.
static Status parse_repaired(Plan* plan, char* text, Arena* arena) {
    Status status = plan_parse(plan, text, "fuzz.plan", arena);
    const char* right = status == STATUS_OK ? NULL : strstr(status_message(), "contents have ");
    char* place = strstr(text, "\nhash ");
    if (right == NULL || place == NULL) { return status; }
    memcpy(place + strlen("\nhash "), right + strlen("contents have "), 16);
    return plan_parse(plan, text, "fuzz.plan", arena);
}

// The batch that the plan's segments claim to be made of, so that plan_check gets as far as it can.
static Status check(const Plan* plan, Arena* arena) {
    if (plan->N > 10000) { return plan_check(plan, NULL, 0); }
    PlanSample* samples = ARENA_NEW(arena, PlanSample, plan->N);
    for (int32_t m = 0; m < plan->M && plan->mbs[m].shape.supervised_tokens < 10000; m++) {
        for (int32_t i = plan->mbs[m].sequence_begin; i < plan->mbs[m].sequence_end; i++) {
            const PlanSequence* sequence = &plan->sequences[i];
            for (int32_t k = sequence->segment_begin; k < sequence->segment_end; k++) {
                const PlanSegment* segment = &plan->segments[k];
                if (segment->sample_idx < 0 || segment->sample_idx >= plan->N) { continue; }
                samples[segment->sample_idx].enc_tokens = segment->num_tokens;
                samples[segment->sample_idx].dec_tokens = sequence->dec_tokens;
            }
        }
        if (plan->mbs[m].sequence_begin < plan->mbs[m].sequence_end) {
            const PlanSequence* first = &plan->sequences[plan->mbs[m].sequence_begin];
            int32_t sample = plan->segments[first->segment_begin].sample_idx;
            if (first->segment_begin < first->segment_end && sample >= 0 && sample < plan->N) {
                samples[sample].supervised_tokens = (int32_t)plan->mbs[m].shape.supervised_tokens;
            }
        }
    }
    return plan_check(plan, samples, plan->N);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    Arena arena = {0};
    Plan plan, again;
    char* text = malloc(num_bytes + 1);
    REQUIRE(text != NULL);
    if (num_bytes > 0) { memcpy(text, data, num_bytes); }
    text[num_bytes] = '\0';
    if (parse_repaired(&plan, text, &arena) == STATUS_OK) {
        char* printed = print_text(&plan);
        REQUIRE(plan_parse(&again, printed, "printed.plan", &arena) == STATUS_OK);
        char* reprinted = print_text(&again);
        REQUIRE(strcmp(printed, reprinted) == 0 && plan_hash(&plan) == plan_hash(&again));
        free(printed);
        free(reprinted);
        ReplayResult result;
        ReplayNoise noise = {.noise_permille = 1000, .trials = 2, .slow_permille = REPLAY_MAX_SLOW_PERMILLE};
        (void)plan_replay(&result, &plan, &noise, &arena);
        if (check(&plan, &arena) == STATUS_OK) {
            FILE* nowhere = fopen("/dev/null", "we");
            REQUIRE(nowhere != NULL);
            plan_print_table(&plan, nowhere);
            plan_print_timeline(&plan, 80, nowhere);
            fclose(nowhere);
        }
    }
    free(text);
    arena_free(&arena);
    return 0;
}
