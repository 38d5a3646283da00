#include "stop_signal.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

enum { INTERRUPTED_STATUS = 130 };  // 128 + SIGINT

static const int watched[] = {SIGTERM, SIGINT, SIGUSR1};
static volatile sig_atomic_t seen, num_interrupts;

static void note(int number) {
    if (number == SIGINT && num_interrupts++ > 0) { _exit(INTERRUPTED_STATUS); }
    if (seen == 0) { seen = number; }
}

// Calls that a signal meets go on (SA_RESTART): files and messages know nothing of it.
void stop_signal_watch(void) {
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
