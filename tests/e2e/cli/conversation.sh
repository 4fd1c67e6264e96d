#!/bin/bash
# Programs of this build with those of the build of protocol 2: what those said to one another was recorded
# (tests/golden/protocol_2) and is said again to the controller, to heddled and to heddle that are built now.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

recorded=$HEDDLE_BUILD_DIR/tests/recorded_player
golden=$HEDDLE_SOURCE_DIR/tests/golden/protocol_2
gzip -dc "$golden/one_node.txt.gz" >"$work/talk"
head -c 6000 "$HEDDLE_SOURCE_DIR/LICENSE" >"$work/corpus.txt"
sed -n "/^cat >.*job.yaml/,/^JOB/p" "$HEDDLE_SOURCE_DIR/tests/recorded/record.sh" | sed '1d;$d' >"$work/job.yaml"

# ---- no field, enum value or call was renumbered, renamed or removed ----

# flat FILE: each line of a protocol below its message, as one line
flat() { sed -nE '/^(message|enum) /{h;p;b};/^ /{G;s/^ (.*)\n(.*)/\2: \1/p;b};p' "$1" | sort; }
"$recorded" protocol >"$work/protocol.txt"
check_equal every_old_field_has_its_number '' \
    "$(comm -23 <(flat "$golden/protocol.txt") <(flat "$work/protocol.txt") | head -n 5 | tr '\n' ';')"

# ---- an old node and old commands, this controller ----

start_controller
"$recorded" clients "$golden/protocol.txt" "$work/talk" "$HEDDLE_CONTROLLER" "$work" >"$work/clients" 2>&1
check_equal the_controller_answers_as_it_did 0 "$?"
sed -n '$p; /^--- \|: /p' "$work/clients" | head -n 20
check_equal a_job_of_an_old_node_runs_to_its_end succeeded "$(state_of 1)"
check_equal each_of_its_steps_is_there "$(seq -s ' ' 1 6)" \
    "$(heddle watch 1 -o jsonl | sed -nE 's/^\{"type":"step".*"step":([0-9]+).*/\1/p' | xargs)"
kill "$controller_pid" && wait "$controller_pid" 2>/dev/null
controller_pid=

# ---- the old controller, these commands and this node ----

rm -rf --one-file-system "$work/jobs" && mkdir "$work/jobs"
"$recorded" controller "$golden/protocol.txt" "$work/talk" "$HEDDLE_CONTROLLER" "$work" >"$work/played" 2>&1 &
controller_pid=$!
await 20 [ -S "$work/c.sock" ]
root=$(sed -n 's/^root //p;q' "$work/talk")
# lacks OLD NEW: what stands between commas and brackets in OLD and not in NEW
lacks() { comm -23 <(tr ',{}[]' '\n' <"$1" | sort -u) <(tr ',{}[]' '\n' <"$2" | sort -u) | head -n 3 | tr '\n' ';'; }
# Keys of a job file that have another name since: what is shown of a job has the new one (docs/job-file.md, renamed keys).
renamed='s/"weights":"plain"/"quantization":"none"/g;s/"z":/"z_loss":/g;s/"capacity":/"capacity_factor":/g;s/"split":/"val_split":/g'
renamed+=';s/"reduce":/"grad_reduce_dtype":/g;s/"only":/"trainable":/g;s/"b_lr":/"loraplus_lr_ratio":/g;s/"base":/"frozen":/g'
renamed+=';s/"resources":{"device":/"resources":{"device_type":/g'
said=0 wrong=
while IFS= read -r line; do
    said=$((said + 1))
    awk -v n=$said '/^\$/ { k++ } /^\|/ && k == n { print substr($0, 3) }' "$work/talk" | sed "s|$root|$work|g;$renamed" >"$work/old"
    (cd "$work" && heddle ${line#??}) >"$work/new" 2>"$work/new.err" </dev/null || wrong="$wrong[$line: $(head -c 200 "$work/new.err")]"
    lacks=$(lacks "$work/old" "$work/new")
    [ -z "$lacks" ] || wrong="$wrong[$line: $lacks]"
done < <(grep '^\$' "$work/talk")
check_equal all_commands_were_run 17 $said
check_equal commands_show_what_they_showed '' "$wrong"

"$HEDDLE_BIN/heddled" --state-dir "$work/n1" --node-name n1 --devices cpu:2:2 --ephemeral >>"$work/n1.log" 2>&1 &
node_pids[n1]=$!
await 60 [ -f "$work/jobs/1/attempt-1/nodes/n1/end" ]
# the end is told behind all reports: the log is asked for then
await 60 grep -q 'log was sent' "$work/played"
kill "$controller_pid" && wait "$controller_pid"
check_equal the_old_controller_understood_all 0 "$?"
controller_pid=
check_equal the_node_runs_the_job_to_its_end "node: played, completed 1, steps 6, twice 0, log 1" \
    "$(grep '^node' "$work/played")"
check_equal all_calls_were_made "commands: 0 calls not asked for" "$(grep '^commands' "$work/played")"
finish
