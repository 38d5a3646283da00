#include "completion.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "floatx.h"
#include "../util/checkpoint_files.h"
#include "llmc_error.h"

static int32_t likeliest(const float* logits, int vocab) {
    int32_t best = 0;
    for (int32_t id = 1; id < vocab; id++) {
        if (logits[id] > logits[best]) { best = id; }
    }
    return best;
}

static int compare(const void* a, const void* b) {
    const SamplingPlace *x = (const SamplingPlace*)a, *y = (const SamplingPlace*)b;
    if (x->logit != y->logit) { return x->logit > y->logit ? -1 : 1; }
    return x->id < y->id ? -1 : 1;
}

// The number of sorted candidates to draw from; their logits become probabilities, to be divided by *sum.
static int keep(SamplingPlace* places, int vocab, const Sampling* sampling, double* sum) {
    int count = sampling->top_k > 0 && sampling->top_k < vocab ? sampling->top_k : vocab;
    double whole = 0, largest = places[0].logit;
    for (int i = 0; i < count; i++) {
        places[i].logit = exp((places[i].logit - largest) / sampling->temperature);
        whole += places[i].logit;
    }
    int kept = 0;
    for (*sum = 0; kept < count; kept++) {
        if (kept > 0 && *sum >= sampling->top_p * whole) { break; }
        *sum += places[kept].logit;
    }
    return kept;
}

int32_t sampling_pick(const float* logits, int vocab, const Sampling* sampling, Mt19937* generator,
                      SamplingPlace* work) {
    if (sampling->temperature <= 0) { return likeliest(logits, vocab); }
    for (int32_t id = 0; id < vocab; id++) { work[id] = (SamplingPlace){(double)logits[id], id}; }
    qsort(work, (size_t)vocab, sizeof *work, compare);
    double sum;
    int kept = keep(work, vocab, sampling, &sum);
    double at = (double)mt19937_uniform(generator) * sum;
    for (int i = 0; i < kept; i++) {
        at -= work[i].logit;
        if (at < 0) { return work[i].id; }
    }
    return work[kept - 1].id;  // rounding
}

// --- tokens as text ----------------------------------------------------------------------------------------

enum { HEADER_WORDS = 256, MAGIC = 20240328, MAX_TOKENS = 1 << 24, EOT_OF_VERSION_1 = 50256 };

static void allocate(TokenText* text, uint32_t num_tokens, size_t num_bytes) {
    *text = (TokenText){.num_tokens = (int)num_tokens, .eot_token = -1};
    text->begins = llmc_alloc(sizeof *text->begins * (num_tokens + 1), "tokens");
    text->bytes = llmc_alloc(num_bytes, "tokens");
}

static bool read_tokens(TokenText* text, FILE* file, const char* path) {
    for (int i = 0; i < text->num_tokens; i++) {
        int num_bytes = fgetc(file);
        uint32_t begin = text->begins[i];
        if (num_bytes == 0) {
            return llmc_fail("%s: token %d has no bytes ---> make the file again", checkpoint_path_tail(path),
                             i);
        }
        if (num_bytes == EOF || fread(text->bytes + begin, (size_t)num_bytes, 1, file) != 1) {
            return llmc_fail("%s: ends within token %d of %d ---> make or download it again",
                             checkpoint_path_tail(path), i, text->num_tokens);
        }
        text->begins[i + 1] = begin + (uint32_t)num_bytes;
    }
    return true;
}

static long file_bytes(FILE* file) {
    long here = ftell(file);
    fseek(file, 0, SEEK_END);
    long num_bytes = ftell(file);
    fseek(file, here, SEEK_SET);
    return num_bytes;
}

