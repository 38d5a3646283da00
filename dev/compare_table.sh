#!/usr/bin/env bash
# dev/compare_table.sh DIR NAME...: runs that train on the same batches in different ways, as a table. DIR/NAME.1.jsonl,
# DIR/NAME.2.jsonl ... are the metrics.jsonl of repetitions; the first NAME is what speeds refer to.
# Of every step the fastest repetition counts (the least disturbed one), without the first step of each run (it grows
# buffers). Speed is supervised tokens per second.
. "$(dirname "$0")/help.sh"
set -eu
dir=$1
shift
for name in "$@"; do
    for file in "$dir/$name".*.jsonl; do sed "s/^{/{\"run\":\"$name\",/" "$file"; done
done | awk '
    function number(key,    at) {
        at = index($0, "\"" key "\":")
        return at ? substr($0, at + length(key) + 3) + 0 : 0
    }
    function mean_idle(    list, parts, i, n, sum) {
        list = $0
        sub(/.*"idle":\[/, "", list)
        sub(/\].*/, "", list)
        n = split(list, parts, /,/)
        for (i = 1; i <= n; i++) sum += parts[i]
        return sum / n
    }
    number("step") > 1 {
        split($0, quoted, /"/)
        name = quoted[4]; step = number("step"); ms = number("step_ms")
        if (!(name in last)) names[++num_names] = name
        if ((name, step) in best && best[name, step] <= ms) next
        best[name, step] = ms; supervised[name, step] = number("supervised_tokens"); total[name, step] = number("total_tokens")
        computed[name, step] = number("computed_tokens"); idle[name, step] = mean_idle()
        if (step > last[name]) last[name] = step
    }
    END {
        printf "%-14s %9s %12s %8s %6s   %s\n", "batching", "tokens/s", "supervised/s", "padding", "idle", "speed"
        for (k = 1; k <= num_names; k++) {
            name = names[k]; ms = s = t = c = d = 0
            for (step = 2; step <= last[name]; step++) {
                ms += best[name, step]; s += supervised[name, step]; t += total[name, step]; c += computed[name, step]
                d += idle[name, step]
            }
            speed = s / ms
            if (k == 1) reference = speed
            bar = ""; for (i = 0; i < 36 * speed / reference && i < 40; i++) bar = bar "#"
            printf "%-14s %9.0f %12.0f %7.1f%% %5.1f%%   %-36s %.2f\n", name, 1000 * t / ms, 1000 * speed, 100 * (1 - t / c),
                100 * d / (last[name] - 1), bar, speed / reference
        }
        exit num_names == 0
    }'
