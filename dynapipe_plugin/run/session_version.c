// session_version.c -- what the plugin was built with, for --version.
#include <string.h>

#include "session.h"
#ifdef DYNAPIPE_MPI
#include <mpi.h>
#endif

void dynapipe_print_version(FILE* out) {
#ifdef DYNAPIPE_MPI
    char name[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int num_chars = 0;
    MPI_Get_library_version(name, &num_chars);  // also before MPI_Init
    fprintf(out, "MPI: %.*s\n", (int)strcspn(name, ",\n"), name);
#else
    fprintf(out, "MPI: none, one process\n");
#endif
    session_device_print_version(out);
}
