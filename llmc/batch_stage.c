#include "batch_stage.h"

#include <stdio.h>
#include <stdlib.h>

void batch_check_range(const char* what, const int32_t* values, int num_values, int limit) {
    for (int i = 0; i < num_values; i++) {
        if (values[i] < 0 || values[i] >= limit) {
            fprintf(stderr,
                    "micro-batch: %s %d at %d is not within 0 to %d ---> prepare the data for this model\n",
                    what, values[i], i, limit - 1);
            exit(1);
        }
    }
}

const int32_t* batch_stage(OpsContext* ops, const int32_t* values, int num_values) {
    return num_values > 0 && values != NULL ? ops_stage(ops, values, (size_t)num_values) : NULL;
}
