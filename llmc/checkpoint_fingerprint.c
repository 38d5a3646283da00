// Do ranks look at the same files? (checkpoint_seal.h) A number that is cheap to make, for files of any
// length; what a seal covers is checked value by value besides.
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint_file.h"
#include "checkpoint_seal.h"

enum { NUM_BLOCKS = 64, BLOCK_BYTES = 4096 };

static bool add_file(uint64_t* sum, const char* path) {
    CheckpointFile file;
    uint32_t block[BLOCK_BYTES / 4] = {0};
    if (!checkpoint_file_open(&file, path, NULL)) { return false; }
    const int64_t num_bytes = file.num_bytes;
    int64_t last = num_bytes > BLOCK_BYTES ? num_bytes - BLOCK_BYTES : 0, at = 0;
    bool ok = true;
    checkpoint_seal_add(sum, -1, &num_bytes, 2, 4);
    for (int i = 0; ok && i < NUM_BLOCKS && (i == 0 || at < last); i++) {
        at = last / (NUM_BLOCKS - 1) * i;
        if (i == NUM_BLOCKS - 1) { at = last; }
        int64_t part = num_bytes - at < BLOCK_BYTES ? num_bytes - at : BLOCK_BYTES;
        memset(block, 0, sizeof block);
        ok = checkpoint_file_read(&file, block, part, at, NULL);
        checkpoint_seal_add(sum, 1 + (int64_t)i * BLOCK_BYTES, block, BLOCK_BYTES / 4, 4);
    }
    checkpoint_file_close(&file);
    return ok;
}

static bool is_of_a_model(const char* name) {
    const char* end = strrchr(name, '.');
    return strcmp(name, "config.json") == 0 || (end != NULL && strcmp(end, ".safetensors") == 0);
}

// In whatever order they are listed.
static bool add_folder(uint64_t* sum, const char* path) {
    DIR* dir = opendir(path);
    bool ok = dir != NULL;
    for (const struct dirent* entry = ok ? readdir(dir) : NULL; entry != NULL; entry = readdir(dir)) {
        char name[CHECKPOINT_PATH_CHARS];
        if (!is_of_a_model(entry->d_name)) { continue; }
        snprintf(name, sizeof name, "%.*s/%.255s", CHECKPOINT_PATH_CHARS - 300, path, entry->d_name);
        uint64_t of_name = 0, of_file = 0;
        for (const char* c = entry->d_name; *c != '\0'; c++) {
            uint32_t letter = (unsigned char)*c;
            checkpoint_seal_add(&of_name, c - entry->d_name, &letter, 1, 4);
        }
        ok = add_file(&of_file, name) && ok;
        *sum += of_file * (of_name | 1);
    }
    if (dir != NULL) { closedir(dir); }
    return ok;
}

uint64_t checkpoint_fingerprint(const char* path) {
    struct stat about;
    uint64_t sum = 0;
    bool is_folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    if (!(is_folder ? add_folder(&sum, path) : add_file(&sum, path))) { return 0; }
    return sum != 0 ? sum : 1;
}
