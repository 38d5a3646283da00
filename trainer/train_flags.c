#include "train_flags.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "../util/options.h"

#define FIELD(f) offsetof(TrainFlags, f)
// clang-format off
static const OptionSpec specs[] = {
    {"-i",  OPTION_STRING, FIELD(train_pattern),     NULL,     0, 0,    NULL, "FILES", "training data: sample files of prepare_data, or llm.c's token files; a glob"},
    {"-j",  OPTION_STRING, FIELD(val_pattern),       NULL,     0, 0,    NULL, "FILES", "validation data"},
    {"-e",  OPTION_STRING, FIELD(model),             NULL,     0, 0,    NULL, "MODEL", "a checkpoint (.bin), the folder of a run (its newest checkpoint) or of Hugging Face files, or the shape of a new model: d12, gpt3:c768, l4c128h4 (layers, channels, heads), t5:small, flan-t5:base, byt5:l2c64h4, qwen2:0.5b, llama:l4c128h4g2 (2 heads of keys) [d12, t5:small or llama:l12c768h12]"},
    {"-o",  OPTION_STRING, FIELD(output_dir),        NULL,     0, 0,    NULL, "DIR",   "folder for checkpoints, main.log and metrics.jsonl"},
    {"-n",  OPTION_STRING, FIELD(checkpoint_every),  NULL,     0, 0,    NULL, "N",     "save a checkpoint every N steps, or by time: 90s, 10m, 2h; 0: only at the end [10m, of which the newest two are kept]"},
    {"-nk", OPTION_INT,    FIELD(checkpoints_keep),  "0",      0, 2e9,  NULL, "N",     "keep only the newest N checkpoints; 0: all"},
    {"-nm", OPTION_INT,    FIELD(checkpoints_major), "0",      0, 2e9,  NULL, "N",     "never delete checkpoints of steps divisible by N"},
    {"-y",  OPTION_INT,    FIELD(resume),            "0",      0, 2e9,  NULL, "N",     "1: resume from the newest checkpoint in -o; above 1: from that of step N"},
    {"-b",  OPTION_INT,    FIELD(rows),              "4",      1, 1e6,  NULL, "N",     "samples per microbatch, for --batching padded"},
    {"-t",  OPTION_INT,    FIELD(seq_tokens),        "1024",   1, 1e6,  NULL, "N",     "longest sequence in tokens"},
    {"--target-tokens", OPTION_INT, FIELD(target_tokens), "0", 0, 1e6,  NULL, "N",     "longest target of T5, where -t is the longest input; 0: -t"},
    {"-d",  OPTION_INT64,  FIELD(batch_tokens),      "0",      -1, 1e12, NULL, "N",    "tokens per optimizer step; 0 or -1: b * t * ranks"},
    {"-x",  OPTION_INT,    FIELD(steps),             "-1",     -1e6, 2e9, NULL, "N",   "optimizer steps; -N: as many as N passes over the data have"},
    {"-k",  OPTION_STRING, FIELD(lr_scheduler),      "cosine", 0, 0,    NULL, "NAME",  "learning rate schedule: cosine, linear, constant, wsd"},
    {"-l",  OPTION_DOUBLE, FIELD(lr),                "3e-4",   0, 1e3,  NULL, "X",     "peak learning rate"},
    {"-u",  OPTION_INT,    FIELD(warmup_steps),      "0",      0, 2e9,  NULL, "N",     "warm-up steps of the learning rate"},
    {"-q",  OPTION_DOUBLE, FIELD(final_lr_fraction), "1",      0, 1,    NULL, "X",     "final learning rate as a fraction of the peak"},
    {"-c",  OPTION_DOUBLE, FIELD(weight_decay),      "0",      0, 1e3,  NULL, "X",     "weight decay"},
    {"--betas", OPTION_STRING, FIELD(betas),         NULL,     0, 0,    NULL, "B,B",   "AdamW's decay of the first and second moment [0.9,0.95; adamw-scaled: 0.9,0.999]"},
    {"--eps", OPTION_DOUBLE, FIELD(eps),             "0",      0, 1,    NULL, "X",     "AdamW's epsilon; 0: 1e-8, of adamw-scaled 1e-6"},
    {"--grad-clip", OPTION_DOUBLE, FIELD(grad_clip), "1",      0, 1e9,  NULL, "X",     "largest gradient norm, longer ones are scaled down to it; 0: any"},
    {"--optimizer", OPTION_STRING, FIELD(optimizer), "adamw",  0, 0,    NULL, "NAME",  "adamw, or adamw-scaled: steps relative to the size of each matrix, for T5 from scratch (-l 2e-2)"},
    {"--dropout", OPTION_DOUBLE, FIELD(dropout),     "0",      0, 0.99, NULL, "P",     "dropout probability"},
    {"-sl", OPTION_DOUBLE, FIELD(skip_loss_z),       "0",      0, 1e6,  NULL, "Z",     "skip the update if the loss is this many standard deviations above its recent mean; 0: never"},
    {"-sg", OPTION_DOUBLE, FIELD(skip_norm_z),       "0",      0, 1e6,  NULL, "Z",     "the same for the gradient norm"},
    {"-z",  OPTION_INT,    FIELD(zero_stage),        "0",      0, 3,    NULL, "N",     "1: optimizer state sharded over replicas (ZeRO-1); 2 and 3 are treated as 1"},
    {"-v",  OPTION_INT,    FIELD(val_every),         "20",     -1, 2e9, NULL, "N",     "validate every N steps; 0 or -1: never"},
    {"-m",  OPTION_INT,    FIELD(val_samples),       "512",    -1, 2e9, NULL, "N",     "validation samples, equally many of each task and at least one; -1: all"},
    {"--answers", OPTION_INT, FIELD(answers),        "8",      0, 1e6,  NULL, "N",     "validation questions of each task to answer at every -v, for exact match and ROUGE-L (256 in all at most); 0: none"},
    {"-s",  OPTION_INT,    FIELD(sample_every),      "20",     -1, 2e9, NULL, "N",     "show an answer of the model every N steps; 0 or -1: never"},
    {"-g",  OPTION_INT,    FIELD(sample_tokens),     "64",     1, 1e6,  NULL, "N",     "longest answer in tokens"},
    {"-a",  OPTION_INT,    FIELD(overfit),           "0",      0, 1,    NULL, "0|1",   "1: train on the first batch in every step"},
    {"--keep-best", OPTION_STRING, FIELD(keep_best), NULL,     0, 0,    NULL, "loss|TASK", "also keep the best model, as model_best.bin in -o: that of the lowest validation loss, or of the highest mean of exact match and ROUGE-L of one task's --answers"},
    {"--patience", OPTION_INT, FIELD(patience),      "0",      0, 2e9,  NULL, "N",     "end the run after N validations without a new best (of --keep-best; else the loss); 0: never"},
    {"--overwrite", OPTION_INT, FIELD(overwrite),    "0",      0, 1,    NULL, "0|1",   "1: a new run replaces the earlier one in -o: its logs at once, its checkpoints with the first new one"},
    {"--export-hf", OPTION_STRING, FIELD(export_dir), NULL,    0, 0,    NULL, "DIR",   "at the end, write the model for Hugging Face transformers (-x 0: without training)"},
    {"--verify", OPTION_INT, FIELD(verify),          "1",      0, 1,    NULL, "0|1",   "0: do not compare checkpoints and data with the checksums saved with them"},
    {"--peak-tflops", OPTION_DOUBLE, FIELD(peak_tflops), "0",  0, 1e6,  NULL, "X",     "peak TFLOP/s of a rank, for MFU; 0: of its GPU, where known"},
    {"--lr", OPTION_DOUBLE, FIELD(lr),               NULL,     0, 1e3,  NULL, "X",     "-l"},
    {"--batch-size", OPTION_INT64, FIELD(batch_tokens), NULL,  -1, 1e12, NULL, "N",    "-d, in tokens"},
    {"--seq-length", OPTION_INT, FIELD(seq_tokens),  NULL,     1, 1e6,  NULL, "N",     "-t"},
    {"--max-steps", OPTION_INT, FIELD(steps),        NULL,     -1e6, 2e9, NULL, "N",   "-x"},
    {"--epochs", OPTION_INT, FIELD(epochs),          "0",      0, 1e6,  NULL, "N",     "-x -N"},
    {"--warmup", OPTION_INT, FIELD(warmup_steps),    NULL,     0, 2e9,  NULL, "N",     "-u, in steps"},
    {"--weight-decay", OPTION_DOUBLE, FIELD(weight_decay), NULL, 0, 1e3, NULL, "X",    "-c"},
    {"--model", OPTION_STRING, FIELD(model),         NULL,     0, 0,    NULL, "MODEL", "-e"},
    {"--output-dir", OPTION_STRING, FIELD(output_dir), NULL,   0, 0,    NULL, "DIR",   "-o"},
};
// What Hugging Face, Megatron-LM and torchtune call it, and what it is here or why it is not, for options_take().
static const char* const foreign[] = {
    "--learning-rate=--lr", "--min-lr=-q (a fraction of --lr)", "--num-train-epochs=--epochs", "--train-iters=--max-steps",
    "--global-batch-size=--batch-size (tokens of a step)", "--per-device-train-batch-size=--batch-size (tokens of a step)",
    "--gradient-accumulation-steps=--batch-size (tokens of a step; its microbatches are planned)",
    "--micro-batch-size=--batch-size (tokens of a step; its microbatches are planned)",
    "--per-device-eval-batch-size=leave it out: microbatches are planned; -m says how many samples", "--eval-iters=-m (samples)",
    "--max-grad-norm=--grad-clip", "--clip-grad=--grad-clip", "--adam-epsilon=--eps", "--adam-eps=--eps",
    "--adam-beta1=--betas", "--adam-beta2=--betas", "--optim=--optimizer", "--hidden-dropout=--dropout", "--attention-dropout=--dropout",
    "--warmup-steps=--warmup", "--lr-warmup-iters=--warmup", "--num-warmup-steps=--warmup",
    "--warmup-ratio=--warmup (steps: the ratio times --max-steps)", "--lr-warmup-fraction=--warmup (steps: the fraction times --max-steps)",
    "--max-seq-length=--seq-length", "--max-seq-len=--seq-length", "--max-length=--seq-length", "--block-size=--seq-length",
    "--model-name-or-path=--model", "--config-name=-e (a shape, such as l12c768h12)", "--num-layers=-e (a shape, such as l12c768h12)",
    "--hidden-size=-e (a shape, such as l12c768h12)", "--num-attention-heads=-e (a shape, such as l12c768h12)",
    "--lr-scheduler-type=-k", "--lr-scheduler=-k", "--lr-decay-style=-k",
    "--train-file=-i", "--data-path=-i", "--dataset=-i (files that ./prepare_data made)", "--dataset-name=-i (files that ./prepare_data made)",
    "--validation-file=-j", "--tokenizer=./prepare_data --tokenizer: the data brings it along",
    "--tokenizer-name=./prepare_data --tokenizer: the data brings it along", "--vocab-file=./prepare_data --tokenizer: the data brings it along",
    "--save=--output-dir", "--save-steps=-n", "--save-interval=-n", "--save-strategy=-n", "--save-total-limit=-nk",
    "--eval-steps=-v", "--eval-interval=-v", "--eval-strategy=-v", "--evaluation-strategy=-v",
    "--resume-from-checkpoint=-y", "--load=-e, or -y 1", "--overwrite-output-dir=--overwrite 1",
    "--load-best-model-at-end=--keep-best loss", "--early-stopping-patience=--patience",
    "--logging-steps=leave it out: every step has its line, --quiet prints none", "--log-interval=leave it out: every step has its line, --quiet prints none",
    "--report-to=leave it out: metrics.jsonl in -o has all, dev/to_dashboard.py passes it on",
    "--bf16=make PRECISION=BF16 builds for it", "--fp16=there is bf16: make PRECISION=BF16 builds for it", "--dtype=make PRECISION=BF16 or FP32 decides",
    "--gradient-checkpointing=--recompute full", "--recompute-granularity=--recompute", "--recompute-activations=--recompute full",
    "--pipeline-model-parallel-size=--stages", "--data-parallel-size=--replicas", "--use-distributed-optimizer=-z 1", "--fsdp=-z 1", "--deepspeed=-z 1",
    "--tensor-model-parallel-size=layers are divided among ranks, not matrices: --stages; the head is both",
    "--context-parallel-size=leave it out: long samples pass the pipeline in pieces, see --slices", "--packed=--batching packed", "--packing=--batching packed",
    "--group-by-length=--batching tokens", "--use-peft=all parameters are trained, there is no LoRA", "--lora-r=all parameters are trained, there is no LoRA",
    "--load-in-4bit=all parameters are trained, in bf16 or float32", "--load-in-8bit=all parameters are trained, in bf16 or float32",
    "--metric-for-best-model=--keep-best (loss, or a task's name)", "--label-smoothing-factor=there is no label smoothing",
    "--predict-with-generate=--answers", "--generation-max-length=-g", "--num-beams=answers are greedy, there is no beam search",
    "--max-source-length=--seq-length", "--max-target-length=--target-tokens", "--decoder-seq-length=--target-tokens", "--max-position-embeddings=--seq-length",
    "--do-train=leave it out: -x 0 trains nothing", "--do-eval=-j", "--max-eval-samples=-m", "--max-train-samples=give ./prepare_data fewer records",
    "--dataloader-num-workers=leave it out: files are mapped, not loaded", "--num-workers=leave it out: files are mapped, not loaded",
    "--torch-compile=leave it out: nothing here is PyTorch", "--compile=leave it out: nothing here is PyTorch",
    "--attn-implementation=leave it out: there is one attention", "--use-flash-attn=leave it out: there is one attention",
    "--push-to-hub=--export-hf (writes the folder to push)", "--logging-dir=--output-dir", "--run-name=--output-dir", "--data-seed=--seed",
    "--tensorboard-dir=leave it out: dev/to_dashboard.py makes it of metrics.jsonl", "--wandb-project=leave it out: dev/to_dashboard.py passes metrics.jsonl on",
    "--distributed-backend=--transport", "--ddp-backend=--transport", "--local-rank=dynapipe_plugin/mpirun.sh -np starts the ranks",
    "--nproc-per-node=dynapipe_plugin/mpirun.sh -np starts the ranks", "--nnodes=dynapipe_plugin/mpirun.sh -np starts the ranks, see doc/hosts.md",
    "--train-samples=--max-steps", "--lr-warmup-samples=--warmup", "--lr-decay-iters=leave it out: the rate decays until --max-steps",
    "--exit-interval=--max-steps", "--exit-duration-in-mins=leave it out: SIGTERM ends a run, saved", "--finetune=-e",
    "--num-layers-per-virtual-pipeline-stage=--placement interleaved", "--sequence-parallel=layers are divided among ranks, not sequences: --stages",
    "--num-query-groups=-e (a shape, such as llama:l4c128h4g2)", "--group-query-attention=-e (a shape, such as llama:l4c128h4g2)",
    "--swiglu=train_llama trains such models", "--normalization=train_llama has RMSNorm", "--position-embedding-type=train_llama has rotary positions",
    "--split=./prepare_data --val-fraction decides", "--merge-file=./prepare_data --tokenizer: the data brings it along",
    "--train-data-path=-i", "--valid-data-path=-j", "--config=options are given one by one, there is no file of them",
    "--device=the build decides: make train_gpt2, or train_gpt2cu for GPUs", "--checkpoint-dir=-e", "--run-val-every-n-steps=-v",
    "--log-every-n-steps=leave it out: every step has its line, --quiet prints none", "--enable-activation-checkpointing=--recompute full",
    "--shuffle=leave it out: the order is drawn anew, see --seed",
    NULL};
