/*
count.cpp -- what kernels did. EMU_COUNTS=file: each program appends to it when it ends, of each kernel that it has

    kernel PATH NAME LAUNCHES DISTINCT   (sectors of global memory, each once a launch)
    block LINE TIMES MEMORY MMA SHUFFLE BARRIER FLOAT OTHER   a basic block: how often threads went through it, instructions in it
    global LINE REQUESTS SECTORS LEAST   an instruction: of warps, the sectors (32 bytes) that they touched, and that would have held their bytes
    shared LINE REQUESTS WAVEFRONTS LEAST   (LINE < 0: what cp.async writes) wavefronts: four bytes of each of 32 banks; LEAST: without bank conflicts

and report.py reads that. The last two lines and DISTINCT only with EMU_ACCESSES=1, which is slow. Lanes that execute an instruction
for the n-th time in a block make one request of a warp, as they do where they have not diverged.
*/
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <map>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "test/cuda_emu/runtime.h"
#include "test/ptx/machine.h"
#include "test/ptx/ptx.h"

static constexpr uint64_t SECTOR_BYTES = 32, NUM_BANKS = 32, BANK_BYTES = 4;

bool ptx_counting = getenv("EMU_COUNTS") != nullptr && getenv("EMU_ACCESSES") != nullptr;

struct Access {
    int line, pass, lane, num_bytes;  // pass: how often the lane has been there before, in this block
    uint64_t address;
};
struct Traffic {
    long requests, transactions, least;
};
struct Counts {
    std::map<int, Traffic> global, shared;  // by line
    long num_distinct;
};
static std::map<const PtxKernel*, Counts>& counts() {
    static auto& all = *new std::map<const PtxKernel*, Counts>;
    return all;
}
static std::vector<Access> warps[32];              // of the running block
static std::unordered_map<int, int> passes[1024];  // of each thread, by line
static std::unordered_set<uint64_t> launch_sectors;

void ptx_count(const PtxThread* t, uint64_t address, int num_bytes, int line) {
    if (num_bytes > 0) { warps[t->warp].push_back({line, passes[t->index][line]++, t->lane, num_bytes, address}); }
}

template <class T> static size_t num_distinct(std::vector<T>& values) {
    std::sort(values.begin(), values.end());
    return (size_t)(std::unique(values.begin(), values.end()) - values.begin());
}
static void count_global(Traffic& traffic, const Access* a, const Access* end) {
    std::vector<uint64_t> sectors, pieces;  // pieces: of two bytes
    for (; a < end; a++) {
        for (uint64_t i = a->address / 2; i <= (a->address + (uint64_t)a->num_bytes - 1) / 2; i++) { pieces.push_back(i); }
        for (uint64_t s = a->address / SECTOR_BYTES; s <= (a->address + (uint64_t)a->num_bytes - 1) / SECTOR_BYTES; s++) {
            sectors.push_back(s);
            launch_sectors.insert(s);
        }
    }
    traffic.requests++;
    traffic.transactions += (long)num_distinct(sectors);
    traffic.least += (long)((2 * num_distinct(pieces) + SECTOR_BYTES - 1) / SECTOR_BYTES);
}
// Accesses of 8 bytes pass by half warps, of 16 by quarters.
static void count_shared(Traffic& traffic, const Access* a, const Access* end) {
    const int lanes = 128 / std::max(4, a->num_bytes);
    std::vector<uint64_t> words[NUM_BANKS];
    traffic.requests++;
    for (int phase = 0; phase < 32 / lanes; phase++) {
        for (auto& bank : words) { bank.clear(); }
        for (const Access* one = a; one < end; one++) {
            if (one->lane / lanes != phase) { continue; }
            for (uint64_t i = one->address / BANK_BYTES; i <= (one->address + (uint64_t)one->num_bytes - 1) / BANK_BYTES; i++) { words[i % NUM_BANKS].push_back(i); }
        }
        size_t most = 0, all = 0;
        for (auto& bank : words) {
            const size_t n = num_distinct(bank);
            most = std::max(most, n), all += n;
        }
        traffic.transactions += (long)most;
        traffic.least += (long)((all + NUM_BANKS - 1) / NUM_BANKS);
    }
}
void ptx_count_block(const PtxKernel* k) {
    Counts& of = counts()[k];
    for (auto& warp : warps) {
        std::sort(warp.begin(), warp.end(), [](const Access& a, const Access& b) { return a.line != b.line ? a.line < b.line : a.pass < b.pass; });
        for (size_t i = 0, next; i < warp.size(); i = next) {
            const Access& first = warp[i];
            const bool is_shared = first.address < PTX_SHARED_BYTES;
            auto same = [&](const Access& a) { return a.line == first.line && a.pass == first.pass; };
            for (next = i + 1; next < warp.size() && same(warp[next]); next++) {}
            if (is_shared) {
                count_shared(of.shared[first.line], &first, &first + (next - i));
            } else {
                count_global(of.global[first.line], &first, &first + (next - i));
            }
        }
        warp.clear();
    }
    for (auto& thread : passes) { thread.clear(); }
}
void ptx_count_launch(const PtxKernel* k) {
    counts()[k].num_distinct += (long)launch_sectors.size();
    launch_sectors.clear();
}

// One write: ranks of a run share the file.
void ptx_write_counts(const std::vector<const PtxKernel*>& kernels) {
    std::string text;
    for (const PtxKernel* k : kernels) {
        const Counts& of = counts()[k];
        text += std::string("kernel ") + k->path + " " + k->name + " " + std::to_string(k->num_launches) + " " + std::to_string(of.num_distinct) + "\n";
        for (int i = 0; i < k->num_blocks; i++) {
            text += "block " + std::to_string(k->blocks[i].line) + " " + std::to_string(k->counts[i]);
            for (int count : k->blocks[i].counts) { text += " " + std::to_string(count); }
            text += "\n";
        }
        for (const auto* lines : {&of.global, &of.shared}) {
            for (const auto& [line, t] : *lines) {
                text += (lines == &of.global ? "global " : "shared ") + std::to_string(line) + " " + std::to_string(t.requests) + " " +
                        std::to_string(t.transactions) + " " + std::to_string(t.least) + "\n";
            }
        }
    }
    const int file = open(getenv("EMU_COUNTS"), O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file < 0 || write(file, text.data(), text.size()) != (ssize_t)text.size()) { emu::report("EMU_COUNTS: %s cannot be written", getenv("EMU_COUNTS")); }
    close(file);
}
