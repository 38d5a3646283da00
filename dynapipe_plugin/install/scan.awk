# scan.awk -- what install.sh sees in a source file: its lines without comments, and where its functions begin and end.
#
# For any awk (mawk, gawk, busybox), with LC_ALL=C. scan_line(i, text) for each line, in order; then
#   code[i]                          line i, comments as blanks, so that columns stay
#   num_functions, fn_name[k], fn_start[k] (first line of the definition), fn_open[k] (that of its brace), fn_close[k]
# Braces are counted as the preprocessor's first branch has them: #else starts again where #if did.

function scan_reset() { decl = ""; fname = ""; has_equals = 0; paren = 0 }

# A file that is no C (a Makefile): lines that begin with # say nothing.
function scan_plain(i, text) { code[i] = text ~ /^[ \t]*#/ ? "" : text }

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

# --- patterns: C as people write it, blanks where they like; "..." stands for anything --------------------------
function is_word(c) { return c ~ /[A-Za-z0-9_]/ }

# Without blanks, but for one between two words; column[k] is where its character k stood.
function squeeze(text,    n, j, c, k, out, gap) {
    n = length(text)
    out = ""
    k = 0
    gap = 0
    for (j = 1; j <= n; j++) {
        c = substr(text, j, 1)
        if (c == " " || c == "\t" || c == "\r") { gap = 1; continue }
        if (gap && k > 0 && is_word(c) && is_word(substr(out, k, 1))) { out = out " "; column[++k] = j - 1 }
        gap = 0
        out = out c
        column[++k] = j
    }
    column[k + 1] = n + 1
    return out
}

# Where a squeezed piece stands in a squeezed line as whole words, from `from` on; 0: nowhere.
function find_piece(line, piece, from,    at, rest, end) {
    while (from <= length(line)) {
        rest = substr(line, from)
        at = index(rest, piece)
        if (!at) return 0
        at += from - 1
        end = at + length(piece)
        if ((at == 1 || !is_word(substr(piece, 1, 1)) || !is_word(substr(line, at - 1, 1))) &&
            (!is_word(substr(piece, length(piece), 1)) || !is_word(substr(line, end, 1)))) return at
        from = at + 1
    }
    return 0
}

# The first match in a squeezed line, from `from` on: sets match_begin and match_end (behind it); 0: none.
function find_pattern(line, pattern, from,    n, pieces, p, at) {
    n = split(pattern, pieces, /\.\.\./)
    match_begin = 0
    match_end = from
    for (p = 1; p <= n; p++) {
        pieces[p] = squeeze(pieces[p])
        if (pieces[p] == "") continue
        at = find_piece(line, pieces[p], match_end)
        if (!at) return 0
        if (!match_begin) match_begin = at
        match_end = at + length(pieces[p])
    }
    return match_begin
}
