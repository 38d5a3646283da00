// fuzz_safetensors_index.c -- any bytes as model.safetensors.index.json beside two shards: refused with a
// remedy, or just the tensors of the shards that it names. libFuzzer: -max_len=512
#include "../../llmc/llmc_error.h"
#include "../../llmc/safetensors.h"
#include "fuzz.h"
#include "memory_files.h"

static void set_shard(const char* name, const char* header, char file[128]) {
    uint64_t header_bytes = strlen(header);
    memcpy(file, &header_bytes, 8);
    memcpy(file + 8, header, header_bytes + 9);  // and 8 bytes of zeros, which follow
    memory_files_set(name, file, 8 + header_bytes + 8);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
    static char shards[2][128];
    static char first[100] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    static char second[100] = "{\"b\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8]}}";
    set_shard("memory/1.safetensors", first, shards[0]);
    set_shard("memory/2.safetensors", second, shards[1]);
    memory_files_set("memory/model.safetensors.index.json", data, num_bytes);
    Safetensors file;
    if (safetensors_open(&file, "memory/model.safetensors.index.json")) {
        REQUIRE(file.num_files >= 1 && file.num_files <= 2 && file.num_tensors == file.num_files);
        for (int i = 0; i < file.num_tensors; i++) {
            float values[4];
            REQUIRE(safetensors_read(&file, &file.tensors[i], values, 0, file.tensors[i].num_values));
        }
        safetensors_close(&file);
    } else {
        REQUIRE(fuzz_has_remedy(status_message()));
    }
    return 0;
}
