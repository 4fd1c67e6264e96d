#!/bin/bash
# A node is probed by the command, with the smallest sizes: figures, refusals, what is shown, what outlives restarts, and
# that plans go by it.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

# The real worker; it probes as $work/how says: quick, fail, or wait.
cat >"$work/worker" <<END
#!/bin/bash
[ "\$1" = probe ] || exec "$HEDDLE_BIN/heddle-worker" "\$@"
case \$(cat "$work/how") in
quick) exec "$HEDDLE_BIN/heddle-worker" "\$@" --quick ;;
fail) echo 'no memory for products' ;;
wait) # as the real one ends with its heddled, which may be gone by then
    exec setpriv --pdeathsig KILL bash -c '[ "\$(cat /proc/\$PPID/comm)" = heddled ] && exec sleep 100' ;;
esac
END
chmod +x "$work/worker"
how() { echo "$1" >"$work/how"; }
file=$(job_file probed)

start_controller
how quick
start_node n1 cpu:2:1 --worker "$work/worker"

# ---- before ----
check_equal a_node_is_shown_as_not_probed 1 "$(heddle topo | grep -c '^n1: 2 devices.*, not probed$')"
check_status which_node_is_to_be_said 2 heddle probe
check_status one_or_all 2 heddle probe n1 --all
check_status what_does_not_exist_is_4 4 heddle probe n9
before=$(submit "$file")
heddle wait "$before" >/dev/null 2>&1
check_equal without_a_probe_no_time_is_predicted 0 "$(heddle show "$before" | grep -c 'predicted .*s$')"

# ---- a probe ----
heddle probe n1 >"$work/figures" 2>"$work/notes"
check_equal a_node_is_probed 0 $?
check_equal it_says_how_long_it_may_take 1 "$(grep -c '1 node is measuring, for at most 60 s' "$work/notes")"
for part in '^n1: probed [0-9.]*m?s ago' '^ +1 +[0-9.]+ +[0-9.]+ +[0-9.]+$' 'fp32 small [0-9.]+' '^ +0 +X +[0-9.]+ [0-9.]+' \
    'all_reduce +2 +[-0-9.e]+ +[-0-9.e]+' 'state directory: [0-9.]+ MB/s' 'devices cpu:2:1'; do
    check_equal "it_shows_$(tr -cd 'a-z0-9' <<<"$part")" 1 "$(grep -cE "$part" "$work/figures")"
done
check_equal who_asked_is_recorded 1 "$(heddle events | grep -c 'probe .*a probe of n1 was asked for by ')"
check_equal the_age_is_shown 1 "$(heddle topo | grep -c '^n1: .*, probed [0-9.]*m\?s ago$')"
check_equal the_matrix_of_one_node 1 "$(heddle topo n1 | grep -c 'messages between devices')"
check_equal figures_are_in_the_json 1 "$(heddle topo -o jsonl | grep -c '"probe":{"pending":false,.*"pairs":\[{"a":0,"b":1,"latency_s":[0-9].*"products":\[{')"

# ---- plans ----
after=$(submit "$file" --set name=after)
heddle wait "$after" >/dev/null 2>&1
check_equal plans_go_by_it 1 "$(heddle show "$after" | grep -c '^step time .*predicted [0-9.]* [mu]\?s')"

# ---- failures ----
how fail
check_status a_probe_that_fails_is_6 6 heddle probe n1
check_equal it_says_why_and_what_holds 1 "$(heddle topo | grep -c 'the probe .* ago measured nothing, plans keep using its earlier figures: no memory for products')"
check_equal so_does_an_event 1 "$(heddle events | grep -c 'probe_failed .*no memory for products')"
check_equal the_figures_stay 1 "$(heddle topo n1 | grep -c 'messages between devices')"

