#!/bin/bash
# monkey.sh ACTIONS SEED|random NODE=DEVICES...: jobs on these nodes, one after the other, while something is
# done to some process or disk again and again: processes are killed or stopped and go on, disks are full
# or read-only, the network between a node and the controller is cut, silent or slow, descriptors run out.
# Every job succeeds with the weights of a run that nothing disturbs, nothing stays behind, nothing that
# was acknowledged is missing, and a running job has a reason while something is wrong for long.
# With 100 ACTIONS or more some of what is done lasts for 40 s, half of it without anything else.
if [ -z "${MONKEY_DISKS-}" ]; then # small disks take a mount namespace of this script's own
    MONKEY_DISKS=none
    unshare -m true 2>/dev/null && MONKEY_DISKS=small exec unshare -m "$BASH" "$0" "$@"
    unshare -Urm true 2>/dev/null && MONKEY_DISKS=small exec unshare -Urm "$BASH" "$0" "$@"
    echo "disks are left alone: mounting a small one takes root"
fi
STEPS=150
. "$HEDDLE_SOURCE_DIR/tests/chaos/cluster/lib.sh"

actions=$1 seed=$2
[ "$seed" != random ] || seed=$((SRANDOM % 100000))
shift 2
nodes=("${@%=*}") counts=("${@#*=}")
PATIENT_MS=30000 # for so long a running job may have no reason while something is wrong
declare -A way=()

lives() { gone "$1" && return 1 || return 0; }

# ---- what lasts for a while: a cure for each, and when it is due ----

declare -A due=() cure=() since=() still=()
quiet_until=0 # nothing else is done before
lasting() { # KEY MS STILL CURE: STILL is a command that fails when the trouble is over by itself
    since[$1]=$(now_ms)
    due[$1]=$((since[$1] + $2))
    [ "$2" -lt $PATIENT_MS ] || [ $((RANDOM % 2)) = 0 ] || quiet_until=${due[$1]}
    still[$1]=$3
    cure[$1]=$4
}
heal() { # [KEY...]: those that are due, or these
    local key keys=("$@")
    [ $# -gt 0 ] || keys=("${!due[@]}")
    for key in "${keys[@]}"; do
        [ -n "${due[$key]-}" ] || continue
        [ $# -gt 0 ] || [ "$(now_ms)" -ge "${due[$key]}" ] || continue
        eval "${cure[$key]}"
        note "healed: $key"
        unset "due[$key]" "cure[$key]" "since[$key]" "still[$key]"
    done
}
# Writes since when something is wrong that a running job's reason must tell; an empty file: nothing is.
note_wrong() {
    local key oldest=
    for key in "${!due[@]}"; do
        [ -n "${still[$key]}" ] && eval "${still[$key]}" || continue
        [ -n "$oldest" ] && [ "${since[$key]}" -ge "${oldest% *}" ] || oldest="${since[$key]} $key"
    done
    printf '%s\n' "$oldest" >"$dir/wrong.new"
    mv "$dir/wrong.new" "$dir/wrong"
}
stopped() { grep -q '^State:.T' "/proc/$1/status" 2>/dev/null; }
unexplained() { timeout 5 "$HEDDLE_BIN/heddle" jobs -o jsonl 2>/dev/null | grep '"state": *"running"' | grep -E '"reason": *""'; }
watch_reasons() { # a moment without an answer, or with a reason, begins the time anew
    local ms key line now from=0 of=
    while sleep 1; do
        read -r ms key <"$dir/wrong"
        line=$(unexplained)
        read -r now _ <"$dir/wrong" # the same trouble, also after the answer
        if [ -z "$line" ] || [ -z "$ms" ] || [ "$now" != "$ms" ] || [ "$of" != "$ms" ]; then
            from=$(now_ms) of=$ms
        elif [ $(($(now_ms) - from)) -gt $PATIENT_MS ]; then
            printf '%s, no reason for %d ms: %s\n' "$key" $(($(now_ms) - from)) "$line" >>"$dir/unexplained"
        fi
    done
}

# ---- processes ----

start_way() { # NODE ROUND_TRIP_MS
    "$HEDDLE_BUILD_DIR/tests/chaos_way" "$dir/way-$1.sock" "$dir/c.sock" "$2" >>"$dir/way.log" 2>&1 &
    way[$1]=$!
}
revive() {
    local i node
    for i in "${!nodes[@]}"; do
        node=${nodes[i]}
        lives "${way[$node]-0}" || start_way "$node" 0
        lives "${daemon[$node]-0}" ||
            start_daemon "$node" --controller "unix:$dir/way-$node.sock" --devices "cpu:${counts[i]}:1"
    done
    lives "$controller" && return
    heal state-full # nothing is promised for a start on a full disk
    start_controller
}
reap() {
    local process
    for process in "$controller" "${daemon[@]}" "${way[@]}"; do
        gone "$process" && wait "$process" 2>/dev/null
    done
}
# Prints the processes of one kind, chosen by chance.
victims() { # NODE ranks|supervisors|...
    case $2 in
    rank) rank_pid $((RANDOM % 2)) ;;
    supervisor) processes "heddle-supervisor .*--node $1 " ;;
    heddled) printf '%s\n' "${daemon[$1]}" ;;
    controller) printf '%s\n' "$controller" ;;
    way) printf '%s\n' "${way[$1]}" ;;
    esac
}

