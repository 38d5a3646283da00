#!/usr/bin/env bash
# dev/task_losses.sh METRICS: loss per task at the beginning and the end of a run, mean over up to 5 steps each.
. "$(dirname "$0")/help.sh"
grep '^{"step":' "$1" | awk '
    {
        line = $0
        sub(/.*"task_loss":\{/, "", line)
        sub(/\}.*/, "", line)
        count = split(line, pairs, /,/)
        for (i = 1; i <= count; i++) {
            split(pairs[i], pair, /":/)
            name = substr(pair[1], 2)
            if (!(name in seen)) { seen[name] = ++num_names; names[num_names] = name }
            value[NR, name] = pair[2]
        }
    }
    function mean(name, from, to,    r, n, sum) {
        for (r = from; r <= to; r++) if ((r, name) in value) { sum += value[r, name]; n++ }
        return n ? sum / n : -1
    }
    END {
        span = NR < 10 ? int((NR + 1) / 2) : 5
        for (i = 1; i <= num_names; i++) if (length(names[i]) > width) width = length(names[i])
        for (i = 1; i <= num_names; i++) {
            name = names[i]; a = mean(name, 1, span); b = mean(name, NR - span + 1, NR)
            if (a < 0 || b < 0) continue
            bar = ""; for (k = 0; k < 40 * b / a && k < 40; k++) bar = bar "#"
            printf "%-*s  %6.3f -> %6.3f  |%-40s|\n", width, name, a, b, bar
        }
    }'
