// plan_print.c -- a plan as stable text, one thing per line:
//
//     dynapipe-plan 2
//     stages 2 replicas 1 chunks 2 microbatches 1 samples 2 sequences 2 segments 2
//     policy dynamic schedule 1f1b                                      ... pulls: receivers take messages
//     memory_limit_bytes 0 makespan_ns 900 bound_ns 800
//     hash 4f0c1d2e3a5b6978
//     chunk 0 stage 0 layers 0 6
//     head whole                     ... rows 512 512, vocabulary 300 724: HEAD_UNITS of each stage
//     mb 0 replica 0 layout ragged recompute none,full sequences 2  shape 2 48 1280 0 0 0 12
//       seq enc 32 dec 0 segments 1
//         sample 1 first 0 tokens 32
//     rank 0 instrs 9 buffers 6 arena_bytes 4096 state_bytes 100        ... limit_bytes 8000: a limit of its
//     own
//       fwd        chunk 0 mb 0  begin 0 end 100
//       send_act   chunk 0 mb 0  peer 1  begin 100 end 120
//       buffer acts    chunk 0 mb 0  offset 0 bytes 1000  live 0 8
//     end
#include <inttypes.h>

#include "../../../util/program.h"
#include "../pipe/timeline_row.h"
#include "plan_words.h"

static void print_placement(const Plan* plan, FILE* out) {
    const Placement* placement = &plan->placement;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        fprintf(out, "chunk %d stage %d layers %d %d\n", k, placement->stage_of[k],
                placement->chunks[k].layer_begin, placement->chunks[k].layer_end);
    }
    fprintf(out, "head %s", plan_head_words[placement->head]);
    for (int32_t s = 0; s < plan->P && placement->head != HEAD_WHOLE; s++) {
        fprintf(out, " %d", placement->head_begin[s + 1] - placement->head_begin[s]);
    }
    fprintf(out, "\n");
}

static void print_microbatch(const Plan* plan, int32_t m, FILE* out) {
    const PlanMicrobatch* mb = &plan->mbs[m];
    const MbShape* shape = &mb->shape;
    fprintf(out, "mb %d replica %d layout %s recompute ", m, mb->replica, plan_layout_words[mb->layout]);
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        fprintf(out, "%s%s", k > 0 ? "," : "", plan_recompute_words[mb->recompute[k]]);
    }
    fprintf(out,
            " sequences %d  shape %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
            " %" PRId64 "\n",
            mb->sequence_end - mb->sequence_begin, shape->num_seqs, shape->enc_tokens, shape->enc_squares,
            shape->dec_tokens, shape->dec_squares, shape->cross_products, shape->supervised_tokens);
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        const PlanSequence* seq = &plan->sequences[i];
        fprintf(out, "  seq enc %d dec %d segments %d\n", seq->enc_tokens, seq->dec_tokens,
                seq->segment_end - seq->segment_begin);
        for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
            const PlanSegment* segment = &plan->segments[k];
            fprintf(out, "    sample %d first %d tokens %d\n", segment->sample_idx, segment->first_token,
                    segment->num_tokens);
        }
    }
}

static void print_rank(const Plan* plan, int32_t r, FILE* out) {
    const PlanRank* rank = &plan->ranks[r];
    fprintf(out, "rank %d instrs %d buffers %d arena_bytes %" PRId64 " state_bytes %" PRId64, r,
            rank->num_instrs, rank->num_buffers, rank->arena_bytes, rank->state_bytes);
    if (rank->own_limit_bytes > 0) { fprintf(out, " limit_bytes %" PRId64, rank->own_limit_bytes); }
    fprintf(out, "\n");
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        fprintf(out, "  %-9s chunk %d mb %d", plan_instr_words[instr->kind], instr->chunk, instr->mb);
        if (!plan_instr_is_job((InstrKind)instr->kind)) { fprintf(out, "  peer %d", instr->peer); }
        fprintf(out, "  begin %" PRId64 " end %" PRId64 "\n", instr->begin_ns, instr->end_ns);
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        const PlanBuffer* buffer = &rank->buffers[i];
        fprintf(out, "  buffer %-7s chunk %d mb %d  offset %" PRId64 " bytes %" PRId64 "  live %d %d\n",
                plan_buffer_words[buffer->kind], buffer->chunk, buffer->mb, buffer->offset_bytes,
                buffer->num_bytes, buffer->instr_begin, buffer->instr_end);
    }
}

