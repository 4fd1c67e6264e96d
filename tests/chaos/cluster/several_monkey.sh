#!/bin/bash
# several_monkey.sh KILLS SEED: one job on two nodes; whoever is killed on either of them, whenever, and
# in whatever order: the job succeeds, and what it has learned is what a run on one node learns.
STEPS=300 # time for some kills
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

lives() { gone "$1" && return 1 || return 0; }
revive() {
    lives "$controller" || start_controller
    lives "${daemon[a]}" || start_daemon a --devices cpu:1:1
    lives "${daemon[b]}" || start_daemon b --devices cpu:1:1
}
supervisors() { processes "heddle-supervisor .*--node $1 "; }
strike() { # kills one of those that are there
    local victims=() process
    case $((RANDOM % 8)) in
    0) what=rank-0 victims=($(rank_pid 0)) ;;
    1) what=rank-1 victims=($(rank_pid 1)) ;;
    2) what=supervisor-a victims=($(supervisors a)) ;;
    3) what=supervisor-b victims=($(supervisors b)) ;;
    4) what=heddled-a victims=("${daemon[a]}") ;;
    5) what=heddled-b victims=("${daemon[b]}") ;;
    6) what=controller victims=("$controller") ;;
    7) what=everybody victims=($(processes "$programs")) ;;
    esac
    [ ${#victims[@]} -gt 0 ] || return 1
    note "$what at step $(step_of "$job" "$(attempts "$job")") of attempt $(attempts "$job")"
    kill -KILL "${victims[@]}" 2>/dev/null
    for process in "$controller" "${daemon[@]}"; do
        gone "$process" && wait "$process" 2>/dev/null
    done
    return 0
}

killing_anybody_on_either_node_changes_no_weight() {
    local job struck=0
    start_controller
    start_daemon a --devices cpu:1:1
    start_daemon b --devices cpu:1:1
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
    "$HEDDLE_BIN/heddle" checkpoint verify "$job" >"$dir/verify.log" 2>&1 || fail "a checkpoint is damaged"
    # Whatever was sent again was counted once.
    "$HEDDLE_BIN/heddle" watch "$job" -o jsonl | sed -nE 's/^\{"type": *"step",.*"attempt": *([0-9]+).*"step": *([0-9]+),.*/\1 \2/p' >"$dir/steps"
    [ -s "$dir/steps" ] || fail "there is no history"
    [ -z "$(sort "$dir/steps" | uniq -d)" ] || fail "attempt and step were counted twice: $(sort "$dir/steps" | uniq -d | head -n 5)"
}

kills=$1 seed=$2
scenario an_undisturbed_run_succeeds
scenario killing_anybody_on_either_node_changes_no_weight
finish
