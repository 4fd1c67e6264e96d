#!/bin/bash
# controller_disk.sh: a controller whose disk is full refuses what it cannot keep and says so; what runs
# goes on, and all of it is told when there is room again.
if [ "${1-}" != inside ]; then
    unshare -m true 2>/dev/null && exec unshare -m "$BASH" "$0" inside
    echo "skip a_controller_with_a_full_disk_refuses_jobs_and_loses_no_report: mounting a small disk takes root"
    exit 0
fi
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

is_accepted() { "$HEDDLE_BIN/heddle" submit "$work/job.yaml" -q --request-id "$id" >"$dir/accepted" 2>&1; }
a_controller_with_a_full_disk_refuses_jobs_and_loses_no_report() {
    local job later step status id
    mkdir "$dir/c"
    mount -t tmpfs -o size=16m,mode=0700 tmpfs "$dir/c" || fail "cannot mount a tmpfs"
    start_cluster
    job=$(submit) || exit
    await_step "$job" 1 3
    cat /dev/zero >"$dir/c/filler" 2>/dev/null # until no byte is left
    "$HEDDLE_BIN/heddle" submit "$work/job.yaml" -q >"$dir/refused" 2>&1
    status=$?
    [ $status = 6 ] || fail "the submission ended with $status, not 6: $(cat "$dir/refused")"
    grep -qiE 'disk|space' "$dir/refused" || fail "the refusal does not name the disk: $(cat "$dir/refused")"
    has_state "$job" running || fail "the job cannot be asked for"
    step=$(step_of "$job" 1)
    await_step "$job" 1 $((step + 5))
    rm "$dir/c/filler"
    # It may have been kept for later; the refusal says how to ask again without a second job.
    id=$(sed -nE 's/.*--request-id ([0-9a-f]{32})( .*|$)/\1/p' "$dir/refused")
    [ -n "$id" ] || fail "the refusal tells no request id: $(cat "$dir/refused")"
    await 30 "a submission that is accepted" is_accepted
    later=$(cat "$dir/accepted")
    succeed "$job" 1
    "$HEDDLE_BIN/heddle" watch "$job" -o jsonl >"$dir/history" 2>&1
    every_step_once "$dir/history"
    same_weights "$job"
    succeed "$later" 1
    [ "$("$HEDDLE_BIN/heddle" jobs -o jsonl | wc -l)" = 2 ] || fail "the refused submission made a job of its own"
    kill_all
    umount "$dir/c"
}

scenario an_undisturbed_run_succeeds
scenario a_controller_with_a_full_disk_refuses_jobs_and_loses_no_report
finish
