// compare_checkpoints.c A B TOLERANCE -- largest relative difference per tensor of two version 3 checkpoints:
// max |a - b| / max |b|. Knows the file format alone, nothing of the trainer. Exit 1 where a tensor is
// beyond.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* const names[16] = {"wte",      "wpe",      "ln1w", "ln1b", "qkvw", "qkvb",
                                      "attprojw", "attprojb", "ln2w", "ln2b", "fcw",  "fcb",
                                      "fcprojw",  "fcprojb",  "lnfw", "lnfb"};

static int32_t read_file(const char* path, int32_t header[256], float** out, int64_t* num_values) {
    FILE* file = fopen(path, "rb");
    if (file == NULL || fread(header, 4, 256, file) != 256 || header[0] != 20240326 || header[1] != 3) {
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
    if (memcmp(header_a + 2, header_b + 2, 24) != 0 || num_a != num_b) {
        return fprintf(stderr, "%s and %s are of different models\n", argv[1], argv[2]), 2;
    }
    int64_t maxT = header_a[2], L = header_a[4], C = header_a[6], Vp = header_a[7];
    const int64_t counts[16] = {Vp * C,        maxT * C, L * C, L * C, L * 3 * C * C, L * 3 * C,
                                L * C * C,     L * C,    L * C, L * C, L * 4 * C * C, L * 4 * C,
                                L * 4 * C * C, L * C,    C,     C};
    double tolerance = atof(argv[3]), worst = 0;
    const char* worst_name = "";
    int bad = 0;
    int64_t at = 0;
    for (int t = 0; t < 16; t++) {
        double difference = 0, largest = 0;
        for (int64_t i = 0; i < counts[t]; i++, at++) {
            double d = fabs((double)a[at] - (double)b[at]);
            difference = d > difference || isnan(d) ? d : difference;
            largest = fmax(largest, fabs((double)b[at]));
        }
        double relative = difference == 0 ? 0 : difference / largest;
        if (!(relative <= tolerance)) {
            printf("%-8s differs by %.3g of its largest value %.3g\n", names[t], relative, largest);
            bad = 1;
        }
        if (!(relative <= worst)) {
            worst = relative;
            worst_name = names[t];
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
