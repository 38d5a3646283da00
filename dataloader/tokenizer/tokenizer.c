#include "tokenizer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "spiece.h"
#include "../../util/arena.h"
#include "../../util/files.h"
#include "../../util/numbers.h"

enum {
    MAX_TEXT_BYTES = 1 << 30,
    MAX_TOKEN_BYTES = 255,
    BYT5_FIRST_BYTE = 3,
    BYT5_SENTINELS = 125,
    T5_SENTINELS = 100,
    PATH_CHARS = 4200,
};

#define LLAMA_FILE "tokenizer.model"  // T5's is spiece.model

struct Tokenizer {
    TokenizerOptions options;
    SampleVocab vocab;
    uint64_t hash;                 // of what maps text to ids; 0: without files
    Bpe* bpe;                      // gpt2; otherwise NULL
    const SpieceLibrary* library;  // of `pieces`
    SpieceModel* pieces;           // sentencepiece; otherwise NULL
    int32_t bos_token;             // -1: none
    int32_t first_byte;            // bytes, byt5: the token of byte 0
    Arena arena;                   // memory of the texts
    const unsigned char** texts;   // of each token
    uint8_t* text_bytes;
    int32_t* specials;  // [num_specials], ascending: no text becomes them
    int32_t num_specials;
};

// --- texts of tokens --------------------------------------------------------------------------------------

static Status start_texts(Tokenizer* t, int32_t num_tokens) {
    ARENA_TRY_NEW(t->texts, &t->arena, const unsigned char*, num_tokens);
    ARENA_TRY_NEW(t->text_bytes, &t->arena, uint8_t, num_tokens);
    return STATUS_OK;
}

// Adds the text of the next token, vocab.num_tokens.
static Status add_text(Tokenizer* t, const void* bytes, size_t num_bytes) {
    int32_t token = t->vocab.num_tokens;
    if (num_bytes < 1 || num_bytes > MAX_TOKEN_BYTES) {
        return FAIL(STATUS_BAD_FORMAT, "token %d has %zu bytes, outside 1 ... %d ---> use another vocabulary",
                    token, num_bytes, MAX_TOKEN_BYTES);
    }
    unsigned char* text;
    ARENA_TRY_NEW(text, &t->arena, unsigned char, num_bytes);
    t->texts[token] = memcpy(text, bytes, num_bytes);
    t->text_bytes[token] = (uint8_t)num_bytes;
    t->vocab.num_tokens++;
    return STATUS_OK;
}

static Status add_sentinel(Tokenizer* t, int32_t number) {
    char text[40];
    return add_text(t, text, (size_t)snprintf(text, sizeof text, "<extra_id_%d>", number));
}

// Converts U+2581 to a blank and "<0x41>" to its byte.
static Status add_piece(Tokenizer* t, int32_t id) {
    const char* piece;
    size_t num_bytes, length = 0;
    unsigned char shown[MAX_TOKEN_BYTES];
    SpieceKind kind = t->library->piece(t->pieces, id, &piece, &num_bytes);
    unsigned byte;
    if (kind == SPIECE_BYTE && num_bytes == 6 && sscanf(piece, "<0x%2x>", &byte) == 1) {
        shown[0] = (unsigned char)byte;
        return add_text(t, shown, 1);
    }
    if (num_bytes > MAX_TOKEN_BYTES || kind == SPIECE_SPECIAL) { return add_text(t, piece, num_bytes); }
    for (size_t i = 0; i < num_bytes; length++) {
        bool blank = num_bytes - i >= 3 && memcmp(piece + i, "\xe2\x96\x81", 3) == 0;
        shown[length] = blank ? ' ' : (unsigned char)piece[i];
        i += blank ? 3 : 1;
    }
    return add_text(t, shown, length);
}

