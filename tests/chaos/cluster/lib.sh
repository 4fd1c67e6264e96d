# lib.sh: a small cluster of real processes to break, on top of tests/e2e/cluster.sh. The scenarios of this folder
# source it.
#
# A scenario is a function whose name is what it proves, run by `scenario NAME` in a subshell and in
# an empty folder $dir, with programs that carry a mark of their own in the environment, so that each
# can be found and none can stay. `fail WHAT` ends it. What is compared in the end are the files of
# the last checkpoint: equal bytes are equal weights and equal state of the optimizer.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 2
: "${HEDDLE_BIN:=${HEDDLE_BUILD_DIR:?}/bin}"

PATIENCE=90     # seconds for anything that should take a moment; sanitizers and a busy machine are slow
: "${STEPS:=100}" # of the usual job: two seconds
: "${BATCH:=4}"   # its sequences a step
EVERY=10        # its steps between checkpoints

mark= # of the running scenario's processes
dir=  # its folder

note() { printf '%(%H:%M:%S)T %s\n' -1 "$*"; }

fail() { # WHAT: in a scenario
    printf '%s\n' "$*" >"$work/why"
    exit 1
}

# ---- processes ----

# The numbers of this scenario's processes whose command line matches.
processes() { # PATTERN
    local file pid
    for file in $(grep -lzsxF "HEDDLE_TEST_MARK=$mark" /proc/[0-9]*/environ); do
        pid=${file//[!0-9]/}
        tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qE -- "$1" && printf '%s\n' "$pid"
    done
}
programs='^[^ ]*(heddle(d|-[a-z]+)?|chaos_way) ' # all of Heddle, and the monkey's network
rank_pid() { processes "heddle-worker rank .*--rank $1 "; }
none_of() { [ -z "$(processes "$1")" ]; }
gone() { # PID...
    local pid
    for pid; do [ ! -d "/proc/$pid" ] || grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null || return 1; done
}

now_ms() { local t=${EPOCHREALTIME/[.,]/}; printf '%s' $((t / 1000)); }
must_come() { # SECONDS WHAT COMMAND...: until COMMAND succeeds
    local seconds=$1 what=$2
    shift 2
    await "$seconds" "$@" || fail "$what did not come in $seconds s"
}

# ---- the cluster ----

answers() { "$HEDDLE_BIN/heddle" nodes >/dev/null 2>&1; }
start_controller() { # [OPTION...]
    local before
    before=$(bytes_of "$dir/controller.log")
    "$HEDDLE_BIN/heddle-controller" --state-dir "$dir/c" --listen "unix:$dir/c.sock" \
        --jobs-dir "$dir/jobs" "$@" >>"$dir/controller.log" 2>&1 &
    controller=$!
    must_come $PATIENCE "the controller's start" said_behind "$dir/controller.log" "$before" ': ready on '
    must_come $PATIENCE "the controller's answer" answers
}
declare -A daemon=()
start_daemon() { # NAME [OPTION...]
    local name=$1
    shift
    "$HEDDLE_BIN/heddled" --state-dir "$dir/node-$name" --node-name "$name" --devices cpu:2:1 --probe never "$@" \
        >>"$dir/heddled-$name.log" 2>&1 &
    daemon[$name]=$!
}
ready() { # NODE
    grep -qs ': connected to ' "$dir/heddled-$1.log" &&
        "$HEDDLE_BIN/heddle" nodes -o jsonl | grep -q "\"name\": *\"$1\".*\"state\": *\"ready\""
}
end_process() { # SIGNAL PID: of a child of ours
    kill -"$1" "$2" || fail "process $2 was gone before it was to get SIG$1"
    wait "$2" 2>/dev/null
}
kill_controller() { end_process KILL "$controller"; }
kill_daemon() { end_process KILL "${daemon[$1]}"; }
start_cluster() {
    start_controller
    start_daemon a
}

# ---- a jobs directory on a small disk ----

# Fills the jobs directory but for so many bytes, give or take a page. Jobs that write meanwhile are waited for: the
# filler is right when two looks agree.
leave_free() { # BYTES
    local free agreed=0
    : >"$dir/jobs/filler"
    for _ in {1..200}; do
        free=$(df --output=avail -B 1 "$dir/jobs" | tail -n 1)
        if [ "$free" -ge $(($1 + 4096)) ]; then
            agreed=0
            head -c $((free - $1)) /dev/zero >>"$dir/jobs/filler" 2>/dev/null # the last bytes may not fit
        elif [ "$free" -le $(($1 - 4096)) ]; then
            agreed=0
            truncate -s -$(($1 - free)) "$dir/jobs/filler"
        elif [ $((++agreed)) = 2 ]; then
            return
        fi
        sleep 0.03
    done
    fail "the disk does not stay at $1 free bytes"
}
make_room() { rm "$dir/jobs/filler"; }

# ---- jobs ----

write_job() { # FILE
    cat >"$1" <<END
name: chaos
model: {family: llama, layers: 2, hidden: 64, heads: 4, context: 8}
data: {train: [$work/corpus.txt]}
train: {steps: $STEPS, global_batch: $BATCH, lr: 1e-3, precision: fp32}
resources: {device_type: cpu, devices: 2}
checkpoint: {every: $EVERY, keep: 0}
END
}
cat "$HEDDLE_SOURCE_DIR"/lib/base/*.c "$HEDDLE_SOURCE_DIR"/controller/*/*.c | head -c 400000 >"$work/corpus.txt"
write_job "$work/job.yaml"

submit() { # [OPTION...]: prints the job's number
    "$HEDDLE_BIN/heddle" submit "$work/job.yaml" -q "$@" || fail "a submission failed"
}
job_dir() { printf '%s/jobs/%s' "$dir" "$1"; }
log_of() { printf '%s/attempt-%s/logs/rank-0.log' "$(job_dir "$1")" "$2"; }
# The last step that an attempt's rank 0 wrote of itself: told by its log, whoever else is dead.
step_of() { # JOB ATTEMPT
    local step
    step=$(sed -nE 's/.* step ([0-9]+): loss .*/\1/p' "$(log_of "$1" "$2")" 2>/dev/null | tail -n 1)
    printf '%s' "${step:-0}"
}
reached() { [ "$(step_of "$1" "$2")" -ge "$3" ]; }
await_step() { # JOB ATTEMPT STEP
    must_come $PATIENCE "step $3 of attempt $2" reached "$1" "$2" "$3"
}
field() { # JOB KEY: a field of the job itself, as `heddle show` tells it
    "$HEDDLE_BIN/heddle" show "$1" -o jsonl | sed -nE "s/^[^[]*\"$2\": *\"?([^\",]*)\"?,.*/\1/p" | head -n 1
}
await_state() { must_come $PATIENCE "state $2 of job $1" state_is "$1" "$2"; }
attempts() { find "$(job_dir "$1")" -maxdepth 1 -name 'attempt-*' | wc -l; }
events() { "$HEDDLE_BIN/heddle" events "$1" -o jsonl; }
says() { events "$1" | grep -qE -- "$2"; } # JOB PATTERN: one event, a line of JSON, matches

# Complete checkpoints as "STEP ATTEMPT", the newest last.
checkpoints() { # JOB
    find "$(job_dir "$1")" -path '*/checkpoints/step-*/manifest.json' |
        sed -E 's|.*/attempt-([0-9]+)/checkpoints/step-0*([0-9]+)/.*|\2 \1|' | sort -n -k 1,1 -k 2,2
}
newest_step() { # JOB: 0 without one
    local last
    last=$(checkpoints "$1" | tail -n 1)
    printf '%s' "${last:+${last% *}}" | grep . || printf 0
}
has_checkpoint() { [ "$(newest_step "$1")" -ge "$2" ]; }
await_checkpoint() { must_come $PATIENCE "the checkpoint of step $2" has_checkpoint "$1" "$2"; }
checkpoint_dir() { printf '%s/attempt-%s/checkpoints/step-%08d' "$(job_dir "$1")" "$2" "$3"; }

succeed() { # JOB ATTEMPTS|any: waits for the end and checks it
    local out status
    out=$(timeout $((PATIENCE * 2)) "$HEDDLE_BIN/heddle" wait "$1" 2>&1)
    status=$?
    [ $status = 0 ] || fail "job $1 did not succeed (heddle wait: status $status): $out"
    [ "$2" = any ] || [ "$(attempts "$1")" = "$2" ] || fail "job $1 took $(attempts "$1") attempts, not $2"
}
# The shards of a job's last checkpoint are those of the undisturbed run, byte for byte.
same_weights() { # JOB
    local attempt shards shard found
    attempt=$(checkpoints "$1" | sed -n "s/^$STEPS //p" | tail -n 1)
    [ -n "$attempt" ] || fail "job $1 left no checkpoint of step $STEPS"
    found=$(checkpoint_dir "$1" "$attempt" $STEPS)
    shards=$(cd "$work/reference" && echo rank-*.safetensors)
    [ "$(cd "$found" && echo rank-*.safetensors)" = "$shards" ] || fail "$found has other shards than $shards"
    for shard in $shards; do
        cmp "$work/reference/$shard" "$found/$shard" >&2 || fail "$shard of job $1 is not that of the undisturbed run"
    done
}
# Each step from 1 to the last was reported once and only once, in order.
every_step_once() { # FILE: what `heddle watch -o jsonl` printed
    sed -nE 's/^\{"type": *"step",.*"step": *([0-9]+),.*/\1/p' "$1" >"$dir/steps"
    seq 1 $STEPS | cmp -s - "$dir/steps" || fail "the steps reported are not 1 to $STEPS, each once: $(tr '\n' ' ' <"$dir/steps")"
}

# ---- scenarios ----

logs() { find "$dir" -name '*.log' -size +0; }
# In a build with sanitizers, what they found.
sanitizers_say() { logs | xargs -rd '\n' grep -hE 'ERROR: [A-Za-z]+Sanitizer|runtime error: ' /dev/null | head -n 1; }
show_logs() {
    local log
    logs | sort | while read -r log; do
        printf '    --- %s\n' "${log#"$dir"/}"
        grep -vE ': step [0-9]+: loss' "$log" | tail -n 12 | cut -c 1-400 | sed 's/^/    /'
    done
}
kill_all() {
    local left
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        left=$(processes "$programs")
        [ -n "$left" ] || return
        kill -KILL $left 2>/dev/null
        sleep 0.1
    done
}
scenario() { # NAME
    local began=$SECONDS status
    dir=$work/$((++count))
    mark=$$.$count
    mkdir "$dir"
    rm -f "$work/why"
    export HEDDLE_TEST_MARK=$mark HEDDLE_CONTROLLER=unix:$dir/c.sock
    ("$1")
    status=$?
    kill_all
    if [ $status = 0 ] && [ -n "$(sanitizers_say)" ]; then
        sanitizers_say >"$work/why"
        status=1
    fi
    if [ $status = 0 ]; then
        printf 'ok %s\n' "$1"
        note "in $((SECONDS - began)) s"
        rm -rf --one-file-system "$dir"
    else
        failures=$((failures + 1))
        printf 'not ok %s: %s\n' "$1" "$(cat "$work/why" 2>/dev/null || echo "ended with status $status")"
        show_logs
    fi
}
count=0
finish() { # what has failed leaves its folder
    [ $failures != 0 ] || rm -rf --one-file-system "$work"
    exit $((failures > 0))
}

# Keeps the last checkpoint of a run that nothing disturbs in $work/reference.
an_undisturbed_run_succeeds() {
    local job
    start_cluster
    job=$(submit) || exit
    succeed "$job" 1
    cp -r "$(checkpoint_dir "$job" 1 $STEPS)" "$work/reference" || fail "there is no last checkpoint"
}
