#!/bin/bash
# One job's way, as its user sees it: submitted, watched, finished, read back.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

file=$(job_file tiny)
check_status no_controller_is_3 3 heddle submit "$file"
start_controller

waiting=$(submit "$file" --request-id 0123456789abcdef)
check_equal a_job_without_a_node_is_queued queued "$(state_of "$waiting")"
check_equal and_says_why 1 "$(heddle jobs | awk -v j="$waiting" '$1 == j && NF > 9' | wc -l)"
check_equal a_repeated_request_is_the_same_job "$waiting" "$(submit "$file" --request-id 0123456789abcdef)"
check_equal and_makes_no_second_one 1 "$(heddle jobs -o jsonl | wc -l)"
check_status an_unknown_job_is_4 4 heddle show 4711
check_status also_to_watch 4 heddle watch 4711
check_status also_to_cancel 4 heddle cancel 4711
check_status also_for_logs 4 heddle logs 4711

start_node n1 cpu:2
check_status wait_is_0_when_it_succeeds 0 heddle wait "$waiting"
check_equal the_job_has_succeeded succeeded "$(state_of "$waiting")"

# a plan is run as it is, and only of the job that was planned
heddle plan "$file" --set parallel.pp=2 --set parallel.micro_batch=1 --out "$work/plan.json" >/dev/null
planned=$(submit "$file" --plan "$work/plan.json")
check_status a_submitted_plan_runs 0 heddle wait "$planned"
check_equal in_its_layout "2 1" "$(heddle show "$planned" -o json | grep -oE '"(pp|micro_batch)":[0-9]+' | sort -ru | cut -d: -f2 | head -n 2 | xargs)"
check_equal with_the_layers_of_its_stages 1 "$(heddle show "$planned" | grep -cE '^stages +2, layers 1\*2$')"
check_status another_job_is_refused 2 heddle submit "$file" --plan "$work/plan.json" --set train.steps=31
check_equal and_what_changed_is_named 1 "$(grep -c 'has changed since it was planned: train.steps is 31, was 30' "$work/check.err")"
sed -E 's/"build":"[^"]*"/"build":"1-0"/' "$work/plan.json" >"$work/old.json"
check_status a_plan_of_another_build_is_refused 2 heddle submit "$file" --plan "$work/old.json"
check_status and_what_is_no_plan 2 heddle submit "$file" --plan "$file"
check_status the_job_may_come_by_a_pipe 0 heddle submit - --dry-run --plan "$work/plan.json" --set "data.train=[$work/corpus.txt]" <"$file"
check_status the_plans_own_value_may_be_given 0 heddle submit "$file" --dry-run --plan "$work/plan.json" --set parallel.pp=2
{ grep -v '^resources' "$file"; echo 'parallel: {tp: 4}'; } >"$work/wide.yaml" # of one device it would be no job
check_status the_file_may_say_another_layout 0 heddle submit "$work/wide.yaml" --dry-run --plan "$work/plan.json"
check_equal which_is_noted 1 "$(grep -c 'the plan is run as it is: parallel.tp 1 (the job file says 4)' "$work/check.err")"
check_status its_data_are_not_overwritten 2 heddle plan "$file" --out "$work/corpus.txt"
check_status a_value_beside_the_plan_is_refused 2 heddle submit "$file" --plan "$work/plan.json" --set parallel.pp=1
check_equal and_named 1 "$(grep -c 'set parallel.pp=1: the plan says parallel.pp = 2' "$work/check.err")"
heddle plan "$file" --devices cpu:2:1 --out "$work/threads.json" >/dev/null
check_status so_is_another_number_of_threads 2 heddle submit "$file" --plan "$work/threads.json" --set resources.threads=2
check_equal of_its_devices 1 "$(grep -c 'set resources.threads=2: the plan says resources.threads = 1' "$work/check.err")"
sed 's/"fits":true/"fits":false/' "$work/plan.json" >"$work/large.json"
check_status so_is_a_plan_that_does_not_fit 2 heddle submit "$file" --plan "$work/large.json"
sed 's/"micro_batch":1/"micro_batch":7/' "$work/plan.json" >"$work/edited.json"
check_status and_one_that_is_no_layout 2 heddle submit "$file" --plan "$work/edited.json"
check_equal by_its_file 1 "$(grep -c "plan $work/edited.json: parallel.micro_batch: 7 " "$work/check.err")"
sed 's/"zero_shard":1/"zero_shard":2/' "$work/plan.json" >"$work/shared.json"
check_status and_one_that_shares_nothing_among_two 2 heddle submit "$file" --dry-run --plan "$work/shared.json"
heddle plan "$file" --devices h100:2 --pin cp_exchange=all_gather --out "$work/plan.json" >/dev/null 2>&1
check_status a_plan_for_gpus 0 heddle submit "$file" --dry-run --plan "$work/plan.json" -o json
check_equal waits_for_gpus 1 "$(grep -c '"fits_now":false,"reason":".*cuda' "$work/check.out")"