// Lengths are hashed too, so that "ab", "c" and "a", "bc" differ.
static uint64_t hash_texts(const Tokenizer* t) {
    uint64_t hash = HASH_SEED;
    for (int32_t token = 0; token < t->vocab.num_tokens; token++) {
        uint64_t num_bytes = t->text_bytes[token];
        hash = hash_bytes(hash, &num_bytes, sizeof num_bytes);
        hash = hash_bytes(hash, t->texts[token], num_bytes);
    }
    hash = hash_finish(hash);
    return hash != 0 ? hash : 1;  // 0: unknown
}

// --- opening -----------------------------------------------------------------------------------------------

static Status take_bpe(Tokenizer* t) {
    int32_t num_tokens = bpe_num_tokens(t->bpe);
    t->vocab = (SampleVocab){.eot_token = bpe_eot_token(t->bpe),
                             .pad_token = -1,
                             .tokenizer = TOKENIZER_GPT2,
                             .input_end = INPUT_END_NEWLINE};
    if (!t->options.without_bos) { t->bos_token = bpe_bos_token(t->bpe); }
    TRY(start_texts(t, num_tokens));
    for (int32_t token = 0; token < num_tokens; token++) {
        int32_t num_bytes;
        const unsigned char* text = bpe_token_text(t->bpe, token, &num_bytes);
        TRY(add_text(t, text, (size_t)num_bytes));
    }
    return STATUS_OK;
}

static Status add_bytes(Tokenizer* t) {
    t->first_byte = t->vocab.num_tokens;
    for (int i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char)i;
        TRY(add_text(t, &byte, 1));
    }
    return STATUS_OK;
}

static Status open_bytes(Tokenizer* t) {
    t->vocab = (SampleVocab){
        .eot_token = 256, .pad_token = -1, .tokenizer = TOKENIZER_BYTES, .input_end = INPUT_END_NEWLINE};
    TRY(start_texts(t, 257));
    TRY(add_bytes(t));
    return add_text(t, BPE_EOT_TEXT, strlen(BPE_EOT_TEXT));
}

static Status open_byt5(Tokenizer* t) {
    t->vocab = (SampleVocab){.eot_token = 1, .tokenizer = TOKENIZER_BYT5, .input_end = INPUT_END_EOT};
    TRY(start_texts(t, BYT5_FIRST_BYTE + 256 + BYT5_SENTINELS));
    TRY(add_text(t, "<pad>", 5));
    TRY(add_text(t, "</s>", 4));
    TRY(add_text(t, "<unk>", 5));
    TRY(add_bytes(t));
    for (int32_t i = 0; i < BYT5_SENTINELS; i++) { TRY(add_sentinel(t, i)); }
    return STATUS_OK;
}

static Status take_pieces(Tokenizer* t, const char* name) {
    int32_t extra_ids = t->options.extra_ids;
    bool has_own = t->library->find(t->pieces, "<extra_id_0>") >= 0 ||
                   t->library->find(t->pieces, "\xe2\x96\x81<extra_id_0>") >= 0;  // mT5
    t->vocab.tokenizer = TOKENIZER_SENTENCEPIECE;
    t->vocab.eot_token = t->library->eos_token(t->pieces);
    t->vocab.pad_token = t->library->pad_token(t->pieces);
    // Llama's has no sentinels, and its answers are continued texts. T5's, too, may be without padding.
    const char* base = strrchr(name, '/');
    const bool is_llama = strcmp(base != NULL ? base + 1 : name, LLAMA_FILE) == 0;
    if (is_llama && !t->options.without_bos) { t->bos_token = t->library->find(t->pieces, "<s>"); }
    if (extra_ids < 0 && is_llama) { extra_ids = t->options.extra_ids = 0; }
    if (extra_ids < 0) { extra_ids = t->options.extra_ids = has_own ? 0 : T5_SENTINELS; }
    t->vocab.input_end = is_llama ? INPUT_END_NEWLINE : INPUT_END_EOT;
    if (t->vocab.eot_token < 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: no piece </s> to end a text with ---> use a model as of T5",
                    name);
    }
    if (extra_ids > 0 && has_own) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%s: has pieces <extra_id_0> ... of its own ---> \"extra_ids\": 0 in tokenizer_config.json",
            name);
    }
    int32_t num_pieces = t->library->num_pieces(t->pieces);
    TRY(start_texts(t, num_pieces + extra_ids));
    for (int32_t id = 0; id < num_pieces; id++) { TRY(add_piece(t, id)); }
    for (int32_t number = extra_ids - 1; number >= 0; number--) { TRY(add_sentinel(t, number)); }
    return STATUS_OK;
}

