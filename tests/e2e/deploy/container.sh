#!/bin/bash
# heddled as the first process of a container: it collects what ends there, and a stop of the container
# leaves the job at a checkpoint, from which it goes on when the node is back.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

if ! unshare --pid --fork --mount-proc true 2>/dev/null; then
    echo "skip a_node_in_a_container: process namespaces take root"
    finish
fi
health() { nsenter --target "$first" --net "$HEDDLE_SOURCE_DIR/deploy/container/node-health" "$@"; }
contain() { # a container's start: sets first, heddled's process 1, and node_pids
    unshare --net sh -c 'ip link set lo up; exec "$@"' sh \
        unshare --pid --fork --kill-child --mount-proc "$HEDDLE_BIN/heddled" --state-dir "$work/n1" --node-name n1 \
        --devices cpu:1:1 --probe never --min-free 0 --leave-within 60 \
        --http 127.0.0.1:9461 "$@" >>"$work/n1.log" 2>&1 &
    node_pids[n1]=$!
    await 60 node_is n1 ready || { not_ok the_node_is_ready "$(tail -n 3 "$work/n1.log")"; finish; }
    first=$(below "${node_pids[n1]}" | head -n 1)
}
of() { # NAME: the newest process of this name in the container
    local pid
    for pid in $(below "$first"); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] && echo "$pid"
    done | tail -n 1
}
zombies() { for pid in $(below "$first"); do sed -nE 's/^State:\t(Z).*/\1/p' "/proc/$pid/status" 2>/dev/null; done; }
no_zombie() { [ -z "$(zombies)" ]; }
restarted() { heddle show "$job" -o jsonl | grep -q '"restarts":1,'; }
stepped_again() { timeout 60 "$HEDDLE_BIN/heddle" watch "$job" -o jsonl | grep -q '^{"type":"step",.*"attempt":2,'; }

start_controller --node-lost-after 30
contain
check_equal it_is_two_processes "heddled heddled" "$(cat "/proc/$first/comm") $(cat "/proc/$(below "$first" | head -n 1)/comm")"
# the flags that the recipes give are options of the programs, and no flag of another version
for program in heddle-controller heddled; do
    "$HEDDLE_BIN/$program" --help >"$work/help" 2>&1
    case $program in
    heddled) file=node stage=node ;;
    *) file=controller stage=controller ;;
    esac
    { sed -n "/^FROM .* AS $stage\$/,/^FROM /p" "$HEDDLE_SOURCE_DIR/deploy/container/Containerfile" | grep '^CMD\|^     "'
      grep -E '^ +- (exec heddled )?.*--' "$HEDDLE_SOURCE_DIR/deploy/helm/heddle/templates/$file.yaml"; } |
        grep -oE -e '--[a-z][a-z-]+' | sort -u >"$work/flags"
    unknown=$(while read -r flag; do grep -qE -e "$flag( |\$)" "$work/help" || printf '%s ' "$flag"; done <"$work/flags")
    check_equal "recipes_give_${program#heddle-}_options_that_it_has" "" "$unknown"
    check "and_some_to_${program#heddle-}" test "$(wc -l <"$work/flags")" -ge 4
done
if command -v ip >/dev/null; then
    check its_health_is_seen health live 9461
    check and_that_it_is_ready await 10 health ready 9461
    check_status a_door_that_is_shut_is_no_health 1 health live 9462
fi
job=$(submit "$(job_file contained)" --set resources.devices=1 --set train.steps=100000 --set checkpoint.every=100000 \
    --set validate.every=0)
await 60 steps_at_least "$job" 5
# its ranks have no other parent now than process 1
kill -KILL "$(of heddle-supervis)"
check a_killed_supervisors_job_starts_again await 60 restarted
check all_that_ended_was_collected await 60 no_zombie
stepped_again # the job's own step is that of its first attempt until then

kill -TERM "$first"
wait "${node_pids[n1]}"
check_equal a_stop_of_the_container_ends_it 0 $?
check_equal the_job_waits queued "$(state_of "$job")"
saved=$(heddle checkpoint ls "$job" -o jsonl | member step)
check it_is_at_a_checkpoint test "${saved:-0}" -ge 1 # checkpoint.every is far away
check_equal and_says_why 1 "$(heddle events "$job" | grep -c 'leaves n1, whose heddled ends')"
contain --leave-within 1
check it_goes_on_from_there await 60 steps_at_least "$job" $((saved + 1))

# Without a controller it is alive and not ready. There is no checkpoint then: what is left when the time is over is killed.
kill -KILL "$controller_pid"
wait "$controller_pid" 2>/dev/null
if command -v ip >/dev/null; then
    not_ready() { health live 9461 && ! health ready 9461; }
    check without_a_controller_it_is_not_ready await 10 not_ready
fi
rank=$(of heddle-worker)
kill -TERM "$first"
wait "${node_pids[n1]}"
check_equal it_ends_without_a_controller 0 $?
check_equal and_so_does_its_rank "" "$(cat "/proc/${rank:-0}/comm" 2>/dev/null)"
controller_pid=
unset "node_pids[n1]"
finish
