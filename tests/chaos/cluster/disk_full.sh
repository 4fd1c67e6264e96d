#!/bin/bash
# disk_full.sh: no room for a checkpoint is said and survived.
# The small disk is a tmpfs in a mount namespace of this script's own.
if [ "${1-}" != inside ]; then
    unshare -m true 2>/dev/null && exec unshare -m "$BASH" "$0" inside
    echo "skip training_goes_on_while_the_disk_is_full: mounting a small disk takes root"
    exit 0
fi
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

training_goes_on_while_the_disk_is_full() {
    local job before step free
    mkdir "$dir/jobs"
    mount -t tmpfs -o size=128m tmpfs "$dir/jobs" || fail "cannot mount a tmpfs"
    start_cluster
    job=$(submit) || exit
    await_checkpoint "$job" $EVERY
    # Room for reports, not for a checkpoint.
    free=$(df --output=avail -B 1 "$dir/jobs" | tail -n 1)
    head -c $((free - 600000)) /dev/zero >"$dir/jobs/filler"
    step=$(newest_step "$job")
    before=$(cd "$(checkpoint_dir "$job" 1 "$step")" && sha256sum *)
    await $PATIENCE "a warning that names the disk" says "$job" '"kind": *"warning".*[Nn]o space'
    await_step "$job" 1 $((step + EVERY + 5))
    [ "$(newest_step "$job")" = "$step" ] || fail "a checkpoint fits after all"
    [ "$(cd "$(checkpoint_dir "$job" 1 "$step")" && sha256sum *)" = "$before" ] || fail "the older checkpoint was touched"
    rm "$dir/jobs/filler"
    await $PATIENCE "a checkpoint of a later step" has_checkpoint "$job" $((step + EVERY + 1))
    [ "$(newest_step "$job")" -lt $STEPS ] || fail "only the last checkpoint succeeded; the test was too slow"
    succeed "$job" 1
    same_weights "$job"
    "$HEDDLE_BIN/heddle" checkpoint verify "$job" >"$dir/verify.log" 2>&1 || fail "a checkpoint is damaged"
    umount_jobs
}
umount_jobs() {
    kill_all
    umount "$dir/jobs"
}

scenario an_undisturbed_run_succeeds
scenario training_goes_on_while_the_disk_is_full
finish
