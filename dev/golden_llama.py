"""Make test/golden/llama_*.bin with Hugging Face's Llama and Qwen2 (python dev/golden_llama.py; transformers 5).

Small models on a ragged batch: logits and losses of the supervised rows, and all gradients of sum(loss) / rows.
Computed in float64 (angles are float32 always), one sample at a time; the float32 run must agree. Parameters are
not stored: they are param_value(i) for the i-th value of the checkpoint's order, here and in test/model_golden.c.

    llama_own.bin   4 heads on 2 of keys, heads * head size > C, head of its own
    llama_tied.bin  Qwen2: 3 heads on 1 of keys, biases, tied head, theta 1e6
    int32[16]: magic, V, C, NH, HS, F, L, NKV, tied, bias, theta, 1e9 eps, sequences, tokens, rows
    int32 cu_seqlens, tokens, positions, rows, targets
    float32 losses, logits (rows, V), gradients
"""
import math
import struct

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

from golden_t5 import GOLDEN, VP, V, compare, param_values, wide_norm

MAGIC = 20230227
SEQ_TOKENS = [17, 1, 40, 5, 23, 2]
VARIANTS = {
    "own": dict(C=24, NH=4, HS=8, F=40, L=3, NKV=2, tied=0, bias=0, theta=10000, eps=10000),
    "tied": dict(C=24, NH=3, HS=8, F=32, L=2, NKV=1, tied=1, bias=1, theta=1000000, eps=1000),
}
modeling_llama.LlamaRMSNorm.forward = wide_norm
modeling_qwen2.Qwen2RMSNorm.forward = wide_norm


def file_order(v):
    """Tensors as in llmc/kinds.h: their parts in the model (name, shape), for each layer where there is {l}."""
    C, F, q, kv = v["C"], v["F"], v["NH"] * v["HS"], v["NKV"] * v["HS"]
    layer = "model.layers.{l}."
    heads = [(layer + "self_attn.%s_proj" % p, rows) for p, rows in zip("qkv", (q, kv, kv))]
    return ([[("model.embed_tokens.weight", (VP, C))],
             [(layer + "input_layernorm.weight", (C,))],
             [(name + ".weight", (rows, C)) for name, rows in heads]] +
            ([[(name + ".bias", (rows,)) for name, rows in heads]] if v["bias"] else []) +
            [[(layer + "self_attn.o_proj.weight", (C, q))],
             [(layer + "post_attention_layernorm.weight", (C,))],
             [(layer + "mlp.%s_proj.weight" % p, (F, C)) for p in ("gate", "up")],
             [(layer + "mlp.down_proj.weight", (C, F))],
             [("model.norm.weight", (C,))]] +
            ([] if v["tied"] else [[("lm_head.weight", (VP, C))]]))


def parts_in_order(v):
    """(index of the first value, name); and the number of values."""
    at, out = 0, []
    for parts in file_order(v):
        for l in range(v["L"] if "{l}" in parts[0][0] else 1):
            for name, shape in parts:
                out.append((at, name.format(l=l)))
                at += math.prod(shape)
    return out, at


def make_model(v, dtype):
    kind = (Qwen2Config, Qwen2ForCausalLM) if v["bias"] else (LlamaConfig, LlamaForCausalLM)
    config = kind[0](vocab_size=V, hidden_size=v["C"], num_hidden_layers=v["L"], num_attention_heads=v["NH"],
                     num_key_value_heads=v["NKV"], head_dim=v["HS"], intermediate_size=v["F"],
                     rms_norm_eps=v["eps"] * 1e-9, tie_word_embeddings=bool(v["tied"]),
                     rope_parameters={"rope_type": "default", "rope_theta": float(v["theta"])},
                     attn_implementation="eager")
    model = kind[1](config).to(dtype).train()
    params = dict(model.named_parameters())
    with torch.no_grad():
        for at, name in parts_in_order(v)[0]:
            values = param_values(at, params[name].numel()) * np.float32(0.25)
            if "norm" in name:
                values = values + np.float32(1.0)
            params[name].copy_(torch.tensor(values.reshape(tuple(params[name].shape))))
    return model


def run(v, dtype, tokens, rows, targets):
    model = make_model(v, dtype)
    logits = torch.cat([model(input_ids=t[None]).logits[0] for t in tokens.split(SEQ_TOKENS)])[rows]
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    (losses.sum() / len(rows)).backward()
    parts, total = parts_in_order(v)
    params, grads = dict(model.named_parameters()), torch.zeros(total, dtype=torch.float64)
    assert {name for _, name in parts} == set(params), "a parameter has no place in the file"
    for at, name in parts:
        grads[at:at + params[name].numel()] = params[name].grad.flatten().double()
    return losses.detach().double(), logits.detach().double(), grads


def make(name, v):
    print(name)
    generator = torch.Generator().manual_seed(7)
    num_tokens = sum(SEQ_TOKENS)
    tokens = torch.randint(0, V, (num_tokens,), generator=generator)
    rows = torch.nonzero(torch.rand(num_tokens, generator=generator) < 0.4).flatten()
    targets = torch.randint(0, V, (len(rows),), generator=generator)
    losses, logits, grads = run(v, torch.float64, tokens, rows, targets)
    for what, wide, narrow in zip(("losses", "logits", "gradients"), (losses, logits, grads),
                                  run(v, torch.float32, tokens, rows, targets)):
        compare(what + ": float32 differs from float64 by", wide, narrow, 1e-5)
    header = [MAGIC, V] + [v[k] for k in ("C", "NH", "HS", "F", "L", "NKV", "tied", "bias", "theta", "eps")]
    header += [len(SEQ_TOKENS), num_tokens, len(rows), 0]
    with open(GOLDEN / f"llama_{name}.bin", "wb") as f:
        f.write(struct.pack("<16i", *header))
        for ints in (np.cumsum([0] + SEQ_TOKENS), tokens,
                     np.concatenate([np.arange(n) for n in SEQ_TOKENS]), rows, targets):
            f.write(np.asarray(ints).astype("<i4").tobytes())
        for floats in (losses, logits, grads):
            f.write(floats.numpy().astype("<f4").tobytes())


if __name__ == "__main__":
    for name, variant in VARIANTS.items():
        make(name, variant)
