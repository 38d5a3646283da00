/*
fuzz_data_json.c -- any bytes as a data.json: what is read of it is written and read again as the same; and
its template filled with a question, which stands in it as often as its field does.
*/
#include <stdio.h>

#include "../../dataloader/data_json.h"
#include "fuzz.h"

static bool equal(const char* a, const char* b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static const char* find(void* context, const char* field, size_t field_chars, size_t* num_bytes) {
    bool is_inputs = field_chars == 6 && strncmp(field, "inputs", 6) == 0;
    *(int*)context += is_inputs;
    *num_bytes = 3;
    return is_inputs ? "\1\2\3" : NULL;
}

// Without doubled braces, which may stand around a field or be it.
static void try_form(const char* form) {
    int num_fields = 0, num_found = 0;
    size_t num_bytes;
    bool doubled = strstr(form, "{{") != NULL || strstr(form, "}}") != NULL;
    for (const char* at = form; (at = strstr(at, "{inputs}")) != NULL; at++) { num_fields++; }
    char* text = data_json_fill(form, find, &num_found, &num_bytes);
    REQUIRE(text != NULL && num_found <= num_fields);
    REQUIRE(doubled || num_found == num_fields);
    REQUIRE(doubled || num_bytes == strlen(form) - (size_t)num_fields * 5);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    DataJson first, second;
    char* text = fuzz_text(data, num_bytes);
    Status status = data_json_parse(&first, text, num_bytes, "fuzz/data.json");
    free(text);
    if (status != STATUS_OK) {
        REQUIRE(status == STATUS_BAD_FORMAT && fuzz_has_remedy(status_message()));
        return 0;
    }
    const SampleVocab *a = &first.vocab, *b = &second.vocab;
    text = data_json_text(&first);
    REQUIRE(text != NULL && data_json_parse(&second, text, strlen(text), "again") == STATUS_OK);
    REQUIRE(a->num_tokens == b->num_tokens && a->eot_token == b->eot_token && a->pad_token == b->pad_token);
    REQUIRE(a->tokenizer == b->tokenizer && a->input_end == b->input_end && a->hash == b->hash);
    REQUIRE(equal(first.name, second.name) && equal(first.prompt, second.prompt));
    REQUIRE(equal(first.system, second.system) && equal(first.user, second.user));
    REQUIRE(equal(first.assistant, second.assistant) && equal(first.next, second.next));
    REQUIRE(equal(first.joint, second.joint) && equal(first.turn_end, second.turn_end));
    if (first.prompt != NULL) { try_form(first.prompt); }
    free(text);
    data_json_free(&first);
    data_json_free(&second);
    return 0;
}
