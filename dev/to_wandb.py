#!/usr/bin/env python3
"""Writes metrics.jsonl of a run as a run of Weights & Biases.

    dev/to_wandb.py out/mine/metrics.jsonl --project mixtures            sends it
    dev/to_wandb.py out/mine/metrics.jsonl --offline                     keeps it here; wandb sync sends it

Needs: pip install wandb.
"""

import argparse
import os
import sys

import metrics_records


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("metrics", help="the -o folder of a run, or its metrics.jsonl")
    parser.add_argument("--project", default="dynapipe", help="[dynapipe]")
    parser.add_argument("--name", help="of the run; default: its folder's")
    parser.add_argument("--offline", action="store_true", help="no network: written to ./wandb")
    options = parser.parse_args()
    options.metrics = metrics_records.file_of(options.metrics)
    try:
        headers, points = metrics_records.read(options.metrics)
    except OSError as error:
        sys.exit(f"error: {options.metrics}: {error.strerror} ---> the trainer writes it into its -o DIRECTORY")
    try:
        import wandb
    except ImportError:
        sys.exit("error: no wandb here ---> pip install wandb")
    name = options.name or os.path.basename(os.path.dirname(os.path.abspath(options.metrics)))
    run = wandb.init(project=options.project, name=name, config=headers[-1] if headers else {},
                     mode="offline" if options.offline else "online")
    for step, values in points:
        run.log(values, step=step)
    run.finish()
    print(f"{name}: {len(points)} steps")


main()
