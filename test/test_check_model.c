// test_check_model.c -- dynapipe_check_model(): right models pass, every mistake is found and named.
#include <stdbool.h>

#include "../dynapipe_plugin/run/session.h"
#include "test.h"
#include "tiny_chain.h"

static Dynapipe* dp;

// What was said, for the test's own eyes: every line.
static char said[8192];

static int check(const DynapipeBlocks_v1* blocks) {
    FILE* out = tmpfile();
    if (out == NULL) { return -1; }
    int code = dynapipe_check_model(dp, blocks, out);
    rewind(out);
    size_t length = fread(said, 1, sizeof said - 1, out);
    said[length] = '\0';
    fclose(out);
    return code;
}

static int lines_with(const char* begin) {
    int count = 0;
    for (const char* line = said; *line != '\0'; line = strchr(line, '\n') + 1) {
        count += strncmp(line, begin, strlen(begin)) == 0;
    }
    return count;
}

static void passes(Tiny* tiny, const DynapipeShapes_v1* shapes) {
    DynapipeBlocks_v1 blocks = tiny_blocks(tiny);
    if (shapes != NULL) { blocks.shapes = *shapes; }
    CHECK_EQ(check(&blocks), 0);
    CHECK_EQ(lines_with("ok   "), 12);
    if (lines_with("FAIL ") > 0) { printf("%s", said); }
}

static void a_right_model_passes(void) {
    passes(&(Tiny){0}, NULL);
    passes(&(Tiny){.no_weights_job = true}, NULL);
    passes(&(Tiny){.is_queued = true}, NULL);
}

static void shapes_are_kept_to(void) {
    passes(&(Tiny){0}, &(DynapipeShapes_v1){.padded = 1});
    passes(&(Tiny){0}, &(DynapipeShapes_v1){.padded = 1, .seq_multiple = 4, .tokens_multiple = 16});
    passes(&(Tiny){.max_tokens = 9}, NULL);
    passes(&(Tiny){.max_seqs = 1}, NULL);
    passes(&(Tiny){.max_tokens = 32, .max_seqs = 2},
           &(DynapipeShapes_v1){
               .padded = 1, .seq_multiple = 4, .tokens_multiple = 16, .max_tokens = 32, .max_seqs = 2});
    passes(&(Tiny){.fault = TINY_HEAD_NOT_ALONE}, &(DynapipeShapes_v1){.head_has_layer = 1});
}

static void sixteen_bits_pass(void) {
    passes(&(Tiny){.param_type = DYNAPIPE_BFLOAT16}, NULL);
}

static const char* const fault_names[] = {
#define X(name) #name,
    TINY_FAULTS(X)
#undef X
};

static const struct {
    TinyFault fault;
    const char* words;  // of the first thing found
} findings[] = {
    {TINY_SCRATCH_OVERRUN, "backward_inputs of blocks [4, 5) wrote at least 64 bytes after its scratch"},
    {TINY_ACTS_TOO_FEW, "forward of blocks [0, 2) wrote at least 4 bytes after its acts"},
    {TINY_LOSS_FOR_EACH_TOKEN, "after its losses"},
    {TINY_WRITES_BEFORE_OUT, "forward of blocks [0, 2) wrote at least 8 bytes before its out"},
    {TINY_CHANGES_IN, "forward of blocks [2, 3) changed its in"},
    {TINY_FEWER_BYTES_FOR_MORE_ROWS, "acts_bytes() with KEEP | HEAD of blocks [0, 2)"},
    {TINY_BYTES_FROM_ARRAYS,
     "scratch_bytes() of blocks [0, 2): 72, and 0 when the arrays hold something else"},
    {TINY_BOUNDARIES_DISAGREE, "172 bytes leave blocks [0, 2), 168 enter [2, 5)"},
    {TINY_NEGATIVE_BYTES, "a buffer of -1 bytes is asked for"},
    {TINY_OUT_IS_ADDED_TO, "losses: value 0 of 3 is not a number"},
    {TINY_FORWARD_COUNTS,
     "of the same forward again (1 sequence of 7 tokens), differs from byte 0 of 168 on"},
    {TINY_FLAGS_0_LEAVE_OUT_BIAS, "with flags 0 (1 sequence of 7 tokens), differs from byte"},
    {TINY_FLAGS_0_STAY_AT_A_LAYER, "out of blocks [0, 3), with flags 0 (1 sequence of 7 tokens), differs"},
    {TINY_FORWARD_ADDS_GRADIENTS, "forward changed gradients"},
    {TINY_NO_ACTS_WITHOUT_OUT, "after a recomputed forward: gradients of blocks [0, 2)"},
    {TINY_STATE_IN_MODEL, "two microbatches under way at once"},
    {TINY_STATE_IN_SCRATCH, "gradients of blocks [0, 2): value 66 of 144 is not a number"},
    {TINY_WEIGHTS_READ_IN, "gradients of blocks [2, 3): value 0 of 78 is not a number"},
    {TINY_POINTER_IN_ACTS, "acts may move: no pointer into them is kept"},
    {TINY_ONE_STAGING, "losses of jobs that are waited for once (2 sequences of 30, 2 tokens)"},
    {TINY_GRADIENTS_ASSIGNED, "gradients are added (+=)"},
    {TINY_ZEROES_HALF, "zero_gradients left"},
    {TINY_LOSS_IS_SCALED, "losses are cross entropies in nats; loss_scale belongs to gradients alone"},
    {TINY_MEAN_OVER_ROWS, "against the same samples one by one, gradients"},
    {TINY_TIED_NOT_LISTED, "in params->tied of each that has it"},
    {TINY_TIED_ELSEWHERE, "the copies of tied group 3 in blocks [0, 2) and [2, 5) hold different values"},
    {TINY_DIN_OFF, "the model cut before block 2 (1 sequence of 7 tokens), gradients"},
    {TINY_LAYERS_FROM_0, "the model cut before block 2 (1 sequence of 7 tokens), losses"},
    {TINY_HEAD_NOT_ALONE, "make() of blocks [4, 5) of 5 returned error 7: a head needs a layer"},
    {TINY_NO_PARAMS, "make() of blocks [0, 5) gave no parameters"},
    {TINY_FEWER_PARAMS_WITHOUT_VALUES, "make() counts 299 parameters with has_values 0, 300 with 1"},
    {TINY_ACROSS_WINDOWS, "attention stays inside a window"},
    {TINY_ROWS_REVERSED, "losses stand in the order of batch->rows"},
    {TINY_PADDING_IS_SEEN, "padded to 10, against 1 sequence of 7 tokens, losses"},
    {TINY_NO_BIAS_GRADIENT, "by the gradients it would by"},
    {TINY_BIAS_GRADIENT_3_PERCENT, "by the gradients it would by"},
    {TINY_SLOPE_OF_TANH, "by the gradients it would by"},
    {TINY_NO_GRADIENT_OF_MEAN, "by the gradients it would by"},
    {TINY_FORWARD_FAILS, "forward of blocks [4, 5) returned error 5 (1 sequence of 7 tokens) tiny words"},
};

