#include "save_interval.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 2000000000 };  // steps, or seconds

static int64_t seconds_of(char unit) {
    return unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
}

Status save_interval_parse(SaveInterval* out, const char* option, const char* text) {
    char* end = NULL;
    errno = 0;
    long long number = isdigit((unsigned char)text[0]) ? strtoll(text, &end, 10) : -1;
    bool is_steps = end != NULL && end[0] == '\0';
    int64_t unit = end != NULL && end[0] != '\0' && end[1] == '\0' ? seconds_of(end[0]) : 0;
    bool fits = errno == 0 && number >= 0 && number <= MOST / (unit > 0 ? unit : 1);
    if (!fits || !(is_steps || (unit > 0 && number > 0))) {
        return FAIL(STATUS_BAD_OPTION,
                    "%s: '%.40s' ---> give steps (100), a time (90s, 10m, 2h), or 0 for one at the end only",
                    option, text);
    }
    *out = (SaveInterval){.steps = is_steps ? (int32_t)number : 0,
                          .seconds = is_steps ? 0 : (int32_t)(number * unit)};
    return STATUS_OK;
}

bool save_interval_is_due(const SaveInterval* every, int32_t step, double seconds) {
    if (every->steps > 0) { return step % every->steps == 0; }
    return every->seconds > 0 && seconds >= every->seconds;
}
