#!/bin/bash
# Python's grpcio, with nothing of ours at hand, lists the services, asks for jobs and for health.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python strangers_ask_for_jobs grpc grpc_reflection grpc_health google.protobuf

start_controller
start_node n1 cpu:2
job=$(submit "$(job_file stranger)" --set train.steps=2)
heddle wait "$job" >/dev/null 2>&1
check a_stranger_lists_services_and_jobs "$python" "$HEDDLE_SOURCE_DIR/tests/interop/services/reflection.py" \
    "$HEDDLE_CONTROLLER" "$job" stranger
cat "$work/check.out"

"$python" "$HEDDLE_SOURCE_DIR/tests/interop/services/watcher.py" "$HEDDLE_CONTROLLER" >"$work/watched" 2>&1 &
watcher=$!
await 20 grep -q SERVING "$work/watched"
kill -TERM "$controller_pid"
wait "$watcher"
check_equal a_watcher_hears_the_controller_go "SERVING NOT_SERVING" "$(tr '\n' ' ' <"$work/watched" | sed 's/ $//')"

# the TCP door: the same answers with the token, none without
printf 'a-token-of-some-length-123\n' >"$work/token"
chmod 600 "$work/token"
"$HEDDLE_BIN/heddle-controller" --state-dir "$work/tcp" --listen 127.0.0.1:0 --token-file "$work/token" \
    --ephemeral >"$work/tcp.log" 2>&1 &
controller_pid=$!
await 20 grep -q 'ready on' "$work/tcp.log"
port=$(sed -nE 's/.*ready on 127.0.0.1:([0-9]+).*/\1/p' "$work/tcp.log")
check health_behind_the_token "$python" - "127.0.0.1:$port" <<'END'
import sys, grpc
from grpc_health.v1 import health_pb2 as pb, health_pb2_grpc as rpc
stub = rpc.HealthStub(grpc.insecure_channel(sys.argv[1]))
token = (("authorization", "Bearer a-token-of-some-length-123"),)
assert stub.Check(pb.HealthCheckRequest(), timeout=10, metadata=token).status == 1
try:
    stub.Check(pb.HealthCheckRequest(), timeout=10)
    sys.exit("answered without a token")
except grpc.RpcError as e:
    assert e.code() == grpc.StatusCode.UNAUTHENTICATED, e
END
finish
