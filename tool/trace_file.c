#include "trace_file.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../util/files.h"
#include "../dynapipe_plugin/plan/lists/plan_words.h"

static const char REMEDY[] = "give a file that the trainer's --trace wrote";

// Days: what is added up stays far from the ends of 64 bits.
#define MOST_NS (INT64_C(1) << 50)

static Status fail_event(const char* path, size_t idx, const char* why) {
    return FAIL(STATUS_BAD_FORMAT, "%s: event %zu: %s ---> %s", path, idx, why, REMEDY);
}

static bool read_int(int64_t* out, const json_t* object, const char* key, int64_t least, int64_t most) {
    const json_t* value = json_object_get(object, key);
    if (!json_is_integer(value)) { return false; }
    *out = json_integer_value(value);
    return *out >= least && *out <= most;
}

static int64_t int_or(const json_t* object, const char* key, int64_t least, int64_t most, int64_t otherwise) {
    int64_t value;
    return read_int(&value, object, key, least, most) ? value : otherwise;
}

// Names are shown: letters of the planner's own words only.
static void read_name(char* out, size_t out_bytes, const json_t* object, const char* key) {
    const char* text = json_string_value(json_object_get(object, key));
    bool fits = text != NULL && strlen(text) < out_bytes && plan_name_is_valid(text);
    snprintf(out, out_bytes, "%s", fits ? text : "?");
}

static int32_t kind_of(const json_t* args) {
    const char* text = json_string_value(json_object_get(args, "kind"));
    for (int32_t kind = 0; kind < TRACE_KIND_COUNT && text != NULL; kind++) {
        if (strcmp(text, trace_kind_text(kind)) == 0) { return kind; }
    }
    return -1;
}

static Status read_placement(Placement* out, const json_t* other, int32_t P, const char* path) {
    const json_t *stage_of = json_object_get(other, "stage_of"),
                 *shares = json_object_get(other, "head_begin");
    size_t num_chunks = json_array_size(stage_of), num_shares = json_array_size(shares);
    int64_t head;
    bool good = num_chunks >= 1 && num_chunks <= PLAN_MAX_CHUNKS &&
                read_int(&head, other, "head", 0, HEAD_COUNT - 1) &&
                num_shares == (head == HEAD_WHOLE ? 0 : (size_t)P + 1);
    for (size_t k = 0; good && k < num_chunks; k++) {
        json_int_t s = json_integer_value(json_array_get(stage_of, k));
        good = json_is_integer(json_array_get(stage_of, k)) && s >= 0 && s < P;
        out->stage_of[k] = (int16_t)s;
    }
    for (size_t s = 0; good && s < num_shares; s++) {
        json_int_t units = json_integer_value(json_array_get(shares, s));
        good = units >= (s > 0 ? out->head_begin[s - 1] : 0) && units <= HEAD_UNITS;
        out->head_begin[s] = (int16_t)units;
    }
    if (!good) {
        return FAIL(STATUS_BAD_FORMAT, "%s: otherData: no stages of chunks and shares of the head ---> %s",
                    path, REMEDY);
    }
    out->num_chunks = (int32_t)num_chunks;
    out->head = (uint8_t)head;
    return STATUS_OK;
}

static Status read_head(TraceFile* out, const json_t* root, const char* path, Arena* arena) {
    const json_t* other = json_object_get(root, "otherData");
    const char* format = json_string_value(json_object_get(other, "format"));
    int64_t P, R;
    if (format == NULL || strcmp(format, TRACE_FORMAT) != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: otherData has no format \"%s\" ---> %s", path, TRACE_FORMAT,
                    REMEDY);
    }
    if (!read_int(&P, other, "stages", 1, PLAN_MAX_STAGES) ||
        !read_int(&R, other, "replicas", 1, PLAN_MAX_REPLICAS)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: otherData: stages and replicas of 1 to %d and %d ---> %s", path,
                    PLAN_MAX_STAGES, PLAN_MAX_REPLICAS, REMEDY);
    }
    out->P = (int32_t)P;
    out->R = (int32_t)R;
    TRY(read_placement(&out->placement, other, out->P, path));
    const json_t* clocks = json_object_get(other, "clocks");
    for (size_t i = 0; i < json_array_size(clocks); i++) {
        const json_t* one = json_array_get(clocks, i);
        int64_t error_ns = int_or(one, "error_ns", 0, MOST_NS, 0);
        if (error_ns < out->worst_clock.error_ns) { continue; }
        out->worst_clock = (TraceClock){int_or(one, "offset_ns", -INT64_MAX, INT64_MAX, 0), error_ns};
    }
    out->ranks = ARENA_NEW(arena, TraceFileRank, P * R);
    return out->ranks != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "%s: no memory for it", path);
}

