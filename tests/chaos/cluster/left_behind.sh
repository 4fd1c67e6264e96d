#!/bin/bash
# left_behind.sh: who asked for nothing to stay finds nothing, however it ended.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

an_ephemeral_heddled_takes_its_ranks_along() { # killed, it has no say in it
    local job
    start_controller
    start_daemon a --ephemeral
    job=$(submit --set train.steps=100000) || exit
    await_step "$job" 1 5
    [ "$(processes 'heddle-(worker|supervisor)' | wc -l)" = 3 ] || fail "a supervisor and two ranks are not three"
    kill_daemon a
    must_come 10 "the end of supervisor and ranks" none_of 'heddle-(worker|supervisor)'
    start_daemon a --ephemeral
    await_step "$job" 2 $((EVERY / 2))
    end_process TERM "${daemon[a]}"
    must_come 10 "the end of supervisor and ranks" none_of 'heddle-(worker|supervisor)'
    end_process TERM "$controller"
    none_of "$programs" || fail "something is left: $(processes "$programs")"
}

trains() { find "$dir/runs" -name rank-0.log -exec grep -lE ': step [0-9]+: loss' {} + 2>/dev/null | grep -q .; }
heddle_local_killed_leaves_no_process() { # in the middle, and while it begins
    local pid
    mkdir "$dir/tmp"
    TMPDIR=$dir/tmp "$HEDDLE_BIN/heddle" local "$work/job.yaml" --set train.steps=100000 \
        --state-dir "$dir/runs" >"$dir/local.log" 2>&1 &
    pid=$!
    must_come $PATIENCE "the first step" trains
    [ "$(processes "$programs" | wc -l)" = 6 ] || fail "command, controller, heddled, supervisor and two ranks are not six"
    end_process KILL $pid
    must_come 10 "the end of all processes" none_of "$programs"
    for pause in 0.005 0.01 0.015 0.02 0.03 0.04 0.05 0.06 0.08 0.1 0.12 0.15 0.2 0.3; do
        TMPDIR=$dir/tmp "$HEDDLE_BIN/heddle" local "$work/job.yaml" --state-dir "$dir/runs" >>"$dir/local.log" 2>&1 &
        pid=$!
        sleep $pause
        end_process KILL $pid
        must_come 10 "the end of all processes, killed after $pause s" none_of "$programs"
    done
}

heddle_local_killed_takes_a_slow_starter_along() { # one that could not look who its parent is yet
    local pid
    mkdir "$dir/tmp" "$dir/bin"
    cp "$HEDDLE_BIN/heddle" "$dir/bin" # which looks for the others beside itself
    cat >"$dir/bin/heddle-controller" <<EOF
#!/bin/sh
echo \$\$ >"$dir/starter"
sleep 1
exec "$HEDDLE_BIN/heddle-controller" "\$@"
EOF
    chmod +x "$dir/bin/heddle-controller"
    TMPDIR=$dir/tmp "$dir/bin/heddle" local "$work/job.yaml" --state-dir "$dir/runs" >"$dir/local.log" 2>&1 &
    pid=$!
    must_come $PATIENCE "the start of a controller" test -s "$dir/starter"
    end_process KILL $pid
    must_come 10 "the end of the controller" gone "$(cat "$dir/starter")"
    must_come 10 "the end of its sleep" none_of '^sleep '
}

scenario an_ephemeral_heddled_takes_its_ranks_along
scenario heddle_local_killed_leaves_no_process
scenario heddle_local_killed_takes_a_slow_starter_along
finish