# ---- jobs come first ----
how wait
heddle probe n1 >"$work/stopped" 2>&1 &
asked=$!
asked_for() { heddle topo | grep -q 'a probe is under way'; }
check it_is_under_way await 10 asked_for
long=$(submit "$file" --set train.steps=100000 --set checkpoint.every=100000 --set validate.every=0)
check a_job_starts_though await 30 steps_at_least "$long" 1
wait "$asked"
check_equal the_probe_has_failed 6 $?
check_equal because_of_the_job 1 "$(grep -c "job $long has devices of the node" "$work/stopped")"
how quick
check_status a_busy_node_is_refused 6 heddle probe n1
check_equal with_the_job 1 "$(heddle probe --all 2>&1 | grep -c "n1 runs attempt 1 of job $long, and only idle devices are measured")"
heddle cancel "$long" --now >/dev/null
heddle wait "$long" >/dev/null 2>&1
check then_all_are_probed heddle probe --all

# ---- a heddled that dies meanwhile ----
how wait
heddle probe n1 >"$work/gone" 2>&1 &
asked=$!
check one_is_under_way_again await 10 asked_for
kill -9 "${node_pids[n1]}"
wait "${node_pids[n1]}" 2>/dev/null
since=$SECONDS
wait "$asked"
check_equal a_probe_of_a_dead_node_is_6 6 $?
check it_is_not_waited_for test $((SECONDS - since)) -le 20 # and not 90
check_equal what_to_do_is_told 1 "$(grep -c '^n1: no result: it has not answered for [0-9]* s.*Start heddled there' "$work/gone")"
how quick
start_node n1 cpu:2:1 --worker "$work/worker"
answered() { node_is n1 ready && ! asked_for; } # it was asked once more
check it_measures_when_it_is_back await 90 answered

# ---- restarts ----
for _ in 1 2 3; do # one that is stopped in the midst of a call has lost that, and gives up: 3
    how wait
    heddle probe n1 >"$work/forgotten" 2>&1 &
    asked=$!
    check one_is_under_way_once_more await 10 asked_for
    kill -STOP "$asked" # it sees the new controller alone
    kill -9 "$controller_pid"
    wait "$controller_pid" 2>/dev/null
    start_controller
    kill -CONT "$asked"
    wait "$asked"
    forgotten=$?
    [ $forgotten = 3 ] || break
    how quick
    check node_and_probe_are_back await 90 answered
done
check_equal a_question_that_is_forgotten_is_6 6 $forgotten
check_equal and_older_figures_are_no_answer 1 "$(grep -c '^n1: no result: the controller was started anew' "$work/forgotten")"
how quick
check_equal the_figures_outlive_the_controller 1 "$(heddle topo n1 | grep -c 'messages between devices')"
await 20 node_is n1 ready
stop_node() { kill -TERM "${node_pids[$1]}" && wait "${node_pids[$1]}"; }
probes_begun() { grep -c ': probing ' "$work/n1.log"; }
told_all() { # what the new controller asks for anew has begun
    local before
    before=$(probes_begun)
    sleep 1
    [ "$before" = "$(probes_begun)" ]
}
check nothing_is_left_to_probe await 20 told_all
begun=$(probes_begun)
stop_node n1
start_node n1 cpu:2:1 --worker "$work/worker" --probe anyway
sleep 6 # a probe would begin after five idle seconds
check_equal a_heddled_that_has_a_result_probes_no_more "$begun" "$(probes_begun)"
check_equal the_figures_outlive_heddled 1 "$(heddle topo n1 | grep -c 'messages between devices')"
stop_node n1
start_node n1 cpu:1:1 --worker "$work/worker" # other devices; --ephemeral: --probe never
not_probed() { heddle topo n1 | grep -q 'not probed'; }
check what_was_measured_on_other_devices_is_dropped await 10 not_probed
sleep 6
check_equal an_ephemeral_heddled_does_not_probe "$begun" "$(probes_begun)"
stop_node n1
start_node n1 cpu:1:1 --worker "$work/worker" --probe anyway
probed() { heddle topo n1 | grep -q '^n1: .*, probed '; }
check another_one_does_when_it_has_been_idle await 30 probed
finish
