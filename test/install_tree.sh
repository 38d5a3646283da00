# Sourced by test_install.sh, which has set $work: a plugin of a few files with tables of its own ($plugin, $installer), and
# made-up trees for it (tree_of).
# shellcheck shell=bash

# --- a plugin of a few files, with tables of our own --------------------------------------------------------------
plugin="$work/the plugin"
mkdir -p "$plugin/dynapipe_plugin/adapters" "$plugin/dist"
cp -r dynapipe_plugin/install.sh dynapipe_plugin/install "$plugin/dynapipe_plugin/"
echo "int a;" >"$plugin/dist/a.c"
echo "int b;" >"$plugin/dist/b.c"
cat >"$plugin/dynapipe_plugin/adapters/little.edits" <<'END'
# a family
tree    a little trainer
has     little.c net_forward main
has     little.c net_update
lacks   little.c net_backward_and_reduce
calls   little.c main net_forward
build   make little DYNAPIPE=1
start   mpirun -np 2 ./little

edit    little.c
in      net_forward
at      above
+#include "dynapipe_plugin/adapters/little.h"
why     calls of a slice

edit    little.c
in      main
at      above
+#include "dynapipe_plugin/adapters/little_main.h"
why     calls of main

edit    little.c
in      main
replace main()
replace main(void)
with    main(int argc, char** argv)
there   main(int ... argv
why     the options

edit    little.c
in      main
at      first
+    LITTLE_OPEN(&argc, &argv);
+    if (!little_ok) { return 1; }
why     joins the ranks

edit    little.c
in      main
replace net_forward(
with    LITTLE_CALL(net_forward,
pick    each
why     one step is many forwards

edit    little.c
in      main
replace if (net.x
with    if (DYNAPIPE_WHOLE_AND net.x
why     the whole net

edit    little.c
in      main
replace i < 3
with    DYNAPIPE_STEPS(i < 3)
why     what is replaced is in what replaces it

edit    little.c
in      main
after   net_update(
+LITTLE_SHARE();
+#if 1
why     replicas exchange

edit    little.c
in      main
before  return 0;
pick    last
+    LITTLE_CLOSE();
why     ends the ranks

edit    little.c
in      net_free
at      last
+    LITTLE_FREE(net);
optional
why     where there is one

edit    Makefile
at      bottom
+-include dynapipe_plugin/dynapipe.mk
why     objects and flags
END
cat >"$plugin/dynapipe_plugin/adapters/big.edits" <<'END'
tree    a big trainer
has     big.cu net_forward net_backward_and_reduce main

edit    big.cu
in      net_forward
at      below
+// dynapipe: below
why     a mark

edit    Makefile
at      bottom
+-include dynapipe_plugin/dynapipe.mk
why     objects and flags
END
installer="$plugin/dynapipe_plugin/install.sh"

# --- trees --------------------------------------------------------------------------------------------------------
little() {  # file, main's arguments
    cat >"$1" <<END
// a trainer; net_forward( is in this comment, main() too
#include <stdio.h>
/* int net_forward(int x) {
   old */
typedef struct { int x; } Net;
void net_forward(Net* net);
const char* text = "int net_forward() { }";
#ifdef FAST
void helper(Net* net) {
#else
void helper(Net* net, int slow) {
#endif
    net->x = '{';
}

// what a net does
// to its inputs
__attribute__((noinline))
static void
net_forward(Net* net)
{
    printf("} %d", net->x);
}
static void net_update(Net* net, int a, int b) {
    net->x++; // }
}
int main($2)
{
    Net net;
    for (int i = 0; i < 3; i++) {
        net_forward (&net); net_forward(&net); /* net_forward(&net) */
        if (net.x) return 0;
        net_update(&net,
                   i, ")"[0]);
    }
    net_forward(&net);
	return 0;
}
END
}
tree_of() {  # name: a new tree with a little trainer, its path in $tree
    tree="$work/trees/$1"
    rm -rf "$tree" "$work/trees/$1.was"
    mkdir -p "$tree"
    little "$tree/little.c" ""
    printf 'little: little.c\n\tcc $^ -o $@\n' >"$tree/Makefile"
    echo "notes" >"$tree/README"
}

# --- trying it ------------------------------------------------------------------------------------------------------
run() {
    bash "$installer" "$@" >"$work/said" 2>&1
    local rc=$?
    ! grep -qE '^(awk|.*: line [0-9]+):' "$work/said" || ok 1 "no complaint of a program"
    return $rc
}

keep() { cp -rp "$tree" "$tree.was"; }
as_it_was() { diff -r "$tree" "$tree.was" >"$work/said" 2>&1; ok $? "$1: the tree is as it was"; }
