#!/bin/bash
# From nothing to a cluster with accounts: init, an invitation, a node that joins, a person's token; and
# what is refused on the way.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

umask 077
state=$work/controller
init() { "$HEDDLE_BIN/heddle-controller" init --state-dir "$state" "$@"; }
join() { "$HEDDLE_BIN/heddled" join "$@"; }
check init_makes_all init
check_status init_is_made_once 2 init
check init_need_not_be_made_again init --if-needed
check_equal the_authoritys_key_is_private 600 "$(stat -c %a "$state/pki/ca.key")"
check_equal and_so_is_the_admins_token 600 "$(stat -c %a "$state/admin.token")"

# a free port: the first that takes the controller
export HEDDLE_TLS_CA=$state/pki/ca.pem HEDDLE_TOKEN_FILE=$state/admin.token
socket=unix:$work/c.sock
for try in 1 2 3 4 5; do
    export HEDDLE_CONTROLLER=127.0.0.1:$((20000 + RANDOM % 20000))
    "$HEDDLE_BIN/heddle-controller" --state-dir "$state" --listen "$HEDDLE_CONTROLLER" --also-listen "$socket" \
        --jobs-dir "$work/jobs" --ephemeral >>"$work/controller.log" 2>&1 &
    controller_pid=$!
    await 10 heddle whoami && break
    kill "$controller_pid" 2>/dev/null
done
check_equal the_first_token_is_an_admins admin "$(heddle whoami -o jsonl | member role)"
check_equal and_so_is_the_own_user_at_the_socket admin \
    "$(heddle whoami --controller "$socket" -o jsonl | member role)"

# ---- a node ----
heddle node invite n1 >"$work/line" 2>/dev/null
check_equal an_invitation_is_one_line 1 "$(wc -l <"$work/line")"
sed 's,/n1/,/n2/,' "$work/line" >"$work/line-n2"
sed -E 's,/[0-9a-f]{64}/,/0000000000000000000000000000000000000000000000000000000000000000/,' "$work/line" >"$work/line-ca"
check_status another_name_does_not_join 6 join "$(cat "$work/line-n2")" --state-dir "$work/n2"
check_status another_authority_is_not_believed 6 join "$(cat "$work/line-ca")" --state-dir "$work/n3"
check_equal and_it_was_not_shown_the_secret 1 "$(grep -c 'is not the controller of the invitation' "$work/check.err")"
check the_node_joins join - --state-dir "$work/n1" <"$work/line"
check_status the_line_is_used_up 6 join "$(cat "$work/line")" --state-dir "$work/n4"
check_equal and_it_says_what_to_do 1 "$(grep -c 'the invitation has been used, .* heddle node invite n1' "$work/check.err")"
env -u HEDDLE_CONTROLLER "$HEDDLE_BIN/heddled" --state-dir "$work/n1" --devices cpu:2 --ephemeral >>"$work/n1.log" 2>&1 &
node_pids[n1]=$!
await 20 node_is n1 ready
check_equal it_finds_its_name_and_the_controller 0 $?

# ---- root in a folder of the services' user, who could not read what root makes ----
if [ "$(id -u)" = 0 ]; then
    mkdir "$work/theirs" && chown nobody "$work/theirs"
    check_status root_inits_no_folder_of_another_user 2 "$HEDDLE_BIN/heddle-controller" init --state-dir "$work/theirs"
    check_equal and_it_says_as_whom_to_run_it 1 "$(grep -c 'runuser -u nobody -- heddle-controller init' "$work/check.err")"
    check_status nor_does_root_join_there 2 join "$(cat "$work/line")" --state-dir "$work/theirs"
    check_equal which_is_not_asked_of_the_controller 1 "$(grep -c 'runuser -u nobody -- heddled join' "$work/check.err")"
    check_equal nothing_was_made_there "" "$(ls -A "$work/theirs")"
else
    printf 'skip root_inits_no_folder_of_another_user: it takes root\n'
fi

