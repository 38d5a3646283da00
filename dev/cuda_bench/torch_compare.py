#!/usr/bin/env python3
"""What PyTorch (cuDNN, its flash attention, its layer norm, a GPT-2 124M step) takes on this card, in Markdown:
beside the tables of cuda_bench_operations and cuda_bench_steps, measured in the same run of dev/gpu_check.sh.

    torch_compare.py [--tiny]        exit status 77 where there is no PyTorch or no card (--tiny: then on the CPU)

Times: CUDA events, the L2 cache emptied before each run, median of 20. Flops of causal attention as there: 4 HS for
each pair of query and key that sees each other, 2.5 times that backward.
"""
import pathlib
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("skip torch_compare: no PyTorch here ---> TORCH_PYTHON=a python that has it")
    raise SystemExit(77)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import bench_torch  # noqa: E402

TINY = "--tiny" in sys.argv
if not torch.cuda.is_available() and not TINY:
    print("skip torch_compare: PyTorch sees no card ---> is it a build with CUDA?")
    raise SystemExit(77)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNS = 2 if TINY else 20
FLUSH = torch.empty((1 if TINY else 256) << 20, dtype=torch.uint8, device=DEVICE)


def median_ms(run):
    run()
    run()
    if DEVICE == "cpu":
        times = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times)
    events = []
    for _ in range(RUNS):
        FLUSH.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backends = [("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)]
    if DEVICE == "cpu":
        backends = [("plain", SDPBackend.MATH)]
    tokens, heads, size = (128, 2, 64) if TINY else (65536, 12, 64)
    lengths = (32, 64) if TINY else (1024, 2048, 4096, 8192)
    print(f"\n### Causal attention, head size {size}, {heads} heads, {tokens} tokens, bf16, sequences of equal length\n")
    print("| backend | length | forward, us | TFLOP/s | backward, us | TFLOP/s |\n|---|---:|---:|---:|---:|---:|")
    for name, backend in backends:
        for length in lengths:
            shape = (tokens // length, heads, length, size)
            q, k, v = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
            flops = 4 * size * heads * (tokens // length) * length * (length + 1) / 2
            try:
                with sdpa_kernel(backend):
                    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    grad = torch.randn_like(out)
                    forward = median_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
                    backward = median_ms(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
            except RuntimeError as error:
                print(f"| {name} | {length} | {str(error).splitlines()[0][:60]} | | | |")
                continue
            print(f"| {name} | {length} | {1e3 * forward:.0f} | {flops / forward / 1e9:.0f} "
                  f"| {1e3 * backward:.0f} | {2.5 * flops / backward / 1e9:.0f} |", flush=True)


def layernorm():
    print("\n### Layer norm, GELU, cross entropy, bf16\n")
    print("| operation | T | C | forward, us | backward, us |\n|---|---:|---:|---:|---:|")
    for tokens, channels in [(64, 64)] if TINY else [(16384, 768), (8192, 1024), (8192, 1600)]:
        x = torch.randn(tokens, channels, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        weight, bias = (torch.randn(channels, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        wide = torch.randn(tokens, 4 * channels, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        logits = torch.randn(tokens // 2, 50304, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.randint(50257, (tokens // 2,), device=DEVICE)
        for name, run, inputs in [
                ("layer_norm", lambda: F.layer_norm(x, (channels,), weight, bias), (x, weight, bias)),
                ("gelu (4C)", lambda: F.gelu(wide, approximate="tanh"), (wide,)),
                ("cross_entropy (T / 2 rows)", lambda: F.cross_entropy(logits, targets), (logits,))]:
            out = run()
            grad = torch.randn_like(out)
            forward = median_ms(run)
            backward = median_ms(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True))
            print(f"| {name} | {tokens} | {channels} | {1e3 * forward:.1f} | {1e3 * backward:.1f} |", flush=True)


def gpt2_step():
    batch, tokens = (1, 16) if TINY else (32, 1024)
    torch.manual_seed(42)
    model = bench_torch.Gpt2().to(DEVICE)
    optimizer, form = bench_torch.make_optimizer(model)
    data = torch.randint(bench_torch.V, (2, batch, tokens), device=DEVICE)
    # eager: compilation would take a good part of the run

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(data[0], data[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    ms = median_ms(step)
    print(f"\n### GPT-2 124M, a step of {batch} x {tokens} tokens, bf16 autocast, eager, {form} AdamW\n")
    print(f"{ms:.1f} ms, {1e3 * batch * tokens / ms:.0f} tokens/s.")


card = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
print(f"## PyTorch {torch.__version__} on {card}")
for part in (attention, layernorm, gpt2_step):
    part()
