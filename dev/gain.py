"""Where dynamic microbatches pay: predicted gain over each rival by tokens a step, vocabulary, stages and kind of model.

usage: python3 dev/gain.py [--batches N] [--table dev/results/gain.md] [--picture doc/gain.svg]
       python3 dev/gain.py --measure [--repeats N] [--table dev/results/gain_measured.md]
Run in the repository's root, where ./dynapipe is built. Each cell is the mean over N batches [3] of a mixture of 30 tasks
(../shared/data/lengths.csv). What ./dynapipe plan calls packs is the best of packs of 1, 2 and 4 times the longest sample.
--measure: real training steps instead, of small models on virtual hosts (dev/bench_simulated.sh, half an hour a repeat [2] of
one core that nothing else should use), beside what the trainers predicted for the same steps.
"""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

LENGTHS, LONGEST = "../shared/data/lengths.csv", 1024
MODELS = [("GPT-2, 257 ids", "l24c768h12", 257), ("GPT-2, 32,128 ids", "l24c768h12", 32128),
          ("GPT-2, 50,257 ids", "l24c768h12", 50257), ("T5, 32,128 ids", "flan-t5:base", 32128)]
STAGES, TIMES = (2, 4, 8, 16), (4, 8, 16, 32, 64)
RIVALS = ("packs with 1F1B", "packs in our schedule", "DynaPipe")
# kind, model, stages, longest input and target, tokenizer, tokens a step as multiples of the longest sample
MEASURED = [("gpt2", "l8c256h4", 4, (512,), "gpt2", (4, 8, 16)), ("gpt2", "l16c256h4", 8, (512,), "gpt2", (4, 16)),
            ("gpt2", "l12c128h2", 4, (1024,), "bytes", (8, 16)), ("gpt2", "l12c128h2", 8, (1024,), "bytes", (16,)),
            ("t5", "t5:l4c256h4", 4, (512, 128), "gpt2", (8, 16)), ("t5", "t5:l8c256h4", 8, (512, 128), "gpt2", (8,)),
            ("gpt2", "l8c256h4", 4, (512,), "gpt2", (32,))]
POLICIES = ("dynamic", "packed-ragged", "packed-ragged-zb", "dynapipe")
# as they run: the first after costs were measured is often slower than the others, so that is neither ours nor the best rival
RUN_ORDER = ("packed-ragged", "dynamic", "packed-ragged-zb", "dynapipe")


def gains(model, vocab, stages, times, batch):
    """a rival's time over ours, in the order of RIVALS"""
    shown = subprocess.run(
        ["./dynapipe", "plan", LENGTHS, "--model", model, "--vocab", str(vocab), "--stages", str(stages), "--shuffle", "1",
         "--batch", str(batch), "--batch-tokens", str(LONGEST * times), "--max-tokens", str(LONGEST)],
        capture_output=True, text=True, check=True).stdout
    line = next(line for line in shown.splitlines() if line.startswith("gain at"))
    return [float(value) for value in re.findall(r"([\d.]+) x", line)]


def measure(num_batches):
    cells = [(m, p, t) for m in range(len(MODELS)) for p in STAGES for t in TIMES]

    def one(cell):
        rows = [gains(*MODELS[cell[0]][1:], cell[1], cell[2], batch + 1) for batch in range(num_batches)]
        return [statistics.geometric_mean(column) for column in zip(*rows)]

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(cells, pool.map(one, cells)))


def table(found):
    yield "# Where it pays"
    yield f"\n`python3 dev/gain.py`: planned, not run. How many times as long a step takes with {', '.join(RIVALS[:2])} and"
    yield f"{RIVALS[2]} (EuroSys '24), in this order; samples of 30 tasks, cut to {LONGEST} tokens. Costs are analytic."
    for m, (name, model, vocab) in enumerate(MODELS):
        yield f"\n## {name} (`{model}`)\n"
        yield "| tokens a step | " + " | ".join(f"{p} stages" for p in STAGES) + " |"
        yield "|---:|" + "---|" * len(STAGES)
        for t in TIMES:
            row = [", ".join(f"{gain:.2f}" for gain in found[m, p, t]) for p in STAGES]
            yield f"| {t} x the longest | " + " | ".join(row) + " |"
    least = [min(gain) for gain in found.values()]
    yield (f"\nOver the best of the three: {statistics.geometric_mean(least):.2f} in the mean, {min(least):.3f} to {max(least):.2f}; "
           f"below 1.05 in {sum(gain < 1.05 for gain in least)} of {len(least)} cells.")


