#!/usr/bin/env python3
"""judge_plan.py PROBLEM.json PLAN.json: a plan in the published form, counted without the planner.

Formulas as in tool/problem.c's head. Checks that every sample and every layer
is there once (a layer in halves only where a stage has no whole number of them, "layers_per_stage": 1.5), every stage runs every job of its chunks and
its share of the head once, jobs find their inputs, and memory stays under the limit; then that `predicted_makespan_ms` is the
makespan to a millionth (the planner counts in ns) and `lower_bound_ms` is not above it. Prints "ok MAKESPAN PEAK_MB..." or what
is wrong (exit status 1). A stage's transfers leave in the order in which its jobs end, so times follow stage by stage from what
is known: no events, no clock. By vocabulary V waits for its factors, which B of the last chunk makes: they leave behind its
gradient, and take no time themselves. Tokens [begin, end) of one more sample, a piece, attend to all before them: on a chunk
F of the pieces ascend and B descend, keys and values stay until the piece's gradients are complete, and those of all but the
last have float32 gradients from the last piece's B on.
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
            require("piece" not in mb, "a padded microbatch with a piece")
        self.T = [sum(p[k] for p in pairs) for k in (0, 1)]
        self.S = [sum(p[k] ** 2 for p in pairs) for k in (0, 1)]
        self.X = sum(e * d for e, d in pairs)
        if "piece" in mb:  # the encoder is whole, with the first one
            begin, n = mb["piece"]["begin"], mb["piece"]["end"] - mb["piece"]["begin"]
            e = problem["samples"][mb["piece"]["sample"]][0]
            encoder = [e] if t5 and begin == 0 else []
            for kind, values in ((0, encoder), (t5, [n])):
                self.T[kind] += sum(values)
                self.S[kind] += sum(v * v for v in values)
            self.S[t5] += 2 * n * begin
            self.X += e * n if t5 else 0


def layer_keys(costs, kind, mode):
    keys = dict(costs["encoder"])
    if kind:
        keys.update(costs.get("decoder", {}))
    if mode != "none":
        require(mode in costs.get("rc", {}), f"mode {mode} is not offered")
        rc = costs["rc"][mode]
        keys.update(rc.get("decoder", rc.get("encoder", {})) if kind else rc.get("encoder", {}))
    return keys


def chunk_cost(problem, place, k, shape, mode):
    """ms of F, of B with W, of W alone; MB stored"""
    costs, forward, backward, weights, stored = problem["cost_model"], 0, 0, 0, 0
    for kind in (0, 1) if shape.T[0] else (1,):
        keys = layer_keys(costs, kind, mode)
        linear = keys["a"] * shape.T[kind]
        one = linear + keys["b"] * shape.S[kind] + keys["c"] + (keys.get("x", 0) * shape.X if kind else 0)
        one = max(one, keys.get("cmin", 0))
        held = keys["m"] * shape.T[kind] + keys.get("n", 0) * shape.S[kind]
        held += keys.get("mx", 0) * shape.X + keys.get("me", 0) * shape.T[0] if kind else 0
        layers = place.layers[k][kind]
        forward += layers * one
        backward += layers * one * keys["bwd"]
        weights += layers * linear
        stored += layers * held
    if k == place.last and not place.by:
        linear, rest, bwd = head_cost(problem, shape)
        forward += linear + rest
        backward += (linear + rest) * bwd
        weights += linear
    return forward, backward, weights, stored


def head_cost(problem, shape):
    """ms that grow with tokens, ms that do not, backward by forward"""
    head = problem["cost_model"].get("postprocess", {"a": 0, "c": 0, "bwd": 1})
    return head["a"] * shape.T[problem["model"] == "t5"], head["c"], head["bwd"]


class Place:
    """Chunks along the model and shares of the head by stage; where a plan has stage_layers, chunk s on stage s."""

    def __init__(self, problem, plan):
        rows = plan.get("placement", {}).get("chunks") or [[s, *row] for s, row in enumerate(plan["stage_layers"])]
        head = plan.get("placement", {}).get("head", {})
        self.P = problem["n_stages"]
        self.stage, self.layers = [row[0] for row in rows], [row[1:] for row in rows]
        self.last, self.by = len(rows) - 1, head.get("by")
        self.share = head.get("share", [0] * self.P)
        self.first_dec = next((k for k, row in enumerate(self.layers) if row[1]), len(rows))
        require(set(self.stage) == set(range(self.P)), "a stage without a chunk")
        all_layers, t5 = self.P * problem["layers_per_stage"], problem["model"] == "t5"
        require([sum(row[kind] for row in self.layers) for kind in (0, 1)] == ([all_layers / 2] * 2 if t5 else [all_layers, 0]), "not all layers, or too many")
        unit = 1 if problem["layers_per_stage"] % 1 == 0 else 0.5
        require(all(layers % unit == 0 for row in self.layers for layers in row), "a chunk ends inside a layer, or a half of one")
        require(len(self.share) == self.P and abs(sum(self.share) - bool(self.by)) < 1e-9, f"shares {self.share}")

    def rows(self, s):
        """what stage s runs: chunks, and its share"""
        return [k for k, stage in enumerate(self.stage) if stage == s] + (["share"] if self.share[s] else [])


def state_mb(problem, place, s):
    q = problem["cost_model"].get("params_mb", {})
    mine = [k for k, stage in enumerate(place.stage) if stage == s]
    mb = sum(place.layers[k][0] * q.get("encoder", 0) + place.layers[k][1] * q.get("decoder", 0) for k in mine)
    matrix = 1 if 0 in mine or place.first_dec in mine else place.share[s] if place.by == "vocabulary" else bool(place.share[s])
    mb += q.get("embedding", 0) * matrix
    return mb * (2 + 6 / problem["dp_size"] if problem.get("zero_stage", 0) >= 1 else 8)


def transfer_ms(problem, tokens):
    cluster = problem.get("cluster", {})
    bits = tokens * problem.get("hidden", 4096) * 16
    return cluster.get("intra_lat_us", 0) / 1e3 + bits / (cluster.get("intra_bw_gbps", 4800) * 1e6)


class Replica:
    def __init__(self, problem, place, replica):
        self.problem, self.place, self.mbs, self.orders = problem, place, replica["microbatches"], replica["stages"]
        require(len(self.orders) == place.P, f"{len(self.orders)} job orders for {place.P} stages")
        self.shapes = [Shape(problem, mb) for mb in self.mbs]
        self.arrived = {(0, "F", m): 0.0 for m in range(len(self.mbs))}  # what a job of a row waits for; a share is (-1 - stage)
        self.parts = {}
        self.pieces = {}  # of a sample, as tokens go
        for m in sorted((m for m, mb in enumerate(self.mbs) if "piece" in mb), key=lambda m: self.mbs[m]["piece"]["begin"]):
            self.pieces.setdefault(self.mbs[m]["piece"]["sample"], []).append(m)
        self.check_pieces()
        self.arrived |= {(place.first_dec, "F", m): 0.0 for m, shape in enumerate(self.shapes) if not shape.T[0]}
        self.done, self.link, self.clock = {}, [0.0] * place.P, [0.0] * place.P
        self.held = [state_mb(problem, place, s) for s in range(place.P)]
        self.peak = list(self.held)

    def check_pieces(self):
        for i, pieces in self.pieces.items():
            end = 0
            for m in pieces:
                require(self.mbs[m]["piece"]["begin"] == end < self.mbs[m]["piece"]["end"], f"sample {i}: pieces do not follow each other")
                require(m == pieces[-1] or not self.mbs[m]["samples"], f"sample {i}: a piece before its last is not alone")
                end = self.mbs[m]["piece"]["end"]
            e, d = self.problem["samples"][i]
            require(end == (d + 2 if self.problem["model"] == "t5" else e), f"sample {i}: pieces end at {end}")
            for s, order in enumerate(self.orders):
                for row in self.place.rows(s):
                    for kind, wanted in (("F", pieces), ("B", pieces[::-1])):
                        found = [j[1] for j in order if j[0] == kind and j[1] in pieces and self.row(s, j) == row]
                        require(found == [m for m in wanted if m in found], f"stage {s}: {kind} of pieces as {found}")

    def is_idle(self, row, m):
        """a later piece in front of the decoder"""
        return 0 <= row < self.place.first_dec and not self.shapes[m].T[0]

    def kept(self, row, m):
        """MB of keys and values that are no activations, and of their gradients in float32"""
        piece, mode = self.mbs[m]["piece"], self.mbs[m]["recompute"]
        mb = self.place.layers[row][self.problem["model"] == "t5"] * self.problem.get("hidden", 4096) * (piece["end"] - piece["begin"]) / 1e6
        return 4 * mb * ((mode[row] if isinstance(mode, list) else mode) != "none"), 8 * mb

    def row(self, s, job):
        if job[0] in "HV":
            return -1 - s
        return job[2] if len(job) > 2 else self.place.stage.index(s)

    def is_split(self, s, row, m):
        return any(j[0] in "WV" and j[1] == m and self.row(s, j) == row for j in self.orders[s])

    def input_at(self, row, kind, m):
        """when its input is there; None: not yet"""
        if kind == "V" and self.place.by == "rows":
            return self.done.get((row, "H", m))
        if kind == "W":
            return self.done.get((row, "B", m))
        if kind == "B" and row == self.place.last and not self.place.by:
            return self.done.get((row, "F", m))
        return self.arrived.get((row, kind, m))

    def duration(self, s, row, kind, m):
        """ms of the job; MB that F takes and B or W gives back"""
        if kind in "HV":
            linear, rest, bwd = head_cost(self.problem, self.shapes[m])
            linear *= self.place.share[s]
            return (linear if kind == "V" else (1 + bwd) * (linear + rest) - linear), 0
        mode = self.mbs[m]["recompute"]
        mode = mode[row] if isinstance(mode, list) else mode
        f, b, w, mb = chunk_cost(self.problem, self.place, row, self.shapes[m], mode)
        return {"F": f, "B": b - w * self.is_split(s, row, m), "W": w}[kind], mb

    def send(self, s, to, tokens):
        """when it is there"""
        if s == to:
            return self.clock[s]
        self.link[s] = max(self.link[s], self.clock[s]) + transfer_ms(self.problem, tokens)
        return self.link[s]

    def hand_on(self, s, row, kind, m):
        place, T = self.place, self.shapes[m].T
        rows, between = T[self.problem["model"] == "t5"], lambda k: T[0] + (T[1] if k + 1 > place.first_dec else 0)
        shares = [x for x in range(place.P) if place.share[x]]
        if kind == "F" and row < place.last:
            self.arrived[row + 1, "F", m] = self.send(s, place.stage[row + 1], between(row))
        elif kind == "F":
            for x in shares:
                self.arrived[-1 - x, "H", m] = self.send(s, x, rows)
        elif kind == "H":
            self.parts.setdefault(m, []).append(self.send(s, place.stage[place.last], rows))
            if len(self.parts[m]) == len(shares):
                self.arrived[place.last, "B", m] = max(self.parts[m])
        elif kind == "B":
            if row > 0 and not self.is_idle(row - 1, m):
                self.arrived[row - 1, "B", m] = self.send(s, place.stage[row - 1], between(row - 1))
            for x in shares if row == place.last and place.by == "vocabulary" else []:
                self.arrived[-1 - x, "V", m] = self.clock[s] if x == s else max(self.clock[s], self.link[s])

    def run_job(self, s, job):
        """False: its input is not there yet"""
        kind, m, row = job[0], job[1], self.row(s, job)
        at = self.input_at(row, kind, m)
        if at is None:
            return False
        before = {"B": "F", "W": "B", "V": "H"}.get(kind)
        require((row, kind, m) not in self.done, f"stage {s}: {job} is there twice")
        require(before is None or (row, before, m) in self.done, f"stage {s}: {job} before {before}")
        require(row < 0 or self.place.stage[row] == s, f"stage {s}: {job} is another stage's")
        ms, mb = self.duration(s, row, kind, m)
        self.clock[s] = max(self.clock[s], at) + ms
        self.done[row, kind, m] = self.clock[s]
        pieces = self.pieces[self.mbs[m]["piece"]["sample"]] if row >= 0 and "piece" in self.mbs[m] else []
        if pieces:
            mb += self.kept(row, m)[0]
        if kind == "B" and pieces and m == pieces[-1]:
            self.held[s] += sum(self.kept(row, x)[1] for x in pieces[:-1])
        if kind == "F":
            self.held[s] += mb
        self.peak[s] = max(self.peak[s], self.held[s])
        if kind == "W" or (kind == "B" and not self.is_split(s, row, m)):
            self.held[s] -= mb + (self.kept(row, m)[1] if pieces and m != pieces[-1] else 0)
        self.hand_on(s, row, kind, m)
        return True

    def run(self):
        at, progress = [0] * self.place.P, True
        while progress:
            progress = False
            for s, order in enumerate(self.orders):
                while at[s] < len(order) and self.run_job(s, order[at[s]]):
                    at[s] += 1
                    progress = True
        for s, order in enumerate(self.orders):
            require(at[s] == len(order), f"stage {s} waits for ever")
            for row in self.place.rows(s):
                wanted = [(-1 - s, "H"), (-1 - s, "V")] if row == "share" else [(row, "F"), (row, "B")]
                for m in range(len(self.mbs)):
                    missing = [(r, kind) for r, kind in wanted if (r, kind, m) not in self.done and not self.is_idle(r, m)]
                    require(not missing, f"stage {s}: jobs are missing: {missing}")
            require(self.peak[s] <= self.problem["memory_limit"] + 1e-3, f"stage {s}: {self.peak[s]:.3f} MB")
        return max(self.clock), self.peak


def main():
    problem, plan = (json.load(open(path)) for path in sys.argv[1:3])
    place, total = Place(problem, plan), problem["n_stages"] * problem["layers_per_stage"]
    wanted = [total // 2, total // 2] if problem["model"] == "t5" else [total, 0]
    require([sum(row[k] for row in place.layers) for k in (0, 1)] == wanted, f"layers {place.layers}")
    mbs = [mb for r in plan["replicas"] for mb in r["microbatches"]]
    seen = sorted([i for mb in mbs for i in mb["samples"]] + [mb["piece"]["sample"] for mb in mbs if mb.get("piece", {}).get("begin") == 0])
    require(seen == list(range(len(problem["samples"]))), "a sample is missing or there twice")
    require(len(plan["replicas"]) == problem["dp_size"], "not as many replicas as the problem")
    counted = [Replica(problem, place, r).run() for r in plan["replicas"]]
    makespan = max(span for span, _ in counted)
    peaks = [max(peak[s] for _, peak in counted) for s in range(problem["n_stages"])]
    predicted = plan["predicted_makespan_ms"]
    require(abs(predicted - makespan) <= 1e-6 * makespan + 1e-4, f"predicted {predicted} ms, counted {makespan} ms")
    require(plan["lower_bound_ms"] <= makespan * (1 + 1e-6), f"bound {plan['lower_bound_ms']} ms above {makespan} ms")
    print(f"ok {makespan:.6f}", *(f"{mb:.2f}" for mb in peaks))


main()
