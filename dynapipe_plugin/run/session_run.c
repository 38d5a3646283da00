// session_run.c -- the record of metrics.jsonl that says what runs: command, commit, model, machine, options.
// Each start writes one, with the step that it begins behind.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../util/status.h"
#include "../../util/program.h"
#include "session.h"

// As it would be typed, so that a shell reads the same words again.
static void print_word(FILE* out, const char* word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%";
    if (*word != '\0' && strspn(word, plain) == strlen(word)) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word != '\0'; word++) { fputs(*word == '\'' ? "'\\''" : (char[2]){*word, '\0'}, out); }
    fputc('\'', out);
}

char* session_run_command(int argc, char** argv) {
    char* text = NULL;
    size_t num_bytes;
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return NULL; }
    for (int i = 0; i < argc; i++) {
        if (i > 0) { fputc(' ', memory); }
        print_word(memory, argv[i]);
    }
    return fclose(memory) == 0 ? text : NULL;
}

// Lines "name=value" as an object; the dashes stay.
static json_t* json_options(const SessionOptions* options) {
    char* text = NULL;
    size_t num_bytes;
    json_t* object = json_object();
    FILE* memory = open_memstream(&text, &num_bytes);
    if (memory == NULL) { return object; }
    session_options_all(options, memory);
    if (fclose(memory) != 0) { return object; }
    for (char *line = text, *end; line != NULL && (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char* equals = memchr(line, '=', (size_t)(end - line));
        if (equals == NULL) { continue; }
        *equals = *end = '\0';
        json_object_set_new(object, PRINTABLE(line), json_string(PRINTABLE(equals + 1)));
    }
    free(text);
    return object;
}

static json_t* json_machine(const Dynapipe* dp) {
    char text[192];
    snprintf(text, sizeof text, "%d hosts, %d ranks of %d threads: %d stages x %d replicas",
             dp->cores.num_hosts, dp->transport.num_ranks, dp->num_threads, dynapipe_num_stages(dp),
             dynapipe_num_replicas(dp));
    return json_string(text);
}

char* session_run_json(const Dynapipe* dp) {
    char now[32];
    time_t seconds = time(NULL);
    struct tm utc;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    json_t* record =
        json_pack("{s:i,s:s,s:i,s:i,s:s,s:s,s:s,s:s,s:o,s:o}", "run", dp->first_step, "kind", "run", "step",
                  dp->first_step, "num_steps", dp->num_steps, "time", now, "command",
                  dp->command != NULL ? PRINTABLE(dp->command) : "", "commit", version_commit(), "model",
                  dp->model_name, "machine", json_machine(dp), "options", json_options(&dp->options));
    char* text = record != NULL ? json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(record);
    return text;
}
