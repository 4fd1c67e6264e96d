#!/bin/bash
# monkey.sh KILLS SEED NODE=DEVICES...: one job on these nodes; whoever is killed on any of them, whenever,
# and in whatever order: the job succeeds, and what it has learned is what an undisturbed run on one node
# learns.
STEPS=400 BATCH=16 # time for some kills
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

kills=$1 seed=$2
shift 2
nodes=("${@%=*}") counts=("${@#*=}")

lives() { gone "$1" && return 1 || return 0; }
revive() {
    local i
    lives "$controller" || start_controller
    for i in "${!nodes[@]}"; do
        lives "${daemon[${nodes[i]}]-0}" || start_daemon "${nodes[i]}" --devices "cpu:${counts[i]}:1"
    done
}
strike() { # kills one of those that are there
    local victims=() process node=${nodes[RANDOM % ${#nodes[@]}]}
    case $((RANDOM % 6)) in
    0) what=rank-0 victims=($(rank_pid 0)) ;;
    1) what=rank-1 victims=($(rank_pid 1)) ;;
    2) what=supervisor-$node victims=($(processes "heddle-supervisor .*--node $node ")) ;;
    3) what=heddled-$node victims=("${daemon[$node]}") ;;
    4) what=controller victims=("$controller") ;;
    5) what=everybody victims=($(processes "$programs")) ;;
    esac
    [ ${#victims[@]} -gt 0 ] || return 1
    note "$what at step $(step_of "$job" "$(attempts "$job")") of attempt $(attempts "$job")"
    kill -KILL "${victims[@]}" 2>/dev/null
    for process in "$controller" "${daemon[@]}"; do
        gone "$process" && wait "$process" 2>/dev/null
    done
    return 0
}

only_the_newest_are_left() { [ "$(checkpoints "$job" | wc -l)" = 2 ]; }
killing_anybody_at_any_time_changes_no_weight() {
    local job struck=0 controller=0
    revive
    job=$(submit --set restart.max=1000 --set checkpoint.every=3 --set checkpoint.keep=2) || exit
    RANDOM=$seed
    while [ $struck -lt "$kills" ] && ! has_checkpoint "$job" $STEPS; do
        sleep "0.$((RANDOM % 10))"
        strike && struck=$((struck + 1))
        sleep "0.$((RANDOM % 5))"
        revive
    done
    [ $struck -ge 3 ] || fail "only $struck were killed before it was done"
    succeed "$job" any
    same_weights "$job"
    await 30 "the end of all checkpoints but two" only_the_newest_are_left
    "$HEDDLE_BIN/heddle" checkpoint verify "$job" >"$dir/verify.log" 2>&1 || fail "a checkpoint is damaged"
    # Whatever was sent again was counted once.
    "$HEDDLE_BIN/heddle" watch "$job" -o jsonl | sed -nE 's/^\{"type": *"step",.*"attempt": *([0-9]+).*"step": *([0-9]+),.*/\1 \2/p' >"$dir/steps"
    [ -s "$dir/steps" ] || fail "there is no history"
    [ -z "$(sort "$dir/steps" | uniq -d)" ] || fail "attempt and step were counted twice: $(sort "$dir/steps" | uniq -d | head -n 5)"
}

scenario an_undisturbed_run_succeeds
scenario killing_anybody_at_any_time_changes_no_weight
finish