static bool read_file(TokenText* text, FILE* file, const char* path) {
    uint32_t header[HEADER_WORDS];
    const char* name = checkpoint_path_tail(path);
    if (fread(header, sizeof header, 1, file) != 1 || header[0] != MAGIC) {
        return llmc_fail("%s: no tokenizer (magic %d is not there) ---> use llm.c's gpt2_tokenizer.bin", name,
                         MAGIC);
    }
    if (header[1] != 1 && header[1] != 2) {
        return llmc_fail("%s: version %u ---> versions 1 and 2 can be read", name, header[1]);
    }
    if (header[2] < 1 || header[2] > MAX_TOKENS || (header[1] == 2 && header[3] >= header[2])) {
        return llmc_fail("%s: %u tokens, end-of-text %u ---> make the file again", name, header[2],
                         header[3]);
    }
    if (header[1] == 1 && header[2] <= EOT_OF_VERSION_1) {
        return llmc_fail("%s: version 1 with %u tokens has no end-of-text %d ---> write version 2", name,
                         header[2], EOT_OF_VERSION_1);
    }
    // every token takes at least two bytes, so the allocation is bounded by the file's size
    long num_bytes = file_bytes(file) - (long)sizeof header;
    if (num_bytes < 2 * (long)header[2]) {
        return llmc_fail("%s: %ld bytes are too few for %u tokens ---> make or download it again", name,
                         num_bytes, header[2]);
    }
    allocate(text, header[2], (size_t)num_bytes);
    text->eot_token = header[1] == 1 ? EOT_OF_VERSION_1 : (int)header[3];
    return read_tokens(text, file, path);
}

bool token_text_load(TokenText* out, const char* path) {
    *out = (TokenText){.eot_token = -1};
    FILE* file = fopen(path, "rb");
    if (file == NULL) {
        return llmc_fail("%s: cannot open: %s ---> text will be shown as token ids",
                         checkpoint_path_tail(path), strerror(errno));
    }
    bool ok = read_file(out, file, path);
    fclose(file);
    if (!ok) { token_text_free(out); }
    return ok;
}

void token_text_init_bytes(TokenText* out, int eot_token) {
    allocate(out, 256, 256);
    out->eot_token = eot_token;
    for (int i = 0; i < 256; i++) {
        out->bytes[i] = (uint8_t)i;
        out->begins[i + 1] = (uint32_t)i + 1;
    }
}

void token_text_free(TokenText* text) {
    if (text == NULL) { return; }
    free(text->bytes);
    free(text->begins);
    *text = (TokenText){.eot_token = -1};
}

const uint8_t* token_text_piece(const TokenText* text, int32_t token, size_t* num_bytes) {
    *num_bytes = 0;
    if (token < 0 || token >= text->num_tokens) { return NULL; }
    *num_bytes = text->begins[token + 1] - text->begins[token];
    return text->bytes + text->begins[token];
}

void token_text_print(const TokenText* text, FILE* out, const int32_t* tokens, int num_tokens) {
    for (int i = 0; i < num_tokens; i++) {
        size_t num_bytes;
        const uint8_t* piece = token_text_piece(text, tokens[i], &num_bytes);
        if (tokens[i] == text->eot_token && text->bytes != NULL) {
            fputs("<|endoftext|>", out);
        } else if (piece == NULL) {
            fprintf(out, "[%d]", (int)tokens[i]);
        }
        for (size_t j = 0; j < num_bytes && tokens[i] != text->eot_token; j++) {
            bool is_control = (piece[j] < 32 && piece[j] != '\n' && piece[j] != '\t') || piece[j] == 127;
            fprintf(out, is_control ? "\\x%02x" : "%c", piece[j]);
        }
    }
}

void token_text_find(TokenText* out, const char* pattern) {
    char path[4096];
    const char* slash = strrchr(pattern, '/');
    int directory_chars = slash != NULL ? (int)(slash - pattern) : 0;
    snprintf(path, sizeof path, "%.*s%stokenizer.bin", directory_chars, pattern, slash != NULL ? "/" : "");
    if (!token_text_load(out, path)) { memset(out, 0, sizeof *out); }
}

// --- completion --------------------------------------------------------------------------------------------

enum { USUAL_SLOTS = 16 };

bool token_ends_has(const TokenEnds* ends, int32_t token) {
    for (int i = 0; i < ends->num; i++) {
        if (ends->ids[i] == token) { return true; }
    }
    return false;
}

typedef struct {
    Model* model;
    const CompletionOptions* options;
    Completion* list;
    int num_completions, num_begun;
    ModelCache cache;
    void* scratch;
    Mt19937* generators;    // (num_slots)
    SamplingPlace* places;  // (vocab)
    floatX* row;            // (Vp) of logits on the host, if tokens are drawn
    float* logits;          // (Vp) the same
    int32_t* of_slot;       // (num_slots) the completion's index; -1: free
    int num_open;
    int32_t* numbers;  // the following: per call, of tokens or sequences
    int32_t *tokens, *positions, *cu_seqlens, *dec_tokens, *dec_positions, *dec_cu_seqlens;
    int32_t *slots, *num_before, *num_enc, *next;
} Run;

