#!/bin/bash
# Programs started in poor surroundings: few descriptors, a small stack, closed standard
# streams, an unusable HOME. Each does its work, or ends with one message; none crashes or hangs.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

# told NAME COMMAND...: it ends by itself, by no signal, and with a message if it fails
told() {
    local name=$1 status
    shift
    timeout -k 5 30 "$@" >"$work/told.out" 2>"$work/told.err" </dev/null
    status=$?
    if [ $status -ge 124 ]; then
        not_ok "$name" "'$*' ended with $status: $(tail -c 300 "$work/told.err" | tr '\n' ' ')"
    elif [ $status != 0 ] && ! [ -s "$work/told.err" ]; then
        not_ok "$name" "'$*' failed with $status and said nothing"
    else
        ok "$name"
    fi
}

start_controller
for files in 4 8 12 16 24; do
    told "heddle_with_${files}_descriptors" bash -c "ulimit -n $files; exec '$HEDDLE_BIN/heddle' jobs"
    told "a_controller_with_${files}_descriptors" bash -c "ulimit -n $files
        exec '$HEDDLE_BIN/heddle-controller' --state-dir '$work/poor' --listen unix:$work/poor.sock --jobs-dir '$work/poor-jobs'"
    told "a_daemon_with_${files}_descriptors" bash -c "ulimit -n $files
        exec '$HEDDLE_BIN/heddled' --controller '$HEDDLE_CONTROLLER' --state-dir '$work/poor-node'"
    grep -q 'open files are needed' "$work/told.err" || not_ok "the_limit_of_${files}_descriptors_is_named" "$(cat "$work/told.err")"
done
for stack in 64 512; do
    told "heddle_with_a_stack_of_${stack}_KiB" bash -c "ulimit -s $stack; exec '$HEDDLE_BIN/heddle' jobs"
done
for home in /dev/null /proc/1/nowhere; do
    check "heddle_with_HOME_$(basename "$home")" env -u HEDDLE_CONFIG HOME="$home" "$HEDDLE_BIN/heddle" jobs
done

# A daemon without standard streams: its first sockets are not the ranks' output.
"$HEDDLE_BIN/heddled" --controller "$HEDDLE_CONTROLLER" --node-name closed --devices cpu:2 --state-dir "$work/closed" \
    --ephemeral --probe never <&- >&- 2>&- &
node_pids[closed]=$!
await 20 node_is closed ready || { not_ok a_daemon_without_standard_streams_joins "$(heddle nodes)"; finish; }
job=$(submit "$(job_file tiny)")
check a_daemon_without_standard_streams_trains heddle wait "$job"
check its_log_is_where_it_belongs grep -q 'step' "$work/jobs/$job/attempt-1/logs/rank-0.log"
finish
