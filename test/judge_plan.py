#!/usr/bin/env python3
"""judge_plan.py PROBLEM.json PLAN.json: a plan in the published form, counted without the planner.

Formulas as in tool/problem_json.c's head. Checks that every sample is there once, every stage runs every job once,
jobs find their inputs, and memory stays under the limit; then that `predicted_makespan_ms` is the makespan to 0.1 % and
`lower_bound_ms` is not above it. Prints "ok MAKESPAN PEAK_MB..." or what is wrong (exit status 1). A stage's transfers leave in
the order in which its jobs end, so times follow stage by stage from what is known: no events, no clock.
"""
import json
import sys


def require(condition, message):
    if not condition:
        print(message)
        sys.exit(1)


def up8(n):
    return -(-n // 8) * 8


class Shape:
    def __init__(self, problem, mb):
        t5 = problem["model"] == "t5"
        pairs = [(e, d + 2 if t5 else 0) for e, d in (problem["samples"][i] for i in mb["samples"])]
        if mb["padded"]:
            longest = tuple(up8(max(p[k] for p in pairs)) for k in (0, 1))
            pairs = [longest] * len(pairs)
        self.T = [sum(p[k] for p in pairs) for k in (0, 1)]
        self.S = [sum(p[k] ** 2 for p in pairs) for k in (0, 1)]
        self.X = sum(e * d for e, d in pairs)


def layer_keys(costs, kind, mode):
    keys = dict(costs["encoder"])
    if kind:
        keys.update(costs.get("decoder", {}))
    if mode != "none":
        require(mode in costs.get("rc", {}), f"mode {mode} is not offered")
        rc = costs["rc"][mode]
        keys.update(rc.get("decoder", rc.get("encoder", {})) if kind else rc.get("encoder", {}))
    return keys


def stage_cost(problem, layers, s, shape, mode):
    """ms of F, of B with W, of W alone; MB stored"""
    costs, forward, backward, weights, stored = problem["cost_model"], 0, 0, 0, 0
    for kind in (0, 1):
        k = layer_keys(costs, kind, mode)
        linear = k["a"] * shape.T[kind]
        one = linear + k["b"] * shape.S[kind] + k["c"] + (k.get("x", 0) * shape.X if kind else 0)
        one = max(one, k.get("cmin", 0))
        held = k["m"] * shape.T[kind] + k.get("n", 0) * shape.S[kind]
        held += k.get("mx", 0) * shape.X + k.get("me", 0) * shape.T[0] if kind else 0
        forward += layers[kind] * one
        backward += layers[kind] * one * k["bwd"]
        weights += layers[kind] * linear
        stored += layers[kind] * held
    head = costs.get("postprocess")
    if head and s == problem["n_stages"] - 1:
        linear = head["a"] * shape.T[problem["model"] == "t5"]
        forward += linear + head["c"]
        backward += (linear + head["c"]) * head["bwd"]
        weights += linear
    return forward, backward, weights, stored


def state_mb(problem, split, s):
    q = problem["cost_model"].get("params_mb", {})
    first_dec = next((i for i, row in enumerate(split) if row[1]), None)
    mb = split[s][0] * q.get("encoder", 0) + split[s][1] * q.get("decoder", 0)
    mb += q.get("embedding", 0) if s in (0, first_dec) else 0
    return mb * (2 + 6 / problem["dp_size"] if problem.get("zero_stage", 0) >= 1 else 8)


def transfer_ms(problem, split, s, shape):
    first_dec = next((i for i, row in enumerate(split) if row[1]), len(split))
    tokens = shape.T[0] + (shape.T[1] if s + 1 > first_dec else 0)
    cluster = problem.get("cluster", {})
    bits = tokens * problem.get("hidden", 4096) * 16
    return cluster.get("intra_lat_us", 0) / 1e3 + bits / (cluster.get("intra_bw_gbps", 4800) * 1e6)


def run_replica(problem, split, replica):
    P, mbs, orders = problem["n_stages"], replica["microbatches"], replica["stages"]
    require(len(orders) == P, f"{len(orders)} job orders for {P} stages")
    shapes = [Shape(problem, mb) for mb in mbs]
    mode = lambda m, s: mbs[m]["recompute"][s] if isinstance(mbs[m]["recompute"], list) else mbs[m]["recompute"]
    arrived = {(0, "F", m): 0.0 for m in range(len(mbs))}  # input of a job is on its stage
    own, link, clock, at = {}, [0.0] * P, [0.0] * P, [0] * P
    held = [state_mb(problem, split, s) for s in range(P)]
    peak = list(held)
    progress = True
    while progress:
        progress = False
        for s in range(P):
            while at[s] < len(orders[s]):
                kind, m = orders[s][at[s]]
                inputs = {"F": arrived.get((s, "F", m)), "W": own.get((s, "B", m)),
                          "B": own.get((s, "F", m)) if s == P - 1 else arrived.get((s, "B", m))}
                if inputs[kind] is None:
                    break
                require((s, kind, m) not in own, f"stage {s}: {kind}{m} is there twice")
                require(kind != "B" or (s, "F", m) in own, f"stage {s}: B{m} before F{m}")
                f, b, w, mb = stage_cost(problem, split[s], s, shapes[m], mode(m, s))
                splits = ["W", m] in orders[s]
                clock[s] = max(clock[s], inputs[kind]) + {"F": f, "B": b - w * splits, "W": w}[kind]
                own[s, kind, m] = clock[s]
                if kind == "F":
                    held[s] += mb
                    peak[s] = max(peak[s], held[s])
                elif kind == "W" or not splits:
                    held[s] -= mb
                to = s + 1 if kind == "F" else s - 1
                if kind != "W" and 0 <= to < P:
                    link[s] = max(link[s], clock[s]) + transfer_ms(problem, split, min(s, to), shapes[m])
                    arrived[to, kind, m] = link[s]
                at[s] += 1
                progress = True
    for s in range(P):
        require(at[s] == len(orders[s]), f"stage {s} waits for ever")
        for kind in "FB":
            require(all((s, kind, m) in own for m in range(len(mbs))), f"stage {s}: a {kind} is missing")
        require(peak[s] <= problem["memory_limit"] + 1e-3, f"stage {s}: {peak[s]:.3f} MB")
    return max(clock), peak


def main():
    problem, plan = (json.load(open(path)) for path in sys.argv[1:3])
    split, per_stage = plan["stage_layers"], problem["layers_per_stage"]
    total = problem["n_stages"] * per_stage
    wanted = [total // 2, total // 2] if problem["model"] == "t5" else [total, 0]
    require([sum(row[k] for row in split) for k in (0, 1)] == wanted, f"layers {split}")
    seen = sorted(i for r in plan["replicas"] for mb in r["microbatches"] for i in mb["samples"])
    require(seen == list(range(len(problem["samples"]))), "a sample is missing or there twice")
    require(len(plan["replicas"]) == problem["dp_size"], "not as many replicas as the problem")
    counted = [run_replica(problem, split, r) for r in plan["replicas"]]
    makespan = max(span for span, _ in counted)
    peaks = [max(peak[s] for _, peak in counted) for s in range(problem["n_stages"])]
    predicted = plan["predicted_makespan_ms"]
    require(abs(predicted - makespan) <= 1e-3 * makespan, f"predicted {predicted} ms, counted {makespan} ms")
    require(plan["lower_bound_ms"] <= makespan * (1 + 1e-6), f"bound {plan['lower_bound_ms']} ms above {makespan} ms")
    print(f"ok {makespan:.6f}", *(f"{mb:.2f}" for mb in peaks))


main()
