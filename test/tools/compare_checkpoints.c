// compare_checkpoints.c A B TOLERANCE -- largest relative difference per tensor of two version 3 checkpoints:
// max |a - b| / max |b|. Exit 1 where a tensor is beyond.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../llmc/kinds.h"

static int32_t read_file(const char* path, int32_t header[256], float** out, int64_t* num_values) {
    FILE* file = fopen(path, "rb");
    if (file == NULL || fread(header, 4, 256, file) != 256 || model_header_kind(header) == NULL ||
        header[1] != 3) {
        return 0;
    }
    fseek(file, 0, SEEK_END);
    *num_values = (ftell(file) - 1024) / 4;
    fseek(file, 1024, SEEK_SET);
    *out = malloc((size_t)*num_values * 4);
    int32_t whole = fread(*out, 4, (size_t)*num_values, file) == (size_t)*num_values;
    fclose(file);
    return whole;
}

int main(int argc, char** argv) {
    if (argc != 4) { return fprintf(stderr, "usage: compare_checkpoints A B TOLERANCE\n"), 2; }
    int32_t header_a[256], header_b[256];
    float *a, *b;
    int64_t num_a, num_b;
    if (!read_file(argv[1], header_a, &a, &num_a) || !read_file(argv[2], header_b, &b, &num_b)) {
        return fprintf(stderr, "%s or %s: not a version 3 checkpoint\n", argv[1], argv[2]), 2;
    }
    enum { SEAL_BEGIN = 244 };  // each has its own
    if (memcmp(header_a, header_b, SEAL_BEGIN * sizeof header_a[0]) != 0 || num_a != num_b) {
        return fprintf(stderr, "%s and %s are of different models\n", argv[1], argv[2]), 2;
    }
    ModelConfig config;
    model_from_header(&config, model_header_kind(header_a), header_a);
    double tolerance = atof(argv[3]), worst = 0;
    const char* worst_name = "";
    int bad = 0;
    int64_t at = 0;
    for (int t = 0; t < config.kind->num_tensors; t++) {
        const TensorInfo info = config.kind->tensor(&config, t);
        int64_t layers = info.place == TENSOR_PER_LAYER       ? config.num_layers
                         : info.place == TENSOR_PER_DEC_LAYER ? config.num_dec_layers
                                                              : 1;
        double difference = 0, largest = 0;
        for (int64_t i = 0; i < layers * info.rows * info.cols; i++, at++) {
            double d = fabs((double)a[at] - (double)b[at]);
            difference = d > difference || isnan(d) ? d : difference;
            largest = fmax(largest, fabs((double)b[at]));
        }
        double relative = difference == 0 ? 0 : difference / largest;
        if (!(relative <= tolerance)) {
            printf("%-8s differs by %.3g of its largest value %.3g\n", info.name, relative, largest);
            bad = 1;
        }
        if (!(relative <= worst)) {
            worst = relative;
            worst_name = info.name;
        }
    }
    if (at != num_a) {
        return fprintf(stderr, "%s: %lld values, the header says %lld\n", argv[1], (long long)num_a,
                       (long long)at),
               2;
    }
    printf("largest relative difference %.3g (%s)\n", worst, worst_name);
    free(a);
    free(b);
    return bad;
}
