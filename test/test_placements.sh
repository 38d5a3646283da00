#!/usr/bin/env bash
# Plans of random placements and heads, of random planning problems: makespan and memory counted again by
# test/judge_plan.py, and by the judge of the shared cases where it is there. TIMES=10: as many times as many.
# concerns: dynapipe_plugin/plan tool
set -u
cd "$(dirname "$0")/.."
build=build/${BUILD:-release}$([[ "${CC:-gcc}" == clang* ]] && echo -clang)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! make -s -j2 BUILD="${BUILD:-release}" "$build/dynapipe" >"$work/build.log" 2>&1; then
    cat "$work/build.log"
    exit 1
fi
if ! command -v python3 >/dev/null; then
    echo "skip: no python3"
    exit 0
fi
python3 - "$build/dynapipe" "$work" "${TIMES:-1}" "${SEED:-1}" <<'EOF'
import json, os, random, subprocess, sys

tool, work, times, rng = sys.argv[1], sys.argv[2], int(sys.argv[3]), random.Random(int(sys.argv[4]))
shared = "../shared/cases"
UNITS = 1024  # HEAD_UNITS


def layer_costs():
    return {"a": rng.uniform(0.01, 0.1), "b": rng.uniform(0, 1e-4), "c": rng.uniform(0, 2), "cmin": 0,
            "bwd": rng.uniform(1.5, 2.5), "m": rng.uniform(0.01, 0.2), "n": rng.uniform(0, 1e-5)}


def draw_layers(P, t5):
    """whole, or where that gives every stack whole layers, with a half"""
    halves = P % (4 if t5 else 2) == 0 and rng.random() < 0.5
    return rng.randint(1, 4) + 0.5 if halves else rng.randint(2, 5)


def draw_problem():
    t5 = rng.random() < 0.4
    P = rng.choice([2, 4]) if t5 else rng.randint(1, 5)
    costs = {"encoder": layer_costs(), "postprocess": {"a": rng.uniform(0, 0.4), "c": rng.uniform(0, 1), "bwd": rng.uniform(1, 3)},
             "params_mb": {"embedding": rng.uniform(0, 50), "encoder": rng.uniform(0, 20), "decoder": rng.uniform(0, 20)},
             "rc": {"full": {"encoder": {"bwd": 3, "m": 0.002}}}}
    if t5:
        costs["decoder"] = {"x": rng.uniform(0, 1e-4), "mx": rng.uniform(0, 1e-5), "me": rng.uniform(0, 0.1)}
    return {"model": "t5" if t5 else "gpt", "n_stages": P, "dp_size": rng.choice([1, 1, 2]), "layers_per_stage": draw_layers(P, t5),
            "memory_limit": rng.choice([1e6, rng.uniform(1500, 6000)]), "hidden": 1024, "zero_stage": rng.randint(0, 1),
            "cluster": {"intra_bw_gbps": rng.uniform(1, 100), "intra_lat_us": rng.choice([0, rng.uniform(0, 500)])},
            "samples": [[rng.randint(1, 800), rng.randint(0, 200) if t5 else 0] for _ in range(rng.randint(3, 40))],
            "cost_model": costs}


def draw_chunks(problem):
    """stage:layers of random chunks, every stage has one; the last may be empty"""
    unit = 1 if isinstance(problem["layers_per_stage"], int) else 0.5
    P, L = problem["n_stages"], int(problem["n_stages"] * problem["layers_per_stage"] / unit)
    K = rng.randint(P, min(L, 3 * P))
    stages = list(range(P)) + [rng.randrange(P) for _ in range(K - P)]
    rng.shuffle(stages)
    cuts = [0, *sorted(rng.sample(range(1, L), K - 1)), L]
    layers = [b - a for a, b in zip(cuts, cuts[1:])]
    if rng.random() < 0.2 and K < 3 * P:
        stages, layers = stages + [rng.randrange(P)], layers + [0]
    return ",".join(f"{s}:{n * unit:g}" for s, n in zip(stages, layers))


def draw_head(P):
    head = rng.choice(["whole", "rows", "vocabulary"])
    if head == "whole" or rng.random() < 0.3:
        return head
    cuts = sorted(rng.choice([0, UNITS, rng.randint(0, UNITS)]) for _ in range(P - 1))
    return head + ":" + ",".join(str(b - a) for a, b in zip([0, *cuts], [*cuts, UNITS]))


def judge(command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode == 0, done.stdout.strip() + done.stderr.strip()


failed, planned, infeasible, halves, largest = 0, 0, 0, 0, 0.0
for turn in range(60 * times):
    problem, name, out = draw_problem(), f"{work}/problem.json", f"{work}/plan.json"
    json.dump(problem, open(name, "w"))
    where = rng.choice(["linear", "interleaved", "vee", "stacks"]) if rng.random() < 0.4 else draw_chunks(problem)
    options = ["--placement", where, "--head", draw_head(problem["n_stages"]), "--effort", "30"]
    if rng.random() < 0.2:
        options += ["--split-backward", rng.choice(["on", "off"])]
    if rng.random() < 0.2:
        options += ["--layout", "padded"]
    run = subprocess.run([tool, "plan", name, "--json", "-", *options], capture_output=True, text=True)
    open(out, "w").write(run.stdout)
    what = f"plan {turn}: {problem['model']}, {problem['n_stages']} stages {' '.join(options)}"
    if run.returncode == 3 or (run.returncode == 2 and "blocks, the model has" in run.stderr):
        infeasible += 1
        continue
    checks = [(run.returncode == 0, run.stderr.strip())]
    if run.returncode == 0:
        planned += 1
        halves += problem["layers_per_stage"] % 1 > 0
        checks += [judge(["python3", "test/judge_plan.py", name, out])]
    if run.returncode == 0 and os.path.exists(f"{shared}/evaluate.py"):
        fine, said = judge(["python3", f"{shared}/evaluate.py", name, out])
        # (there, V by vocabulary need not wait for what B of the last chunk sends)
        judged, predicted = json.loads(said).get("makespan_ms", 0), json.load(open(out))["predicted_makespan_ms"]
        agrees = judged <= predicted + 6e-4 and ("vocabulary" in options[3] or judged >= predicted - 6e-4)
        checks.append((fine and agrees, f"{said[:120]}, predicted {predicted}"))
        largest = max(largest, predicted / judged - 1) if judged else largest
    for fine, said in checks:
        if not fine:
            failed += 1
            print(f"FAIL {what}: {said}")
print(f"{planned} plans judged, {halves} with halves of layers, {infeasible} do not fit; the shared judge's makespan is up to {100 * largest:.3f} % below ours")
print(f"{planned} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0 or planned < 30 * times or halves < 5 * times)
EOF
