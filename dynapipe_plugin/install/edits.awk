# edits.awk -- puts a table's lines into one source file, or takes them out again. With scan.awk; install.sh has the format.
#
# stdin: the file. stdout: the file as it should be. Environment: tables (names of table files, a line each), table_file (what
# they call this file), plain=1 (no C), mode=add|remove, crlf=1 (lines end so), no_newline=1 (the last has none), report, record
# (files to append to). report, a line for each edit: STATE|line|why|detail, STATE being there, add, missing, unclear, passed
# (optional, not needed), removed or kept (not ours for certain); after missing and unclear its lines as line|TEXT. record, for undo.awk: "insert N" or
# "change", then the lines, "+" before what is new, "-" before what was.

function fail(what) { print "install.sh: " what > "/dev/stderr"; failed = 1; exit 3 }

# --- the tables -------------------------------------------------------------------------------------------------
function end_edit(    key) {
    if (!in_edit) return
    in_edit = 0
    key = fn[E] SUBSEP where[E] SUBSEP num_anchors[E] SUBSEP anchor[E, 1] SUBSEP with[E] SUBSEP num_texts[E] SUBSEP text[E, 1]
    if (seen[key]++) E--  # two tables, one line
}

function read_table(name,    line, word, rest, of_file, number) {
    while ((getline line < name) > 0) {
        number++
        sub(/\r$/, "", line)
        if (substr(line, 1, 1) == "+") {
            if (!of_file) continue
            if (!in_edit) fail(name ":" number ": a line to add, but no edit")
            text[E, ++num_texts[E]] = substr(line, 2)
            continue
        }
        if (line ~ /^[ \t]*(#|$)/) continue
        word = rest = line
        sub(/[ \t].*/, "", word)
        sub(/^[^ \t]+[ \t]*/, "", rest)
        sub(/[ \t]+$/, "", rest)
        if (word == "edit") {
            end_edit()
            of_file = rest == ENVIRON["table_file"]
            if (of_file) {
                in_edit = 1
                E++
                fn[E] = where[E] = pick[E] = why[E] = with[E] = ""
                num_texts[E] = num_anchors[E] = num_proofs[E] = optional[E] = 0
            }
        } else if (word ~ /^(tree|has|lacks|calls|build|start)$/) {
            end_edit()
            of_file = 0
        } else if (!of_file) {
            if (word !~ /^(in|at|before|after|replace|with|there|pick|optional|why)$/) fail(name ":" number ": unknown word " word)
        } else if (word == "in") fn[E] = rest
        else if (word == "at") where[E] = rest
        else if (word == "before" || word == "after" || word == "replace") { where[E] = word; anchor[E, ++num_anchors[E]] = rest }
        else if (word == "with") with[E] = rest
        else if (word == "there") proof[E, ++num_proofs[E]] = rest
        else if (word == "pick") pick[E] = rest
        else if (word == "optional") optional[E] = 1
        else if (word == "why") why[E] = rest
        else fail(name ":" number ": unknown word " word)
    }
    close(name)
    end_edit()
}

# --- places -----------------------------------------------------------------------------------------------------
# Sets first_line and last_line to where edit e belongs; returns "" or why there is no such place.
function find_region(e,    k, found) {
    first_line = 1
    last_line = num_lines
    if (fn[e] == "") return ""
    for (k = 1; k <= num_functions; k++)
        if (fn_name[k] == fn[e]) { found++; f = k }
    if (!found) return "no function " fn[e] "() is defined here"
    if (found > 1) return "function " fn[e] "() is defined " found " times here"
    first_line = fn_start[f]
    last_line = fn_close[f]
    if (where[e] == "at above" || where[e] == "above") last_line = fn_start[f] - 1
    return ""
}

# A line of edit e that stands in its region already, and that no other edit has claimed; 0: none.
function find_text(e, wanted, from, to,    i) {
    wanted = squeeze(wanted)
    for (i = from; i <= to; i++)
        if (!claimed[i] && squeeze(code[i]) == wanted) return i
    return 0
}

# Are all lines of edit e there, in order? Leaves them in held[1..num_held].
function is_inserted(e,    t, i, from, to) {
    from = first_line
    to = last_line
    if (where[e] == "above") from = 1
    if (where[e] == "below") { from = fn_close[f] + 1; to = num_lines }
    num_held = 0
    for (t = 1; t <= num_texts[e]; t++) {
        if (text[e, t] ~ /^[ \t]*$/) continue
        i = find_text(e, text[e, t], from, to)
        if (!i) return 0
        held[++num_held] = i
        from = i + 1
    }
    return num_held > 0
}

# The lines of edit e's region that have its anchor: the first of its anchors that any line has. Sets hits[1..num_hits].
function find_anchor(e,    a, i) {
    for (a = 1; a <= num_anchors[e]; a++) {
        num_hits = 0
        for (i = first_line; i <= last_line; i++)
            if (find_pattern(squeeze(code[i]), anchor[e, a], 1)) hits[++num_hits] = i
        if (num_hits) return a
    }
    return 0
}

# The last line of the statement that has a match in line i: where its parentheses are closed.
function statement_end(i,    depth, j, c, n, s) {
    for (; i < last_line; i++) {
        s = code[i]
        gsub(/"([^"\\]|\\.)*"/, "", s)
        n = length(s)
        for (j = 1; j <= n; j++) {
            c = substr(s, j, 1)
            if (c == "(") depth++
            else if (c == ")") depth--
        }
        if (depth <= 0) break
    }
    return i
}

# --- edits ------------------------------------------------------------------------------------------------------
function say(state, i, e, detail,    t) {
    print state "|" i "|" why[e] "|" detail >> ENVIRON["report"]
    if (state != "missing" && state != "unclear") return
    for (t = 1; t <= num_texts[e]; t++) print "line|" text[e, t] >> ENVIRON["report"]
    if (with[e] != "") print "line|" with[e] >> ENVIRON["report"]
}

# `like`: a line whose indentation the text takes where it has none; 0: it stays as the table has it.
function insert(e, i, is_behind, like,    t, line, indent) {
    indent = ""
    if (like && text[e, 1] !~ /^[ \t]/) { indent = lines[like]; sub(/[^ \t].*/, "", indent) }
    for (t = 1; t <= num_texts[e]; t++) {
        line = (text[e, t] ~ /^(#|$)/ ? "" : indent) text[e, t] eol "\n"
        if (is_behind) behind[i] = behind[i] line
        else above[i] = above[i] line
    }
    if (is_behind) num_behind[i] += num_texts[e]
    else num_above[i] += num_texts[e]
    say("add", i, e, "")
}

function add_lines(e,    a, i) {
    if (is_inserted(e)) {
        for (i = 1; i <= num_held; i++) claimed[held[i]] = 1
        say("there", held[1], e, "")
    } else if (where[e] == "above") {
        i = fn_start[f]
        while (i > 1 && lines[i - 1] ~ /^[ \t]*\/\//) i--  # above what is said of it
        insert(e, i, 0, 0)
    } else if (where[e] == "below") insert(e, fn_close[f], 1, 0)
    else if (where[e] == "top") insert(e, 1, 0, 0)
    else if (where[e] == "bottom") insert(e, num_lines, 1, 0)
    else if ((where[e] == "first" || where[e] == "last") && fn_open[f] == fn_close[f]) say("unclear", fn_open[f], e, fn[e] "() stands on one line")
    else if (where[e] == "first") insert(e, fn_open[f], 1, 0)
    else if (where[e] == "last") insert(e, fn_close[f], 0, 0)
    else {
        a = find_anchor(e)
        if (!a) { say(optional[e] ? "passed" : "missing", 0, e, "no line with  " anchor[e, 1] place(e)); return }
        if (num_hits > 1 && pick[e] == "") { say("unclear", hits[1], e, num_hits " lines with  " anchor[e, a] place(e)); return }
        i = pick[e] == "last" ? hits[num_hits] : hits[1]
        if (where[e] == "after") insert(e, statement_end(i), 1, i)
        else insert(e, i, 0, i)
    }
}

function place(e) { return fn[e] == "" ? "" : "  in " fn[e] "()" }

# Line i with every match of `old` replaced by `new`; "" where there is none. Where `new` has `old` in it, what is part of a match
# of `new` has been replaced already; the other way round (taking out) it is what makes the match.
function replaced(i, old, new,    line, is_wrapped, from, out, done, n, k) {
    is_wrapped = find_pattern(squeeze(new), old, 1)
    line = squeeze(code[i])
    for (from = 1; is_wrapped && find_pattern(line, new, from); from = match_end)
        for (k = match_begin; k < match_end; k++) line = substr(line, 1, k - 1) "\001" substr(line, k + 1)
    done = 1
    n = 0
    for (from = 1; find_pattern(line, old, from); from = match_end) {
        squeeze(code[i])  # for its columns
        out = out substr(lines[i], done, column[match_begin] - done) new (new ~ /,$/ ? " " : "")
        done = column[match_end - 1] + 1
        if (old ~ /,$/ || new ~ /,$/) while (substr(lines[i], done, 1) == " ") done++
        n++
    }
    return n ? out substr(lines[i], done) : ""
}

function change(e,    a, i, found, new_line) {
    if (with[e] == "") fail("edit of " ENVIRON["table_file"] ": replace without with")
    for (a = 1; a <= num_anchors[e] && !found; a++)
        for (i = first_line; i <= last_line; i++)
            if (!(i in changed) && (new_line = replaced(i, anchor[e, a], with[e])) != "") {
                found++
                to_change[found] = i
                to_become[found] = new_line
            }
    if (found > 1 && pick[e] != "each") {
        if (pick[e] == "") { say("unclear", to_change[1], e, found " lines with  " anchor[e, 1] place(e)); return }
        if (pick[e] == "last") { to_change[1] = to_change[found]; to_become[1] = to_become[found] }
        found = 1
    }
    for (i = 1; i <= found; i++) changed[to_change[i]] = to_become[i]
    if (found) { say("add", to_change[1], e, ""); return }
    i = is_replaced(e)
    if (i) say("there", i, e, "")
    else say(optional[e] ? "passed" : "missing", 0, e, "no line with  " anchor[e, 1] place(e))
}

# The first line that has what edit e would put there, or what serves as well; 0: none.
function is_replaced(e,    i, p) {
    for (i = first_line; i <= last_line; i++) {
        if (find_pattern(squeeze(code[i]), with[e], 1)) return i
        for (p = 1; p <= num_proofs[e]; p++)
            if (find_pattern(squeeze(code[i]), proof[e, p], 1)) return i
    }
    return 0
}

function take_out(e,    i, new_line) {
    if (where[e] == "replace" && num_proofs[e]) {  # may have been the tree's own: it compiles without us, too
        i = is_replaced(e)
        if (i) say("kept", i, e, with[e])
    } else if (where[e] == "replace") {
        for (i = first_line; i <= last_line; i++)
            if ((new_line = replaced(i, with[e], anchor[e, 1])) != "") { changed[i] = new_line; say("removed", i, e, "") }
    } else if (is_inserted(e)) {
        for (i = 1; i <= num_held; i++) { claimed[held[i]] = 1; dropped[held[i]] = 1 }
        say("removed", held[1], e, "")
    }
}

# --- the whole --------------------------------------------------------------------------------------------------
BEGIN {
    num_tables = split(ENVIRON["tables"], tables, "\n")
    for (t = 1; t <= num_tables; t++) if (tables[t] != "") read_table(tables[t])
    eol = ENVIRON["crlf"] ? "\r" : ""
}
{
    lines[FNR] = $0
    sub(/\r$/, "")
    if (ENVIRON["plain"]) scan_plain(FNR, $0)
    else scan_line(FNR, $0)
    num_lines = FNR
}
END {
    if (failed) exit 3
    for (e = 1; e <= E; e++) {
        sub(/^at /, "", where[e])
        problem = find_region(e)
        if (problem != "") { if (ENVIRON["mode"] == "add") say(optional[e] ? "passed" : "missing", 0, e, problem) }
        else if (ENVIRON["mode"] == "remove") take_out(e)
        else if (where[e] == "replace") change(e)
        else add_lines(e)
    }
    for (i = 1; i <= num_lines; i++) {
        if (dropped[i]) continue
        give(above[i], num_above[i])
        if (i in changed) {
            if (ENVIRON["record"] != "") printf "change\n-%s\n+%s\n", lines[i], changed[i] >> ENVIRON["record"]
            put(i, changed[i])
        } else put(i, lines[i])
        give(behind[i], num_behind[i])
    }
}
# A file whose last line has no newline keeps it so, or undo.awk knows of it.
function put(i, line) {
    if (i < num_lines || !ENVIRON["no_newline"]) { print line; return }
    if (num_behind[i]) print line
    else printf "%s", line
    if (num_behind[i] && ENVIRON["record"] != "") print "nonewline\n=" line >> ENVIRON["record"]
}
function give(block, n,    i, parts) {
    if (!n) return
    printf "%s", block
    if (ENVIRON["record"] == "") return
    print "insert " n >> ENVIRON["record"]
    split(block, parts, "\n")
    for (i = 1; i <= n; i++) print "+" parts[i] >> ENVIRON["record"]
}
