#include "standard_output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// For reading alone: what is printed there fails, as it does without a descriptor.
void standard_output_open(bool outlives_readers) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) { continue; }
        if (open("/dev/null", O_RDONLY) != fd) { return; }
    }
    signal(SIGXFSZ, SIG_IGN);
    if (outlives_readers) { signal(SIGPIPE, SIG_IGN); }
}

bool standard_output_is_lost(void) {
    bool lost_before = ferror(stdout) != 0;
    errno = 0;
    bool lost_now = fflush(stdout) != 0;
    return lost_before || lost_now;
}

static const char* reason(void) {
    return errno != 0 ? strerror(errno) : "is the disk full, its reader gone?";
}

bool standard_output_warn(bool* has_warned) {
    bool is_lost = standard_output_is_lost();
    if (is_lost && !*has_warned) {
        fprintf(stderr, "warning: standard output: cannot be written: %s (the run goes on without it)\n",
                reason());
    }
    *has_warned |= is_lost;
    return is_lost;
}

int standard_output_close(int exit_status, int if_lost) {
    if (!standard_output_is_lost()) { return exit_status; }
    fprintf(stderr, "error: standard output: cannot be written: %s ---> redirect it elsewhere\n", reason());
    return if_lost;
}
