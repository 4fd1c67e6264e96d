# Prints one line per circle of files in a package: LIBRARY FILE... , from `nm -A -P LIBRARY.a...`.
# An edge leads from the file that uses a symbol to the file that defines it. Circles are the
# strongly connected components with more than one file (Tarjan 1972).
function connect(v,   n, list, i, w, members, size) {
    order[v] = lowest[v] = ++reached
    stack[++depth] = v
    on_stack[v] = 1
    n = split(uses[v], list, " ")
    for (i = 1; i <= n; i++) {
        w = definer[package SUBSEP list[i]]
        if (w == "" || w == v) continue
        if (!(w in order)) {
            connect(w)
            if (lowest[w] < lowest[v]) lowest[v] = lowest[w]
        } else if (on_stack[w] && order[w] < lowest[v])
            lowest[v] = order[w]
    }
    if (lowest[v] != order[v]) return
    do {
        w = stack[depth--]
        on_stack[w] = 0
        members = members " " w
        size++
    } while (w != v)
    if (size > 1) print package members
}
{
    # PATH/libhd_NAME.a[FILE.c.o]: SYMBOL TYPE ...
    split($1, at, /[][]/)
    library = at[1]; sub(/.*\/libhd_/, "", library); sub(/\.a$/, "", library)
    file = at[2]; sub(/\.o$/, "", file)
    if (!((library, file) in seen)) {
        seen[library, file] = 1
        files[library] = files[library] " " file
    }
    if ($3 ~ /^[TDRBVW]$/) definer[library, $2] = file
    if ($3 == "U") calls[library, file] = calls[library, file] " " $2
}
END {
    for (package in files) {
        n = split(files[package], all, " ")
        delete order; delete lowest; delete on_stack; delete uses
        reached = depth = 0
        for (i = 1; i <= n; i++) uses[all[i]] = calls[package, all[i]]
        for (i = 1; i <= n; i++) if (!(all[i] in order)) connect(all[i])
    }
}
