#!/bin/bash
# Each planted defect finds its text, once, in the file that it names, and names a test that there is; where its file
# or its package is among what is being tested (with --full: all), the changed file compiles, too. A defect whose
# text was rewritten, or whose test has another name by now, proves nothing any more, and the whole --selfcheck, which
# would tell, takes too long for each change.
set -u
cd "${HEDDLE_SOURCE_DIR:?}" || exit 1
build=${HEDDLE_BUILD_DIR:?}
stale=0
{
    cut -d' ' -f2 "$build/tests/list"
    # what this build leaves out
    grep -rhoE 'heddle_(test|scenario)\([A-Za-z0-9_]+' --include=CMakeLists.txt tests | cut -d'(' -f2
} | sort -u >"$TMPDIR/tests"
grep -rhoE '[A-Za-z0-9_]+' --include='*.[ch]' tests | sort -u >"$TMPDIR/words"

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
mkdir "$TMPDIR/planted"
tests/selfcheck/defects plant "$TMPDIR/planted" >"$TMPDIR/unplanted"
[ $? -lt 2 ] || says all "the files cannot be read"
while IFS= read -r line; do says "${line%%: *}" "${line#*: }"; done <"$TMPDIR/unplanted"
while read -r name red package files; do
    test=${red%%.*} case=${red#*.}
    if ! grep -qx "$test" "$TMPDIR/tests"; then
        says "$name" "tests/selfcheck/$package.defects: no test is called $test"
    elif [[ $test = *_test && $red = *.* ]] && ! grep -qx "$case" "$TMPDIR/words"; then
        says "$name" "tests/selfcheck/$package.defects: $test has no $case"
    fi
    for file in $files; do
        [[ $file = *.c && -f $TMPDIR/planted/$name/$file ]] || continue
        is_submitted "$file" || is_submitted "tests/selfcheck/$package.defects" || continue
        compiles "$file" "$TMPDIR/planted/$name/$file" || says "$name" "tests/selfcheck/$package.defects: planted, $file does not compile"
    done
done < <(tests/selfcheck/defects list)
[ $stale = 0 ] && echo 'ok each_defect_applies'
[ $stale = 0 ]
