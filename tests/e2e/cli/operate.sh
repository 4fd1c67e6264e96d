#!/bin/bash
# What an operator asks of a cluster: top, show-node, version, du, logs of several ranks, events that go
# on, a dry run, the configuration, a bundle to send with a question. Golden outputs, with what changes from run
# to run (times, builds, ids) replaced.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

golden() { # NAME EXPECTED COMMAND...: its output, with what changes replaced
    local name=$1 expected=$2
    shift 2
    check_equal "$name" "$expected" "$("$@" 2>&1 | sed -E \
        -e 's/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z/TIME/g' -e 's/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}/UUID/g' \
        -e 's/[0-9.]+ \(commit [0-9a-z+]+\)/BUILD/g' -e 's/  +/  /g' -e 's/ +$//' -e "s|$work|WORK|g")"
}

start_controller
start_node n1 cpu:2

golden an_idle_cluster_at_a_glance \
    'jobs: 0 running, 0 stopping, 0 queued  nodes: 1 of 1 ready  devices: 0 of 2 in use  0 tokens/s

JOB  NAME  OWNER  STATE  DEVICES  STEP  LOSS  TOK/S  MFU  AGE  REASON' heddle top
golden and_for_programs \
    '{"api_version":"heddle/v1","kind":"Overview","items":[
{"jobs_running":0,"jobs_stopping":0,"jobs_queued":0,"nodes":1,"nodes_ready":1,"devices":2,"devices_in_use":0,"devices_with_a_problem":0,"tokens_per_s":0,"jobs":[]}]}' heddle top -o json
golden all_parts_are_of_one_build 'PART  BUILD  SAME
heddle  BUILD  yes
controller  BUILD  yes
node n1  BUILD  yes' heddle version --check
golden and_for_programs_too '{"api_version":"heddle/v1","kind":"VersionList","items":[
{"part":"heddle","build":"BUILD","same":true},
{"part":"controller","build":"BUILD","same":true},
{"part":"node n1","build":"BUILD","same":true}]}' heddle version --check -o json
check_equal a_node_with_its_devices "node n1 ready 2" \
    "$(heddle show-node n1 | head -n 1) $(heddle show-node n1 | grep -cE '^ +[01]  cpu ')"
check_equal the_same_for_programs '"name":"n1"' "$(heddle show-node n1 -o json | grep -o '"name":"n1"')"
check_status a_node_that_there_is_not_is_4 4 heddle show-node n9

file=$(job_file talks)
golden a_dry_run_says_what_would_be "$(sed -n 's/^name: //p' "$file") would be taken, and would start now; nothing was submitted" \
    heddle submit "$file" --dry-run
golden and_for_programs_as_well '{"api_version":"heddle/v1","kind":"VerdictList","items":[
{"name":"'"$(sed -n 's/^name: //p' "$file")"'","accepted":true,"fits_now":true,"reason":""}]}' heddle submit "$file" --dry-run -o json
check_equal nothing_was_submitted "" "$(heddle jobs -o jsonl)"
check_status a_dry_run_is_not_watched 2 heddle submit "$file" --dry-run --watch
check_status and_refuses_what_is_wrong 2 heddle submit "$file" --dry-run --set train.stepz=1

# ---- logs and events of a job ----

job=$(submit "$file" --set train.steps=60)
timeout 60 "$HEDDLE_BIN/heddle" events -f "$job" >"$work/events" 2>"$work/events.err" &
follower=$!
timeout 60 "$HEDDLE_BIN/heddle" logs -f "$job" --rank all >"$work/both" 2>"$work/both.err" &
both=$!
check the_job_succeeds heddle wait "$job"
wait $follower
check_equal following_events_ends_with_the_job 0 $?
check_equal each_event_was_seen_once "$(heddle events "$job" -o jsonl | wc -l)" "$(wc -l <"$work/events")"
check_equal as_lines_of_json_too "$(heddle events "$job" -o jsonl)" "$(heddle events -f "$job" -o jsonl)"
await 20 eval "grep -q '^1: ' '$work/both'" || heddle logs "$job" --rank all >"$work/both" # a job may end before -f began
wait $both
for rank in 0 1; do
    heddle logs "$job" --rank $rank >"$work/rank-$rank"
    check_equal "all_lines_of_rank_${rank}_are_among_those_of_all" "$(cksum <"$work/rank-$rank")" \
        "$(sed -n "s/^$rank: //p" "$work/both" | cksum)"