static Status read_step(TraceFile* out, const json_t* args, const char* path, size_t idx) {
    if (!read_int(&out->step, args, "step", 0, INT32_MAX)) { return fail_event(path, idx, "no step"); }
    read_name(out->plan_hash, sizeof out->plan_hash, args, "plan_hash");
    read_name(out->policy, sizeof out->policy, args, "policy");
    read_name(out->schedule, sizeof out->schedule, args, "schedule");
    SessionErrors* errors = &out->errors;
    out->has_errors = read_int(&errors->predicted_ns, args, "predicted_ns", 1, MOST_NS) &&
                      read_int(&errors->measured_ns, args, "measured_ns", 1, MOST_NS) &&
                      read_int(&errors->jobs_ns, args, "jobs_off_ns", -MOST_NS, MOST_NS) &&
                      read_int(&errors->transfers_ns, args, "transfers_off_ns", -MOST_NS, MOST_NS);
    errors->waiting_ns = errors->measured_ns - errors->predicted_ns - errors->jobs_ns - errors->transfers_ns;
    return STATUS_OK;
}

// Viewers show dur (us), to a ns; the times of args count here.
static Status check_dur(const json_t* event, int64_t ns, const char* path, size_t idx) {
    const json_t* dur = json_object_get(event, "dur");
    double apart_ns = dur == NULL ? 0 : json_number_value(dur) * 1e3 - (double)ns;
    if ((dur == NULL || json_is_number(dur)) && fabs(apart_ns) <= 1 + 1e-9 * (double)ns) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: event %zu: its dur is %.3f us, from begin_ns to end_ns it is %.3f us ---> %s", path, idx,
                json_number_value(dur), (double)ns / 1e3, REMEDY);
}

// Of an instruction, on a rank of stage s; -1: there is none like it.
static int32_t row_of(const TraceFile* trace, const TraceEvent* event, int32_t s) {
    PlanInstr instr = {.kind = (uint8_t)event->kind, .chunk = (int16_t)event->chunk, .peer = event->peer};
    int32_t row = plan_instr_row(&trace->placement, trace->P, &instr);
    if (row < 0) { return -1; }
    PlanJobAt at = {.stage = (int16_t)placement_stage_of(&trace->placement, row)};
    PlanMessage message;
    if (plan_message_of(&message, &trace->placement, trace->P, &instr)) {
        at = plan_instr_is_recv(event->kind) ? plan_message_reader(&trace->placement, message)
                                             : plan_message_maker(&trace->placement, message);
    }
    return at.stage == s ? row : -1;
}