# ---- what is done ----

kinds=(rank rank supervisor heddled controller way)
pick() { node=${nodes[RANDOM % ${#nodes[@]}]} kind=${kinds[RANDOM % ${#kinds[@]}]}; }
duration() { # prints ms; now and then so long that a reason is due
    if [ "$actions" -ge 100 ] && [ $((RANDOM % 10)) = 0 ]; then echo 40000; else echo $((RANDOM % 3000)); fi
}
do_kill() {
    local pids node kind
    pick
    if [ $((RANDOM % 8)) = 0 ]; then
        what=everybody pids=$(processes "$programs")
    else
        what="$kind of $node" pids=$(victims "$node" "$kind")
    fi
    [ -n "$pids" ] || return 1
    what="kill $what"
    kill -KILL $pids 2>/dev/null
    reap
    return 0
}
do_stop() {
    local pid node kind ms told
    pick
    pid=$(victims "$node" "$kind" | head -n 1)
    [ -n "$pid" ] && [ -z "${due[stop-$pid]-}" ] || return 1
    ms=$(duration)
    told="stopped $pid"
    [ "$kind" != controller ] || told= # then nothing tells anything
    [ "$kind" != controller ] || [ "$ms" -le 10000 ] || ms=10000
    kill -STOP "$pid" 2>/dev/null || return 1
    lasting "stop-$pid" "$ms" "$told" "kill -CONT $pid 2>/dev/null"
    what="stop $kind of $node for $ms ms"
}
do_slow() {
    local node kind
    pick
    what="the way of $node takes $((RANDOM % 4 * 100)) ms"
    kill -KILL "${way[$node]}" 2>/dev/null
    reap
    start_way "$node" "$(tr -dc 0-9 <<<"${what##* takes}")"
}
do_disk() {
    local ms
    ms=$(duration)
    case $((RANDOM % 3)) in
    0)
        what="jobs directory full for $ms ms"
        [ -z "${due[jobs-full]-}${due[jobs-read-only]-}" ] || return 1
        leave_free 0
        lasting jobs-full "$ms" true make_room
        ;;
    1)
        what="jobs directory read-only for $ms ms"
        [ -z "${due[jobs-full]-}${due[jobs-read-only]-}" ] || return 1
        mount --bind "$dir/jobs" "$dir/jobs" && mount -o remount,bind,ro "$dir/jobs" || fail "cannot mount read-only"
        lasting jobs-read-only "$ms" true "umount -l '$dir/jobs'"
        ;;
    2)
        what="state directory full for $((ms % 5000)) ms"
        [ -z "${due[state-full]-}" ] || return 1
        cat /dev/zero >"$dir/c/filler" 2>/dev/null
        lasting state-full $((ms % 5000)) "" "rm -f '$dir/c/filler'"
        ;;
    esac
}
do_descriptors() {
    local pid node kind soft open ms=$((RANDOM % 5000))
    pick
    [ "$kind" != way ] && pid=$(victims "$node" "$kind" | head -n 1) && [ -n "$pid" ] || return 1
    [ -z "${due[descriptors-$pid]-}" ] || return 1
    soft=$(prlimit --pid "$pid" --nofile -o SOFT --noheadings 2>/dev/null) || return 1
    open=$(ls "/proc/$pid/fd" 2>/dev/null | sort -n | tail -n 1)
    prlimit --pid "$pid" --nofile=$((${open:-0} + 1)): 2>/dev/null || return 1
    lasting "descriptors-$pid" "$ms" "" "prlimit --pid $pid --nofile=$((soft)): 2>/dev/null"
    what="no descriptors for $kind of $node for $ms ms"
}
turns=(do_kill do_stop do_disk do_kill do_slow do_stop do_descriptors do_kill)
[ "$MONKEY_DISKS" = small ] || turns=(do_kill do_stop do_kill do_slow do_stop do_descriptors)
strike() {
    local what at
    at="at step $(step_of "$job" "$(attempts "$job")") of attempt $(attempts "$job")"
    "${turns[struck % ${#turns[@]}]}" || return 1
    note "$((struck + 1)): $what, $at of job $job"
}

# ---- what was acknowledged ----

# Steps that a watcher has seen, as often as it has to begin anew.
watch_steps() { # JOB
    while sleep 0.3; do
        timeout 60 "$HEDDLE_BIN/heddle" watch "$1" -o jsonl >>"$dir/seen.$1" 2>/dev/null && return
    done
}
steps_in() { # FILE: ATTEMPT STEP LOSS; a line that was cut off does not count
    sed -nE 's/^\{"type": *"step",.*"attempt": *([0-9]+).*"step": *([0-9]+),.*"loss": *([^,]+),.*\}$/\1 \2 \3/p' "$1" | sort -u
}
# A job that waits behind the others and is cancelled: both are facts once they are acknowledged.
bystander() {
    local number
    number=$(timeout 5 "$HEDDLE_BIN/heddle" submit "$work/job.yaml" -q --set train.steps=100000 2>/dev/null) || return
    echo "$number" >>"$dir/submitted"
    timeout 5 "$HEDDLE_BIN/heddle" cancel "$number" >/dev/null 2>&1 && echo "$number" >>"$dir/cancelled"
}
acknowledged_is_kept() {
    local number
    for number in $(cat "$dir/submitted" 2>/dev/null); do
        "$HEDDLE_BIN/heddle" show "$number" >/dev/null || fail "job $number was acknowledged and is missing"
    done
    for number in $(cat "$dir/cancelled" 2>/dev/null); do
        await_state "$number" cancelled
    done
}

# ---- the scenario ----

only_the_newest_are_left() { [ "$(checkpoints "$job" | wc -l)" = 2 ]; }
check_job() {
    succeed "$job" any
    [ "$(field "$job" step)" = $STEPS ] || fail "job $job succeeded at step $(field "$job" step) of $STEPS"
    same_weights "$job"
    must_come 60 "the end of all checkpoints of job $job but two" only_the_newest_are_left
    "$HEDDLE_BIN/heddle" checkpoint verify "$job" >"$dir/verify.log" 2>&1 || fail "a checkpoint is damaged"
    "$HEDDLE_BIN/heddle" watch "$job" -o jsonl >"$dir/history" || fail "job $job has no history"
    steps_in "$dir/history" >"$dir/steps"
    [ -s "$dir/steps" ] || fail "there is no history"
    cut -d' ' -f1,2 "$dir/steps" | uniq -d | grep . >"$dir/twice" && fail "attempt and step were counted twice: $(head -n 5 "$dir/twice")"
    steps_in "$dir/seen.$job" | comm -23 - "$dir/steps" >"$dir/missing"
    [ ! -s "$dir/missing" ] || fail "job $job: these steps were told and are missing: $(head -n 5 "$dir/missing")"
}
submit_next() { # while anything may be wrong: until it is acknowledged
    local number
    number=$(timeout 10 "$HEDDLE_BIN/heddle" submit "$work/job.yaml" -q --set restart.max=1000 --set checkpoint.every=3 \
        --set checkpoint.keep=2 2>"$dir/refused") || return
    job=$number jobs+=("$number")
    watch_steps "$job" &
    watchers+=($!)
}
has_ended() { [[ $(field "$job" state) =~ ^(succeeded|failed|cancelled)$ ]]; }
trouble() {
    local job=0 jobs=() struck=0 controller=0 tries=0
    mkdir "$dir/jobs" "$dir/c"
    if [ "$MONKEY_DISKS" = small ]; then
        mount -t tmpfs -o size=256m tmpfs "$dir/jobs" && mount -t tmpfs -o size=64m,mode=0700 tmpfs "$dir/c" ||
            fail "cannot mount a tmpfs"
    fi
    : >"$dir/wrong"
    revive
    submit_next
    [ "$job" != 0 ] || fail "the first submission failed: $(cat "$dir/refused")"
    watch_reasons &
    watchers+=($!)
    RANDOM=$seed
    note "seed $seed"
    while [ $struck -lt "$actions" ]; do
        sleep "0.$((RANDOM % 10))"
        if [ "$(now_ms)" -ge "$quiet_until" ]; then
            strike && struck=$((struck + 1)) || tries=$((tries + 1))
        fi
        [ $tries -lt $((20 * actions)) ] || fail "only $struck things could be done"
        heal
        note_wrong
        sleep "0.$((RANDOM % 5))"
        revive
        [ $((RANDOM % 15)) != 0 ] || bystander
        if has_checkpoint "$job" $STEPS && has_ended; then
            submit_next
        fi
    done
    heal "${!due[@]}"
    note_wrong
    revive
    acknowledged_is_kept
    for job in $(cat "$dir/submitted" 2>/dev/null); do
        "$HEDDLE_BIN/heddle" cancel "$job" >/dev/null 2>&1
    done
    for job in "${jobs[@]}"; do
        check_job
    done
    [ ! -s "$dir/unexplained" ] || fail "a job ran without a reason: $(head -n 3 "$dir/unexplained")"
    must_come 30 "the end of all ranks" none_of 'heddle-(worker|supervisor)'
    note "$struck actions, ${#jobs[@]} jobs, $(for job in "${jobs[@]}"; do attempts "$job"; done | paste -sd+ | bc) attempts," \
        "$(wc -l <"$dir/submitted" 2>/dev/null || echo 0) bystanders"
    if [ "$MONKEY_DISKS" = small ]; then
        kill_all
        umount "$dir/jobs" "$dir/c"
    fi
}

no_trouble_changes_a_weight() {
    watchers=()
    trap 'kill "${watchers[@]}" 2>/dev/null' EXIT
    trouble
}

scenario an_undisturbed_run_succeeds
scenario no_trouble_changes_a_weight
finish
