#!/bin/bash
# The clock is 25 days ahead for some seconds, then right again: certificates that were made meanwhile are
# replaced, no node is locked out, and jobs go on.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

shift_library=$HEDDLE_BUILD_DIR/tests/libfake_clock.so
if [ ! -f "$shift_library" ]; then
    printf 'skip the_clock_is_set: a sanitizer runs, before which no library can be loaded\n'
    finish
fi
umask 077
export FAKE_CLOCK=$work/ahead
set_ahead() { printf '+%010d' "$1" | dd of="$FAKE_CLOCK" conv=notrunc status=none; }
set_ahead 0
export LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$shift_library
state=$work/controller
check init_makes_an_authority "$HEDDLE_BIN/heddle-controller" init --state-dir "$state"
export HEDDLE_TLS_CA=$state/pki/ca.pem HEDDLE_TOKEN_FILE=$state/admin.token
serve() {
    "$HEDDLE_BIN/heddle-controller" --state-dir "$state" --listen "$HEDDLE_CONTROLLER" --jobs-dir "$work/jobs" --ephemeral \
        >>"$work/controller.log" 2>&1 &
    controller_pid=$!
    await 20 heddle whoami
}
for try in 1 2 3 4 5; do # a free port: the first that takes the controller
    export HEDDLE_CONTROLLER=127.0.0.1:$((20000 + RANDOM % 20000))
    serve && break
    kill "$controller_pid" 2>/dev/null
done
renewed_times() { [ "$(grep -c 'certificate is renewed$' "$work/$1.log")" -ge "$2" ]; } # NODE TIMES
for node in n1 n2; do
    heddle node invite $node 2>/dev/null | "$HEDDLE_BIN/heddled" join - --state-dir "$work/$node" 2>/dev/null
    env -u HEDDLE_CONTROLLER -u HEDDLE_TLS_CA -u HEDDLE_TOKEN_FILE "$HEDDLE_BIN/heddled" --state-dir "$work/$node" \
        --devices cpu:1 >>"$work/$node.log" 2>&1 &
    node_pids[$node]=$!
    await 20 node_is $node ready
done
job=$(submit "$(job_file long)" --set train.steps=100000 --set resources.devices=1 --set checkpoint.every=50000)
await 60 steps_at_least "$job" 2

set_ahead 2160000
await 20 renewed_times n1 1 && await 20 renewed_times n2 1
check_equal certificates_are_made_while_the_clock_is_ahead 0 $?
[ -z "${HEDDLE_CLOCK_AHEAD_S:-}" ] || sleep "$HEDDLE_CLOCK_AHEAD_S" # 12: gRPC's timers sleep into the future
kill -STOP "${node_pids[n2]}" # it cannot renew its own while the connection lasts
set_ahead 0
await 20 renewed_times n1 2
check_equal one_is_replaced_when_the_clock_is_right 0 $?
kill -KILL "$controller_pid"
wait "$controller_pid" 2>/dev/null
kill -CONT "${node_pids[n2]}"
serve
await 30 node_is n1 ready
check_equal its_node_comes_back 0 $?
await 30 node_is n2 ready
check_equal the_other_node_shows_the_certificate_before 0 $?
await 20 renewed_times n2 2
check_equal and_gets_one_that_is_valid 0 $?
check_equal the_job_goes_on 'running 1' "$(state_of "$job") $(heddle show "$job" -o jsonl | member attempt)"
heddle cancel --now "$job" >/dev/null # its ranks outlive heddled
await 30 state_is "$job" cancelled
finish
