#!/usr/bin/env python3
"""The training step of dev/bench_single.c in PyTorch on the CPU, in the same manner: one step for each line
of standard input, one JSON line each; without PyTorch one line that says so.

    yes | head -5 | bench_torch.py [-b 4] [-t 64] [--compile]       threads: OMP_NUM_THREADS
    yes | head -5 | bench_torch.py --weights DIR [-b 4] [-t 128] [--target 32] [--lengths 512+96,16+4]

GPT-2 of 12 layers, 768 channels, V 50257, tied head, float32; fused attention, cross entropy, global-norm
clipping, AdamW with decay on matrices only (fused where this PyTorch has it).

--weights: the T5 of transformers that `bench_single --export DIR` wrote, on bench_single's tokens, so that losses
must agree; dropout 0, --attention sdpa or eager. Sequences of unequal lengths are padded to the longest.
"""
import argparse
import json
import os
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    print("bench_torch: skipped, no torch here ---> set TORCH_PYTHON to a python that has it")
    raise SystemExit(0)

L, NH, C, V, T_MAX = 12, 12, 768, 50257, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.attproj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.fcproj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, NH, C // NH).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attproj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(T_MAX, C)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.lnf = nn.LayerNorm(C)
        for name, param in self.named_parameters():
            if param.dim() == 2:
                residual = name.endswith(("attproj.weight", "fcproj.weight"))
                nn.init.normal_(param, 0.0, 0.02 / ((2 * L) ** 0.5 if residual else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(param)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, V), targets.view(-1))


class Gpt2Batches:
    """Random tokens; each call is a batch."""
    def __init__(self, args):
        self.shape = (args.b, args.t or 64)
        self.num_tokens = self.shape[0] * self.shape[1]

    def __call__(self):
        return [torch.randint(V, self.shape) for _ in range(2)]


class T5Batches:
    """bench_single's tokens: those of all inputs, then of all targets, padded where lengths differ."""
    def __init__(self, args, vocab):
        lengths = args.lengths or ",".join([f"{args.t or 128}+{args.target}"] * args.b)
        self.sides = list(zip(*(map(int, pair.split("+")) for pair in lengths.split(","))))
        self.num_tokens = sum(map(sum, self.sides))
        self.generator, self.vocab = torch.Generator().manual_seed(1), vocab

    def draw(self, side, padding):
        tokens = torch.randint(self.vocab, (sum(self.sides[side]),), generator=self.generator)
        return nn.utils.rnn.pad_sequence(tokens.split(self.sides[side]), batch_first=True, padding_value=padding)

    def __call__(self):
        inputs, labels = self.draw(0, 0), self.draw(1, -100)
        decoder_inputs = F.pad(labels[:, :-1].clamp(min=0), (1, 0))
        mask = None
        if len(set(self.sides[0])) > 1:
            mask = (torch.arange(inputs.shape[1]) < torch.tensor(self.sides[0])[:, None]).long()
        return inputs, mask, decoder_inputs, labels


class T5(nn.Module):
    def __init__(self, args):
        super().__init__()
        from transformers import AutoConfig, AutoModelForSeq2SeqLM, __version__
        config = AutoConfig.from_pretrained(args.weights)
        config.dropout_rate = 0.0
        self.model = AutoModelForSeq2SeqLM.from_pretrained(args.weights, config=config, dtype=torch.float32,
                                                           attn_implementation=args.attention).train()
        self.vocab, self.version = config.vocab_size, __version__

    def forward(self, inputs, mask, decoder_inputs, labels):
        return self.model(input_ids=inputs, attention_mask=mask, decoder_input_ids=decoder_inputs, labels=labels,
                          use_cache=False).loss


def make_optimizer(model):
    def decays(name, param):
        return param.dim() == 2 and "relative_attention_bias" not in name
    params = list(model.named_parameters())
    groups = [{"params": [p for name, p in params if decays(name, p)], "weight_decay": 0.1},
              {"params": [p for name, p in params if not decays(name, p)], "weight_decay": 0.0}]
    options = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, fused=True, **options), "fused"
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(groups, foreach=True, **options), "foreach"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", type=int, default=4)
    parser.add_argument("-t", type=int)
    parser.add_argument("--target", type=int, default=32)
    parser.add_argument("--lengths")
    parser.add_argument("--weights")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    torch.manual_seed(42)
    if args.weights:
        try:
            model = T5(args)
        except ImportError:
            print("bench_torch: skipped, no transformers here ---> set TORCH_PYTHON to a python that has it")
            raise SystemExit(0)
        batches, about = T5Batches(args, model.vocab), {"transformers": model.version}
    else:
        model, batches, about = Gpt2(), Gpt2Batches(args), {}
    optimizer, form = make_optimizer(model)
    forward = torch.compile(model) if args.compile else model

    def step():
        batch = batches()
        moments = [time.perf_counter()]
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*batch)
        moments.append(time.perf_counter())
        loss.backward()
        moments.append(time.perf_counter())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        moments.append(time.perf_counter())
        optimizer.step()
        moments.append(time.perf_counter())
        return [1e3 * (end - begin) for begin, end in zip(moments, moments[1:])], loss.item()

    for _ in range(2 if args.compile else 1):  # the second call may compile again
        _, loss = step()
    tokens = batches.num_tokens
    print(json.dumps({"program": "torch_compile" if args.compile else "torch", "version": torch.__version__, **about,
                      "adamw": form, "threads": torch.get_num_threads(), "tokens": tokens, "loss": loss}),
          flush=True)
    for _ in sys.stdin:
        cpu_begin = time.process_time()
        phases_ms, loss = step()
        cpu_ms = 1e3 * (time.process_time() - cpu_begin)
        step_ms = sum(phases_ms)
        phases = zip(("forward_ms", "backward_ms", "norm_ms", "adamw_ms"), phases_ms)
        print(json.dumps({"step_ms": round(step_ms, 1), "cpu_ms": round(cpu_ms, 1),
                          "tokens_per_s": round(1e3 * tokens / step_ms, 1), "loss": round(loss, 6),
                          **{name: round(ms, 1) for name, ms in phases}}), flush=True)


if __name__ == "__main__":
    main()
