"""Make test/golden/gpt2_small.bin, gpt2_like.bin and mt19937.bin with PyTorch (python dev/golden_gpt2.py).

A GPT-2 of 3 layers, 32 channels, 4 heads, 100 words on a ragged batch: logits and losses of the supervised
rows, and all gradients of sum(loss) / rows; and a model like it with a narrower feed-forward, another eps, exact
GELU and a head of its own. Computed in float64; the float32 run must agree. Parameters are
not stored: they are param_value(i) for the i-th value of the checkpoint's order, here and in
test/model_golden.c.

    gpt2_*.bin      int32[16]: magic, maxT, V, L, NH, C, Vp, sequences, tokens, rows, F, eps * 1e9, exact GELU, tied head
                    int32 cu_seqlens, tokens, positions, rows, targets
                    float32 losses, logits (rows, V), gradients
    mt19937.bin     float32 of torch.manual_seed(42): rand(1000), then normal_(0, 0.02) of
                    96, 100, 16, 7 and 4 values
"""
import math
import pathlib
import struct

import numpy as np
import torch

MAGIC = 20240601
T_MAX, V, L, NH, C, VP = 40, 100, 3, 4, 32, 128
SEQ_TOKENS = [17, 1, 40, 5, 23, 2]
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "test" / "golden"

MODELS = {"small": {"F": 4 * C, "eps": 1e-5, "exact": 0, "tied": 1}, "like": {"F": 56, "eps": 1e-2, "exact": 1, "tied": 0}}


def shapes(model):
    F = model["F"]
    own = [] if model["tied"] else [("head", 0, (VP, C))]
    return SHAPES[:10] + [("fcw", 1, (F, C)), ("fcb", 1, (F,)), ("fcprojw", 1, (C, F))] + SHAPES[13:] + own


SHAPES = [("wte", 0, (VP, C)), ("wpe", 0, (T_MAX, C)), ("ln1w", 1, (C,)), ("ln1b", 1, (C,)),
          ("qkvw", 1, (3 * C, C)), ("qkvb", 1, (3 * C,)), ("attprojw", 1, (C, C)), ("attprojb", 1, (C,)),
          ("ln2w", 1, (C,)), ("ln2b", 1, (C,)), ("fcw", 1, (4 * C, C)), ("fcb", 1, (4 * C,)),
          ("fcprojw", 1, (C, 4 * C)), ("fcprojb", 1, (C,)), ("lnfw", 0, (C,)), ("lnfb", 0, (C,))]


def param_values(count):
    """Uniform in [-1, 1): splitmix64's mixer over the index."""
    x = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return ((x >> np.uint64(40)).astype(np.float64) * 2.0 ** -23 - 1.0).astype(np.float32)


def make_params(dtype, model):
    """Norm weights lie around 1, all else within 0.25; the vocabulary's padding is zero."""
    params, at = {}, 0
    for name, per_layer, shape in shapes(model):
        shape = ((L,) if per_layer else ()) + shape
        count = math.prod(shape)
        values = param_values(at + count)[at:] * np.float32(0.25)
        if name in ("ln1w", "ln2w", "lnfw"):
            values = values + np.float32(1.0)
        tensor = torch.tensor(values.reshape(shape), dtype=dtype)
        if name in ("wte", "head"):
            tensor[V:] = 0
        params[name] = tensor.requires_grad_()
        at += count
    return params


def layernorm(x, w, b, model):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(var + model["eps"]) * w + b


def gelu(x, model):
    if model["exact"]:
        return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x ** 3)))


def one_sequence(p, tokens, model):
    n = len(tokens)
    x = p["wte"][tokens] + p["wpe"][:n]
    for l in range(L):
        q, k, v = (layernorm(x, p["ln1w"][l], p["ln1b"][l], model) @ p["qkvw"][l].T + p["qkvb"][l]).split(C, dim=-1)
        q, k, v = (t.view(n, NH, C // NH).transpose(0, 1) for t in (q, k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(C // NH)
        scores = scores.masked_fill(torch.triu(torch.ones(n, n, dtype=torch.bool), 1), float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, C)
        x = x + y @ p["attprojw"][l].T + p["attprojb"][l]
        h = gelu(layernorm(x, p["ln2w"][l], p["ln2b"][l], model) @ p["fcw"][l].T + p["fcb"][l], model)
        x = x + h @ p["fcprojw"][l].T + p["fcprojb"][l]
    return layernorm(x, p["lnfw"], p["lnfb"], model)


def run(dtype, tokens, rows, targets, model):
    p = make_params(dtype, model)
    hidden, begin = [], 0
    for n in SEQ_TOKENS:
        hidden.append(one_sequence(p, tokens[begin:begin + n], model))
        begin += n
    logits = (torch.cat(hidden)[rows] @ p["wte" if model["tied"] else "head"].T)[:, :V]
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    (losses.sum() / len(rows)).backward()
    grads = torch.cat([p[name].grad.flatten() for name, _, _ in shapes(model)])
    return losses.detach().double(), logits.detach().double(), grads.double()


def make_gpt2(name_of_model):
    model = MODELS[name_of_model]
    generator = torch.Generator().manual_seed(7)
    num_tokens = sum(SEQ_TOKENS)
    tokens = torch.randint(0, V, (num_tokens,), generator=generator)
    rows = torch.nonzero(torch.rand(num_tokens, generator=generator) < 0.4).flatten()
    targets = torch.randint(0, V, (len(rows),), generator=generator)
    losses, logits, grads = run(torch.float64, tokens, rows, targets, model)
    for name, wide, narrow in zip(("losses", "logits", "gradients"), (losses, logits, grads),
                                  run(torch.float32, tokens, rows, targets, model)):
        error = ((wide - narrow).abs().max() / wide.abs().max()).item()
        print(f"{name}: float32 differs from float64 by {error:.1e}")
        assert error < 1e-5
    cu = np.concatenate([[0], np.cumsum(SEQ_TOKENS)])
    positions = np.concatenate([np.arange(n) for n in SEQ_TOKENS])
    header = [MAGIC, T_MAX, V, L, NH, C, VP, len(SEQ_TOKENS), num_tokens, len(rows), model["F"],
              round(model["eps"] * 1e9), model["exact"], model["tied"]]
    with open(GOLDEN / f"gpt2_{name_of_model}.bin", "wb") as f:
        f.write(struct.pack("<16i", *header, *[0] * (16 - len(header))))
        for ints in (cu, tokens, positions, rows, targets):
            f.write(np.asarray(ints).astype("<i4").tobytes())
        for floats in (losses, logits, grads):
            f.write(floats.numpy().astype("<f4").tobytes())


def make_mt19937():
    torch.manual_seed(42)
    parts = [torch.rand(1000)]
    for n in (96, 100, 16, 7, 4):
        parts.append(torch.empty(n).normal_(0, 0.02))
    with open(GOLDEN / "mt19937.bin", "wb") as f:
        f.write(torch.cat(parts).numpy().astype("<f4").tobytes())


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        make_gpt2(name)
    make_mt19937()
