// links_main.c -- messages between any ranks on GPUs, by NCCL and through pinned memory: the peers of random
// placements are connected, in two goes, and exchange messages in a random order, some of them to or from all
// of a rank's peers at once; test/test_cuda_train.sh drives it.
//     mpirun -np 4 cuda_links nccl|mpi
//     mpirun -np 4 cuda_links nccl-late    the second go connects nothing: what messages then take is memory
//     mpirun -np 4 cuda_links mpi-late     ... and here they have no way
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"
#include "../../dynapipe_plugin/cuda/links_nccl.h"
#include "../../dynapipe_plugin/cuda/links_staged.h"
#include "../../dynapipe_plugin/run/executor.h"
#include "../ranks.h"

enum { NUM_CASES = 6, MAX_MESSAGES = 40, MAX_BYTES = 3 << 20, ROOM = MAX_MESSAGES * RANKS_MAX };

// From one rank to another, or from or to all of a rank's peers at once, each with bytes of its own.
typedef enum { TO_ONE, TO_PEERS, FROM_PEERS } MessageKind;
typedef struct {
    MessageKind kind;
    int32_t rank, other;  // other: whom it goes TO_ONE
    size_t num_bytes;     // of each piece
} Message;

typedef struct {
    int32_t from, to;
    size_t begin;  // of its bytes in the message's place
} Piece;

// Alike on all ranks: the peers of a placement, and some of them.
typedef struct {
    uint64_t seed;
    Placement placement;
    bool are_peers[2][RANKS_MAX][RANKS_MAX];  // [go]: the first go's are among the second's
    Message messages[MAX_MESSAGES];
    int32_t num_messages;
} Case;

typedef struct {
    bool by_nccl, connects_late;
    CudaDevice* cuda;
    cudaStream_t stream;
    Collective world;
    NcclWorld* nccl;
    Transport links;
    unsigned char *values, *late, *host;  // on the device; there too, to keep it busy; here
} Rank;

// --- a case ----------------------------------------------------------------------------------------------
static Placement draw_placement(Rng* rng, int32_t num_stages, int32_t c) {
    Placement out = {.num_chunks = c == 0 ? 0 : rng_between(rng, 1, 2 * num_stages)};
    for (int32_t k = 0; k < out.num_chunks; k++) {
        bool is_vee = c == 1, goes_down = k < num_stages;
        int32_t stage = goes_down ? k : 2 * num_stages - 1 - k;
        out.stage_of[k] = (int16_t)(is_vee ? stage : rng_between(rng, 0, num_stages - 1));
    }
    out.head = (uint8_t)(c % 3 == 0 ? HEAD_WHOLE : c % 3 == 1 ? HEAD_BY_ROWS : HEAD_BY_VOCABULARY);
    for (int32_t s = 1; s <= num_stages && out.head != HEAD_WHOLE; s++) {
        int32_t begin = out.head_begin[s - 1], has_share = rng_below(rng, 3) > 0;
        out.head_begin[s] =
            (int16_t)(s == num_stages ? HEAD_UNITS : begin + has_share * (HEAD_UNITS - begin) / 2);
    }
    return out;
}

static void draw_peers(Case* it, Rng* rng, int32_t num_ranks) {
    for (int32_t a = 0; a < num_ranks; a++) {
        int32_t peers[PLAN_MAX_STAGES], num_peers = executor_peers(peers, &it->placement, num_ranks, a);
        for (int32_t i = 0; i < num_peers; i++) { it->are_peers[1][a][peers[i]] = true; }
    }
    for (int32_t a = 0; a < num_ranks; a++) {
        for (int32_t b = 0; b < a; b++) {
            bool first = it->are_peers[1][a][b] && rng_below(rng, 2) == 0;
            it->are_peers[0][a][b] = it->are_peers[0][b][a] = first;
        }
    }
}

static Case draw_case(Rng* rng, int32_t num_ranks, int32_t c) {
    Case it = {.seed = rng_u64(rng), .placement = draw_placement(rng, num_ranks, c)};
    draw_peers(&it, rng, num_ranks);
    for (int32_t i = 0; i < MAX_MESSAGES; i++) {
        Message m = {.kind = (MessageKind)rng_below(rng, 3), .rank = rng_between(rng, 0, num_ranks - 1)};
        m.other = rng_between(rng, 0, num_ranks - 1);
        m.num_bytes = (size_t)rng_between(rng, 1, rng_below(rng, 4) == 0 ? MAX_BYTES : 5000);
        if (m.kind == FROM_PEERS) { m.num_bytes = (m.num_bytes + RANKS_MAX - 1) / RANKS_MAX; }
        if (m.kind != TO_ONE || it.are_peers[1][m.rank][m.other]) { it.messages[it.num_messages++] = m; }
    }
    return it;
}

