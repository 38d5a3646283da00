# left.awk -- the lines of a source file that have a word of the plugin outside of comments. With scan.awk.
# Environment: file (its name, for messages), plain=1 (no C).
# Without numbers: the tree may still have the lines that are to go.
{
    sub(/\r$/, "")
    if (ENVIRON["plain"]) scan_plain(FNR, $0)
    else scan_line(FNR, $0)
    if (code[FNR] ~ /(^|[^A-Za-z0-9_])(DYNAPIPE|dynapipe_)/) print "    " ENVIRON["file"] ": " $0
}
