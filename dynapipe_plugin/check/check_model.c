// check_model.c -- dynapipe_check_model(): every law on a model, a line said for each.
#include <string.h>

#include "../plan/problem/shape_rules.h"
#include "../run/interface.h"
#include "../run/session.h"
#include "checker.h"

static const struct {
    const char* what;
    Status (*law)(Checker* c);
} laws[] = {
    {"ranges can be made, their sizes add up", checker_law_ranges},
    {"bytes follow from counts, and grow with them", checker_law_counts},
    {"promised bytes suffice, and are read where written", checker_law_bytes},
    {"gradients add, loss_scale scales them alone", checker_law_sums},
    {"a forward again gives the same", checker_law_forward},
    {"backward divided and delayed gives the joint one's gradients", checker_law_divided},
    {"jobs queued and waited for once give the same", checker_law_queued},
    {"every cut gives the whole's losses and gradients", checker_law_cuts},
    {"grouping samples changes nothing", checker_law_grouping},
    {"padding changes nothing", checker_law_padding},
    {"gradients are those of finite differences", checker_law_slopes},
};
enum { NUM_LAWS = sizeof laws / sizeof laws[0] };

static Status check_blocks(const DynapipeBlocks_v1* blocks) {
    TRY(interface_check_blocks(blocks));
    ShapeRules rules = session_rules(&blocks->shapes);
    TRY(shape_rules_valid(&rules));
    if (blocks->num_layers < 2 || blocks->num_dec_layers < 0 || blocks->vocab < 2) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%d layers, %d of a decoder, %d ids: a model that nothing can be seen on ---> check one of at "
            "least 2 layers (2 to 4 will do) and 2 ids",
            (int)blocks->num_layers, (int)blocks->num_dec_layers, (int)blocks->vocab);
    }
    return STATUS_OK;
}

static Status run_law(Checker* c, int idx, FILE* out) {
    Status status = laws[idx].law(c);
    if (out != NULL && status == STATUS_OK) { fprintf(out, "ok   %s\n", laws[idx].what); }
    if (out != NULL && status != STATUS_OK) {
        fprintf(out, "FAIL %s: %s\n", laws[idx].what, status_message());
    }
    if (out != NULL) { fflush(out); }
    checker_release(c);
    return status;
}

static Status run_laws(Checker* c, FILE* out) {
    char first_words[1024] = "";
    Status first = STATUS_OK;
    for (int i = 0; i < NUM_LAWS; i++) {
        Status status = run_law(c, i, out);
        bool is_the_models = status == STATUS_OK || status == STATUS_MISMATCH;
        if (status != STATUS_OK && first == STATUS_OK) {
            first = status;
            snprintf(first_words, sizeof first_words, "%s", status_message());
        }
        bool ends = c->guards_are_known || (i == 0 && status != STATUS_OK);  // what comes would be chance
        if (!is_the_models || ends) { break; }
    }
    return first == STATUS_OK ? first : FAIL(first, "%s", first_words);
}

static Status check_model(Dynapipe* dp, const DynapipeBlocks_v1* blocks, FILE* out) {
    Status status = check_blocks(blocks);
    if (status != STATUS_OK && out != NULL) {
        fprintf(out, "FAIL the model's table: %s\n", status_message());
    }
    TRY(status);
    if (dp->links == NULL) { TRY(session_device_open(dp, NULL)); }
    Checker c = {.blocks = blocks,
                 .device = dp->device,
                 .num_blocks =
                     blocks->num_layers + 2 + (blocks->num_dec_layers > 0 ? blocks->num_dec_layers + 1 : 0)};
    status = run_laws(&c, out);
    arena_free(&c.arena);
    return status;
}

int dynapipe_check_model(Dynapipe* dp, const DynapipeBlocks_v1* blocks, FILE* out) {
    return (int)check_model(dp, blocks, out);
}
