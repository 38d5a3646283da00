#include "stop_signal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

enum { INTERRUPTED_STATUS = 130 };  // 128 + SIGINT

static const int watched[] = {SIGTERM, SIGINT, SIGUSR1};
static volatile sig_atomic_t seen, num_interrupts;

static bool is_under_mpirun;  // read by the handler, written before it is one

// Open MPI's mpirun that is told to end reads the ranks' output no more: a line that waits for room there
// would wait until the SIGKILL. From now on what finds no room is lost.
static void never_wait_to_print(void) {
    int saved_errno = errno, flags = fcntl(STDOUT_FILENO, F_GETFL);
    if (flags >= 0) { fcntl(STDOUT_FILENO, F_SETFL, flags | O_NONBLOCK); }
    errno = saved_errno;
}

static void note(int number) {
    if (number == SIGINT && num_interrupts++ > 0) { _exit(INTERRUPTED_STATUS); }
    if (number != SIGUSR1 && is_under_mpirun) { never_wait_to_print(); }
    if (seen == 0) { seen = number; }
}

// Calls that a signal meets go on (SA_RESTART): files and messages know nothing of it.
void stop_signal_watch(void) {
    is_under_mpirun = getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++) {
        if (sigaction(watched[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL) {
            sigaction(watched[i], &action, NULL);
        }
    }
}

int stop_signal_seen(void) {
    return (int)seen;
}

const char* stop_signal_name(int number) {
    return number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : number == SIGUSR1 ? "SIGUSR1" : "?";
}

int stop_signal_exit_status(int number) {
    return number == SIGINT ? INTERRUPTED_STATUS : 0;
}
