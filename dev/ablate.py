"""What each part and constant of the search brings: writes dev/results/ablation.md. Every variant is the planner built with one line of
its source changed; makespans are those of evaluate.py for the shared cases, the planner's own for generated ones (the two agree,
dev/bench_planner.sh).

usage: python3 dev/ablate.py [--quick] [--only NAME,..] [--out FILE]     three random seeds, a quarter of an hour on one core; --quick: one
"""
import argparse
import concurrent.futures
import csv
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

SHARED = "../shared"
SOURCES = [f"dynapipe_plugin/plan/{name}.c" for name in ("search", "deal", "placement", "planner")]
SEEDS = (0, 1, 2)
SEED = ("rng_seed((uint64_t)problem->num_samples)", "rng_seed((uint64_t)problem->num_samples + {})")
# name: a text of one of the sources, and what takes its place
VARIANTS = {
    "local search on replicas": ("    if (best.makespan_ns < INT64_MAX) { TRY(improve_all(states, search)); }\n", ""),
    "exchange between replicas": ("        TRY(exchange(", "        if (false) TRY(exchange("),
    "halving: a field of 1": ("    if (num > FIELD) { num = FIELD; }", "    num = 1;"),
    "FIELD 12 -> 24": ("FIELD = 12", "FIELD = 24"),
    "FINALISTS 3 -> 1": ("FINALISTS = 3", "FINALISTS = 1"),
    "settings of the leader": ("            if (i > 0) {", "            if (false) {"),
    "layers and head shares by descent": ("i < num && problem->P > 1; i++) {\n        part =", "false; i++) {\n        part ="),
    "layers balanced by work": ("        placement_balance(place, scale);\n", ""),
    "placements: one chunk a stage": ("passes <= MAX_PASSES && passes", "passes <= 1 && passes"),
    "placements: up to two chunks a stage": ("passes <= MAX_PASSES && passes", "passes <= 2 && passes"),
    "placements with more room": ("        num += !placement_equal(&out[num], place, request->P);", ""),
    "roomiest placements first": ("    qsort(order, (size_t)num_places, sizeof *order, compare_keyed);\n", ""),
    "shared heads": ("head < HEAD_COUNT; head++) {\n        Placement* place", "head <= HEAD_WHOLE; head++) {\n        Placement* place"),
    "setting: number of microbatches": ("            if (value >= 6) { return false; }", "            return false;"),
    "setting: recomputation": ("            if (value >= num_rules) { return false; }", "            return false;"),
    "setting: numbers in flight": ("            return candidate->in_flight != before.in_flight;", "            return false;"),
    "setting: order": ("return value <= 4 && value != before.before;", "return false;"),
    "setting: taper": ("            return value <= 1 && candidate->end_percent", "            return false && candidate->end_percent"),
    "USUAL_END 40 -> 100 (no taper at first)": ("USUAL_END = 40", "USUAL_END = 100"),
    "recomputation by shares of memory": ("        out[num++] = (ModeRule){problem->modes[0], share_percent[k], 100};\n", ""),
    "recomputation of early chunks": ("        if (num_chunks > problem->P) { out[num++]", "        if (false) { out[num++]"),
    "USUAL_COUNT 3 -> 2": ("USUAL_COUNT = 3", "USUAL_COUNT = 2"),
    "USUAL_COUNT 3 -> 5": ("USUAL_COUNT = 3", "USUAL_COUNT = 5"),
    "count by memory": ("    if (by_memory > (double)most) {", "    if (false) {"),
    "MAX_PROBES 4 -> 1": ("MAX_PROBES = 4", "MAX_PROBES = 1"),
    "LEFT_FOR_FIELD 45 -> 60": ("LEFT_FOR_FIELD = 45", "LEFT_FOR_FIELD = 60"),
    "LEFT_FOR_LAYERS 30 -> 15": ("LEFT_FOR_LAYERS = 30", "LEFT_FOR_LAYERS = 15"),
    "USUAL_EVALUATIONS 150 -> 75": ("USUAL_EVALUATIONS = 150", "USUAL_EVALUATIONS = 75"),
    "half the budget": ("    return jobs > least ? jobs : least;", "    return (jobs > least ? jobs : least) / 2;"),
    "twice the budget": ("    return jobs > least ? jobs : least;", "    return (jobs > least ? jobs : least) * 2;"),
    "fit: search again with less memory": ("MAX_SEARCHES = 4", "MAX_SEARCHES = 1"),
    "fit: less memory by twice what was over": ("headroom_bytes[s] += over_bytes[s];", "headroom_bytes[s] += 2 * over_bytes[s];"),
    "fit: each search from nothing": ("num_places, before, &planning->lists", "num_places, NULL, &planning->lists"),
    "field: the first recomputation that fits": ("        for (int32_t i = 0; i < num_rules; i++) {", "        for (int32_t i = 0; i < num_rules && out->num_mbs == 0; i++) {"),
    "field: with nothing recomputed, too": ("    if (field[0].rule.share_percent > 0) {", "    if (false) {"),
    "pieces of a sample as one in memory": ("jobs.stored_bytes * num <= share", "jobs.stored_bytes <= share"),
    "move: recomputation": ("bool of_mode = modes && rng_below", "bool of_mode = modes && false && rng_below"),
}


