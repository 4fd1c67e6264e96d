# cluster.sh: what the end-to-end scenarios share; sourced, not run.
#
#   . "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
#   start_controller && start_node n1 cpu:2
#   job=$(submit "$(job_file tiny)")
#   check a_job_succeeds heddle wait "$job"
#   finish
#
# A scenario has one private folder, $work. Everything that is started here is ended by finish, and
# at the latest by tests/guard.

set -u
export LC_ALL=C.UTF-8 NO_COLOR=1
work=$(mktemp -d "${TMPDIR:-/tmp}/e2e.XXXXXX") || exit 1
export HEDDLE_CONTROLLER=unix:$work/c.sock
# what a scenario expects must not depend on the machine's GPUs and configuration files
export HEDDLE_CUDA_PLUGIN=none HEDDLE_CONFIG=none
# what stand-ins read reaches ranks
export HEDDLE_PASS_ENV='FAKE_*,HD_CUDASIM_*,NVML_*'
# ranks take 20 ms longer for a step, asleep (tests/pace); not in a build with sanitizers
pace=${HEDDLE_BUILD_DIR:-}/tests/libpace.so
[ ! -f "$pace" ] || export LD_PRELOAD=$pace
failures=0
controller_pid=
declare -A node_pids=()

heddle() { "$HEDDLE_BIN/heddle" "$@"; }

# ---- results ----

ok() { printf 'ok %s\n' "$1"; }
not_ok() { # NAME WHAT
    printf 'not ok %s: %s\n' "$1" "$2"
    failures=$((failures + 1))
}
# check NAME COMMAND...: the command succeeds
check() {
    local name=$1 status
    shift
    "$@" >"$work/check.out" 2>"$work/check.err"
    status=$?
    if [ $status = 0 ]; then
        ok "$name"
    else
        not_ok "$name" "'$*' ended with $status: $(head -c 400 "$work/check.err" | tr '\n' ' ')"
    fi
}
# check_status NAME STATUS COMMAND...: it ends with just this status; its output is in $work/check.*
check_status() {
    local name=$1 expected=$2 status
    shift 2
    "$@" >"$work/check.out" 2>"$work/check.err"
    status=$?
    if [ $status = "$expected" ]; then
        ok "$name"
    else
        not_ok "$name" "'$*' ended with $status, not $expected: $(head -c 400 "$work/check.err" | tr '\n' ' ')"
    fi
}
# check_equal NAME EXPECTED ACTUAL
check_equal() {
    if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "expected '$2', got '$3'"; fi
}
# await SECONDS COMMAND...: until it succeeds
# A look starts a program: after the first five they are rarer.
await() {
    local end=$((SECONDS + $1)) looks=0 pause=0.05
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep $pause
        [ $((++looks)) != 5 ] || pause=0.2
    done
}

# ---- the cluster ----

# What a daemon says when it is up is read in its log: a call of heddle takes ten times as long.
bytes_of() { stat -c %s "$1" 2>/dev/null || echo 0; }
said_behind() { tail -c +"$(($2 + 1))" "$1" | grep -qE "$3"; } # LOG BYTES PATTERN
start_controller() { # [ARG...]
    local before
    before=$(bytes_of "$work/controller.log")
    "$HEDDLE_BIN/heddle-controller" --state-dir "$work/controller" --listen "$HEDDLE_CONTROLLER" \
        --jobs-dir "$work/jobs" --ephemeral "$@" >>"$work/controller.log" 2>&1 &
    controller_pid=$!
    if ! await 20 said_behind "$work/controller.log" "$before" ': ready on ' || ! await 20 heddle jobs; then
        not_ok start_controller "the controller does not answer: $(tail -n 3 "$work/controller.log")"
        finish
    fi
}
start_node() { # NAME DEVICES [ARG...]
    local name=$1 devices=$2 before
    shift 2
    before=$(bytes_of "$work/$name.log")
    "$HEDDLE_BIN/heddled" --state-dir "$work/$name" --node-name "$name" --devices "$devices" \
        --ephemeral "$@" >>"$work/$name.log" 2>&1 &
    node_pids[$name]=$!
    if ! await 20 said_behind "$work/$name.log" "$before" ': connected to ' || ! await 20 node_is "$name" ready; then
        not_ok "start_node_$name" "the node is not ready: $(tail -n 3 "$work/$name.log")"
        finish
    fi
}
node_is() { heddle nodes -o jsonl | grep -F "\"name\":\"$1\"" | grep -qF "\"state\":\"$2\""; }

# job_file NAME [KEY=VALUE]...: prints the path of a small job that runs for a second or two
job_file() {
    local name=$1 path=$work/$1.yaml
    [ -f "$work/corpus.txt" ] || cat "$HEDDLE_SOURCE_DIR"/LICENSE >"$work/corpus.txt"
    cat >"$path" <<END
name: $name
model: {family: llama, layers: 2, hidden: 64, heads: 4, context: 16}
data: {train: [corpus.txt], val_split: 0.1}
train: {steps: 30, global_batch: 8, lr: 3e-3, precision: fp32}
validate: {every: 10, batches: 2}
resources: {devices: 2}
checkpoint: {every: 10, keep: 0}
END
    printf '%s\n' "$path"
}
submit() { heddle submit -q "$@"; }
# member KEY: the first value of a key in JSON on standard input, without quotes
member() { sed -nE "s/.*\"$1\":\"?([^\",}]*).*/\\1/p" | head -n 1; }
state_of() { heddle show "$1" -o jsonl | sed -nE 's/^\{"type":"job","job":[0-9]+,"name":"[^"]*","owner":"[^"]*","state":"([a-z]+)".*/\1/p'; }
state_is() { [ "$(state_of "$1")" = "$2" ]; }
# steps_at_least JOB STEP
steps_at_least() { [ "$(heddle show "$1" -o jsonl | sed -nE 's/.*"restarts":[0-9]+,"step":([0-9]+).*/\1/p')" -ge "$2" ]; }

# below PID: the processes that it started, and theirs
below() {
    local pid
    for pid in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
        printf '%s\n' "$pid"
        below "$pid"
    done
}
ranks_below() {
    local pid
    for pid in $(below "$1"); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = heddle-worker ] && printf '%s\n' "$pid"
    done
}

finish() {
    local pid
    # the controller first: it would start again what the nodes give up
    for pid in $controller_pid ${node_pids[@]+"${node_pids[@]}"}; do
        kill -TERM "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    if [ $failures != 0 ]; then
        tail -n 20 "$work"/*.log 2>/dev/null
    fi
    await 10 rm -rf --one-file-system "$work" || not_ok finish "$work is still written to"
    [ $failures = 0 ]
    exit
}
