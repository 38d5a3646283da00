#include "local_ranks.h"

#include <stdlib.h>
#include <unistd.h>

int32_t local_ranks_count(int32_t num_ranks) {
    const char* text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (text == NULL) { text = getenv("MPI_LOCALNRANKS"); }
    int32_t local = text != NULL ? atoi(text) : 0;
    return local >= 1 && local <= num_ranks ? local : num_ranks;
}

int32_t local_ranks_threads(int32_t asked, int32_t num_ranks) {
    if (asked > 0) { return asked; }
    const char* text = getenv("OMP_NUM_THREADS");
    if (text != NULL && atoi(text) > 0) { return atoi(text); }
    int32_t cores = (int32_t)sysconf(_SC_NPROCESSORS_ONLN), ranks = local_ranks_count(num_ranks);
    return cores > ranks ? cores / ranks : 1;
}
