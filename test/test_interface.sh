#!/usr/bin/env bash
# dynapipe.h for others: every name it brings begins with dynapipe, Dynapipe or DYNAPIPE; test_interface.c holds as C++17 too.
cd "$(dirname "$0")/.."
. dev/mpi_env.sh
cxx=$(command -v g++ || command -v clang++)
passed=0 failed=0 skipped=0
ok() { if [ "$1" -eq 0 ]; then passed=$((passed + 1)); echo "ok   $2"; else failed=$((failed + 1)); echo "FAIL $2"; fi; }

# What stands outside of braces and parentheses, and what stands in the braces of an enum.
names_of() {  # header
    sed '/^#ifdef __cplusplus/,/^#endif/d' "$1" | "${CC:-gcc}" -w -fpreprocessed -dD -E -P -x c - | awk '
        /^#define/ {print $2; next}
        /^#/ {next}
        {text = text " " $0}
        END {
            for (i = 1; i <= length(text); i++) {
                c = substr(text, i, 1)
                if (c == "{") {was_enum[++depth] = word == "enum" || last == "enum"; out = out " "; word = last = ""; continue}
                if (c == "}") {depth--; out = out " "; word = ""; continue}
                if (c == "(") {parens++; out = out " "; continue}
                if (c == ")") {parens--; continue}
                if (c ~ /[A-Za-z0-9_]/) {word = word c} else {if (word != "") {last = word}; word = ""}
                if (parens == 0 && (depth == 0 || (depth == 1 && was_enum[1]))) {out = out c} else {out = out " "}
            }
            gsub(/[^A-Za-z0-9_]+/, "\n", out)
            print out
        }' | grep -E '^[A-Za-z_]' | sort -u |
        grep -vxE 'typedef|struct|enum|static|inline|extern|const|int|void|char|double|size_t|u?int(32|64)_t|FILE'
}

names=$(names_of dynapipe_plugin/dynapipe.h)
others=$(grep -vE '^(dynapipe_|Dynapipe|DYNAPIPE_)' <<<"$names")
[ -z "$others" ] && [ "$(wc -l <<<"$names")" -gt 60 ]
ok $? "$(wc -l <<<"$names") names of dynapipe.h begin with the project's ${others:+(not: $others)}"
for planted in 'typedef struct { int a; } Batch;' 'enum { KEEP = 1 };' '#define MAX(a, b) a' 'int gpt2_build(int x);' 'static inline int f(void) { return 0; }'; do
    names_of <(cat dynapipe_plugin/dynapipe.h; echo "$planted") | grep -vqE '^(dynapipe_|Dynapipe|DYNAPIPE_)'
    ok $? "found where it is planted: $planted"
done

if [ -z "$cxx" ]; then
    skipped=1
    echo "skip test_interface.c as C++17: no C++ compiler here ---> dev/setup.sh --dev"
else
    out=build/${BUILD:-release}
    make -s CXX="$cxx" "$out/interface_cxx" && timeout 60 "$out/interface_cxx" | grep -v passed,
    ok "${PIPESTATUS[0]}" "test_interface.c as C++17"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
