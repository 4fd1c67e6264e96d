#!/bin/sh
# compile.sh COMMAND...   Runs nvcc (COMMAND has -Xptxas -v) and saves the assembler's report of every
# kernel (registers, stack, spills) as OBJECT.ptxas, which a test reads. Prints only the other output.
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
rm -f "$report.out"
exit $rc
