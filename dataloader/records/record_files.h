/*
record_files.h -- the files that prepare_data is told to read: files, folders, standard input.

A folder stands for all of its *.json, *.jsonl, *.ndjson, each also with .gz or .zst, by name, not for folders
in it.
"-" is standard input; that, and whatever cannot be read twice (a pipe), is copied to a nameless file in
$TMPDIR
(/tmp) first.
*/
#pragma once

#include "record_reader.h"

typedef struct {
    char* path;
    int copy;           // descriptor of the nameless copy; -1: none
    int64_t num_bytes;  // packed, where it is packed
} RecordFile;

typedef struct {
    RecordFile* files;
    int32_t num_files, capacity;
    int64_t num_bytes;
    int32_t num_folders;  // in the folders that were named: they are not read
} RecordFiles;

// STATUS_IO names what is not there, and folders without such files.
Status record_files_open(RecordFiles* out, char** paths, int num_paths);
void record_files_close(RecordFiles* files);  // an all-zero one is fine

// Does its name say that it is JSON: *.json, *.jsonl, *.ndjson, packed or not?
bool record_files_is_data(const char* path);

// From its beginning.
Status record_files_read(const RecordFiles* files, int32_t file, const RecordOptions* options,
                         RecordReader* out);