def draw(rng, tasks, mixture, kind, num, longest):
    names = list(mixture["weights"])
    weights, samples = [mixture["weights"][name] for name in names], []
    for _ in range(num):
        a, b = rng.choice(tasks[rng.choices(names, weights)[0]])
        samples.append([min(a + b, longest), 0] if kind == "gpt" else [min(a, longest), min(b, 512)])
    return samples


def generated(work, seed, num):
    """[name, path, options]: 1 to 16 stages, 1 to 4 replicas, both kinds, 40 to 5,000 samples, every third short of memory, every
    fifth on unequal ranks"""
    tasks, found = {}, []
    with open(f"{SHARED}/data/lengths.csv") as file:
        for row in csv.DictReader(file):
            tasks.setdefault(row["task"], []).append((int(row["input_tokens"]), int(row["target_tokens"])))
    with open(f"{SHARED}/data/mixture.json") as file:
        mixtures = json.load(file)["mixtures"]
    shapes = [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (4, 4), (6, 2), (8, 1), (8, 2), (8, 4), (12, 1), (16, 1), (16, 2)]
    rng = random.Random(seed)
    for i in range(num):
        P, R = shapes[i % len(shapes)]
        kind = "t5" if i // 2 % 2 and P % 2 == 0 else "gpt"
        base = rng.choice(["t5_s4_r1_flan_2k"] if kind == "t5" else ["gpt2_s4_r1_flan_1k", "gpt_s4_r1_flan_2k"])
        with open(f"{SHARED}/cases/{base}.json") as file:
            problem = json.load(file)
        N = 5000 if i % 13 == 3 else rng.choice([40, 100, 200, 400, 1000] if P * R < 16 else [200, 400, 800])
        longest, layers = rng.choice([1024, 2048, 4096, 8192]), rng.choice([2, 4] if P >= 8 else [2, 6, 8])
        problem["samples"] = draw(rng, tasks, mixtures[rng.choice(["flan2022", "flan2022_long2pct"])], kind, N, longest)
        problem.update(n_stages=P, dp_size=R, layers_per_stage=layers)
        parameters, layer = problem["cost_model"]["params_mb"], problem["cost_model"]["encoder"]
        state = 8 * (parameters["embedding"] + layers * max(parameters["encoder"], parameters.get("decoder", 0)))
        tokens, longest = sum(s[0] for s in problem["samples"]), max(s[0] for s in problem["samples"])
        kept = [layers * (layer["m"] * n + layer.get("n", 0) * n * longest) for n in (longest, tokens / R)]
        limit = state * 1.05 + max(1.3 * kept[0], kept[1] / P * rng.choice([0.15, 0.3, 0.6]))
        problem["memory_limit"] = round(limit if i % 3 == 1 else max(80000, state * 1.5))
        speeds = ",".join(str(rng.choice([1, 1, 0.8, 0.6])) for _ in range(P * R))
        path = os.path.join(work, f"{seed}_{i}.json")
        with open(path, "w") as file:
            json.dump(problem, file)
        found.append([f"{i}", path, ["--rank-speed", speeds] if i % 5 == 4 else []])
    return found


def with_buffers():
    """problems as training has them: every buffer counts against the limit"""
    lengths = f"{SHARED}/data/lengths.csv"
    shapes = [("d12", 4, 1, 16384, "900M"), ("d12", 2, 1, 16384, "1600M"), ("d12", 8, 1, 16384, "1200M"), ("d12", 4, 2, 16384, "1100M"),
              ("d24", 8, 1, 32768, "4G"), ("flan-t5:small", 4, 1, 32768, "1G"), ("flan-t5:base", 8, 1, 32768, "2G")]
    found = [[f"{model} {P}x{R} {limit}", lengths, ["--model", model, "--stages", str(P), "--replicas", str(R), "--batch-tokens", str(tokens),
              "--max-tokens", "1024", "--memory-limit", limit]] for model, P, R, tokens, limit in shapes]
    small = [["--memory-limit", limit, "--model", "d12", "--stages", "4", "--batch-tokens", "8192"] for limit in ("750M", "800M", "1500M")]
    found += [[f"small {options[1]}", "test/problems/lengths.csv", options] for options in small]
    return found + [[f"t5 {limit}", "test/problems/t5_small.json", ["--memory-limit", limit]] for limit in ("2300M", "3G")]


