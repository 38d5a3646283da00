#include "status.h"

#include <stdarg.h>
#include <stdio.h>

#include "printable.h"

static _Thread_local char last_message[1024];
static _Thread_local Status last_status;

Status status_last(void) {
    return last_status;
}

const char* status_message(void) {
    return last_message;
}

Status status_fail(Status status, const char* fmt, ...) {
    va_list args;
    va_start(args, fmt);
    // The arguments may point into the buffer itself (a message wrapped into a longer one). They may also be
    // names of files and tasks, which must not steer the terminal that the message ends on.
    char message[sizeof last_message];
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    printable(last_message, sizeof last_message, message);
    last_status = status;
    return status;
}
