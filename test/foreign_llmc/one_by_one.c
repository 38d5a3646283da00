// one_by_one.c -- what the plugin in the made-up trainer must agree with: its own forward, backward and
// update, in one process, fed the samples of each step one at a time. Also makes its files.
//   one_by_one new MODEL.bin                                        parameters of a small model
//   one_by_one tokens FILE N                                        N tokens
//   one_by_one vocabulary FROM TO                                 the same samples, of another vocabulary
//   one_by_one DATA MODEL MAX_TOKENS BATCH_TOKENS STEPS LR GRADIENTS.bin..
//       losses and norms of the steps; the first step's gradients against these files: largest difference of
//       each tensor by its largest value, exit 1 beyond 1e-5
//   one_by_one loss DATA MODEL MAX_TOKENS BATCH_TOKENS           mean loss of all samples
#include "../../dataloader/loader.h"
#include "../../dataloader/sample_file.h"
#include "../../util/numbers.h"

#define TESTING
#include "train_gpt2.c"

enum { HEADER_INTS = 256, CHANNELS = 32, VOCAB = 257, MAX_TOKENS = 128 };

static float noise(uint32_t* state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 24) - 0.5f;
}

static void write_new(const char* path) {
    int header[HEADER_INTS] = {20240326, 3, MAX_TOKENS, VOCAB, 4, 4, CHANNELS, 272};
    GPT2Config config = {header[2], header[3], header[7], header[4], header[5], header[6]};
    size_t sizes[NUM_PARAMETER_TENSORS];
    uint32_t state = 1;
    FILE* file = fopen(path, "wb");
    fwrite(header, sizeof(int), HEADER_INTS, file);
    fill_in_parameter_sizes(sizes, config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        bool near_one = i == 2 || i == 8 || i == 14 || i == 16;  // weights of norms, gates
        for (size_t k = 0; k < sizes[i]; k++) {
            float value = near_one + 0.2f * noise(&state);
            fwrite(&value, sizeof value, 1, file);
        }
    }
    fclose(file);
}

static void write_tokens(const char* path, int num_tokens) {
    uint32_t state = 7;
    FILE* file = fopen(path, "wb");
    for (int i = 0; i < num_tokens; i++) {
        uint16_t token = (uint16_t)(100 + i % 7 + (noise(&state) > 0));
        fwrite(&token, sizeof token, 1, file);
    }
    fclose(file);
}

// Adds a sample's gradients to model->grads_memory; returns the sum of its losses.
static double add_sample(GPT2* model, const Loader* loader, const LoaderSample* sample, float weight) {
    int num_tokens = sample->n_input + sample->n_target - 1;
    int32_t* tokens = (int32_t*)malloc(sizeof(int32_t) * (size_t)(num_tokens + 1));
    float* weights = (float*)malloc(sizeof(float) * (size_t)num_tokens);
    if (loader_read(loader, sample, tokens) != STATUS_OK) { exit(2); }
    for (int t = 0; t < num_tokens; t++) { weights[t] = t + 1 < sample->n_input ? 0 : weight; }
    model->token_weights = weights;
    gpt2_forward(model, tokens, tokens + 1, 1, (size_t)num_tokens);
    if (model->grads_memory != NULL) {
        model->grads_acts_memory = malloc_and_point_activations(&model->grads_acts, model->act_sizes);
    }
    gpt2_backward(model);
    double loss = 0;
    for (int t = 0; t < num_tokens; t++) { loss += weights[t] > 0 ? (double)model->acts.losses[t] : 0; }
    void* used[] = {
        model->acts_memory, model->grads_acts_memory, model->inputs, model->targets, weights, tokens};
    for (size_t i = 0; i < sizeof used / sizeof used[0]; i++) { free(used[i]); }
    model->acts_memory = model->grads_acts_memory = NULL;
    return loss;
}

static bool is_close(const GPT2* model, const char* path) {
    FILE* file = fopen(path, "rb");
    double worst = 0;
    int worst_tensor = 0;
    if (file == NULL || fseek(file, HEADER_INTS * (long)sizeof(int), SEEK_SET) != 0) { return false; }
    for (int i = 0, at = 0; i < NUM_PARAMETER_TENSORS; i++) {
        double largest = 1e-30, difference = 0;
        for (size_t k = 0; k < model->param_sizes[i]; k++, at++) {
            float value;
            if (fread(&value, sizeof value, 1, file) != 1) { return false; }
            double off = fabs((double)(value - model->grads_memory[at]));
            largest = fmax(largest, fabs((double)model->grads_memory[at]));
            difference = isnan(off) ? INFINITY : fmax(difference, off);  // fmax() passes over a NaN
        }
        if (difference / largest > worst) { worst = difference / largest, worst_tensor = i; }
    }
    bool ended = fgetc(file) == EOF;
    fclose(file);
    fprintf(stderr, "%s: largest difference %.2g of the largest value (tensor %d)\n", path, worst,
            worst_tensor);
    return ended && worst < 1e-5;
}