heddle submit "$file" --watch -o jsonl >"$work/watch.jsonl" 2>/dev/null
check_equal submit_watch_ends_like_the_job 0 $?
check_equal a_line_for_each_step 30 "$(grep -c '^{"type":"step",' "$work/watch.jsonl")"
check_equal steps_come_in_order "$(seq 30 | tr '\n' ' ')" \
    "$(sed -nE 's/^\{"type":"step".*"step":([0-9]+),"loss".*/\1/p' "$work/watch.jsonl" | tr '\n' ' ')"
# validation: before the first step, at 10, 20, and after the last, 30
check_equal validations_where_the_file_says "0 10 20 30 " \
    "$(sed -nE 's/^\{"type":"validation".*"step":([0-9]+),.*/\1/p' "$work/watch.jsonl" | tr '\n' ' ')"
check_equal the_last_line_is_the_end 1 "$(tail -n 1 "$work/watch.jsonl" | grep -c '^{"type":"end",.*"state":"succeeded"')"
for key in step loss grad_norm lr tokens tokens_per_s step_ms mfu; do
    check_equal "a_step_has_$key" 30 "$(grep '^{"type":"step",' "$work/watch.jsonl" | grep -c "\"$key\":")"
done

job=$(tail -n 1 "$work/watch.jsonl" | member job)
check checkpoints_are_listed heddle checkpoint ls "$job"
check_equal one_for_each_ten_steps "10 20 30 " "$(heddle checkpoint ls "$job" -o jsonl | sed -nE 's/.*"step":([0-9]+),.*/\1/p' | tr '\n' ' ')"
check every_byte_of_them_is_right heddle checkpoint verify "$job"
check_equal the_folder_tells_the_same "10 20 30 " \
    "$(heddle checkpoint ls "$work/jobs/$job" -o jsonl | sed -nE 's/.*"step":([0-9]+),.*/\1/p' | tr '\n' ' ')"