def picture(found):
    """a panel for each model: gain over the best rival by tokens a step, a line for each number of stages"""
    wide, high, left, top, bottom = 215, 190, 46, 46, 44
    colors = ("#9db4c0", "#5b8fb0", "#2f6690", "#12324a")
    most = math.ceil(max(min(gain) for gain in found.values()) * 4) / 4
    x = lambda i, m: left + m * (wide + 14) + 12 + i * (wide - 24) / (len(TIMES) - 1)
    y = lambda gain: top + high - (gain - 1) / (most - 1) * high
    width = left + len(MODELS) * (wide + 14) + 76
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + high + bottom}" font-family="sans-serif" '
           'font-size="13" fill="#222">')
    yield f'<rect width="{width}" height="{top + high + bottom}" fill="#fff"/>'
    yield '<text x="8" y="18">A step with the best rival takes so many times as long</text>'
    for m, (name, *_) in enumerate(MODELS):
        begin = left + m * (wide + 14)
        yield f'<text x="{begin + wide / 2}" y="{top - 8}" text-anchor="middle" font-weight="bold">{name}</text>'
        for k in range(round((most - 1) * 4) + 1):
            at = y(1 + k / 4)
            yield f'<line x1="{begin}" x2="{begin + wide}" y1="{at:.1f}" y2="{at:.1f}" stroke="{"#888" if k == 0 else "#e3e3e3"}"/>'
            if m == 0:
                yield f'<text x="{begin - 6}" y="{at + 4:.1f}" text-anchor="end">{1 + k / 4:.2f}</text>'
        for i, t in enumerate(TIMES):
            yield f'<text x="{x(i, m):.1f}" y="{top + high + 18}" text-anchor="middle">{t}</text>'
        for p, color in zip(STAGES, colors):
            at = [(x(i, m), y(min(found[m, p, t]))) for i, t in enumerate(TIMES)]
            yield f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in at)}"/>'
            yield "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in at)
    for k, (p, color) in enumerate(zip(reversed(STAGES), reversed(colors))):
        yield f'<text x="{width - 74}" y="{top + 14 + 18 * k}" fill="{color}">{p} stages</text>'
    yield f'<text x="{left + 2 * (wide + 14)}" y="{top + high + 38}" text-anchor="middle">tokens a step, as multiples of the longest sample</text>'
    yield "</svg>"


def steps_of(kind, model, stages, longest, tokenizer, many, repeats):
    """times of a cell's steps from the third on, by policy: the shortest of some runs, since what else the machine does only adds"""
    found = {policy: [] for policy in POLICIES}
    for repeat in range(repeats):
        out = f"out/gain/{repeat + 1}/{model.replace(':', '-')}-{tokenizer}-{stages}-{many}"
        subprocess.run(
            ["dev/bench_simulated.sh", "--model", kind, "--stages", str(stages), "--policies", ",".join(RUN_ORDER), "--tokenizer", tokenizer,
             "--size", f"{model},{sum(longest) * many},{'+'.join(map(str, longest))}", "--out", out],
            env={**os.environ, "STEPS": "5"}, stdout=subprocess.DEVNULL, check=True)
        for policy in POLICIES:
            lines = map(json.loads, open(f"{out}/{kind}-{stages}-fast-{policy}/metrics.jsonl"))
            found[policy].append([line for line in lines if "step_ms" in line][2:])
    return {policy: [min(runs, key=lambda step: step["step_ms"]) for runs in zip(*found[policy])] for policy in POLICIES}


def measured(repeats):
    """rows of real steps: medians over the batches of a rival's time over ours, and the same of what was predicted"""
    yield "# Where it pays, measured"
    yield "\n`python3 dev/gain.py --measure`: real training steps on virtual hosts (dev/simulate.sh), one rank a host, all on one core in"
    yield f"turn, each with a clock of its own. How many times as long a step takes with {', '.join(RIVALS[:2])} and {RIVALS[2]};"
    runs = "Each step ran once." if repeats == 1 else f"Each step is the shortest of {repeats} runs."
    yield f"in brackets what the trainers predicted for these steps. {runs} Texts of 30 tasks. Off: how much"
    yield "longer our steps took than predicted."
    cpu = next(line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    yield f"Machine: {cpu}, shared with others.\n"
    yield f"| model | ids | stages | tokens a step | {' | '.join(RIVALS)} | idle | off |"
    yield "|---|---:|---:|---|---|---|---|---:|---:|"
    for *cell, times in MEASURED:
        model, stages, tokenizer = cell[1], cell[2], cell[4]
        for many in times:
            steps = steps_of(*cell, many, repeats)
            ours = steps["dynamic"]
            ratio = lambda policy, field: statistics.median(a[field] / b[field] for a, b in zip(steps[policy], ours))
            yield (f"| `{model}` | {'50,257' if tokenizer == 'gpt2' else '257'} | {stages} | {many} x the longest | "
                   + " | ".join(f"{ratio(policy, 'step_ms'):.2f} ({ratio(policy, 'predicted_ms'):.2f})" for policy in POLICIES[1:])
                   + f" | {100 * statistics.median(statistics.mean(step['idle']) for step in ours):.1f} %"
                   + f" | {100 * statistics.median(step['step_ms'] / step['predicted_ms'] - 1 for step in ours):+.1f} % |")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--table")
    parser.add_argument("--picture", default="doc/gain.svg")
    options = parser.parse_args()
    if options.measure:
        written = [(options.table or "dev/results/gain_measured.md", measured(options.repeats))]
    else:
        found = measure(options.batches)
        written = [(options.table or "dev/results/gain.md", table(found)), (options.picture, picture(found))]
    for path, lines in written:
        text = "\n".join(lines) + "\n"
        with open(path, "w") as file:
            file.write(text)


if __name__ == "__main__":
    sys.exit(main())