// llm.c's flags without effect here: accepted, so that its scripts run unchanged.
static const struct {
    const char *name, *why;
} ignored[] = {
    {"-h", "HellaSwag is not evaluated"},
    {"-r", "see --recompute"},
    {"-lg", "the GPU is not logged"},
    {"-ge", "cuBLASLt fuses GELU where that is faster"},
    {"-f", "the build decides: PRECISION=BF16 or FP32"},
    {"-w", "float32 master weights are always kept for bf16 parameters"},
    {"-pi", "ranks are connected by MPI"},
    {"-pf", "ranks are connected by MPI"},
    {"-ps", "ranks are connected by MPI"},
    {"-pn", "the number of ranks comes from mpirun or srun"},
    {"-pr", "the rank comes from mpirun or srun"},
    {"-pg", "the GPUs of a host are assigned to its ranks in turn"},
};
// clang-format on
enum {
    NUM_SPECS = sizeof specs / sizeof specs[0],
    NUM_IGNORED = sizeof ignored / sizeof ignored[0],
    NUM_FOREIGN = sizeof foreign / sizeof foreign[0] - 1
};

void train_flags_print(FILE* out) {
    options_print(specs, NUM_SPECS, out);
    fprintf(out, "accepted and ignored:");
    for (int i = 0; i < NUM_IGNORED; i++) { fprintf(out, " %s", ignored[i].name); }
    fprintf(out, "\n");
}

