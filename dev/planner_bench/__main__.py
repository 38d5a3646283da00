"""The planner's tables: see dev/bench_planner.sh. Run in the repository's root.

usage: python3 dev/planner_bench [--only NAME,NAME] [--out FILE] [--summary FILE] [--check] [--scale] [--tool PROGRAM]
    --only     rules, everything, policies, timing, fixed_split [all five]
    --out      write the tables there, too
    --summary  write one table of the makespans there
    --check    rules, everything, policies with fewer budgets, ten times the CPU time: a line a target, for test/
    --scale    planning for many ranks alone, to --out as a document of its own; needs tools/plan_time beside the program
Exit status 1: somebody else's policy is ahead (--check: any target is missed).
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from fixed_split import fixed_split
from makespans import everything, policies, rules
from scale import document, scale
from summary import summary
from table import Targets
from timing import timing
from tool import AGREE, Tool, cases, machine

TABLES = {"rules": rules, "everything": everything, "policies": policies, "timing": timing, "fixed_split": fixed_split}


def commit():
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def head():
    return ["# Planner: against the original, the bound and the practice of today", "",
            f"`dev/bench_planner.sh` at commit {commit()}. Cases, the original's figures and `evaluate.py`, the judge of",
            "every makespan, are those of ../shared/cases. Planning takes one core.", ""]


def tail(tool, targets):
    lines = ["## Targets", "",
             f"{targets.num} compared, {len(targets.missed)} missed. Planner and judge differ by at most",
             f"{100 * tool.worst_disagreement:.5f} % (allowed: {100 * AGREE:.1f} %). At the end: {machine()}.", ""]
    return lines + [f"* MISSED {missed}" for missed in targets.missed]


def write(path, lines):
    with open(path + ".tmp", "w") as file:
        file.write("\n".join(lines).rstrip() + "\n")
    os.replace(path + ".tmp", path)


def many_ranks(options):
    targets = Targets()
    with tempfile.TemporaryDirectory() as work:
        lines = document(scale(Tool(options.tool, work), cases(), targets), commit(), machine())
    lines += ["", *(f"* MISSED {missed}" for missed in targets.missed)]
    if options.out:
        write(options.out, lines)
    print("\n".join(lines).rstrip())
    return 1 if targets.missed else 0


def check(targets):
    for missed in targets.missed:
        print(f"FAIL {missed}")
    print(f"{targets.num - len(targets.missed)} passed, {len(targets.missed)} failed, 0 skipped")
    return 1 if targets.missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TABLES))
    parser.add_argument("--out")
    parser.add_argument("--summary")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--tool", default="build/release/dynapipe")
    options = parser.parse_args()
    if options.scale:
        return many_ranks(options)
    names = ["rules", "everything", "policies"] if options.check else options.only.split(",")
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        sys.exit(f"no table {unknown[0]} ---> {', '.join(TABLES)}")
    targets, lines = Targets(), head()
    with tempfile.TemporaryDirectory() as work:
        tool = Tool(options.tool, work)
        for name in names:
            lines += TABLES[name](tool, cases(), targets, options.check)
            print(f"{name}: {targets.num} compared so far, {len(targets.missed)} missed", file=sys.stderr, flush=True)
        if options.summary:
            write(options.summary, summary(tool, cases()))
    if options.check:
        return check(targets)
    lines += tail(tool, targets)
    if options.out:
        write(options.out, lines)
    print("\n".join(lines).rstrip())
    return 1 if targets.not_ahead else 0


sys.exit(main())