static Status open_sentencepiece(Tokenizer* t) {
    const char* path = t->options.paths[0];
    char* model;
    size_t num_bytes;
    t->library = spiece_library();
    if (t->library == NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "%s: this program was built without SentencePiece ---> install "
                    "libsentencepiece-dev and g++, then make prepare_data again",
                    path);
    }
    TRY(file_read_text(&model, &num_bytes, path));
    Status status = t->library->open(&t->pieces, model, num_bytes, path);
    const VocabFile file = {path, model, num_bytes};
    if (status == STATUS_OK) { status = vocab_hash_pieces(&t->hash, &file); }
    free(model);
    TRY(status);
    return take_pieces(t, path);
}

// vocab.json and merges.txt, or tokenizer.json alone.
static Status open_gpt2(Tokenizer* t) {
    VocabFile tables[2] = {{.name = t->options.paths[0]}, {.name = t->options.paths[1]}};
    char* texts[2] = {NULL, NULL};
    Status status = STATUS_OK;
    int num_files = t->options.paths[1] == NULL ? 1 : 2;
    for (int i = 0; i < num_files && status == STATUS_OK; i++) {
        status = file_read_text(&texts[i], &tables[i].num_bytes, tables[i].name);
        tables[i].text = texts[i];
    }
    const VocabFile* merges = num_files == 2 ? &tables[1] : NULL;
    SampleTokenizer kind;
    if (status == STATUS_OK) { status = bpe_open(&t->bpe, &tables[0], merges, t->options.end); }
    if (status == STATUS_OK) { status = vocab_hash_json(&t->hash, &kind, &tables[0], merges); }
    free(texts[0]);
    free(texts[1]);
    return status == STATUS_OK ? take_bpe(t) : status;
}

// Can no text become it?
static bool is_special(const Tokenizer* t, int32_t token) {
    const char* piece;
    size_t num_bytes;
    if (t->bpe != NULL) { return bpe_is_special(t->bpe, token); }
    if (t->pieces == NULL) { return t->text_bytes[token] > 1; }
    return token >= t->library->num_pieces(t->pieces) ||
           t->library->piece(t->pieces, token, &piece, &num_bytes) == SPIECE_SPECIAL;
}

// Once, so that a template's names need no search of the whole vocabulary in each sample.
static Status list_specials(Tokenizer* t) {
    for (int32_t token = 0; token < t->vocab.num_tokens; token++) { t->num_specials += is_special(t, token); }
    ARENA_TRY_NEW(t->specials, &t->arena, int32_t, t->num_specials);
    for (int32_t token = 0, i = 0; token < t->vocab.num_tokens; token++) {
        if (is_special(t, token)) { t->specials[i++] = token; }
    }
    return STATUS_OK;
}

