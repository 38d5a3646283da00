"""The short table that the README shows: every case in one row."""
from makespans import BASELINES, best_baseline, FEW_BUDGETS
from table import table
from tool import geomean


def summary(tool, cases):
    rows, ratios, grades = [], [], []
    for case in cases:
        ours = tool.plan(case.path)
        plans = {policy: best_baseline(tool, case, policy, FEW_BUDGETS) for policy in BASELINES}
        best_ms, best = min((plan.makespan_ms, policy) for policy, plan in plans.items() if plan)
        ratios.append(ours.makespan_ms / case.original_ms)
        grades.append(ours.makespan_ms / ours.bound_ms)
        rows.append([case.name, f"{case.original_ms:.0f}", f"{best_ms:.0f} ({best})", f"{ours.makespan_ms:.0f}",
                     f"{ratios[-1]:.3f}", f"{grades[-1]:.3f}", f"{case.original_cpu_ms:.0f}",
                     f"{tool.case_cpu_ms(case):.0f}"])
    rows.append(["geometric mean", "", "", "", f"{geomean(ratios):.3f}", f"{geomean(grades):.3f}", "", ""])
    heads = ["case", "original", "best baseline", "ours", "ours / original", "ours / bound", "original's planning",
             "our planning"]
    return [f"# Planner: {len(cases)} batches of real lengths", "", """
Makespans of one training step and CPU time of planning, in ms. Names: model, stages, replicas, mixture, longest
sequence. original: DynaPipe's own planner. best baseline: packing, balancing and padding as is common today, with the
best of several budgets. bound: no plan is faster. All tables, commands and the machine: `dev/results/planner.md`.
""".strip(), "", *table(heads, rows)]
