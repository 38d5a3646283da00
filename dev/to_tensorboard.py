#!/usr/bin/env python3
"""Writes metrics.jsonl of a run as TensorBoard's event files.

    dev/to_tensorboard.py out/mine/metrics.jsonl [--logdir out/mine/tensorboard]
    tensorboard --logdir out/mine/tensorboard

Needs one of: pip install tensorboardX; or torch with tensorboard.
"""

import argparse
import json
import os
import sys

import metrics_records


def make_writer(folder):
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            sys.exit("error: neither tensorboardX nor torch with tensorboard is here ---> pip install tensorboardX")
    return SummaryWriter(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("metrics", help="the -o folder of a run, or its metrics.jsonl")
    parser.add_argument("--logdir", help="where the events go; default: tensorboard beside the metrics")
    options = parser.parse_args()
    options.metrics = metrics_records.file_of(options.metrics)
    folder = options.logdir or os.path.join(os.path.dirname(options.metrics) or ".", "tensorboard")
    if os.path.isdir(folder) and any("tfevents" in name for name in os.listdir(folder)):
        sys.exit(f"error: {folder}: has events already, curves would be double ---> remove it, or --logdir DIR")
    try:
        headers, points = metrics_records.read(options.metrics)
    except OSError as error:
        sys.exit(f"error: {options.metrics}: {error.strerror} ---> the trainer writes it into its -o DIRECTORY")
    writer = make_writer(folder)
    for header in headers:
        writer.add_text("run", "    " + json.dumps(header, indent=2).replace("\n", "\n    "), header["run"])
    for step, values in points:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    writer.close()
    print(f"{folder}: {len(points)} steps ---> tensorboard --logdir {folder}")


main()
