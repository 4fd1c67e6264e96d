#!/bin/bash
# The best checkpoint, by the loss of a named validation set, is kept beside the newest, found by its name, and evaluated.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

start_controller
start_node n1 cpu:1:1
file=$(job_file best)
head -c 1200 "$HEDDLE_SOURCE_DIR/LICENSE" >"$work/little.txt" # learned by heart: the validation loss rises again
tail -c 3000 "$HEDDLE_SOURCE_DIR/LICENSE" >"$work/val.txt"
sed -i 's/^data:.*/data: {train: [little.txt], val: {corpus: [corpus.txt], license: [val.txt]}}/; s/^validate:.*/validate: {every: 7, batches: 2}/
    s/^checkpoint:.*/checkpoint: {every: 30, keep: 1, best: license}/' "$file"
job=$(submit "$file" --set resources.devices=1 --set train.steps=90 --set train.lr=1e-2)
check the_job_succeeds heddle wait "$job"

best_of() { heddle checkpoint ls "$1" -o jsonl | sed -nE 's/.*"step":([0-9]+),.*"val_loss":([0-9.]+),"best":true.*/\1 \2/p'; }
steps_of() { heddle checkpoint ls "$1" -o jsonl | sed -nE 's/.*"step":([0-9]+),.*/\1/p' | tr '\n' ' '; }
# of the validations after step 0: the step of the lowest loss, the first of equals
lowest=$(heddle watch "$job" -o jsonl |
    sed -nE 's/^\{"type":"validation",.*"step":([1-9][0-9]*),"loss":([0-9.]+),.*"set":"license".*/\2 \1/p' |
    sort -s -g -k 1,1 | head -n 1)
best=$(best_of "$job")
check_equal the_best_has_the_lowest_validation_loss "${lowest#* } ${lowest% *}" "$best"
check_equal it_is_kept_beside_the_newest "${best% *} 90 " "$(steps_of "$job")"
check_equal show_names_it 1 "$(heddle show "$job" | grep -c "^best *step ${best% *}, validation loss")"
check_equal a_folder_says_the_same "$best" "$(best_of "$work/jobs/$job")"

check its_curves_are_drawn heddle plot "$job" --keys loss,lr --out "$work/curves.csv"
check_equal with_each_step 90 "$(grep -cE '^"[0-9]+ best",[0-9]+,[0-9]+,[0-9.]+,[0-9.]+,[0-9.e-]+,' "$work/curves.csv")"
check_equal and_the_validations_of_each_set "validation_loss/license,validation_loss/corpus $(printf %.9g "${lowest% *}")" \
    "$(head -n 1 "$work/curves.csv" | cut -d, -f 7-) $(grep -E "^\"[0-9]+ best\",${lowest#* }," "$work/curves.csv" | cut -d, -f 7)"

check evaluation_of_it_succeeds heddle eval "$job" --step best --threads 1 -o json
check_equal and_has_its_loss "${best#* }" "$(member loss <"$work/check.out")"
check so_does_the_other_set heddle eval "$job" --val corpus --threads 1
check_equal it_is_named 1 "$(grep -c '^set  *corpus$' "$work/check.out")"
check_status a_set_that_is_not_there 2 heddle eval "$job" --val web
check evaluation_on_other_text_succeeds heddle eval "$work/jobs/$job" --data "$work/little.txt" "$work/corpus.txt"
check_equal it_prints_loss_and_perplexity 2 "$(grep -cE '^(loss|perplexity) +[0-9.]+$' "$work/check.out")"
check_status data_that_is_not_there 2 heddle eval "$job" --data "$work/nothing.txt"
check_status a_step_that_is_not_there 4 heddle eval "$job" --step 11
check generation_takes_it heddle generate "$job" --step best --prompt The --max-tokens 4
check so_does_export heddle checkpoint export "$job" --step best --out "$work/model"
check a_model_folder_is_evaluated heddle eval "$work/model" --data "$work/val.txt"

kill -KILL "$controller_pid"
wait "$controller_pid" 2>/dev/null
start_controller
await 20 node_is n1 ready
check_equal a_restart_of_the_controller_changes_nothing "$best" "$(best_of "$job")"
check_status losses_of_other_data_are_not_compared 2 heddle resume "$job" --set train.steps=120 --set validate.batches=1
check_status nor_those_of_another_set 2 heddle resume "$job" --set train.steps=120 --set checkpoint.best=corpus
check the_job_goes_on heddle resume "$job" --set train.steps=120
heddle wait "$job" >/dev/null
check_equal and_still_has_its_best "$best" "$(best_of "$job")"
check_equal beside_the_newest "${best% *} 120 " "$(steps_of "$job")"
check_status without_validation_data_it_is_refused 2 heddle validate "$file" --set data.val=[] --set checkpoint.best=true --set validate.batches=0
check_equal and_the_reason_said 1 "$(grep -c 'checkpoint.best: there is no validation data' "$work/check.err")"
finish