// Of the parameters' gradients, the tied matrix once.
static double gradient_norm(const GPT2* model) {
    double squares = 0;
    for (size_t i = 0; i < model->num_parameters; i++) {
        squares += (double)model->grads_memory[i] * model->grads_memory[i];
    }
    return sqrt(squares);
}

// Mean loss over the supervised tokens of all samples.
static int print_loss(char** argv) {
    LoaderOptions options = {.batch_tokens = atoll(argv[3]), .max_seq_tokens = atoi(argv[2])};
    Loader* loader;
    LoaderBatch batch;
    Arena arena = {0};
    GPT2 model;
    double loss = 0;
    int64_t num_rows = 0;
    if (loader_open(&loader, argv[0], &options) != STATUS_OK) { return 2; }
    gpt2_build_from_checkpoint(&model, argv[1]);
    do {
        arena_reset(&arena);
        if (loader_next(loader, &batch, &arena) != STATUS_OK) { return 2; }
        for (int k = 0; k < batch.num_samples; k++) {
            loss += add_sample(&model, loader, &batch.samples[k], 1);
        }
        num_rows += batch.supervised_tokens;
    } while (!batch.end);
    printf("mean loss %.9g\n", loss / (double)num_rows);
    arena_free(&arena);
    loader_close(loader);
    model.inputs = model.targets = NULL;
    gpt2_free(&model);
    return 0;
}

// The same samples, said to be of another vocabulary.
static int write_vocabulary(const char* from, const char* to) {
    static unsigned char bytes[1 << 22];
    FILE* file = fopen(from, "rb");
    size_t num_bytes = file != NULL ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (num_bytes < SAMPLE_FORMAT_HEADER_BYTES || num_bytes == sizeof bytes) { return 2; }
    fclose(file);
    bytes[offsetof(SampleFormatHeader, vocab_hash)] ^= 1;
    uint64_t hash = hash_finish(hash_bytes(HASH_SEED, bytes, SAMPLE_FORMAT_HASHED_BYTES));
    memcpy(bytes + SAMPLE_FORMAT_HASHED_BYTES, &hash, sizeof hash);
    file = fopen(to, "wb");
    return file != NULL && fwrite(bytes, 1, num_bytes, file) == num_bytes && fclose(file) == 0 ? 0 : 2;
}

int main(int argc, char** argv) {
    if (argc == 4 && strcmp(argv[1], "vocabulary") == 0) { return write_vocabulary(argv[2], argv[3]); }
    if (argc == 3 && strcmp(argv[1], "new") == 0) { return write_new(argv[2]), 0; }
    if (argc == 4 && strcmp(argv[1], "tokens") == 0) { return write_tokens(argv[2], atoi(argv[3])), 0; }
    if (argc == 6 && strcmp(argv[1], "loss") == 0) { return print_loss(argv + 2); }
    if (argc < 7) { return 2; }
    LoaderOptions options = {
        .batch_tokens = atoll(argv[4]), .max_seq_tokens = atoi(argv[3]), .seed = 42, .shuffle = true};
    Loader* loader;
    LoaderBatch batch;
    Arena arena = {0};
    GPT2 model;
    bool all_close = true;
    if (loader_open(&loader, argv[1], &options) != STATUS_OK) {
        return fprintf(stderr, "%s\n", status_message()), 2;
    }
    gpt2_build_from_checkpoint(&model, argv[2]);
    for (int step = 0; step < atoi(argv[5]); step++) {
        double loss = 0;
        arena_reset(&arena);
        if (loader_next(loader, &batch, &arena) != STATUS_OK) { return 2; }
        for (int i = 0; i < batch.num_samples; i++) {
            loss +=
                add_sample(&model, loader, &batch.samples[i], (float)(1.0 / (double)batch.supervised_tokens));
        }
        printf("step %d: train loss %.9g norm %.9g\n", step, loss / (double)batch.supervised_tokens,
               gradient_norm(&model));
        for (int i = 7; i < argc && step == 0; i++) { all_close &= is_close(&model, argv[i]); }
        gpt2_update(&model, strtof(argv[6], NULL), 0.9f, 0.999f, 1e-8f, 0, step + 1);
        gpt2_zero_grad(&model);
    }
    arena_free(&arena);
    loader_close(loader);
    model.inputs = model.targets = NULL;
    gpt2_free(&model);
    return all_close ? 0 : 1;
}
