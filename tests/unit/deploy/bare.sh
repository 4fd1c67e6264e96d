#!/bin/bash
# A bare build (-DHEDDLE_BARE=ON) holds libc alone, whatever this machine has installed.
set -u

. "$HEDDLE_SOURCE_DIR/tests/unit/verdict.sh"
# Libraries of a program that are no part of libc.
foreign() { # PROGRAM
    ldd "$1" 2>&1 | grep -vE '^[[:space:]]*(linux-(vdso|gate)|lib(c|m|pthread|dl|rt)\.so\.|/[^ ]*/ld(-linux[^ ]*|64)?\.so)' |
        grep -v 'statically linked'
}

for program in heddle-worker heddle-supervisor; do
    foreign "$HEDDLE_BIN/$program" >"$TMPDIR/found"
    verdict "${program}_needs_libc_alone" "$TMPDIR/found"
done
foreign "$HEDDLE_BUILD_DIR/tests/base_tests" >"$TMPDIR/found"
verdict so_does_a_test_on_the_shim "$TMPDIR/found"

nm "$HEDDLE_BIN/heddle-worker" 2>&1 | grep -iE 'no symbols|xxh64|dnnl|gomp|pcre2|utf8proc|gloo::|cublas' >"$TMPDIR/found"
verdict no_library_is_linked_in "$TMPDIR/found"

# The programs of the build, and what it was configured with.
grep -E '^CMAKE_(CXX|CUDA)_COMPILER:' "$HEDDLE_BUILD_DIR/CMakeCache.txt" >"$TMPDIR/found"
verdict no_other_language_was_looked_for "$TMPDIR/found"
ls "$HEDDLE_BIN" | grep -vxE 'heddle-(worker|supervisor)' >"$TMPDIR/found"
ls "$HEDDLE_BUILD_DIR/lib" | grep -E '^libheddle_|^libhd_(rpc|spec|proto|cudasim)' >>"$TMPDIR/found"
verdict nothing_else_was_built "$TMPDIR/found"
exit $bad
