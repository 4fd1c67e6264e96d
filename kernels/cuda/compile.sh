#!/bin/sh
# compile.sh COMMAND...   Runs nvcc (COMMAND has -Xptxas -v) and saves the assembler's report of every
# kernel (registers, stack, spills) as OBJECT.ptxas, which a test reads. Prints only the other output. Fails where the
# assembler did not do as it was told: products of wgmma serialised (C7508 to C7517), or setmaxnreg ignored.
object=
last=
for word; do
    [ "$last" = -o ] && object=$word
    last=$word
done
report=$object.ptxas
"$@" >"$report.out" 2>&1
rc=$?
grep -E '^ptxas info|bytes stack frame' "$report.out" >"$report"
grep -vE '^ptxas info|bytes stack frame' "$report.out" >&2
grep -E '\(C75[01][0-9]\)' "$report.out" >&2 && [ $rc = 0 ] && rc=1
rm -f "$report.out"
exit $rc
