"""Where dynamic microbatches pay: predicted gain over each rival by tokens a step, vocabulary, stages and kind of model.

usage: python3 dev/gain.py [--batches N] [--table dev/results/gain.md] [--picture doc/gain.svg]
Run in the repository's root, where ./dynapipe is built. Each cell is the mean over N batches [3] of a mixture of 30 tasks
(../shared/data/lengths.csv). What ./dynapipe plan calls packs is the best of packs of 1, 2 and 4 times the longest sample.
"""
import argparse
import math
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


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--table", default="dev/results/gain.md")
    parser.add_argument("--picture", default="doc/gain.svg")
    options = parser.parse_args()
    found = measure(options.batches)
    for path, lines in ((options.table, table(found)), (options.picture, picture(found))):
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