const char* const* train_flags_words(void) {
    static const char* words[NUM_SPECS + NUM_FOREIGN + 1];
    int n = 0;
    for (int i = 0; i < NUM_SPECS; i++) {
        if (strncmp(specs[i].name, "--", 2) == 0) { words[n++] = specs[i].name; }
    }
    for (int i = 0; i < NUM_FOREIGN; i++) { words[n++] = foreign[i]; }
    words[n] = NULL;
    return words;
}

bool train_flags_want_help(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) { return true; }
        if (strcmp(argv[i], "-h") != 0) { continue; }
        if (i + 1 == argc || strspn(argv[i + 1], "0123456789") == 0) { return true; }
    }
    return false;
}

// Removes the flags without effect. The rest is for options_take().
static Status take_ignored(int* argc, char** argv, FILE* notes) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        int idx = 0;
        while (idx < NUM_IGNORED && strcmp(ignored[idx].name, argv[i]) != 0) { idx++; }
        if (idx == NUM_IGNORED) {
            argv[kept++] = argv[i];
            if (i + 1 < *argc) { argv[kept++] = argv[++i]; }
            continue;
        }
        if (++i == *argc) {
            return FAIL(STATUS_BAD_OPTION, "%s: needs a value ---> --help lists all", ignored[idx].name);
        }
        if (notes != NULL) {
            fprintf(notes, "%s %.20s: ignored: %s\n", ignored[idx].name, argv[i], ignored[idx].why);
        }
    }
    *argc = kept;
    argv[kept] = NULL;
    return STATUS_OK;
}

