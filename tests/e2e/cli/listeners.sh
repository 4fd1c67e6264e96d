#!/bin/bash
# Who may come in: a port needs a token, also on this machine, and one of a node is not one of a user;
# the socket is its owner's. What a machine that was installed anew is told.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

umask 077
secret() { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
secret >"$work/token" && secret >"$work/wrong" && secret >"$work/node"
printf 'ann %s\n' "$(secret)" >"$work/ann"
printf 'op %s\n' "$(secret)" >"$work/op"
{ cat "$work/token" && printf '\n' && cat "$work/ann" "$work/op"; } >"$work/users"
printf 'role op operator\nsee token jobs\n' >"$work/policy"
cp "$work/token" "$work/open" && chmod 0644 "$work/open"

start_controller
check_equal the_socket_is_its_owners 600 "$(stat -c %a "$work/c.sock")"
kill -TERM "$controller_pid"
wait "$controller_pid"
controller_pid=

# a free port: the first that takes the controller
for try in 1 2 3 4 5; do
    export HEDDLE_CONTROLLER=127.0.0.1:$((20000 + RANDOM % 20000)) HEDDLE_TOKEN_FILE=$work/token
    "$HEDDLE_BIN/heddle-controller" --state-dir "$work/controller" --listen "$HEDDLE_CONTROLLER" \
        --token-file "$work/users" --node-token-file "$work/node" --policy "$work/policy" --jobs-dir "$work/jobs" \
        --ephemeral >>"$work/controller.log" 2>&1 &
    controller_pid=$!
    await 10 heddle jobs && break
    kill "$controller_pid" 2>/dev/null
done
check with_the_token_the_port_answers heddle jobs
check_status with_another_token_it_is_5 5 heddle jobs --token-file "$work/wrong"
check the_wrong_token_is_told_in_the_log grep -q 'refused a call from .* token is wrong' \
    "$work/controller.log"
check_status without_a_token_it_is_5 5 env -u HEDDLE_TOKEN_FILE "$HEDDLE_BIN/heddle" jobs
check_status a_token_file_that_is_not_there_is_2 2 heddle jobs --token-file "$work/none"
check_status a_folder_is_no_token_file 2 heddle jobs --token-file "$work"
check_status a_token_that_others_can_read_is_5 5 heddle jobs --token-file "$work/open"
check_status beyond_loopback_there_must_be_tls 5 heddle jobs --controller 192.0.2.1:5
check_status an_address_that_is_none_is_2 2 heddle jobs --controller nonsense
check_status a_users_token_makes_no_node 1 "$HEDDLE_BIN/heddled" --state-dir "$work/made-up" \
    --node-name made-up --devices cpu:1 --ephemeral --token-file "$work/ann"
check_equal and_the_right_one_is_named 1 \
    "$(grep -c "give heddled a token of the controller's --node-token-file" "$work/check.err")"
check_status a_nodes_token_makes_no_user 5 heddle jobs --token-file "$work/node"
check_status a_file_of_all_users_is_no_users_own 2 heddle jobs --token-file "$work/users"
start_node n1 cpu:1 --token-file "$work/node"
check a_node_comes_in_by_the_port heddle nodes
job=$(submit --token-file "$work/ann" --set resources.devices=2 "$(job_file tiny)")
check_equal a_job_belongs_to_the_name_of_the_token "$job" "$(heddle jobs --owner ann -o jsonl | member job)"
check_status and_no_other_name_may_cancel_it 5 heddle cancel "$job"
check ann_may heddle cancel "$job" --token-file "$work/ann"
id=0123456789abcdef
first=$(submit --request-id $id "$(job_file one)")
check_equal a_request_that_is_repeated_is_the_same_job "$first" "$(submit --request-id $id "$(job_file one)")"
check_status a_request_id_is_not_used_for_another_job 6 heddle submit --request-id $id "$(job_file two)"
check_equal and_the_job_that_has_it_is_named 1 "$(grep -c "was used for job $first" "$work/check.err")"
check that_job_ends heddle cancel "$first"

# the machine of n1 is installed anew: the same name, another state directory
anew() {
    "$HEDDLE_BIN/heddled" --state-dir "$work/anew" --node-name n1 --devices cpu:1 --ephemeral \
        --token-file "$work/node"
}
check_status a_taken_name_is_refused 1 anew
check_equal and_the_command_that_helps_is_named 1 "$(grep -c 'run: heddle node rm n1;' "$work/check.err")"
check_status a_connected_node_is_not_removed 6 heddle node rm n1 --token-file "$work/op"
check_status a_user_drains_no_node 5 heddle drain n1
check a_node_is_drained heddle drain n1 --token-file "$work/op"
await 10 node_is n1 drained
check a_drained_node_is_removed heddle node rm n1 --token-file "$work/op"
wait "${node_pids[n1]}"
check_equal its_daemon_ends_as_wished 0 $?
unset 'node_pids[n1]'
mv "$work/n1" "$work/n1-before"
start_node n1 cpu:1 --token-file "$work/node"
check the_new_one_has_the_name heddle nodes
"$HEDDLE_BIN/heddle-controller" --state-dir "$work/other" --listen 127.0.0.1:0 --ephemeral \
    >"$work/other.log" 2>&1
check_equal a_port_without_a_token_is_not_opened 1 "$(grep -c token "$work/other.log")"
finish
