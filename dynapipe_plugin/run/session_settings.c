// session_settings.c -- the plugin's options travel with the position in the data, so that whatever trainer
// goes on from a checkpoint hears what it does otherwise.
//
//     8 bytes "dpipopt1", uint32 number of bytes, lines "--mixture=proportional"; then the position itself
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"
#include "../../util/options.h"
#include "session.h"

static const char MAGIC[8] = {'d', 'p', 'i', 'p', 'o', 'p', 't', '1'};

typedef struct {
    char magic[8];
    uint32_t num_bytes;
} Header;

// The position holds the training data's own. Losses of a validation on other text are not to be compared.
static void add_validation_contents(const Dynapipe* dp, FILE* out) {
    const SampleShards* shards = dp->val != NULL ? loader_shards(dp->val) : NULL;
    char text[32];
    uint64_t hash = HASH_SEED;
    if (shards == NULL) { return; }
    for (int32_t f = 0; f < shards->num_files; f++) {
        hash = hash_bytes(hash, &shards->files[f].content_id, sizeof hash);
    }
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash_finish(hash));
    settings_add(out, "hash of the text of -j", text);
}

// malloc'ed; NULL: no memory
static char* settings_of(const Dynapipe* dp, size_t* num_bytes) {
    char* text = NULL;
    FILE* memory = open_memstream(&text, num_bytes);
    if (memory == NULL) { return NULL; }
    session_options_settings(&dp->options, memory);
    add_validation_contents(dp, memory);
    return fclose(memory) == 0 ? text : NULL;
}

Status session_settings_add(Dynapipe* dp, const void** position, size_t* num_bytes) {
    size_t num_chars = 0;
    char* text = settings_of(dp, &num_chars);
    Header header = {.num_bytes = (uint32_t)num_chars};
    size_t all_bytes = sizeof header + num_chars + *num_bytes;
    char* all = text != NULL ? malloc(all_bytes) : NULL;
    if (all == NULL) {
        free(text);
        return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data");
    }
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    memcpy(all, &header, sizeof header);
    memcpy(all + sizeof header, text, num_chars);
    memcpy(all + sizeof header + num_chars, *position, *num_bytes);
    free(text);
    free(dp->position);
    *position = dp->position = all;
    *num_bytes = all_bytes;
    return STATUS_OK;
}

static Status print_differences(const Dynapipe* dp, const char* saved, size_t saved_bytes) {
    size_t num_chars = 0;
    char *now = settings_of(dp, &num_chars), *before = strndup(saved, saved_bytes);
    Status status =
        now != NULL && before != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for the options saved");
    if (status == STATUS_OK && dp->transport.rank == 0) { settings_print_differences(stderr, before, now); }
    free(now);
    free(before);
    return status;
}

Status session_settings_take(const Dynapipe* dp, const void** position, size_t* num_bytes) {
    Header header;
    bool is_whole = *num_bytes >= sizeof header;
    if (is_whole) { memcpy(&header, *position, sizeof header); }
    is_whole = is_whole && memcmp(header.magic, MAGIC, sizeof MAGIC) == 0 &&
               header.num_bytes <= *num_bytes - sizeof header;
    if (!is_whole) {
        return FAIL(STATUS_BAD_FORMAT, "the checkpoint's position in the data is not one that this program "
                                       "saved ---> begin with its model (-e), or use another checkpoint");
    }
    const char* text = (const char*)*position + sizeof header;
    TRY(print_differences(dp, text, header.num_bytes));
    *position = text + header.num_bytes;
    *num_bytes -= sizeof header + header.num_bytes;
    return STATUS_OK;
}
