#!/bin/bash
# arrows.sh [PROGRAM...]: #include lines follow the table `allowed`; files of one package call one another in one
# direction, except the circles that are listed; documents name files that exist; the PROGRAMs, which plan and talk
# but never compute, link no compute or collective library.
set -u

here=$HEDDLE_SOURCE_DIR/tests/unit/arrows
. "$HEDDLE_SOURCE_DIR/tests/unit/verdict.sh"

# Prints a line per #include under ROOT that the table does not allow.
check() { # ROOT
    (cd "$1" && find lib kernels daemon controller proto -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' |
        sort | xargs -d '\n' grep -nE '^[[:space:]]*#[[:space:]]*include' /dev/null) 2>/dev/null |
        awk -v table="$here/allowed" '
        function package_of(path,   best, package) {
            for (package in allowed)
                if (index(path, package "/") == 1 && length(package) > length(best)) best = package
            return best
        }
        function owned_by(file, owners,   list, n, i) {
            n = split(owners, list, " ")
            for (i = 1; i <= n; i++) if (file == list[i] || index(file, list[i] "/") == 1) return 1
            return 0
        }
        BEGIN {
            while ((getline line < table) > 0) {
                colon = index(line, ":")
                n = split(substr(line, 1, colon - 1), left, " ")
                if (left[1] == "package") allowed[left[2]] = " " substr(line, colon + 1) " "
                for (i = 2; left[1] == "owner" && i <= n; i++) owner[left[i]] = substr(line, colon + 1)
            }
        }
        {
            file = $0; sub(/:.*/, "", file)
            header = $0; sub(/^[^<"]*[<"]/, "", header); sub(/[>"].*/, "", header)
            from = package_of(file)
            if (from == "") { print file ": no package of the table holds this file"; next }
            for (prefix in owner)
                if (index(header, prefix) == 1 && !owned_by(file, owner[prefix]))
                    print file ": " header " belongs to" owner[prefix]
            if (index(header, "heddle/v1/") == 1) next
            to = package_of("lib/" header)
            if (to == "") to = package_of(header)
            if (to != "" && to != from && index(allowed[from], " " to " ") == 0)
                print file ": includes " header " of " to ", which " from " may not"
            if (to != "" && to != from && header ~ /_internal\.h$/)
                print file ": includes " header ", which is for the files of " to
        }'
}

check "$HEDDLE_SOURCE_DIR" >"$TMPDIR/found"
verdict arrows_point_down_only "$TMPDIR/found"

# Prints a line per tag of a struct, enum or union that two files under ROOT define. Each backend
# defines hd_backend, which is opaque elsewhere. A type within a C++ type is indented and does not
# count.
check_tags() { # ROOT
    (cd "$1" && find lib kernels daemon controller -name '*.[ch]' -exec \
        grep -oHE '\b(struct|enum|union) [a-zA-Z_][a-zA-Z_0-9]* \{' {} + &&
        find lib kernels daemon controller '(' -name '*.cu' -o -name '*.cuh' -o -name '*.cc' ')' -exec \
            grep -oHE '^(struct|enum|union) [a-zA-Z_][a-zA-Z_0-9]* \{' {} +) 2>/dev/null |
        sort -u | awk -F'[: ]' '$3 != "hd_backend" {
            if ($3 in first && first[$3] != $1) print $3 ": " first[$3] " and " $1
            else first[$3] = $1
        }'
}

check_tags "$HEDDLE_SOURCE_DIR" >"$TMPDIR/found"
verdict a_tag_names_one_struct "$TMPDIR/found"

# Prints a line per circle of files that the list does not have, and per row of the list that is none, from lines of
# `nm -A -P`. A circle may be smaller than its row: it depends on the libraries that a build has.
check_circles() { # LIST
    awk -f "$here/circles.awk" | awk -v list="$1" '
        BEGIN {
            while ((getline line < list) > 0) {
                if (line ~ /^#/ || line !~ /:/) continue
                sub(/:.*/, "", line)
                rows[++count] = " " line " "
            }
        }
        {
            found[$1] = 1
            for (r = 1; r <= count; r++) {
                if (index(rows[r], " " $1 " ") != 1) continue
                inside = 1
                for (i = 2; i <= NF; i++) {
                    file = $i
                    sub(/\.[a-z]+$/, "", file)
                    if (index(substr(rows[r], length($1) + 2), " " file " ") == 0) inside = 0
                }
                if (inside) { is_met[r] = 1; next }
            }
            print "a circle that is not listed: " $0
        }
        END {
            for (r = 1; r <= count; r++) {
                split(rows[r], words, " ")
                if (!is_met[r] && (words[1] in found)) print "no circle any more:" rows[r]
            }
        }'
}

find "$HEDDLE_BUILD_DIR/lib" -name 'libhd_*.a' ! -name '*cudasim*' -exec nm -A -P {} + 2>/dev/null |
    check_circles "$here/circles" >"$TMPDIR/found"
verdict files_of_a_package_make_no_circle "$TMPDIR/found"

# Prints FILE:LINE: NAME for each source file that a document under ROOT names between backquotes and that does not
# exist there. A name may be the end of a path.
check_documents() { # ROOT
    (
        cd "$1" || exit 1
        find . '(' -name build -o -name .git ')' -prune -o -type f -print | sed 's|^\./||' >"$TMPDIR/files"
        find . '(' -name build -o -name .git ')' -prune -o -name '*.md' -print | xargs grep -noE '`[^`]+`' /dev/null |
            awk -v files="$TMPDIR/files" '
            BEGIN {
                while ((getline path < files) > 0)
                    for (;;) {
                        have[path] = 1
                        if (!sub(/^[^\/]*\//, "", path)) break
                    }
            }
            {
                where = $0
                sub(/:`.*/, "", where)
                text = $0
                sub(/^[^`]*`/, "", text)
                while (match(text, /[A-Za-z0-9_.\/-]*[A-Za-z0-9_]\.(c|h|cu|cuh|cc|def|sh|proto)([^A-Za-z0-9_]|$)/)) {
                    name = substr(text, RSTART, RLENGTH)
                    text = substr(text, RSTART + RLENGTH)
                    sub(/[^A-Za-z0-9_]$/, "", name)
                    sub(/^\.\//, "", name)
                    if (!(name in have)) print where ": " name
                }
            }'
    )
}

check_documents "$HEDDLE_SOURCE_DIR" >"$TMPDIR/found"
verdict documents_name_files_that_exist "$TMPDIR/found"

# What may stand at the top; build/ and dotfiles are not the project's.
ls "$HEDDLE_SOURCE_DIR" | grep -vxE 'build|ARCHITECTURE.md|CHANGELOG.md|CMakeLists.txt|CMakePresets.json|CONTRIBUTING.md|LICENSE|README.md|SECURITY.md' |
    grep -vxE 'controller|daemon|deploy|docs|kernels|lib|proto|recipes|tests' >"$TMPDIR/found"
verdict the_top_level_holds_what_is_listed "$TMPDIR/found"

# The check itself: each wrong line below is found, the right ones are not.
mkdir -p "$TMPDIR/tree/lib/base" "$TMPDIR/tree/lib/mesh" "$TMPDIR/tree/lib/attic" "$TMPDIR/tree/controller/cli"
echo '#include "mesh/mesh.h"' >"$TMPDIR/tree/lib/base/up.c"
echo '#  include <grpc/grpc.h>' >"$TMPDIR/tree/lib/mesh/foreign.c"
echo '#include "base/status.h"' >"$TMPDIR/tree/lib/mesh/right.c"
echo '#include "base/file_internal.h"' >"$TMPDIR/tree/lib/mesh/inner.c"
echo '#include "base/status.h"' >"$TMPDIR/tree/lib/attic/unknown.c"
echo '#include "train/train.h"' >"$TMPDIR/tree/controller/cli/compute.c"
check "$TMPDIR/tree" | cut -d: -f1 | sort >"$TMPDIR/found"
printf '%s\n' controller/cli/compute.c lib/attic/unknown.c lib/base/up.c lib/mesh/foreign.c lib/mesh/inner.c |
    diff - "$TMPDIR/found" >"$TMPDIR/difference"
verdict an_arrow_that_points_up_is_found "$TMPDIR/difference"

printf 'struct twice {\n    int a;\n};\n' | tee "$TMPDIR/tree/lib/base/one.h" >"$TMPDIR/tree/controller/cli/two.c"
echo 'static const enum once { A } a;' >"$TMPDIR/tree/lib/mesh/once.c"
check_tags "$TMPDIR/tree" | cut -d: -f1 >"$TMPDIR/found"
echo twice | diff - "$TMPDIR/found" >"$TMPDIR/difference"
verdict a_tag_of_two_structs_is_found "$TMPDIR/difference"

# PACKAGE a: one calls two, two calls one; PACKAGE b has a circle that is listed; PACKAGE c one that was.
printf '%s\n' 'x/libhd_a.a[one.c.o]: first T 0 1' 'x/libhd_a.a[one.c.o]: second U' 'x/libhd_a.a[two.c.o]: second T 0 1' \
    'x/libhd_a.a[two.c.o]: first U' 'x/libhd_a.a[three.c.o]: first U' 'x/libhd_b.a[p.c.o]: p T 0 1' \
    'x/libhd_b.a[p.c.o]: q U' 'x/libhd_b.a[q.c.o]: q T 0 1' 'x/libhd_b.a[q.c.o]: p U' >"$TMPDIR/symbols"
printf '%s\n' 'b p q r: listed' 'b s t: dissolved' >"$TMPDIR/list"
check_circles "$TMPDIR/list" <"$TMPDIR/symbols" | sort >"$TMPDIR/found"
printf '%s\n' 'a circle that is not listed: a two.c one.c' 'no circle any more: b s t ' | diff - "$TMPDIR/found" >"$TMPDIR/difference"
verdict a_circle_is_found "$TMPDIR/difference"

mkdir -p "$TMPDIR/tree/docs"
printf '%s\n' 'see `base/up.c`, `mesh/gone.c: f` and `right.c`' >"$TMPDIR/tree/docs/page.md"
check_documents "$TMPDIR/tree" >"$TMPDIR/found"
echo './docs/page.md:1: mesh/gone.c' | diff - "$TMPDIR/found" >"$TMPDIR/difference"
verdict a_document_of_a_lost_file_is_found "$TMPDIR/difference"

for program; do
    ldd "$HEDDLE_BIN/$program" 2>&1 |
        grep -E 'not a dynamic|No such|dnnl|gomp|libomp|libiomp|cuda|cublas|gloo|nccl' >"$TMPDIR/found"
    verdict "${program}_links_no_compute_library" "$TMPDIR/found"
done
exit $bad
