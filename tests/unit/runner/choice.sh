#!/bin/bash
# What tests/run chooses, and what it runs beside what: on a tree and a build folder made by hand. The
# tests are scripts that print what cmocka prints; the build is Ninja's own, with objects that are empty.
set -u

tree=$TMPDIR/tree fake=$TMPDIR/fake bad=0
mkdir -p "$tree/tests" "$tree/deploy" "$tree/kernels/cuda" "$tree/lib" "$fake/tests" "$fake/obj/entry_a.dir" "$fake/obj/entry_b.dir"
cp "$HEDDLE_SOURCE_DIR/tests/run" "$HEDDLE_SOURCE_DIR/tests/changed" "$HEDDLE_SOURCE_DIR/tests/expected-skips" "$tree/tests/"
printf '#!/bin/sh\n' >"$tree/deploy/deps"
chmod +x "$tree/deploy/deps"
for file in kernels/cuda/a.cu lib/a.c lib/b.c lib/both.c lib/a.h README.md; do echo 1 >"$tree/$file"; done
printf '%s dev \n' "$tree" >"$fake/asked"
ln -s "$HEDDLE_BUILD_DIR/tests/guard" "$fake/tests/guard"
verdict() { # NAME STATUS: ok if STATUS is 0
    if [ "$2" = 0 ]; then
        echo "ok $1"
    else
        echo "not ok $1: the runner's output was"
        sed 's/^/    /' "$TMPDIR/out"
        bad=1
    fi
}
run() { HEDDLE_CUDA_PLUGIN=none "$tree/tests/run" --build-dir "$fake" "$@" >"$TMPDIR/out" 2>&1; }
ran() { # NAME...: these tests and no others
    [ "$(sed -nE 's/^(ok|FAIL) +([a-z_]+).*/\2/p' "$TMPDIR/out" | sort -u | tr '\n' ' ')" = "${*:+$* }" ]
}
says() { grep -qF -- "$1" "$TMPDIR/out"; }
program() { # NAME GROUP LENGTH NEIGHBOURS [PROGRAM ENTRY]: the script is on stdin
    printf 'program %s %s %s 30 %s %s\n' "$1" "$2" "$3" "$4" "${*:5}" >>"$fake/tests/list"
    printf '%s lib %s\n' "$1" "${6:+entry_${6}}" >>"$fake/tests/reads"
    { printf '#!/bin/sh\necho "[ RUN      ] one"\n'; cat; printf 'echo "[       OK ] one"\n'; } >"$fake/tests/$1"
    chmod +x "$fake/tests/$1"
}
: >"$fake/tests/list"
: >"$fake/tests/reads"
cat >"$fake/build.ninja" <<END
rule cc
  command = printf '%s: %s %s\n' \$out \$in "\$header" > \$out.d && touch \$out
  deps = gcc
  depfile = \$out.d
rule link
  command = touch \$out
build obj/entry_a.dir/a.o: cc $tree/lib/a.c
  header = $tree/lib/a.h
build obj/entry_b.dir/b.o: cc $tree/lib/b.c
build both.o: cc $tree/lib/both.c
build tests/rooms: link obj/entry_a.dir/a.o obj/entry_b.dir/b.o both.o
build rooms: phony tests/rooms
build mutants: phony
build days: phony
build hostile: phony
build a: phony tests/rooms
build b: phony tests/rooms
rule configure
  command = true
  generator = 1
build build.ninja: configure
build heddle-test-guard: phony
build heddle-programs: phony
build all: phony a b
build first second waiting clock busy sums words kernels_sums kernels_grid: phony
END

# ---- what runs beside what ----

for name in first second waiting; do
    [ $name = waiting ] && neighbours=waits || neighbours=shared
    program $name unit short $neighbours <<END
touch "$fake/$name.here"
for i in \$(seq 200); do
    if [ -e "$fake/first.here" ] && [ -e "$fake/second.here" ] && [ -e "$fake/waiting.here" ]; then
        break
    fi
    sleep 0.1
done
[ -e "$fake/first.here" ] && [ -e "$fake/second.here" ] && [ -e "$fake/waiting.here" ] || exit 1
END
done
run -j 2 unit
[ $? = 0 ] && ran first second waiting
verdict what_waits_runs_beside_as_many_as_there_are_places $?

: >"$fake/tests/list"
program clock unit short alone <<END
[ ! -e "$fake/busy" ]
busy=\$?
[ \$busy = 0 ] || exit 1
END
program busy unit short shared <<END
touch "$fake/busy"; sleep 1; rm "$fake/busy"
END
run -j 2 unit
[ $? = 0 ] && ran busy clock
verdict what_measures_runs_alone $?

says 'the dearest tests' && grep -qE '^  busy +[0-9.]+ +[0-9.]+$' "$TMPDIR/out" &&
    grep -qE '^times: build [0-9]+ s \(CPU [0-9]+ s\), tests [0-9]+ s \(CPU [0-9]+ s\)$' "$TMPDIR/out"
