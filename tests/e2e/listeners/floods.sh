#!/bin/bash
# What a connection costs before it has shown who it is. For each kind of flood, without and with TLS: the
# memory of the controller stays below 256 MiB above what it had, and a caller with a token waits a second at
# most. The caller comes from an address of the attacker's. Usage: floods.sh SECONDS
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

seconds=${1:-0.8} addresses=127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4
mib_max=256 wait_ms_max=1000
flood=$HEDDLE_BUILD_DIR/tests/flood
umask 077
head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/token"
printf 'see token jobs\n' >"$work/policy"
export HEDDLE_TOKEN_FILE=$work/token

begin() { # [OPTION...]: a controller on a free port; sets port and http
    local try
    for try in 1 2 3 4 5; do
        port=$((20000 + RANDOM % 20000))
        export HEDDLE_CONTROLLER=127.0.0.1:$port
        "$HEDDLE_BIN/heddle-controller" --state-dir "$work/controller" --listen "$HEDDLE_CONTROLLER" \
            --token-file "$work/token" --jobs-dir "$work/jobs" --ephemeral --http 127.0.0.1:0 --policy "$work/policy" "$@" \
            >"$work/controller.log" 2>&1 &
        controller_pid=$!
        await 10 heddle jobs && break
        kill "$controller_pid" 2>/dev/null
        controller_pid=
    done
    [ -n "$controller_pid" ] || { not_ok the_controller_starts "$(tail -n 3 "$work/controller.log")"; finish; }
    http=$(sed -n 's#.*dashboard and metrics on https\?://[0-9.]*:\([0-9]*\)/.*#\1#p' "$work/controller.log")
}
kib() { awk -v what="$1:" '$1 == what { print $2 }' "/proc/$controller_pid/status"; }

# held NAME PORT CALL KIND [OPTION...]: a flood of KIND at PORT, and CALL again and again beside it
held() {
    local name=$1 at=$2 call=$3 kind=$4 idle peak pid begun times
    shift 4
    idle=$(kib VmRSS)
    echo 5 >"/proc/$controller_pid/clear_refs" # VmHWM begins anew
    "$flood" "$kind" "$at" --seconds "$seconds" --from $addresses --connections 64 --kib-per-s 8192 "$@" >"$work/flood" &
    pid=$!
    times=
    sleep 0.1
    while kill -0 $pid 2>/dev/null || [ "$(wc -w <<<"$times")" -lt 5 ]; do
        begun=${EPOCHREALTIME/./}
        $call >"$work/call" 2>&1 || printf 'failed: %s\n' "$(tail -n 1 "$work/call")" >>"$work/failed"
        times+=" $(((${EPOCHREALTIME/./} - begun) / 1000))"
    done
    wait $pid
    peak=$(kib VmHWM)
    # of the waits the middle one: a machine that does other work stops now and then
    wait_ms=$(tr ' ' '\n' <<<"$times" | sed '/^$/d' | sort -n | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] }')
    printf '%s: %d MiB above idle, waits of%s ms; %s\n' "$name" $(((peak - idle) / 1024)) "$times" "$(cat "$work/flood")"
    if [ -s "$work/failed" ]; then
        not_ok "$name" "$(wc -l <"$work/failed") calls failed, the first: $(head -n 1 "$work/failed")"
    elif [ $(((peak - idle) / 1024)) -ge $mib_max ]; then
        not_ok "$name" "$(((peak - idle) / 1024)) MiB more than before, at most $mib_max are allowed"
    elif [ "$wait_ms" -gt $wait_ms_max ]; then
        not_ok "$name" "a call took $wait_ms ms, at most $wait_ms_max are allowed"
    else
        ok "$name"
    fi
    rm -f "$work/failed"
}

jobs() { heddle jobs; }
# threads have the stack of the limit that their program was started with: all of this under a small one
ulimit -Ss 64
begin
ulimit -Ss "$(ulimit -Hs)"
for kind in silent preface padded padded-slow continuation indexed calls streams resets pings settings data half-hello; do
    held "${kind//-/_}_costs_no_caller_anything" $port jobs $kind
done
# a crowd from the caller's own address: what is closed comes back at once
for kind in silent preface padded; do
    held "${kind}_crowd_costs_a_caller_of_its_address_a_few_tries" $port jobs $kind --connections 600 --from 127.0.0.1
done
scrape() { curl -sS --max-time 20 --oauth2-bearer "$(cat "$work/token")" -o /dev/null -f "http://127.0.0.1:$http/metrics"; }
if command -v curl >/dev/null && [ -n "$http" ]; then
    for kind in silent http-slow http-head http-body; do
        held "${kind//-/_}_costs_no_scrape_anything" "$http" scrape $kind
    done
else
    printf 'skip silent_costs_no_scrape_anything: there is no curl\n'
fi
kill -TERM "$controller_pid"
wait "$controller_pid"
controller_pid=

if openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout "$work/key.pem" \
    -out "$work/cert.pem" -subj /CN=controller -addext subjectAltName=IP:127.0.0.1 2>/dev/null; then
    export HEDDLE_TLS_CA=$work/cert.pem
    begin --tls-cert "$work/cert.pem" --tls-key "$work/key.pem"
    jobs() { heddle jobs --tls-ca "$work/cert.pem"; }
    for kind in silent half-hello padded continuation calls; do
        held "${kind//-/_}_with_tls_costs_no_caller_anything" $port jobs $kind --tls
    done
else
    printf 'skip silent_with_tls_costs_no_caller_anything: there is no openssl\n'
fi
finish