check a_trained_model_writes heddle generate "$job" --prompt 'The ' --max-tokens 40 --seed 3
cp "$work/check.out" "$work/text"
heddle generate "$work/jobs/$job" --prompt 'The ' --max-tokens 40 --seed 3 >"$work/again" 2>/dev/null
check_equal the_same_seed_the_same_text "$(cksum <"$work/text")" "$(cksum <"$work/again")"
check_status export_needs_a_folder 2 heddle checkpoint export "$job"
check_status and_a_step_that_is_there 4 heddle checkpoint export "$job" --out "$work/model" --step 7
check a_step_is_exported heddle checkpoint export "$job" --out "$work/model" --step 30
heddle generate "$work/model" --prompt 'The ' --max-tokens 40 --seed 3 >"$work/again" 2>/dev/null
check_equal the_export_writes_the_same_text "$(cksum <"$work/text")" "$(cksum <"$work/again")"
heddle generate "$work/model" --prompt "$(printf 'a%.0s' {1..500})" --max-tokens 1 >/dev/null 2>"$work/cut.err"
check_equal a_prompt_that_is_cut_is_told 1 "$(grep -c '^heddle: the prompt has 500 tokens, and the model reads [1-9]' "$work/cut.err")"
check an_export_is_verified heddle checkpoint verify "$work/model"
check_status an_export_in_the_way_stays 6 heddle checkpoint export "$job" --out "$work/model"
check by_force_it_goes heddle checkpoint export "$job" --out "$work/model" --force --dtype bf16
cp -r "$work/model" "$work/damaged"
printf 'XXXXXXXX' | dd of="$work/damaged/model.safetensors" bs=1 seek=20 conv=notrunc status=none
check_status a_damaged_export_is_found 6 heddle checkpoint verify "$work/damaged"
check_equal and_what_to_do_is_said 1 "$(grep -c 'export it again: .*--force' "$work/check.err")"
check_status an_export_has_no_steps 2 heddle checkpoint verify "$work/model" --step 30
rm "$work/damaged/config.json"
check_status an_export_without_its_config_is_one 6 heddle checkpoint verify "$work/damaged"
check_equal and_that_file_is_missed 1 "$(grep -c 'damaged/config.json' "$work/check.err")"
check_status a_file_is_no_folder 2 heddle checkpoint verify "$work/model/config.json"
check_equal as_is_said 1 "$(grep -c 'config.json is no folder' "$work/check.err")"
check_status export_flags_are_of_export 2 heddle checkpoint verify "$job" --force
check one_step_is_verified heddle checkpoint verify "$job" --step 20
# eight bytes of a copy's tensor file are overwritten
cp -r "$(heddle checkpoint ls "$job" -o jsonl | member path)" "$work/worn"
printf 'XXXXXXXX' | dd of="$(find "$work/worn" -name "*.safetensors" | head -n 1)" bs=1 seek=20 conv=notrunc status=none
check_status a_damaged_checkpoint_is_found 6 heddle checkpoint verify "$work/worn"
check_equal and_an_older_one_recommended 1 "$(grep -c 'use an older checkpoint' "$work/check.err")"
# one that is listed and whose folder, or manifest, is gone is damaged, too; a step that is not listed is not found
lost=$(heddle checkpoint ls "$job" -o jsonl | grep '"step":10,' | member path)
mv "$lost" "$work/step-00000010"
check_status a_checkpoint_that_is_gone_is_damaged 6 heddle checkpoint verify "$job" --step 10
check_equal and_an_older_one_recommended_there 1 "$(grep -c 'use an older checkpoint' "$work/check.err")"
mv "$work/step-00000010/manifest.json" "$work/away.json"
check_status so_is_one_without_its_manifest 6 heddle checkpoint verify "$work/step-00000010"
mv "$work/away.json" "$work/step-00000010/manifest.json" && mv "$work/step-00000010" "$lost"
check_status a_step_that_never_was_is_not_found 4 heddle checkpoint verify "$job" --step 7
# a file that cannot be opened may be sound: another outcome than damage
cp -r "$(heddle checkpoint ls "$job" -o jsonl | member path)" "$work/closed"
closed=$(find "$work/closed" -name "*.safetensors" | head -n 1)
ln -sf "$(basename "$closed")" "$closed" # a link to itself: no user can open it
check_status what_cannot_be_read_is_not_called_damaged 5 heddle checkpoint verify "$work/closed"
check_equal but_unreadable_with_the_reason "1 1" \
    "$(grep -c '^cannot be read  ' "$work/check.out") $(grep -c 'Too many levels of symbolic links' "$work/check.err")"
