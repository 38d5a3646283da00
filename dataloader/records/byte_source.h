/*
byte_source.h -- the bytes of a file, unpacked where it is packed: plain, gzip (.gz) or Zstandard (.zst).

What it is, say its first bytes, not its name. A file of several packed parts, one behind the other, is read
to its end. zlib (1.2) and libzstd (1.4) do the work; built without one of them, its files are refused with a
message.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../../util/status.h"

typedef struct ByteSource ByteSource;

Status byte_source_open(ByteSource** out, const char* path);
// The same on an open stream, which the source takes over (also on failure); `name` is the path in messages.
Status byte_source_open_stream(ByteSource** out, FILE* stream, const char* name);
void byte_source_close(ByteSource* source);  // NULL is fine

// Up to num_bytes > 0 bytes into `out`; *got is 0 at the end alone. STATUS_IO names the file: it cannot be
// read, or its packed data is damaged or breaks off.
Status byte_source_read(ByteSource* source, void* out, size_t num_bytes, size_t* got);

int64_t byte_source_position(const ByteSource* source);  // bytes of the file that were read: for progress
