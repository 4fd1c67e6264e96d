#!/bin/bash
# controller_disk.sh: a controller whose disk is full takes cancels and drains from its reserve, refuses what
# is new and says why; with the reserve used up it says that, too, to who waits; what runs goes on, and all of
# it is told when there is room again, without a restart.
if [ "${1-}" != inside ]; then
    unshare -m true 2>/dev/null && exec unshare -m "$BASH" "$0" inside
    unshare -Urm true 2>/dev/null && exec unshare -Urm "$BASH" "$0" inside
    for name in a_full_controller_takes_cancels_and_drains_and_loses_no_report \
        a_controller_that_cannot_write_tells_those_who_wait; do
        echo "skip $name: mounting a small disk takes root"
    done
    exit 0
fi
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

heddle() { "$HEDDLE_BIN/heddle" "$@"; }
warned() { heddle nodes 2>&1 >/dev/null | grep -q "$1"; }
small_disk() { # SIZE
    mkdir "$dir/c"
    mount -t tmpfs -o "size=$1,mode=0700" tmpfs "$dir/c" || fail "cannot mount a tmpfs"
}
fill() { cat /dev/zero >"$dir/c/filler" 2>/dev/null; } # until no byte is left
refused() { # exactly as a limit: certain, with the disk and the remedy, and no word of a second try
    local status
    heddle submit "$work/job.yaml" -q >"$dir/refused" 2>&1
    status=$?
    [ $status = 6 ] && grep -q 'is full since .*free at least ' "$dir/refused" &&
        ! grep -q 'may have accepted' "$dir/refused"
}

a_full_controller_takes_cancels_and_drains_and_loses_no_report() {
    local job other
    small_disk 64m
    start_cluster
    job=$(submit) || exit
    other=$(submit) || exit # waits for the devices
    await_step "$job" 1 3
    fill
    must_come $PATIENCE "the warning" warned 'is full since'
    refused || fail "the submission is refused so: $(cat "$dir/refused")"
    heddle cancel "$other" >/dev/null 2>&1 || fail "cancel is refused"
    await_state "$other" cancelled
    heddle drain a --reason "its disk" >/dev/null 2>&1 || fail "drain is refused"
    succeed "$job" 1 # its end is written
    rm "$dir/c/filler"
    must_come $PATIENCE "the end of the warning" eval '! warned .'
    heddle undrain a >/dev/null || fail "undrain is refused"
    heddle watch "$job" -o jsonl >"$dir/history" 2>&1
    every_step_once "$dir/history"
    same_weights "$job"
    succeed "$(submit)" 1
    kill_all
    umount "$dir/c"
}

# Without a reserve, on a disk of the size that an operator would never choose.
a_controller_that_cannot_write_tells_those_who_wait() {
    local job waiter
    small_disk 2m
    start_controller --state-reserve 0
    start_daemon a
    job=$(submit) || exit
    await_step "$job" 1 3
    heddle wait "$job" >"$dir/wait" 2>&1 &
    waiter=$!
    fill
    must_come $PATIENCE "the warning" warned 'cannot write its state since'
    must_come $PATIENCE "a word to who waits" grep -q 'cannot write its state since' "$dir/wait"
    heddle show "$job" -o jsonl 2>/dev/null | grep -q '"stale":"the controller cannot write' || fail "show does not say it"
    await_step "$job" 1 $STEPS
    kill_daemon a # one that comes meanwhile is kept
    start_daemon a
    must_come $PATIENCE "the connection of the new heddled" grep -q 'node a connected' "$dir/controller.log"
    grep -q 'has sent nothing' "$dir/heddled-a.log" && fail "heddled has given the controller up"
    rm "$dir/c/filler"
    wait "$waiter" || fail "heddle wait ended with $?: $(cat "$dir/wait")"
    grep -q 'writes its state again' "$dir/wait" || fail "heddle wait does not say that it is over"
    heddle watch "$job" -o jsonl >"$dir/history" 2>&1
    every_step_once "$dir/history"
    [ "$(attempts "$job")" = 1 ] || fail "the job was started again"
    kill_all
    umount "$dir/c"
}

scenario an_undisturbed_run_succeeds
scenario a_full_controller_takes_cancels_and_drains_and_loses_no_report
scenario a_controller_that_cannot_write_tells_those_who_wait
finish
