#!/bin/bash
# smoke.sh: every benchmark at its smallest size, with every case and precision that needs no GPU, so that none rots.
# Those of the control plane exit with 1 where a bar is missed, which is no failure here: times of such sizes say
# nothing. With a Python that has PyTorch ($HEDDLE_PYTHON) its peers run, too.
#
#   smoke.sh engine | control      those of training, kernels and plans; those of the control plane
set -u
cd "$TMPDIR" || exit 1
bench=$HEDDLE_BUILD_DIR/bench status=0 missed=0 # the status for a missed bar; 0: there is none

runs() { # NAME LINES PROGRAM ARG...: it ends by itself, and prints so many lines at least
    local name=$1 lines=$2 rc
    shift 2
    "$bench/$1" "${@:2}" >"$TMPDIR/out" 2>"$TMPDIR/err" </dev/null
    rc=$?
    if [ $rc != 0 ] && [ $rc != $missed ]; then
        echo "not ok $name: exit status $rc"
    elif [ "$(wc -l <"$TMPDIR/out")" -lt "$lines" ]; then
        echo "not ok $name: only $(wc -l <"$TMPDIR/out") lines, at least $lines were due"
    else
        echo "ok $name"
        return
    fi
    sed 's/^/    /' "$TMPDIR/out" "$TMPDIR/err" | tail -n 40
    status=1
}

# A benchmark of several processes that cannot finish ends by itself, and says why.
comm_bench_ends_early() { # NAME PATTERN: process $comm exits with 1, and has printed PATTERN
    local rc
    wait "$comm"
    rc=$?
    if [ $rc = 1 ] && grep -q "$2" "$TMPDIR/err"; then
        echo "ok $1"
    else
        echo "not ok $1: exit status $rc"
        sed 's/^/    /' "$TMPDIR/err"
        status=1
    fi
}

case $1 in
engine)
    # two precisions of five cases: a heading and a line of each peer, of which there are two
    runs train_cpu_trains_every_case 30 train_cpu --smoke
    runs layouts_cpu_runs_every_layout 40 layouts_cpu --smoke
    runs kernels_bench_launches_every_kernel 150 kernels_bench -s -t 2
    runs plan_time_prices_and_runs_layouts 5 plan_time --smoke --model mixtral
    runs plan_bench_plans 1 plan_bench --runs 1 --case pp8
    runs sandbox_trains_behind_locks 3 sandbox --rounds 1 --steps 1 --layers 1 --context 16
    # by shm, and by gloo where it is built in
    runs comm_bench_moves_every_size 18 comm_bench -r 1
    "$bench/comm_bench" -r 100 -t 1 >/dev/null 2>"$TMPDIR/err" &
    comm=$!
    comm_bench_ends_early comm_bench_ends_when_its_time_is_over "the time is over, while shm's"
    "$bench/comm_bench" -r 100 -t 100 >/dev/null 2>"$TMPDIR/err" &
    comm=$!
    until rank=$(cut -d' ' -f1 "/proc/$comm/task/$comm/children" 2>/dev/null) && [ -n "$rank" ]; do
        kill -0 "$comm" 2>/dev/null || break
        sleep 0.05
    done
    kill -KILL "$rank"
    comm_bench_ends_early comm_bench_ends_when_a_rank_is_killed "died by signal 9"
    if "${HEDDLE_PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
        runs train_cpu_has_its_peer 20 train_cpu --smoke --case a --peer torch --python "${HEDDLE_PYTHON:-python3}"
        runs layouts_cpu_has_its_peer 20 layouts_cpu --smoke --engine gloo --case pp4 --peer torch --python "${HEDDLE_PYTHON:-python3}"
    else
        echo "skip peers: ${HEDDLE_PYTHON:-python3} has no package torch"
    fi
    ;;
control)
    missed=1
    runs control_submits_lists_and_compares 8 control -d 10 -r 1 -n 20
    runs scrape_reads_a_page 3 scrape 2 2 1
    runs schedule_takes_every_kind_of_step 6 schedule -n 40 -j 50
    if command -v chromium >/dev/null; then
        runs page_load_shows_data 1 page_load 2 1
    else
        echo "skip page_load_shows_data: chromium is not installed"
    fi
    ;;
esac
exit $status
