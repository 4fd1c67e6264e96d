#!/bin/bash
# GRPO: a tiny model learns what its rewards ask for, of which one is a reward model, and a run whose rewards break off in the middle of a step goes on
# with the bits of one that was never interrupted; so does one that is told to stop while answers are rated.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
for i in {1..40}; do printf '{"prompt":"say %d:","letter":"%s"}\n' "$i" "$((i % 2))"; done >"$work/prompts.jsonl"
head -n 9 "$work/prompts.jsonl" >"$work/tasks.jsonl"
cat >"$work/judge.sh" <<'END'
# 1 for an answer that begins with a letter; at line 148 of the first attempt, 32 a step, it kills what runs it, or waits
n=0
while read -r line; do
    n=$((n + 1)) id=${line#*:} id=${id%%,*}
    case $TMPDIR$1$n in
    */attempt-1/*die148) kill -9 $PPID ;;
    */attempt-1/*wait148) : >"$TMPDIR/waits" && sleep 100 ;;
    esac
    case $line in *'"completion":"'[a-z]*) say=1 ;; *) say=0 ;; esac
    printf '{"id":%s,"reward":%s}\n' "$id" "$say"
done
END
for i in {1..40}; do printf '{"prompt":"say %d:","chosen":"aa%d","rejected":"%d%d"}\n' "$i" "$i" "$i" "$i"; done >"$work/pairs.jsonl"
cat >"$work/rates.yaml" <<'END'
name: rates
model: {family: llama, layers: 1, hidden: 32, heads: 2, context: 64}
data: {train: [pairs.jsonl], tokenizer: bytes}
train: {objective: reward, steps: 20, global_batch: 8, lr: {peak: 1e-2, warmup: 0, decay: constant}, precision: fp32}
END
heddle local "$work/rates.yaml" --state-dir "$work/r" >"$work/check.out" 2>"$work/check.err"
rates=$(find "$work/r" -type d -name step-00000020)
cat >"$work/grpo.yaml" <<END
name: grpo
model: {family: llama, layers: 2, hidden: 64, heads: 4, context: 32}
data: {train: [prompts.jsonl], tokenizer: bytes}
train:
  objective: grpo
  steps: 12
  global_batch: 64
  lr: {peak: 1e-2, warmup: 0, decay: constant}
  precision: fp32
  rollout: {prompts: 8, group: 8, max_tokens: 4}
  policy: {kl_beta: 0.01}
  rewards: [{builtin: regex, pattern: "^[a-z]"}, {model: $rates, weight: 0.05}]
validate:
  every: 6
  tasks: {files: {say: tasks.jsonl}, check: [{builtin: regex, pattern: "^[a-z]"}], samples: 4, k: 2, tokens: 4, temperature: 1}
resources: {devices: 2}
checkpoint: {every: 3}
END
# series FILE KEY: its value in each step, the last report of a step alone
series() { sed -nE "s/^\{\"type\":\"step\".*\"step\":([0-9]+),.*\"$2\":([^,}]*).*/\1 \2/p" "$1" | sort -n -k1,1 -s | awk '{v[$1] = $2} END {for (i = 1; i in v; i++) printf "%s ", v[i]}'; }

heddle local "$work/grpo.yaml" --state-dir "$work/a" -o jsonl >"$work/a.jsonl" 2>"$work/a.err"
check_equal it_ends_well 0 $?
check_equal each_step_has_a_reward 12 "$(series "$work/a.jsonl" reward | wc -w)"
read -r first last < <(series "$work/a.jsonl" reward | awk '{print $1, $NF}')
check the_reward_rises awk -v a="$first" -v b="$last" 'BEGIN {exit !(b > a + 0.3)}'
# solved FILE K: pass@K of each validation, in their order; the last report of a step alone
solved() { sed -nE "s/^\{\"type\":\"validation\".*\"step\":([0-9]+),.*\"score\":([0-9.e-]+),.*\"say\/pass@$2\".*/\1 \2/p" "$1" | sort -n -k1,1 -s | awk '{v[$1] = $2} END {for (i = 0; i <= 12; i += 6) printf "%s ", v[i]}'; }
read -r once then two < <(solved "$work/a.jsonl" 1; solved "$work/a.jsonl" 2)
check tasks_are_solved_more_often awk -v a="$once" -v all="$then $two" 'BEGIN {exit !(split(all, v, " ") == 5 && v[2] > a + 0.3 && v[5] >= v[2])}'
check_equal answers_are_shown 1 "$(grep -c '"step 1, prompt 1 of 2: \\"say ' "$work/a.jsonl")"
check_equal and_lengths_reported "12 4" "$(series "$work/a.jsonl" length_max | awk '{print NF, $NF}')"

# a call for one token is no step: the limit of a step's silence is not learned from it, of which there are hundreds
check silences_of_steps_are_those_of_steps awk '/^training/ {for (i = 2; i <= NF; i++) n += substr($i, index($i, ":") + 1)}
    END {exit !(n > 0 && n < 120)}' "$work"/a/grpo-*/1/silences

# the same reward from a program: the same numbers, bit for bit
heddle local "$work/grpo.yaml" --set "train.rewards=[{program: [/bin/sh, judge.sh, live]}, {model: $rates, weight: 0.05}]" \
    --set 'validate.tasks.check=[{program: [/bin/sh, judge.sh]}]' --state-dir "$work/b" \
    -o jsonl >"$work/b.jsonl" 2>"$work/b.err"
check_equal a_program_rates_alike "$(series "$work/a.jsonl" loss)" "$(series "$work/b.jsonl" loss)"
check_equal and_checks_alike "$(solved "$work/a.jsonl" 2)" "$(solved "$work/b.jsonl" 2)"

check the_divergence_from_the_start_is_told [ "$(sed -nE 's/^\{"type":"step".*"step":([0-9]+),.*"kl":0?[.]?[0-9].*/\1/p' "$work/a.jsonl" | sort -u | wc -l)" -ge 11 ]

# killed in the middle of the ratings of step 5, with the answers recorded; the second attempt reads them, and compares
# with the weights of the start as the first one did
heddle local "$work/grpo.yaml" --set "train.rewards=[{program: [/bin/sh, judge.sh, die]}, {model: $rates, weight: 0.05}]" --state-dir "$work/c" \
    -o jsonl >"$work/c.jsonl" 2>"$work/c.err"
check_equal it_is_started_again 0 $?
check_equal with_the_same_numbers "$(series "$work/b.jsonl" loss)" "$(series "$work/c.jsonl" loss)"
check_equal in_the_second_attempt 1 "$(find "$work/c" -path '*/attempt-2' | wc -l)"

# told to stop there, it does not wait for the ratings; the run goes on from the checkpoint of the step before
"$HEDDLE_BIN/heddle" local "$work/grpo.yaml" --set "train.rewards=[{program: [/bin/sh, judge.sh, wait]}, {model: $rates, weight: 0.05}]" --state-dir "$work/e" \
    -o jsonl >"$work/e.jsonl" 2>"$work/e.err" &
local=$!
for ((i = 0; i < 600; i++)); do [ "$(find "$work/e" -name waits 2>/dev/null)" ] && break || sleep 0.1; done
kill -INT $local
SECONDS=0
wait $local
check it_stops_at_once [ "$SECONDS" -lt 25 ]
check_equal with_a_checkpoint_of_the_step_before 1 "$(find "$work/e" -name step-00000004 | wc -l)"
heddle local --resume "$work/e/latest" -o jsonl >>"$work/e.jsonl" 2>>"$work/e.err"
check_equal and_goes_on_with_the_same_numbers "$(series "$work/b.jsonl" loss)" "$(series "$work/e.jsonl" loss)"

# gkd: a student learns from that model what it says, in some steps behind completions of rows
for i in {1..40}; do printf '{"prompt":"say %d:","completion":"%d"}\n' "$i" "$((i % 2))"; done >"$work/rows.jsonl"
cat >"$work/gkd.yaml" <<END
name: gkd
model: {family: llama, layers: 1, hidden: 32, heads: 2, context: 32}
data: {train: [rows.jsonl], tokenizer: bytes}
train:
  objective: gkd
  steps: 8
  global_batch: 16
  lr: {peak: 1e-2, warmup: 0, decay: constant}
  precision: fp32
  rollout: {prompts: 8, group: 2, max_tokens: 4}
  distill: {teacher: $(find "$work/a" -type d -name step-00000012), top_k: 64, on_policy: 0.5}
END
heddle local "$work/gkd.yaml" --state-dir "$work/g" -o jsonl >"$work/g.jsonl" 2>"$work/g.err"
check_equal a_student_answers_to_its_teacher 0 $?
read -r first last < <(series "$work/g.jsonl" distill_loss | awk '{print $1, $NF}')
check and_comes_nearer awk -v a="$first" -v b="$last" 'BEGIN {exit !(b > 0 && b < 0.8 * a)}'
check_equal on_answers_of_its_own_and_of_rows "1 4" "$(series "$work/g.jsonl" length_max | tr ' ' '\n' | sort -nu | xargs)"
# a rank is killed behind step 5, wherever it is then; the run goes on from the checkpoint of step 4
"$HEDDLE_BIN/heddle" local "$work/gkd.yaml" --set checkpoint.every=2 --set train.steps=300 --state-dir "$work/h" -o jsonl >"$work/h.jsonl" 2>"$work/h.err" &
local=$!
await 60 grep -q '"type":"step".*"step":5,' "$work/h.jsonl"
kill -KILL $(ranks_below $local | head -n 1)
await 60 grep -q '"type":"step".*"step":12,' "$work/h.jsonl"
kill -INT $local
wait $local
check_equal in_the_second_attempt_too 1 "$(find "$work/h" -path '*/attempt-2' | wc -l)"
check_equal with_the_numbers_of_one "$(series "$work/g.jsonl" distill_loss)" "$(series "$work/h.jsonl" distill_loss | cut -d' ' -f-8) "
sed 's/"completion":"."/"completion":""/' "$work/rows.jsonl" >"$work/empty.jsonl"
heddle local "$work/gkd.yaml" --set data.train=[empty.jsonl] --set train.distill.on_policy=0 --set train.steps=2 \
    --state-dir "$work/m" >"$work/m.out" 2>"$work/m.err"
check_equal nothing_to_learn_is_told_once "0 1" "$? $(cat "$work/m.out" "$work/m.err" | grep -c 'no answer of a step has a token')"
check gkd_has_a_plan heddle plan "$work/gkd.yaml"
check_equal with_its_teacher_and_answers 2 "$(grep -c '^teacher  \|^  its answers, at most: 3 x a token of each of 16,' "$work/check.out")"
check_status rows_need_completions_then 2 heddle validate "$work/gkd.yaml" --set data.train=[prompts.jsonl]
check_equal which_a_line_tells 1 "$(grep -c 'prompts.jsonl:1: has no .completion.' "$work/check.err")"

check the_mean_of_each_reward_is_shown grep -rqa train/rewards/model/std "$work/a" --include='events*'
check validate_takes_rows_with_a_prompt_and_what_rewards_read heddle validate "$work/grpo.yaml"
check_equal a_program_needs_no_column 0 "$(heddle validate "$work/grpo.yaml" --set 'train.rewards=[{program: judge.sh}]' 2>&1 | grep -c '^train.rewards')"
check_equal tasks_are_counted 1 "$(grep -c '^validate.tasks.files.say: 9 tasks, the longest of 6 tokens' "$work/check.out")"
check_equal and_counts_them 1 "$(grep -c '^data.train: 40 prompts, the longest of 7 tokens; 2.4 passes' "$work/check.out")"
check and_plan_too heddle plan "$work/grpo.yaml"
check_equal which_tells_the_work_of_answers 1 "$(grep -c '^  its answers, at most: 3 x a token of each of 32,' "$work/check.out")"
check_status an_end_of_two_tokens_is_2 2 heddle validate "$work/grpo.yaml" --set 'train.rollout.stop=ab'
check_equal which_is_told_by_its_key 1 "$(grep -c "^[^:]*: train.rollout.stop: 'ab' is 2 tokens, and must be one\|^train.rollout.stop: 'ab' is 2 tokens" "$work/check.err")"
printf '{"say":"no prompt"}\n' >>"$work/prompts.jsonl"
check_status a_row_without_a_prompt_is_2 2 heddle validate "$work/grpo.yaml"
check_equal which_is_told_by_its_line 1 "$(grep -c 'prompts.jsonl:41: has neither a text .prompt. nor .messages.' "$work/check.err")"
check_status a_model_of_tokens_rates_nothing 2 heddle validate "$work/grpo.yaml" --set "train.rewards=[{model: $(find "$work/a" -type d -name step-00000012)}]"
check_equal which_is_told 1 "$(grep -c 'train.rewards.model: .* is no reward model' "$work/check.err")"
check_status a_program_that_is_not_there_is_2 2 heddle local "$work/grpo.yaml" \
    --set 'train.rewards=[{program: [./none]}]' --state-dir "$work/d"
finish
