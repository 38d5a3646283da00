"""Table 5: a stage split fixed for a run, chosen on other batches of the same mixture.

Per case: its own batch and OTHERS drawn ones. Each gives the split that auto takes for it. A batch is then planned with
the splits of the others; the run's choice is the one with the least mean makespan over the batches other than this.
"""
import math
import statistics

from problems import Lengths, longest_of, mixture_of, write
from tool import placing
from table import section, table

OTHERS = 4
BATCH_TOKENS = 65536


def batches(tool, case, lengths):
    paths = [case.path]
    for k in range(OTHERS):
        seed = f"{case.name} {k}"
        samples = lengths.draw(case.problem, longest_of(case), mixture_of(case), seed, tokens=BATCH_TOKENS)
        paths.append(write(tool, f"batch{k}.json", case.problem, samples=samples))
    return paths


def losses(tool, case, lengths):
    """(auto's split, what giving it in advance changes, [(split chosen from the others, loss)] by batch, [loss of the
    case under each single other]), all in percent"""
    paths = batches(tool, case, lengths)
    free = [tool.plan(path) for path in paths]
    splits = sorted({plan.split for plan in free})
    fixed = {}  # (split, batch): makespan / auto's
    for b, path in enumerate(paths):
        for split in splits:
            plan = tool.plan(path, *placing(split))
            fixed[split, b] = plan.makespan_ms / free[b].makespan_ms if plan else math.inf
    chosen = []
    for b in range(len(paths)):
        others = [k for k in range(len(paths)) if k != b]
        candidates = {free[k].split for k in others}
        best = min(sorted(candidates), key=lambda split: sum(fixed[split, k] for k in others))
        chosen.append((best, 100 * (fixed[best, b] - 1)))
    single = [100 * (fixed[free[k].split, 0] - 1) for k in range(1, len(paths))]
    return free[0].split, 100 * (fixed[free[0].split, 0] - 1), chosen, single


def percent(loss):
    return f"{loss:+.2f} %" if math.isfinite(loss) else "does not fit"


def fixed_split(tool, cases, targets, quick):
    lengths, rows = Lengths(), []
    for case in cases:
        own, given, chosen, single = losses(tool, case, lengths)
        all_losses = [loss for _, loss in chosen]
        rows.append([case.name, own.replace(",", " "), percent(given), chosen[0][0].replace(",", " "),
                     percent(chosen[0][1]), percent(statistics.fmean(all_losses)), percent(max(all_losses)), percent(max(single))])
    heads = ["case", "auto's own", "given in advance", "chosen on others", "loss", "all five: mean", "all five: worst",
             "by one other: worst"]
    return section("5. Placement fixed in advance",
                   "./dynapipe plan BATCH.json --placement S:L,S:L,... --head HEAD --json PLAN.json",
                   f"""
Loss against `--placement auto --head auto` on the batch itself. Other batches: {OTHERS} of {BATCH_TOKENS} tokens for each case,
drawn from its mixture (seed: case and number; lengths in GPT-2 tokens). Chosen: of the splits that auto took for the
others, the one that is best on average over them. All five: each batch in turn left out. By one other: as auto took
it there. Below zero: the search with one split found more than auto, which shares its effort among splits; given in
advance is auto's own split once more, with all of the effort.""",
                   table(heads, rows))
