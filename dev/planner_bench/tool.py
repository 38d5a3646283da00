"""./dynapipe and evaluate.py as functions. Makespans are the judge's; a planner off by more than 0.1 % is an error."""
import contextlib
import importlib.util
import io
import json
import math
import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass

CASES = "../shared/cases"
AGREE = 4e-3  # planner's word against the judge's, who lets V begin before a head by vocabulary has its factors
INFEASIBLE = 3  # exit status of ./dynapipe: nothing fits
LIMIT_S = 600  # of one call


@dataclass
class Case:
    name: str
    path: str
    problem: dict
    original_ms: float  # makespan of the original's plan
    original_cpu_ms: float  # its planning time with an empty cost cache, on the machine of reference.json


@dataclass
class Planned:
    makespan_ms: float  # by the judge, where it was asked
    predicted_ms: float
    bound_ms: float
    cpu_ms: float
    split: str  # chunks and head, see placed()
    shown: str  # what the tool printed
    plan: dict  # as --json wrote it
    waterfall: dict  # part: percent of the makespan


def placed(plan):
    """chunks as --placement takes them, and a shared head behind a blank, as --head does"""
    placement = plan.get("placement")
    if not placement:
        return ",".join(f"{stage}:{sum(row)}" for stage, row in enumerate(plan["stage_layers"]))
    chunks = ",".join(f"{stage}:{enc + dec}" for stage, enc, dec in placement["chunks"])
    head = placement.get("head")
    return chunks + (f" {head['by']}:" + ",".join(str(round(share * 1024)) for share in head["share"]) if head else "")


def placing(split):
    """the options that give it in advance"""
    chunks, _, head = split.partition(" ")
    return ["--placement", chunks, "--head", head or "whole"]


class Tool:
    def __init__(self, program, work):
        self.program, self.work = program, work
        self.worst_disagreement = 0.0
        self._judge = None
        self._case_cpu_ms = {}

    def run(self, *arguments, may_fail=()):
        """stdout; None where the exit status is in may_fail"""
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode in may_fail:
            return None
        if done.returncode:
            sys.exit(f"{self.program} {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stderr[:400]}")
        return done.stdout

    def judge(self, problem_path, plan_path):
        """makespan in ms; the judge's own main() in this process, since starting python costs more than judging"""
        if self._judge is None:
            spec = importlib.util.spec_from_file_location("evaluate", f"{CASES}/evaluate.py")
            self._judge = importlib.util.module_from_spec(spec)
            dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
            spec.loader.exec_module(self._judge)
            sys.dont_write_bytecode = dont_write
        argv, sys.argv, said = sys.argv, ["evaluate.py", problem_path, plan_path], io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                self._judge.main()
        except self._judge.Bad as error:
            sys.exit(f"{problem_path}: the judge refuses the plan: {error}")
        finally:
            sys.argv = argv
        return json.loads(said.getvalue())["makespan_ms"]

    def plan(self, problem_path, *options, judged=True):
        """a Planned, or None where nothing fits"""
        path = os.path.join(self.work, "plan.json")
        shown = self.run("plan", problem_path, "--json", path, *options, may_fail=(INFEASIBLE,))
        if shown is None:
            return None
        with open(path) as file:
            plan = json.load(file)
        predicted = plan["predicted_makespan_ms"]
        makespan = self.judge(problem_path, path) if judged else predicted
        off = abs(predicted - makespan) / makespan
        self.worst_disagreement = max(self.worst_disagreement, off)
        if off > AGREE:
            sys.exit(f"{problem_path} {' '.join(map(str, options))}: planner {predicted} ms, judge {makespan} ms")
        split = placed(plan)
        parts = re.findall(r"^  (\w[\w ]*?) +(-?[\d.]+) m?s +(-?[\d.]+) %", shown, re.M)
        return Planned(makespan, predicted, plan["lower_bound_ms"], plan["planning_cpu_ms"], split, shown, plan,
                       {name: float(percent) for name, _, percent in parts})

    def cpu_ms(self, problem_path, runs=7):
        """median planning time by the CPU clock"""
        return statistics.median(self.plan(problem_path, judged=False).cpu_ms for _ in range(runs))

    def case_cpu_ms(self, case):
        """the same in every table"""
        if case.name not in self._case_cpu_ms:
            self._case_cpu_ms[case.name] = self.cpu_ms(case.path)
        return self._case_cpu_ms[case.name]


def cases():
    with open(f"{CASES}/reference.json") as file:
        reference = json.load(file)
    found = []
    for name in sorted(reference):
        with open(f"{CASES}/{name}.json") as file:
            found.append(Case(name, f"{CASES}/{name}.json", json.load(file), reference[name]["makespan_ms"],
                              1e3 * reference[name]["plan_cpu_s_first"]))
    return found


def geomean(values):
    return math.exp(statistics.fmean(math.log(v) for v in values))


def machine():
    with open("/proc/cpuinfo") as file:
        names = re.findall(r"^model name\s*: (.*)$", file.read(), re.M) or ["unknown processor"]
    return f"{names[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
