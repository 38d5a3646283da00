// session_stop.c -- ranks agree that the run ends early: by a signal to any of them; and on the time.
#include <stdlib.h>

#include "../../util/program.h"
#include "session.h"

void dynapipe_watch_signals(Dynapipe* dp) {
    stop_signal_watch();
    if (dp != NULL) { dp->watches_signals = true; }
}

int32_t dynapipe_stop_signal(const Dynapipe* dp) {
    return dp->stop_signal;
}

double dynapipe_seconds(const Dynapipe* dp) {
    return dp->seconds;
}

double session_stop_mine(const Dynapipe* dp) {
    return dp->watches_signals ? stop_signal_seen() : 0;
}

double session_seconds_mine(const Dynapipe* dp) {
    return (double)(clock_now_ns() - dp->open_ns) / 1e9;
}

// Of different signals, the least number: SIGINT (2), which gives the exit status, before the others.
void session_stop_take(Dynapipe* dp, const double* of_ranks, int32_t stride) {
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        int32_t number = (int32_t)of_ranks[(size_t)r * (size_t)stride];
        if (number != 0 && (dp->stop_signal == 0 || number < dp->stop_signal)) { dp->stop_signal = number; }
    }
}

Status session_stop_agree(Dynapipe* dp) {
    if (!dp->watches_signals || dp->stop_signal != 0) { return STATUS_OK; }
    int32_t num_ranks = dp->transport.num_ranks;
    double* of_ranks = calloc((size_t)num_ranks, sizeof *of_ranks);
    if (of_ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    of_ranks[dp->transport.rank] = session_stop_mine(dp);
    Status status = collective_share(&dp->world, of_ranks, sizeof *of_ranks);
    if (status == STATUS_OK) { session_stop_take(dp, of_ranks, 1); }
    free(of_ranks);
    return status;
}
