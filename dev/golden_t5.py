"""Make test/golden/t5_*.bin with Hugging Face's T5 and umT5 (python dev/golden_t5.py; transformers 5.23).

Small models of each variant on a ragged batch whose encoder sequences are longer than the largest distance
that buckets tell apart: logits and losses of all decoder tokens, and all gradients of sum(loss) / rows.
Computed in float64, one sample at a time without padding; the same batch padded, with masks, and the float32
run must agree. Losses once more with dropout 0.25 at all of T5's places, its bits being those of
llmc/dropout_bits.h. Parameters are not stored: they are param_value(i) for the i-th value of the checkpoint's
order, here and in test/model_golden.c.

    t5_v10.bin   ReLU, tied head, heads * head size = C
    t5_v11.bin   gated, head of its own, heads * head size < C, 2 + 3 layers
    t5_umt5.bin  gated, tied, biases of each layer, 3 + 2 layers
    int32[16]: magic, V, C, NH, HS, F, encoder layers, decoder layers, gated, tied, biases per layer, buckets,
               max distance, sequences, encoder tokens, decoder tokens (all of them supervised)
    int32 cu_seqlens, tokens, decoder's cu_seqlens, tokens, targets
    uint32 keys of encoder tokens, of decoder tokens
    float32 losses, losses with dropout, logits (rows, V), gradients
"""
import math
import pathlib
import struct

import numpy as np
import torch
from transformers import T5Config, T5ForConditionalGeneration, UMT5Config, UMT5ForConditionalGeneration
from transformers.models.t5 import modeling_t5
from transformers.models.umt5 import modeling_umt5

MAGIC = 20191023
DROPOUT = 0.25
V, VP, NB, MAX_DISTANCE = 100, 128, 32, 128
ENC_TOKENS, DEC_TOKENS = [150, 1, 37, 9, 70], [12, 1, 40, 3, 7]
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "test" / "golden"

VARIANTS = {
    "v10": dict(C=24, NH=3, HS=8, F=48, Le=2, Ld=2, gated=0, tied=1, per_layer=0),
    "v11": dict(C=24, NH=2, HS=8, F=32, Le=2, Ld=3, gated=1, tied=0, per_layer=0),
    "umt5": dict(C=32, NH=2, HS=8, F=24, Le=3, Ld=2, gated=1, tied=1, per_layer=1),
}


def wide_norm(self, x):
    """T5LayerNorm takes its mean in float32 whatever the input's type; golden values are float64's."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


# --- dropout by counters (llmc/dropout_bits.h, llmc/transformer.c) -----------------------------------------

DROPS = ["probabilities", "attention", "cross probabilities", "cross", "activation", "ffn"]
keys = None  # (encoder's, decoder's) of the sample that runs; None: nothing drops


def mix(x):
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def row_bits(token_keys, place):
    return mix(token_keys ^ mix(np.uint64((place * 0x9E3779B9 + 0x7F4A7C15) & 0xFFFFFFFF)))


def kept(rows, columns):
    """What stays of (rows, columns), divided by 1 - p."""
    bits = mix((rows[..., None] + columns * np.uint64(0x9E3779B9)) & np.uint64(0xFFFFFFFF))
    return torch.tensor((bits >= np.uint64(DROPOUT * 2 ** 32)) / (1.0 - DROPOUT))


def drop(x, side, place):
    if keys is None:
        return x
    return x * kept(row_bits(keys[side], place), np.arange(x.shape[-1], dtype=np.uint64))


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, position_bias=None,
              **kwargs):
    """eager_attention_forward with our dropout."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling + position_bias
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.nn.functional.softmax(scores, dim=-1)
    if keys is not None:
        place, q_side, k_side = module.golden
        heads = np.arange(query.shape[1], dtype=np.uint64)[:, None] * np.uint64(0x85EBCA6B)
        rows = (row_bits(keys[q_side], place) + heads) & np.uint64(0xFFFFFFFF)
        weights = weights * kept(rows, keys[k_side])
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def place_dropouts(v, model):
    """Numbers the places: DROPS of each layer of the chain, then those behind embedding and final norm."""
    first_outer = (v["Le"] + v["Ld"]) * len(DROPS)
    for side, stack in enumerate((model.encoder, model.decoder)):
        calls = []

        def outer(x, side=side, calls=calls):  # one module for both: embedding first
            calls.append(0)
            return drop(x, side, first_outer + 2 * ((len(calls) - 1) % 2) + side)
        stack.dropout.forward = outer
        for l, block in enumerate(stack.block):
            def place(what, chain_layer=side * v["Le"] + l):
                return chain_layer * len(DROPS) + DROPS.index(what)

            def put(module, what, side=side, place=place):
                module.forward = lambda x: drop(x, side, place(what))
            block.layer[0].SelfAttention.golden = (place("probabilities"), side, side)
            put(block.layer[0].dropout, "attention")
            if side == 1:
                block.layer[1].EncDecAttention.golden = (place("cross probabilities"), 1, 0)
                put(block.layer[1].dropout, "cross")
            put(block.layer[-1].DenseReluDense.dropout, "activation")
            put(block.layer[-1].dropout, "ffn")


