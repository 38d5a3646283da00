# functions.awk -- the names of the functions that a source file defines, one a line. With scan.awk.
{ sub(/\r$/, ""); scan_line(FNR, $0) }
END { for (k = 1; k <= num_functions; k++) print fn_name[k] }