Status tokenizer_open(Tokenizer** out, const TokenizerOptions* options) {
    static Status (*const open[])(Tokenizer * t) = {NULL, open_bytes, open_gpt2, open_byt5,
                                                    open_sentencepiece};  // by SampleTokenizer
    Tokenizer* t = calloc(1, sizeof *t);
    if (t == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a tokenizer"); }
    t->options = *options;
    t->bos_token = -1;
    Status status = open[options->kind](t);
    if (status == STATUS_OK) { status = list_specials(t); }
    if (status != STATUS_OK) {
        tokenizer_close(t);
        return status;
    }
    t->vocab.hash = t->hash != 0 ? t->hash : hash_texts(t);
    *out = t;
    return STATUS_OK;
}

void tokenizer_close(Tokenizer* t) {
    if (t == NULL) { return; }
    bpe_close(t->bpe);
    if (t->library != NULL) { t->library->close(t->pieces); }
    arena_free(&t->arena);
    free(t);
}

// --- using -------------------------------------------------------------------------------------------------

const SampleVocab* tokenizer_vocab(const Tokenizer* t) {
    return &t->vocab;
}

static Status append(Tokenizer* t, const char* text, size_t num_bytes, BpeTokens* out) {
    if (t->bpe != NULL) { return bpe_encode(t->bpe, text, num_bytes, out); }
    if (t->pieces == NULL) {
        for (size_t i = 0; i < num_bytes; i++) {
            TRY(bpe_tokens_add(out, (unsigned char)text[i] + t->first_byte));
        }
        return STATUS_OK;
    }
    const int32_t* ids;
    int64_t num_ids;
    TRY(t->library->encode(t->pieces, text, num_bytes, &ids, &num_ids));
    for (int64_t i = 0; i < num_ids; i++) { TRY(bpe_tokens_add(out, ids[i])); }
    return STATUS_OK;
}

Status tokenizer_encode(Tokenizer* t, const char* text, size_t num_bytes, BpeTokens* out) {
    if (num_bytes > MAX_TEXT_BYTES) {
        return FAIL(STATUS_OUT_OF_RANGE, "a text of %zu bytes ---> split it into texts under %d bytes",
                    num_bytes, MAX_TEXT_BYTES);
    }
    int64_t before = out->num_tokens;
    Status status = append(t, text, num_bytes, out);
    if (status != STATUS_OK) { out->num_tokens = before; }
    return status;
}

// The last of this name; -1: none.
static int32_t find_special(const Tokenizer* t, const char* name, size_t num_bytes) {
    for (int32_t i = t->num_specials - 1; i >= 0; i--) {
        const int32_t token = t->specials[i];
        if (t->text_bytes[token] == num_bytes && memcmp(t->texts[token], name, num_bytes) == 0) {
            return token;
        }
    }
    return -1;
}

static const char sentinel_begin[] = "<extra_id_";
enum { SENTINEL_BEGIN_BYTES = sizeof sentinel_begin - 1 };

// "<extra_id_7>" of such a token, without the blank that mT5 has before it; NULL: another token.
static const unsigned char* sentinel_text(const Tokenizer* t, int32_t token, int32_t* num_bytes) {
    const unsigned char* text = tokenizer_token_text(t, token, num_bytes);
    if (text != NULL && *num_bytes > 0 && text[0] == ' ') { text++, --*num_bytes; }
    bool is_one = text != NULL && *num_bytes > SENTINEL_BEGIN_BYTES &&
                  memcmp(text, sentinel_begin, SENTINEL_BEGIN_BYTES) == 0;
    return is_one ? text : NULL;
}

bool tokenizer_is_sentinel(const Tokenizer* t, int32_t token) {
    int32_t num_bytes = 0;
    return sentinel_text(t, token, &num_bytes) != NULL;
}

// The sentinel that a text begins with, and its bytes; -1: none.
static int32_t find_sentinel(const Tokenizer* t, const char* text, size_t text_bytes, size_t* num_bytes) {
    if (text_bytes < SENTINEL_BEGIN_BYTES || memcmp(text, sentinel_begin, SENTINEL_BEGIN_BYTES) != 0) {
        return -1;
    }
    for (int32_t token = t->vocab.num_tokens - 1; token >= 0; token--) {
        int32_t length = 0;
        const unsigned char* name = sentinel_text(t, token, &length);
        *num_bytes = (size_t)length;
        if (name != NULL && *num_bytes <= text_bytes && memcmp(text, name, *num_bytes) == 0) { return token; }
    }
    return -1;
}

static Status encode_filled(Tokenizer* t, const char* text, size_t num_bytes, SampleInputEnd input_end,
                            bool needs_all, BpeTokens* out) {
    const int64_t before = out->num_tokens;
    size_t length = 0;
    char* run = malloc(num_bytes + 2);  // text since the last special token
    Status status = run != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for a text");
    for (const char *at = text, *end = text + num_bytes; at < end && status == STATUS_OK; at++) {
        const char* close = *at == DATA_SPECIAL ? memchr(at + 1, DATA_SPECIAL, (size_t)(end - at - 1)) : NULL;
        size_t sentinel_bytes = 0, name_bytes = close != NULL ? (size_t)(close - at - 1) : 0;
        const int32_t token = close != NULL ? find_special(t, at + 1, name_bytes)
                              : *at == '<'  ? find_sentinel(t, at, (size_t)(end - at), &sentinel_bytes)
                                            : -1;
        if (close == NULL && token < 0) {
            run[length++] = *at;
            continue;
        }
        if (token >= 0) {
            status = tokenizer_encode(t, run, length, out);
            if (status == STATUS_OK) { status = bpe_tokens_add(out, token); }
            length = 0;
        } else if (needs_all) {
            status = FAIL(STATUS_BAD_OPTION,
                          "--template: %.*s is no special token of this tokenizer ---> one that it has, or "
                          "the text without braces",
                          (int)(name_bytes < 60 ? name_bytes : 60), at + 1);
        } else {
            memcpy(run + length, at + 1, name_bytes);
            length += name_bytes;
        }
        at = close != NULL ? close : at + sentinel_bytes - 1;
    }
    if (status == STATUS_OK && input_end == INPUT_END_NEWLINE) { run[length++] = '\n'; }
    if (status == STATUS_OK) { status = tokenizer_encode(t, run, length, out); }
    if (status == STATUS_OK && input_end == INPUT_END_EOT) {
        status = bpe_tokens_add(out, t->vocab.eot_token);
    }
    free(run);
    if (status != STATUS_OK) { out->num_tokens = before; }
    return status;
}

Status tokenizer_encode_filled(Tokenizer* t, const char* text, size_t num_bytes, bool needs_all,
                               BpeTokens* out) {
    return encode_filled(t, text, num_bytes, INPUT_END_NONE, needs_all, out);
}

Status tokenizer_encode_ended(Tokenizer* t, const char* text, size_t num_bytes, SampleInputEnd input_end,
                              BpeTokens* out) {
    return encode_filled(t, text, num_bytes, input_end, false, out);
}

Status tokenizer_begin(const Tokenizer* t, BpeTokens* out) {
    return t->bos_token >= 0 ? bpe_tokens_add(out, t->bos_token) : STATUS_OK;
}

const unsigned char* tokenizer_token_text(const Tokenizer* t, int32_t token, int32_t* num_bytes) {
    if (token < 0 || token >= t->vocab.num_tokens) { return NULL; }
    *num_bytes = t->text_bytes[token];
    return t->texts[token];
}

// --- saving ------------------------------------------------------------------------------------------------

Status tokenizer_save(const Tokenizer* t, const char* folder) {
    char path[PATH_CHARS];
    FileWriter writer;
    snprintf(path, sizeof path, "%s/tokenizer.bin", folder);
    TRY(file_writer_open(&writer, path));
    int32_t header[256] = {20240328, 2, t->vocab.num_tokens, t->vocab.eot_token};
    file_writer_write(&writer, header, sizeof header);
    for (int32_t token = 0; token < t->vocab.num_tokens; token++) {
        file_writer_write(&writer, &t->text_bytes[token], 1);
        file_writer_write(&writer, t->texts[token], t->text_bytes[token]);
    }
    return file_writer_commit(&writer);
}

// --- tokenizer folder -------------------------------------------------------------------------------------

// Are both files (second NULL: one) in the folder?
static bool find(TokenizerFolder* f, TokenizerOptions* out, const char* folder, SampleTokenizer kind,
                 const char* first, const char* second) {
    const char* const names[2] = {first, second};
    bool is_there = true;
    *out = (TokenizerOptions){.kind = kind};
    for (int i = 0; i < 2 && names[i] != NULL; i++) {
        snprintf(f->paths[i], sizeof f->paths[i], "%s/%s", folder, names[i]);
        out->paths[i] = f->paths[i];
        is_there = is_there && access(f->paths[i], R_OK) == 0;
    }
    return is_there;
}

// Hugging Face's files of ByT5 have no vocabulary, only its class name. vocab.json and merges.txt do not say
// how texts are split, tokenizer.json does. If a folder has files of several tokenizers, data.json selects.
static bool choose(TokenizerFolder* f, TokenizerOptions* out, const char* folder, bool is_byt5) {
    const SampleTokenizer kind = f->data.vocab.tokenizer, pieces = TOKENIZER_SENTENCEPIECE;
    *out = (TokenizerOptions){.kind = kind};
    if (kind == TOKENIZER_BYTES || kind == TOKENIZER_BYT5) { return true; }
    if (kind != TOKENIZER_GPT2 && (find(f, out, folder, pieces, "spiece.model", NULL) ||
                                   find(f, out, folder, pieces, LLAMA_FILE, NULL))) {
        return true;
    }
    *out = (TokenizerOptions){.kind = TOKENIZER_BYT5};
    if (kind == TOKENIZER_UNKNOWN && is_byt5) { return true; }
    if (find(f, out, folder, TOKENIZER_GPT2, "tokenizer.json", NULL)) { return true; }
    return kind != pieces && find(f, out, folder, TOKENIZER_GPT2, "vocab.json", "merges.txt");
}

static Status open_folder(TokenizerFolder* f, const char* folder) {
    bool has_data;
    TokenizerOptions options = {.extra_ids = -1};
    if (strcmp(folder, "bytes") == 0 || strcmp(folder, "byt5") == 0) {
        options.kind = folder[3] == '5' ? TOKENIZER_BYT5 : TOKENIZER_BYTES;
        return tokenizer_open(&f->tokenizer, &options);
    }
    TokenizerConfig config;
    TRY(tokenizer_config_read(&config, folder));
    TRY(data_json_read(&f->data, folder, &has_data));
    if (!choose(f, &options, folder, config.is_byt5)) {
        return FAIL(STATUS_IO,
                    "%s: no tokenizer there ---> --tokenizer DIR with a model's files (spiece.model or "
                    "tokenizer.model; vocab.json and merges.txt; tokenizer.json), or the folder of the data; "
                    "or bytes, or byt5",
                    folder);
    }
    options.extra_ids = config.extra_ids;
    options.without_bos = config.without_bos;
    options.end = config.end[0] != '\0' ? config.end : NULL;
    TRY(tokenizer_open(&f->tokenizer, &options));
    if (f->data.vocab.hash != 0 && f->data.vocab.hash != tokenizer_vocab(f->tokenizer)->hash) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: its tokenizer's files are not those that data.json was written with ---> prepare the data "
            "again",
            folder);
    }
    SampleInputEnd input_end = f->data.vocab.input_end;
    f->data.vocab = *tokenizer_vocab(f->tokenizer);
    if (has_data) {
        f->data.vocab.input_end = input_end;
    } else if (f->data.vocab.input_end == INPUT_END_NEWLINE) {
        f->data.vocab.input_end = INPUT_END_NONE;
    }
    return STATUS_OK;
}

Status tokenizer_folder_open(TokenizerFolder* out, const char* folder) {
    *out = (TokenizerFolder){0};
    Status status = open_folder(out, folder);
    if (status != STATUS_OK) { tokenizer_folder_close(out); }
    return status;
}

void tokenizer_folder_close(TokenizerFolder* f) {
    tokenizer_close(f->tokenizer);
    f->tokenizer = NULL;
    data_json_free(&f->data);
}
