#!/bin/bash
# disk_full.sh: a jobs directory, or a node's state directory, that takes no writes is said and survived; no
# attempt is spent.
# The small disk is a tmpfs in a mount namespace of this script's own.
if [ "${1-}" != inside ]; then
    unshare -m true 2>/dev/null && exec unshare -m "$BASH" "$0" inside
    unshare -Urm true 2>/dev/null && exec unshare -Urm "$BASH" "$0" inside
    for name in training_goes_on_while_the_disk_is_full the_last_checkpoint_waits_for_room \
        a_job_begins_when_the_disk_takes_writes a_job_waits_for_the_state_directory_of_its_node; do
        echo "skip $name: mounting a small disk takes root"
    done
    exit 0
fi
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

# What ranks do on a disk that is fuller than a node takes new jobs on.
start_cluster_that_starts_jobs() {
    start_controller
    start_daemon a --min-free 0
}
small_disk() {
    mkdir "$dir/jobs"
    mount -t tmpfs -o size=128m tmpfs "$dir/jobs" || fail "cannot mount a tmpfs"
}
reason_is() { # JOB PATTERN
    "$HEDDLE_BIN/heddle" jobs -o wide | grep -qE -- "^ *$1 .*$2"
}
await_reason() { must_come $PATIENCE "the reason '$2' of job $1" reason_is "$@"; }
cancelled_soon() { # JOB [OPTION]
    local began=$SECONDS
    "$HEDDLE_BIN/heddle" cancel "$@" >/dev/null || fail "cannot cancel job $1"
    await_state "$1" cancelled
    [ $((SECONDS - began)) -le 15 ] || fail "cancel $* took $((SECONDS - began)) s"
}

training_goes_on_while_the_disk_is_full() {
    local job before step
    small_disk
    start_cluster
    job=$(submit) || exit
    await_checkpoint "$job" $EVERY
    # Room for reports, not for a checkpoint.
    leave_free 600000
    step=$(newest_step "$job")
    before=$(cd "$(checkpoint_dir "$job" 1 "$step")" && sha256sum *)
    await_reason "$job" "continues without a new checkpoint: .*no space" # first: it goes with the last step
    must_come $PATIENCE "a warning that names the disk" says "$job" '"kind": *"warning".*[Nn]o space'
    await_step "$job" 1 $((step + EVERY + 5))
    [ "$(newest_step "$job")" = "$step" ] || fail "a checkpoint fits after all"
    [ "$(cd "$(checkpoint_dir "$job" 1 "$step")" && sha256sum *)" = "$before" ] || fail "the older checkpoint was touched"
    make_room
    must_come $PATIENCE "a checkpoint of a later step" has_checkpoint "$job" $((step + EVERY + 1))
    [ "$(newest_step "$job")" -lt $STEPS ] || fail "only the last checkpoint succeeded; the test was too slow"
    succeed "$job" 1
    same_weights "$job"
    "$HEDDLE_BIN/heddle" checkpoint verify "$job" >"$dir/verify.log" 2>&1 || fail "a checkpoint is damaged"
    umount_jobs
}

# The disk is full to the last byte: logs and reports are refused, too. No attempt is lost, no step repeated.
the_last_checkpoint_waits_for_room() {
    local job
    small_disk
    start_cluster
    job=$(submit --set train.steps=60 --set checkpoint.every=0) || exit
    await_step "$job" 1 1
    leave_free 0
    await_reason "$job" "waits to write the last checkpoint: .*no space"
    state_is "$job" running || fail "the job is $(field "$job" state)"
    [ -z "$(find "$dir/jobs/$job" -name 'step-*')" ] || fail "a failed write left its folder"
    make_room
    succeed "$job" 1
    [ "$(newest_step "$job")" = 60 ] || fail "there is no last checkpoint"
    [ "$(field "$job" step)" = 60 ] || fail "the job succeeded at step $(field "$job" step) of 60"
    "$HEDDLE_BIN/heddle" show "$job" -o jsonl | grep -q 'no space' && fail "the problem is still shown"

    job=$(submit --set train.steps=60 --set checkpoint.every=0) || exit
    await_step "$job" 1 1
    leave_free 0
    await_reason "$job" "waits to write the last checkpoint: .*no space"
    cancelled_soon "$job"
    make_room
    umount_jobs
}

a_job_begins_when_the_disk_takes_writes() {
    local full tight now
    small_disk
    start_cluster_that_starts_jobs
    # not even its folder
    leave_free 0
    full=$(submit --set train.steps=20) || exit
    await_reason "$full" "waits to start: .*[Nn]o space"
    cancelled_soon "$full"
    # the folder, but no checkpoint
    make_room
    leave_free 1800000
    tight=$(submit --set train.steps=20) || exit
    await_reason "$tight" "waits for disk space before it trains: .*no space"
    now=$(submit --set train.steps=20) || exit # waits for the devices that $tight holds
    cancelled_soon "$tight" --now
    make_room
    await_state "$now" succeeded
    # read-only; a controller starts all the same
    must_come 20 "a disk that is not written to" mount -o remount,bind,ro "$dir/jobs"
    kill_controller
    start_controller
    now=$(submit --set train.steps=20) || exit
    await_reason "$now" "waits to start: .*[Rr]ead-only"
    mount -o remount,bind,rw "$dir/jobs"
    succeed "$now" 1
    umount_jobs
}
# Nothing is started that is not on record there (daemon/agent/local.h).
a_job_waits_for_the_state_directory_of_its_node() {
    local job refusal
    mkdir "$dir/node-a" && mount -t tmpfs -o size=1m tmpfs "$dir/node-a" || fail "cannot mount a tmpfs"
    start_cluster_that_starts_jobs
    job=$(submit --set train.steps=20) || exit
    succeed "$job" 1
    head -c 2m /dev/zero >"$dir/node-a/filler" 2>/dev/null
    job=$(submit --set train.steps=20) || exit
    # on the node, if it was placed before the node said so itself
    refusal='(waits to start: .*/node-a/attempts/|takes no new jobs: its state directory .*/node-a cannot be used: ).*[Nn]o space'
    await_reason "$job" "$refusal"
    cancelled_soon "$job"
    job=$(submit --set train.steps=20) || exit
    await_reason "$job" "$refusal"
    rm "$dir/node-a/filler"
    succeed "$job" 1
    kill_all
    umount "$dir/node-a"
}
umount_jobs() {
    kill_all
    umount "$dir/jobs"
}

scenario an_undisturbed_run_succeeds
scenario training_goes_on_while_the_disk_is_full
scenario the_last_checkpoint_waits_for_room
scenario a_job_begins_when_the_disk_takes_writes
scenario a_job_waits_for_the_state_directory_of_its_node
finish
