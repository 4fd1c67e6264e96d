#!/bin/bash
# GPUs fail and come back while jobs run: numbers stay, running ranks stay, and nobody gets a broken
# one. What the driver says stands in $work/driver; heddle-worker is a stand-in
# (tests/unit/daemon/fake_worker.c), whose ranks go on until they are stopped.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

export FAKE_GPUS=$work/driver FAKE_0=wait FAKE_1=wait FAKE_2=wait
# driver_says N[!]...: these GPUs, GPU-N each; a ! is one that is lost
driver_says() {
    local word comma=
    {
        printf '{"driver":"580.1","driver_cuda":13000,"nvml_problem":"","plugin_problem":"",'
        printf '"log_problem":"","plugin_abi":3,"gpus":['
        for word; do
            printf '%s{"name":"Stand-in H100","uuid":"GPU-%s","bus":"0000:0%s:00.0","memory_bytes":85899345920,"peers":[],"problem":"%s"}' \
                "$comma" "${word%!}" "${word%!}" "$([ "$word" = "${word%!}" ] || printf 'it is lost')"
            comma=,
        done
        printf ']}\n'
    } >"$work/driver.new"
    mv "$work/driver.new" "$work/driver"
}
# Ranks outlive this one. Its log says why, where it does not come up.
start_heddled() {
    "$HEDDLE_BIN/heddled" --state-dir "$work/gpu" --node-name gpu --devices cuda \
        --worker "$HEDDLE_BUILD_DIR/tests/fake_worker" >>"$work/gpu.log" 2>&1 &
    node_pids[gpu]=$!
}
# offered: "0 GPU-0, 1 GPU-1!" as people can see it; one with a problem has a mark
offered() {
    heddle nodes -o jsonl | grep -oE '"index":[0-9]+,"kind":"[a-z]+","name":"[^"]*","uuid":"[^"]*"|"problem":[^}]*' |
        sed -E 's/"index":([0-9]+).*"uuid":"([^"]*)"/\1 \2/; s/"problem":null/./; s/"problem":.*/!/' |
        paste -sd' ' - | sed 's/ \.//g; s/ !/!/g; s/ \([0-9]\)/, \1/g'
}
is_offered() { [ "$(offered)" = "$1" ]; }
# devices_of JOB: those of its newest attempt, in the order of ranks
devices_of() { heddle show "$1" -o json | grep -oE '"rank":[0-9]+,"node":"gpu","device":[0-9]+' | sed 's/.*://' | paste -sd' ' -; }
gpu_job() { submit "$file" --set resources.device=cuda --set train.global_batch=12 --set resources.devices="$@"; }

file=$(job_file long)
driver_says 0 1 2 3
start_controller
start_heddled
check four_gpus_are_offered await 60 is_offered "0 GPU-0, 1 GPU-1, 2 GPU-2, 3 GPU-3"
one=$(gpu_job 1)
three=$(gpu_job 3)
check they_have_jobs await 60 eval 'state_is $one running && state_is $three running'
heddle cancel "$one" >/dev/null
check one_of_them_is_free await 60 state_is "$one" cancelled

# the first one falls off the bus, and heddled is started again: the driver moves the others up
kill -KILL "${node_pids[gpu]}"
wait "${node_pids[gpu]}" 2>/dev/null
driver_says 1 2 3
start_heddled
check numbers_stay_with_gpus await 60 is_offered "1 GPU-1, 2 GPU-2, 3 GPU-3, 0 GPU-0!"
check the_node_takes_part_again await 60 node_is gpu ready
check_equal the_job_goes_on_where_it_was "running 1 2 3" "$(state_of "$three") $(devices_of "$three")"
check_equal in_its_first_attempt 1 "$(heddle show "$three" -o json | member attempt)"
check people_see_why_one_is_out eval 'heddle nodes | grep -q "device 0: it is not there any more"'
next=$(gpu_job 1)
check_equal nobody_gets_it "needs 1 cuda device; gpu has 0 of 3 free (1 cannot be used) (kept for job $next)" \
    "$(heddle show "$next" -o json | sed -nE 's/.*"reason":"([^"]*)".*/\1/p')"
heddle cancel "$three" >/dev/null
check the_next_gets_another await 60 state_is "$next" running
check_equal namely_the_first_that_works 1 "$(devices_of "$next")"
heddle cancel "$next" >/dev/null
check all_is_over await 60 state_is "$next" cancelled
finish
