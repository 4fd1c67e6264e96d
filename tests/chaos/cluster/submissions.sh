#!/bin/bash
# submissions.sh COUNT: clients submit COUNT jobs while the controller is killed again and again. Every
# acknowledged job is there afterwards, and every one once.
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

CLIENTS=4

# A client repeats a submission under its request id until it is acknowledged: "REQUEST JOB NAME".
client() { # NUMBER COUNT
    local i id job status
    for ((i = 1; i <= $2; i++)); do
        printf -v id 'request-of-client-%d-%05d' "$1" "$i"
        until job=$("$HEDDLE_BIN/heddle" submit "$work/job.yaml" -q --request-id "$id" \
            --set "name=job-$1-$i" 2>>"$dir/client-$1.log"); do
            status=$?
            case $status in 3 | 6) ;; *) return 1 ;; esac # not reachable; lost on the way
            printf 'again %s after %d\n' "$id" $status >>"$dir/client-$1.log"
        done
        printf '%s %s job-%d-%d\n' "$id" "$job" "$1" "$i" >>"$dir/acknowledged-$1"
    done
}

every_acknowledged_job_is_there_once() {
    local clients=() kills=0 pid id job name again
    start_controller # and no node: the jobs stay queued
    for ((i = 1; i <= CLIENTS; i++)); do
        client "$i" $((total / CLIENTS)) &
        clients+=($!)
    done
    RANDOM=1
    while kill -0 "${clients[@]}" 2>/dev/null; do
        sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
        kill_controller
        kills=$((kills + 1))
        start_controller
    done
    for pid in "${clients[@]}"; do wait "$pid" || fail "a client got a refusal: $(tail -n 3 "$dir"/client-*.log)"; done
    note "the controller was killed $kills times"
    [ $kills -ge 3 ] || fail "the controller was killed only $kills times"

    cat "$dir"/acknowledged-* | cut -d' ' -f 2,3 | sort >"$dir/acknowledged"
    "$HEDDLE_BIN/heddle" jobs -n $((2 * total)) -o jsonl |
        sed -nE 's/^\{"type": *"job", *"job": *([0-9]+), *"name": *"([^"]*)".*"state": *"queued".*/\1 \2/p' | sort >"$dir/there"
    [ "$(wc -l <"$dir/acknowledged")" = "$total" ] || fail "$(wc -l <"$dir/acknowledged") of $total were acknowledged"
    cmp "$dir/acknowledged" "$dir/there" >&2 ||
        fail "acknowledged and listed differ (< acknowledged, > listed): $(diff "$dir/acknowledged" "$dir/there" | head -n 10 | tr '\n' ' ')"

    # Asked once more, each client's last request returns its job and makes none.
    for ((i = 1; i <= CLIENTS; i++)); do
        read -r id job name < <(tail -n 1 "$dir/acknowledged-$i")
        again=$(submit --request-id "$id" --set "name=$name") || exit
        [ "$again" = "$job" ] || fail "request $id returned job $again, at first job $job"
    done
    [ "$("$HEDDLE_BIN/heddle" jobs -n $((2 * total)) -o jsonl | wc -l)" = "$total" ] || fail "a repeated request made a job"
}

total=$1
scenario every_acknowledged_job_is_there_once
finish
