"""Table 6: steps whose durations are off by a few percent."""
import os

from table import section, table
from tool import geomean

TRIALS, SEED = 400, 20240613  # not the seed that --robust plans with
NOISES = (0.05, 0.1)


def replayed(tool, paths, level):
    """for each plan (planned, P50, P90) in ms; all meet the same noise"""
    shown = tool.run("replay", *paths, "--noise", level, "--trials", TRIALS, "--seed", SEED)
    found = {}
    for line in shown.splitlines():
        words = line.split()
        if words and words[0] in paths:
            found[words[0]] = (float(words[1]), float(words[2]), float(words[4]))
    return [found[path] for path in paths]


def noise(tool, cases, targets, quick):
    rows, gains = [], []
    for case in cases:
        for level in NOISES:
            paths = [os.path.join(tool.work, name) for name in ("plain.txt", "robust.txt")]
            tool.run("plan", case.path, "--text", paths[0])
            tool.run("plan", case.path, "--text", paths[1], "--robust", level)
            plain, robust = replayed(tool, paths, level)
            over = [f"{100 * (ms / plain[0] - 1):+.1f} %" for ms in (*plain[1:], *robust)]
            gains.append(robust[2] / plain[2])
            rows.append([case.name, f"{100 * level:.0f} %", *over, f"{100 * (gains[-1] - 1):+.2f} %"])
    rows.append(["geometric mean", "", "", "", "", "", "", f"{100 * (geomean(gains) - 1):+.2f} %"])
    return section("6. When times are off",
                   "./dynapipe plan CASE.json --text PLAN [--robust NOISE]; ./dynapipe replay PLAN... --noise NOISE",
                   f"""
Every duration varies with this standard deviation, orders stay; {TRIALS} trials, seed {SEED}, the same for both
plans. All against the exact makespan of the plan without --robust. Last column: robust's P90 against the other's.""",
                   table(["case", "noise", "P50", "P90", "robust: exact", "robust: P50", "robust: P90",
                          "P90 by --robust"], rows))
