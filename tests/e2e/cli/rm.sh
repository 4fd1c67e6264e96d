#!/bin/bash
# heddle rm: an ended job goes for good, with its folder; and what is said of jobs that have ended.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

start_controller
start_node n1 cpu:2
file=$(job_file gone)
job=$(submit "$file")
check it_succeeds heddle wait "$job"
check_status what_has_ended_is_not_queued_again 6 heddle requeue "$job"
check_equal how_and_when_it_ended_is_said 1 "$(grep -cE "job $job succeeded at 20[0-9-]+T[0-9:.]+Z; let it go on with: heddle resume $job" "$work/check.err")"
check_status nor_saved 6 heddle checkpoint save "$job"
check_status a_folder_is_no_job_file 2 heddle submit "$work"
check_equal as_is_said 1 "$(grep -c ' is a folder; give the job file' "$work/check.err")"
echo '{"text": "a"}' >"$work/rows.jsonl"
check_status nor_is_a_file_of_data 2 heddle submit "$work/rows.jsonl"
check_equal which_is_said 1 "$(grep -c 'rows.jsonl is a file of data; give the job file' "$work/check.err")"

user=$(submit "$file" --set train.init_from="$work/jobs/$job/attempt-1/checkpoints/step-00000030" --set train.steps=100000 --set checkpoint.every=0 --set validate.every=0)
await 30 steps_at_least "$user" 1
check_status what_runs_is_not_removed 6 heddle rm "$user" --yes
check_status nor_what_it_began_with 6 heddle rm "$job" --yes
check_equal and_it_is_named 1 "$(grep -c "job $user is running and its job file names files in $work/jobs/$job/" "$work/check.err")"
heddle cancel "$user" >/dev/null
check_status it_is_cancelled 1 heddle wait "$user"
check_equal the_last_line_says_how_it_goes_on "  heddle resume $user" "$(tail -n 1 "$work/check.err")"
check_status a_mistake_in_a_resume_is_where_it_was_made 2 heddle resume "$user" --set train.lr.peak=1e-9 --set train.lr.min=1e-3
check_equal in_the_option 1 "$(grep -c '^heddle: --set train.lr.min=1e-3: train.lr.min: ' "$work/check.err")"

check_status nothing_goes_unasked 2 heddle rm "$job"
check_equal what_would_go_is_said 1 "$(grep -c "job $job gone (succeeded): 3 checkpoints, .* and all else in $work/jobs/$job" "$work/check.err")"
check_equal and_who_began_with_it 1 "$(grep -c "keep their own files: $user;" "$work/check.err")"
check it_goes heddle rm "$job" --yes
gone() { [ ! -e "$work/jobs/$job" ]; }
check with_its_folder await 10 gone
check_equal from_the_list "$user" "$(heddle jobs | awk 'NR > 1 { print $1 }')"
check_status for_good 4 heddle resume "$job"
check_equal which_an_event_tells 1 "$(heddle events | grep -c "job_removed .*job $job (gone) was removed by ")"

# the node is away, and the controller is started anew
kill "${node_pids[n1]}"; wait "${node_pids[n1]}"
check one_whose_node_is_away_goes heddle rm "$user" --yes
check_equal its_files_when_that_is_back 1 "$(grep -c 'its files on node n1 go when that node is connected again' "$work/check.out")"
kill "$controller_pid"; wait "$controller_pid"
start_controller
check_equal no_job_is_left 1 "$(heddle jobs | wc -l)"
start_node n1 cpu:2
check_equal its_number_is_not_used_again "$((user + 1))" "$(submit "$file")"
job=$user
check its_folder_goes await 10 gone
finish
