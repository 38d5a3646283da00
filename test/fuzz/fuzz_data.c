// fuzz_data.c -- targets for records, tokenizers, sample files, positions; each is built alone, with
// -DFUZZ_NAME (dev/fuzz.sh).
#define _GNU_SOURCE  // memfd_create
#include "../../dataloader/tokenizer/bpe.h"
#include "fuzz.h"

#ifdef FUZZ_bpe_vocab

// A text's tokens spell the text where it is UTF-8; elsewhere an error and no token.
static void fuzz_bpe_text(Bpe* bpe, const uint8_t* data, size_t num_bytes, BpeTokens* tokens) {
    Status status = bpe_encode(bpe, (const char*)data, num_bytes, tokens);
    REQUIRE(status == STATUS_OK || (status == STATUS_BAD_FORMAT && tokens->num_tokens == 0));
    size_t at = 0;
    for (int64_t i = 0; i < tokens->num_tokens; i++) {
        int32_t length;
        const unsigned char* text = bpe_token_text(bpe, tokens->ids[i], &length);
        REQUIRE(tokens->ids[i] != bpe_eot_token(bpe) && at + (size_t)length <= num_bytes);
        REQUIRE(memcmp(text, data + at, (size_t)length) == 0);
        at += (size_t)length;
    }
    REQUIRE(status != STATUS_OK || at == num_bytes);
}

// bpe_vocab: any bytes as vocab.json and, after the first empty line, merges.txt, or, without one, as
// tokenizer.json: refused with the file's name, or a tokenizer whose tokens spell what it takes.
// libFuzzer: -max_len=4000

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    size_t merges_at, vocab_bytes = fuzz_first_bytes(data, num_bytes, &merges_at);
    // texts end with a NUL, as files that were read do
    char *first = fuzz_text(data, vocab_bytes), *second = fuzz_text(data + merges_at, num_bytes - merges_at);
    VocabFile vocab = {"v.json", first, vocab_bytes}, merges = {"m.txt", second, num_bytes - merges_at};
    Bpe* bpe;
    Status status = bpe_open(&bpe, &vocab, merges_at < num_bytes ? &merges : NULL, NULL);
    if (status == STATUS_OK) {
        BpeTokens tokens = {0};
        fuzz_bpe_text(bpe, data, num_bytes < 200 ? num_bytes : 200, &tokens);
        bpe_tokens_free(&tokens);
        bpe_close(bpe);
    } else {
        REQUIRE(status == STATUS_BAD_FORMAT);
        REQUIRE(strncmp(status_message(), "v.json", 6) == 0 || strncmp(status_message(), "m.txt", 5) == 0);
    }
    free(first);
    free(second);
    return 0;
}
#endif

#ifdef FUZZ_vocab_hash
// vocab_hash: any bytes as spiece.model, as tokenizer.json, and as vocab.json with merges.txt after the first
// empty line: a hash, or refused with a remedy.

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    size_t merges_at, vocab_bytes = fuzz_first_bytes(data, num_bytes, &merges_at);
    char* text = fuzz_text(data, num_bytes);
    const VocabFile whole = {"f", text, num_bytes}, vocab = {"f", text, vocab_bytes},
                    merges = {"m", text + merges_at, num_bytes - merges_at};
    uint64_t hash;
    SampleTokenizer kind;
    Status got[] = {vocab_hash_pieces(&hash, &whole), vocab_hash_json(&hash, &kind, &whole, NULL),
                    vocab_hash_json(&hash, &kind, &vocab, &merges)};
    for (int i = 0; i < 3; i++) { REQUIRE(got[i] == STATUS_OK || got[i] == STATUS_BAD_FORMAT); }
    REQUIRE(hash != 0 && (got[2] == STATUS_OK || fuzz_has_remedy(status_message())));
    free(text);
    return 0;
}
#endif

#ifdef FUZZ_data_json
/*
data_json: any bytes as a data.json: what is read of it is written and read again as the same; and
its template, where it is one, filled with a question, which stands in it as often as its field does.
*/
#include <stdio.h>