modeling_t5.T5LayerNorm.forward = wide_norm
modeling_umt5.UMT5LayerNorm.forward = wide_norm


def param_values(begin, count):
    """Uniform in [-1, 1): splitmix64's mixer over the index."""
    x = np.arange(begin, begin + count, dtype=np.uint64) + np.uint64(1)
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return ((x >> np.uint64(40)).astype(np.float64) * 2.0 ** -23 - 1.0).astype(np.float32)


def file_order(v):
    """Tensors as in llmc/t5.h: name, layers (0: one outside them), shape, its parts in the model."""
    C, F, I, wide = v["C"], v["F"], v["NH"] * v["HS"], 2 if v["gated"] else 1
    wi = ["wi_0", "wi_1"] if v["gated"] else ["wi"]

    def stack(side, layers):
        own = layers if v["per_layer"] else 0
        block = side + ".block.{l}.layer."
        ffn = 2 if side == "decoder" else 1
        cross = [("norm2", layers, (C,), [block + "1.layer_norm"]),
                 ("xq", layers, (I, C), [block + "1.EncDecAttention.q"]),
                 ("xkv", layers, (2 * I, C), [block + "1.EncDecAttention." + p for p in "kv"]),
                 ("xo", layers, (C, I), [block + "1.EncDecAttention.o"])]
        return [("norm1", layers, (C,), [block + "0.layer_norm"]),
                ("qkv", layers, (3 * I, C), [block + "0.SelfAttention." + p for p in "qkv"]),
                ("o", layers, (C, I), [block + "0.SelfAttention.o"])] + (cross if ffn == 2 else []) + [
                ("norm_ffn", layers, (C,), [block + f"{ffn}.layer_norm"]),
                ("wi", layers, (wide * F, C), [block + f"{ffn}.DenseReluDense." + p for p in wi]),
                ("wo", layers, (C, F), [block + f"{ffn}.DenseReluDense.wo"]),
                ("bias", own, (NB, v["NH"]), [block + "0.SelfAttention.relative_attention_bias"]),
                ("norm", 0, (C,), [side + ".final_layer_norm"])]

    return ([("shared", 0, (VP, C), ["shared"])] + stack("encoder", v["Le"]) + stack("decoder", v["Ld"]) +
            ([] if v["tied"] else [("head", 0, (VP, C), ["lm_head"])]))


def make_model(v, dtype):
    config = (UMT5Config if v["per_layer"] else T5Config)(
        vocab_size=V, d_model=v["C"], d_kv=v["HS"], d_ff=v["F"], num_heads=v["NH"], num_layers=v["Le"],
        num_decoder_layers=v["Ld"], relative_attention_num_buckets=NB,
        relative_attention_max_distance=MAX_DISTANCE, tie_word_embeddings=bool(v["tied"]),
        feed_forward_proj="gated-gelu" if v["gated"] else "relu", dropout_rate=0.0,
        attn_implementation="eager")
    model = (UMT5ForConditionalGeneration if v["per_layer"] else T5ForConditionalGeneration)(config)
    model = model.to(dtype).train()
    if not v["tied"]:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(V, v["C"], dtype=dtype))
    assert v["tied"] == (model.lm_head.weight is model.shared.weight)
    assert v["per_layer"] or bool(config.scale_decoder_outputs) == bool(v["tied"])
    return model


def parts_in_order(v, model):
    """(index of the first value, parameter, name) of each part; shared and head lack rows of padding."""
    params = dict(model.named_parameters())
    at = 0
    for name, layers, shape, parts in file_order(v):
        for l in range(max(layers, 1)):
            rows = shape[0] // len(parts)
            for part in parts:
                yield at, params[part.format(l=l) + ".weight"], name
                at += rows * math.prod(shape[1:])


def fill(v, model):
    """Norms lie around 1; shared and bias tables within 1, all else within 0.25."""
    with torch.no_grad():
        for at, param, name in parts_in_order(v, model):
            scale = np.float32(1.0 if name in ("shared", "bias") else 0.25)
            values = param_values(at, param.numel()) * scale
            if name.startswith("norm"):
                values = values + np.float32(1.0)
            param.copy_(torch.tensor(values.reshape(tuple(param.shape))))