void plan_print(const Plan* plan, FILE* out) {
    fprintf(out, PLAN_MAGIC "\n");
    fprintf(out, "stages %d replicas %d chunks %d microbatches %d samples %d sequences %d segments %d\n",
            plan->P, plan->R, plan->placement.num_chunks, plan->M, plan->N, plan->num_sequences,
            plan->num_segments);
    fprintf(out, "policy %s schedule %s%s\n", plan->policy, plan->schedule, plan->pulls ? " pulls" : "");
    fprintf(out, "memory_limit_bytes %" PRId64 " makespan_ns %" PRId64 " bound_ns %" PRId64 "\n",
            plan->memory_limit_bytes, plan->makespan_ns, plan->bound_ns);
    fprintf(out, "hash %016" PRIx64 "\n", plan_hash(plan));
    print_placement(plan, out);
    for (int32_t m = 0; m < plan->M; m++) { print_microbatch(plan, m, out); }
    for (int32_t r = 0; r < plan->P * plan->R; r++) { print_rank(plan, r, out); }
    fprintf(out, "end\n");
}

// --- for people ------------------------------------------------------------------------------------------

// (Encoder) tokens that are not padding.
static int64_t real_tokens(const Plan* plan, const PlanMicrobatch* mb) {
    int64_t tokens = 0;
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        for (int32_t k = plan->sequences[i].segment_begin; k < plan->sequences[i].segment_end; k++) {
            tokens += plan->segments[k].num_tokens;
        }
    }
    return tokens;
}

static const char* recompute_summary(const Plan* plan, const PlanMicrobatch* mb) {
    for (int32_t k = 1; k < plan->placement.num_chunks; k++) {
        if (mb->recompute[k] != mb->recompute[0]) { return "mixed"; }
    }
    return plan_recompute_words[mb->recompute[0]];
}

static bool has_two_sides(const Plan* plan) {
    for (int32_t m = 0; m < plan->M; m++) {
        if (plan->mbs[m].shape.dec_tokens > 0) { return true; }
    }
    return false;
}

// "512", or of an encoder-decoder model "512+114".
static void counts_print(char out[48], int64_t enc, int64_t dec, bool two) {
    if (two) {
        snprintf(out, 48, "%" PRId64 "+%" PRId64, enc, dec);
    } else {
        snprintf(out, 48, "%" PRId64, enc);
    }
}

void plan_print_microbatches(const Plan* plan, FILE* out) {
    fprintf(out, "%d micro-batches of %d samples, %d stages x %d replicas, policy %s, schedule %s\n", plan->M,
            plan->N, plan->P, plan->R, plan->policy, plan->schedule);
    fprintf(out, "predicted %s, bound %s (%.2f x)\n", TIME_TEXT(plan->makespan_ns, 6),
            TIME_TEXT(plan->bound_ns, 6),
            plan->bound_ns > 0 ? (double)plan->makespan_ns / (double)plan->bound_ns : 1.0);
    const bool two = has_two_sides(plan);
    fprintf(out, "  mb     replica  layout  sequences  %*s  %*s  padding  supervised  recompute\n",
            two ? 11 : 7, "longest", two ? 13 : 7, "tokens");
    int32_t first = 0;
    for (int32_t m = 0; m < plan->M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[m];
        if (m > 0 && mb->replica != mb[-1].replica) { first = m; }
        int32_t longest = 0, longest_dec = 0;
        for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
            const PlanSequence* seq = &plan->sequences[i];
            if (seq->enc_tokens > longest) { longest = seq->enc_tokens; }
            if (seq->dec_tokens > longest_dec) { longest_dec = seq->dec_tokens; }
        }
        char longest_text[48], tokens_text[48];
        counts_print(longest_text, longest, longest_dec, two);
        counts_print(tokens_text, mb->shape.enc_tokens, mb->shape.dec_tokens, two);
        int64_t tokens = mb->shape.enc_tokens, padding = tokens - real_tokens(plan, mb);
        fprintf(out, "  %-4d %s %7d  %-6s  %9" PRId64 "  %*s  %*s  %5.1f %%  %10" PRId64 "  %s\n", m,
                timeline_letter(m - first), mb->replica, plan_layout_words[mb->layout], mb->shape.num_seqs,
                two ? 11 : 7, longest_text, two ? 13 : 7, tokens_text,
                tokens > 0 ? 100.0 * (double)padding / (double)tokens : 0.0, mb->shape.supervised_tokens,
                recompute_summary(plan, mb));
    }
}

