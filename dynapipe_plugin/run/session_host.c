// session_host.c -- a session in this process's memory: ranks on CPUs.
#include "session.h"

#ifndef DYNAPIPE_CUDA
#include <string.h>
#include <sys/resource.h>

static Status choose_progress(Dynapipe* dp) {
    if (dp->num_stages == 1) { return STATUS_OK; }  // no messages while ranks compute
    TRY(progress_choose(&dp->progress, &dp->transport, &dp->world, (ProgressChoice)dp->options.progress,
                        &dp->cores));
    dp->machine.pulls = dp->progress.pulls;
    return STATUS_OK;
}

Status session_device_find(Dynapipe* dp) {
    if (dp->options.transport != TRANSPORT_CHOICE_NCCL) { return choose_progress(dp); }
    return FAIL(STATUS_BAD_OPTION,
                "--transport nccl: this program computes on CPUs ---> leave it out, or make train_gpt2cu");
}

Status session_device_open(Dynapipe* dp, void* stream) {
    (void)stream;
    dp->links = &dp->transport;
    return STATUS_OK;
}

Status session_device_write(const Dynapipe* dp, void* to, const void* from, size_t num_bytes) {
    (void)dp;
    memcpy(to, from, num_bytes);
    return STATUS_OK;
}

Status session_device_read(const Dynapipe* dp, void* to, const void* from, size_t num_bytes) {
    return session_device_write(dp, to, from, num_bytes);
}

void session_device_print_version(FILE* out) {
    (void)out;
}

Status session_device_limit(Dynapipe* dp) {
    (void)dp;
    return STATUS_OK;
}

Status session_sums_open(Dynapipe* dp) {
    return sums_host_open(&dp->sums, &dp->replicas, &dp->tied);
}

int64_t session_device_used_bytes(const Dynapipe* dp) {
    (void)dp;
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

void session_device_abort(Dynapipe* dp) {
    (void)dp;
}

void session_device_close(Dynapipe* dp) {
    sums_close(&dp->sums);
}
#endif
