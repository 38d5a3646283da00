/*
status.h -- one status type for every function, and escaping of names for a terminal.

Library code returns a Status and never prints or exits. The function that *discovers* a problem calls FAIL():
the message goes into a buffer of the calling thread, and the program prints it once (status_message). Callers
in between only return the value with TRY().
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

enum { STATUS_MESSAGE_BYTES = 1024 };  // with the NUL
// The message of the last FAIL() on this thread, "" if none; valid until the next FAIL() here.
const char* status_message(void);

// Records "message" for this thread and returns the status. A message names file, line or field; a remedy
// comes last, after "---> ". Control characters of names in it become \xNN.
#define FAIL(status, ...) status_fail((status), __VA_ARGS__)
Status status_fail(Status status, const char* fmt, ...) __attribute__((format(printf, 2, 3)));

#define TRY(expr)                                             \
    do {                                                      \
        Status try_status_ = (expr);                          \
        if (try_status_ != STATUS_OK) { return try_status_; } \
    } while (0)

// --- names for a terminal ---------------------------------------------------------------------------------

// Valid UTF-8 is kept. These bytes become \xNN: control characters (C0, DEL, C1), which move the cursor or
// change colours; invalid UTF-8; marks that change the text direction, and line separators. A backslash is
// kept, so applying it twice is the same as once, and two names may look alike: for display, not for
// comparing.

// Copies as much of `text` as fits; cut text ends in "...", never within a character. Returns `out`.
char* printable(char* out, size_t out_bytes, const char* text);

// The same for num_bytes of text without a NUL after them (a NUL within is a control character).
char* printable_bytes(char* out, size_t out_bytes, const char* text, size_t num_bytes);

// Bytes that are no UTF-8 text become U+FFFD, so at most three times as many; not terminated. Returns how
// many.
size_t valid_utf8(char* out, const char* text, size_t num_bytes);

// For arguments of printf: one of 16 buffers of this thread. Names of up to 255 bytes are complete.
const char* printable_name(const char* name);
#define PRINTABLE(name) printable_name(name)

#ifdef __cplusplus
}
#endif
