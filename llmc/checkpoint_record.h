// checkpoint_record.h -- the run's record behind a state's values (internal to checkpoint; layout in
// checkpoint.h).
#pragma once

#include "checkpoint.h"

int64_t checkpoint_record_bytes(const CheckpointRun* run);
// at: in bytes, where the state's values end. first: of the body's values, the next index; *sum gets the
// record's part, sum NULL: nobody asks.
bool checkpoint_record_write(CheckpointFile* file, const CheckpointRun* run, int64_t at, int64_t first,
                             uint64_t* sum, char* error);
// Of a file that is not sealed, what follows may be llm.c's loader's, or nothing: then out->position stays.
bool checkpoint_record_read(CheckpointRun* out, const CheckpointFile* file, int64_t at, int64_t first,
                            uint64_t* sum, char* error);
