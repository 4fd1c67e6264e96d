#!/bin/bash
# What .ci/run makes of a tests/run that leaves a process behind, with the pipe to .ci/run open.
set -u

tree=$TMPDIR/tree
bad=0
mkdir -p "$tree/.ci" "$tree/deploy" "$tree/tests"
cp "${HEDDLE_SOURCE_DIR:?}/.ci/run" "$tree/.ci/"
printf '#!/bin/sh\n' >"$tree/deploy/deps"
cat >"$tree/tests/run" <<'EOF'
#!/bin/sh
sleep 600 &
echo $! >"$LEFT.part"
mv "$LEFT.part" "$LEFT"
[ -z "${STAYS-}" ] || exec sleep 600
echo '3 passed, 0 failed, 1 skipped'
EOF
chmod +x "$tree/deploy/deps" "$tree/tests/run"
trap 'kill $(cat "$TMPDIR"/left.*) 2>/dev/null' EXIT

check() { # NAME STATUS
    if [ "$2" = 0 ]; then
        printf 'ok %s\n' "$1"
    else
        printf 'not ok %s:\n' "$1"
        cat "$TMPDIR/ends" "$TMPDIR/stopped"
        bad=1
    fi
}

LEFT=$TMPDIR/left.1 "$tree/.ci/run" engine >"$TMPDIR/ends" 2>&1 &
ends=$!
STAYS=1 LEFT=$TMPDIR/left.2 "$tree/.ci/run" engine >"$TMPDIR/stopped" 2>&1 &
stopped=$!
while [ ! -s "$TMPDIR/left.2" ]; do sleep 0.1; done
kill "$stopped"
wait "$ends"
ends_status=$?
wait "$stopped"
stopped_status=$?
left='something that tests/run started has outlived it'

[ $ends_status = 0 ] && kill -0 "$(cat "$TMPDIR/left.1")" && grep -q "^-- engine: $left" "$TMPDIR/ends" &&
    [ "$(tail -n 1 "$TMPDIR/ends")" = '3 passed, 0 failed, 1 skipped' ]
check what_outlives_a_stage_is_named_and_not_waited_for $?
[ $stopped_status = 130 ] && kill -0 "$(cat "$TMPDIR/left.2")" && grep -q "$left" "$TMPDIR/stopped"
check nor_is_it_behind_an_interrupted_stage $?

# What a stage hands on, and what the table at the end makes of what tests/run prints.
cat >"$tree/tests/run" <<'EOF'
#!/bin/sh
echo "$*" >>"$TMPDIR/asked"
echo 'the dearest tests                     seconds     of CPU'
echo '  slow_test                              12.5        3.0'
echo 'times: build 7 s (CPU 8 s), tests 9 s (CPU 10 s)'
echo '3 passed, 0 failed, 1 skipped'
EOF
"$tree/.ci/run" --cuda --since HEAD engine >"$TMPDIR/ends" 2>&1
[ $? = 0 ] && grep -qE -- '--cuda --since HEAD .*--preset engine -DHEDDLE_BARE=ON' "$TMPDIR/asked" &&
    grep -qE '^  engine +7 +8 +9 +10$' "$TMPDIR/ends" && grep -qE '^  engine +slow_test +12.5 +3.0$' "$TMPDIR/ends"
check a_table_sums_up_the_stages $?
rm "$TMPDIR/asked"
"$tree/.ci/run" dev >"$TMPDIR/ends" 2>&1
"$tree/.ci/run" dev asan >>"$TMPDIR/ends" 2>&1
[ "$(grep -nE -- '--beside-asan' "$TMPDIR/asked" | cut -d: -f1)" = 2 ] && [ "$(wc -l <"$TMPDIR/asked")" = 3 ]
check dev_leaves_to_asan_what_it_shows_if_it_runs $?

# clang-format here is one that finds $FOUND.
mkdir "$TMPDIR/bin"
printf '#!/bin/sh\n[ -z "$FOUND" ] || echo "$FOUND"\n[ -z "$FOUND" ]\n' >"$TMPDIR/bin/clang-format-14"
chmod +x "$TMPDIR/bin/clang-format-14"
with_format() { FOUND=$1 PATH=$TMPDIR/bin:$PATH "$tree/.ci/run" engine format >"$TMPDIR/ends" 2>&1; }
with_format '' && grep -q '^ok   clang_format_changes_nothing$' "$TMPDIR/ends" &&
    [ "$(tail -n 1 "$TMPDIR/ends")" = '4 passed, 0 failed, 1 skipped' ] && ! with_format 'a.c:1: error' &&
    [ "$(tail -n 1 "$TMPDIR/ends")" = '3 passed, 1 failed, 1 skipped' ]
check what_runs_beside_a_stage_counts $?

