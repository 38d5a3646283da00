#!/usr/bin/env python3
"""Of a trace (--trace FILE): what jobs were predicted to take against what they took, per rank and kind, signed.

    ./profile_costs --model l8c256h4 --tokens 2048 --vocab 50257 --out costs.txt
    ./train_gpt2 -i data/train.bin -e l8c256h4 -t 2048 -d 8192 -x 3 -v 0 -s 0 --costs costs.txt --trace t.json --show-step 3
    dev/job_errors.py t.json
"""
import json
import statistics
import sys
from collections import defaultdict

PREDICTED, JOBS = 1, ("fwd", "bwd", "wgt", "rec")
sides = (defaultdict(float), defaultdict(float))
for event in json.load(open(sys.argv[1]))["traceEvents"]:
    if event.get("ph") == "X" and event["name"].split()[0] in JOBS:
        sides[event["pid"] != PREDICTED][event["args"]["rank"], event["name"]] += event["dur"]
groups = defaultdict(list)
for key, predicted in sides[0].items():
    if sides[1].get(key, 0) > 0:
        groups[key[0], key[1].split()[0]].append((predicted, sides[1][key]))
print("rank job   jobs   measured ms   of the sum   median     mean")
for (row, kind), pairs in sorted(groups.items()):
    errors = [100 * (p / m - 1) for p, m in pairs]
    predicted, measured = (sum(side) for side in zip(*pairs))
    print(f"{row:3d}  {kind} {len(pairs):6d} {measured / 1e3:13.1f} {100 * (predicted / measured - 1):+10.1f} % "
          f"{statistics.median(errors):+6.1f} % {statistics.mean(errors):+6.1f} %")
