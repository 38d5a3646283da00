#!/usr/bin/env python3
"""Passes metrics.jsonl of a run on to TensorBoard or Weights & Biases.

    dev/to_dashboard.py tensorboard out/mine [--logdir out/mine/tensorboard]     pip install tensorboardX, or torch with tensorboard
    dev/to_dashboard.py wandb out/mine [--project mixtures] [--name NAME]        pip install wandb
    dev/to_dashboard.py wandb out/mine --offline                                 keeps it here; wandb sync sends it
"""
import argparse
import json
import os
import sys

WHERE = "metrics.jsonl, as the trainer writes it into its -o DIRECTORY"


def numbers(record, prefix):
    """Every number of a record by name: tasks as task_loss/NAME; lists by rank as their mean."""
    found = {}
    for key, value in record.items():
        if key in ("step", "validation", "refit", "run") or isinstance(value, bool) or value is None:
            continue
        if isinstance(value, (int, float)):
            found[prefix + key] = float(value)
        elif isinstance(value, dict):
            found.update(numbers(value, prefix + key + "/"))
        elif isinstance(value, list) and value and all(isinstance(x, (int, float)) for x in value):
            found[prefix + key] = sum(value) / len(value)
    return found


def read(path):
    """(headers, points): a header for each start; of a step that was done twice, the last counts."""
    headers, points = [], {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                if not line.endswith("\n"):
                    break  # the run is writing it
                sys.exit(f"error: {path}:{number}: {error} ---> {WHERE}")
            if not isinstance(record, dict) or not {"run", "validation", "refit", "step", "loss"} & set(record):
                sys.exit(f"error: {path}:{number}: no record of a run ---> {WHERE}")
            if "run" in record:
                headers.append(record)
                points = {key: value for key, value in points.items() if key[0] <= record["run"]}
            elif "validation" in record:
                points[(record["validation"], "val/")] = numbers(record, "val/")
            elif "step" in record:
                points[(record["step"], "train/")] = numbers(record, "train/")
    if not points:
        sys.exit(f"error: {path}: no step in it ---> {WHERE}")
    merged = {}
    for (step, _), values in sorted(points.items()):
        merged.setdefault(step, {}).update(values)
    return headers, sorted(merged.items())


def tensorboard(options, folder, headers, points):
    folder = options.logdir or os.path.join(folder, "tensorboard")
    if os.path.isdir(folder) and any("tfevents" in name for name in os.listdir(folder)):
        sys.exit(f"error: {folder}: has events already, curves would be double ---> remove it, or --logdir DIR")
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            sys.exit("error: neither tensorboardX nor torch with tensorboard is here ---> pip install tensorboardX")
    writer = SummaryWriter(folder)
    for header in headers:
        writer.add_text("run", "    " + json.dumps(header, indent=2).replace("\n", "\n    "), header["run"])
    for step, values in points:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    writer.close()
    print(f"{folder}: {len(points)} steps ---> tensorboard --logdir {folder}")


def wandb(options, folder, headers, points):
    try:
        import wandb as service
    except ImportError:
        sys.exit("error: no wandb here ---> pip install wandb")
    name = options.name or os.path.basename(os.path.abspath(folder))
    run = service.init(project=options.project, name=name, config=headers[-1] if headers else {},
                       mode="offline" if options.offline else "online")
    for step, values in points:
        run.log(values, step=step)
    run.finish()
    print(f"{name}: {len(points)} steps")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", choices=["tensorboard", "wandb"])
    parser.add_argument("metrics", help="the -o folder of a run, or its metrics.jsonl")
    parser.add_argument("--logdir", help="tensorboard: where the events go; default: tensorboard beside the metrics")
    parser.add_argument("--project", default="dynapipe", help="wandb: [dynapipe]")
    parser.add_argument("--name", help="wandb: of the run; default: its folder's")
    parser.add_argument("--offline", action="store_true", help="wandb: no network: written to ./wandb")
    options = parser.parse_args()
    path = os.path.join(options.metrics, "metrics.jsonl") if os.path.isdir(options.metrics) else options.metrics
    try:
        headers, points = read(path)
    except OSError as error:
        sys.exit(f"error: {path}: {error.strerror} ---> {WHERE}")
    {"tensorboard": tensorboard, "wandb": wandb}[options.to](options, os.path.dirname(path) or ".", headers, points)


main()
