#include "launched.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// How many processes the launcher started, by what it tells each of them; 1: no launcher is known.
static int launched_processes(void) {
    static const char* const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
    const char* text = NULL;
    for (int i = 0; i < 3 && text == NULL; i++) { text = getenv(names[i]); }
    // SLURM_NTASKS is set for a batch script, too, which is one process; a step of srun has a rank.
    const char *step = getenv("SLURM_STEP_ID"), *name = getenv("SLURM_STEP_NAME");
    bool is_script = name == NULL || strcmp(name, "batch") == 0 || strcmp(name, "interactive") == 0;
    if (text == NULL && step != NULL && !is_script) { text = getenv("SLURM_STEP_NUM_TASKS"); }
    return text != NULL ? atoi(text) : 1;
}

void launched_must_be_alone(const char* name) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *other = getenv("PMI_RANK");
    int num_processes = launched_processes();
    if (num_processes <= 1) { return; }
    if (rank == NULL) { rank = other != NULL ? other : getenv("SLURM_PROCID"); }
    if (rank == NULL || strcmp(rank, "0") == 0) {
        fprintf(stderr,
                "error: %d processes were started, and this build of train_%s is for one: each would train a "
                "copy ---> make train_%s DYNAPIPE=1, or start it without mpirun\n",
                num_processes, name, name);
    } else {
        sleep(1);  // mpirun ends all with the first, and rank 0 has something to say
    }
    exit(2);  // wrong use
}
