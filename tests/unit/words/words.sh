#!/bin/bash
# words.sh: the tree has no language of its own (see `words`), and the check finds what it is to find.
set -u
here=$HEDDLE_SOURCE_DIR/tests/unit/words
. "$HEDDLE_SOURCE_DIR/tests/unit/verdict.sh"

"$here/words" "$HEDDLE_SOURCE_DIR" >"$TMPDIR/found" 2>&1
verdict words_are_those_of_the_field "$TMPDIR/found"

mkdir -p "$TMPDIR/tree/lib/comm" "$TMPDIR/tree/tests" "$TMPDIR/check"
cp "$here/words" "$here/words.table" "$TMPDIR/check"
printf 'word hd_board: kept on purpose\nword gone: nothing any more\n' >"$TMPDIR/check/words.allowed"
printf '%s\n' '/* Of each row the newest. */' 'struct hd_bell {' '    int hd_board; /* a doorbell is no "bell" */' '};' \
    'int hd_bell(void);' >"$TMPDIR/tree/lib/comm/a.h"
printf '%s\n' 'static int ring(void)' '{' '    return 1;' '}' >"$TMPDIR/tree/lib/comm/a.c"
printf '%s\n' 'INLINE __attribute__((unused)) int ring(int a)' '{' '    return a;' '}' >"$TMPDIR/tree/lib/comm/b.h"
printf '%s\n' '/* What a bell does. */' 'int bell;' >"$TMPDIR/tree/tests/a.c"
"$TMPDIR/check/words" "$TMPDIR/tree" | cut -d: -f1 | sort >"$TMPDIR/found"
printf '%s\n' 'allowed word gone' 'begins lib/comm/a.h' 'begins tests/a.c' 'clash hd_bell' \
    'twice lib/comm/ring' 'word lib/comm/a.h' | diff - "$TMPDIR/found" >"$TMPDIR/difference"
verdict each_kind_of_finding_is_found "$TMPDIR/difference"
exit $bad
