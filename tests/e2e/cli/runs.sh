#!/bin/bash
# Runs of heddle local go on: after Ctrl-C, after kill -9 of all their processes, after their end. The last
# line of each says by which command, and that command works as it is. Old runs are cleaned away.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
job_file onward >/dev/null
mkdir "$work/a b" && cd "$work/a b" || exit 1 # a path that a shell would take apart
cp "$work/corpus.txt" "$work/onward.yaml" .
file=onward.yaml
slow=(--set validate.every=0 --set checkpoint.every=10 --set train.lr.decay=constant --set train.global_batch=4)
tensors() { cat "heddle-runs/$1"/1/attempt-*/checkpoints/step-*"$2"/rank-*.safetensors | cksum; }
# go_on STDERR: what the last line of it says
go_on() { (PATH=$HEDDLE_BIN:$PATH && eval "$(tail -n 1 "$1")") >"$work/check.out" 2>"$work/check.err"; }
# begun FILE STEPS: the history has so many steps
begun() { [ "$(grep -cs '^{"type":"step"' "heddle-runs/$1/history.jsonl")" -ge "$2" ]; }
begin() { # NAME: a run of 80 steps, interrupted behind its first checkpoint
    "$HEDDLE_BIN/heddle" local "$file" "${slow[@]}" --set train.steps=80 --dir "$1" -o jsonl >"$work/$1.out" 2>"$work/$1.err" &
    runner=$!
    await 30 saved "$1"
}
saved() { ls -d "heddle-runs/$1/1/attempt-1/checkpoints/step-00000010"; }

# no room for a run's marker: nothing is left of it
said=$(trap '' XFSZ; ulimit -f 0; "$HEDDLE_BIN/heddle" local "$file" --dir full 2>&1)
check_equal a_disk_without_room_is_told_with_its_file 1 "$(grep -c 'a b/heddle-runs/full/.heddle-run: cannot write' <<<"$said")"
check_equal and_nothing_is_left_there '' "$(ls -A heddle-runs)"
mkdir heddle-runs/straight && : >heddle-runs/straight/.heddle-run # killed before the marker had content
check_status where_no_run_began_none_goes_on 2 heddle local --resume heddle-runs/straight
check_equal which_is_said 1 "$(grep -c 'no run has begun in .*/straight' "$work/check.err")"
check a_run_is_named heddle local "../a b/$file" "${slow[@]}" --set train.steps=80 --dir straight
check_equal latest_leads_to_it straight "$(readlink heddle-runs/latest)"
check_status its_name_is_taken 6 heddle local "$file" --dir straight
check_status all_its_steps_are_done 2 heddle local --resume heddle-runs/latest
check_equal so_more_are_to_be_asked_for 1 "$(grep -c 'ask for more: --set train.steps=N' "$work/check.err")"

# interrupted before its controller answers, a run leaves nothing, and the link as it was
mkdir "$work/slow" && cp "$HEDDLE_BIN/heddle" "$work/slow/"
printf '#!/bin/sh\n: >"%s/started"\nexec sleep 60\n' "$work" >"$work/slow/heddle-controller"
chmod +x "$work/slow/heddle-controller"
for signal in INT TERM; do
    rm -f "$work/started"
    "$work/slow/heddle" local "$file" 2>"$work/never.err" &
    runner=$!
    await 30 test -e "$work/started"
    kill -$signal $runner
    wait $runner
    status=$?
    check_equal "an_early_${signal}_has_its_status" "$([ $signal = INT ] && echo 130 || echo 143)" $status
    check_equal "and_a_line_$signal" 1 "$(grep -c 'before the job was submitted' "$work/never.err")"
    check_equal "and_leaves_nothing_$signal" "latest straight straight" "$(cd heddle-runs && echo *) $(readlink heddle-runs/latest)"
done
check_equal data_that_was_not_looked_at_is_told 1 "$(PATH=/usr/bin:/bin "$work/slow/heddle" validate "$file" 2>/dev/null | grep -c 'is valid, but its data was not looked at')"

begin stopped
kill -INT $runner
wait $runner
check_equal ctrl_c_is_130 130 $?
check the_last_line_says_how_it_goes_on go_on "$work/stopped.err"
check_equal with_the_weights_of_the_undisturbed_run "$(tensors straight 80)" "$(tensors stopped 80)"
check_equal its_history_is_one "$(seq 80 | tr '\n' ' ')" \
    "$(sed -nE 's/^\{"type":"step".*"step":([0-9]+),"loss".*/\1/p' heddle-runs/stopped/history.jsonl | tr '\n' ' ')"
check_equal and_latest_is_it stopped "$(readlink heddle-runs/latest)"

begin killed
check_equal a_run_is_asked_while_it_is_under_way running "$(state_of heddle-runs/killed)"
check_status what_is_in_use_does_not_go_on 6 heddle local --resume heddle-runs/killed
check_equal and_is_not_cleaned_away 1 "$(heddle local --clean --keep 0 -o jsonl 2>/dev/null | grep -c '/killed","what":"in use"')"
kill -KILL $(below $runner) $runner
wait $runner 2>/dev/null
check_equal what_was_killed_is_told failed "$(state_of heddle-runs/killed/1)"
check_equal with_the_logs_of_its_ranks 1 "$(heddle logs heddle-runs/killed | grep -c 'step 10: loss')"
check by_several_at_a_time flock -s heddle-runs/killed/.heddle-run "$HEDDLE_BIN/heddle" show heddle-runs/killed
check_equal and_its_events 1 "$(heddle events heddle-runs/killed -o jsonl | grep -c '"kind":"starting"')"
check_status watching_it_tells_its_end 1 heddle watch heddle-runs/killed
check_equal and_how_it_goes_on "  heddle local --resume heddle-runs/killed" "$(tail -n 1 "$work/check.err")"
check a_run_that_was_killed_goes_on_by_its_job_file heddle local --resume "$file"
check_equal with_the_same_weights "$(tensors straight 80)" "$(tensors killed 80)"
check_equal from_a_checkpoint_that_it_had_written 1 "$(grep -c 'resumed from step [1-9]' "$work/check.err")"

