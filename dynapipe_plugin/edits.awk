# edits.awk -- puts install.sh's lines into one source file, for any awk (mawk, gawk, busybox), with LC_ALL=C.
#
# stdin or argument: the file. Environment, one of
#   table    edits, a line each: function|where|piece of code|lines (\n between them), or what replaces the piece|why. The new text goes
#            to stdout; to the end of `report` a line for each edit: "add|there|missing|passed FILE:LINE: why". Also file (its name),
#            no_newline (the last line has none)
#   words    prints the lines that have a word of the plugin outside of comments
#   neither  prints what is defined and called: "def f", "call f g"
#
# code[i] is line i with comments as blanks, so that columns stay. Braces are counted as the preprocessor's first branch has them:
# #else starts again where #if did.

function scan_reset() { decl = ""; fname = ""; has_equals = 0; paren = 0 }

function scan_directive(text) {
    sub(/^[ \t]*#[ \t]*/, "", text)
    if (text ~ /^if/) {
        if_depth[++num_ifs] = depth; if_paren[num_ifs] = paren; if_decl[num_ifs] = decl
        if_fname[num_ifs] = fname; if_line[num_ifs] = decl_line; if_open[num_ifs] = open_line
    } else if (text ~ /^el/ && num_ifs) {
        depth = if_depth[num_ifs]; paren = if_paren[num_ifs]; decl = if_decl[num_ifs]
        fname = if_fname[num_ifs]; decl_line = if_line[num_ifs]; open_line = if_open[num_ifs]
    } else if (text ~ /^endif/ && num_ifs) {
        num_ifs--
    }
}

# One character of code, outside of comments, strings and directives.
function scan_char(i, c,    name) {
    if (depth == 0) {
        if (decl == "" && c !~ /[ \t;}]/) decl_line = i
        if (c == "(") {
            if (paren++ == 0 && fname == "" && !has_equals) {
                name = decl
                sub(/[ \t]+$/, "", name)
                sub(/.*[^A-Za-z0-9_]/, "", name)
                if (name !~ /^__/) fname = name  # __attribute__(()), __launch_bounds__()
            }
        } else if (c == ")") {
            paren--
        } else if (c == "=" && paren == 0 && decl !~ /^template/) {
            has_equals = 1
        } else if (c == ";" && paren == 0) {
            scan_reset()
            return
        } else if (c == "{" && paren == 0) {
            if (decl ~ /^(extern[ \t]*"|namespace|inline namespace)/) { num_open_scopes++; scan_reset(); return }
            depth = 1
            open_line = i
            if (has_equals) fname = ""
            return
        } else if (c == "}") {
            num_open_scopes--
            scan_reset()
            return
        }
        if (decl != "" || c !~ /[ \t]/) decl = decl c
    } else if (c == "{") {
        depth++
    } else if (c == "}" && --depth == 0 && fname != "") {
        fn_name[++num_functions] = fname
        fn_start[num_functions] = decl_line; fn_open[num_functions] = open_line; fn_close[num_functions] = i
        scan_reset()
    }
}

function scan_line(i, text,    n, j, c, two, out, quote, directive) {
    directive = in_directive || (!in_comment && text ~ /^[ \t]*#/)
    if (directive && !in_directive) scan_directive(text)
    n = length(text)
    out = ""
    for (j = 1; j <= n; j++) {
        c = substr(text, j, 1)
        two = substr(text, j, 2)
        if (in_comment) {
            if (two == "*/") { in_comment = 0; out = out "  "; j++ } else out = out " "
        } else if (quote != "") {
            out = out c
            if (c == "\\") out = out substr(text, ++j, 1)
            else if (c == quote) quote = ""
        } else if (two == "//") {
            break
        } else if (two == "/*") {
            in_comment = 1; out = out "  "; j++
        } else {
            out = out c
            if (c == "\"" || (c == "'" && substr(text, j - 1, 1) !~ /[0-9a-fA-F]/)) quote = c
            if (!directive) scan_char(i, c)
        }
    }
    if (!directive && depth == 0 && decl != "") decl = decl " "
    in_directive = directive && text ~ /\\$/
    code[i] = out
}

# --- pieces of code: blanks where one likes, whole words --------------------------------------------------------
function is_word(c) { return c ~ /[A-Za-z0-9_]/ }

# A regular expression for a piece of code.
function pattern_of(piece,    j, c, out, before, gap) {
    for (j = 1; j <= length(piece); j++) {
        c = substr(piece, j, 1)
        if (c == " ") { gap = 1; continue }
        if (out != "" && is_word(before) && is_word(c)) out = out (gap ? "[ \t]+" : "")
        else if (out != "") out = out "[ \t]*"
        out = out (is_word(c) ? c : "[" (c == "\\" ? "\\\\" : c) "]")
        before = c
        gap = 0
    }
    return out
}

# Where it stands in line i as whole words (RSTART, RLENGTH); 0: nowhere.
function find_piece(i, piece,    from, rest) {
    for (from = 1; match(substr(code[i], from), pattern_of(piece)); from = RSTART + 1) {
        RSTART += from - 1
        rest = substr(code[i], RSTART + RLENGTH, 1)
        if ((RSTART == 1 || !is_word(substr(piece, 1, 1)) || !is_word(substr(code[i], RSTART - 1, 1))) &&
            (!is_word(substr(piece, length(piece), 1)) || !is_word(rest))) return RSTART
    }
    return 0
}

function squeezed(text) { gsub(/[ \t\r]/, "", text); return text }

# --- edits --------------------------------------------------------------------------------------------------------
function report(state, i) { print state " " ENVIRON["file"] ":" i ": " why >> ENVIRON["report"] }

# Are the lines there, one after the other? Each line serves one edit.
function is_there(texts, n, from, to,    i, t) {
    for (i = from; i + n - 1 <= to; i++) {
        for (t = 1; t <= n && !claimed[i + t - 1] && squeezed(code[i + t - 1]) == squeezed(texts[t]); t++) {}
        if (t <= n) continue
        for (t = 0; t < n; t++) claimed[i + t] = 1
        return i
    }
    return 0
}

# The line that ends the statement with the piece in line i: where its parentheses are closed.
function statement_end(i,    depth, text) {
    for (; i < num_lines; i++) {
        text = code[i]
        gsub(/"([^"\\]|\\.)*"/, "", text)
        depth += gsub(/\(/, "", text) - gsub(/\)/, "", text)
        if (depth <= 0) break
    }
    return i
}

function insert(i, texts, n,    t) {  # behind line i; 0: at the top
    for (t = 1; t <= n; t++) behind[i] = behind[i] texts[t] eol "\n"
    report("add", i + 1)
}

function edit(row,    part, texts, n, k, found, i, first, last, hits, hit) {
    split(row, part, "|")
    why = part[5]
    optional = sub(/[?]$/, "", part[2])
    first = 1
    last = num_lines
    for (k = 1; k <= num_functions; k++) if (fn_name[k] == part[1]) { found++; f = k }
    if (part[1] != "" && found != 1) {
        why = why ": " part[1] "() is defined " found + 0 " times here: " part[4]
        report(optional ? "passed" : "missing", 0)
        return
    }
    if (part[1] != "") { first = fn_start[f]; last = fn_close[f] }
    n = split(part[4], texts, /\\n/)
    if (part[2] == "replace") {
        for (i = first; i <= last; i++) if (find_piece(i, part[4])) { report("there", i); return }
        for (i = first; i <= last; i++) if (find_piece(i, part[3])) { hits++; hit = i }
        if (hits == 1) {
            find_piece(hit, part[3])
            lines[hit] = substr(lines[hit], 1, RSTART - 1) part[4] substr(lines[hit], RSTART + RLENGTH)
            code[hit] = substr(code[hit], 1, RSTART - 1) part[4] substr(code[hit], RSTART + RLENGTH)
            report("add", hit)
            return
        }
    } else {
        i = part[2] == "above" ? is_there(texts, n, f > 1 ? fn_close[f - 1] + 1 : 1, fn_start[f] - 1) : is_there(texts, n, first, last)
        if (i) { report("there", i); return }
        if (part[2] == "above") {
            for (i = fn_start[f]; i > 1 && lines[i - 1] ~ /^[ \t]*\/\//; i--) {}  # above what is said of it
            insert(i - 1, texts, n)
            return
        }
        if (part[2] == "first" && fn_open[f] < fn_close[f]) { insert(fn_open[f], texts, n); return }
        if (part[2] == "bottom") { insert(num_lines, texts, n); return }
        for (i = first; part[2] == "after" && i <= last; i++) if (find_piece(i, part[3])) { hits++; hit = i }
        if (hits == 1) { insert(statement_end(hit), texts, n); return }
    }
    if (hits + 0 == 0 && optional) { report("passed", 0); return }
    why = why ": " hits + 0 " lines with  " part[3] "  in " part[1] "(): " part[4]
    report("missing", hit + 0)
}

# --- the whole ----------------------------------------------------------------------------------------------------
BEGIN { is_c = ENVIRON["table"] !~ /^[|]/ && ENVIRON["file"] !~ /(akefile|[.]mk)$/ }
{
    lines[FNR] = $0
    if (sub(/\r$/, "")) eol = "\r"
    num_lines = FNR
    if (is_c) scan_line(FNR, $0)
    else code[FNR] = $0 ~ /^[ \t]*#/ ? "" : $0
}
END {
    if (ENVIRON["words"]) {
        for (i = 1; i <= num_lines; i++) if (code[i] ~ /(^|[^A-Za-z0-9_])(DYNAPIPE|dynapipe_)/) print "    " ENVIRON["file"] ":" i ": " lines[i]
    } else if (ENVIRON["table"] == "") {
        for (k = 1; k <= num_functions; k++) {
            print "def " fn_name[k]
            for (i = fn_open[k]; i <= fn_close[k]; i++)
                for (rest = code[i]; match(rest, /[A-Za-z_][A-Za-z0-9_]*/); rest = substr(rest, RSTART + RLENGTH))
                    if (!((fn_name[k] " " substr(rest, RSTART, RLENGTH)) in seen)) {
                        seen[fn_name[k] " " substr(rest, RSTART, RLENGTH)] = 1
                        print "call " fn_name[k] " " substr(rest, RSTART, RLENGTH)
                    }
        }
    } else {
        num_rows = split(ENVIRON["table"], rows, "\n")
        for (r = 1; r <= num_rows; r++) if (rows[r] != "") edit(rows[r])
        printf "%s", behind[0]
        for (i = 1; i <= num_lines; i++) {
            printf "%s%s", lines[i], i == num_lines && ENVIRON["no_newline"] && behind[i] == "" ? "" : "\n"
            printf "%s", behind[i]
        }
    }
}