# ---- many nodes by one line ----
heddle node invite 'gpu-*' --ttl 10m >"$work/many" 2>/dev/null
many() { join - --state-dir "$work/$1" --node-name "$2" "${@:3}" <"$work/many"; }
check a_line_for_many_lets_one_join many g1 gpu-1
check and_another_one many g2 gpu-2
check_status but_not_under_another_name 2 many g3 cpu-1
sed 's,/gpu-\*/,/*/,' "$work/many" >"$work/any"
check_status not_even_if_the_line_says_so 6 join - --state-dir "$work/g3" --node-name cpu-1 <"$work/any"
check_status nor_in_the_place_of_one_that_has_joined 6 many g3 gpu-1
check_equal and_it_says_what_helps 1 "$(grep -c 'heddle node revoke gpu-1' "$work/check.err")"
check one_that_has_joined_need_not_join_again many g1 gpu-1 --if-needed
check_status a_name_is_needed 2 join - --state-dir "$work/g3" <"$work/many"
check the_line_is_revoked heddle node revoke 'gpu-*'
check_status and_lets_none_join 6 many g3 gpu-3
check its_nodes_stay env -u HEDDLE_CONTROLLER -u HEDDLE_TOKEN_FILE -u HEDDLE_TLS_CA "$HEDDLE_BIN/heddled" \
    --state-dir "$work/g1" --check-config
env -u HEDDLE_CONTROLLER -u HEDDLE_TOKEN_FILE -u HEDDLE_TLS_CA "$HEDDLE_BIN/heddled" --state-dir "$work/g1" --devices cpu:1 \
    --ephemeral --http 127.0.0.1:0 >>"$work/g1.log" 2>&1 &
node_pids[g1]=$!
metrics() { sed -nE 's,.*metrics on http://127.0.0.1:([0-9]+)/metrics.*,\1,p' "$work/g1.log"; }
check a_node_that_has_joined_is_ready_by_its_metrics await 60 eval \
    '"$HEDDLE_SOURCE_DIR/deploy/container/node-health" ready "$(metrics)"'

# ---- people ----
check a_token_is_made heddle token create ann --out "$work/ann.token"
check_status no_file_is_overwritten 2 heddle token create ann --out "$work/ann.token"
check_status nor_is_a_token_made_for_nowhere 6 heddle token create eve --out "$work/nowhere/eve.token"
check_equal and_none_was_made 0 "$(heddle token ls | grep -c eve)"
check_equal that_its_owner_alone_reads 600 "$(stat -c %a "$work/ann.token")"
check_status a_file_that_is_no_authority_is_2 2 env HEDDLE_TLS_CA="$work/line" "$HEDDLE_BIN/heddle" jobs
job=$(submit --token-file "$work/ann.token" "$(job_file tiny)")
check_equal her_job_is_hers ann "$(heddle jobs -o jsonl | member owner)"
check her_job_runs_on_the_node heddle wait "$job" --token-file "$work/ann.token"
check bob_has_a_token heddle token create bob --out "$work/bob.token"
check_status but_no_job_of_hers 4 heddle show "$job" --token-file "$work/bob.token"
check_status nor_its_log 4 heddle logs "$job" --token-file "$work/bob.token"
check_status nor_its_removal 4 heddle rm "$job" --yes --token-file "$work/bob.token"
check_status nor_tokens 5 heddle token create carl --token-file "$work/bob.token"
check a_certificate_is_made heddle token cert dora --role viewer --out "$work/dora.pem"
check_equal that_stands_for_its_owner dora \
    "$(env -u HEDDLE_TOKEN_FILE "$HEDDLE_BIN/heddle" whoami --tls-cert "$work/dora.pem" -o jsonl | member name)"
check she_is_revoked heddle token revoke ann
check_status and_no_more_served 5 heddle jobs --token-file "$work/ann.token"
check limits_are_shown heddle limits --token-file "$work/bob.token"

# ---- the log ----
check the_audit_log_is_whole heddle audit --verify
check_equal it_says_who_submitted ann \
    "$(heddle audit -o jsonl | grep '"method":"SubmitJob"' | member who)"
check_equal and_whom_it_refused bob "$(heddle audit -o jsonl | grep '"result":"denied"' | grep CreateToken | member who)"
if heddle audit -o json | grep -qF "$(cat "$work/bob.token")"; then
    not_ok no_secret_is_in_the_log "bob's token is"
else
    ok no_secret_is_in_the_log
fi

# ---- the end of a node ----
check the_node_is_revoked heddle node revoke n1
await 10 grep -q 'has expired or was revoked' "$work/n1.log"
check_equal and_told_at_once 0 $?
finish
