#include "transport_cases.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"
#include "ranks.h"

// One message of one pair, as both ends compute it from the seed.
typedef struct {
    int32_t peer, tag;
    bool is_receive;
    size_t num_bytes;
    uint64_t content;
    unsigned char* data;
    void* request;
    bool done;
} Message;

static void fill(unsigned char* data, size_t num_bytes, uint64_t content) {
    for (size_t i = 0; i < num_bytes; i++) { data[i] = (unsigned char)rng_mix(content + i); }
}

static bool is_filled(const unsigned char* data, size_t num_bytes, uint64_t content) {
    for (size_t i = 0; i < num_bytes; i++) {
        if (data[i] != (unsigned char)rng_mix(content + i)) { return false; }
    }
    return true;
}

static Message message_make(uint64_t seed, int32_t src, int32_t dst, int32_t k, bool is_receive) {
    static const int32_t tags[] = {0, 1, 4711, TRANSPORT_TAG_END - 1};
    static const uint32_t most_bytes[] = {1, 2, 100, 5000, 100000, 1300000};
    Rng rng = rng_seed(seed * 1000003 + (uint64_t)(src * 1009 + dst) * 10007 + (uint64_t)k);
    Message m = {.peer = is_receive ? src : dst, .is_receive = is_receive};
    m.tag = tags[rng_below(&rng, 4)];
    m.num_bytes = rng_below(&rng, most_bytes[rng_below(&rng, 100) == 0 ? 5 : rng_below(&rng, 5)]);
    m.content = rng_u64(&rng);
    return m;
}

static Status message_post(Transport* t, Message* m) {
    m->data = malloc(m->num_bytes + 1);
    EXPECT(m->data != NULL);
    if (m->is_receive) { return t->api->irecv(t->ctx, m->peer, m->tag, m->data, m->num_bytes, &m->request); }
    fill(m->data, m->num_bytes, m->content);
    return t->api->isend(t->ctx, m->peer, m->tag, m->data, m->num_bytes, &m->request);
}

static Status message_test(Transport* t, Message* m, int32_t* num_left) {
    int done = 0;
    TRY(t->api->test(t->ctx, m->request, &done));
    if (!done) { return STATUS_OK; }
    m->done = true;
    EXPECT(!m->is_receive || is_filled(m->data, m->num_bytes, m->content));
    free(m->data);
    m->data = NULL;
    --*num_left;
    return STATUS_OK;
}

// Post the queues (one per peer and direction, each in its order) interleaved at random, polling in between.
static Status exchange(Transport* t, Rng* rng, Message* all, int32_t num_queues, int32_t num_messages) {
    int32_t total = num_queues * num_messages, num_left = total, num_posted = 0;
    int32_t* next = calloc((size_t)num_queues, sizeof *next);
    EXPECT(next != NULL);
    Status status = STATUS_OK;
    while (num_left > 0 && status == STATUS_OK) {
        int32_t q = (int32_t)rng_below(rng, (uint32_t)num_queues);
        if (next[q] < num_messages) {
            status = message_post(t, &all[q * num_messages + next[q]++]);
            num_posted++;
            continue;
        }
        if (num_posted < total && rng_below(rng, 4) > 0) { continue; }
        for (int32_t i = 0; i < total && status == STATUS_OK; i++) {
            Message* m = &all[(i + q) % total];
            if (m->request != NULL && !m->done) { status = message_test(t, m, &num_left); }
        }
    }
    free(next);
    return status;
}

Status transport_cases_exchange(Transport* t, uint64_t seed, int32_t num_messages) {
    int32_t num_queues = 2 * (t->num_ranks - 1), q = 0;
    Message* all = calloc((size_t)(num_queues * num_messages) + 1, sizeof *all);
    EXPECT(all != NULL);
    for (int32_t peer = 0; peer < t->num_ranks; peer++) {
        if (peer == t->rank) { continue; }
        for (int32_t k = 0; k < num_messages; k++) {
            all[q * num_messages + k] = message_make(seed, t->rank, peer, k, false);
            all[(q + 1) * num_messages + k] = message_make(seed, peer, t->rank, k, true);
        }
        q += 2;
    }
    Rng rng = rng_seed(seed + 77 * (uint64_t)t->rank);
    Status status = num_queues > 0 ? exchange(t, &rng, all, num_queues, num_messages) : STATUS_OK;
    if (status == STATUS_OK) { free(all); }  // else buffers may still be in flight
    return status;
}

Status transport_cases_large(Transport* t, size_t num_bytes) {
    if (t->rank > 1) { return STATUS_OK; }
    unsigned char *out = malloc(num_bytes), *in = malloc(num_bytes);
    EXPECT(out != NULL && in != NULL);
    int32_t peer = 1 - t->rank;
    void *send, *receive;
    memset(out, 11 + t->rank, num_bytes);
    fill(out, num_bytes < 4096 ? num_bytes : 4096, (uint64_t)t->rank);
    fill(out + num_bytes / 2, num_bytes < 8192 ? 0 : 4096, 5 + (uint64_t)t->rank);
    TRY(t->api->isend(t->ctx, peer, 9, out, num_bytes, &send));
    TRY(t->api->irecv(t->ctx, peer, 9, in, num_bytes, &receive));
    TRY(ranks_wait(t, receive));
    TRY(ranks_wait(t, send));
    memset(out, 11 + peer, num_bytes);
    fill(out, num_bytes < 4096 ? num_bytes : 4096, (uint64_t)peer);
    fill(out + num_bytes / 2, num_bytes < 8192 ? 0 : 4096, 5 + (uint64_t)peer);
    EXPECT(memcmp(in, out, num_bytes) == 0);
    free(out);
    free(in);
    return STATUS_OK;
}

Status transport_cases_mismatch(Transport* t, size_t sent_bytes, size_t expected_bytes) {
    static unsigned char zeros[1 << 20], received[1 << 20];  // static: it may still be in flight at the end
    EXPECT(expected_bytes <= sizeof received && sent_bytes <= sizeof zeros);
    void* request;
    if (t->rank == 0) {
        TRY(t->api->isend(t->ctx, 1, 3, zeros, sent_bytes, &request));
    } else {
        TRY(t->api->irecv(t->ctx, 0, 3, received, expected_bytes, &request));
    }
    return ranks_wait(t, request);
}
