#!/bin/bash
# arrows.sh [PROGRAM...]: #include lines follow the table `allowed`; the PROGRAMs, which plan and
# talk but never compute, link no compute or collective library.
set -u

here=$HEDDLE_SOURCE_DIR/tests/unit/arrows
bad=0
verdict() { # NAME FILE: ok if FILE, the list of what is wrong, is empty
    if [ -s "$2" ]; then
        echo "not ok $1: $(wc -l <"$2") found"
        cat "$2"
        bad=1
    else
        echo "ok $1"
    fi
}

# Prints a line per #include under ROOT that the table does not allow.
check() { # ROOT
    (cd "$1" && find lib kernels daemon controller proto -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' |
        sort | xargs -d '\n' grep -nE '^[[:space:]]*#[[:space:]]*include' /dev/null) 2>/dev/null |
        awk -v table="$here/allowed" '
        function room_of(path,   best, room) {
            for (room in allowed)
                if (index(path, room "/") == 1 && length(room) > length(best)) best = room
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
                if (left[1] == "room") allowed[left[2]] = " " substr(line, colon + 1) " "
                for (i = 2; left[1] == "owner" && i <= n; i++) owner[left[i]] = substr(line, colon + 1)
            }
        }
        {
            file = $0; sub(/:.*/, "", file)
            header = $0; sub(/^[^<"]*[<"]/, "", header); sub(/[>"].*/, "", header)
            from = room_of(file)
            if (from == "") { print file ": no room of the table holds this file"; next }
            for (prefix in owner)
                if (index(header, prefix) == 1 && !owned_by(file, owner[prefix]))
                    print file ": " header " belongs to" owner[prefix]
            if (index(header, "heddle/v1/") == 1) next
            to = room_of("lib/" header)
            if (to == "") to = room_of(header)
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

# What may stand at the top; build/ and dotfiles are not the project's.
ls "$HEDDLE_SOURCE_DIR" | grep -vxE 'build|ARCHITECTURE.md|CMakeLists.txt|CMakePresets.json|CONTRIBUTING.md|LICENSE|README.md' |
    grep -vxE 'controller|daemon|deploy|docs|kernels|lib|proto|tests' >"$TMPDIR/found"
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

for program; do
    ldd "$HEDDLE_BIN/$program" 2>&1 |
        grep -E 'not a dynamic|No such|dnnl|gomp|libomp|libiomp|cuda|cublas|gloo|nccl' >"$TMPDIR/found"
    verdict "${program}_links_no_compute_library" "$TMPDIR/found"
done
exit $bad
