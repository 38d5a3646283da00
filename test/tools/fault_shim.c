/*
fault_shim.c -- a fault at a chosen moment of an unmodified program, for dev/soak.sh: preloaded (LD_PRELOAD),
it counts the calls of one kind that the rank FAULT_RANK makes, and does FAULT_DO at the call FAULT_AT names.

    FAULT_AT=pipeline:7   the 7th message to another rank in a pipeline (of training, validation or answers)
             sums:7       ... in a collective operation (sums of gradients, agreement)
             write:3      a write into a checkpoint       sync:2   an fsync       rename:2   a rename
    FAULT_DO=kill|stop|term|int|usr1   that signal to itself; mpirun: SIGKILL to the process that started it
             full                      from here on no write into a checkpoint has room on the disk
    FAULT_MARK=FILE       is made when it happens
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COLLECTIVE_TAGS = 1 << 19 };  // run/transport.h

static atomic_int num_calls, is_full;

static int signal_of(const char* what) {
    static const struct {
        const char* name;
        int number;
    } all[] = {{"kill", SIGKILL}, {"mpirun", SIGKILL}, {"stop", SIGSTOP},
               {"term", SIGTERM}, {"int", SIGINT},     {"usr1", SIGUSR1}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(what, all[i].name) == 0) { return all[i].number; }
    }
    return 0;
}

static void make_mark(void) {
    const char* path = getenv("FAULT_MARK");
    int fd = path != NULL ? open(path, O_WRONLY | O_CREAT, 0644) : -1;
    if (fd >= 0) { close(fd); }
}

static void call(const char* kind) {
    const char *at = getenv("FAULT_AT"), *what = getenv("FAULT_DO"), *rank = getenv("FAULT_RANK"),
               *mine = getenv("OMPI_COMM_WORLD_RANK");
    size_t length = strlen(kind);
    if (at == NULL || what == NULL || rank == NULL || mine == NULL || strcmp(rank, mine) != 0) { return; }
    if (strncmp(at, kind, length) != 0 || at[length] != ':') { return; }
    if (atomic_fetch_add(&num_calls, 1) + 1 != atoi(at + length + 1)) { return; }
    make_mark();
    if (strcmp(what, "full") == 0) { atomic_store(&is_full, 1); }
    int number = signal_of(what);
    if (number != 0) { kill(strcmp(what, "mpirun") == 0 ? getppid() : getpid(), number); }
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
              MPI_Request* request) {
    call(tag >= COLLECTIVE_TAGS ? "sums" : "pipeline");
    return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

ssize_t pwrite(int fd, const void* data, size_t num_bytes, off_t offset) {
    static ssize_t (*real)(int, const void*, size_t, off_t);
    if (real == NULL) { *(void**)&real = dlsym(RTLD_NEXT, "pwrite"); }
    call("write");
    if (atomic_load(&is_full)) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, data, num_bytes, offset);
}

int fsync(int fd) {
    static int (*real)(int);
    if (real == NULL) { *(void**)&real = dlsym(RTLD_NEXT, "fsync"); }
    call("sync");
    return real(fd);
}

int rename(const char* from, const char* to) {
    static int (*real)(const char*, const char*);
    if (real == NULL) { *(void**)&real = dlsym(RTLD_NEXT, "rename"); }
    call("rename");
    return real(from, to);
}
