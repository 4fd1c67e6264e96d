#!/bin/bash
# places.sh one|two|late: ranks that wait for ever, in each phase, on one node or on two, 42 places in all: at
# each the right rank is named, with its node and its device, and what waits for it. The ranks are not
# stopped but sleep (stall.c), as those do that wait for their peers. late: the right rank is also named if
# the supervisor of the other node ends the attempt first.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"
export LD_PRELOAD=${HEDDLE_BUILD_DIR:?}/tests/libstall.so

cat >"$work/job.yaml" <<END
name: places
model: {family: llama, layers: 2, hidden: 64, heads: 4, context: 64}
data: {train: [$work/corpus.txt], val_split: 0.1}
train: {steps: 100000, global_batch: 8, lr: 1e-3, precision: fp32}
validate: {every: 0, batches: 0}
resources: {device_type: cpu, devices: 4}
checkpoint: {every: 0}
restart: {max: 0}
hang: {setup: 60s, step: 10s, validation: 10s, checkpoint: 10s, ending: 10s}
END

alive() { [ -n "$(rank_pid "$1")" ]; }
stall_rank() { kill -USR1 "$(rank_pid "$1")" 2>/dev/null; }
tells_of_a_hang() { events "$1" | grep -q '"attempt_failed"'; }
# Which node has a rank: of two nodes the first has the first half.
node_of() { if [ $nodes = 1 ] || [ "$1" -lt 2 ]; then echo a; else echo b; fi; }
place() { # PHASE RANK LAYOUT [OPTION...]
    local phase=$1 rank=$2 layout=$3 job event supervisor
    shift 3
    job=$(submit --set "parallel=$layout" "$@") || exit
    case $phase in
    setup) must_come $PATIENCE "rank $rank" alive "$rank" ;;
    late) # its supervisor is stopped when it should tell, and goes on after the other one has told
        await_step "$job" 1 1
        stall_rank "$rank" || fail "there is no rank $rank"
        sleep 7
        supervisor=$(processes "heddle-supervisor .*/nodes/$(node_of "$rank")/")
        kill -STOP "$supervisor" || fail "there is no supervisor of node $(node_of "$rank")"
        must_come 20 "what the other node tells" tells_of_a_hang "$job"
        kill -CONT "$supervisor"
        ;;
    connecting) ;;
    ending) await_state "$job" running ;;
    *)
        await_step "$job" 1 1
        sleep "0.$((RANDOM % 8 + 1))" # somewhere in it
        ;;
    esac
    [[ " ending connecting late " == *" $phase "* ]] || stall_rank "$rank" || fail "there is no rank $rank"
    must_come 60 "the end of job $job" state_is "$job" failed
    event=$(events "$job" | grep '"attempt_failed"')
    echo "$event" | grep -qE "attempt 1: hang: rank $rank on $(node_of "$rank"), device [0-9]+: rank $rank gave no sign of life for [0-9]+ s" ||
        fail "rank $rank hangs in $phase ($layout), said was: $event"
    note "$phase, rank $rank, $layout: $(echo "$event" | sed -E 's/.*"message": *"([^"]*)".*/\1/' | cut -c 1-400)"
    places=$((places + 1))
}

start_nodes() {
    start_controller
    if [ $nodes = 1 ]; then
        start_daemon a --devices cpu:4:1
    else
        start_daemon a --devices cpu:2:1
        start_daemon b --devices cpu:2:1
        must_come $PATIENCE "node b" ready b
    fi
    must_come $PATIENCE "node a" ready a
    places=0
}

each_culprit_is_named() {
    local layout rank expected
    start_nodes
    for rank in 0 1 2 3; do
        place setup $rank '{dp: 4}' --set hang.setup=10s
        place training $rank '{dp: 2, tp: 2}'
        place validating $rank '{dp: 4, zero: 3}' --set 'validate={every: 1, batches: 4}'
        place checkpointing $rank '{dp: 4, zero: 1}' --set 'model.hidden=512' --set 'checkpoint={every: 1, keep: 1}'
        mkdir -p "$dir/end"
        touch "$dir/end/$rank"
        place ending $rank '{dp: 4}' --set train.steps=2
        rm "$dir/end/$rank"
    done
    expected=20
    if [ $nodes = 2 ]; then # ranks of one node do not connect by TCP
        mkdir -p "$dir/connect"
        for rank in 0 3; do
            touch "$dir/connect/$rank"
            place connecting $rank '{dp: 4}' --set hang.setup=10s
            rm "$dir/connect/$rank"
        done
        expected=22
    fi
    echo "places: $places"
    [ $places = $expected ] || fail "$places places, not $expected"
}

a_supervisor_that_is_late_names_its_rank() {
    start_nodes
    place late 3 '{dp: 2, tp: 2}'
}

case $1 in
one) nodes=1 ;;
two | late) nodes=2 ;;
*) exit 2 ;;
esac
if [ "$1" = late ]; then
    scenario a_supervisor_that_is_late_names_its_rank
else
    scenario each_culprit_is_named
fi
finish
