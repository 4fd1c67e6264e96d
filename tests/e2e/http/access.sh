#!/bin/bash
# access: who may read by HTTP, by tokens, by TLS, and by a Unix socket.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/e2e/http/http.sh" || exit 1

printf 'ann ann-0123456789abcdef\n' >"$work/users"
printf 'node-0123456789abcdef\n' >"$work/nodes"
printf 'see ann jobs\n' >"$work/see"
chmod 600 "$work/users" "$work/nodes" "$work/see"
start_controller --http 127.0.0.1:0 --policy "$work/see" --token-file "$work/users" --node-token-file "$work/nodes"
door=$(door_of "$work/controller.log" "dashboard and metrics")
bearer() { printf 'Authorization: Bearer %s' "$1"; }

for path in /metrics /api/v1/jobs /api/v1/nodes /api/v1/stream /api/v1/jobs/1/curve /api/v1/jobs/1/log /nothing; do
    check_equal "without_a_token_there_is_no$(printf '%s' "$path" | tr '/' '_')" 401 "$(status $door "$path")"
done
check_equal with_a_token_there_are_metrics 200 "$(status $door /metrics "$(bearer ann-0123456789abcdef)")"
check_equal a_wrong_token_is_refused 401 "$(status $door /metrics "$(bearer ann-0123456789abcdee)")"
check_equal a_persons_token_reads_nodes 200 "$(status $door /api/v1/nodes "$(bearer ann-0123456789abcdef)")"
check_equal a_nodes_token_is_refused 401 "$(status $door /api/v1/nodes "$(bearer node-0123456789abcdef)")"
check_equal a_token_in_the_address_is_refused 401 "$(status $door "/metrics?token=ann-0123456789abcdef")"
check_equal the_page_itself_needs_none 200 "$(status $door /)"
check_equal a_page_of_another_site_is_refused 403 "$(status $door / 'Origin: http://evil.example')"
check_equal another_name_for_this_machine_is_refused 400 "$(status $door / 'Host: evil.example')" # a second Host
exec 9<>"/dev/tcp/${door% *}/${door#* }"
printf 'GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n' >&9
check_equal rebinding_is_refused 421 "$(timeout 20 head -n 1 <&9 | tr -dc 0-9\ | cut -d' ' -f2)"
exec 9>&-
check_equal what_does_not_exist_is_told 404 "$(status $door /api/v1/jobs/77 "$(bearer ann-0123456789abcdef)")"
check_equal a_wrong_parameter_is_told 400 "$(status $door '/api/v1/jobs?stat=queued' "$(bearer ann-0123456789abcdef)")"
check_equal a_body_is_refused 400 "$(status $door /metrics "$(bearer ann-0123456789abcdef)" 'Content-Length: 5')"

# ---- jobs of others ----

printf 'role eve viewer\nrole mallory none\n' >"$work/policy"
printf 'ann ann-0123456789abcdef\neve eve-0123456789abcdef\nmallory mal-0123456789abcdef\n' >"$work/more"
chmod 600 "$work/policy" "$work/more"
kill "$controller_pid"
wait "$controller_pid" 2>/dev/null
start_controller --http 127.0.0.1:0 --token-file "$work/more" --policy "$work/policy"
door=$(door_of "$work/controller.log" "dashboard and metrics")
job=$(submit "$(job_file hidden)")
eve=$(bearer eve-0123456789abcdef)
check_equal a_job_of_another_is_in_no_list 0 "$(body $door /api/v1/jobs "$eve" | grep -c '"job":')"
for path in "" /curve /events /checkpoints /log /resolved; do
    check_equal "a_job_of_another_is_not_there$(printf '%s' "$path" | tr '/' '_')" 404 "$(status $door "/api/v1/jobs/$job$path" "$eve")"
done
check_equal jobs_asked_for_by_owner_stay_hidden 0 "$(body $door "/api/v1/jobs?owner=uid%3A$(id -u)" "$eve" | grep -c '"job":')"
check_equal metrics_of_all_are_not_for_all 403 "$(status $door /metrics "$eve")"
check_equal nodes_are_for_all_viewers 200 "$(status $door /api/v1/nodes "$eve")"
check_equal who_has_no_role_reads_nothing 401 "$(status $door /api/v1/nodes "$(bearer mal-0123456789abcdef)")"

# ---- beyond loopback ----

refused() { # NAME WORDS ARG...
    local name=$1 words=$2
    shift 2
    timeout 20 "$HEDDLE_BIN/heddle-controller" --state-dir "$work/other" --listen "unix:$work/o.sock" "$@" 2>"$work/refused"
    if [ $? = 2 ] && grep -q "$words" "$work/refused"; then ok "$name"; else not_ok "$name" "$(tail -n 2 "$work/refused")"; fi
}
refused several_people_need_tokens "several people use this controller" --http 127.0.0.1:0 --policy "$work/policy"
refused without_tls_no_door_to_others "it needs a certificate" --http 0.0.0.0:0 --token-file "$work/users"
openssl req -x509 -newkey rsa:2048 -nodes -keyout "$work/key.pem" -out "$work/cert.pem" -days 2 -subj /CN=localhost \
    -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' 2>/dev/null
refused without_tokens_no_door_to_others "tokens for its callers" --http 0.0.0.0:0 --tls-cert "$work/cert.pem" --tls-key "$work/key.pem"

"$HEDDLE_BIN/heddle-controller" --state-dir "$work/tls" --listen "unix:$work/t.sock" --ephemeral --http 0.0.0.0:0 --token-file "$work/users" --policy "$work/see" \
    --tls-cert "$work/cert.pem" --tls-key "$work/key.pem" 2>"$work/tls.log" &
tls_pid=$!
await 60 grep -q 'dashboard and metrics on https' "$work/tls.log" || not_ok tls_door_opens "$(tail -n 2 "$work/tls.log")"
port=$(sed -n 's#.*dashboard and metrics on https://[0-9.]*:\([0-9]*\)/.*#\1#p' "$work/tls.log")
tls_ask() { # VERSION TOKEN
    printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n' "$2" |
        timeout 20 openssl s_client -connect "127.0.0.1:$port" -CAfile "$work/cert.pem" -verify_return_error "$1" -quiet -ign_eof 2>/dev/null
}
check_equal tls_gives_metrics 1 "$(tls_ask -tls1_3 ann-0123456789abcdef | grep -c '^heddle_build_info')"
check_equal tls_asks_for_the_token 1 "$(tls_ask -tls1_3 wrong-0123456789abcdef | grep -c '^HTTP/1.1 401')"
check_equal older_tls_is_refused 0 "$(tls_ask -tls1_2 ann-0123456789abcdef | grep -c heddle_build_info)"
kill "$tls_pid"
wait "$tls_pid" 2>/dev/null

# ---- a Unix socket ----

"$HEDDLE_BIN/heddle-controller" --state-dir "$work/unix" --listen "unix:$work/u.sock" --ephemeral --http "unix:$work/h.sock" 2>"$work/unix.log" &
unix_pid=$!
await 60 test -S "$work/h.sock"
check_equal a_unix_socket_is_private 600 "$(stat -c %a "$work/h.sock")"
kill "$unix_pid"
wait "$unix_pid" 2>/dev/null
finish