static unsigned char value_of(const Case* it, int32_t i, size_t k) {
    uint64_t key[2] = {(uint64_t)i, k / 64};
    return (unsigned char)(hash_finish(hash_bytes(it->seed, key, sizeof key)) + k);
}

static int32_t list_peers(int32_t* out, const Case* it, int32_t go, int32_t rank) {
    int32_t num_peers = 0;
    for (int32_t r = 0; r < RANKS_MAX; r++) {
        if (it->are_peers[go][rank][r]) { out[num_peers++] = r; }
    }
    return num_peers;
}

// --- a rank ----------------------------------------------------------------------------------------------
static Status connect_peers(Rank* rank, const Case* it, int32_t go) {
    int32_t peers[RANKS_MAX], num_peers = list_peers(peers, it, go, rank->world.my_idx);
    return rank->by_nccl ? nccl_world_connect(rank->nccl, &rank->world, peers, num_peers)
                         : transport_staged_connect(&rank->links, peers, num_peers);
}

static Status open_links(Rank* rank, const Case* it) {
    Transport* host = rank->world.transport;
    if (rank->by_nccl) {
        TRY(nccl_world_open(&rank->nccl, rank->cuda, &rank->world, host->num_ranks, 1));
        TRY(transport_nccl_open(&rank->links, rank->nccl, host->rank, host->num_ranks));
    } else {
        TRY(transport_staged_open(&rank->links, rank->cuda, host));
    }
    TRY(rank->links.api->reserve(rank->links.ctx, ROOM));
    TRY(connect_peers(rank, it, 0));
    return rank->connects_late ? STATUS_OK : connect_peers(rank, it, 1);
}

static Status close_links(Rank* rank) {
    Status status = transport_close(&rank->links);
    nccl_world_close(rank->nccl);
    rank->nccl = NULL;
    return status;
}

static unsigned char* place_of(const Rank* rank, int32_t i) {
    return rank->values + (size_t)i * MAX_BYTES;
}

static int32_t pieces_of(Piece out[RANKS_MAX], const Case* it, int32_t i) {
    const Message* m = &it->messages[i];
    int32_t peers[RANKS_MAX] = {m->other};
    int32_t num_pieces = m->kind == TO_ONE ? 1 : list_peers(peers, it, 1, m->rank);
    for (int32_t p = 0; p < num_pieces; p++) {
        out[p] = m->kind == FROM_PEERS ? (Piece){peers[p], m->rank, (size_t)p * m->num_bytes}
                                       : (Piece){m->rank, peers[p], 0};
    }
    return num_pieces;
}

// Data comes into its place by a copy that is queued just before the send.
static Status make_data(Rank* rank, const Case* it, int32_t i, size_t begin) {
    size_t num_bytes = it->messages[i].num_bytes;
    unsigned char* late = rank->late + (size_t)i * MAX_BYTES + begin;
    for (size_t k = 0; k < num_bytes; k++) { rank->host[k] = value_of(it, i, begin + k); }
    CUDA_TRY(cudaMemcpy(late, rank->host, num_bytes, cudaMemcpyHostToDevice));
    CUDA_TRY(
        cudaMemcpyAsync(place_of(rank, i) + begin, late, num_bytes, cudaMemcpyDeviceToDevice, rank->stream));
    return STATUS_OK;
}

static Status post_piece(Rank* rank, const Case* it, int32_t i, const Piece* piece, void** request) {
    const Transport* t = &rank->links;
    unsigned char* place = place_of(rank, i) + piece->begin;
    size_t num_bytes = it->messages[i].num_bytes;
    return piece->from == rank->world.my_idx
               ? t->api->isend(t->ctx, piece->to, i, place, num_bytes, request)
               : t->api->irecv(t->ctx, piece->from, i, place, num_bytes, request);
}