def plan(program, path, options):
    """makespan in ms and planning time in ms; None where nothing fits"""
    done = subprocess.run([program, "plan", path, "--json", "/dev/stdout", *options], capture_output=True, text=True, timeout=600)
    numbers = [re.search(rf'"{key}": ([0-9.]+)', done.stdout) for key in ("predicted_makespan_ms", "planning_cpu_ms")]
    return tuple(float(n.group(1)) for n in numbers) if done.returncode == 0 and all(numbers) else None


def build(name, edits, into):
    before = {}
    for path in SOURCES:
        with open(path) as file:
            before[path] = file.read()
    after = dict(before)
    for old, new in edits:
        path = next((path for path in SOURCES if old in before[path]), None)
        if path is None:
            sys.exit(f"{name}: no source has a line {old!r}")
        after[path] = after[path].replace(old, new)
    try:
        for path in SOURCES:
            if after[path] != before[path]:
                with open(path, "w") as file:
                    file.write(after[path])
        subprocess.run(["make", "-s", "WERROR=0", "build/release/dynapipe"], check=True, capture_output=True)
        shutil.copy("build/release/dynapipe", into)
    finally:
        for path in SOURCES:
            if after[path] != before[path]:
                with open(path, "w") as file:
                    file.write(before[path])
    return into


def measure(name, edits, cases, seeds, work):
    """per case: geometric mean of the makespans, mean of the planning times"""
    programs = [build(name, edits + ([(SEED[0], SEED[1].format(7 * seed))] if seed else []), os.path.join(work, f"p{seed}")) for seed in seeds]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = {case[0]: [pool.submit(plan, program, case[1], case[2]) for program in programs] for case in cases}
        done = {key: [one.result() for one in ones] for key, ones in found.items()}
    return {key: None if None in ones else (math.exp(sum(math.log(ms) for ms, _ in ones) / len(ones)), sum(cpu for _, cpu in ones) / len(ones))
            for key, ones in done.items()}


def row(name, base, other):
    keys = [key for key in base if base[key] and other[key]]
    ratios = [other[key][0] / base[key][0] for key in keys]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    cpu = sum(other[key][1] for key in keys) / sum(base[key][1] for key in keys)
    lost = sum(1 for key in base if base[key] and not other[key])
    return f"| {name} | {100 * mean - 100:+.2f} | {100 * max(ratios) - 100:+.1f} | {100 * min(ratios) - 100:+.1f} | {cpu:.2f} | {lost or ''} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--only")
    parser.add_argument("--out", default="dev/results/ablation.md")
    options = parser.parse_args()
    seeds = SEEDS[:1] if options.quick else SEEDS
    names = options.only.split(",") if options.only else list(VARIANTS)
    with tempfile.TemporaryDirectory() as work:
        cases = [[name, f"{SHARED}/cases/{name}.json", []] for name in sorted(json.load(open(f"{SHARED}/cases/reference.json")))]
        num_shared = len(cases)
        cases += generated(work, 1, 18)
        num_generated = len(cases) - num_shared
        cases += with_buffers()
        base = measure("as it is", [], cases, seeds, work)
        lines = ["# What each part of the search brings", "",
                 f"`python3 dev/ablate.py{' --quick' if options.quick else ''}`: the planner with one part switched off or one constant changed, on the {num_shared} shared cases,",
                 f"{num_generated} generated ones and {len(cases) - num_shared - num_generated} in which every buffer counts, {len(seeds)} random seed{'s' if len(seeds) > 1 else ''}. Percent by which the makespan is longer than with the search as it is: geometric mean,",
                 "worst and best case; planning time, times that of the search as it is; cases for which nothing is found.", "",
                 "| switched off or changed | mean % | worst % | best % | time | not found |", "|---|---:|---:|---:|---:|---:|"]
        for name in names:
            lines.append(row(name, base, measure(name, [VARIANTS[name]], cases, seeds, work)))
            print(lines[-1], flush=True)
            with open(options.out, "w") as file:
                file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