done
check_equal the_last_lines_are_the_last "$(tail -n 3 "$work/rank-1" | cksum)" "$(heddle logs "$job" --rank 1 --tail 3 | cksum)"
check_equal more_than_there_are_is_all "$(cksum <"$work/rank-1")" "$(heddle logs "$job" --rank 1 --tail 1000000 | cksum)"
check_equal none_is_nothing "" "$(heddle logs "$job" --tail 0)"
check_equal of_a_list_of_ranks "0: 1: " "$(heddle logs "$job" --rank 0-1 --tail 1 | grep -oE '^[01]: ' | tr -d '\n')"
check_equal since_long_ago_begins_with_a_time 1 "$(heddle logs "$job" --since 1h | head -n 1 | grep -cE '^[0-9]{4}-')"
sleep 2.1 # seconds are compared, and a new one may have begun right after the last line
check_equal since_just_now_is_nothing "" "$(heddle logs "$job" --since 1s)"
check_status ranks_that_are_none_are_2 2 heddle logs "$job" --rank 3-1
check_status so_is_a_word 2 heddle logs "$job" --rank both

# ---- du ----

bytes=$(heddle checkpoint ls "$job" -o json | grep -o '"size_bytes":[0-9]*' | awk -F: '{ n += $2 } END { print n + 0 }')
check_equal checkpoints_have_their_bytes "\"checkpoint_bytes\":$bytes" "$(heddle du "$job" -o json | grep -o '"checkpoint_bytes":[0-9]*')"
check_equal which_are_those_on_disk "$bytes" "$(find "$work/jobs/$job" -name '*.safetensors' -printf '%s\n' | awk '{ n += $1 } END { print n + 0 }')"
check_equal the_same_without_naming_it 1 "$(heddle du | grep -cE "^ *$job ")"

# ---- checkpoint rm ----

