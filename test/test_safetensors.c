// What the safetensors package wrote is read exactly; what a broken file claims is told, by tensor and field;
// what is written by several processes is read back.
#include "../llmc/safetensors.h"

#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../llmc/floatx.h"
#include "../llmc/llmc_error.h"
#include "test.h"

static char directory[] = "/tmp/test_safetensors_XXXXXX";

static const char* path_of(const char* name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static bool opens(Safetensors* file, const char* path) {
    bool ok = safetensors_open(file, path);
    if (!ok) { printf("%s\n", status_message()); }
    return ok;
}

// --- golden files ------------------------------------------------------------------------------------------

static bool read_all(const Safetensors* file, const char* name, float* values, int64_t num_values) {
    const SafetensorsTensor* tensor = safetensors_find(file, name);
    CHECK(tensor != NULL);
    if (tensor == NULL) { return false; }
    CHECK_EQ(tensor->num_values, num_values);
    bool ok = safetensors_read(file, tensor, values, 0, tensor->num_values);
    CHECK(ok);
    return ok;
}

// Bit for bit; the payload of a NaN may differ.
static int num_different(const float* a, const float* b, int num_values) {
    int num = 0;
    for (int i = 0; i < num_values; i++) {
        num += isnan(a[i]) ? !isnan(b[i]) : memcmp(&a[i], &b[i], sizeof *a) != 0;
    }
    return num;
}

static void reads_every_dtype(void) {
    Safetensors file;
    CHECK(opens(&file, "test/golden/safetensors_mixed.safetensors"));
    CHECK_EQ(file.num_tensors, 9);
    float values[24], theirs[24];
    if (read_all(&file, "f32", values, 24)) {
        for (int i = 0; i < 24; i++) { CHECK(values[i] == (float)i / 8 - 1); }
    }
    const SafetensorsTensor* f32 = safetensors_find(&file, "f32");
    CHECK_EQ(f32->num_dims, 3);
    CHECK(f32->dims[0] == 2 && f32->dims[1] == 3 && f32->dims[2] == 4);
    CHECK(read_all(&file, "f16", values, 24) && read_all(&file, "f16_is", theirs, 24));
    CHECK_EQ(num_different(values, theirs, 24), 0);
    CHECK(isnan(values[11]) && values[10] == INFINITY && values[1] == 0x1p-24f);
    CHECK(read_all(&file, "bf16", values, 20) && read_all(&file, "bf16_is", theirs, 20));
    CHECK_EQ(num_different(values, theirs, 20), 0);
    CHECK(read_all(&file, "scalar", values, 1) && values[0] == 2.5f);
    CHECK(read_all(&file, "empty", values, 0));
    CHECK(read_all(&file, "größe", values, 1) && values[0] == 1.0f);
    CHECK(!safetensors_read(&file, safetensors_find(&file, "mask"), values, 0, 3));
    CHECK(strstr(status_message(), "safetensors_mixed.safetensors: mask: dtype BOOL ---> ") != NULL);
    CHECK(safetensors_find(&file, "f") == NULL && safetensors_find(&file, "f322") == NULL);
    safetensors_close(&file);
}

static void reads_any_range(void) {
    Safetensors file;
    CHECK(opens(&file, "test/golden/safetensors_mixed.safetensors"));
    static const char* const names[] = {"f32", "f16", "bf16"};
    for (int k = 0; k < 3; k++) {
        const SafetensorsTensor* tensor = safetensors_find(&file, names[k]);
        int num = (int)tensor->num_values;
        float whole[24], part[24];
        CHECK(safetensors_read(&file, tensor, whole, 0, num));
        for (int begin = 0; begin <= num; begin++) {
            for (int end = begin; end <= num; end++) {
                CHECK(safetensors_read(&file, tensor, part, begin, end));
                CHECK_EQ(num_different(whole + begin, part, end - begin), 0);
            }
        }
    }
    safetensors_close(&file);
}

static void reads_shards(void) {
    static const char* const paths[] = {"test/golden/safetensors_shards",
                                        "test/golden/safetensors_shards/model.safetensors.index.json"};
    for (int k = 0; k < 2; k++) {
        Safetensors file;
        CHECK(opens(&file, paths[k]));
        CHECK_EQ(file.num_files, 2);
        CHECK_EQ(file.num_tensors, 3);
        float values[20];
        CHECK(read_all(&file, "a", values, 20) && values[19] == -31.0f / 8);
        CHECK(read_all(&file, "b", values, 4) && values[3] == -47.0f / 8);
        CHECK(read_all(&file, "c", values, 3) && values[0] == -50.0f / 8);
        CHECK(strstr(safetensors_path(&file, safetensors_find(&file, "b")), "model-00002-of-00002") != NULL);
        safetensors_close(&file);
    }
}

// The definition, for all 65536.
static void f16_is_exact(void) {
    int num_wrong = 0;
    for (int i = 0; i < 65536; i++) {
        int exponent = i >> 10 & 31, mantissa = i & 1023;
        double value = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
        if (exponent == 31) { value = mantissa == 0 ? INFINITY : NAN; }
        float ours = half_from_float16((uint16_t)i), theirs = (float)(i >> 15 ? -value : value);
        num_wrong += num_different(&theirs, &ours, 1);
    }
    CHECK_EQ(num_wrong, 0);
}

// --- broken files ------------------------------------------------------------------------------------------

static void write_bytes(const char* name, const void* bytes, size_t num_bytes) {
    FILE* file = fopen(path_of(name), "wb");
    CHECK(file != NULL && fwrite(bytes, 1, num_bytes, file) == num_bytes);
    if (file != NULL) { fclose(file); }
}

// A file with this header and so many bytes of values; `length`: what it claims of the header, -1: the truth.
static const char* make_file(const char* name, const char* header, int num_data_bytes, int64_t length) {
    static uint8_t bytes[1 << 16];
    size_t header_bytes = strlen(header);
    uint64_t claim = length < 0 ? header_bytes : (uint64_t)length;
    for (int i = 0; i < 8; i++) { bytes[i] = (uint8_t)(claim >> 8 * i); }
    memcpy(bytes + 8, header, header_bytes);
    memset(bytes + 8 + header_bytes, 0, (size_t)num_data_bytes);
    write_bytes(name, bytes, 8 + header_bytes + (size_t)num_data_bytes);
    return path_of(name);
}

static void check_refused(const char* path, const char* words, int line) {
    Safetensors file = {0};
    bool opened = safetensors_open(&file, path);
    if (opened || strstr(status_message(), words) == NULL || strstr(status_message(), " ---> ") == NULL) {
        printf("%s:%d: %s, \"%s\" instead of \"%s\"\n", __FILE__, line, opened ? "opened" : "refused",
               status_message(), words);
        test_failures++;
    }
    if (opened) { safetensors_close(&file); }
}
#define CHECK_REFUSED(header, num_data_bytes, words) \
    check_refused(make_file("bad.safetensors", header, num_data_bytes, -1), words, __LINE__)

#define ENTRY(dtype, shape, offsets) "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define F32_2(offsets) ENTRY("\"F32\"", "[2]", offsets)

static void lying_lengths_are_refused(void) {
    static const char good[] = "{\"w\":" F32_2("[0,8]") "}";
    const int64_t lengths[] = {0, 1, sizeof good - 2, sizeof good, sizeof good + 7, 1 << 20, INT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_refused(make_file("bad.safetensors", good, 8, lengths[i]), "header", __LINE__);
    }
    Safetensors file;
    CHECK(opens(&file, make_file("good.safetensors", good, 8, -1)));
    safetensors_close(&file);
    static const uint8_t ones[16] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
    write_bytes("bad.safetensors", ones, sizeof ones);
    check_refused(path_of("bad.safetensors"), "header of 18446744073709551615 bytes", __LINE__);
    write_bytes("bad.safetensors", ones, 7);
    check_refused(path_of("bad.safetensors"), "7 bytes are no safetensors file", __LINE__);
    write_bytes("bad.safetensors", ones, 0);
    check_refused(path_of("bad.safetensors"), "0 bytes are no safetensors file", __LINE__);
    // a sparse file large enough for what the header claims: beyond what is allowed
    uint8_t claim[9] = {0, 0, 0, 0, 1, 0, 0, 0, '{'};
    write_bytes("bad.safetensors", claim, sizeof claim);
    CHECK_EQ(truncate(path_of("bad.safetensors"), (off_t)5 << 30), 0);
    check_refused(path_of("bad.safetensors"), "100000000 are allowed", __LINE__);
}

static void broken_headers_are_refused(void) {
    CHECK_REFUSED("", 0, "header: ");
    CHECK_REFUSED("[1, 2]", 0, "header is no JSON object");
    CHECK_REFUSED("{\"w\":}", 0, "header: ");
    CHECK_REFUSED("{} {}", 0, "header: ");
    CHECK_REFUSED("{\"w\":" F32_2("[0,8]") ",\"w\":" F32_2("[0,8]") "}", 8, "duplicate");
    CHECK_REFUSED("{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
                  "duplicate");
    CHECK_REFUSED("{\"\xff\":" F32_2("[0,8]") "}", 8, "header: ");
    CHECK_REFUSED("{\"w\":[0,8]}", 8, "w ---> must be an object");
    Safetensors file;
    CHECK(opens(&file, make_file("none.safetensors", "{\"__metadata__\":{\"format\":\"pt\"}}   ", 0, -1)));
    CHECK(safetensors_find(&file, "w") == NULL);
    safetensors_close(&file);
}

static void broken_entries_are_refused(void) {
    CHECK_REFUSED("{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "w: dtype --->");
    CHECK_REFUSED("{\"w\":" ENTRY("32", "[2]", "[0,8]") "}", 8, "w: dtype --->");
    CHECK_REFUSED("{\"w\":" ENTRY("\"FLOAT32_AND_A_LONG_NAME\"", "[2]", "[0,8]") "}", 8, "w: dtype --->");
    CHECK_REFUSED("{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "w: shape --->");
    CHECK_REFUSED("{\"w\":" ENTRY("\"F32\"", "2", "[0,8]") "}", 8, "w: shape --->");
    CHECK_REFUSED("{\"w\":" ENTRY("\"F32\"", "[-2]", "[0,8]") "}", 8, "w: shape[0] --->");
    CHECK_REFUSED("{\"w\":" ENTRY("\"F32\"", "[1,2.0]", "[0,8]") "}", 8, "w: shape[1] --->");
    CHECK_REFUSED("{\"w\":" ENTRY("\"F32\"", "[1,\"2\"]", "[0,8]") "}", 8, "w: shape[1] --->");
    CHECK_REFUSED("{\"w\":" ENTRY("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "w: shape --->");
    CHECK_REFUSED("{\"w\":" ENTRY("\"F32\"", "[4611686018427387906]", "[0,8]") "}", 8, "w: shape[0] --->");
    CHECK_REFUSED("{\"w\":" ENTRY("\"F32\"", "[18446744073709551618]", "[0,8]") "}", 8, "too big integer");
    // 2^31 * 2^33 * 2 is 2^65: 2 modulo 2^64
    CHECK_REFUSED("{\"w\":" ENTRY("\"F32\"", "[2147483648,8589934592,2]", "[0,8]") "}", 8,
                  "w: shape has more");
    CHECK_REFUSED("{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "w: data_offsets --->");
    CHECK_REFUSED("{\"w\":" F32_2("[8]") "}", 8, "w: data_offsets --->");
    CHECK_REFUSED("{\"w\":" F32_2("[0,8,16]") "}", 8, "w: data_offsets --->");
    CHECK_REFUSED("{\"w\":" F32_2("[8,0]") "}", 8, "w: data_offsets --->");
    CHECK_REFUSED("{\"w\":" F32_2("[-8,0]") "}", 8, "w: data_offsets --->");
    CHECK_REFUSED("{\"w\":" F32_2("[0,8.0]") "}", 8, "w: data_offsets --->");
    CHECK_REFUSED("{\"w\":" F32_2("[0,16]") "}", 8, "w: data_offsets end at 16, the values at 8");
    CHECK_REFUSED("{\"w\":" F32_2("[0,9223372036854775807]") "}", 8, "w: data_offsets end at");
    CHECK_REFUSED("{\"w\":" F32_2("[0,4]") "}", 4, "hold 4 bytes, shape and dtype F32 ask for 8");
    CHECK_REFUSED("{\"w\":" ENTRY("\"BF16\"", "[2]", "[0,8]") "}", 8,
                  "hold 8 bytes, shape and dtype BF16 ask for 4");
    CHECK_REFUSED("{\"w\":" ENTRY("\"F64\"", "[2]", "[0,8]") "}", 8,
                  "hold 8 bytes, shape and dtype F64 ask for 16");
    CHECK_REFUSED("{\"w\":" ENTRY("\"F32\"", "[]", "[0,8]") "}", 8,
                  "hold 8 bytes, shape and dtype F32 ask for 4");
}

static void overlaps_and_holes_are_refused(void) {
    CHECK_REFUSED("{\"a\":" F32_2("[0,8]") ",\"b\":" F32_2("[4,12]") "}", 12,
                  "b: data_offsets overlap those of a");
    CHECK_REFUSED("{\"b\":" F32_2("[4,12]") ",\"a\":" F32_2("[0,8]") "}", 12,
                  "b: data_offsets overlap those of a");
    CHECK_REFUSED("{\"a\":" F32_2("[0,8]") ",\"b\":" F32_2("[0,8]") "}", 8, "overlap");
    CHECK_REFUSED("{\"a\":" F32_2("[0,8]") ",\"b\":" F32_2("[12,20]") "}", 20,
                  "b: 4 bytes before its data_offsets");
    CHECK_REFUSED("{\"a\":" F32_2("[4,12]") "}", 12, "a: 4 bytes before its data_offsets");
    CHECK_REFUSED("{\"a\":" F32_2("[0,8]") "}", 12, "4 bytes at its end belong to no tensor");
    CHECK_REFUSED("{}", 1, "1 bytes at its end belong to no tensor");
    // an unknown dtype may lie there, of any length, but not be asked for
    Safetensors file;
    float value;
    const char* path = make_file(
        "new.safetensors", "{\"q\":" ENTRY("\"F3\"", "[2]", "[0,3]") ",\"a\":" F32_2("[3,11]") "}", 11, -1);
    CHECK(opens(&file, path));
    CHECK(!safetensors_read(&file, safetensors_find(&file, "q"), &value, 0, 1));
    CHECK(strstr(status_message(), "new.safetensors: q: dtype F3 ---> ") != NULL);
    safetensors_close(&file);
}

static void wrong_paths_are_refused(void) {
    check_refused(path_of("nowhere.safetensors"), "cannot open", __LINE__);
    check_refused(directory, "has no model.safetensors", __LINE__);
    check_refused("/dev/null", "not a regular file", __LINE__);
}

// --- shards ------------------------------------------------------------------------------------------------

static void check_index_refused(const char* index, const char* words, int line) {
    write_bytes("model.safetensors.index.json", index, strlen(index));
    char path[256];
    snprintf(path, sizeof path, "%s", path_of("model.safetensors.index.json"));
    check_refused(path, words, line);
}
#define CHECK_INDEX_REFUSED(index, words) check_index_refused(index, words, __LINE__)

static void broken_indexes_are_refused(void) {
    make_file("one.safetensors", "{\"a\":" F32_2("[0,8]") "}", 8, -1);
    make_file("two.safetensors", "{\"b\":" F32_2("[0,8]") ",\"c\":" F32_2("[8,16]") "}", 16, -1);
    make_file("again.safetensors", "{\"a\":" F32_2("[0,8]") "}", 8, -1);
    make_file("broken.safetensors", "{\"d\":" F32_2("[0,8]") "}", 4, -1);
#define MAP(entries) "{\"weight_map\":{" entries "}}"
    CHECK_INDEX_REFUSED("", "header: ");
    CHECK_INDEX_REFUSED("[]", "no JSON object");
    CHECK_INDEX_REFUSED("{}", "weight_map --->");
    CHECK_INDEX_REFUSED(MAP(""), "weight_map --->");
    CHECK_INDEX_REFUSED(MAP("\"a\":1"), "weight_map: a ---> must name a file");
    CHECK_INDEX_REFUSED(MAP("\"a\":\"\""), "weight_map: a ---> must name a file");
    CHECK_INDEX_REFUSED(MAP("\"a\":\"../one.safetensors\""), "weight_map: a ---> must name a file");
    CHECK_INDEX_REFUSED(MAP("\"a\":\"/etc/passwd\""), "weight_map: a ---> must name a file");
    CHECK_INDEX_REFUSED(MAP("\"a\":\"..\""), "weight_map: a ---> must name a file");
    CHECK_INDEX_REFUSED(MAP("\"a\":\"three.safetensors\""), "three.safetensors: cannot open");
    CHECK_INDEX_REFUSED(MAP("\"d\":\"broken.safetensors\""), "d: data_offsets end at 8");
    CHECK_INDEX_REFUSED(MAP("\"a\":\"one.safetensors\",\"a\":\"one.safetensors\""), "duplicate");
    CHECK_INDEX_REFUSED(MAP("\"a\":\"one.safetensors\",\"x\":\"one.safetensors\""),
                        "x is not in one.safetensors");
    CHECK_INDEX_REFUSED(MAP("\"b\":\"two.safetensors\""),
                        "c: two.safetensors is in it, the index says nothing");
    CHECK_INDEX_REFUSED(MAP("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"one.safetensors\""),
                        "c: two.safetensors is in it, the index says one.safetensors");
    CHECK_INDEX_REFUSED(MAP("\"a\":\"one.safetensors\",\"x\":\"again.safetensors\""),
                        "a: again.safetensors is in it, the index says one.safetensors");
#undef MAP
    unlink(path_of("model.safetensors.index.json"));
}

// --- writing -----------------------------------------------------------------------------------------------

static float value_of(int tensor, int64_t i) {
    return (float)(tensor * 1000 + i) * 0.5f - 100;
}

static const SafetensorsTensor written[] = {
    {.name = "z.weight", .dtype = SAFETENSORS_F32, .num_dims = 2, .dims = {7, 11}},
    {.name = "half \"quoted\"", .dtype = SAFETENSORS_BF16, .num_dims = 1, .dims = {5}},
    {.name = "long", .dtype = SAFETENSORS_BF16, .num_dims = 2, .dims = {3, 4001}},
    {.name = "a", .dtype = SAFETENSORS_F32, .num_dims = 0},
};
enum { NUM_WRITTEN = sizeof written / sizeof *written };

// Rank r of R writes its part of every tensor.
static bool write_part(const char* path, int r, int R) {
    Safetensors file;
    CheckpointFile out;
    if (!safetensors_layout(&file, written, NUM_WRITTEN) || !llmc_ok(checkpoint_file_open_tmp(&out, path))) {
        return false;
    }
    static float values[3 * 4001];
    for (int k = 0; k < NUM_WRITTEN; k++) {
        const SafetensorsTensor* tensor = safetensors_find(&file, written[k].name);
        int64_t begin = tensor->num_values * r / R, end = tensor->num_values * (r + 1) / R;
        for (int64_t i = begin; i < end; i++) { values[i - begin] = value_of(k, i); }
        if (!safetensors_write(&out, tensor, values, begin, end)) { return false; }
    }
    safetensors_close(&file);
    return llmc_ok(checkpoint_file_sync(&out));
}

static void ranks_write_one_file(void) {
    char path[256];
    snprintf(path, sizeof path, "%s", path_of("out.safetensors"));
    for (int R = 1; R <= 3; R++) {
        unlink(path);
        Safetensors file;
        CHECK(safetensors_layout(&file, written, NUM_WRITTEN) && safetensors_create(&file, path));
        CHECK(file.header_bytes % 8 == 0);
        safetensors_close(&file);
        for (int r = 0; r < R; r++) {
            pid_t child = fork();
            if (child == 0) { _exit(!write_part(path, r, R)); }
            int status = -1;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        CHECK(access(path, F_OK) != 0);
        CHECK(llmc_ok(checkpoint_file_rename(path)));
        CHECK(opens(&file, path));
        CHECK_EQ(file.num_tensors, NUM_WRITTEN);
        static float values[3 * 4001];
        for (int k = 0; k < NUM_WRITTEN; k++) {
            const SafetensorsTensor* tensor = safetensors_find(&file, written[k].name);
            CHECK(tensor != NULL && tensor->dtype == written[k].dtype &&
                  tensor->num_dims == written[k].num_dims);
            if (tensor == NULL || !read_all(&file, written[k].name, values, tensor->num_values)) { continue; }
            int num_wrong = 0;
            for (int64_t i = 0; i < tensor->num_values; i++) {
                float wanted = value_of(k, i);
                if (tensor->dtype == SAFETENSORS_BF16) {
                    wanted = half_from_bfloat16(half_to_bfloat16(wanted));
                }
                num_wrong += values[i] != wanted;
            }
            CHECK_EQ(num_wrong, 0);
        }
        safetensors_close(&file);
    }
}

static void names_must_be_unique(void) {
    Safetensors file;
    SafetensorsTensor twice[] = {written[0], written[0]};
    CHECK(!safetensors_layout(&file, twice, 2) && strstr(status_message(), "not unique") != NULL);
    twice[1].name = "\xff";
    CHECK(!safetensors_layout(&file, twice, 2) && strstr(status_message(), "UTF-8") != NULL);
}

int main(int argc, char** argv) {
    test_seed(argc, argv);
    CHECK(mkdtemp(directory) != NULL);
    RUN(reads_every_dtype);
    RUN(reads_any_range);
    RUN(reads_shards);
    RUN(f16_is_exact);
    RUN(lying_lengths_are_refused);
    RUN(broken_headers_are_refused);
    RUN(broken_entries_are_refused);
    RUN(overlaps_and_holes_are_refused);
    RUN(wrong_paths_are_refused);
    RUN(broken_indexes_are_refused);
    RUN(ranks_write_one_file);
    RUN(names_must_be_unique);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    if (system(command) != 0) { printf("%s is left\n", directory); }
    return test_end();
}