def gradients(v, model):
    total = sum(max(layers, 1) * math.prod(shape) for _, layers, shape, _ in file_order(v))
    grads = torch.zeros(total, dtype=torch.float64)
    seen = set()
    for at, param, _ in parts_in_order(v, model):
        grads[at:at + param.numel()] = param.grad.flatten().double()
        seen.add(id(param))
    assert seen == {id(p) for p in model.parameters()}, "a parameter has no place in the file"
    return grads


def run(v, samples, dtype):
    model = make_model(v, dtype)
    fill(v, model)
    logits = torch.cat([model(input_ids=enc[None], decoder_input_ids=dec[None]).logits[0]
                        for enc, dec, _ in samples])
    targets = torch.cat([target for _, _, target in samples])
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    (losses.sum() / len(losses)).backward()
    return losses.detach().double(), logits.detach().double(), gradients(v, model)


def run_dropped(v, samples, sample_keys):
    """Losses with dropout."""
    global keys
    model = make_model(v, torch.float64)
    fill(v, model)
    place_dropouts(v, model)
    module = modeling_umt5 if v["per_layer"] else modeling_t5
    theirs, module.eager_attention_forward = module.eager_attention_forward, attention
    losses = []
    with torch.no_grad():
        for (enc, dec, target), keys in zip(samples, sample_keys):
            logits = model(input_ids=enc[None], decoder_input_ids=dec[None]).logits[0]
            losses.append(torch.nn.functional.cross_entropy(logits, target, reduction="none"))
    keys = None
    module.eager_attention_forward = theirs
    return torch.cat(losses)


def run_padded(v, samples):
    """Logits of the same samples in one padded batch."""
    model = make_model(v, torch.float64)
    fill(v, model)
    pad = torch.nn.utils.rnn.pad_sequence
    enc, dec = (pad([s[i] for s in samples], batch_first=True, padding_value=5) for i in (0, 1))
    mask = pad([torch.ones_like(s[0]) for s in samples], batch_first=True)
    with torch.no_grad():
        logits = model(input_ids=enc, attention_mask=mask, decoder_input_ids=dec).logits
    return torch.cat([logits[i, :len(s[1])] for i, s in enumerate(samples)])


def compare(what, a, b, limit):
    error = ((a - b).abs().max() / a.abs().max()).item()
    print(f"  {what}: {error:.1e}")
    assert error < limit


def make(name, v):
    print(name)
    generator = torch.Generator().manual_seed(11)
    samples = []
    for num_enc, num_dec in zip(ENC_TOKENS, DEC_TOKENS):
        enc = torch.randint(2, V, (num_enc,), generator=generator)
        target = torch.randint(2, V, (num_dec,), generator=generator)
        enc[-1] = target[-1] = 1
        samples.append((enc, torch.cat([torch.tensor([0]), target[:-1]]), target))
    losses, logits, grads = run(v, samples, torch.float64)
    compare("padded logits differ from ragged ones by", logits, run_padded(v, samples), 1e-12)
    for what, wide, narrow in zip(("losses", "logits", "gradients"), (losses, logits, grads),
                                  run(v, samples, torch.float32)):
        compare(what + ": float32 differs from float64 by", wide, narrow, 1e-5)
    sample_keys = [[torch.randint(0, 2 ** 32, (len(s[i]),), generator=generator).numpy().astype(np.uint64)
                    for i in (0, 1)] for s in samples]
    dropped = run_dropped(v, samples, sample_keys)
    assert (dropped - losses).abs().max() > 0.1
    header = [MAGIC, V, v["C"], v["NH"], v["HS"], v["F"], v["Le"], v["Ld"], v["gated"], v["tied"],
              v["per_layer"], NB, MAX_DISTANCE, len(samples), sum(ENC_TOKENS), sum(DEC_TOKENS)]
    with open(GOLDEN / f"t5_{name}.bin", "wb") as f:
        f.write(struct.pack("<16i", *header))
        for counts, part in ((ENC_TOKENS, 0), (DEC_TOKENS, 1)):
            f.write(np.cumsum([0] + counts).astype("<i4").tobytes())
            f.write(torch.cat([s[part] for s in samples]).numpy().astype("<i4").tobytes())
        f.write(torch.cat([s[2] for s in samples]).numpy().astype("<i4").tobytes())
        for side in (0, 1):
            f.write(np.concatenate([k[side] for k in sample_keys]).astype("<u4").tobytes())
        for floats in (losses, dropped, logits, grads):
            f.write(floats.numpy().astype("<f4").tobytes())


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, variant in VARIANTS.items():
        make(name, variant)
