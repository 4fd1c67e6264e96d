#!/bin/bash
# Two daemons of one device each, and more jobs than fit: one gives way to a job of higher priority, goes on, leaves a
# node that is drained, and has the weights of a run that nobody disturbed. Queues, held jobs and reasons.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

start_controller
start_node n1 cpu:1:1
start_node n2 cpu:1:1
file=$(job_file shared)
slow=(--set resources.devices=1 --set validate.every=0 --set checkpoint.every=1000 --set train.global_batch=4 --set train.steps=120)
tensors() { cat "$(heddle checkpoint ls "$1" | tail -n 1 | sed 's/.* //')"/rank-*.safetensors | cksum; }
says() { heddle events "$1" | grep -cE "$2"; }
has_said() { [ "$(says "$@")" -ge 1 ]; }

# ---- priorities ----
straight=$(submit "$file" "${slow[@]}" --set priority=9)
low=$(submit "$file" "${slow[@]}" --set restart.max=0)
await 60 steps_at_least "$low" 2 || not_ok the_low_one_trains "$(heddle show "$low")"
high=$(submit "$file" --set resources.devices=1 --set priority=5)
check the_high_one_succeeds timeout 100 "$HEDDLE_BIN/heddle" wait "$high"
check_equal for_which_the_low_one_gave_way 1 "$(says "$low" "preempted .*is preempted by job $high, whose priority is 5 \(this job.s is 0\): it writes a checkpoint")"
check_equal and_no_other 0 "$(says "$straight" preempted)"
await 60 has_said "$low" "attempt 2 on" || not_ok it_goes_on "$(heddle show "$low")"
check_equal from_the_checkpoint_that_it_wrote 1 "$(says "$low" 'attempt 2 on n[12]: .* from step [1-9][0-9]* of attempt 1')"

check the_undisturbed_one_succeeds timeout 100 "$HEDDLE_BIN/heddle" wait "$straight"
check the_low_one_succeeds timeout 100 "$HEDDLE_BIN/heddle" wait "$low"
check_equal with_the_weights_of_the_undisturbed_one "$(tensors "$straight")" "$(tensors "$low")"

# ---- a node that is drained ----
mover=$(submit "$file" "${slow[@]}" --set train.steps=100000)
await 60 steps_at_least "$mover" 2 || not_ok the_job_trains "$(heddle show "$mover")"
check_status a_deadline_is_a_duration 2 heddle drain n1 --deadline soon
check_equal it_is_on_the_first_node 1 "$(says "$mover" 'attempt 1 on n1')"
check the_node_is_drained heddle drain n1 --deadline 1h --reason disk
check_equal with_its_deadline 1 "$(grep -c '^node n1 draining; its jobs leave it by 20' "$work/check.out")"
check_equal who_asked_is_told 1 "$(heddle events | grep -cE "drain .*n1 was drained by .*: disk; its jobs leave it by 20")"
check the_job_moves_to_the_other await 60 has_said "$mover" 'attempt 2 on n2: .* from step [1-9][0-9]* of attempt 1'
heddle cancel "$mover" --now >/dev/null
heddle undrain n1 >/dev/null
heddle wait "$mover" >/dev/null 2>&1

# ---- queues, held jobs, reasons ----
check a_queue_is_made heddle queue set small --devices-max 1 --weight 2
check_equal and_listed 'small 2 0 1 - 0' "$(heddle queue ls | awk '$1 == "small" { print $1, $2, $3, $4, $5, $6 }')"
check_status what_never_fits_it_is_refused 2 heddle submit "$file" --set queue=small
check_status so_is_what_names_no_queue 4 heddle submit "$file" --set queue=smal
held=$(submit "$file" "${slow[@]}" --set queue=small --set train.steps=100000)
await 30 steps_at_least "$held" 1
check_status a_queue_with_a_job_stays 6 heddle queue rm small
waits=$(submit "$file" --set resources.devices=1 --set queue=small)
check_equal a_job_beyond_the_limit_says_so 1 "$(heddle explain "$waits" | grep -c 'queue small holds 1 of the 1 devices that it may hold')"
check_equal in_json_by_a_word 1 "$(heddle explain "$waits" -o jsonl | grep -c '"blockers":\["quota"\]')"
check it_is_held heddle hold "$waits"
after=$(submit "$file" --set resources.devices=1 --set after="$waits")
check_equal a_job_after_it_waits_for_it 1 "$(heddle explain "$after" | grep -c "waits for job $waits to succeed")"
heddle cancel "$held" --now >/dev/null
heddle wait "$held" >/dev/null 2>&1
sleep 1
check_equal several_are_held_in_one_list '1 2' "$(heddle hold "$waits" "$after" -o json | awk '/"kind":"JobList"/ { lists++ } { jobs += gsub(/"held":true/, "") } END { print lists, jobs }')"
heddle release "$after" >/dev/null
check_equal a_held_job_does_not_start queued "$(state_of "$waits")"
check_equal a_queue_is_closed 'small closed' "$(heddle queue set small --closed | awk '$1 == "small" { print $1, $4 }')"
check it_is_released heddle release "$waits"
check_equal a_closed_queue_starts_nothing 1 "$(heddle explain "$waits" | grep -c 'queue small is closed')"
check_equal by_a_word_of_its_own 1 "$(heddle explain "$waits" -o jsonl | grep -c '"blockers":\["closed"\]')"
check_equal and_so_would_another 1 "$(heddle submit "$file" --set resources.devices=1 --set queue=small --dry-run | grep -c 'wait: queue small is closed')"
check_equal and_says_so '"closed":true' "$(heddle queue ls -o jsonl | grep '"small"' | grep -o '"closed":[a-z]*')"
check it_is_opened heddle queue set small --open
check both_succeed timeout 100 "$HEDDLE_BIN/heddle" wait "$after"
check_equal one_after_the_other succeeded "$(state_of "$waits")"
check_equal an_empty_queue_goes '{"type":"removed_queue","name":"small"}' "$(heddle queue rm small -o jsonl)"
check_equal and_is_not_listed default "$(heddle queue ls -o jsonl | member name)"
check_status nor_taken 4 heddle submit "$file" --set queue=small

limited=$(submit "$file" "${slow[@]}" --set train.steps=100000 --set time_limit=2s)
check_status a_job_ends_at_its_time_limit 1 timeout 100 "$HEDDLE_BIN/heddle" wait "$limited"
check_equal which_is_its_reason 1 "$(heddle show "$limited" | grep -c 'time_limit: it has run for [0-9.]*s of 2.0s')"
check_equal with_a_checkpoint 1 "$(heddle checkpoint ls "$limited" -o jsonl | grep -c '"step"')"
finish
