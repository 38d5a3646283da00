/*
train_mini.c -- trains the small decoder of mini.h on lines "question<TAB>answer".

    ./train_mini -i lines.tsv -x 10                every step: all lines, one at a time, the loss on answers
    mpirun -np 4 ./train_mini -i data/train.bin -t 64 -d 4096 -x 10 --stages 2       (make DYNAPIPE=1)

Tokens are bytes; 256 ends an answer, a newline the question.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mini.h"
#ifdef DYNAPIPE
#include "../../dynapipe_plugin/dynapipe.h"
DynapipeModel_v1 mini_table(void);  // mini_dynapipe.c
DynapipeBlocks_v1 mini_blocks(const DynapipeModel_v1* api, MiniConfig* config);
#endif

enum { END_OF_TEXT = 256, MOST_TOKENS = 4096 };

static void stop(const char* why) {
    fprintf(stderr, "train_mini: %s\n", why);
    exit(EXIT_FAILURE);
}

typedef struct {
    const char *input, *val_input, *checkpoint;
    int longest, steps, step_tokens, resume, check;
    MiniConfig config;
} Flags;

static Flags parse_flags(int argc, char** argv) {
    Flags f;
    memset(&f, 0, sizeof f);
    f.longest = 64;
    f.steps = 10;
    f.config.vocab = END_OF_TEXT + 1;
    f.config.num_layers = 4;
    f.config.channels = 32;
    f.config.hidden = 64;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char* value = argv[i + 1];
        switch (argv[i][0] == '-' ? argv[i][1] : 0) {
            case 'i': f.input = value; break;
            case 'j': f.val_input = value; break;
            case 'o': f.checkpoint = value; break;
            case 'y': f.resume = atoi(value); break;
            case 'c': f.check = atoi(value); break;
            case 't': f.longest = atoi(value); break;
            case 'd': f.step_tokens = atoi(value); break;
            case 'x': f.steps = atoi(value); break;
            case 'L': f.config.num_layers = atoi(value); break;
            case 'C': f.config.channels = atoi(value); break;
            case 'F': f.config.hidden = atoi(value); break;
            case 'w': f.config.tied = atoi(value); break;
            default:
                stop("-i FILE [-x steps] [-L layers] [-C channels] [-F hidden] [-w 1: tied head]; with the "
                     "plugin "
                     "-t longest -d tokens of a step [-j FILE] [-o FILE] [-y 1: resume] [-c 1: check the "
                     "model]");
        }
    }
    if (f.input == NULL && !f.check) { stop("-i FILE"); }
    return f;
}

// Updates [begin, end); m1, m2: as many values as parameters.
static void update(Mini* model, float* m1, float* m2, size_t begin, size_t end, double norm, int step) {
    mini_update(model, m1, m2, begin, end, 1e-3f, norm > 1.0 ? (float)(1.0 / norm) : 1.0f, step);
}

static double squares(const float* values, size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; i++) { sum += (double)values[i] * (double)values[i]; }
    return sum;
}

static void print_step(int step, double loss, double norm) {
    printf("step %d loss %.8f norm %.8f\n", step, loss, norm);
    fflush(stdout);
}

// --- its own loop ----------------------------------------------------------------------------------------

// A line of n tokens gives n - 1 to run: each predicts the next. false: the file has ended.
static int read_line(FILE* file, MiniBatch* out) {
    static int tokens[MOST_TOKENS], rows[MOST_TOKENS], targets[MOST_TOKENS], begins[2];
    char line[MOST_TOKENS];
    if (fgets(line, sizeof line, file) == NULL) { return 0; }
    line[strcspn(line, "\n")] = '\0';
    int n = (int)strlen(line), question = (int)strcspn(line, "\t") + 1;
    line[question - 1] = '\n';
    out->num_rows = 0;
    for (int t = 0; t < n; t++) {
        tokens[t] = (unsigned char)line[t];
        if (t + 1 < question) { continue; }
        rows[out->num_rows] = t;
        targets[out->num_rows++] = t + 1 < n ? (unsigned char)line[t + 1] : (int)END_OF_TEXT;
    }
    begins[1] = out->num_tokens = n;
    out->num_seqs = 1;
    out->begins = begins;
    out->tokens = tokens;
    out->rows = rows;
    out->targets = targets;
    return 1;
}

// Adds a line's gradients; returns the sum of its losses.
static double train_line(Mini* m, const MiniBatch* b) {
    MiniLayer layer;
    MiniHead head;
    int L = m->config.num_layers;
    size_t N = (size_t)b->num_tokens, of_x = N * (size_t)m->config.channels,
           of_layer = mini_point_layer(&layer, m, N, N * N, NULL);
    size_t of_head = mini_point_head(&head, m, (size_t)b->num_rows, NULL), of_layers = of_layer * (size_t)L;
    float* memory = (float*)malloc(sizeof(float) * (of_layers + of_head + of_x + mini_room(m, N, N) + N));
    if (memory == NULL) { stop("no memory"); }
    float *x = memory + of_layers + of_head, *losses = x + of_x, *room = losses + N;
    double sum = 0;
    mini_embed(m, b, x);
    for (int l = 0; l < L; l++) {
        mini_point_layer(&layer, m, N, N * N, memory + (size_t)l * of_layer);
        mini_layer_forward(m, l, b, &layer, x, room);
    }
    mini_point_head(&head, m, (size_t)b->num_rows, memory + of_layers);
    mini_head_forward(m, b, &head, x, losses);
    for (int r = 0; r < b->num_rows; r++) { sum += (double)losses[r]; }
    mini_head_backward_inputs(m, b, &head, x, room);
    mini_head_backward_weights(m, b, &head);
    for (int l = L - 1; l >= 0; l--) {
        mini_point_layer(&layer, m, N, N * N, memory + (size_t)l * of_layer);
        mini_layer_backward_inputs(m, l, b, &layer, x, room);
        mini_layer_backward_weights(m, l, b, &layer);
    }
    mini_embed_backward(m, b, x);
    free(memory);
    return sum;
}

static void train(const Flags* flags) {
    Mini model;
    MiniBatch b;
    FILE* file = fopen(flags->input, "r");
    int num_rows = 0;
    if (file == NULL ||
        mini_make(&model, flags->config, MINI_EMBEDDING | MINI_HEAD, 0, flags->config.num_layers, 1) != 0) {
        stop("the lines cannot be read, or no memory");
    }
    float* moments = (float*)calloc(2 * model.num_params, sizeof(float));
    if (moments == NULL) { stop("no memory"); }
    while (read_line(file, &b)) { num_rows += b.num_rows; }
    for (int step = 1; step <= flags->steps; step++) {
        double loss = 0;
        rewind(file);
        memset(model.grads, 0, model.num_params * sizeof(float));
        b.scale = 1.0f / (float)num_rows;
        while (read_line(file, &b)) { loss += train_line(&model, &b); }
        double norm = sqrt(squares(model.grads, 0, model.num_params));
        update(&model, moments, moments + model.num_params, 0, model.num_params, norm, step);
        print_step(step, loss / num_rows, norm);
    }
    fclose(file);
    free(moments);
    mini_free(&model);
}

// --- the loop on DynaPipe: a task mixture on a pipeline of ranks -----------------------------------------
#ifdef DYNAPIPE
static Dynapipe* dp;

static void check(int code) {
    if (code == 0) { return; }
    dynapipe_abort(dp, dynapipe_error());
    exit(dynapipe_exit_status(code));
}

static void give_up(const char* why) {
    dynapipe_abort(dp, why);
    exit(EXIT_FAILURE);
}

static double gradient_norm(const Mini* m) {
    DynapipeSpan spans[8];
    int32_t num_spans;
    double sum = 0;
    check(dynapipe_counted(dp, spans, 8, &num_spans));
    for (int32_t i = 0; i < num_spans; i++) {
        sum += squares(m->grads, (size_t)spans[i].begin, (size_t)spans[i].end);
    }
    check(dynapipe_sum(dp, &sum, 1));
    return sqrt(sum);
}

typedef size_t Transfer(void* memory, size_t size, size_t count, FILE* file);
static size_t write_all(void* memory, size_t size, size_t count, FILE* file) {
    return fwrite(memory, size, count, file);
}

// A file for each rank: the step, parameters, this rank's share of the moments, the position in the data.
static int checkpoint(const Mini* m, float* moments, const char* path, int is_written, int* step) {
    char name[512];
    static char restored[1 << 20];
    const void* position = restored;
    size_t num_bytes = 0;
    snprintf(name, sizeof name, "%s.rank%d", path, (int)dynapipe_rank(dp));
    if (is_written) { check(dynapipe_position(dp, &position, &num_bytes)); }
    FILE* file = fopen(name, is_written ? "wb" : "rb");
    if (file == NULL) { return 0; }
    Transfer* transfer = is_written ? write_all : fread;
    int ok = transfer(step, sizeof *step, 1, file) == 1 &&
             transfer(&num_bytes, sizeof num_bytes, 1, file) == 1 && num_bytes <= sizeof restored &&
             transfer(m->params, sizeof(float), m->num_params, file) == m->num_params &&
             transfer(moments, sizeof(float), 2 * m->num_params, file) == 2 * m->num_params &&
             transfer((void*)(size_t)position, 1, num_bytes, file) == num_bytes;
    if (ok && !is_written) { check(dynapipe_restore(dp, restored, num_bytes, *step)); }
    return fclose(file) == 0 && ok;
}

static void steps(const Flags* flags, Mini* m, float* moments) {
    int step = 0;
    int64_t begin, end;
    dynapipe_shard(dp, &begin, &end);
    if (flags->resume && !checkpoint(m, moments, flags->checkpoint, 0, &step)) {
        give_up("the checkpoint cannot be read ---> -o as in the run before, without -y 1 at first");
    }
    while (step++ < flags->steps) {
        DynapipeStep_v1 done;
        check(dynapipe_step(dp, &done));
        double norm = gradient_norm(m);
        update(m, moments, moments + m->num_params, (size_t)begin, (size_t)end, norm, step);
        check(dynapipe_share_params(dp));
        if (dynapipe_rank(dp) == 0) { print_step(step, done.loss, norm); }
    }
    if (flags->val_input != NULL) {
        double loss;
        check(dynapipe_validate(dp, -1, &loss, NULL));
        if (dynapipe_rank(dp) == 0) { printf("validation loss %.8f\n", loss); }
    }
    step = flags->steps;
    if (flags->checkpoint != NULL && !checkpoint(m, moments, flags->checkpoint, 1, &step)) {
        give_up("the checkpoint cannot be written ---> another -o");
    }
}

static void plugin_train(const Flags* flags) {
    DynapipeRun_v1 run;
    DynapipeCosts* costs;
    DynapipeRange range;
    DynapipeParams_v1 params;
    int32_t num_ranges;
    void* model;
    MiniConfig config = flags->config;
    DynapipeModel_v1 api = mini_table();
    DynapipeBlocks_v1 blocks = mini_blocks(&api, &config);
    if (flags->check) {
        check(dynapipe_check_model(dp, &blocks, stdout));
        dynapipe_close(dp);
        return;
    }
    memset(&run, 0, sizeof run);
    memset(&params, 0, sizeof params);
    run.train_pattern = flags->input;
    run.val_pattern = flags->val_input;
    run.batch_tokens = flags->step_tokens;
    run.max_seq_tokens = flags->longest;
    run.rows = 4;
    run.num_steps = flags->steps;
    run.zero_stage = 1;
    check(dynapipe_open_data(dp, &run));
    check(dynapipe_measure(dp, &blocks, &costs));
    check(dynapipe_choose_stages(dp, costs, &range, 1, &num_ranges));
    float* moments = NULL;
    if (blocks.make(&config, range, 1, &model, &params) == 0) {
        moments = (float*)calloc(2 * (size_t)params.num_params, sizeof(float));
    }
    if (moments == NULL) { give_up("no memory for the model ---> more --stages, or smaller -C"); }
    check(dynapipe_attach(dp, 0, &api, model, &params));
    steps(flags, (Mini*)model, moments);
    dynapipe_close(dp);
    blocks.drop(&config, model);
    free(moments);
}
#endif

int main(int argc, char** argv) {
#ifdef DYNAPIPE
    check(dynapipe_open(&dp, &argc, &argv, NULL));
    Flags flags = parse_flags(argc, argv);
    plugin_train(&flags);
    (void)train;
#else
    Flags flags = parse_flags(argc, argv);
    train(&flags);
#endif
    return EXIT_SUCCESS;
}
