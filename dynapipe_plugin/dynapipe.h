/*
dynapipe.h -- the one header a trainer includes.

    dynapipe_open(&dp, &argc, &argv, NULL);     // takes the plugin's --options out of argv, joins the ranks
    dynapipe_open_data(dp, &run);               // sample files, the mixture, what a step is
    dynapipe_use_stream(dp, stream);            // on a GPU
    dynapipe_measure(dp, &blocks, &costs);      // costs of its parts; once for a model and machine
    dynapipe_choose_stages(dp, costs, mine, DYNAPIPE_MAX_RANGES, &n);  // which blocks of the model are mine
    for each of them: dynapipe_attach(dp, i, &model_api, model, &params);
    for (;;) {
        dynapipe_step(dp, &step);               // plan, run the pipeline, reduce: gradients of the mean loss
        ... clip, optimizer on dynapipe_shard() ...
        dynapipe_share_params(dp);              // replicas exchange their shards
        dynapipe_report(dp, &report);
    }
    dynapipe_close(dp);

Works from C99 and C++17. Every name begins with dynapipe/Dynapipe/DYNAPIPE. Functions return 0 or an error
code; dynapipe_error() then returns what is wrong and what to do. Published structs are never edited: a change
means _v2 beside _v1 (DynapipeBatch and DynapipeCache, which only the plugin makes, may grow at their end);
test/golden/interface_pins.c keeps their sizes, places and numbers. Start a struct of these as zeros: what is
0 or NULL is the common case, and `reserved` members are refused with anything else. All calls of one Dynapipe
come from one thread; planning runs in a thread of its own. How to bring a model of your own: doc/porting.md.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// Version of the structures and functions that a program was compiled with; dynapipe_open() compares it with
// the library's.
#define DYNAPIPE_INTERFACE 1

// One microbatch as the model sees it: sequences one after the other. Host memory, the same object with the
// same contents in all calls about this microbatch, from forward to backward_weights.
typedef struct {
    int32_t num_seqs;           // attention windows
    int32_t num_tokens;         // of all of them, padding included
    int32_t num_rows;           // supervised tokens; may be 0 in queries of bytes, and of a piece; of infer()
                                // num_seqs, with rows and targets NULL
    int32_t max_seq_tokens;     // longest window
    int64_t num_squares;        // sum of squared lengths of the windows, padding included
    const int32_t* cu_seqlens;  // (num_seqs + 1) window i is tokens [cu_seqlens[i], cu_seqlens[i+1])
    const int32_t* tokens;      // (num_tokens) ids
    const int32_t* positions;   // (num_tokens) restart at 0 in every window; infer(): after the cache's
    const int32_t*
        rows;  // (num_rows) which tokens are supervised (of the decoder, if there is one), ascending
    const int32_t* targets;    // (num_rows) the id to predict there
    const int32_t* row_tasks;  // (num_rows) task of that row, for reports
    float loss_scale;  // multiplies the gradient of every row's loss: 1 / supervised tokens of the step
    // (num_seqs) tokens of each window that are not padding (which follows them); NULL: all. Causal models
    // may ignore it: no token sees later ones, and padding is not supervised.
    const int32_t* seq_lens;
    // (num_tokens) a number for each token of a sample in this step, however samples are grouped: for
    // dropout. NULL in validation and generation: nothing is dropped.
    const uint32_t* token_keys;
    // encoder-decoder models: the decoder's side of the same windows, same conventions; 0 and NULL elsewhere
    int32_t num_dec_tokens, max_dec_seq_tokens;
    int64_t num_dec_squares, num_cross;  // of the decoder's windows; sum of encoder length * decoder length
    const int32_t* dec_cu_seqlens;
    const int32_t* dec_tokens;
    const int32_t* dec_positions;
    const int32_t* dec_seq_lens;
    const uint32_t* dec_token_keys;
    // Only with DynapipeModel_v1.kept_bytes: window 0 may be a piece of a sample that is cut along its tokens
    // (a decoder's, where there is one), tokens [kept_begin, kept_begin + its length) of kept_tokens, whose
    // positions begin at kept_begin. Other windows are beside a sample's last piece only. An encoder's side
    // is whole, in the first piece's microbatch; later ones have 0 encoder tokens in window 0. No window is
    // padded. forward() is called for the first piece first, and every piece leaves the keys and values of
    // its tokens in `kept` (again when it is recomputed); backward_inputs() for the last piece first, and
    // sums of their gradients are in `dkept`, which begins undefined. kept_tokens 0: window 0 is whole.
    int32_t kept_tokens, kept_begin;
    int32_t kept_enc_tokens;    // encoder tokens of that sample, in every piece; 0 without a decoder
    const uint32_t* kept_keys;  // (kept_begin) token keys of the tokens before the piece; NULL as token_keys
    const uint32_t* kept_enc_keys;  // (kept_enc_tokens) of its encoder tokens
    void *kept, *dkept;             // kept_bytes() of the range that is called
    int64_t num_prefix;             // window 0's tokens times kept_begin
} DynapipeBatch;

// Combinations in use: 0 (training, recomputed before backward), KEEP | HEAD (training), HEAD (validation).
enum {
    DYNAPIPE_FORWARD_KEEP =
        1,  // acts must serve a later backward; else they may be overwritten layer by layer
    DYNAPIPE_FORWARD_HEAD =
        2,  // the last stage computes losses (with KEEP: what backward needs of the head too)
};

// What generation keeps of the sequences still being generated: keys and values of their tokens so far, a
// slot each.
typedef struct {
    int32_t num_slots, max_tokens;  // of a slot (a decoder's, where there is one)
    int32_t max_enc_tokens;         // of a slot's encoder side; 0 without
    const int32_t* slots;           // (batch.num_seqs) the slot of each sequence of the batch
    const int32_t* num_before;      // (batch.num_seqs) tokens the slot has; the batch's come after them
    const int32_t* num_enc;         // (batch.num_seqs) encoder tokens of the slot, this batch's included
    void* memory;                   // cache_bytes, where values live
} DynapipeCache;

// A model (one range of blocks on this rank) as the executor calls it. All pointers are device memory where
// values live (host memory in the CPU build); batches, losses and ids are host memory. Return 0 or an error.
// acts, scratch, in, out, din and dout are at multiples of 256 bytes. `acts` may be at another place, with
// the same contents, from one call about a microbatch to the next: it must not contain pointers into itself.
typedef struct {
    const char* name;

    // Bytes that forward() needs for `acts` under `flags`, that any job needs for `scratch`, and of an
    // activation or gradient before (is_behind 0) and after this range. Only counts of `batch` are read
    // (num_*, max_*). Never less for more of anything. dynapipe_measure() covers sums of terms linear in the
    // counts, the largest of several sums, and rounding up. For a ragged model it takes max_seq_tokens as
    // num_tokens and its square as num_squares, which are no less; num_seqs * max_seq_tokens and the like are
    // counts of padded models only: with another model, a step may end with an error for lack of bytes.
    int64_t (*acts_bytes)(void* model, const DynapipeBatch* batch, int flags);
    int64_t (*scratch_bytes)(void* model, const DynapipeBatch* batch);
    int64_t (*boundary_bytes)(void* model, const DynapipeBatch* batch, int is_behind);

    // in: NULL on the first range. out: NULL on the last, and may be NULL where a forward is recomputed
    // (KEEP). losses: (num_rows) cross entropy in nats, last range with HEAD only.
    int (*forward)(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, int flags);
    // Gradient of inputs. dout: NULL on the last range; din: NULL on the first. Leaves in acts what
    // backward_weights needs: `in` is gone then, `dout` stays. May add gradients of small parameters (norms)
    // at once.
    int (*backward_inputs)(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch);
    // Adds to the gradients of weights. Called exactly once after backward_inputs of that microbatch. NULL:
    // a model whose backward cannot be divided, which does all of it in backward_inputs.
    int (*backward_weights)(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                            void* scratch);

    // Of all parameters of this rank: once a step, of the model of range 0.
    void (*zero_gradients)(void* model);

    // (optional, where the calls above only queue work on a device) Waits for all of it; then the losses are
    // in place.
    int (*finish)(void* model);

    // (optional, for generation) The new tokens of some sequences, after those in the cache; in and
    // out as in forward(), of these tokens. The last range writes the likeliest next token of each sequence
    // to `next` (num_seqs) and waits for it. An encoder-decoder gets encoder tokens once, decoder tokens call
    // by call.
    int64_t (*cache_bytes)(void* model, const DynapipeCache* cache);
    int64_t (*infer_bytes)(void* model, const DynapipeBatch* batch);  // of scratch
    int (*infer)(void* model, const DynapipeBatch* batch, const DynapipeCache* cache, const void* in,
                 void* out, void* scratch, int32_t* next);

    // (optional, all or none; not needed where the head is shared only by rows:
    // DynapipeShapes_v1.head_by_rows) A head shared by ranks (DynapipeRange.head). The range that feeds the
    // head hands on the normed hidden states of the supervised rows, boundary_bytes of them, which a share
    // gets as `in`. Of a share, forward() with KEEP computes its logits and backward_inputs() writes its part
    // to din; forward() with HEAD alone (validation) writes a part, of losses only, to out. By vocabulary it
    // leaves losses unchanged, and backward_weights() gets its factors as dout. By rows, the batch of a share
    // has only its rows, the share has their losses, and a part is the gradient of their hidden states,
    // boundary_bytes of them: parts are adjacent, in and din at a multiple of a row's bytes. Bytes from
    // counts alone, the same from every share and from the range that feeds them. flags: as of forward().
    int64_t (*part_bytes)(void* model, const DynapipeBatch* batch, int flags);  // by vocabulary
    int64_t (*factor_bytes)(void* model, const DynapipeBatch* batch);           // by vocabulary
    // Of the range that feeds the head, by vocabulary: from the parts of all shares, in the order of stages,
    // the gradient of the hidden states (dout of its backward_inputs()), the losses, and every share's
    // factors. dout and factors are NULL where there is no backward.
    int (*combine)(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* parts,
                   void* dout, void* const* factors, float* losses);
    // Generation: a share's infer() writes its likeliest token and its logit for each sequence, pick_bytes,
    // to `out` (cache and next are NULL); of the range that feeds the head: from all of these the likeliest,
    // ids to `next`, and waits for it. A share by rows takes all sequences.
    int64_t (*pick_bytes)(void* model, const DynapipeBatch* batch);
    int (*pick)(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* picks,
                int32_t* next);
    // (optional) Bytes of batch->kept (is_gradient 0) and of batch->dkept (1) for this range, from
    // kept_tokens and kept_enc_tokens alone, 0 without layers that are cut. Of a piece, acts_bytes() must be
    // no more than without the kept_* and num_prefix, scratch_bytes() no more than of the same batch with all
    // of window 0's earlier tokens in it, an encoder's too. NULL: the model takes no pieces.
    int64_t (*kept_bytes)(void* model, const DynapipeBatch* batch, int is_gradient);
    void (*reserved[2])(void);  // NULL
} DynapipeModel_v1;

// A parameter that several ranges have a copy of (a tied embedding, a table of biases): values [begin, begin
// + count) of this range's array. All copies have the same number and the same count; their gradients become
// the sum of all, everywhere.
typedef struct {
    int32_t group;  // >= 0, the model's own numbering, the same on all ranks
    int64_t begin, count;
} DynapipeTied;

typedef enum { DYNAPIPE_FLOAT32, DYNAPIPE_BFLOAT16, DYNAPIPE_FLOAT16 } DynapipeType;

// The parameters of one range: one flat array, and one of gradients with the same layout.
typedef struct {
    void* params;
    void* grads;
    int64_t num_params;
    int32_t param_type, grad_type;  // DynapipeType
    int32_t num_tied;
    const DynapipeTied* tied;  // [num_tied], copied
    int64_t reserved[4];       // 0
} DynapipeParams_v1;

// Contiguous blocks [begin, end) of the model's chain: its embedding is block 0, then the blocks of each
// layer in turn (one, or DynapipeBlocks_v1.layer_blocks), then the head. Of an encoder-decoder: encoder's
// embedding, its layers' blocks, decoder's embedding, its layers' blocks, head. The head may be a range
// alone, the embedding may not.
typedef enum {
    DYNAPIPE_HEAD_AS_BLOCKS,      // by its blocks: it has all of it, or nothing
    DYNAPIPE_HEAD_FEEDS,          // ends after the last layer with the final norm, hands over supervised rows
    DYNAPIPE_HEAD_BY_ROWS,        // a share: the head's block, for some rows of each microbatch
    DYNAPIPE_HEAD_BY_VOCABULARY,  // a share: these ids of the head's block
} DynapipeHead;
typedef struct {
    int32_t begin, end;
    int32_t head;  // DynapipeHead
    int32_t vocab_begin,
        vocab_end;  // by vocabulary: ids, of the padded vocabulary; multiples of 16 but the end
} DynapipeRange;
enum { DYNAPIPE_MAX_RANGES = 64 };

// What a model's kernels require of a microbatch (not of infer(), whose windows may have any lengths). All
// zeros: ragged, no requirement. `padded`: all windows of a microbatch have one length T, a multiple of
// seq_multiple, and num_seqs * T is one of tokens_multiple (0: 1).
typedef struct {
    int32_t padded;
    int32_t seq_multiple, tokens_multiple;
    int64_t max_squares;     // num_squares of a microbatch, at most: where kernels count in int; 0: any
    int32_t head_has_layer;  // 1: the head is never a range alone
    int32_t max_tokens;      // num_tokens of a microbatch, and num_dec_tokens, at most; 0: any
    int32_t max_seqs;        // num_seqs of a microbatch, at most; 0: any
    int64_t
        head_by_rows;  // 1: ranks may share the head by rows, not by vocabulary: no part_bytes and the like
    int64_t reserved[3];  // 0
} DynapipeShapes_v1;

// A model as a chain that can be cut: how a range of its blocks is made. For dynapipe_measure() and
// dynapipe_check_model(), which make small ranges and release them; the ranges of training are the program's.
typedef struct {
    const DynapipeModel_v1* api;
    void* ctx;  // the first argument of the functions below
    // One line, no blanks at its ends, that identifies everything its times depend on besides the ranks:
    // "gpt2 C 768 NH 12 Vp 50304 bf16 NVIDIA_H200 threads 1", without the number of layers. Measurements are
    // kept under it.
    const char* signature;
    int32_t num_layers, num_dec_layers;  // all layers of a stack alike
    int32_t vocab;                       // ids of made-up batches are below it
    int32_t max_seq_tokens;              // longest sequence that the model takes; 0: any
    int32_t optimizer_bytes;             // for each parameter, besides itself and its gradient
    DynapipeShapes_v1 shapes;
    // A range. has_values 1: with parameters and gradients where values live, the same values in every range
    // that has the block. 0: to be asked for bytes and counts only; params->params and ->grads are not looked
    // at. *params comes as zeros; params->tied stays the maker's until drop(). Returns 0 or an error.
    int (*make)(void* ctx, DynapipeRange blocks, int has_values, void** model, DynapipeParams_v1* params);
    void (*drop)(void* ctx, void* model);
    // (optional) The end of a step, once: norm of the gradients, optimizer. Its time is part of a step's.
    int (*update)(void* ctx, void* model);
    // (optional) The program's message for an error of a function above; NULL: "error N".
    const char* (*why)(void* ctx);
    void (*reserved[4])(void);  // NULL
    int64_t padded_vocab;       // rows of the head's matrix; 0: vocab
    // Blocks of a layer, before each of which a range may begin: 1 to 3; 0: 1. All layers of a stack are
    // alike, block by block (attention, feed-forward).
    int32_t layer_blocks, dec_layer_blocks;
    // 1: the chain's last block, of several of its layer, computes supervised rows only: what is sent before
    // it, as after it, are (num_rows, C) hidden states and their gradient. 0: all tokens.
    int64_t last_in_rows;
    int64_t reserved_numbers[1];  // 0
} DynapipeBlocks_v1;

typedef struct Dynapipe Dynapipe;
typedef struct DynapipeCosts DynapipeCosts;  // a cost model: dynapipe_measure() makes it

// --- session ---------------------------------------------------------------------------------------------

// Join the ranks (MPI), read the options, on a GPU choose the device. After a failure *out (NULL only where
// memory ran out) is valid for dynapipe_abort() and dynapipe_close(), and dynapipe_error() has the message.
// own_options: names of the program's own --options, each with a value, NULL after the last; they stay in
// argv. NULL: it has none.
int dynapipe_open_as(int32_t header_interface, Dynapipe** out, int* argc, char*** argv,
                     const char* const* own_options);
static inline int dynapipe_open(Dynapipe** out, int* argc, char*** argv, const char* const* own_options) {
    return dynapipe_open_as(DYNAPIPE_INTERFACE, out, argc, argv, own_options);
}
void dynapipe_close(Dynapipe* dp);  // NULL is allowed
const char* dynapipe_error(void);
// Print `why` once and make every other rank stop too; returns only if this rank is alone.
void dynapipe_abort(Dynapipe* dp, const char* why);
// The program's exit status: 2 for wrong options, and where this machine lacks the requested GPUs; else 1.
int dynapipe_exit_status(int error);
void dynapipe_print_options(FILE* out);
void dynapipe_print_version(FILE* out);  // the MPI library; also before dynapipe_open()
const char* dynapipe_option(const Dynapipe* dp,
                            const char* name);  // a string option's value, NULL if not given

int32_t dynapipe_rank(const Dynapipe* dp);  // rank = replica * stages + stage
int32_t dynapipe_num_ranks(const Dynapipe* dp);
int32_t dynapipe_stage(const Dynapipe* dp);
int32_t dynapipe_num_stages(const Dynapipe* dp);  // --stages auto: 1 until dynapipe_choose_stages()
int32_t dynapipe_replica(const Dynapipe* dp);
int32_t dynapipe_num_replicas(const Dynapipe* dp);
uint32_t dynapipe_seed(const Dynapipe* dp);  // --seed
// Cores for this rank's model. The plugin does not set the program's threads: a program with OpenMP calls
// omp_set_num_threads() with it.
int32_t dynapipe_threads(const Dynapipe* dp);

// --- ending early ----------------------------------------------------------------------------------------

// From now on SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 (what mpirun.sh makes of SIGINT) are noted and do not end
// the program (a second SIGINT does); on all ranks, or on none. NULL: before dynapipe_open(), so that signals
// during its wait for the other ranks are noted too. Without this call signals keep their usual effect.
void dynapipe_watch_signals(Dynapipe* dp);
// The signal by which all ranks agree to end, whichever rank received it; 0: none. Agreed on in
// dynapipe_report() (within its usual message), in dynapipe_choose_stages(), and between batches in
// dynapipe_validate() and dynapipe_generate(), which then return early: the loss is NaN, answers are
// incomplete. After that a program saves and ends, with status 130 for SIGINT, else 0.
int32_t dynapipe_stop_signal(const Dynapipe* dp);
// Wall clock since dynapipe_open(), by rank 0's clock at the last dynapipe_report(): the same on all ranks,
// so that they may use it to decide when to save.
double dynapipe_seconds(const Dynapipe* dp);

// --- data ------------------------------------------------------------------------------------------------

typedef struct {
    const char* train_pattern;  // sample files or llm.c token files
    const char* val_pattern;    // NULL: no validation
    int64_t batch_tokens;       // tokens of a step over all ranks, at most
    int32_t max_seq_tokens;     // longest sequence; of an encoder-decoder: longest input
    int32_t max_target_tokens;  // > 0: an encoder-decoder model, and its longest target
    int32_t rows;               // samples per microbatch of --batching padded
    int32_t num_steps;          // planning stops there; -N: N passes over the data
    int32_t zero_stage;         // 1: optimizer state shared among replicas
    int32_t overfit;            // 1: every step trains on the first batch
    int64_t skip_verify;        // 1: sample files are not read through to find damage
    int64_t keeps_layers;       // 1: the program never calls dynapipe_resplit(): --resplit STEP:.. is refused
    int64_t reserved[2];        // 0
} DynapipeRun_v1;

typedef struct {
    int32_t vocab, eot_token, num_tasks;
    int32_t tokenizer;  // SampleTokenizer of dataloader/sample_file.h; 0: unknown
    int32_t pad_token;  // an encoder-decoder's decoder starts with it; -1: none, then with eot_token
    int64_t num_samples, num_tokens, num_truncated, num_skipped;
    int64_t num_val_samples;
    int32_t num_steps;      // of the run
    uint64_t vocab_hash;    // of all tokens' bytes; 0: unknown
    int64_t num_validated;  // samples of the last dynapipe_validate()
    int64_t num_ids;        // every token id is below it; less than vocab in llm.c's token files at most
    int64_t reserved[1];    // zero
} DynapipeDataInfo_v1;

// The data must be the same files on all ranks. During training they read through all of it, each a part: a
// rank that finds a damaged file reports it in its next dynapipe_step(). The last step ends when this is
// done, or the run is told to end.
int dynapipe_open_data(Dynapipe* dp, const DynapipeRun_v1* run);
int dynapipe_data_info(const Dynapipe* dp, DynapipeDataInfo_v1* out);
const char* dynapipe_task_name(const Dynapipe* dp, int32_t task);

// The position in the data after the last step, for a checkpoint. Valid until the next step. Waits until all
// ranks' parts of the data are verified, so that no checkpoint depends on damaged data, or until the run is
// told to end (dynapipe_stop_signal(); a run that resumes from its checkpoint reads the data again): a
// collective, all ranks ask before one writes; after that, any rank may ask again alone until the next step.
// dynapipe_restore() refuses the position of a run on other contents.
int dynapipe_position(const Dynapipe* dp, const void** out, size_t* num_bytes);
int dynapipe_restore(Dynapipe* dp, const void* position, size_t num_bytes, int32_t step);

// --- model -----------------------------------------------------------------------------------------------

// The stream on which the model will compute (a cudaStream_t of the current device, which dynapipe_open() has
// set), before dynapipe_choose_stages(). On a CPU: NULL, or no call. Connects the ranks' GPUs; `stream` must
// live until dynapipe_close().
int dynapipe_use_stream(Dynapipe* dp, void* stream);

// The model's costs on these ranks, in time and bytes, measured by running small ranges of it, on made-up
// batches of the shapes of the data, on all ranks at once; and how ranks and links differ. Takes seconds,
// once: the numbers are kept in a file under blocks->signature and the ranks (--costs names a file to use
// unchanged instead). After dynapipe_open_data() and dynapipe_use_stream(). *out goes to
// dynapipe_choose_stages(). A collective.
int dynapipe_measure(Dynapipe* dp, const DynapipeBlocks_v1* blocks, DynapipeCosts** out);

// Does this model keep the rules of DynapipeModel_v1? On tiny batches: bytes as promised and no byte beyond
// them, the recomputed forward gives the same, the split backward gives the joint one's, gradients are those
// of finite differences, ranges compose to the whole, grouping and padding change nothing. One line for each
// finding to `out` (NULL: nowhere); an error if there is one. For tests of a port, on a small model; one rank
// is enough.
int dynapipe_check_model(Dynapipe* dp, const DynapipeBlocks_v1* blocks, FILE* out);

// Place the model's blocks on the ranks for this mixture: out[*num_ranges] are this rank's, in the chain's
// order, its share of the head, if there is one, last. A program with max_ranges 1 gets one. Takes ownership
// of costs.
int dynapipe_choose_stages(Dynapipe* dp, DynapipeCosts* costs, DynapipeRange* out, int32_t max_ranges,
                           int32_t* num_ranges);
// How the stages of a replica share the head: DynapipeHead. By rows or by vocabulary, stage s has rows or ids
// from begin[s] / 1024 of them to begin[s + 1] / 1024 (ids rounded down to 16, but the end); begin has room
// for max_begins, num_stages + 1 are there.
int32_t dynapipe_head(const Dynapipe* dp, int32_t* begin, int32_t max_begins);
// The model of range `idx`; once for each. The first step needs all of them. params: of all ranges of this
// rank together, one flat array with one copy of what several of them have (a tied matrix); with range 0,
// NULL with the others.
int dynapipe_attach(Dynapipe* dp, int32_t idx, const DynapipeModel_v1* api, void* model,
                    const DynapipeParams_v1* params);

// --- training --------------------------------------------------------------------------------------------

typedef struct {
    double loss;                // mean over the step's supervised tokens, all ranks
    int64_t supervised_tokens;  // of the whole step
    int64_t total_tokens;       // without padding
    int64_t computed_tokens;    // with padding
    const double* task_loss;    // (num_tasks) mean; NaN where the step had none of that task
    int64_t dec_tokens;         // of total_tokens, those of a decoder after an encoder; 0 without
    // Sums over the step's samples: squared tokens, those of a decoder, encoder tokens times decoder tokens.
    int64_t squares, dec_squares, cross_products;
} DynapipeStep_v1;

int dynapipe_step(Dynapipe* dp, DynapipeStep_v1* out);
// The parameters whose reduced gradients this rank has and which it updates.
void dynapipe_shard(const Dynapipe* dp, int64_t* begin, int64_t* end);
// The values that this rank counts where all of the model count once, ascending: its shard, without tied
// copies that another rank counts. So the norm of the gradients is the root of dynapipe_sum() of their
// squares over these.
typedef struct {
    int64_t begin, end;
} DynapipeSpan;
int dynapipe_counted(const Dynapipe* dp, DynapipeSpan* out, int32_t max_spans, int32_t* num_spans);
// After the update, every step: with zero_stage 1, replicas exchange their shards of the parameters.
int dynapipe_share_params(Dynapipe* dp);
// Sum over all ranks, in rank order: the same bits everywhere.
int dynapipe_sum(Dynapipe* dp, double* values, int32_t num_values);

typedef struct {
    int32_t step;  // counted from 1
    double norm, lr;
    double loss_z, norm_z;  // standard deviations above the recent mean; NaN: too early
    const char* log_dir;    // where metrics.jsonl goes; NULL: nowhere
    double flops;           // model FLOPs of the step, without padding and recomputation ...
    double peak_flops;      // ... and FLOP/s of all ranks together at most, for MFU; 0: not known
    int64_t reserved[2];    // 0
} DynapipeReport_v1;
// One line on rank 0's terminal, one line in metrics.jsonl, the --trace and --debug print-plan of their step.
// A failed write to metrics.jsonl is no error: rank 0 prints a warning.
int dynapipe_report(Dynapipe* dp, const DynapipeReport_v1* report);

// --- layers that move ------------------------------------------------------------------------------------

// Between two steps, after dynapipe_report() or dynapipe_restore(): shall layers move between ranks?
// *num_ranges 0: no. Else `out` has the ranges of this rank from now on (--resplit), and before the next
// step, on all ranks,
//     make the models of the new ranges, dynapipe_attach() each (the session has none of them any more)
//     dynapipe_move() what is in the old ones: parameters, all that the optimizer keeps; dynapipe_shard()
//         has the new shards
//     drop the old ones
// The old gradients are no longer needed. A program that never asks keeps its layers. A collective; it may
// take the time of planning some steps again.
int dynapipe_resplit(Dynapipe* dp, DynapipeRange* out, int32_t max_ranges, int32_t* num_ranges);

// Values [begin, begin + count) of an array of the whole model, in the program's own numbering: the same key
// and the same value on all ranks, however the model is cut.
typedef struct {
    uint64_t key;  // of the array: parameters, first moments ...
    int64_t begin, count;
    int32_t bytes_per_value;
    void* values;         // (count) where values live
    int64_t reserved[2];  // 0
} DynapipePiece_v1;
// Fills what this rank wants with what ranks have, copies of which are alike. Point to point, in bounded
// memory. Pieces must not overlap in memory. A collective.
int dynapipe_move(Dynapipe* dp, const DynapipePiece_v1* have, int32_t num_have, const DynapipePiece_v1* want,
                  int32_t num_want);

// A line of metrics.jsonl on the validation after `step` steps. Lists by task, NaN where there is no value;
// NULL: none.
typedef struct {
    int32_t step;
    double loss;
    const double *task_loss, *exact_match, *rouge_l;  // (num_tasks); shares of 1
    const char* log_dir;                              // NULL: nowhere
    int64_t reserved[4];                              // 0
} DynapipeValidation_v1;
int dynapipe_report_validation(Dynapipe* dp, const DynapipeValidation_v1* validation);
// Lines of metrics.jsonl that could not be written so far, on rank 0, for the program's exit status.
int64_t dynapipe_lost_lines(const Dynapipe* dp);

// Mean loss on about max_samples of the validation data (< 0: all), equally many of each task and at least
// one, on the same pipeline. They depend only on the data. A task's weight is its share of all of the
// validation data. task_loss: (num_tasks), NaN for none; may be NULL.
int dynapipe_validate(Dynapipe* dp, int32_t max_samples, double* loss, double* task_loss);

// The model's answer to a validation sample; ids of the data's vocabulary.
typedef struct {
    int32_t task;
    int32_t num_prompt, num_target, num_answer;
    const int32_t *prompt, *target, *answer;  // the target ends with end-of-text, the answer without
} DynapipeAnswer_v1;

// Numbers of validation samples, up to per_task of each task, spread over it; samples that are plain text,
// without an input, are left out. out: room for per_task * num_tasks.
int dynapipe_pick_samples(const Dynapipe* dp, int32_t per_task, int64_t* out, int32_t* num_samples);
// Greedy answers to these validation samples, at most max_tokens ids each; *out [num_samples] on every rank,
// valid until the next call of this or of dynapipe_validate(). A collective.
int dynapipe_generate(Dynapipe* dp, const int64_t* samples, int32_t num_samples, int32_t max_tokens,
                      const DynapipeAnswer_v1** out);

#ifdef __cplusplus
}
#endif
