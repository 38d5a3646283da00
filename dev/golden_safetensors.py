"""Make test/golden/safetensors_mixed.safetensors and test/golden/safetensors_shards/ with the safetensors package.

    mixed   every dtype that is read, a scalar, an empty tensor, one of a dtype that is not read; "f16" and "bf16" are
            given as float32 too ("f16_is", "bf16_is"), converted by numpy and PyTorch
    shards  three tensors of value(i) = (i - 50) / 8 in two files with an index

Test: test/test_safetensors.c. Needs torch, numpy, safetensors.
"""
import json
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "test" / "golden"

# zeros, subnormals (1, 2, 1023), the least normal, 1, its neighbours, the greatest, infinity, NaN; then minus these
F16_BITS = [0, 1, 2, 0x3FF, 0x400, 0x3BFF, 0x3C00, 0x3C01, 0x4248, 0x7BFF, 0x7C00, 0x7E01]
BF16_BITS = [0, 1, 0x7F, 0x80, 0x3F80, 0x3F81, 0x4049, 0x7F7F, 0x7F80, 0x7FC1]


def both_signs(bits):
    return np.array(bits + [b | 0x8000 for b in bits], dtype=np.uint16)


def mixed():
    f16 = both_signs(F16_BITS).view(np.float16)
    bf16 = torch.from_numpy(both_signs(BF16_BITS).view(np.int16)).view(torch.bfloat16)
    tensors = {
        "f32": torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) / 8 - 1,
        "f16": torch.from_numpy(f16.copy()),
        "f16_is": torch.from_numpy(f16.astype(np.float32)),
        "bf16": bf16,
        "bf16_is": bf16.float(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(3, 0),
        "mask": torch.tensor([True, False, True]),
        "größe": torch.tensor([1.0]),
    }
    save_file(tensors, GOLDEN / "safetensors_mixed.safetensors", metadata={"format": "pt", "made by": "safetensors"})


def shards():
    folder = GOLDEN / "safetensors_shards"
    folder.mkdir(exist_ok=True)

    def values(*shape):
        return (torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape) - 50) / 8

    files = {"model-00001-of-00002.safetensors": {"a": values(5, 4), "c": values(3).half()},
             "model-00002-of-00002.safetensors": {"b": values(2, 2).bfloat16()}}
    weight_map, total = {}, 0
    for name, tensors in files.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
        for key, tensor in tensors.items():
            weight_map[key] = name
            total += tensor.numel() * tensor.element_size()
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    mixed()
    shards()