static Status parse_betas(TrainFlags* out) {
    char* end = (char*)(uintptr_t)out->betas;
    for (int i = 0; i < 2; i++) {
        const char* begin = end + i;  // behind the comma
        out->beta[i] = strtod(begin, &end);
        if (end > begin && *end == ",\0"[i] && out->beta[i] >= 0 && out->beta[i] < 1) { continue; }
        return FAIL(STATUS_BAD_OPTION,
                    "--betas %.40s ---> two numbers from 0 to below 1, with a comma: 0.9,0.95", out->betas);
    }
    return STATUS_OK;
}

Status train_flags_parse(TrainFlags* out, int argc, char** argv, FILE* notes) {
    *out = (TrainFlags){0};
    TRY(options_defaults(specs, NUM_SPECS, out));
    TRY(take_ignored(&argc, argv, notes));
    TRY(options_take(specs, NUM_SPECS, out, &argc, argv, foreign));
    if (out->betas != NULL) { TRY(parse_betas(out)); }
    if (argc > 1) {
        return FAIL(STATUS_BAD_OPTION, "'%.60s': unknown flag ---> %s--help lists all", argv[1],
                    strchr(argv[1], '=') != NULL ? "--name value, such as --lr 3e-4; " : "");
    }
    if (out->epochs > 0 && out->steps != -1) {
        return FAIL(STATUS_BAD_OPTION, "--epochs %d and -x (--max-steps) %d ---> give one of them",
                    out->epochs, out->steps);
    }
    if (out->epochs > 0) { out->steps = -out->epochs; }
    if (out->batch_tokens < 0) { out->batch_tokens = 0; }
    if (out->zero_stage > 1) {
        if (notes != NULL) {
            fprintf(notes, "-z %d: treated as 1: every replica has whole gradients and parameters\n",
                    out->zero_stage);
        }
        out->zero_stage = 1;
    }
    return STATUS_OK;
}

void train_flags_add_settings(const TrainFlags* flags, FILE* out) {
    static const char* const names[] = {
        "-e",        "-i",          "-j",      "-b",    "-t",         "-k", "-l",
        "-u",        "-q",          "-c",      "-sl",   "-sg",        "-a", "--target-tokens",
        "--dropout", "--optimizer", "--betas", "--eps", "--grad-clip"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        options_add_setting(specs, NUM_SPECS, flags, names[i], out);
    }
}
