/*
options.h -- one table of GNU long options for parsing, defaults, ranges and --help.

Options are removed from argv (as MPI_Init does), so that the host program parses the rest. "--name value" and
"--name=value" both work; a bool takes no value. Names match exactly: an unknown one, a missing or malformed
value, or one outside the range is an error that lists the valid ones.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "status.h"

typedef enum {
    OPTION_BOOL,    // bool:    present = true
    OPTION_INT,     // int32_t: min..max
    OPTION_INT64,   // int64_t: min..max; suffixes K, M, G (powers of 1024) are read
    OPTION_DOUBLE,  // double:  min..max
    OPTION_STRING,  // const char*: borrowed from argv or from the table
    OPTION_CHOICE,  // int32_t: index into `choices`, words separated by '|'
} OptionType;

typedef struct {
    const char* name;  // with the two dashes
    OptionType type;
    size_t offset;           // of the field in the options struct
    const char* initial;     // default as text; NULL: the field's zero value
    double min, max;         // for numbers; both 0: any
    const char* choices;     // for OPTION_CHOICE: "dynamic|packed|padded"
    const char* value_name;  // in --help: "N", "FILE"; NULL for a bool or a choice
    const char* help;        // one line
} OptionSpec;

// Fills `options` with the defaults of the table.
Status options_defaults(const OptionSpec* specs, int num_specs, void* options);

// Takes the options of the table, whose names begin with "-" or "--", out of argv; argc and argv shrink. An
// unknown word with "--" is an error; with "-" it stays, like all other words. Stops at a bare "--", which is
// removed too. "--help" and "--version" stay in argv: the host prints its own help, then calls
// options_print(). The host's own options, each with a value, stay as well: `left`, their names ending with
// NULL (NULL: none); of "--theirs=--ours", another program's name, it and names near it are errors that tell
// --ours, or the sentence that stands there.
// STATUS_BAD_OPTION: the message names the option and the valid values.
Status options_take(const OptionSpec* specs, int num_specs, void* options, int* argc, char** argv,
                    const char* const* left);

// Is --help or -h among the arguments?
bool options_want_help(int argc, char** argv);

void options_print(const OptionSpec* specs, int num_specs, FILE* out);

// "name=value" of the option called `name`; nothing if there is none.
void options_add_setting(const OptionSpec* specs, int num_specs, const void* options, const char* name,
                         FILE* out);

// --- settings ---------------------------------------------------------------------------------------------

// The options of a run as lines "name=value", stored in its checkpoints, so that a resumed run can report
// changes.

#ifdef __cplusplus
extern "C" {
#endif

// Control characters of a value become \xNN (status.h); NULL: not given.
void settings_add(FILE* out, const char* name, const char* value);
// The fewest digits that identify the value.
void settings_add_number(FILE* out, const char* name, double value);
// The value of `name`, *num_chars long, without a NUL; NULL: absent.
const char* settings_find(const char* settings, const char* name, size_t* num_chars);
// Prints a line for each setting that differs: "warning: -l is 0.001, saved with 0.0003". Returns how many.
int settings_print_differences(FILE* out, const char* saved, const char* now);

#ifdef __cplusplus
}
#endif
