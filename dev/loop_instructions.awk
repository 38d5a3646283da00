# dev/loop_instructions.awk -- from `cuobjdump -sass`: "kernel<tab>sm_N<tab>instructions" of the loop around products on tensor
# cores, as they stand in the code: all that an HMMA leads to and that leads back to one, loops inside it counted once. Kernels
# without such a loop are left out. Not followed: BRA.DIV, what a shuffle does where a warp has come apart.
function leads_to(i, target) {
    if (target == "" || (target in seen)) return
    seen[target]
    stack[++top] = target
}
function finish(  i, k, n, from, count) {
    for (i = 1; i <= num; i++) {
        jump[i] = goal[i] in at ? at[goal[i]] : ""
        if (falls[i]) before[i + 1] = before[i + 1] " " i
        if (jump[i] != "") before[jump[i]] = before[jump[i]] " " i
    }
    for (i = 1; i <= num; i++) if (mma[i]) stack[++top] = i
    while (top > 0) {
        i = stack[top--]
        if (falls[i]) leads_to(i, i + 1)
        leads_to(i, jump[i])
    }
    for (i in seen) after[i]
    split("", seen)
    for (i = 1; i <= num; i++) if (mma[i]) stack[++top] = i
    while (top > 0) {
        i = stack[top--]
        n = split(before[i], from, " ")
        for (k = 1; k <= n; k++) leads_to(i, from[k])
    }
    for (i in seen) count += i in after
    if (count > 0) print name "\t" card "\t" count
    num = 0
    split("", seen); split("", after); split("", before); split("", at); split("", goal)
}
/^[ \t]*code for sm_/ { finish(); card = $3 }
/^[ \t]*Function : / { finish(); name = $3 }
/^ +\/\*[0-9a-f][0-9a-f][0-9a-f][0-9a-f]+\*\/ / {
    address = $1
    gsub(/[\/*]/, "", address)
    sub(/^0+/, "", address)  # the first instruction's is "", as nobody jumps there
    text = $0
    sub(/^ *\/\*[0-9a-f]+\*\/ */, "", text)
    guarded = sub(/^@!?U?P[0-9T]+ +/, "", text)
    operation = text
    sub(/[ ;].*/, "", operation)
    num++
    at[address] = num
    mma[num] = operation ~ /^HMMA/
    falls[num] = guarded || operation !~ /^(BRA|EXIT|RET)/ || text ~ /^BRA[A-Z.]* +!?U?P[0-9]/ || operation ~ /DIV/
    goal[num] = "none"
    # CALL: sm_80's jumps to code that was moved away, too
    if (operation ~ /^(BRA|CALL)/ && operation !~ /DIV/ && match(text, /0x[0-9a-f]+ *;/)) {
        goal[num] = substr(text, RSTART + 2)
        sub(/ *;.*/, "", goal[num])
    }
}
END { finish() }
