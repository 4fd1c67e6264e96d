#!/bin/bash
# The promises of tests/run, tests/guard, tests/own_folder and tests/shim, on a build folder made by hand: its
# "programs" are scripts that print what cmocka prints.
set -u

fake=$TMPDIR/fake
mkdir -p "$fake/tests"
printf '%s engine \n' "$HEDDLE_SOURCE_DIR" >"$fake/asked"
ln -s "$HEDDLE_BUILD_DIR/tests/guard" "$fake/tests/guard"
bad=0

program() { # NAME GROUP TIMEOUT: the script is on stdin; it becomes the only test
    printf 'program %s %s short %s shared \n' "$1" "$2" "$3" >"$fake/tests/list"
    { printf 'rule configure\n  command = true\n  generator = 1\nbuild build.ninja: configure\n'
      printf 'build %s: phony\n' all heddle-test-guard "$1"; } >"$fake/build.ninja"
    { echo '#!/bin/sh'; cat; } >"$fake/tests/$1"
    chmod +x "$fake/tests/$1"
}
run() { "$HEDDLE_SOURCE_DIR/tests/run" --preset engine --build-dir "$fake" "$@" >"$TMPDIR/out" 2>&1; }
verdict() { # NAME STATUS: ok if STATUS is 0
    if [ "$2" = 0 ]; then
        echo "ok $1"
    else
        echo "not ok $1: the runner's output was"
        sed 's/^/    /' "$TMPDIR/out"
        bad=1
    fi
}
ends_with() { [ "$(tail -n 1 "$TMPDIR/out")" = "$1" ]; }
living() { # SECONDS: whether a `sleep SECONDS` lives
    local file
    for file in /proc/[0-9]*/cmdline; do
        [ "$(tr '\0' ' ' 2>/dev/null <"$file")" = "sleep $1 " ] && return 0
    done 2>/dev/null
    return 1
}

program t unit 5 <<'END'
echo '[ RUN      ] one'; echo '[       OK ] one'
echo '[ RUN      ] two'; echo '[       OK ] two'
END
run unit
[ $? = 0 ] && ends_with '2 passed, 0 failed, 0 skipped'
verdict the_closing_line_counts_cases $?

program t unit 5 <<'END'
echo '[ RUN      ] one'; echo '[       OK ] one'
echo '[ RUN      ] two'; echo '[  FAILED  ] two'
echo '[  FAILED  ] 1 test(s), listed below:'; echo '[  FAILED  ] two'
exit 1
END
run unit
[ $? = 1 ] && ends_with '1 passed, 1 failed, 0 skipped' && grep -qx 'FAIL t.two' "$TMPDIR/out"
verdict a_failed_case_is_counted_once_and_named $?

program t unit 5 <<'END'
echo '[ RUN      ] one'; echo '[       OK ] one'
echo '[ RUN      ] two'; kill -SEGV $$
END
run unit
[ $? = 1 ] && ends_with '1 passed, 1 failed, 0 skipped' && grep -qx 'FAIL t.two' "$TMPDIR/out" &&
    grep -q 'ended by signal 11' "$TMPDIR/out"
verdict a_crash_fails_the_case_it_was_in $?

program t unit 5 <<'END'
echo '[ RUN      ] one'; echo '[       OK ] one'
exit 3
END
run unit
[ $? = 1 ] && ends_with '1 passed, 1 failed, 0 skipped' && grep -q 'exit status 3' "$TMPDIR/out"
verdict an_exit_status_without_a_failed_case_fails $?

program t unit 5 <<'END'
echo '[ RUN      ] one'; echo 'nothing to test with'; echo '[  SKIPPED ] one'
END
run unit
[ $? = 1 ] && ends_with '0 passed, 1 failed, 0 skipped' && grep -q 'does not list it: nothing to' "$TMPDIR/out"
verdict an_unexpected_skip_fails $?

program t unit 5 <<'END'
exit 0
END
run unit
[ $? = 1 ] && ends_with '0 passed, 2 failed, 0 skipped'
verdict a_test_that_runs_nothing_fails $?

run parity
[ $? = 1 ] && ends_with '0 passed, 1 failed, 0 skipped' && grep -q 'group parity: it ran nothing' "$TMPDIR/out"
verdict a_group_that_runs_nothing_fails $?

program t unit 1 <<'END'
echo '[ RUN      ] one'; sleep 86401
END
run unit
[ $? = 1 ] && ends_with '0 passed, 1 failed, 0 skipped' && grep -q 'not done after 1 s' "$TMPDIR/out" &&
    ! living 86401
