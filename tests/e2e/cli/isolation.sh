#!/bin/bash
# Jobs are kept apart: what of the disk a rank may open, what of heddled's environment it has, that it is
# locked in, and that one which takes too much memory ends, with that as its cause.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

mkdir "$work/data" && cp "$HEDDLE_SOURCE_DIR/LICENSE" "$work/data/corpus.txt" || exit 1
outside=$(job_file outside)
inside=$work/inside.yaml link=$work/link.yaml
ln -s "$work/corpus.txt" "$work/data/link.txt"
sed 's|corpus.txt|data/corpus.txt|; s|devices: 2|devices: 1|' "$outside" >"$inside"
sed 's|corpus.txt|data/link.txt|' "$outside" >"$link"
reason() { heddle show "$1" -o jsonl | grep -c "$2"; }

start_controller
SITE_SECRET=hidden start_node n1 cpu:2 --data-roots "$work/data"
heddle show-node n1 -o json >"$work/n1.json"
check_equal a_node_says_who_bounds_its_jobs process "$(member tier <"$work/n1.json")"
check_equal and_that_it_does_what_it_can try "$(member mode <"$work/n1.json")"
check and_for_people grep -q 'bounded by *process' <(heddle show-node n1)
check_equal nodes_names_it 1 "$(heddle nodes -o wide | grep -c ' process ')"
job=$(submit "$outside")
check data_outside_the_roots_fail_the_job await 30 state_is "$job" failed
check_equal with_the_key_and_the_remedy 1 "$(reason "$job" 'data.train: .*is below none of the folders.*data_roots')"
check_equal and_it_is_not_tried_again 0 "$(heddle show "$job" -o json | member restarts)"
job=$(submit "$link")
check so_does_a_link_out_of_them await 30 state_is "$job" failed
check_equal and_the_link_is_named 1 "$(reason "$job" 'data/link.txt is a link')"
printf '{"prompt":"a"}\n' >"$work/data/prompts.jsonl"
echo 'while read -r l; do l=${l#*:}; echo "{\"id\":${l%%,*},\"reward\":1}"; done' | tee "$work/judge.sh" >"$work/data/judge.sh"
cat >"$work/grpo.yaml" <<END
name: grpo
model: {family: llama, layers: 1, hidden: 32, heads: 2, context: 16}
data: {train: [data/prompts.jsonl], tokenizer: bytes}
train: {objective: grpo, steps: 1, global_batch: 2, lr: 1e-3, rollout: {prompts: 1, group: 2, max_tokens: 2}, rewards: [{program: [/bin/sh, judge.sh]}]}
resources: {devices: 1}
END
job=$(submit "$work/grpo.yaml")
check a_reward_program_outside_the_roots_fails_the_job await 30 state_is "$job" failed
check_equal with_the_key_and_the_remedy_too 1 "$(reason "$job" 'train.rewards: .*is below none of the folders.*data_roots')"
job=$(submit "$work/grpo.yaml" --set 'train.rewards=[{program: [/bin/sh, data/judge.sh]}]')
check one_within_them_rates await 30 state_is "$job" succeeded

job=$(submit "$inside" --set train.steps=100000 --set validate.every=0 --set checkpoint.every=100000)
check data_inside_train await 30 steps_at_least "$job" 2
rank=$(ranks_below "${node_pids[n1]}" | head -n 1)
check_equal a_rank_gets_no_new_privileges 1 "$(sed -n 's/^NoNewPrivs:\t//p' "/proc/$rank/status")"
case $(member locks <"$work/n1.json") in
*seccomp*) check_equal its_system_calls_are_filtered 2 "$(sed -n 's/^Seccomp:\t//p' "/proc/$rank/status")" ;;
*) printf 'skip its_system_calls_are_filtered: this kernel has no seccomp\n' ;;
esac
check_equal it_says_how_it_is_locked_in 1 "$(grep -c 'locked in: ' "$work/jobs/$job/attempt-1/logs/rank-0.log")"
check_equal a_secret_of_the_daemon_is_not_in_its_environment 0 "$(tr '\0' '\n' <"/proc/$rank/environ" | grep -c SITE_SECRET)"
check_equal but_its_run_directory_is 1 "$(tr '\0' '\n' <"/proc/$rank/environ" | grep -c '^HEDDLE_RUN_DIR=')"
check_equal the_kernel_ends_it_before_the_daemon 500 "$(cat "/proc/$rank/oom_score_adj")"
heddle cancel "$job" --now >/dev/null
await 20 state_is "$job" cancelled
heddle drain n1 --reason test >/dev/null
start_node n2 cpu:1 --memory-slack 1M # libraries alone take more
job=$(submit "$inside" --set train.steps=100000 --set validate.every=0 --set restart.max=0)
check a_job_that_takes_too_much_memory_ends await 30 state_is "$job" failed
check_equal and_says_so oom "$(heddle show "$job" -o json | member cause)"
check with_what_it_might_have_taken grep -q 'oom: rank 0 on n2.*memory_slack' <(heddle events "$job" -o jsonl)
finish