static Status read_event(TraceFileEvent* out, TraceFile* trace, int32_t rank, const json_t* event,
                         const char* path, size_t idx) {
    const json_t* args = json_object_get(event, "args");
    int64_t begin_ns, end_ns;
    int32_t kind = kind_of(args);
    if (kind < 0) { return fail_event(path, idx, "no such kind"); }
    int64_t mb = int_or(args, "mb", 0, TRACE_MAX_MBS - 1, -1);
    if (kind < INSTR_COUNT && mb < 0) { return fail_event(path, idx, "no such micro-batch"); }
    if (!read_int(&begin_ns, args, "begin_ns", 0, MOST_NS) ||
        !read_int(&end_ns, args, "end_ns", begin_ns, MOST_NS)) {
        return fail_event(path, idx, "times that cannot be");
    }
    TRY(check_dur(event, end_ns - begin_ns, path, idx));
    int32_t num_rows = placement_num_rows(&trace->placement, trace->P);
    *out = (TraceFileEvent){.event = {.kind = kind,
                                      .chunk = (int32_t)int_or(args, "chunk", 0, num_rows - 1, -1),
                                      .mb = (int32_t)mb,
                                      .peer = (int32_t)int_or(args, "peer", 0, trace->P * trace->R - 1, -1),
                                      .begin_ns = begin_ns,
                                      .end_ns = end_ns,
                                      .wait_ns = int_or(args, "wait_ns", 0, MOST_NS, 0)},
                            .row = -1,
                            .planned_ns = int_or(args, "planned_ns", 0, MOST_NS, -1)};
    if (kind < INSTR_COUNT) {
        out->row = row_of(trace, &out->event, rank % trace->P);
        if (out->row < 0) { return fail_event(path, idx, "no such chunk on this rank"); }
    }
    if (mb >= trace->M) { trace->M = (int32_t)mb + 1; }
    return STATUS_OK;
}

// Process 2 is what was measured.
static bool is_measured(const json_t* event, const char* category) {
    const char* cat = json_string_value(json_object_get(event, "cat"));
    const char* phase = json_string_value(json_object_get(event, "ph"));
    if (phase != NULL && strcmp(phase, "X") != 0) { return false; }  // names, arrows, memory
    bool is_step = cat != NULL && strcmp(cat, "step") == 0;
    return int_or(event, "pid", 0, 9, 0) == 2 && cat != NULL && is_step == (strcmp(category, "step") == 0);
}

static Status find_step(TraceFile* out, const json_t* events, const char* path) {
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t* event = json_array_get(events, i);
        if (is_measured(event, "step")) { return read_step(out, json_object_get(event, "args"), path, i); }
    }
    return FAIL(STATUS_BAD_FORMAT, "%s: no step was measured ---> %s", path, REMEDY);
}

// Twice over the events: how many each rank has, then what they are.
static Status read_events(TraceFile* out, const json_t* events, const char* path, Arena* arena) {
    size_t num_events = json_array_size(events);
    if (num_events > TRACE_MAX_EVENTS) {
        return FAIL(STATUS_BAD_FORMAT, "%s: more than %d events ---> trace one step", path, TRACE_MAX_EVENTS);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < num_events; i++) {
            const json_t *event = json_array_get(events, i), *args = json_object_get(event, "args");
            int64_t rank, step;
            if (!is_measured(event, "event")) { continue; }
            if (!read_int(&rank, args, "rank", 0, out->P * out->R - 1) ||
                !read_int(&step, args, "step", 0, INT32_MAX)) {
                return fail_event(path, i, "no such rank or step");
            }
            if (step != out->step) { continue; }
            TraceFileRank* of = &out->ranks[rank];
            if (pass == 1) {
                TRY(read_event(&of->events[of->num_events], out, (int32_t)rank, event, path, i));
            }
            of->num_events++;
        }
        for (int32_t r = 0; r < out->P * out->R && pass == 0; r++) {
            out->ranks[r].events = ARENA_NEW(arena, TraceFileEvent, out->ranks[r].num_events);
            if (out->ranks[r].events == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for it", path); }
            out->ranks[r].num_events = 0;
        }
    }
    return STATUS_OK;
}

static Status read_root(TraceFile* out, const json_t* root, const char* path, Arena* arena) {
    const json_t* events = json_object_get(root, "traceEvents");
    TRY(read_head(out, root, path, arena));
    TRY(find_step(out, events, path));
    return read_events(out, events, path, arena);
}

Status trace_file_load(TraceFile* out, const char* path, Arena* arena) {
    char* text;
    size_t num_bytes;
    json_error_t error;
    TRY(file_read_text(&text, &num_bytes, path));
    json_t* root = json_loadb(text, num_bytes, 0, &error);
    free(text);
    if (root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: %s ---> %s", path, error.line, error.text, REMEDY);
    }
    TraceFile trace = {0};
    Status status = read_root(&trace, root, path, arena);
    json_decref(root);
    if (status == STATUS_OK) { *out = trace; }
    return status;
}