// The error is the first line that fails, and each names a remedy.
static void every_mistake_is_named(void) {
    int num_findings = (int)(sizeof findings / sizeof findings[0]);
    CHECK_EQ(num_findings, TINY_NUM_TINY_FAULTS - 1);
    for (int i = 0; i < num_findings; i++) {
        Tiny tiny = {.fault = findings[i].fault, .is_queued = findings[i].fault == TINY_ONE_STAGING};
        DynapipeBlocks_v1 blocks = tiny_blocks(&tiny);
        bool failed = check(&blocks) != 0 && lines_with("FAIL ") > 0;
        const char* line = strstr(said, "FAIL ");
        bool is_first = failed && strstr(line, dynapipe_error()) != NULL &&
                        strstr(line, dynapipe_error()) < strchr(line, '\n');
        bool is_named = is_first && strstr(dynapipe_error(), findings[i].words) != NULL;
        if (is_named) { continue; }
        printf("%s: \"%s\" expected, %s\n%s\n", fault_names[findings[i].fault], findings[i].words,
               dynapipe_error(), said);
        CHECK(is_named);
    }
}

// Rounded to 8 bits: finite differences see little then, the other laws as much as before.
static void sixteen_bits_hide_no_disorder(void) {
    static const TinyFault faults[] = {TINY_DIN_OFF, TINY_GRADIENTS_ASSIGNED, TINY_LOSS_IS_SCALED,
                                       TINY_STATE_IN_MODEL, TINY_MEAN_OVER_ROWS};
    for (int i = 0; i < 5; i++) {
        Tiny tiny = {.fault = faults[i], .param_type = DYNAPIPE_BFLOAT16};
        DynapipeBlocks_v1 blocks = tiny_blocks(&tiny);
        CHECK(check(&blocks) != 0);
        if (lines_with("FAIL ") == 0) { printf("%s\n", fault_names[faults[i]]); }
    }
}

static void a_table_with_holes_is_named(void) {
    Tiny tiny = {0};
    DynapipeBlocks_v1 blocks = tiny_blocks(&tiny);
    tiny.api.zero_gradients = NULL;
    CHECK(check(&blocks) != 0 && strstr(dynapipe_error(), "the model tiny has no zero_gradients") != NULL);
    blocks = tiny_blocks(&tiny);
    blocks.num_layers = 1;
    CHECK(check(&blocks) != 0 && strstr(dynapipe_error(), "take one of at least 2 layers") != NULL);
    blocks = tiny_blocks(&tiny);
    blocks.shapes.padded = 1;
    blocks.shapes.seq_multiple = 65536;
    blocks.shapes.tokens_multiple = 65535;
    CHECK(check(&blocks) != 0 && strstr(dynapipe_error(), "multiple of 4294901760 tokens") != NULL);
    blocks = tiny_blocks(&tiny);
    blocks.shapes.reserved[2] = 1;
    CHECK(check(&blocks) != 0 && strstr(dynapipe_error(), "DynapipeShapes_v1.reserved[2] is set") != NULL);
    blocks = tiny_blocks(&tiny);
    blocks.make = NULL;
    CHECK(dynapipe_check_model(dp, &blocks, NULL) != 0 && strstr(dynapipe_error(), "make is NULL") != NULL);
}

int main(void) {
    Dynapipe session = {.num_stages = 1, .num_replicas = 1};  // without MPI
    dp = &session;
    RUN(a_right_model_passes);
    RUN(shapes_are_kept_to);
    RUN(sixteen_bits_pass);
    RUN(every_mistake_is_named);
    RUN(sixteen_bits_hide_no_disorder);
    RUN(a_table_with_holes_is_named);
    session_device_close(dp);
    return test_end();
}
