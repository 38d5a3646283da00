#!/usr/bin/env bash
# Targets of cuda_bench_operations and cuda_bench_steps become what PyTorch took in the same run, on the same card, where it was
# measured: attention of equal lengths at least 85 % of its flash attention (FlashAttention-2, which like ours is mma.sync), a step of
# GPT-2 124M at least its eager one. Where it was not, targets stay those of a fixed list (one H200), and say "no reference".
#   dev/cuda_bench/against_torch.sh TORCH.md TABLE.md...     rewrites the tables; TORCH.md may be missing
. "$(dirname "$0")/../help.sh"
set -u
torch=$1
shift
[ -e "$torch" ] || torch=/dev/null
for table in "$@"; do
    [ -e "$table" ] || continue
    awk -F'|' -v OFS='|' -v torch="$torch" '
        function trim(s) { gsub(/^ +| +$/, "", s); return s }
        function judge(value, target, what) {  # the two last cells
            $(NF - 2) = sprintf(" %.0f (%s) ", target, what)
            $(NF - 1) = value >= target ? " yes " : " **no** "
        }
        BEGIN {
            while ((getline line < torch) > 0) {
                n = split(line, cell, "|")
                if (trim(cell[2]) == "flash" && cell[5] + 0 > 0) { rate["forward", trim(cell[3])] = cell[5]; rate["backward", trim(cell[3])] = cell[7] }
                if (line ~ /^### GPT-2 124M, a step/) { in_step = 1 }
                if (in_step && match(line, /[0-9]+ tokens\/s/)) { step = substr(line, RSTART) + 0 }
            }
        }
        function has_target() { return trim($(NF - 2)) ~ /^[0-9]+$/ && trim($(NF - 1)) ~ /^(yes|\*\*no\*\*)$/ }
        NF > 8 && has_target() && trim($4) ~ /^(forward|backward)$/ {
            length_ = trim($2)
            is_equal = sub(/^all /, "", length_)
            if (is_equal && ((trim($4), length_) in rate)) { judge($6 + 0, 0.85 * rate[trim($4), length_], "85 % of PyTorch") }
            else { $(NF - 2) = $(NF - 2) "(no reference) " }
        }
        NF > 8 && has_target() && trim($2) ~ /^d[0-9]+$/ {
            if (trim($2) == "d12" && step > 0) { judge($6 + 0, step, "PyTorch") }
            else { $(NF - 2) = $(NF - 2) "(no reference) " }
        }
        {print}' "$table" >"$table.tmp" && mv "$table.tmp" "$table"
done
