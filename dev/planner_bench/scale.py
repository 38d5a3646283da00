"""Planning for many ranks: dev/bench_planner.sh --scale writes dev/results/planner_scale.md."""
import os
import re
import shutil
import statistics
import subprocess

from problems import write
from table import table

CASE = "gpt_s8_r2_flan_4k"
SHAPES = ((64, 16, 43), (16, 64, 43), (1, 64, 2), (1, 128, 5), (8, 128, 43))  # replicas, stages, times the case's samples
TIMES_MS = {(64, 16): 1000, (16, 64): 1000}  # what planning may take a rank
RUNS = 3
CALLGRIND = ("valgrind", "--tool=callgrind", "--toggle-collect=plan_make", f"--callgrind-out-file={os.devnull}")


def planned(program, path, which):
    """CPU ms, makespan / bound"""
    done = [subprocess.run([program, path, which], capture_output=True, text=True, check=True, timeout=600).stdout.split()
            for _ in range(RUNS)]
    return statistics.median(float(words[0]) for words in done), float(done[0][1]) / float(done[0][2])


def instructions(program, path):
    """of one replica's, in millions; "" without valgrind"""
    if not shutil.which("valgrind"):
        return ""
    done = subprocess.run([*CALLGRIND, program, path, "one"], capture_output=True, text=True, timeout=1800)
    counted = re.search(r"Collected : (\d+)", done.stderr)
    return f"{int(counted.group(1)) / 1e6:.0f}" if done.returncode == 0 and counted else ""


def scale(tool, cases, targets):
    case = next(case for case in cases if case.name == CASE)
    program = os.path.join(os.path.dirname(tool.program), "tools", "plan_time")
    rows = []
    for replicas, stages, times in SHAPES:
        samples = case.problem["samples"] * times
        path = write(tool, "scale.json", case.problem, n_stages=stages, dp_size=replicas, layers_per_stage=2, samples=samples)
        all_ms, ratio = planned(program, path, "all")
        one_ms, _ = planned(program, path, "one") if replicas > 1 else (all_ms, ratio)
        limit_ms = TIMES_MS.get((replicas, stages))
        cell = (targets.cell(f"planning time of a rank, {replicas} x {stages}, ms", one_ms, limit_ms, "{:.0f}")
                if limit_ms else f"{one_ms:.0f}")
        rows.append([f"{replicas} x {stages}", str(len(samples)), f"{all_ms:.0f}", cell, str(limit_ms or ""),
                     instructions(program, path), f"{ratio:.3f}"])
    heads = ["replicas x stages", "samples", "CPU ms, all lists", "one replica's", "target", "million instructions",
             "makespan / bound"]
    return table(heads, rows)


def document(lines, head, machine):
    return ["# Planning for many ranks", "",
            f"`dev/bench_planner.sh --scale` at commit {head}. Shared case {CASE} with other numbers of stages and replicas, two",
            "layers a stage, its samples repeated. CPU time of `plan_make`, one core, median of 3: with the instruction lists of all",
            "replicas, as `./dynapipe plan` makes them, and with those of one replica, as ranks do in training; instructions: callgrind's, of these.",
            "", *lines, "", f"At the end: {machine}."]
