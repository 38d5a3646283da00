#include "measure_kept.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../util/files.h"
#include "../../util/numbers.h"

static bool folder(char out[MEASURE_PATH_CHARS]) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"DYNAPIPE_CACHE", ""}, {"XDG_CACHE_HOME", "/dynapipe"}, {"HOME", "/.cache/dynapipe"}};
    for (int i = 0; i < 3; i++) {
        const char* value = getenv(places[i].variable);
        if (value == NULL || value[0] == '\0') { continue; }
        int n = snprintf(out, MEASURE_PATH_CHARS, "%s%s", value, places[i].below);
        return n > 0 && n < MEASURE_PATH_CHARS;
    }
    return false;
}

// To be read by people: the signature's words; and a hash of the whole key, for what they leave out.
bool measure_kept_path(char out[MEASURE_PATH_CHARS], const char* signature, const CostMeasured* about) {
    enum { MOST_SHOWN = 100 };
    int32_t numbers[] = {about->interface, about->num_ranks, about->ranks_per_host, about->num_replicas};
    uint64_t hash = hash_bytes(HASH_SEED, numbers, sizeof numbers);
    hash = hash_finish(hash_bytes(hash, signature, strlen(signature)));
    char words[MOST_SHOWN + 1];
    size_t n = 0;
    for (const char* at = signature; *at != '\0' && n < MOST_SHOWN; at++) {
        words[n++] = isalnum((unsigned char)*at) || *at == '-' || *at == '.' ? *at : '_';
    }
    words[n] = '\0';
    if (!folder(out)) { return false; }
    size_t used = strlen(out);
    int more = snprintf(out + used, MEASURE_PATH_CHARS - used, "/%s_ranks_%d_%016llx.costs", words,
                        about->num_ranks, (unsigned long long)hash);
    return more > 0 && used + (size_t)more < MEASURE_PATH_CHARS;
}

static bool serves(const CostMeasured* kept, const CostMeasured* wanted) {
    return kept->interface == wanted->interface && kept->num_ranks == wanted->num_ranks &&
           kept->ranks_per_host == wanted->ranks_per_host && kept->num_replicas == wanted->num_replicas &&
           kept->seq_tokens >= wanted->seq_tokens && kept->target_tokens >= wanted->target_tokens;
}

bool measure_kept_load(CostModel* out, Machine* machine, char* why, const char* path, const char* signature,
                       const CostMeasured* about) {
    why[0] = '\0';
    if (access(path, F_OK) != 0) { return false; }
    CostModel* kept = malloc(sizeof *kept);
    Machine of_kept = {0};
    bool is_read = kept != NULL && cost_file_load(kept, &of_kept, path, signature) == STATUS_OK;
    if (!is_read) { snprintf(why, 256, "%s", kept != NULL ? status_message() : "no memory"); }
    bool is_good = is_read && serves(&kept->measured, about);
    if (is_good && of_kept.num_ranks != 0 && of_kept.num_ranks != about->num_ranks) {
        snprintf(why, 256, "it tells of %d ranks, there are %d", of_kept.num_ranks, about->num_ranks);
        is_good = false;
    }
    if (is_good) { *out = *kept; }
    bool wanted = is_good && machine != NULL;
    if (wanted) { *machine = of_kept; }
    if (!wanted) { free((void*)of_kept.ranks); }
    free(kept);
    return is_good;
}

// "X.costs.1234" and "X.costs.1234.tmp" that nobody has written to for an hour: of runs that were killed.
// (Their numbers are of processes on other machines, too.)
static void remove_leftovers(const char* folder) {
    enum { AN_HOUR_S = 3600 };
    DIR* dir = opendir(folder);
    if (dir == NULL) { return; }
    for (const struct dirent* entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char path[2 * MEASURE_PATH_CHARS];
        struct stat about;
        const char* number = strstr(entry->d_name, ".costs.");
        if (number == NULL) { continue; }
        const char* rest = number + strlen(".costs.");
        size_t num_digits = strspn(rest, "0123456789");
        bool is_ours = num_digits > 0 && (rest[num_digits] == '\0' || strcmp(rest + num_digits, ".tmp") == 0);
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (is_ours && stat(path, &about) == 0 && time(NULL) - about.st_mtime > AN_HOUR_S) { unlink(path); }
    }
    closedir(dir);
}

// Written beside under a name of this process's own, then renamed: of several runs that end at once, one is
// kept whole.
Status measure_kept_save(const CostModel* model, const Machine* machine, const char* path,
                         const char* signature) {
    char parent[MEASURE_PATH_CHARS], mine[MEASURE_PATH_CHARS + 32];
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = '\0';
    TRY(file_make_directory(parent));
    remove_leftovers(parent);
    snprintf(mine, sizeof mine, "%s.%ld", path, (long)getpid());
    TRY(cost_file_save(model, machine, mine, signature));
    if (rename(mine, path) == 0) { return STATUS_OK; }
    Status status = FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    (void)unlink(mine);
    return status;
}