static bool has_sides(const Run* r) {
    return r->model->config.kind->has_decoder;
}

static int longest_prompt(const Run* r) {
    int longest = 1;
    for (int i = 0; i < r->num_completions; i++) {
        if (r->list[i].num_prompt > longest) { longest = r->list[i].num_prompt; }
    }
    return longest;
}

static void run_open(Run* r) {
    const ModelConfig* config = &r->model->config;
    const CompletionOptions* o = r->options;
    int most = o->max_slots > 0 ? o->max_slots : USUAL_SLOTS, longest = longest_prompt(r);
    int num_slots = r->num_completions < most ? r->num_completions : most;
    int together = longest + o->max_tokens, T = longest > num_slots ? longest : num_slots;
    r->cache =
        (ModelCache){.num_slots = num_slots, .max_tokens = o->max_tokens + 1, .max_enc_tokens = longest};
    if (!has_sides(r)) {
        r->cache.max_tokens = together < config->max_seq_len ? together : config->max_seq_len;
        r->cache.max_enc_tokens = 0;
    }
    const ModelBatch shape = {.num_seqs = num_slots,
                              .num_tokens = T,
                              .num_rows = num_slots,
                              .max_seq_tokens = longest,
                              .num_dec_tokens = has_sides(r) ? num_slots : 0,
                              .max_dec_seq_tokens = has_sides(r) ? 1 : 0};
    r->cache.memory =
        ops_alloc(r->model->ops, (size_t)model_cache_bytes(r->model, &r->cache), "keys and values");
    r->scratch = ops_alloc(r->model->ops, (size_t)model_infer_bytes(r->model, &shape), "completions");
    r->generators = (Mt19937*)llmc_alloc(sizeof(Mt19937) * (size_t)num_slots, "generators");
    r->places = (SamplingPlace*)llmc_alloc(sizeof(SamplingPlace) * (size_t)config->vocab, "logits");
    r->row = (floatX*)llmc_alloc(sizeof(floatX) * (size_t)config->padded_vocab, "logits");
    r->logits = (float*)llmc_alloc(sizeof(float) * (size_t)config->padded_vocab, "logits");
    int32_t** arrays[] = {&r->tokens,        &r->positions,      &r->cu_seqlens, &r->dec_tokens,
                          &r->dec_positions, &r->dec_cu_seqlens, &r->slots,      &r->num_before,
                          &r->num_enc,       &r->next,           &r->of_slot};
    const size_t num_arrays = sizeof arrays / sizeof *arrays, room = (size_t)T + 1;
    r->numbers = (int32_t*)llmc_alloc(num_arrays * room * sizeof(int32_t), "completions");
    for (size_t i = 0; i < num_arrays; i++) { *arrays[i] = r->numbers + i * room; }
    for (int i = 0; i < num_slots; i++) { r->of_slot[i] = -1; }
}

static void run_close(Run* r) {
    free(r->generators);
    free(r->places);
    free(r->row);
    free(r->logits);
    free(r->numbers);
    ops_release(r->model->ops, r->scratch);
    ops_release(r->model->ops, r->cache.memory);
}

// --- one call ----------------------------------------------------------------------------------------------

typedef struct {
    int num_seqs, num_tokens, num_dec_tokens, longest;
} Call;

// Decoder-only: the prompt, or the last token. With a decoder: the encoder's prompt, and the token.
static void call_add(Run* r, Call* call, int slot, bool with_prompt) {
    const Completion* c = &r->list[r->of_slot[slot]];
    const bool sides = has_sides(r);
    const int32_t last = c->num_tokens > 0 ? c->tokens[c->num_tokens - 1] : r->options->start_token;
    const int b = call->num_seqs++, said_at = sides ? c->num_tokens : c->num_prompt + c->num_tokens - 1;
    r->slots[b] = slot;
    r->num_enc[b] = sides ? c->num_prompt : 0;
    r->num_before[b] = with_prompt ? 0 : said_at;
    for (int i = 0; with_prompt && i < c->num_prompt; i++) {
        r->tokens[call->num_tokens] = c->prompt[i];
        r->positions[call->num_tokens++] = i;
    }
    if (sides) {
        r->dec_tokens[call->num_dec_tokens] = last;
        r->dec_positions[call->num_dec_tokens++] = said_at;
    } else if (!with_prompt) {
        r->tokens[call->num_tokens] = last;
        r->positions[call->num_tokens++] = said_at;
    }
    const int num_new = with_prompt ? c->num_prompt : sides ? 0 : 1;
    call->longest = num_new > call->longest ? num_new : call->longest;
    r->cu_seqlens[b + 1] = call->num_tokens;
    r->dec_cu_seqlens[b + 1] = call->num_dec_tokens;
}

