/*
printable.h -- names that come from files or the command line, made fit for a terminal.

Valid UTF-8 stays as it is. Each byte becomes \xNN of what is not: control characters (C0, DEL, C1), which
move the cursor or change colours; bytes that are no UTF-8; the marks that turn the direction of a line, and
line separators, which make it read as something else. A backslash stays a backslash, so applying it twice is
the same as once, and two names may look alike: for reading, not for comparing.
*/
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Copies `text`, as much of it as fits; what is cut ends in "...", never within a character. Returns `out`.
char* printable(char* out, size_t out_bytes, const char* text);

// The same for num_bytes of text without a NUL behind them (one within them is a control character).
char* printable_bytes(char* out, size_t out_bytes, const char* text, size_t num_bytes);

// An argument of printf: of names of up to 255 bytes all is seen. Lives as long as the block around it.
enum { PRINTABLE_NAME_BYTES = 4 * 255 + 1 };
#define PRINTABLE(name) printable((char[PRINTABLE_NAME_BYTES]){0}, PRINTABLE_NAME_BYTES, (name))

#ifdef __cplusplus
}
#endif
