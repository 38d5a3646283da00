/*
standard_output.h -- what a program prints has arrived, or the program fails and says so: a full disk, a
closed descriptor, a reader that is gone.

    int main(...) {
        standard_output_open(false);
        ...
        return standard_output_close(exit_status, EXIT_FAILURE);
    }
*/
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// First thing in main(): a standard stream that is closed is never some file of ours; a limit on the length
// of files (ulimit -f) is an error of the write, as a full disk is, not a signal. outlives_readers: what is
// printed to a reader that has gone (head -1) is lost rather than the program.
void standard_output_open(bool outlives_readers);
// Did something printed so far not arrive? Hands on what is buffered. Why: in errno, 0: unknown by now.
bool standard_output_is_lost(void);
// The same, said on stderr the first time; a program that goes on. *has_warned: whether that was before.
bool standard_output_warn(bool* has_warned);
// Last thing in main(): exit_status, or if_lost with a message on stderr.
int standard_output_close(int exit_status, int if_lost);

#ifdef __cplusplus
}
#endif
