#!/bin/bash
# Each planted defect changes the file that it names, and names a test that there is: one whose line was
# rewritten, or whose test has another name by now, proves nothing any more, and the whole --selfcheck, which
# would tell, takes hours.
set -u
cd "${HEDDLE_SOURCE_DIR:?}" || exit 1
stale=0
{
    cut -d' ' -f2 "${HEDDLE_BUILD_DIR:?}/tests/list"
    # what this build leaves out
    grep -rhoE 'heddle_(test|scenario)\([A-Za-z0-9_]+' --include=CMakeLists.txt tests | cut -d'(' -f2
} | sort -u >"$TMPDIR/tests"
for defect in tests/selfcheck/*.defect; do
    file=
    while IFS= read -r line; do
        case $line in
        'file '*) file=${line#file } ;;
        'sed '*)
            if [ ! -f "$file" ]; then
                printf 'not ok each_defect_applies: %s: there is no %s\n' "$defect" "$file"
            elif ! sed -E "${line#sed }" "$file" >"$TMPDIR/changed"; then
                printf 'not ok each_defect_applies: %s: its sed is none\n' "$defect"
            elif cmp -s "$TMPDIR/changed" "$file"; then
                printf 'not ok each_defect_applies: %s: its sed changes nothing in %s\n' "$defect" "$file"
            else
                continue
            fi
            stale=$((stale + 1))
            ;;
        'red '*)
            test=${line#red } test=${test%%[. ]*}
            if ! grep -qx "$test" "$TMPDIR/tests"; then
                printf 'not ok each_defect_applies: %s: no test is called %s\n' "$defect" "$test"
                stale=$((stale + 1))
            fi
            ;;
        esac
    done <"$defect"
done
[ $stale = 0 ] && echo 'ok each_defect_applies'
[ $stale = 0 ]
