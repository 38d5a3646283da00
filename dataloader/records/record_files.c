#include "record_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, COPY_BYTES = 1 << 16 };

static Status add_file(RecordFiles* files, const char* path, int copy, int64_t num_bytes) {
    if (files->num_files == files->capacity) {
        int32_t capacity = 2 * files->capacity + 16;
        RecordFile* grown = realloc(files->files, (size_t)capacity * sizeof *grown);
        if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its name", path); }
        files->files = grown;
        files->capacity = capacity;
    }
    char* name = strdup(path);
    if (name == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its name", path); }
    files->files[files->num_files++] = (RecordFile){name, copy, num_bytes};
    files->num_bytes += num_bytes;
    return STATUS_OK;
}

static Status copy_bytes(int from, int to, const char* name, int64_t* num_bytes) {
    char* bytes = malloc(COPY_BYTES);
    if (bytes == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory to read it", name); }
    Status status = STATUS_OK;
    for (ssize_t got = 1; got != 0 && status == STATUS_OK;) {
        got = read(from, bytes, COPY_BYTES);
        if (got < 0 && errno == EINTR) { continue; }
        if (got < 0) { status = FAIL(STATUS_IO, "%s: cannot read: %s", name, strerror(errno)); }
        for (ssize_t at = 0; at < got && status == STATUS_OK;) {
            ssize_t put = write(to, bytes + at, (size_t)(got - at));
            if (put < 0 && errno != EINTR) {
                status = FAIL(STATUS_IO,
                              "%s: cannot copy it to a temporary file: %s ---> set TMPDIR to a folder with "
                              "room",
                              name, strerror(errno));
            }
            at += put > 0 ? put : 0;
        }
        *num_bytes += got > 0 ? got : 0;
    }
    free(bytes);
    return status;
}

// All of an open file to a nameless one.
static Status add_copy(RecordFiles* files, int from, const char* name) {
    const char* folder = getenv("TMPDIR");
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/prepare_data_XXXXXX",
             folder != NULL && folder[0] != '\0' ? folder : "/tmp");
    int copy = mkstemp(path);
    if (copy < 0) {
        return FAIL(STATUS_IO, "%s: cannot create: %s ---> set TMPDIR to a folder with room", path,
                    strerror(errno));
    }
    unlink(path);
    int64_t num_bytes = 0;
    Status status = copy_bytes(from, copy, name, &num_bytes);
    if (status == STATUS_OK) { status = add_file(files, name, copy, num_bytes); }
    if (status != STATUS_OK) { close(copy); }
    return status;
}

bool record_files_is_data(const char* path) {
    static const char* const endings[] = {".json", ".jsonl", ".ndjson"};
    static const char* const packings[] = {"", ".gz", ".zst"};
    const char* slash = strrchr(path, '/');
    const char* name = slash != NULL ? slash + 1 : path;
    size_t length = strlen(name);
    for (int e = 0; e < 3 && name[0] != '.'; e++) {
        for (int p = 0; p < 3; p++) {
            char ending[16];
            int chars = snprintf(ending, sizeof ending, "%s%s", endings[e], packings[p]);
            if (length > (size_t)chars && strcmp(name + length - (size_t)chars, ending) == 0) { return true; }
        }
    }
    return false;
}

static int is_data_entry(const struct dirent* entry) {
    return record_files_is_data(entry->d_name);
}

static int32_t count_folders(const char* folder) {
    DIR* stream = opendir(folder);
    int32_t num_folders = 0;
    for (struct dirent* entry; stream != NULL && (entry = readdir(stream)) != NULL;) {
        char path[PATH_BYTES];
        struct stat info;
        if (entry->d_name[0] == '.') { continue; }
        int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        num_folders += length < PATH_BYTES && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    }
    if (stream != NULL) { closedir(stream); }
    return num_folders;
}

static Status add_path(RecordFiles* files, const char* path, bool in_folder);

static Status add_folder(RecordFiles* files, const char* folder) {
    struct dirent** entries;
    int num_entries = scandir(folder, &entries, is_data_entry, alphasort);
    if (num_entries < 0) { return FAIL(STATUS_IO, "%s: cannot list: %s", folder, strerror(errno)); }
    Status status = STATUS_OK;
    int32_t num_folders = count_folders(folder);
    files->num_folders += num_folders;
    if (num_entries == 0) {
        status =
            FAIL(STATUS_IO, "%s: no *.json or *.jsonl (.gz, .zst) in this folder%s ---> name the files%s",
                 folder, num_folders > 0 ? ", and those in it are not read" : "",
                 num_folders > 0 ? ", or the folders" : "");
    }
    for (int i = 0; i < num_entries; i++) {
        char path[PATH_BYTES];
        int length = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (status == STATUS_OK && length >= PATH_BYTES) {
            status = FAIL(STATUS_IO, "%.60s...: path too long", folder);
        }
        if (status == STATUS_OK) { status = add_path(files, path, true); }
        free(entries[i]);
    }
    free(entries);
    return status;
}

static Status add_path(RecordFiles* files, const char* path, bool in_folder) {
    struct stat info;
    if (strcmp(path, "-") == 0) { return add_copy(files, STDIN_FILENO, "stdin"); }
    if (stat(path, &info) != 0) { return FAIL(STATUS_IO, "%s: %s", path, strerror(errno)); }
    if (S_ISDIR(info.st_mode)) { return in_folder ? STATUS_OK : add_folder(files, path); }
    if (S_ISREG(info.st_mode)) { return add_file(files, path, -1, info.st_size); }
    FILE* stream = fopen(path, "rbe");
    if (stream == NULL) { return FAIL(STATUS_IO, "%s: cannot open: %s", path, strerror(errno)); }
    Status status = add_copy(files, fileno(stream), path);
    fclose(stream);
    return status;
}

Status record_files_open(RecordFiles* out, char** paths, int num_paths) {
    *out = (RecordFiles){0};
    for (int i = 0; i < num_paths; i++) {
        Status status = add_path(out, paths[i], false);
        if (status != STATUS_OK) {
            record_files_close(out);
            return status;
        }
    }
    return STATUS_OK;
}

void record_files_close(RecordFiles* files) {
    for (int32_t i = 0; i < files->num_files; i++) {
        free(files->files[i].path);
        if (files->files[i].copy >= 0) { close(files->files[i].copy); }
    }
    free(files->files);
    *files = (RecordFiles){0};
}

Status record_files_read(const RecordFiles* files, int32_t file, const RecordOptions* options,
                         RecordReader* out) {
    const RecordFile* from = &files->files[file];
    if (from->copy < 0) { return record_reader_open(out, from->path, options); }
    int copy = dup(from->copy);
    FILE* stream = copy >= 0 && lseek(copy, 0, SEEK_SET) == 0 ? fdopen(copy, "rb") : NULL;
    if (stream == NULL) {
        return FAIL(STATUS_IO, "%s: cannot read its copy: %s", from->path, strerror(errno));
    }
    return record_reader_open_stream(out, stream, from->path, options);
}
