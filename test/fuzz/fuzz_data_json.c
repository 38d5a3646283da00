/*
fuzz_data_json.c -- any bytes as a data.json: what is read of it is written and read again as the same; and
its template, where it is one, filled with a question, which stands in it as often as its field does.
*/
#include <stdio.h>

#include "../../dataloader/data_json.h"
#include "../../dataloader/records/records.h"
#include "fuzz.h"

static bool equal(const char* a, const char* b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

// A record's question stands in the prompt as often as the form has its field.
static void try_form(const DataTemplate* texts) {
    RecordTemplate form;
    if (record_template_of(&form, texts) != STATUS_OK) {
        REQUIRE(fuzz_has_remedy(status_message()));
        return;
    }
    const char* name;
    size_t num_fields = 0, num_others = 0, name_chars;
    for (const char* at = form.form.prompt; (at = record_template_field(at, &name, &name_chars)) != NULL;) {
        const bool is_inputs = name_chars == 6 && strncmp(name, "inputs", 6) == 0;
        num_fields += is_inputs;
        num_others += !is_inputs;
    }
    Arena arena = {0};
    const JsonValues values = {.path = (char*)(uintptr_t) "fuzz"};
    RecordText asked;
    Status status = record_template_ask(&form, (RecordText){"\1\2\3", 3}, &values, &arena, &asked);
    REQUIRE(status == STATUS_OK || num_others > 0);
    if (status == STATUS_OK && num_others == 0) {
        size_t num_found = 0;
        for (size_t i = 0; i < asked.num_bytes; i++) { num_found += asked.text[i] == '\2'; }
        REQUIRE(num_found >= num_fields);
        REQUIRE(asked.num_bytes <= strlen(form.form.prompt) - 5 * num_fields);
    }
    arena_free(&arena);
    record_template_close(&form);
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
    for (size_t i = 0; i < sizeof(DataTemplate) / sizeof(char*); i++) {
        REQUIRE(equal(((const char* const*)&first.form)[i], ((const char* const*)&second.form)[i]));
    }
    REQUIRE(equal(first.inputs_field, second.inputs_field));
    REQUIRE(first.long_samples == second.long_samples);
    try_form(&first.form);
    free(text);
    data_json_free(&first);
    data_json_free(&second);
    return 0;
}
