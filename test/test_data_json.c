// data.json comes back as it was written, and a broken one is told.
#include "../dataloader/data_json.h"

#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

static char folder[] = "/tmp/test_data_json_XXXXXX";

static void put(const char* name, const char* text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE* file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(text, file);
    fclose(file);
}

static bool equal(const char* a, const char* b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static void it_comes_back_as_it_was_written(void) {
    const char *const quotes = "\"{inputs}\"\n<|im_end|> \xc3\xa9", *const empty = "";
    const DataJson ways[] = {
        {.vocab = {257, 256, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 0xfedcba9876543210u}},
        {.vocab = {50257, 50256, -1, TOKENIZER_GPT2, INPUT_END_NONE, 1},
         .form = {.prompt = quotes, .name = empty}},
        {.vocab = {384, 1, 0, TOKENIZER_BYT5, INPUT_END_EOT, 0},
         .form = {.system = quotes, .user = empty, .assistant = quotes}},
        {.vocab = {32100, 1, 0, TOKENIZER_SENTENCEPIECE, INPUT_END_EOT, 7},
         .form = {.name = quotes,
                  .user = quotes,
                  .context = quotes,
                  .next = empty,
                  .joint = quotes,
                  .turn_end = quotes}},
        {.vocab = {257, 256, -1, TOKENIZER_BYTES, INPUT_END_NONE, 1},
         .form = {.record = quotes},
         .inputs_field = quotes,
         .targets_field = empty,
         .task_field = quotes,
         .long_samples = LONG_CUT_MIDDLE},
    };
    for (int w = 0; w < 5; w++) {
        DataJson got;
        bool is_there = false;
        const SampleVocab *a = &ways[w].vocab, *b = &got.vocab;
        CHECK_EQ(data_json_write(&ways[w], folder), STATUS_OK);
        CHECK_EQ(data_json_read(&got, folder, &is_there), STATUS_OK);
        CHECK(is_there);
        CHECK(a->num_tokens == b->num_tokens && a->eot_token == b->eot_token && a->pad_token == b->pad_token);
        CHECK(a->tokenizer == b->tokenizer && a->input_end == b->input_end && a->hash == b->hash);
        for (size_t i = 0; i < sizeof(DataTemplate) / sizeof(char*); i++) {  // missing: as plain has it
            const char* wanted = ((const char* const*)&ways[w].form)[i];
            if (wanted == NULL) { wanted = ((const char* const*)&data_plain)[i]; }
            CHECK(equal(wanted, ((const char* const*)&got.form)[i]));
        }
        CHECK(equal(ways[w].inputs_field, got.inputs_field) && equal(ways[w].task_field, got.task_field));
        CHECK(equal(ways[w].targets_field, got.targets_field));
        CHECK_EQ(ways[w].long_samples, got.long_samples);
        data_json_free(&got);
    }
}

static void what_is_broken_is_told(void) {
    const char* const whole = "{\"tokenizer\": \"bytes\", \"tokens\": 257, \"end\": 256, \"padding\": -1, "
                              "\"input_end\": \"none\"%s}";
    const char* const texts[] = {"",
                                 "[]",
                                 "{",
                                 "{}",
                                 "{\"tokenizer\": \"words\"}",
                                 ", \"template\": {\"user\": 3}",
                                 ", \"tokens\": 3",
                                 ", \"fields\": {\"inputs\": []}",
                                 ", \"long_samples\": \"cut\"",
                                 ", \"long_samples\": 1"};
    const char* const words[] = {"not JSON",         "\"tokenizer\"",   "not JSON", "\"tokenizer\"",
                                 "\"tokenizer\"",    "\"user\"",        "not JSON", "\"inputs\"",
                                 "\"long_samples\"", "\"long_samples\""};
    for (int i = 0; i < 10; i++) {
        char text[400];
        DataJson got;
        bool is_there;
        snprintf(text, sizeof text, texts[i][0] == ',' ? whole : "%s", texts[i]);
        put("data.json", text);
        CHECK_EQ(data_json_read(&got, folder, &is_there), STATUS_BAD_FORMAT);
        CHECK(strstr(status_message(), words[i]) != NULL);
        CHECK(strstr(status_message(), "data.json") != NULL && strstr(status_message(), "--->") != NULL);
        CHECK(got.form.user == NULL && got.owned == NULL);
    }
    // of every number, one out of range
    const char* const numbers[] = {
        "\"tokens\": 0, \"end\": 1, \"padding\": 0", "\"tokens\": 5, \"end\": -1, \"padding\": 0",
        "\"tokens\": 5, \"end\": 1, \"padding\": -2", "\"tokens\": 5.5, \"end\": 1, \"padding\": 0",
        "\"tokens\": 99999999999, \"end\": 1, \"padding\": 0"};
    for (int i = 0; i < 5; i++) {
        char text[400];
        DataJson got;
        bool is_there;
        snprintf(text, sizeof text, "{\"tokenizer\": \"byt5\", \"input_end\": \"eos\", %s}", numbers[i]);
        put("data.json", text);
        CHECK_EQ(data_json_read(&got, folder, &is_there), STATUS_BAD_FORMAT);
    }
}

static void what_json_cannot_say_is_not_written(void) {
    const DataJson data = {.vocab = {257, 256, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 5},
                           .form = {.prompt = "\xff{inputs}"}};
    CHECK_EQ(data_json_write(&data, folder), STATUS_BAD_FORMAT);
    CHECK(strstr(status_message(), "UTF-8") != NULL);
}

static void an_absent_one_is_no_error(void) {
    char path[256];
    DataJson got;
    bool is_there = true;
    snprintf(path, sizeof path, "%s/data.json", folder);
    unlink(path);
    CHECK_EQ(data_json_read(&got, folder, &is_there), STATUS_OK);
    CHECK(!is_there);
    snprintf(path, sizeof path, "%s/copy", folder);
    mkdir(path, 0755);
    put("vocab.json", "{}");
    CHECK_EQ(data_json_copy(folder, path), STATUS_OK);  // of a folder that is not of prepared data: nothing
    snprintf(path, sizeof path, "%s/copy/vocab.json", folder);
    CHECK(access(path, F_OK) != 0);
}

static void a_copy_has_the_tokenizers_files(void) {
    char path[400], to[256];
    const DataJson data = {.vocab = {257, 256, -1, TOKENIZER_BYTES, INPUT_END_NEWLINE, 5}};
    snprintf(to, sizeof to, "%s/copy", folder);
    put("merges.txt", "a b\n");
    put("train.bin", "no tokenizer's");
    CHECK_EQ(data_json_write(&data, folder), STATUS_OK);
    CHECK_EQ(data_json_copy(folder, to), STATUS_OK);
    const char* const names[] = {"data.json", "vocab.json", "merges.txt", "train.bin"};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", to, names[i]);
        CHECK_EQ(access(path, F_OK) == 0, i < 3);
    }
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    RUN(it_comes_back_as_it_was_written);
    RUN(what_is_broken_is_told);
    RUN(what_json_cannot_say_is_not_written);
    RUN(an_absent_one_is_no_error);
    RUN(a_copy_has_the_tokenizers_files);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 ? test_end() : 1;
}