#include "../../dataloader/data_json.h"
#include "../../dataloader/records/records.h"

static bool equal(const char* a, const char* b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

// A record's question stands in the prompt as often as the form has its field.
static void try_form(const DataTemplate* texts) {
    RecordTemplate form;
    if (record_template_of(&form, texts) != STATUS_OK) {
        REQUIRE(fuzz_has_remedy(status_message()));
        return;
    }
    const char* name;
    size_t num_fields = 0, num_others = 0, name_chars;
    for (const char* at = form.form.prompt; (at = record_template_field(at, &name, &name_chars)) != NULL;) {
        const bool is_inputs = name_chars == 6 && strncmp(name, "inputs", 6) == 0;
        num_fields += is_inputs;
        num_others += !is_inputs;
    }
    Arena arena = {0};
    RecordText asked;
    Status status = record_template_ask(&form, (RecordText){"\1\2\3", 3}, &arena, &asked);
    REQUIRE(status == STATUS_OK || num_others > 0);
    if (status == STATUS_OK && num_others == 0) {
        size_t num_found = 0;
        for (size_t i = 0; i < asked.num_bytes; i++) { num_found += asked.text[i] == '\2'; }
        REQUIRE(num_found >= num_fields);
        REQUIRE(asked.num_bytes <= strlen(form.form.prompt) - 5 * num_fields);
    }
    arena_free(&arena);
    record_template_close(&form);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    DataJson first, second;
    char* text = fuzz_text(data, num_bytes);
    Status status = data_json_parse(&first, text, num_bytes, "fuzz/data.json");
    free(text);
    if (status != STATUS_OK) {
        REQUIRE(status == STATUS_BAD_FORMAT && fuzz_has_remedy(status_message()));
        return 0;
    }
    const SampleVocab *a = &first.vocab, *b = &second.vocab;
    text = data_json_text(&first);
    REQUIRE(text != NULL && data_json_parse(&second, text, strlen(text), "again") == STATUS_OK);
    REQUIRE(a->num_tokens == b->num_tokens && a->eot_token == b->eot_token && a->pad_token == b->pad_token);
    REQUIRE(a->tokenizer == b->tokenizer && a->input_end == b->input_end && a->hash == b->hash);
    for (size_t i = 0; i < sizeof(DataTemplate) / sizeof(char*); i++) {
        REQUIRE(equal(((const char* const*)&first.form)[i], ((const char* const*)&second.form)[i]));
    }
    REQUIRE(equal(first.inputs_field, second.inputs_field));
    try_form(&first.form);
    free(text);
    data_json_free(&first);
    data_json_free(&second);
    return 0;
}
#endif

#ifdef FUZZ_mixture
// mixture: a first line of task names (commas between them), then --weights: shares of which every
// task that weighs something has one, or an error. libFuzzer: -max_len=128
#include "../../dataloader/loader.h"

enum { MAX_TASKS = 8 };

static int32_t split_names(const char* names[MAX_TASKS], char* line) {
    int32_t num_tasks = 0;
    for (char* at = line; at != NULL && num_tasks < MAX_TASKS;) {
        names[num_tasks++] = at;
        at = strchr(at, ',');
        if (at != NULL) { *at++ = '\0'; }
    }
    return num_tasks;
}

static void require_sane(const Mixture* mixture) {
    uint64_t before = 0, point = mixture_start(7);
    for (int32_t k = 0; k < mixture->num_tasks; k++) {
        REQUIRE(mixture->upto[k] >= before && mixture->upto[k] < (uint64_t)1 << 32);
        before = mixture->upto[k];
    }
    REQUIRE(before >= 1);
    for (int i = 0; i < 4; i++, point = mixture_next(point)) {
        int32_t task = mixture_task(mixture, point);
        REQUIRE(task >= 0 && task < mixture->num_tasks);
        REQUIRE(mixture->upto[task] > (task > 0 ? mixture->upto[task - 1] : 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static const int64_t num_samples[MAX_TASKS] = {1, 100, 5, 1 << 20, 3, 0, 7, 1};
    char* text = fuzz_text(data, num_bytes);
    char* weights = strchr(text, '\n');
    const char* names[MAX_TASKS];
    if (weights != NULL) {
        *weights++ = '\0';
        LoaderOptions options = {.mixture = MIXTURE_WEIGHTS, .weights = weights};
        Mixture mixture;
        Status status = mixture_create(&mixture, &options, split_names(names, text), names, num_samples);
        if (status == STATUS_OK) {
            require_sane(&mixture);
            mixture_free(&mixture);
        } else {
            REQUIRE(status == STATUS_BAD_OPTION && fuzz_has_remedy(status_message()));
        }
    }
    free(text);
    return 0;
}
#endif

#ifdef FUZZ_position
/*
position: any bytes as the position in the data that a checkpoint keeps (the loader's record, behind
it what ranks agreed on, and the split of a run whose layers moved): refused, or batches can be drawn from
there and the same position comes out again.

The first byte of an input: bit 0 begins with a true record and takes the rest as changes to it (pairs of
place and value); bit 1 puts the record's hash right, which random bytes never meet; bit 2: of a loader in
file order.
*/
// libFuzzer: -max_len=256
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../dataloader/loader.h"
#include "../../dataloader/prepare/sample_writer.h"
#include "../../dataloader/sample_file.h"
#include "../../util/numbers.h"
#include "../../dynapipe_plugin/plan/placement.h"
#include "../../dynapipe_plugin/run/session.h"

enum { MAX_RECORD = 512, NUM_SAMPLES = 20 };

static Loader* loaders[2];  // shuffled; in file order
static uint8_t records[2][MAX_RECORD];
static size_t record_bytes;

static void write_samples(const char* path) {
    const SampleVocab vocab = {
        .num_tokens = 257, .eot_token = 256, .pad_token = -1, .tokenizer = TOKENIZER_BYTES};
    const int32_t tokens[] = {65, 66, 67, 68, 69, 256};
    SampleWriter* writer;
    REQUIRE(sample_writer_open(&writer, path, &vocab) == STATUS_OK);
    for (int i = 0; i < NUM_SAMPLES; i++) {
        REQUIRE(sample_writer_add(writer, i % 3 == 0 ? "sums" : "words", tokens + 3 - i % 4, 1 + i % 4, 2,
                                  NULL, 0) == STATUS_OK);
    }
    REQUIRE(sample_writer_finish(writer) == STATUS_OK);
}

int LLVMFuzzerInitialize(int* argc, char*** argv) {
    (void)argc;
    (void)argv;
    char path[64];
    snprintf(path, sizeof path, "build/fuzz/position_%ld.bin", (long)getpid());
    write_samples(path);
    Arena arena = {0};
    for (int i = 0; i < 2; i++) {
        const LoaderOptions options = {.batch_tokens = 16, .max_seq_tokens = 8, .seed = 1, .shuffle = i == 0};
        LoaderBatch batch;
        REQUIRE(loader_open(&loaders[i], path, &options) == STATUS_OK);
        REQUIRE(loader_next(loaders[i], &batch, &arena) == STATUS_OK && batch.position_bytes < MAX_RECORD);
        record_bytes = batch.position_bytes;
        memcpy(records[i], batch.position, record_bytes);
    }
    unlink(path);
    arena_free(&arena);
    return 0;
}

// Three stages, 8 layers, one replica.
static void session_make(Dynapipe* dp) {
    static const BlockRange stages[3] = {{0, 3}, {3, 6}, {6, 8}};
    *dp = (Dynapipe){.num_stages = 3, .num_replicas = 1};
    dp->costs.chain = plan_chain_whole(8, 0);
    placement_linear(&dp->request.placement, stages, 3);
}

// The bytes as a section of a checkpoint.
static void make_section(Text* out, const char* magic, const uint8_t* data, size_t num_bytes) {
    Text text;
    REQUIRE(text_open(out) == STATUS_OK && text_open(&text) == STATUS_OK);
    fwrite(data, 1, num_bytes, text.out);
    REQUIRE(section_write(out->out, magic, &text) == STATUS_OK && text_close(out) == STATUS_OK);
}

// Whatever a record of a split says: a split of this model, or none.
static void require_split(const uint8_t* data, size_t num_bytes) {
    static Dynapipe dp;
    Text section;
    make_section(&section, "dpsplit5", data, num_bytes);
    const void* position = section.text;
    size_t left_bytes = section.num_chars;
    session_make(&dp);
    session_resplit_restore(&dp, &position, &left_bytes);
    const SessionResplit* resplit = &dp.resplit;
    REQUIRE(left_bytes == 0 && dp.request.effort >= 0 && dp.request.effort <= 1000000000);
    if (resplit->has_restored) {
        REQUIRE(placement_check(&resplit->restored, 3, &dp.costs.chain, false) == STATUS_OK);
    }
    session_resplit_free(&dp.resplit);
    free(section.text);
}

static void require_refit(const uint8_t* data, size_t num_bytes) {
    SessionRefit refit;
    Text section;
    make_section(&section, "dprefit6", data, num_bytes);
    const void* position = section.text;
    size_t left_bytes = section.num_chars;
    session_refit_init(&refit, true);
    REQUIRE(session_refit_restore(&refit, &position, &left_bytes) == STATUS_OK && left_bytes == 0);
    session_refit_free(&refit);
    free(section.text);
}

static size_t make_input(uint8_t out[MAX_RECORD], const uint8_t* data, size_t num_bytes) {
    uint8_t how = data[0];
    size_t out_bytes = record_bytes;
    data++, num_bytes--;
    if (how & 1) {
        memcpy(out, records[(how & 4) != 0], record_bytes);
        for (size_t i = 0; i + 1 < num_bytes; i += 2) { out[data[i] % record_bytes] = data[i + 1]; }
    } else {
        out_bytes = num_bytes < MAX_RECORD ? num_bytes : MAX_RECORD;
        memcpy(out, data, out_bytes);
    }
    if ((how & 2) && out_bytes == record_bytes) {
        uint64_t hash = hash_finish(hash_bytes(HASH_SEED, out, out_bytes - sizeof hash));
        memcpy(out + out_bytes - sizeof hash, &hash, sizeof hash);
    }
    return out_bytes;
}

static void require_usable(Loader* loader, const uint8_t* position, size_t num_bytes, Arena* arena) {
    const uint8_t* now;
    size_t now_bytes;
    LoaderBatch batch;
    REQUIRE(loader_position(loader, &now, &now_bytes, arena) == STATUS_OK);
    // all but magic, tasks, shuffling (any number but 0 is yes) and the hash
    REQUIRE(now_bytes == num_bytes && memcmp(now + 16, position + 16, num_bytes - 24) == 0);
    for (int i = 0; i < 2; i++) {
        REQUIRE(loader_next(loader, &batch, arena) == STATUS_OK && (batch.num_samples >= 1 || batch.end));
        for (int32_t k = 0; k < batch.num_samples; k++) {
            REQUIRE(batch.samples[k].id >= 0 && batch.samples[k].id < NUM_SAMPLES);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static Arena arena;
    uint8_t input[MAX_RECORD];
    if (num_bytes < 2) { return 0; }
    size_t input_bytes = make_input(input, data, num_bytes);
    require_split(data + 1, num_bytes - 1);
    require_refit(data + 1, num_bytes - 1);
    Loader* loader = loaders[(data[0] & 4) != 0];
    Status status = loader_restore(loader, input, input_bytes);
    if (status == STATUS_OK) {
        require_usable(loader, input, input_bytes, &arena);
    } else {
        REQUIRE((status == STATUS_BAD_FORMAT || status == STATUS_MISMATCH) &&
                fuzz_has_remedy(status_message()));
    }
    arena_reset(&arena);
    return 0;
}
#endif

#ifdef FUZZ_record_reader
// record_reader: any bytes as a file of records, packed or not: the reader ends, and what it calls a
// sample keeps its promises.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../dataloader/records/records.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes == 0) { return 0; }
    int file = memfd_create("fuzz", 0);
    REQUIRE(file >= 0 && pwrite(file, data, num_bytes, 0) == (ssize_t)num_bytes);
    static const char* const forms[] = {"plain", "alpaca", "chatml", "{inputs} {a} {targets}{{"};
    RecordTemplate form;
    RecordReader reader;
    REQUIRE(record_template_open(&form, forms[data[0] / 4 % 4], NULL) == STATUS_OK);
    const bool asks = data[0] / 16 % 2 == 1;  // what is to be answered may have no targets
    RecordOptions options = {.fields = {.asks = asks}, .form = &form};
    Status status = record_reader_open(&reader, file, "fuzz.jsonl", &options);
    if (status != STATUS_OK) {
        record_template_close(&form);
        return 0;
    }
    for (size_t calls = 0;; calls++) {
        Record record;
        status = record_reader_next(&reader, &record);
        REQUIRE(calls <= 1100 * num_bytes + 2);  // packed bytes may be as many
        REQUIRE(status == STATUS_OK || status == STATUS_BAD_FORMAT || status == STATUS_IO);
        REQUIRE(status == STATUS_OK || strncmp(status_message(), "fuzz.jsonl:", 11) == 0);
        if (status == STATUS_BAD_FORMAT) { continue; }
        if (status == STATUS_IO || record.end) { break; }
        REQUIRE(strlen(record.task.text) == record.task.num_bytes);
        REQUIRE(record.task.num_bytes > 0 && record.task.num_bytes <= RECORD_MAX_TASK_BYTES);
        REQUIRE(record.num_turns > 0 && !record.turns[record.num_turns - 1].is_read);
        for (int32_t t = 0; t < record.num_turns; t++) {
            REQUIRE(record.turns[t].inputs.text[record.turns[t].inputs.num_bytes] == '\0');
            if (asks && t == record.num_turns - 1 && record.turns[t].targets.text == NULL) { break; }
            REQUIRE(record.turns[t].targets.text[record.turns[t].targets.num_bytes] == '\0');
        }
    }
    record_template_close(&form);
    record_reader_close(&reader);
    return 0;
}
#endif

#ifdef FUZZ_sample_file
/*
sample_file: any bytes as a sample file: refused, or every sample can be read.

The first byte of an input says how it is parsed, the rest is the file. Random bytes never carry the right
checksums, so bit 0 puts both right first: the checks after them are what is to be tried.
*/
#include <stdlib.h>
#include <string.h>

#include "../../dataloader/sample_file.h"
#include "../../util/numbers.h"

// Where the tokens begin if names and index are as the header says; 0: they do not fit.
static size_t find_tokens(const SampleFormatHeader* header, const unsigned char* bytes, size_t num_bytes,
                          size_t* hashes_at) {
    size_t at = sizeof *header;
    for (uint32_t k = 0; k < header->num_tasks; k++) {
        if (at > num_bytes - 2) { return 0; }
        at += 2 + (bytes[at] | (size_t)bytes[at + 1] << 8);
    }
    at = (at + 7) / 8 * 8;
    if (at > num_bytes || header->num_samples > (num_bytes - at) / sizeof(SampleIndex)) { return 0; }
    *hashes_at = at + (size_t)header->num_samples * sizeof(SampleIndex);
    if (header->num_gaps > num_bytes / sizeof(SampleGap)) { return 0; }
    *hashes_at += header->num_gaps * sizeof(SampleGap);
    if (header->num_tokens > num_bytes || header->bytes_per_token > 4) { return 0; }
    uint64_t num_chunks = sample_format_num_chunks(header->num_tokens * header->bytes_per_token);
    size_t tokens_at = *hashes_at + (size_t)num_chunks * sizeof(uint64_t);
    return tokens_at <= num_bytes ? tokens_at : 0;
}

static void repair(unsigned char* bytes, size_t num_bytes) {
    SampleFormatHeader header;
    size_t hashes_at = 0;
    if (num_bytes < sizeof header) { return; }
    memcpy(&header, bytes, sizeof header);
    memcpy(header.magic, SAMPLE_FORMAT_MAGIC, sizeof header.magic);
    header.version = SAMPLE_FORMAT_VERSION;
    size_t tokens_at = find_tokens(&header, bytes, num_bytes, &hashes_at);
    if (tokens_at > hashes_at) {  // inputs are shorter than a chunk: there is one at most
        uint64_t hash = sample_format_chunk_hash(bytes + tokens_at, num_bytes - tokens_at);
        memcpy(bytes + hashes_at, &hash, sizeof hash);
    }
    if (tokens_at > 0) {
        header.checksum =
            hash_finish(hash_bytes(HASH_SEED, bytes + sizeof header, tokens_at - sizeof header));
    }
    header.header_checksum = hash_finish(hash_bytes(HASH_SEED, &header, SAMPLE_FORMAT_HASHED_BYTES));
    memcpy(bytes, &header, sizeof header);
}

// Whatever was accepted must be usable.
static void use(SampleFile* file) {
    int32_t tokens[64];
    for (int64_t s = 0; s < file->num_samples; s++) {
        REQUIRE(file->index[s].task < (uint32_t)file->num_tasks);
        int64_t length = (int64_t)file->index[s].n_input + file->index[s].n_target;
        int64_t count = length < 64 ? length : 64;
        Status status = sample_file_read(file, s, length - count, count, tokens);
        REQUIRE(status == STATUS_OK || status == STATUS_BAD_FORMAT);
        const SampleGap* gaps;
        int32_t num_gaps = sample_file_gaps(file, s, &gaps);
        for (int32_t g = 0; g < num_gaps; g++) {
            REQUIRE(gaps[g].begin > file->index[s].n_input && gaps[g].end < length);
        }
    }
    for (int32_t k = 0; k < file->num_tasks; k++) {
        REQUIRE(strlen(file->task_names[k]) <= SAMPLE_FILE_MAX_NAME);
    }
    REQUIRE(sample_file_cut(file, 3) == STATUS_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    if (num_bytes < 1) { return 0; }
    bool repaired = data[0] & 1;
    data += 1;
    num_bytes -= 1;
    unsigned char* bytes = malloc(num_bytes + (num_bytes == 0));
    if (bytes == NULL) { return 0; }
    memcpy(bytes, data, num_bytes);
    if (repaired) { repair(bytes, num_bytes); }
    SampleFile file;
    if (sample_file_parse(&file, "fuzz.bin", bytes, num_bytes) == STATUS_OK) {
        use(&file);
        sample_file_close(&file);
    }
    free(bytes);
    return 0;
}
#endif

#ifdef FUZZ_token_text
// token_text: any bytes as llm.c's tokenizer.bin: refused with a remedy, or every token has its
// bytes. libFuzzer: -max_len=2048
#include "../../llmc/llmc_error.h"
#include "../../llmc/completion.h"
#include "memory_files.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    TokenText text;
    memory_files_set("memory/tokenizer.bin", data, num_bytes);
    if (token_text_load(&text, "memory/tokenizer.bin")) {
        size_t sum_bytes = 0, piece_bytes;
        REQUIRE(text.num_tokens >= 1 && text.eot_token >= 0 && text.eot_token < text.num_tokens);
        for (int32_t i = 0; i < text.num_tokens; i++) {
            const uint8_t* piece = token_text_piece(&text, i, &piece_bytes);
            REQUIRE(piece != NULL && piece_bytes >= 1 && piece_bytes <= 255);
            sum_bytes += piece_bytes + (piece[piece_bytes - 1] > 255);
        }
        REQUIRE(sum_bytes + 1024 < num_bytes);
        token_text_free(&text);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()) && text.bytes == NULL);
    }
    return 0;
}
#endif
