// llmc_stop.c -- when a run inside a trainer of llm.c's family saves, and how it ends by a signal.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "llmc_session.h"

void dynapipe_llmc_watch(DynapipeLlmc* run) {
    const char* given = run->options.checkpoint_every;
    run->saved_step = run->tried_step = -1;
    dynapipe_llmc_check(run, (int)save_interval_parse(&run->save_every, "--checkpoint-every",
                                                      given != NULL ? given : SAVE_INTERVAL_USUAL));
}

int dynapipe_llmc_is_told_to_end(const DynapipeLlmc* run) {
    return dynapipe_stop_signal(run->dp) != 0;
}

int dynapipe_llmc_is_due(DynapipeLlmc* run, int32_t step) {
    bool is_end = dynapipe_llmc_is_told_to_end(run) != 0;
    bool is_due = save_interval_is_due(&run->save_every, step, dynapipe_seconds(run->dp) - run->saved_s);
    run->is_timed = is_due && !is_end && run->options.checkpoint_every == NULL;
    return (is_end || is_due) && step != run->tried_step;
}

// Of what the clock alone had saved, the newest are kept; what is saved by anybody's word counts as theirs.
void dynapipe_llmc_saved(DynapipeLlmc* run, const char* directory, int32_t step) {
    enum { KEPT = DYNAPIPE_LLMC_TIMED_KEPT };
    run->saved_step = step;
    run->saved_s = dynapipe_seconds(run->dp);
    if (!run->is_timed) { return; }
    run->is_timed = false;
    int32_t oldest = run->timed_steps[KEPT - 1];
    memmove(run->timed_steps + 1, run->timed_steps, sizeof(int32_t) * (KEPT - 1));
    run->timed_steps[0] = step;
    if (oldest > 0 && dynapipe_llmc_is_main(run)) { dynapipe_llmc_remove(directory, oldest); }
}

bool dynapipe_llmc_begin_save(DynapipeLlmc* run, int32_t step) {
    bool is_new = step != run->tried_step;
    if (!is_new && run->timed_steps[0] == step) { run->timed_steps[0] = 0; }  // asked for, now
    run->tried_step = step;
    return is_new;
}

static void say_stopped(const DynapipeLlmc* run, const char* directory, int32_t step) {
    const char* name = stop_signal_name(dynapipe_stop_signal(run->dp));
    if (step <= run->first_step) {
        printf("stopped by %s before the first step of this run: nothing to save\n", name);
    } else if (directory == NULL) {
        printf("stopped by %s after step %d of %d, nothing is saved ---> an output folder (--output-dir, -o) "
               "saves\n",
               name, step, run->info.num_steps);
    } else if (run->saved_step != step) {
        printf("stopped by %s after step %d of %d, which is not saved ---> resuming goes on from the newest "
               "checkpoint that %s has\n",
               name, step, run->info.num_steps, directory);
    } else {
        printf("stopped by %s after step %d of %d, saved in %s ---> resuming (--resume 1, -y 1) goes on from "
               "there\n",
               name, step, run->info.num_steps, directory);
    }
}

void dynapipe_llmc_end(DynapipeLlmc* run, const char* directory, int32_t step) {
    int status = stop_signal_exit_status(dynapipe_stop_signal(run->dp));
    bool is_lost = run->save_failed && directory != NULL;
    if (dynapipe_llmc_is_main(run) && step < run->info.num_steps) { say_stopped(run, directory, step); }
    fflush(stdout);
    int lost_status = dynapipe_llmc_close(run);
    exit(is_lost ? EXIT_FAILURE : status != 0 ? status : lost_status);
}
