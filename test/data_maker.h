/*
data_maker.h -- sample files for tests whose every token can be told from (sample id, place) alone.
*/
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../dataloader/prepare/sample_writer.h"
#include "../dataloader/sample_file.h"
#include "../util/files.h"
#include "../util/numbers.h"
#include "test.h"

enum { MAKER_MAX_GAPS = 3 };

typedef struct {
    int32_t task, n_input, n_target;
} MadeSample;

typedef struct {
    int32_t num_gaps;
    SampleGap gaps[MAKER_MAX_GAPS];
} MadeGaps;

typedef struct {
    int32_t vocab;  // the end-of-text token is vocab - 1
    bool pairs;     // as for T5: padding is token 0
    int32_t input_tail;
    int32_t num_samples;
    MadeSample* samples;
    MadeGaps* gaps;  // [num_samples]; NULL: none
} MadeData;

static inline void maker_dir_create(char dir[64]) {
    snprintf(dir, 64, "/tmp/dynapipe_data_XXXXXX");
    CHECK(mkdtemp(dir) != NULL);
}

static inline int maker_dir_count(const char* dir) {
    DIR* handle = opendir(dir);
    int num_files = 0;
    for (struct dirent* entry; handle != NULL && (entry = readdir(handle)) != NULL;) {
        num_files += entry->d_name[0] != '.';
    }
    if (handle != NULL) { closedir(handle); }
    return num_files;
}

static inline void maker_dir_remove(const char* dir) {
    DIR* handle = opendir(dir);
    for (struct dirent* entry; handle != NULL && (entry = readdir(handle)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (entry->d_name[0] != '.') { unlink(path); }
    }
    if (handle != NULL) { closedir(handle); }
    rmdir(dir);
}

static inline int32_t maker_token(const MadeData* data, int64_t id, int64_t i) {
    int64_t length = (int64_t)data->samples[id].n_input + data->samples[id].n_target;
    uint64_t word = rng_mix((uint64_t)id * 1000003u + (uint64_t)i);
    return i == length - 1 ? data->vocab - 1 : (int32_t)(word % (uint64_t)(data->vocab - 1));
}

// Samples of random lengths, mostly short, with a tail up to `longest` tokens.
static inline MadeData maker_random(Rng* rng, int32_t num_samples, int32_t num_tasks, int32_t longest,
                                    int32_t vocab) {
    MadeData data = {.vocab = vocab, .num_samples = num_samples};
    data.samples = (MadeSample*)calloc((size_t)num_samples + 1, sizeof *data.samples);
    for (int32_t i = 0; i < num_samples; i++) {
        int32_t most = rng_below(rng, 10) == 0 ? longest : longest / 8 + 2;
        int32_t n_target = rng_between(rng, 1, most / 2);
        int32_t n_input = rng_between(rng, n_target == 1, most - n_target);
        data.samples[i] = (MadeSample){
            .task = (int32_t)rng_below(rng, (uint32_t)num_tasks), .n_input = n_input, .n_target = n_target};
    }
    return data;
}

// Two thirds of the samples become conversations: gaps in their targets, wherever there is room.
static inline void maker_add_gaps(Rng* rng, MadeData* data) {
    data->gaps = (MadeGaps*)calloc((size_t)data->num_samples + 1, sizeof *data->gaps);
    for (int32_t i = 0; i < data->num_samples; i++) {
        const MadeSample* sample = &data->samples[i];
        MadeGaps* gaps = &data->gaps[i];
        int32_t at = sample->n_input, end = sample->n_input + sample->n_target;
        while (i % 3 > 0 && gaps->num_gaps < MAKER_MAX_GAPS) {
            int32_t begin = at + rng_between(rng, 1, 9);
            at = begin + rng_between(rng, 1, 9);
            if (at >= end) { break; }
            gaps->gaps[gaps->num_gaps++] = (SampleGap){(uint32_t)begin, (uint32_t)at};
        }
    }
}

static inline bool maker_in_gap(const MadeGaps* gaps, int32_t i) {
    for (int32_t g = 0; g < gaps->num_gaps; g++) {
        if (i >= (int32_t)gaps->gaps[g].begin && i < (int32_t)gaps->gaps[g].end) { return true; }
    }
    return false;
}

static inline void maker_free(MadeData* data) {
    free(data->samples);
    free(data->gaps);
    *data = (MadeData){0};
}

static inline const char* maker_task_name(int32_t task) {
    static const char* const names[] = {"add", "sort", "copy", "facts", "words", "long", "reverse", "qa"};
    return names[task % 8];
}

// Write samples [begin, end) to dir/name.
static inline void maker_write(const MadeData* data, int32_t begin, int32_t end, const char* dir,
                               const char* name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    SampleWriter* writer;
    SampleVocab vocab = {data->vocab,     data->vocab - 1,   data->pairs ? 0 : -1,
                         TOKENIZER_BYTES, INPUT_END_NEWLINE, 0,
                         data->input_tail};
    CHECK_OK(sample_writer_open(&writer, path, &vocab));
    for (int32_t id = begin; id < end; id++) {
        MadeSample sample = data->samples[id];
        int32_t length = sample.n_input + sample.n_target;
        int32_t* tokens = (int32_t*)calloc((size_t)length, sizeof *tokens);
        for (int32_t i = 0; i < length; i++) { tokens[i] = maker_token(data, id, i); }
        MadeGaps gaps = data->gaps != NULL ? data->gaps[id] : (MadeGaps){.num_gaps = 0};
        CHECK_OK(sample_writer_add(writer, maker_task_name(sample.task), tokens, sample.n_input,
                                   sample.n_target, gaps.gaps, gaps.num_gaps));
        free(tokens);
    }
    CHECK_OK(sample_writer_finish(writer));
}

// llm.c's token file of these tokens.
static inline void maker_write_llmc(const char* path, int32_t magic, int32_t version, const int32_t* tokens,
                                    int32_t num_tokens) {
    FileWriter writer;
    CHECK_OK(file_writer_open(&writer, path));
    int32_t header[256] = {magic, version, num_tokens};
    file_writer_write(&writer, header, sizeof header);
    for (int32_t i = 0; i < num_tokens; i++) {
        uint16_t narrow = (uint16_t)tokens[i];
        file_writer_write(&writer, version == 1 ? (void*)&narrow : (void*)(uintptr_t)&tokens[i],
                          version == 1 ? 2 : 4);
    }
    CHECK_OK(file_writer_commit(&writer));
}