check_status what_decides_the_samples_cannot_change 2 heddle local --resume heddle-runs/killed --set train.seed=2
check_status a_mistake_is_where_it_was_made 2 heddle local --resume heddle-runs/killed --set train.steps=0
check_equal in_the_option 1 "$(grep -c '^heddle: --set train.steps=0: ' "$work/check.err")"
heddle local --resume heddle-runs/killed --set train.steps=90 >/dev/null 2>"$work/more.err"
check_equal a_finished_run_goes_on_with_more_steps 0 $?
check_equal to_the_last_of_them 1 "$(grep -c '"step":90,' heddle-runs/killed/history.jsonl | sed 's/[1-9].*/1/')"

# records without their job's folder, and the folder without its records
mv heddle-runs/killed/1 heddle-runs/killed/kept
check_status checkpoints_that_are_gone_are_missed 4 heddle local --resume heddle-runs/killed --set train.steps=95
check_equal before_anything_runs 1 "$(grep -c "the folder of its job, .*/killed/1, is gone, with its checkpoints" "$work/check.err")"
rm -rf heddle-runs/killed/1 && mv heddle-runs/killed/kept heddle-runs/killed/1
mv heddle-runs/killed/state heddle-runs/killed/kept
check_status records_that_are_gone_are_missed 4 heddle local --resume heddle-runs/killed --set train.steps=95
check_equal and_where_the_checkpoints_are_is_said 1 "$(grep -c "are gone or empty. Its checkpoints are in .*/killed/1/attempt-\*/checkpoints: " "$work/check.err")"
rm -rf heddle-runs/killed/state && mv heddle-runs/killed/kept heddle-runs/killed/state

# what to send with a question, without a controller
check a_bundle_of_a_run_is_made heddle debug bundle heddle-runs/killed --out "$work/run.tar"
check_equal with_its_job_and_no_cluster \
    "config.txt run-killed/checkpoints.json run-killed/events.jsonl run-killed/logs.txt run-killed/show.json version.txt " \
    "$(tar -tf "$work/run.tar" | sed 's|^heddle-debug/||' | sort | tr '\n' ' ')"

mkdir elsewhere && cp -a heddle-runs/killed elsewhere/killed
check a_bundle_of_two_runs_of_one_name_is_made heddle debug bundle heddle-runs/killed elsewhere/killed --out "$work/runs.tar"
check_equal with_a_folder_for_each "run-killed run-killed-2 " \
    "$(tar -tf "$work/runs.tar" | sed -n 's|^heddle-debug/\(run-[^/]*\)/show.json|\1|p' | sort | tr '\n' ' ')"
rm -r elsewhere

# a folder that was moved is named by its records as it was
mv heddle-runs/killed heddle-runs/moved
check_status a_moved_run_is_told 6 heddle local --resume heddle-runs/moved --set train.steps=95
eval "$(sed -nE 's/.*or link it: //p' "$work/check.err")"
check linked_as_is_said_it_goes_on heddle local --resume heddle-runs/moved --set train.steps=95
rm heddle-runs/killed && mv heddle-runs/moved heddle-runs/killed

# a run that diverges goes on with another learning rate
check_status a_run_diverges 1 heddle local "$file" --set train.steps=40 --set train.lr=1000 --set train.clip=0 --set checkpoint.every=1 --dir hot
cp "$work/check.err" "$work/hot.err"
check_equal its_last_line_lowers_the_rate 1 "$(tail -n 1 "$work/hot.err" | grep -c -- '--set train.lr.peak=100')"
go_on "$work/hot.err"
check_equal which_is_tried 1 "$(grep -c '"resumed by\|"kind":"resumed"' heddle-runs/hot/history.jsonl)"

: >heddle-runs/stopped/state/state.db
check_status without_its_records_no_run_goes_on 4 heddle local --resume heddle-runs/stopped
check_equal but_its_checkpoints_are_named 1 "$(grep -c 'checkpoints are in .*/stopped/1/attempt' "$work/check.err")"

mkdir heddle-runs/mine
touch heddle-runs/mine/thesis.tex
check_status nothing_goes_unasked 2 heddle local --clean
check_equal which_is_said 1 "$(grep -c 'to remove 3 runs, .*, with all checkpoints, add --yes' "$work/check.err")"
check_equal and_what_would_go "keep hot,remove killed,remove stopped,remove straight," \
    "$(sed -nE 's|^(keep\|remove) .*/([a-z]+)$|\1 \2|p' "$work/check.out" | tr '\n' ',')"
check the_oldest_go heddle local --clean "$file" --keep 2 --yes
check_equal and_no_other "hot killed latest mine " "$(ls heddle-runs | tr '\n' ' ')"
check the_rest_goes heddle local --clean heddle-runs --keep 0 --yes
check_equal and_then_there_is_nothing_to_remove 1 \
    "$(heddle local --clean heddle-runs --keep 0 --yes 2>&1 | grep -c 'there was nothing to remove: .*/heddle-runs has no runs')"
check_equal but_not_what_heddle_has_not_made mine "$(ls heddle-runs)"
finish