// The most likely next tokens, to r->next; logits stay in the model's last_logits.
static void call_run(Run* r, const Call* call) {
    const ModelBatch batch = {.num_seqs = call->num_seqs,
                              .num_tokens = call->num_tokens,
                              .num_rows = call->num_seqs,
                              .max_seq_tokens = call->longest,
                              .cu_seqlens = r->cu_seqlens,
                              .tokens = r->tokens,
                              .positions = r->positions,
                              .num_dec_tokens = call->num_dec_tokens,
                              .max_dec_seq_tokens = call->num_dec_tokens > 0 ? 1 : 0,
                              .dec_cu_seqlens = r->dec_cu_seqlens,
                              .dec_tokens = r->dec_tokens,
                              .dec_positions = r->dec_positions};
    r->cache.slots = r->slots;
    r->cache.num_before = r->num_before;
    r->cache.num_enc = r->num_enc;
    model_infer(r->model, &batch, &r->cache, NULL, NULL, r->scratch, r->next);
}

// --- texts -------------------------------------------------------------------------------------------------

// For sequence b of the last call.
static int32_t choose(Run* r, int b) {
    const Sampling* sampling = &r->options->sampling;
    const ModelConfig* config = &r->model->config;
    if (sampling->temperature <= 0) { return r->next[b]; }
    const floatX* row = r->model->last_logits + (size_t)b * (size_t)config->padded_vocab;
    ops_download(r->model->ops, r->row, row, sizeof(floatX) * (size_t)config->padded_vocab);
    floatx_to_floats(r->logits, r->row, (size_t)config->vocab);
    return sampling_pick(r->logits, config->vocab, sampling, &r->generators[r->slots[b]], r->places);
}

static bool tell(const Run* r, const Completion* c, int32_t token) {
    return r->options->said == NULL || r->options->said(r->options->context, c, token);
}

// The slot is freed when its text ends.
static void say(Run* r, int slot, int32_t token) {
    Completion* c = &r->list[r->of_slot[slot]];
    c->has_ended = token_ends_has(&r->options->ends, token);
    bool goes_on = !c->has_ended;
    if (goes_on) {
        c->tokens[c->num_tokens++] = token;
        goes_on = tell(r, c, token) && c->num_tokens < r->options->max_tokens;
        if (!has_sides(r)) {
            goes_on = goes_on && c->num_prompt + c->num_tokens < r->model->config.max_seq_len;
        }
    }
    if (goes_on) { return; }
    tell(r, c, -1);
    r->of_slot[slot] = -1;
    r->num_open--;
}

static void call_finish(Run* r, const Call* call) {
    call_run(r, call);
    for (int b = 0; b < call->num_seqs; b++) { say(r, r->slots[b], choose(r, b)); }
}

// Runs the next prompt in the list alone in a free slot, since prompts have any length.
static void begin(Run* r, int slot) {
    Call call = {0};
    int idx = r->num_begun++;
    r->of_slot[slot] = idx;
    r->num_open++;
    r->list[idx].num_tokens = 0;
    r->list[idx].has_ended = false;
    mt19937_seed(&r->generators[slot], r->options->seed + (uint32_t)idx);
    call_add(r, &call, slot, true);
    call_finish(r, &call);
}

void completion_run(Model* model, const CompletionOptions* options, Completion* list, int num_completions) {
    Run run = {.model = model, .options = options, .list = list, .num_completions = num_completions};
    if (num_completions == 0) { return; }
    run_open(&run);
    while (run.num_open > 0 || run.num_begun < num_completions) {
        Call call = {0};
        for (int slot = 0; slot < run.cache.num_slots; slot++) {
            while (run.of_slot[slot] < 0 && run.num_begun < num_completions) { begin(&run, slot); }
        }
        for (int slot = 0; slot < run.cache.num_slots; slot++) {
            if (run.of_slot[slot] >= 0) { call_add(&run, &call, slot, false); }
        }
        if (call.num_seqs > 0) { call_finish(&run, &call); }
    }
    ops_sync(model->ops);
    run_close(&run);
}
