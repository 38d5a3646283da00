/*
status.h -- one status type for every function, and names made fit for a terminal.

Library code returns a Status and never prints or exits. The function that *discovers* a problem says so
with FAIL(): the message goes into a buffer of the calling thread, where the program that owns the terminal
finds it (status_message) and prints it once. Callers in between only pass the value up with TRY().
*/
#pragma once

#include <stddef.h>

// clang-format off
#define STATUS_LIST(X)                                          \
    X(STATUS_OK,           "ok")                                \
    X(STATUS_BAD_FORMAT,   "malformed input")                   \
    X(STATUS_BAD_OPTION,   "impossible option")                 \
    X(STATUS_OUT_OF_RANGE, "argument out of range")             \
    X(STATUS_INFEASIBLE,   "no plan fits in memory")            \
    X(STATUS_DEADLOCK,     "operations wait for each other")    \
    X(STATUS_INVALID_PLAN, "plan breaks a rule")                \
    X(STATUS_MISMATCH,     "ranks disagree")                    \
    X(STATUS_COMM,         "communication failed")              \
    X(STATUS_IO,           "file operation failed")             \
    X(STATUS_NO_MEMORY,    "allocation failed")                  \
    X(STATUS_NO_DEVICE,    "too few GPUs")                       \
    X(STATUS_DEVICE,       "the GPU failed")
// clang-format on

#define X(name, text) name,
typedef enum { STATUS_LIST(X) STATUS_COUNT } Status;
#undef X

#ifdef __cplusplus
extern "C" {
#endif

Status status_last(void);  // of the last FAIL() on this thread

// The message of the last FAIL() on this thread, "" if none; valid until the next FAIL() here.
const char* status_message(void);

// Record "message" for this thread and hand the status back. A message names file, line or field and says
// what to do; a remedy stands last, after "---> ". Control characters of names in it become \xNN.
#define FAIL(status, ...) status_fail((status), __VA_ARGS__)
Status status_fail(Status status, const char* fmt, ...) __attribute__((format(printf, 2, 3)));

#define TRY(expr)                                             \
    do {                                                      \
        Status try_status_ = (expr);                          \
        if (try_status_ != STATUS_OK) { return try_status_; } \
    } while (0)

// --- names for a terminal ---------------------------------------------------------------------------------

// Names that come from files or the command line, made fit for a terminal.
//
// Valid UTF-8 stays as it is. Each byte becomes \xNN of what is not: control characters (C0, DEL, C1), which
// move the cursor or change colours; bytes that are no UTF-8; the marks that turn the direction of a line,
// and line separators, which make it read as something else. A backslash stays a backslash, so applying it
// twice is the same as once, and two names may look alike: for reading, not for comparing.

// Copies `text`, as much of it as fits; what is cut ends in "...", never within a character. Returns `out`.
char* printable(char* out, size_t out_bytes, const char* text);

// The same for num_bytes of text without a NUL after them (one within them is a control character).
char* printable_bytes(char* out, size_t out_bytes, const char* text, size_t num_bytes);

// For arguments of printf: in one of 16 buffers of this thread. Of names of up to 255 bytes all is seen.
const char* printable_name(const char* name);
#define PRINTABLE(name) printable_name(name)

#ifdef __cplusplus
}
#endif
