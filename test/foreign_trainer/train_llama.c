/*
train_llama.c -- trains the small Llama of llama.h on lines "question<TAB>answer".

    ./train_llama -i lines.tsv -b 4 -t 64 -x 10        fixed length: all lines one after the other, cut into
windows
    ./train_llama -i lines.tsv -1 -x 10                every step: all lines, one at a time, the loss on
answers mpirun -np 4 ./train_llama -i data/train.bin -t 64 -d 4096 -x 10 --stages 2       (make DYNAPIPE=1)

Tokens are bytes; 256 ends an answer, a newline the question.
*/
#include "train_llama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { END_OF_TEXT = 256 };

// --- flags -----------------------------------------------------------------------------------------------

static void usage(void) {
    fprintf(stderr,
            "usage: train_llama -i FILE [-b sequences] [-t tokens] [-x steps] [-l learning rate] [-1]\n"
            "  -L layers  -C channels  -F hidden  -N heads  -K heads of keys and values  -w 1: tied head\n"
            "  with the plugin: -d tokens of a step  -j FILE  -o FILE (checkpoint)  -y 1: go on from it\n"
            "  -c 1: check the model, do not train\n");
    exit(EXIT_FAILURE);
}

static Flags parse_flags(int argc, char** argv) {
    Flags f;
    memset(&f, 0, sizeof f);
    f.B = 4;
    f.T = 64;
    f.steps = 10;
    f.lr = 1e-3f;
    f.config.vocab_size = END_OF_TEXT + 1;
    f.config.num_layers = 4;
    f.config.channels = 32;
    f.config.hidden = 64;
    f.config.num_heads = 4;
    f.config.num_kv_heads = 2;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-1") == 0) {
            f.one_at_a_time = 1;
            continue;
        }
        if (argv[i][0] != '-' || strlen(argv[i]) != 2 || i + 1 == argc) { usage(); }
        const char* value = argv[++i];
        switch (argv[i - 1][1]) {
            case 'i': f.input = value; break;
            case 'j': f.val_input = value; break;
            case 'o': f.checkpoint = value; break;
            case 'y': f.resume = atoi(value); break;
            case 'c': f.check = atoi(value); break;
            case 'b': f.B = atoi(value); break;
            case 't': f.T = atoi(value); break;
            case 'd': f.step_tokens = atoi(value); break;
            case 'x': f.steps = atoi(value); break;
            case 'l': f.lr = (float)atof(value); break;
            case 'L': f.config.num_layers = atoi(value); break;
            case 'C': f.config.channels = atoi(value); break;
            case 'F': f.config.hidden = atoi(value); break;
            case 'N': f.config.num_heads = atoi(value); break;
            case 'K': f.config.num_kv_heads = atoi(value); break;
            case 'w': f.config.tied = atoi(value); break;
            default: usage();
        }
    }
    if (f.input == NULL && !f.check) { usage(); }
    return f;
}

// --- data ------------------------------------------------------------------------------------------------

typedef struct {
    int *tokens, *targets;               // (num_tokens): a line's, then the next one's; -1: no loss
    int num_tokens, num_lines, *begins;  // (num_lines + 1)
} Data;

static void* grown(void* memory, size_t num_bytes) {
    memory = realloc(memory, num_bytes);
    if (memory == NULL) {
        fprintf(stderr, "train_llama: no memory for the data\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

// A line of n tokens gives n - 1 to run: each predicts the next.
static Data read_lines(const char* path) {
    Data data;
    char line[4096];
    memset(&data, 0, sizeof data);
    data.begins = (int*)grown(NULL, sizeof(int));
    data.begins[0] = 0;
    FILE* file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "train_llama: %s cannot be read\n", path);
        exit(EXIT_FAILURE);
    }
    while (fgets(line, sizeof line, file) != NULL) {
        char* tab = strchr(line, '\t');
        if (tab == NULL) { continue; }
        line[strcspn(line, "\n")] = '\0';
        int n = (int)strlen(line), question = (int)(tab - line) + 1;
        *tab = '\n';
        size_t most = (size_t)(data.num_tokens + n) * sizeof(int);
        data.tokens = (int*)grown(data.tokens, most);
        data.targets = (int*)grown(data.targets, most);
        data.begins = (int*)grown(data.begins, (size_t)(data.num_lines + 2) * sizeof(int));
        for (int t = 0; t < n; t++) {
            int next = t + 1 < n ? (unsigned char)line[t + 1] : (int)END_OF_TEXT;
            data.tokens[data.num_tokens] = (unsigned char)line[t];
            data.targets[data.num_tokens++] = t + 1 >= question ? next : -1;
        }
        data.begins[++data.num_lines] = data.num_tokens;
    }
    fclose(file);
    return data;
}

// --- training --------------------------------------------------------------------------------------------

// Gradients and the mean loss of all lines, one at a time.
static double step_on_lines(Llama* model, const Data* data) {
    int num_targets = 0;
    double sum = 0;
    for (int t = 0; t < data->num_tokens; t++) { num_targets += data->targets[t] >= 0; }
    for (int i = 0; i < data->num_lines; i++) {
        int begin = data->begins[i];
        sum += llama_forward_backward(model, data->tokens + begin, data->targets + begin, 1,
                                      data->begins[i + 1] - begin, 1.0f / (float)num_targets);
    }
    return sum / num_targets;
}

// Of the next B windows of T tokens, each token predicting the next: what lies between lines does not count.
static double step_on_windows(Llama* model, const Data* data, int B, int T, int step) {
    int num_windows = (data->num_tokens - 1) / T;
    if (num_windows < B) { usage(); }
    int begin = (step * B) % (num_windows - B + 1) * T;
    double sum = llama_forward_backward(model, data->tokens + begin, data->tokens + begin + 1, B, T,
                                        1.0f / (float)(B * T));
    return sum / (B * T);
}

static void train(const Flags* flags) {
    Llama model;
    Data data = read_lines(flags->input);
    llama_build(&model, flags->config, 1);
    printf("%d lines, %d tokens; %zu parameters\n", data.num_lines, data.num_tokens, model.num_parameters);
    for (int step = 1; step <= flags->steps; step++) {
        memset(model.grads_memory, 0, model.num_parameters * sizeof(float));
        double loss = flags->one_at_a_time ? step_on_lines(&model, &data)
                                           : step_on_windows(&model, &data, flags->B, flags->T, step - 1);
        double norm = sqrt(squared_norm(model.grads_memory, 0, model.num_parameters));
        adamw_update(model.params_memory, model.grads_memory, model.m_memory, model.v_memory, 0,
                     model.num_parameters, flags->lr, clip_factor(norm), step);
        print_step(step, loss, norm);
    }
    llama_free(&model);
    free(data.tokens);
    free(data.targets);
    free(data.begins);
}

float clip_factor(double norm) {
    return norm > 1.0 ? (float)(1.0 / norm) : 1.0f;
}

void print_step(int step, double loss, double norm) {
    printf("step %d loss %.8f norm %.8f\n", step, loss, norm);
    fflush(stdout);
}

int main(int argc, char** argv) {
#ifdef DYNAPIPE
    plugin_open(&argc, &argv);
    Flags flags = parse_flags(argc, argv);
    if (!flags.one_at_a_time) { return plugin_train(&flags); }
#else
    Flags flags = parse_flags(argc, argv);
#endif
    train(&flags);
    return EXIT_SUCCESS;
}
