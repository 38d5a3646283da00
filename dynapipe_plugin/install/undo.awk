# undo.awk -- takes out of a file what edits.awk has put there, by its record, byte for byte.
#
# stdin: the file. stdout: as it was. Environment: record (a file of edits.awk's record), force=1 (take out what is found),
# no_newline=1 (the last line has none). What is no longer as it was put there: a line for each on stderr, and exit status 1.

function find_line(wanted, before,    i) {
    for (i = before - 1; i >= 1; i--) if (!dropped[i] && lines[i] == wanted) return i
    for (i = num_lines; i >= before; i--) if (!dropped[i] && lines[i] == wanted) return i
    return 0
}

function lost(wanted) {
    sub(/\r$/, "", wanted)
    print "    " wanted > "/dev/stderr"
    status = 1
}

# Had this last line no newline, or has it none now?
function ends_bare(i) { return i == num_lines ? ENVIRON["no_newline"] : no_newline && lines[i] == last_line }

BEGIN {
    while ((getline line < ENVIRON["record"]) > 0) {
        if (line == "nonewline") continue
        if (substr(line, 1, 1) == "=") { no_newline = 1; last_line = substr(line, 2); continue }
        if (line == "change" || line ~ /^insert /) { kind = line; continue }
        if (substr(line, 1, 1) == "-") { was = substr(line, 2); continue }
        num_ops++
        op_is_change[num_ops] = kind == "change"
        op_new[num_ops] = substr(line, 2)
        op_old[num_ops] = was
    }
}
{ lines[FNR] = $0; num_lines = FNR }
END {
    cursor = num_lines + 1
    for (k = num_ops; k >= 1; k--) {
        i = find_line(op_new[k], cursor)
        if (!i) { lost(op_new[k]); continue }
        if (op_is_change[k]) lines[i] = op_old[k]
        else dropped[i] = 1
        cursor = i
    }
    if (status && !ENVIRON["force"]) exit 1
    for (i = 1; i <= num_lines; i++) if (!dropped[i]) last = i
    for (i = 1; i <= num_lines; i++)
        if (!dropped[i]) printf "%s%s", lines[i], (i == last && ends_bare(i)) ? "" : "\n"
}