steps_of() { heddle checkpoint ls "$1" -o jsonl | grep -o '"step":[0-9]*' | sed 's/.*://' | tr '\n' ' '; }
check_equal there_are_six "10 20 30 40 50 60 " "$(steps_of "$job")"
check_status without_a_terminal_rm_does_not_remove 2 heddle checkpoint rm "$job" --step 20
check_equal it_says_so "10 20 30 40 50 60 " "$(steps_of "$job")"
golden one_goes 'job 1: the checkpoint of step 20 is removed' heddle checkpoint rm "$job" --step 20 --yes
check_equal from_the_list "10 30 40 50 60 " "$(steps_of "$job")"
check and_from_the_disk await 20 eval '[ "$(ls "$work/jobs/$job/attempt-1/checkpoints" | tr -d "\n")" = step-00000010step-00000030step-00000040step-00000050step-00000060 ]'
check_status not_twice 4 heddle checkpoint rm "$job" --step 20 --yes
check_status nor_one_that_there_never_was 4 heddle checkpoint rm "$job" --step 21 --yes
check the_newest_of_a_job_that_has_ended heddle checkpoint rm "$job" --step 60 --yes -o json
check_equal says_its_bytes 1 "$(grep -c '"step":60,"checkpoint_bytes":[1-9]' "$work/check.out")"
check_equal it_is_an_event 2 "$(heddle events "$job" -o jsonl | grep -c checkpoint_removed)"
check its_job_goes_on_from_the_one_before heddle resume "$job"
check and_succeeds_again heddle wait "$job"
job=$(submit "$file" --set train.steps=100000 --set validate.every=0 --set checkpoint.every=100000)
await 60 steps_at_least "$job" 1 || not_ok a_long_job_trains "$(heddle show "$job" 2>&1 | tail -n 3)"
check a_job_that_trains_writes_one heddle checkpoint save "$job" -o jsonl
check_equal says_which_in_json 1 "$(grep -cE '^\{"type":"saved_checkpoint","job":'"$job"',"attempt":1,"step":[0-9]+,"path":"/[^"]*"\}$' "$work/check.out")"
only=$(steps_of "$job") only=${only% } only=${only##* } # two, if its ranks heard of it in different steps
check_status which_it_would_go_on_from_and_keeps 6 heddle checkpoint rm "$job" --step "$only" --yes
check_equal and_it_says_why 1 "$(grep -c 'is in use: it is the newest' "$work/check.err")"
check it_is_there grep -qw "$only" <<<"$(steps_of "$job")"
heddle cancel "$job" --now >/dev/null
check the_job_ends await 30 state_is "$job" cancelled
job=1

# ---- contexts ----

mkdir -p "$work/home/.config/heddle"
printf 'context: here\ncontexts:\n  here: {controller: "%s"}\n  gone: {controller: "unix:%s/gone"}\n' "$HEDDLE_CONTROLLER" "$work" \
    >"$work/home/.config/heddle/client.yaml"
at_home() { env -u HEDDLE_CONTROLLER -u HEDDLE_CONFIG -u XDG_CONFIG_HOME HOME="$work/home" "$HEDDLE_BIN/heddle" "$@"; }
check the_context_of_the_file_is_taken at_home jobs
check_status another_one_by_its_name 3 at_home jobs --context gone
check_status one_that_there_is_not_is_2 2 at_home jobs --context none
golden where_values_came_from 'KEY  VALUE  FROM
context  here  WORK/home/.config/heddle/client.yaml:1
controller  '"$(echo "$HEDDLE_CONTROLLER" | sed "s|$work|WORK|")"'  WORK/home/.config/heddle/client.yaml:3
token_file  -  default
tls_ca  -  default
tls_cert  -  default' at_home config show

# ---- a bundle to send with a question ----

check a_bundle_is_made heddle debug bundle "$job" --out "$work/bundle.tar"
check_equal only_for_its_owner 600 "$(stat -c %a "$work/bundle.tar")"
check tar_reads_it tar -tf "$work/bundle.tar"
check_equal with_the_cluster_and_the_job "heddle-debug/nodes.json heddle-debug/job-$job/logs.txt " \
    "$(tar -tf "$work/bundle.tar" | grep -E 'nodes.json|logs.txt' | tr '\n' ' ')"
check_equal nothing_of_it_failed 0 "$(tar -tf "$work/bundle.tar" | grep -c failures)"
check_status a_bundle_that_is_there_is_not_replaced 2 heddle debug bundle --out "$work/bundle.tar"
check_status of_a_job_that_is_not_there_it_is_4 4 heddle debug bundle 9999 --out "$work/none.tar"
check_equal which_is_said_once 1 "$(grep -c 'there is no job 9999' "$work/check.err")"
check_equal and_no_bundle_is_made 0 "$(ls "$work" | grep -c none.tar)"

# ---- the state directory of a running heddled is lost, and comes back ----

mv "$work/n1" "$work/n1.lost"
check a_node_without_its_records_says_so await 60 eval 'heddle nodes | grep -q "takes no new jobs: its state directory .* cannot be used: it is not there"'
waits=$(submit "$(job_file waits)" --set train.steps=3)
check_equal and_a_job_waits queued "$(state_of "$waits")"
mv "$work/n1.lost" "$work/n1"
check until_the_directory_is_back await 60 state_is "$waits" succeeded
finish