// This rank's pieces of a message, as one group.
static Status post_message(Rank* rank, const Case* it, int32_t i, void** requests, int32_t* num_requests) {
    const Transport* t = &rank->links;
    int32_t me = rank->world.my_idx, num_mine = 0, num_pieces;
    Piece pieces[RANKS_MAX];
    num_pieces = pieces_of(pieces, it, i);
    for (int32_t p = 0; p < num_pieces; p++) {
        if (pieces[p].from == me || pieces[p].to == me) { pieces[num_mine++] = pieces[p]; }
    }
    if (num_mine > 0 && pieces[0].from == me) { TRY(make_data(rank, it, i, pieces[0].begin)); }
    bool is_group = num_mine > 1 && t->api->group_begin != NULL;
    if (is_group) { TRY(t->api->group_begin(t->ctx)); }
    for (int32_t p = 0; p < num_mine; p++) {
        TRY(post_piece(rank, it, i, &pieces[p], &requests[(*num_requests)++]));
    }
    return is_group ? t->api->group_end(t->ctx) : STATUS_OK;
}

static Status check_messages(Rank* rank, const Case* it) {
    for (int32_t i = 0; i < it->num_messages; i++) {
        Piece pieces[RANKS_MAX];
        int32_t num_pieces = pieces_of(pieces, it, i);
        size_t num_bytes = it->messages[i].num_bytes;
        for (int32_t p = 0; p < num_pieces; p++) {
            size_t begin = pieces[p].begin;
            if (pieces[p].to != rank->world.my_idx) { continue; }
            CUDA_TRY(cudaMemcpy(rank->host, place_of(rank, i) + begin, num_bytes, cudaMemcpyDeviceToHost));
            for (size_t k = 0; k < num_bytes; k++) { EXPECT(rank->host[k] == value_of(it, i, begin + k)); }
        }
    }
    return STATUS_OK;
}

static size_t free_bytes(void) {
    size_t left = 0, total;
    (void)cudaMemGetInfo(&left, &total);
    return left;
}

// No message takes memory of the card: what is there before the first is there after the last.
static Status run_case(Rank* rank, const Case* it) {
    void* requests[ROOM];
    int32_t num_requests = 0;
    TRY(open_links(rank, it));
    TRY(collective_barrier(&rank->world));
    size_t before_bytes = free_bytes();
    CUDA_TRY(cudaMemsetAsync(rank->values, 0xff, (size_t)MAX_MESSAGES * MAX_BYTES, rank->stream));
    for (int32_t i = 0; i < it->num_messages; i++) {
        TRY(post_message(rank, it, i, requests, &num_requests));
    }
    for (int32_t i = 0; i < num_requests; i++) { TRY(ranks_wait(&rank->links, requests[i])); }
    EXPECT(free_bytes() == before_bytes);
    TRY(check_messages(rank, it));
    return close_links(rank);
}

static Status run(Transport* t, const char* mode) {
    Rank rank = {.by_nccl = strncmp(mode, "nccl", 4) == 0, .connects_late = strstr(mode, "-late") != NULL};
    int32_t ranks[RANKS_MAX];
    int num_devices;
    Device device;
    Rng rng = rng_seed(7);  // alike on all ranks
    const size_t num_bytes = (size_t)MAX_MESSAGES * MAX_BYTES;
    for (int32_t r = 0; r < t->num_ranks; r++) { ranks[r] = r; }
    TRY(collective_init(&rank.world, t, ranks, t->num_ranks, INT64_C(20000000000)));
    CUDA_TRY(cudaGetDeviceCount(&num_devices));
    CUDA_TRY(cudaSetDevice(t->rank % num_devices));
    CUDA_TRY(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    TRY(cuda_device_open(&device, &rank.cuda, rank.stream));
    CUDA_TRY(cudaMalloc((void**)&rank.values, num_bytes));
    CUDA_TRY(cudaMalloc((void**)&rank.late, num_bytes));
    rank.host = malloc(MAX_BYTES);
    EXPECT(rank.host != NULL);
    for (int32_t c = 0; c < NUM_CASES; c++) {
        Case it = draw_case(&rng, t->num_ranks, c);
        TRY(run_case(&rank, &it));
    }
    free(rank.host);
    CUDA_TRY(cudaFree(rank.values));
    CUDA_TRY(cudaFree(rank.late));
    device_close(&device);
    CUDA_TRY(cudaStreamDestroy(rank.stream));
    collective_free(&rank.world);
    return STATUS_OK;
}

int main(int argc, char** argv) {
    Transport transport;
    Status status = transport_mpi_open(&transport, &argc, &argv);
    if (status == STATUS_OK && transport.num_ranks > RANKS_MAX) { return 1; }
    if (status == STATUS_OK) { status = run(&transport, argc > 1 ? argv[1] : ""); }
    if (status != STATUS_OK) {
        fprintf(stderr, "rank %d: %s\n", transport.rank, status_message());
        transport.api->abort(transport.ctx, "cuda_links");
        return 1;
    }
    return transport_close(&transport) == STATUS_OK ? 0 : 1;
}
