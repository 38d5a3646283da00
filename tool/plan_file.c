#include "plan_file.h"

#include <stdlib.h>
#include <string.h>

#include "../util/files.h"

Status plan_file_load(Plan* out, const char* path, Arena* arena) {
    char* text = NULL;
    size_t num_bytes = 0;
    TRY(file_read_text(&text, &num_bytes, path));
    Status status;
    if (num_bytes > 0 && text[0] == '{') {
        status = FAIL(STATUS_BAD_FORMAT, "%s: a plan as JSON ---> give its text form, from plan --text FILE",
                      path);
    } else if (memchr(text, '\0', num_bytes) != NULL) {
        status = FAIL(STATUS_BAD_FORMAT, "%s: no text ---> give a plan from plan --text FILE", path);
    } else {
        status = plan_parse(out, text, path, arena);
    }
    free(text);
    return status;
}
