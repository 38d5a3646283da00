# calls.awk -- which of some names a function has as whole words (a call, or a macro's word for one), one a line. With
# scan.awk. Environment: fn, names.
{ sub(/\r$/, ""); scan_line(FNR, $0) }
END {
    n = split(ENVIRON["names"], names, " ")
    for (k = 1; k <= num_functions; k++)
        if (fn_name[k] == ENVIRON["fn"])
            for (i = fn_open[k]; i <= fn_close[k]; i++)
                for (j = 1; j <= n; j++)
                    if (!(j in seen) && find_pattern(squeeze(code[i]), names[j], 1)) { seen[j] = 1; print names[j] }
}
