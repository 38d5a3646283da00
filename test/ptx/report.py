#!/usr/bin/env python3
"""report.py coverage|counts|worst FILE: what EMU_COUNTS=FILE gathered (count.cpp).
coverage: basic blocks of each kernel that no run went through.
counts: a table in Markdown of each launched kernel: instructions, memory, and what limits it on two cards.
worst: the instructions whose accesses touch most more than they need."""
import functools, os, re, subprocess, sys
from collections import defaultdict

# NVIDIA's white papers on Hopper (H100 SXM) and Ada (RTX 4090): SMs, GHz, GB/s, dense bf16 TFLOP/s with float32 sums.
CARDS = {'H100': (132, 1.83, 3350, 989), 'RTX 4090': (128, 2.52, 1008, 165)}
MEMORY, MMA = 0, 1


class Kernel:
    def __init__(self):
        self.launches, self.distinct, self.blocks = 0, 0, {}  # line: [times, instructions of each class]
        self.traffic = {'global': defaultdict(lambda: [0, 0, 0]), 'shared': defaultdict(lambda: [0, 0, 0])}

    def instructions(self, kind=None):
        """Of warps, as if all lanes were there."""
        return sum(b[0] * (sum(b[1:]) if kind is None else b[1 + kind]) for b in self.blocks.values()) / 32

    def sums(self, space):
        return [sum(t[i] for t in self.traffic[space].values()) for i in range(3)]


def read(path):
    kernels, k = defaultdict(Kernel), None
    for line in open(path):
        word, *rest = line.split()
        if word == 'kernel':
            k = kernels[rest[0], rest[1]]
            k.launches += int(rest[2])
            k.distinct += int(rest[3])
        else:
            at, *values = map(int, rest)
            if word == 'block': k.blocks.setdefault(at, [0] + values[1:])[0] += values[0]
            else: k.traffic[word][at] = [a + b for a, b in zip(k.traffic[word][at], values)]
    names = subprocess.run(['c++filt'], input='\n'.join(name for _, name in kernels), capture_output=True, text=True, check=True).stdout.split('\n')
    short = lambda name: re.sub(r'\(anonymous namespace\)::|^void ', '', re.sub(r'\((?!\w+\)\d|anonymous).*', '', name))
    return {key: (short(name), k) for (key, k), name in zip(kernels.items(), names)}


@functools.cache
def ptx(path):
    """Lines of a PTX file, and its sources by number."""
    lines = open(path).read().split('\n') if os.path.exists(path) else []
    files = (re.match(r'\s*\.file\s+(\d+)\s+"([^"]*)"', s) for s in lines)
    return lines, {m.group(1): os.path.basename(m.group(2)) for m in files if m}


def place(path, line, is_block):
    """Where a line of PTX comes from. A .loc stands before its instructions, but after the label of a block."""
    lines, sources = ptx(path)
    for s in lines[line - 1:] if is_block else lines[line - 1::-1]:
        m = re.match(r'\s*\.loc\s+(\d+)\s+(\d+)', s)
        if m: return f'{sources.get(m.group(1), "?")}:{m.group(2)}'
    return str(line)


def coverage(kernels):
    reached = total = never = 0
    for (path, _), (name, k) in sorted(kernels.items(), key=lambda x: (x[0][0], x[1][0])):
        missed = [line for line, b in k.blocks.items() if b[0] == 0]
        reached += len(k.blocks) - len(missed)
        total += len(k.blocks)
        never += k.launches == 0
        where = 'never launched' if k.launches == 0 else ' '.join(sorted({place(path, line, True) for line in missed}))
        print(f'{100 * (len(k.blocks) - len(missed)) // max(1, len(k.blocks)):3d} % of {len(k.blocks):4d} blocks  {path} {name}  {where}')
    print(f'{reached} of {total} basic blocks of {len(kernels)} kernels; {never} kernels never launched')


def bounds(k, card):
    sms, ghz, gb, tflops = CARDS[card]
    seconds = {'memory': k.distinct * 32 / (gb * 1e9), 'issue': k.instructions() / (4 * sms * ghz * 1e9), 'tensor cores': k.instructions(MMA) * 4096 / (tflops * 1e12),
               'shared memory': k.sums('shared')[1] / (sms * ghz * 1e9)}
    first, *others = sorted(seconds, key=seconds.get, reverse=True)
    return ', '.join([first] + [f'{x} {seconds[x] / seconds[first]:.2f}' for x in others if seconds[x] >= 0.1 * seconds[first]])


def counts(kernels):
    print('| kernel | launches | instructions | mma | mma of all | KB | KB, each once | coalesced | bank conflicts | ' + ' | '.join(CARDS) + ' |')
    print('|---|---:|---:|---:|---:|---:|---:|---:|---:|' + '---|' * len(CARDS))
    for (path, _), (name, k) in sorted(kernels.items(), key=lambda x: (os.path.basename(x[0][0]), x[1][0])):
        if k.launches == 0: continue
        (_, sectors, least), (_, wavefronts, least_shared) = k.sums('global'), k.sums('shared')
        n, all_, mma = k.launches, k.instructions(), k.instructions(MMA)
        print(f"| `{name}` | {n} | {all_ / n:.0f} | {mma / n:.0f} | {f'{100 * mma / all_:.0f} %' if mma else ''} | {sectors * 32 / n / 1000:.0f} | "
              f"{k.distinct * 32 / n / 1000:.0f} | {f'{100 * least / sectors:.0f} %' if sectors else ''} | {f'{wavefronts / least_shared:.2f}' if least_shared else ''} | "
              + ' | '.join(bounds(k, card) for card in CARDS) + ' |')


def worst(kernels):
    lines = defaultdict(lambda: [0, 0, 0])
    for (path, _), (name, k) in kernels.items():
        for space, traffic in k.traffic.items():
            for line, t in traffic.items():
                key = f'{name} {place(path, abs(line), False)} {space}'
                lines[key] = [a + b for a, b in zip(lines[key], t)]
    for key, (requests, got, least) in sorted(lines.items(), key=lambda x: x[1][2] - x[1][1]):
        if got > 1.25 * least: print(f'{key}: {requests} requests, {got} transactions, {least} needed')


if len(sys.argv) != 3 or sys.argv[1] not in ('coverage', 'counts', 'worst'): sys.exit(__doc__)
globals()[sys.argv[1]](read(sys.argv[2]))
