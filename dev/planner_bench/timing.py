"""Table 4: what planning costs, and what more of it buys."""
import os
import re
import shutil
import subprocess

from makespans import CPU_TARGET_MS
from problems import Lengths, longest_of, mixture_of, write
from table import section, table
from tool import geomean

EFFORTS = (100, 300, 1000, 3000, 10000, 30000, 100000)
CALLGRIND = ("valgrind", "--tool=callgrind", "--toggle-collect=plan_make")
LARGE = {"n_stages": 16, "dp_size": 64, "layers_per_stage": 2}
LARGE_SAMPLES = 20000


def instructions(tool, path):
    """instructions of plan_make, in millions; None without valgrind"""
    if not shutil.which("valgrind"):
        return None
    done = subprocess.run([*CALLGRIND, f"--callgrind-out-file={os.devnull}", tool.program, "plan", path],
                          capture_output=True, text=True, timeout=600)
    counted = re.search(r"Collected : (\d+)", done.stderr)
    return int(counted.group(1)) / 1e6 if done.returncode == 0 and counted else None


def per_case(tool, cases, targets):
    rows = []
    for case in cases:
        limit_ms = CPU_TARGET_MS[case.problem["dp_size"]]
        count, cpu_ms = instructions(tool, case.path), tool.case_cpu_ms(case)
        rows.append([case.name, str(len(case.problem["samples"])),
                     targets.cell(f"planning time of {case.name}, ms", cpu_ms, limit_ms, "{:.1f}"),
                     str(limit_ms), f"{count:.0f}" if count else ""])
    return table(["case", "samples", "CPU ms", "target", "million instructions"], rows)


def one(tool, path, runs):
    """Planned (judged), with the median CPU ms of `runs`"""
    plan = tool.plan(path)
    plan.cpu_ms = tool.cpu_ms(path, runs)
    return plan


def large(tool, case, lengths, targets):
    samples = lengths.draw(case.problem, longest_of(case), mixture_of(case), "large", num=LARGE_SAMPLES)
    path = write(tool, "large.json", case.problem, samples=samples, **LARGE)
    plan, count = one(tool, path, 5), instructions(tool, path)
    cpu = targets.cell("planning time, 16 stages x 64 replicas, ms", plan.cpu_ms, 1000, "{:.0f}")
    row = [f"{LARGE['n_stages']} x {LARGE['dp_size']}", str(LARGE_SAMPLES), cpu, "1000",
           f"{count:.0f}" if count else "", f"{plan.makespan_ms / plan.bound_ms:.3f}"]
    heads = ["stages x replicas", "samples", "CPU ms", "target", "million instructions", "makespan / bound"]
    return table(heads, [row])


def growth(tool, case, lengths, targets):
    rows, before = [], {}
    for num in (250 << k for k in range(9)):
        row = [str(num)]
        samples = lengths.draw(case.problem, longest_of(case), mixture_of(case), f"growth {num}", num=num)
        for replicas in (1, 2):
            path = write(tool, "growth.json", case.problem, samples=samples, dp_size=replicas)
            plan = one(tool, path, 5 if num <= 8000 else 3)
            packed = min(tool.plan(path, "--policy", "packed-ragged", "--mb-tokens", budget, judged=False).predicted_ms
                         for budget in (longest_of(case), 2 * longest_of(case)))
            cell = targets.cell(f"makespan / bound, {num} samples, 4x{replicas}, against packed-ragged",
                                plan.makespan_ms / plan.bound_ms, packed / plan.bound_ms)
            times = f"{plan.cpu_ms / before[replicas]:.2f}" if replicas in before else ""
            before[replicas] = plan.cpu_ms
            row += [f"{plan.cpu_ms:.1f}", times, cell, f"{packed / plan.bound_ms:.3f}"]
        rows.append(row)
    names = ["CPU ms", "x", "/ bound", "packed-ragged / bound"]
    return table(["samples", *(f"{shape}: {name}" for shape in ("4x1", "4x2") for name in names)], rows)


def effort(tool, cases):
    grades, cpu_s = {}, {}
    for case in cases:
        for simulations in EFFORTS:
            plan = tool.plan(case.path, "--effort", simulations)
            grades.setdefault(case.name, []).append(plan.makespan_ms / plan.bound_ms)
            cpu_s[simulations] = cpu_s.get(simulations, 0) + plan.cpu_ms / 1e3
    rows = [[name, *(f"{grade:.3f}" for grade in row)] for name, row in grades.items()]
    rows.append(["geometric mean", *(f"{geomean(column):.3f}" for column in zip(*grades.values()))])
    rows.append(["CPU ms, mean", *(f"{1e3 * cpu_s[simulations] / len(cases):.1f}" for simulations in EFFORTS)])
    return table(["makespan / bound at --effort", *map(str, EFFORTS)], rows)


def timing(tool, cases, targets, quick):
    lengths = Lengths()
    named = {case.name: case for case in cases}
    return section("4. Planning time",
                   f"./dynapipe plan PROBLEM.json --json PLAN.json; {' '.join(CALLGRIND)} ./dynapipe plan PROBLEM.json",
                   """
One core, CPU clock around planning, default effort, median of 7 (5 or 3 where it is longer). Where others use the
machine, too, the count of instructions is the figure to compare.""",
                   per_case(tool, cases, targets),
                   "The model of gpt_s8_r2_flan_4k, lengths drawn from its mixture:",
                   large(tool, named["gpt_s8_r2_flan_4k"], lengths, targets),
                   "Growth with samples in one batch, the model of gpt_s4_r1_flan_2k (4 stages, 1 and 2 replicas).\n"
                   "x: CPU against half as many. packed-ragged: the better of two budgets; target: not behind it.",
                   growth(tool, named["gpt_s4_r1_flan_2k"], lengths, targets),
                   "What more simulations buy:",
                   effort(tool, cases))