check_status in_json_too 5 heddle checkpoint verify "$work/closed" -o jsonl
check_equal as_an_outcome 1 "$(grep -c '"ok":false,"problem":"[^"]*","outcome":"unreadable"' "$work/check.out")"
# a new run from those weights
sed -e 's|^model:.*|model: {from: model}|' -e 's/^name:.*/name: anew/' "$file" >"$work/anew.yaml"
anew=$(submit "$work/anew.yaml" --set train.steps=10)
check a_run_from_weights_ends_well heddle wait "$anew"
check_equal it_says_where_it_starts 1 "$(heddle events "$anew" | grep -c "starts from the weights of $work/model")"
check events_tell_the_story heddle events "$job"
check show_shows_it heddle show "$job"
check_equal the_spec_is_a_job_file 0 "$(heddle show "$job" -o json | sed -nE 's/.*"spec":(\{.*\}),"file":.*/\1/p' >"$work/spec.json"; heddle validate "$work/spec.json" >/dev/null 2>&1; echo $?)"
check_status cancelling_what_has_ended_is_no_error 0 heddle cancel "$job"
check_equal and_changes_nothing succeeded "$(state_of "$job")"
heddle jobs | head -n 1 >/dev/null
check_equal a_reader_that_leaves_is_no_error 0 "${PIPESTATUS[0]}"

# to others than user and group the folders and files of a job give nothing
check_equal no_file_of_a_job_is_open_to_all "" "$(find "$work/jobs" -perm /007)"
check_equal its_group_may_read_them "750 640" \
    "$(stat -c %a "$work/jobs/$job" "$work/jobs/$job/attempt-1/logs/rank-0.log" | tr '\n' ' ' | sed 's/ $//')"

# JSON where programs ask for it
check verdicts_come_as_json heddle checkpoint verify "$job" -o json
check_equal one_for_each_checkpoint "10 20 30 " "$(sed -nE 's/.*"step":([0-9]+),"ok":true,"problem":null.*/\1/p' "$work/check.out" | tr '\n' ' ')"
check_equal in_an_envelope 1 "$(head -n 1 "$work/check.out" | grep -c '^{"api_version":"heddle/v1","kind":"VerdictList","items":\[')"
check_status also_a_bad_one 6 heddle checkpoint verify "$work/worn" -o jsonl
check_equal with_what_is_wrong 1 "$(grep -c '^{"type":"verdict","path":.*"ok":false,"problem":"[^"]*safetensors' "$work/check.out")"
check_status also_of_an_export 6 heddle checkpoint verify "$work/damaged" -o json
check_equal whose_verdict_has_no_step 1 "$(grep -c '"path":"[^"]*damaged","ok":false' "$work/check.out")"
check an_export_says_in_json_what_it_made heddle checkpoint export "$job" --out "$work/model" --force -o json
check_equal its_folder_and_files 1 "$(grep -c '"kind":"ModelFolderList","items":\[{"path":"[^"]*/model","checkpoint":.*"dtype":"fp32","files":\[.*{"name":"model.safetensors","size_bytes":'"$(stat -c %s "$work/model/model.safetensors")" "$work/check.out")"
check_equal or_in_one_line '{"type":"model_folder","path":"'"$work/model" \
    "$(heddle checkpoint export "$job" --out "$work/model" --force -o jsonl 2>/dev/null | sed 's/","checkpoint.*//')"

# a standard output that takes nothing
full() { # NAME COMMAND...
    local name=$1
    shift
    "$@" >/dev/full 2>"$work/full.err"
    check_equal "to_a_full_disk_$name" "6 1" "$? $(grep -c 'cannot write to standard output: No space left on device' "$work/full.err")"
}
full jobs heddle jobs
full jobs_as_json heddle jobs -o json
full show heddle show "$job"
full events heddle events "$job"
full nodes heddle nodes
full logs heddle logs "$job"
full watch heddle watch "$job"
full watch_as_json heddle watch "$job" -o json
full submit heddle submit "$file"
check_equal but_the_job_is_there_and_named 1 "$(grep -c 'was submitted nevertheless; it is job [0-9]' "$work/full.err")"
full validate heddle validate "$file"
full plan heddle plan "$file" --devices cpu:2:1
full keys heddle keys
full checkpoint_ls heddle checkpoint ls "$job"
full checkpoint_verify heddle checkpoint verify "$job"
full checkpoint_export heddle checkpoint export "$job" --out "$work/model" --force
full generate heddle generate "$job" --prompt 'The ' --max-tokens 2
full tokenize heddle data tokenize "$work/corpus.txt" --out "$work/corpus.npy" --tokenizer bytes
full help heddle --help
full help_of_a_command heddle submit --help
full version heddle --version
for program in heddle-controller heddled heddle-supervisor heddle-worker; do
    "$HEDDLE_BIN/$program" --help >/dev/full 2>"$work/full.err"
    check_equal "to_a_full_disk_help_of_$program" "yes 1" \
        "$([ $? = 0 ] && echo no || echo yes) $(grep -c 'cannot write to standard output: No space left on device' "$work/full.err")"
done
# a limit on file sizes is an error of write, and kills none
for program in heddle heddle-controller heddled heddle-supervisor heddle-worker; do
    said=$( (ulimit -f 0 && exec "$HEDDLE_BIN/$program" --help >"$work/limited") 2>&1)
    check_equal "at_the_limit_of_file_sizes_help_of_$program" "ended 1" \
        "$([ $? -lt 128 ] && echo ended || echo killed) $(grep -c 'File too large: .*LimitFSIZE=' <<<"$said")"
done
for program in heddle-launcher heddle-serve; do
    (ulimit -f 0 && exec "$HEDDLE_BIN/$program" --help >"$work/limited")
    check_equal "at_the_limit_of_file_sizes_help_of_$program" ended "$([ $? -lt 128 ] && echo ended || echo killed)"
done
finish
