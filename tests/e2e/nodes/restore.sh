#!/bin/bash
# What a restored database makes older than the world around it: nodes that were given certificates since come
# back, their jobs go on, and everybody else is told what to do. A copy of a database leads no node beside the first.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

umask 077
state=$work/controller copy=$work/copy
controller() { timeout 30 "$HEDDLE_BIN/heddle-controller" "$@"; }
check init_makes_an_authority controller init --state-dir "$state"
export HEDDLE_TLS_CA=$state/pki/ca.pem HEDDLE_TOKEN_FILE=$state/admin.token
serve() { # DIR
    "$HEDDLE_BIN/heddle-controller" --state-dir "$1" --listen "$HEDDLE_CONTROLLER" --also-listen "unix:$work/c.sock" \
        --jobs-dir "$work/jobs" --ephemeral >>"$work/controller.log" 2>&1 &
    controller_pid=$!
    await 20 heddle whoami --controller "unix:$work/c.sock"
}
stop() { kill -TERM "$controller_pid" && wait "$controller_pid"; }
for try in 1 2 3 4 5; do # a free port: the first that takes the controller
    export HEDDLE_CONTROLLER=127.0.0.1:$((20000 + RANDOM % 20000))
    serve "$state" && break
    kill "$controller_pid" 2>/dev/null
done
join() { # NAME [DIR]
    heddle node invite "$1" 2>/dev/null | "$HEDDLE_BIN/heddled" join - --state-dir "$work/${2:-$1}"
}
start_joined() { # NAME
    env -u HEDDLE_CONTROLLER -u HEDDLE_TLS_CA -u HEDDLE_TOKEN_FILE "$HEDDLE_BIN/heddled" --state-dir "$work/$1" \
        --devices cpu:2:1 --ephemeral >>"$work/$1.log" 2>&1 &
    node_pids[$1]=$!
}
check n1_joins join n1
start_joined n1
await 20 node_is n1 ready
heddle token create bob --out "$work/bob.token" >/dev/null
job=$(submit "$(job_file long)" --set train.steps=100000 --set resources.devices=1 --set checkpoint.every=50000)
await 60 steps_at_least "$job" 2
heddle queue set default --closed >/dev/null # so that it waits in the backup
later=$(submit "$(job_file later)" --set train.steps=100000 --set resources.devices=1 --set checkpoint.every=10)
check a_backup_is_made controller backup "$work/backup" --state-dir "$state"

# ---- the world goes on ----
check the_queue_opens heddle queue set default --open
await 60 steps_at_least "$later" 25
check n1_gets_another_certificate join n1
await 20 node_is n1 ready
heddle token create ann --out "$work/ann.token" >/dev/null
heddle token revoke bob >/dev/null
check n2_joins join n2

says() { heddle events "$1" -o jsonl | grep -q "$2"; } # JOB PATTERN

# ---- and the backup is put back, as people do it: by cp ----
kill -KILL "$controller_pid"; wait "$controller_pid" 2>/dev/null # its log stays
cp "$work/backup" "$state/state.db"
check_status a_database_beside_anothers_log_is_refused 6 controller --state-dir "$state" --listen "unix:$work/x.sock"
check_equal and_it_says_what_to_move 1 "$(grep -c 'move state.db-wal' "$work/check.err")"
rm "$state/state.db"-*
serve "$state"
check_equal what_it_forgot_is_said 1 "$(grep -c 'was restored from a copy made at .* Tokens revoked since are valid again' "$work/controller.log")"
await 30 node_is n1 ready
check_equal a_node_with_a_newer_certificate_comes_back 0 $?
check_equal as_an_event_says 1 "$(heddle events -o jsonl | grep -c certificate_adopted)"
check_equal its_job_goes_on 'running 1' "$(state_of "$job") $(heddle show "$job" -o jsonl | member attempt)"
await 20 says "$later" attempt_unknown
check_equal an_attempt_that_began_since_is_named 'queued 1' "$(state_of "$later") $(heddle show "$later" -o jsonl | member attempt)"
heddle queue set default --open >/dev/null
await 60 says "$later" 'attempt 2 on .* from step [1-9]'
check_equal and_the_job_goes_on_from_its_newest_checkpoint 0 $?
heddle cancel "$later" --now >/dev/null
check_status a_token_made_since_is_unknown 5 heddle jobs --token-file "$work/ann.token"
check_equal and_told_why 1 "$(grep -c 'was restored at .* from a backup of' "$work/check.err")"
check one_revoked_since_is_valid_again heddle jobs --token-file "$work/bob.token"
start_joined n2
await 20 grep -q 'heddle node invite n2' "$work/n2.log"
check_equal a_node_that_joined_since_is_told_what_to_do 0 $?
check_equal and_so_are_operators 1 "$(heddle events -o jsonl | grep -c node_unknown)"

# ---- a twin ----
cp -a "$state" "$copy"
check_status a_copy_does_not_start_beside_the_first 6 controller --state-dir "$copy" --listen "unix:$work/x.sock"
check_equal and_it_names_the_first 1 "$(grep -c "is a copy of the database of the controller in $state on" "$work/check.err")"
stop
check a_person_says_that_the_first_is_gone controller restore --state-dir "$copy"
connections() { grep -cE ': (re)?connected to ' "$work/n1.log"; }
before=$(connections)
serve "$copy"
await 30 node_is n1 ready
check_equal the_copy_takes_over 0 $?
more_connections() { [ "$(connections)" -gt "$before" ]; }
await 10 more_connections # the node has heard of it, too
stop
controller --state-dir "$state" --listen "$HEDDLE_CONTROLLER" --also-listen "unix:$work/c.sock" --jobs-dir "$work/jobs" \
    >>"$work/first.log" 2>&1
check_equal the_first_stops_when_it_hears_of_it 6 $?
check_equal and_says_who_leads 1 "$(grep -c "another controller of this cluster leads: node n1 has obeyed .* in $copy on" "$work/first.log")"
check_status nor_does_it_start_again 6 controller --state-dir "$state" --listen "unix:$work/x.sock"
sleep 1 # an epoch is the second of a takeover, and the copy's may be this one
check restore_puts_a_file_in_place controller restore "$work/backup" --state-dir "$state" --revoke
serve "$state"
check_status no_token_is_left 5 heddle jobs
export HEDDLE_CONTROLLER=unix:$work/c.sock
await 30 node_is n1 ready
check_equal the_restored_one_takes_over_from_the_copy 0 $?
check_equal the_job_was_never_started_again 'running 1' "$(state_of "$job" ) $(heddle show "$job" -o jsonl | member attempt)"
finish