# Kernels are compiled and tested as what was touched asks for; the tests' changes here are $TOUCHED.
printf '#!/bin/sh\necho "$TOUCHED"\n' >"$tree/tests/changed"
chmod +x "$tree/tests/changed"
asked_with() { # FILE STAGE PATTERN: the stage's tests/run gets such arguments if FILE was touched
    rm -f "$TMPDIR/asked"
    TOUCHED=$1 "$tree/.ci/run" "$2" >"$TMPDIR/ends" 2>&1
    grep -qE -- "$3" "$TMPDIR/asked"
}
asked_with controller/core/core.c asan '--without kernels .*-DHEDDLE_CPU_KERNELS=widest -DHEDDLE_SANITIZE_KERNELS=OFF' &&
    asked_with kernels/cpu/norm.c asan '-DHEDDLE_CPU_KERNELS=native' &&
    ! asked_with tests/unit/kernels/norm_test.c asan '--without|SANITIZE_KERNELS'
check asan_looks_at_kernels_that_were_touched $?
asked_with controller/core/core.c dev '-DHEDDLE_CPU_KERNELS=widest' && ! asked_with kernels/cpu/norm.c dev 'CPU_KERNELS' &&
    ! asked_with lib/base/half.h dev 'CPU_KERNELS'
check dev_compiles_for_other_processors_what_was_touched $?
asked_with controller/core/core.c engine '-DHEDDLE_CPU_KERNELS=widest' && asked_with kernels/cpu/norm.c engine '-DHEDDLE_CPU_KERNELS=plain'
check a_bare_engine_computes_as_any_processor_does_where_kernels_were_touched $?
asked_with controller/core/core.c dev 'CUDASIM_OPTIMIZE=-O0' && ! asked_with kernels/cuda/norm_forward.cu dev 'CUDASIM_OPTIMIZE=-O0' &&
    ! asked_with lib/comm/comm.c dev 'CUDASIM_OPTIMIZE=-O0' && ! asked_with tests/cudasim/fiber.c dev 'CUDASIM_OPTIMIZE=-O0'
check kernels_are_optimised_for_an_emulator_that_is_tested $?
for stage in dev engine; do
    asked_with controller/core/core.c $stage '--without kernels' && asked_with lib/train/train.c $stage '--without kernels' &&
        ! asked_with kernels/cpu/norm.c $stage '--without' && ! asked_with lib/base/half.h $stage '--without' &&
        ! asked_with tests/reference/reference.c $stage '--without' && ! asked_with CMakeLists.txt $stage '--without'
    check ${stage}_tests_kernels_where_what_they_are_made_of_was_touched $?
done

# clang-check here says what it is given to read. CMake knows a.c, b.c, c.c and 40 others; b.c includes h.h by i.h.
mkdir -p "$tree/build/clang" "$tree/lib"
for file in a b c $(seq 40); do echo "\"file\": \"$tree/lib/$file.c\"," && : >"$tree/lib/$file.c"; done >"$tree/build/clang/compile_commands.json"
echo '#include "x/h.h"' >"$tree/lib/i.h" && echo '#include "i.h"' >"$tree/lib/b.c" && : >"$tree/lib/h.h"
for tool in cmake ninja; do printf '#!/bin/sh\n' >"$TMPDIR/bin/$tool"; done
printf '#!/bin/sh\nprintf "%%s\\n" "$@" >>"$TMPDIR/read"\n' >"$TMPDIR/bin/clang-check"
chmod +x "$TMPDIR"/bin/*
git_() { git -C "$tree" -c user.name=a -c user.email=a@b "$@" >"$TMPDIR/ends" 2>&1; }
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z' # so the quarter is one without a.c and b.c
git_ init && git_ add lib && git_ commit -m 'all'
reads() { # FILE...: the sources that clang reads if FILE was touched, of a, b and c, and how many others there are
    rm -f "$TMPDIR/read"
    TOUCHED=$1 PATH=$TMPDIR/bin:$PATH "$tree/.ci/run" clang >"$TMPDIR/ends" 2>&1
    sed -n "s|^$tree/lib/||p" "$TMPDIR/read" | sort >"$TMPDIR/sources"
}
reads lib/a.c && grep -qx a.c "$TMPDIR/sources" && [ "$(wc -l <"$TMPDIR/sources")" -le 13 ] && [ "$(wc -l <"$TMPDIR/sources")" -ge 10 ] &&
    reads lib/h.h && grep -qx b.c "$TMPDIR/sources" && [ "$(wc -l <"$TMPDIR/sources")" -le 13 ] &&
    reads CMakeLists.txt && [ "$(wc -l <"$TMPDIR/sources")" = 43 ] && reads unknown && [ "$(wc -l <"$TMPDIR/sources")" = 43 ]
check clang_reads_what_changes_reach_and_a_quarter_of_the_rest $?
"$tree/.ci/run" nonsense >"$TMPDIR/ends" 2>&1
[ $? = 2 ] && grep -q 'no stage is called nonsense' "$TMPDIR/ends"
check an_unknown_stage_is_named $?
exit $bad
