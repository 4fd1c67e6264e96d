#!/bin/bash
# docs.sh: the documents can be followed (see docs.pl), and the check finds what it is to find.
set -u
. "$HEDDLE_SOURCE_DIR/tests/unit/verdict.sh"
here=$HEDDLE_SOURCE_DIR/tests/e2e/docs

perl "$here/docs.pl" "$HEDDLE_SOURCE_DIR" "$HEDDLE_BIN" >"$TMPDIR/found" 2>&1
verdict documents_can_be_followed "$TMPDIR/found"

mkdir -p "$TMPDIR/tree/recipes" "$TMPDIR/tree/docs" "$TMPDIR/tree/lib" "$TMPDIR/tree/controller" "$TMPDIR/tree/daemon"
cp "$HEDDLE_SOURCE_DIR/README.md" "$TMPDIR/tree"
for name in CHANGELOG SECURITY CONTRIBUTING ARCHITECTURE; do echo "# $name" >"$TMPDIR/tree/$name.md"; done
for name in $(grep -oE 'docs/[A-Za-z/-]+(\.md|\.svg)|docs/PERFORMANCE.md|lib/model/forward.c' "$HEDDLE_SOURCE_DIR/README.md" | sort -u); do
    mkdir -p "$TMPDIR/tree/$(dirname "$name")" && touch "$TMPDIR/tree/$name"
done
mkdir -p "$TMPDIR/tree/lib/job" && cp "$HEDDLE_SOURCE_DIR/lib/job/families.def" "$TMPDIR/tree/lib/job"
printf '| `no source says this` | x | y |\n' >"$TMPDIR/tree/docs/troubleshooting.md"
printf '[a](../nothing.md) [b](../SECURITY.md#none)\n```\n$ heddle jobs --none\nheddle frobnicate\n```\n' >"$TMPDIR/tree/docs/a.md"
perl "$here/docs.pl" "$TMPDIR/tree" "$HEDDLE_BIN" | sed -E 's/:[0-9]*:? / /; s/ has .*//' | sort >"$TMPDIR/found"
printf '%s\n' 'docs/a.md SECURITY.md' 'docs/a.md heddle jobs' 'docs/a.md there is no heddle frobnicate' \
    'docs/a.md there is no nothing.md' "docs/troubleshooting.md no source" 'docs/troubleshooting.md' |
    sort | diff - "$TMPDIR/found" >"$TMPDIR/difference"
verdict each_kind_of_fault_is_found "$TMPDIR/difference"
exit $bad
