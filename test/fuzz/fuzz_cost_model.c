// fuzz_cost_model.c -- any bytes as a cost file: refused with its name, or a sane model that prints itself.
#include <stdlib.h>
#include <string.h>

#include "../../dynapipe_plugin/plan/cost_model.h"
#include "fuzz.h"

static char* text_of(const CostModel* model) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* out = open_memstream(&text, &num_bytes);
    REQUIRE(out != NULL);
    cost_model_print(model, "fuzz", out);
    fclose(out);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static CostModel model, again;
    char* text = fuzz_text(data, num_bytes);
    Status status = cost_model_parse(&model, text, "fuzz.txt", NULL);
    if (status != STATUS_OK) {
        REQUIRE(status == STATUS_BAD_FORMAT && strncmp(status_message(), "fuzz.txt:", 9) == 0);
    } else {
        REQUIRE(cost_model_check(&model) == STATUS_OK);
        char *once = text_of(&model), *twice;
        REQUIRE(cost_model_parse(&again, once, "again.txt", "fuzz") == STATUS_OK);
        twice = text_of(&again);
        REQUIRE(strcmp(once, twice) == 0);
        free(once);
        free(twice);
    }
    free(text);
    return 0;
}