verdict a_table_says_what_was_dear $?

# ---- what is left out ----

: >"$fake/tests/list"
program sums unit short shared </dev/null
program words unit once shared </dev/null
run unit
[ $? = 0 ] && ran sums words
verdict alone_a_build_runs_all_its_unit_tests $?
run --beside-asan unit
[ $? = 0 ] && ran sums && says '1 that the preset asan runs'
verdict beside_asan_it_leaves_out_what_that_shows_as_well $?
program kernels_sums unit short shared </dev/null
program kernels_grid parity short shared </dev/null
run --without kernels unit parity
[ $? = 0 ] && ran kernels_grid sums words && says '1 of kernels (--without)'
verdict a_room_can_be_left_out $?
program comm_sums unit short shared </dev/null
run --without kernels --without comm unit
[ $? = 0 ] && ran sums words && says '1 of kernels (--without); 1 of comm (--without)'
verdict and_so_can_two $?

# ---- what is made ----

: >"$fake/tests/list"
rm -f "$fake/tests/rooms"
program sums gpu short alone </dev/null
HEDDLE_CUDA_PLUGIN=none/libheddle_cudasim.so "$tree/tests/run" --build-dir "$fake" gpu >"$TMPDIR/out" 2>&1
[ $? = 0 ] && ran sums && [ ! -e "$fake/tests/rooms" ]
verdict a_gpu_waits_for_nothing_but_its_own_tests $?
program a unit short shared rooms a </dev/null
run --only sums
[ $? = 0 ] && ran sums && [ ! -e "$fake/tests/rooms" ]
verdict one_test_needs_no_other $?
run unit
[ $? = 0 ] && ran a && [ -e "$fake/tests/rooms" ]
verdict what_runs_is_made_first $?

: >"$fake/tests/list"
: >"$fake/tests/reads"
program a unit short shared rooms a </dev/null
program b unit short shared rooms b </dev/null
program mutants unit cuda shared </dev/null
program days unit long shared </dev/null
program hostile fuzz short shared </dev/null

run
[ $? = 0 ] && ran a b mutants && says '1 long ones (--full); 1 of fuzz'
verdict without_git_the_dear_tests_run $?
run --changed
[ $? = 2 ] && says '--changed needs git'
verdict without_git_nothing_tells_what_changed $?
run fuzz
[ $? = 0 ] && ran hostile
verdict fuzz_runs_when_it_is_asked_for $?
run --full
[ $? = 0 ] && ran a b days hostile mutants
verdict full_leaves_nothing_out $?

if ! command -v git >/dev/null; then
    exit $bad
fi
git_() { git -C "$tree" -c user.name=t -c user.email=t@t -c init.defaultBranch=main "$@" >/dev/null 2>&1; }
commit() { git_ add -A && git_ commit -m t; }
git_ init && commit || { echo "not ok git: it makes no commit"; exit 1; }
echo 2 >"$tree/README.md" && commit
run
[ $? = 0 ] && ran a b && says '1 dear on the emulator' && says '(--cuda)'
verdict dear_tests_are_left_out_and_named_where_nothing_of_them_changed $?
run --cuda
[ $? = 0 ] && ran a b mutants
verdict they_run_when_they_are_asked_for $?
echo 2 >"$tree/kernels/cuda/a.cu"
run
[ $? = 0 ] && ran a b mutants
verdict a_change_that_is_not_committed_lets_them_run $?
commit
run
[ $? = 0 ] && ran a b mutants
verdict so_does_the_last_commit_of_the_main_branch $?
git_ checkout -b other && echo 2 >"$tree/lib/b.c" && commit
run
[ $? = 0 ] && ran a b
verdict a_branch_is_held_against_the_main_one $?
run --since main~1
[ $? = 0 ] && ran a b mutants
verdict since_says_another_commit $?

# ---- what changes reach ----

run --changed
[ $? = 0 ] && ran b
verdict a_changed_source_reaches_its_own_test_of_a_program $?
echo 2 >"$tree/lib/a.h"
run --changed --since other
[ $? = 0 ] && ran a
verdict so_does_a_header $?
echo 2 >"$tree/lib/both.c"
run --changed --since other
[ $? = 0 ] && ran a b
verdict what_a_program_shares_reaches_all_its_tests $?
git_ checkout lib
run --changed --since other
[ $? = 0 ] && ran && says 'nothing was changed' && [ "$(tail -n 1 "$TMPDIR/out")" = '0 passed, 0 failed, 0 skipped' ]
verdict where_nothing_changed_nothing_fails $?
echo 3 >"$tree/README.md"
run --changed --since other
[ $? = 0 ] && ran && says 'they reach 0 of 5 tests'
verdict a_document_reaches_nothing $?
echo 1 >"$tree/lib/CMakeLists.txt"
run --changed --since other
[ $? = 0 ] && ran a b hostile
verdict a_cmake_file_reaches_everything $?
exit $bad