verdict a_test_without_end_is_killed $?

program t unit 20 <<'END'
echo '[ RUN      ] one'; setsid -f sleep 86402 >/dev/null 2>&1; echo '[       OK ] one'
END
run unit
[ $? = 1 ] && ends_with '1 passed, 1 failed, 0 skipped' && grep -q 'left behind.*(sleep)' "$TMPDIR/out" &&
    ! living 86402
verdict a_test_that_leaves_a_daemon_fails_and_the_daemon_is_gone $?

program t unit 60 <<'END'
echo '[ RUN      ] one'; setsid -f sleep 86403; sleep 86403
END
mkdir "$TMPDIR/stop"
TMPDIR=$TMPDIR/stop "$HEDDLE_SOURCE_DIR/tests/run" --preset engine --build-dir "$fake" unit >"$TMPDIR/out" 2>&1 &
runner=$!
for _ in $(seq 100); do
    if living 86403; then break; fi
    sleep 0.1
done
living 86403
started=$?
kill -TERM $runner
wait $runner
status=$?
[ $started = 0 ] && [ $status = 130 ] && ! living 86403 && [ -z "$(ls "$TMPDIR/stop")" ]
verdict an_interrupted_run_leaves_nothing_behind $?

# Under ctest each test has what tests/run gives it. A folder of an earlier run lies beside, not inside.
grep -rh --include=CTestTestfile.cmake '^add_test' "$HEDDLE_BUILD_DIR" >"$TMPDIR/all"
grep -vF 'tests/own_folder"' "$TMPDIR/all" >"$TMPDIR/out"
[ -s "$TMPDIR/all" ] && [ ! -s "$TMPDIR/out" ]
verdict ctest_starts_every_test_in_a_folder_of_its_own $?
mkdir -p "$TMPDIR/ctest/1/jobs"
TMPDIR=$TMPDIR/ctest HEDDLE_CONTROLLER=unix:elsewhere "$HEDDLE_SOURCE_DIR/tests/own_folder" sh -c \
    'ls -A "$TMPDIR"; echo "[${HEDDLE_CONTROLLER-}]"; : >"$TMPDIR/left"; exit 3' >"$TMPDIR/out" 2>&1
[ $? = 3 ] && [ "$(cat "$TMPDIR/out")" = '[]' ] && [ "$(ls -A "$TMPDIR/ctest")" = 1 ]
verdict a_folder_of_its_own_is_empty_and_goes $?

# Clusters of real processes: jobs and sockets of one run are not there for the next one.
cluster_folder() { (. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh" && echo "$work"); }
first=$(cluster_folder 2>"$TMPDIR/out") second=$(cluster_folder 2>>"$TMPDIR/out")
[ -d "$first" ] && [ -d "$second" ] && [ "$first" != "$second" ] && [ "$first" != "$TMPDIR" ] && [ ! -s "$TMPDIR/out" ]
verdict two_runs_of_a_cluster_share_no_folder $?

# cmocka and the shim on the same source: same cases, same results, same number as exit status.
results() {
    "$HEDDLE_BUILD_DIR/tests/subject-$1" 2>&1 |
        awk '/^\[ RUN/ { name = $4 }
             name != "" && /^\[       OK|^\[  FAILED|^\[  SKIPPED/ { print $2, name; name = "" }
             name != "" && /^\[  ERROR   \] [^-]/ { print "FAILED", name; name = "" }' | tr -d ']'
    echo "exit status ${PIPESTATUS[0]}"
}
results hd_cmocka >"$TMPDIR/cmocka"
results hd_test_shim >"$TMPDIR/shim"
# 20 outcomes; skip_ skips in both its cases, fail_ and fail_msg_ hold when they do nothing
grep -c . "$TMPDIR/shim" >"$TMPDIR/out"
[ "$(grep -c '^FAILED .*_fails' "$TMPDIR/shim")" = 19 ] && [ "$(grep -c '^OK .*_holds' "$TMPDIR/shim")" = 19 ] &&
    [ "$(grep -c '^SKIPPED skip_' "$TMPDIR/shim")" = 2 ]
verdict each_assertion_of_the_shim_holds_and_fails $?
diff "$TMPDIR/cmocka" "$TMPDIR/shim" >"$TMPDIR/out" 2>&1
verdict the_shim_says_what_cmocka_says $?
exit $bad
