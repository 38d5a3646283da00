"""Make test/golden/hf_*: tiny random checkpoints as transformers saves them, for test_hf_checkpoint.c, test_hf_config.c.

    hf_t5        T5 1.0: ReLU, tied head; F32
    hf_flan      T5 1.1 (FLAN): gated, untied head, heads x d_kv is not d_model, 2 encoder and 1 decoder layers; BF16
    hf_byt5      ByT5: as FLAN, 3 encoder layers, vocabulary 384; F16
    hf_umt5      umT5: a bias table in each layer; F32, in shards
    hf_gpt2      GPT-2; F32, names with "transformer."; hf_gpt2_bare: as the first release has them, with attn.bias
    hf_gpt2_like exact GELU, another eps and n_inner, a head of its own; F32
    hf_llama     Llama: 4 heads on 2 of keys, heads x head_dim is not hidden_size; F32, as transformers 5 has rope's theta
    hf_qwen2     Qwen2: 2 heads on 1 of keys, biases, tied head; BF16, in shards, as transformers 4 has rope's theta
    hf_logits    what transformers computes of each, in float32, from encoder tokens (i * 7 + 3) % 48 + 2, decoder
                 tokens 0 and (i * 5 + 2) % 48 + 2 (of one stack: the encoder's); NAME_untied: with a head of its own put in

A value is value(hash of tensor's Hugging Face name, index), in [-0.5, 0.5), a multiple of 2^-7 (so exact in every
dtype). Norm weights are 1 more. Needs torch, transformers, safetensors. Config files are what transformers writes, less
the version of transformers.
"""
import json
import pathlib
import shutil
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          T5Config, T5ForConditionalGeneration, UMT5Config, UMT5ForConditionalGeneration)

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "test" / "golden"


def fnv1a(text):
    h = 0x811C9DC5
    for byte in text.encode():
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


def values(name, count):
    """The high 7 bits of a 32-bit mixer (multiply, xor-shift) of hash + index."""
    x = (np.arange(count, dtype=np.uint64) * 0x9E3779B9 + fnv1a(name)) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    x ^= x >> 16
    return (x >> 25).astype(np.float32) / 128 - 0.5


def is_norm(name):
    return name.endswith(("layer_norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight", "norm.weight"))


def fill(model):
    """Named as the file names them: of what is tied, the first."""
    state = model.state_dict()
    done = {}
    for name, tensor in state.items():
        if tensor.data_ptr() in done:
            continue
        done[tensor.data_ptr()] = name
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values(name, tensor.numel()) + float(is_norm(name))).view(tensor.shape))


def save(model, name, dtype=torch.float32, shard_bytes=None):
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    fill(model)
    model.to(dtype)
    model.save_pretrained(folder, **({"max_shard_size": shard_bytes} if shard_bytes else {}))
    config = json.loads((folder / "config.json").read_text())
    config.pop("transformers_version")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "generation_config.json").unlink()
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def put_in_head(folder, dtype):
    embeddings = ("shared.weight", "transformer.wte.weight")
    path, name = next((p, e) for p in sorted(folder.iterdir()) if p.suffix == ".safetensors"
                      for e in embeddings if e in load_file(p))
    state = load_file(path)
    shape = state[name].shape
    state["lm_head.weight"] = torch.from_numpy(values("lm_head.weight", shape.numel())).view(shape).to(dtype)
    save_file(state, path, metadata={"format": "pt"})
    path.chmod(0o644)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        content = json.loads(index.read_text())
        content["weight_map"]["lm_head.weight"] = path.name
        index.write_text(json.dumps(content))


def untie(model, name, dtype):
    """transformers 5 ties on construction; the released checkpoints of 1.1 are not: their head is put in by hand."""
    folder = save(model, name, dtype)
    put_in_head(folder, dtype)
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def logits(folder):
    tokens = torch.tensor([[(i * 7 + 3) % 48 + 2 for i in range(11)]])
    start = torch.tensor([[0] + [(i * 5 + 2) % 48 + 2 for i in range(5)]])
    with torch.no_grad():
        for name, kind in (("gpt2", GPT2LMHeadModel), ("llama", LlamaForCausalLM), ("qwen2", Qwen2ForCausalLM)):
            if name in folder.name:
                return kind.from_pretrained(folder, dtype=torch.float32).eval()(tokens).logits[0]
        kind = UMT5ForConditionalGeneration if "umt5" in folder.name else T5ForConditionalGeneration
        model = kind.from_pretrained(folder, dtype=torch.float32).eval()
        return model(input_ids=tokens, decoder_input_ids=start).logits[0]


def all_logits():
    out = {}
    for name in ("t5", "flan", "byt5", "umt5", "gpt2", "gpt2_bare", "gpt2_like", "llama", "qwen2"):
        out[name] = logits(GOLDEN / f"hf_{name}")
    for name in ("t5", "umt5", "gpt2"):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary) / name
            shutil.copytree(GOLDEN / f"hf_{name}", folder)
            put_in_head(folder, torch.float32)
            out[f"{name}_untied"] = logits(folder)
            assert (out[f"{name}_untied"] - out[name]).abs().max() > 0.1
    path = GOLDEN / "hf_logits.safetensors"
    save_file({name: value.contiguous().clone() for name, value in out.items()}, path)
    path.chmod(0o644)


def main():
    shape = {"d_model": 16, "d_kv": 4, "num_heads": 4, "d_ff": 20, "decoder_start_token_id": 0}
    save(T5ForConditionalGeneration(T5Config(**shape, vocab_size=50, num_layers=2)), "hf_t5")
    shape |= {"feed_forward_proj": "gated-gelu", "num_heads": 3, "d_kv": 8}
    v1_1 = {**shape, "tie_word_embeddings": False}
    untie(T5ForConditionalGeneration(T5Config(**v1_1, vocab_size=50, num_layers=2, num_decoder_layers=1)), "hf_flan",
          torch.bfloat16)
    untie(T5ForConditionalGeneration(T5Config(**v1_1, vocab_size=384, num_layers=3, num_decoder_layers=1)), "hf_byt5",
          torch.float16)
    save(UMT5ForConditionalGeneration(UMT5Config(**shape, vocab_size=50, num_layers=2)), "hf_umt5", shard_bytes=20000)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=20, n_embd=16, n_layer=2, n_head=2, bos_token_id=49,
                                      eos_token_id=49))
    folder = save(gpt2, "hf_gpt2")
    bare = GOLDEN / "hf_gpt2_bare"
    shutil.rmtree(bare, ignore_errors=True)
    bare.mkdir()
    state = {k.removeprefix("transformer."): v for k, v in load_file(folder / "model.safetensors").items()}
    for layer in range(2):
        state[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(20, 20)).view(1, 1, 20, 20)
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, bare / "model.safetensors", metadata={"format": "pt"})
    (bare / "model.safetensors").chmod(0o644)
    shutil.copy(folder / "config.json", bare)
    save(GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=20, n_embd=16, n_layer=2, n_head=2, bos_token_id=49,
                                    eos_token_id=49, n_inner=40, layer_norm_epsilon=1e-3, activation_function="gelu",
                                    tie_word_embeddings=False)), "hf_gpt2_like")
    shape = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 20,
             "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
    save(LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                      rms_norm_eps=1e-5)), "hf_llama")
    qwen2 = Qwen2ForCausalLM(Qwen2Config(**shape, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
                                         rope_parameters={"rope_type": "default", "rope_theta": 1e6}))
    folder = save(qwen2, "hf_qwen2", torch.bfloat16, shard_bytes=3000)
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    all_logits()


if __name__ == "__main__":
    main()
