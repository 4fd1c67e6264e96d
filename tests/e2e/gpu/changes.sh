#!/bin/bash
# GPUs fail and come back while jobs run: numbers stay, running ranks stay, and no job gets a broken
# GPU. $work/driver has what the driver says; heddle-worker is a stand-in
# (tests/unit/daemon/fake_worker.c), whose ranks go on until they are stopped.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

export FAKE_GPUS=$work/driver FAKE_BROKEN=$work/broken FAKE_0=wait FAKE_1=wait FAKE_2=wait
# driver_says N[!]...: these GPUs, GPU-N each; a ! is a broken one
driver_says() {
    local word comma=
    {
        printf '{"problem":"","log_problem":"","libraries":"","gpus":['
        for word; do
            printf '%s{"uuid":"GPU-%s","name":"Stand-in H100","bus":"","problem":"%s","fault":"","memory_bytes":85899345920,"fault_at":0}' \
                "$comma" "${word%!}" "$([ "$word" = "${word%!}" ] || printf 'it is broken')"
            comma=,
        done
        printf ']}\n'
    } >"$work/driver.new"
    mv "$work/driver.new" "$work/driver"
}
# Ranks outlive this heddled. gpu.log says why, if it does not come up.
start_heddled() {
    "$HEDDLE_BIN/heddled" --state-dir "$work/gpu" --node-name gpu --devices cuda \
        --worker "$HEDDLE_BUILD_DIR/tests/fake_worker" >>"$work/gpu.log" 2>&1 &
    node_pids[gpu]=$!
}
# offered: "0 GPU-0, 1 GPU-1!" as people can see it; ! is a GPU with a problem
offered() {
    heddle nodes -o jsonl | grep -oE '"index":[0-9]+,"kind":"[a-z]+","name":"[^"]*","uuid":"[^"]*"|"problem":[^}]*' |
        sed -E 's/"index":([0-9]+).*"uuid":"([^"]*)"/\1 \2/; s/"problem":null/./; s/"problem":.*/!/' |
        paste -sd' ' - | sed 's/ \.//g; s/ !/!/g; s/ \([0-9]\)/, \1/g'
}
is_offered() { [ "$(offered)" = "$1" ]; }
# devices_of JOB: those of its newest attempt, in the order of ranks
devices_of() {
    heddle show "$1" -o json | grep -oE '"rank":[0-9]+,"node":"gpu","device":[0-9]+' |
        awk -F'[:,]' '$2 == 0 { all = $6; next } { all = all " " $6 } END { print all }'
}
gpu_job() { submit "$file" --set resources.device_type=cuda --set train.global_batch=12 --set resources.devices="$@"; }

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
"$HEDDLE_BUILD_DIR/tests/deploy_notify" "$work/notify" >"$work/told" &
notify=$!
await 10 test -S "$work/notify"
NOTIFY_SOCKET=$work/notify start_heddled
check numbers_stay_with_gpus await 60 is_offered "0 GPU-0!, 1 GPU-1, 2 GPU-2, 3 GPU-3"
check the_node_takes_part_again await 60 node_is gpu ready
check_equal the_job_goes_on_where_it_was "running 1 2 3" "$(state_of "$three") $(devices_of "$three")"
check_equal in_its_first_attempt 1 "$(heddle show "$three" -o json | member attempt)"
check people_see_why_one_is_out eval 'heddle nodes | grep -q "device 0: CUDA no longer lists it"'
next=$(gpu_job 1)
check_equal no_job_gets_it "needs 1 cuda device; gpu has 0 of 3 free (1 cannot be used: CUDA no longer lists it; see nvidia-smi and dmesg) (reserved for it)" \
    "$(heddle show "$next" -o json | sed -nE 's/.*"reason":"([^"]*)".*/\1/p')"
heddle cancel "$three" >/dev/null
check the_next_gets_another await 60 state_is "$next" running
check_equal namely_the_first_that_works 1 "$(devices_of "$next")"
heddle cancel "$next" >/dev/null
check all_is_over await 60 state_is "$next" cancelled

# it is back, and somebody says so; systemd hears of the reload while the driver thinks, and of its end
mkfifo "$work/driver.pipe" && mv "$work/driver.pipe" "$work/driver"
kill -HUP "${node_pids[gpu]}"
exec 3>"$work/driver" # once the check reads it
check systemd_is_told_of_the_reload await 10 grep -qx RELOADING=1 "$work/told"
sleep 0.5 # more than two turns of heddled
check_equal a_reload_ends_with_the_check 1 "$(grep -cx READY=1 "$work/told")"
driver_says 0 1 2 3
cat "$work/driver" >&3
exec 3>&-
check and_of_its_end await 10 eval '[ "$(grep -cx READY=1 "$work/told")" = 2 ]'
check it_is_offered_again await 60 is_offered "0 GPU-0, 1 GPU-1, 2 GPU-2, 3 GPU-3"
jobs=()
for gpu in 0 1 2 3; do
    jobs+=("$(gpu_job 1)")
    await 60 state_is "${jobs[gpu]}" running
done
queued=$(gpu_job 1)

# GPU 1 breaks under its job: the next attempt gets another, and so does the one that waits
driver_says 0 1! 2 3
mkdir "$work/broken" && touch "$work/broken/GPU-1"
check the_job_on_it_is_queued_again await 60 state_is "${jobs[1]}" queued
check the_gpu_is_withdrawn is_offered "0 GPU-0, 1 GPU-1!, 2 GPU-2, 3 GPU-3"
check_equal the_others_run_on "running running running" "$(state_of "${jobs[0]}") $(state_of "${jobs[2]}") $(state_of "${jobs[3]}")"
heddle cancel "${jobs[2]}" >/dev/null
check it_goes_on_elsewhere await 60 state_is "${jobs[1]}" running
heddle cancel "${jobs[3]}" >/dev/null
check the_one_that_waits_starts await 60 state_is "$queued" running
check_equal one_attempt_has_failed "2 1" "$(heddle show "${jobs[1]}" -o json | member attempt) $(heddle show "$queued" -o json | member attempt)"
check_equal they_have_what_was_given_up "2 3" "$(devices_of "${jobs[1]}") $(devices_of "$queued")"
check_equal a_job_on_another_gpu_runs_on "running 1" "$(state_of "${jobs[0]}") $(heddle show "${jobs[0]}" -o json | member attempt)"
last=$(gpu_job 1)

# mended
rm -r "$work/broken"
driver_says 0 1 2 3
kill -HUP "${node_pids[gpu]}"
check a_mended_gpu_has_work_again await 60 state_is "$last" running
check_equal the_one_that_was_broken 1 "$(devices_of "$last")"
for job in "${jobs[0]}" "${jobs[1]}" "$queued" "$last"; do
    heddle cancel "$job" >/dev/null
    check "job_${job}_can_be_cancelled" await 60 state_is "$job" cancelled
done
kill $notify
finish
