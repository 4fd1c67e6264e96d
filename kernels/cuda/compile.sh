#!/bin/sh
# compile.sh COMMAND...   Runs nvcc with -Xptxas -v and keeps the assembler's report of every kernel
# (registers, stack, spills) as OBJECT.ptxas, which a test reads; what is left on the terminal is what
# a person should see.
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
