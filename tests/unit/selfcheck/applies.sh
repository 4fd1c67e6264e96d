#!/bin/bash
# Each planted defect changes the file that it names, and names a test that there is; where it or its file is
# among what is being tested (with --full: all), the changed file compiles, too. One whose line was rewritten, or
# whose test has another name by now, proves nothing any more, and the whole --selfcheck, which would tell, takes
# hours.
set -u
cd "${HEDDLE_SOURCE_DIR:?}" || exit 1
build=${HEDDLE_BUILD_DIR:?}
stale=0
{
    cut -d' ' -f2 "$build/tests/list"
    # what this build leaves out
    grep -rhoE 'heddle_(test|scenario)\([A-Za-z0-9_]+' --include=CMakeLists.txt tests | cut -d'(' -f2
} | sort -u >"$TMPDIR/tests"

says() { # DEFECT WHAT
    printf 'not ok each_defect_applies: %s: %s\n' "$1" "$2"
    stale=$((stale + 1))
}
is_submitted() { grep -qxF -e all -e "$1" "$build/tests/submitted" 2>/dev/null; }
compiles() { # FILE CHANGED: as the build does. What it does not compile by itself, as a header, passes.
    local command
    command=$(grep -B1 -F "\"file\": \"$PWD/$1\"" "$build/compile_commands.json" 2>/dev/null |
        sed -nE 's/^ *"command": "(.*)",$/\1/p' | head -n 1)
    case $command in
    '' | *\\*) ;; # a quote in an argument
    *) (cd "$(dirname "$1")" && ${command% -o *} -w -fsyntax-only -x c - <"$2") ;;
    esac
}
for defect in tests/selfcheck/*.defect; do
    file= submitted=$(is_submitted "$defect" && echo yes)
    declare -A changed=() # what its lines have made of a file
    while IFS= read -r line; do
        case $line in
        'file '*)
            file=${line#file }
            [ -f "$file" ] || { says "$defect" "there is no $file"; file=/dev/null; }
            ;;
        'sed '*)
            before=${changed[$file]-$file} after=$TMPDIR/${#changed[@]}.${file##*/}
            if ! sed -E "${line#sed }" "$before" >"$TMPDIR/after"; then
                says "$defect" "its sed is none"
            elif cmp -s "$TMPDIR/after" "$before"; then
                says "$defect" "its sed changes nothing in $file"
            else
                [ "$before" = "$file" ] || after=$before
                mv "$TMPDIR/after" "$after"
                changed[$file]=$after
            fi
            ;;
        'red '*)
            test=${line#red } test=${test%%[. ]*}
            grep -qx "$test" "$TMPDIR/tests" || says "$defect" "no test is called $test"
            ;;
        esac
    done <"$defect"
    for file in "${!changed[@]}"; do
        [ -n "$submitted" ] || is_submitted "$file" || continue
        case $file in *.c) compiles "$file" "${changed[$file]}" || says "$defect" "planted, $file does not compile" ;; esac
    done
    unset changed
done
[ $stale = 0 ] && echo 'ok each_defect_applies'
[ $stale = 0 ]