// Some stage has more than one chunk, or a share.
static bool is_placed(const Plan* plan) {
    return plan->placement.num_chunks > plan->P || plan->placement.head != HEAD_WHOLE;
}

// ": layers 0-3 18-20, a quarter of the head" of a stage; nothing where every stage has one chunk.
static void print_rows_of_stage(const Plan* plan, int32_t s, FILE* out) {
    const Placement* placement = &plan->placement;
    int32_t num = 0;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        LayerRange layers = placement->chunks[k];
        if (placement->stage_of[k] != s) { continue; }
        fprintf(out, "%s", num++ == 0 ? ": layers" : "");
        fprintf(out, " %d-%d", layers.layer_begin, layers.layer_end);
    }
    if (!placement_has_share(placement, s)) { return; }
    double percent = 100.0 * (placement->head_begin[s + 1] - placement->head_begin[s]) / HEAD_UNITS;
    fprintf(out, "%s%.1f %% of the head's %s", num > 0 ? ", " : ": ", percent,
            plan_head_words[placement->head]);
}

void plan_print_table(const Plan* plan, FILE* out) {
    plan_print_microbatches(plan, out);
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        const PlanRank* rank = &plan->ranks[r];
        fprintf(out, "  rank %d (replica %d, stage %d", r, r / plan->P, r % plan->P);
        if (is_placed(plan)) { print_rows_of_stage(plan, r % plan->P, out); }
        fprintf(out, is_placed(plan) ? "):\n    " : "): ");
        fprintf(out, "%s of activations, %s of model state\n", BYTES_TEXT(rank->arena_bytes),
                BYTES_TEXT(rank->state_bytes));
    }
}

static void print_stage(const Plan* plan, int32_t r, int32_t s, int32_t first_mb, int32_t width, FILE* out) {
    const PlanRank* rank = &plan->ranks[r * plan->P + s];
    TimelineRow row;
    timeline_row_open(&row, s, plan->makespan_ns, width, out);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        timeline_row_add(&row, plan_instr_job((InstrKind)instr->kind), instr->mb - first_mb, instr->begin_ns,
                         instr->end_ns);
    }
    timeline_row_close(&row);
    if (!is_placed(plan)) { return; }
    timeline_row_open_chunks(&row, s, plan->makespan_ns, width, out);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        timeline_row_add_chunk(&row, instr->chunk, instr->chunk >= plan->placement.num_chunks,
                               instr->begin_ns, instr->end_ns);
    }
    timeline_row_close_chunks(&row);
}

void plan_print_timeline(const Plan* plan, int32_t width, FILE* out) {
    fprintf(out, "%s; " TIMELINE_LEGEND "%s\n", TIME_TEXT(plan->makespan_ns, 4),
            is_placed(plan) ? TIMELINE_CHUNKS : "");
    int32_t first = 0;
    for (int32_t r = 0; r < plan->R; r++) {
        while (first < plan->M && plan->mbs[first].replica < r) { first++; }
        if (plan->R > 1) { fprintf(out, "replica %d\n", r); }
        for (int32_t s = 0; s < plan->P; s++) { print_stage(plan, r, s, first, width, out); }
    }
}
