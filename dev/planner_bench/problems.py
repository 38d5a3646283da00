"""Problems drawn from the sample lengths of ../shared/data, by the mixture that a shared case is of."""
import csv
import json
import os
import random

DATA = "../shared/data"
MAX_DECODER = 512  # targets are cut to this for encoder-decoder models


class Lengths:
    def __init__(self):
        self.tasks = {}
        with open(f"{DATA}/lengths.csv") as file:
            for row in csv.DictReader(file):
                self.tasks.setdefault(row["task"], []).append((int(row["input_tokens"]), int(row["target_tokens"])))
        with open(f"{DATA}/mixture.json") as file:
            self.mixtures = json.load(file)["mixtures"]

    def draw(self, problem, longest, mixture, seed, num=None, tokens=None):
        """num samples, or as many as fit in `tokens` tokens; longer ones are cut to `longest`"""
        rng = random.Random(seed)
        weights = self.mixtures[mixture]["weights"]
        names, total, samples = list(weights), 0, []
        shares = [weights[name] for name in names]
        while num is None or len(samples) < num:
            n_input, n_target = rng.choice(self.tasks[rng.choices(names, shares)[0]])
            if problem["model"] == "gpt":
                sample = [min(n_input + n_target, longest), 0]
            else:
                sample = [min(n_input, longest), min(n_target, MAX_DECODER)]
            total += sum(sample)
            if tokens is not None and total > tokens:
                break
            samples.append(sample)
        return samples


def mixture_of(case):
    return "flan2022_long2pct" if "_long_" in case.name else "flan2022"


def longest_of(case):
    """of the model, from the name: ..._4k_... -> 4096"""
    return next(int(word[:-1]) * 1024 for word in case.name.split("_") if word[:-1].isdigit() and word.endswith("k"))


def write(tool, name, problem, **changes):
    """path of a problem file: `problem` with some keys changed"""
    path = os.path.join(tool.work, name)
    with open(path, "w") as file:
        json.dump({**problem, **changes}, file)
    return path
