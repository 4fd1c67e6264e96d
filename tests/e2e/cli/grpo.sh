#!/bin/bash
# GRPO: a tiny model learns what its rewards ask for, and a run whose rewards break off in the middle of a step goes on
# with the bits of one that was never interrupted.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
for i in {1..40}; do printf '{"prompt":"say %d:","letter":"%s"}\n' "$i" "$((i % 2))"; done >"$work/prompts.jsonl"
cat >"$work/judge.sh" <<'END'
# 1 for an answer that begins with a letter; at line 20 of the first attempt it kills what runs it
n=0
while read -r line; do
    n=$((n + 1)) id=${line#*:} id=${id%%,*}
    case $TMPDIR in */attempt-1/*) [ "$1$n" = die20 ] && kill -9 $PPID ;; esac
    case $line in *'"completion":"'[a-z]*) say=1 ;; *) say=0 ;; esac
    printf '{"id":%s,"reward":%s}\n' "$id" "$say"
done
END
cat >"$work/grpo.yaml" <<'END'
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
  rewards: [{builtin: regex, pattern: "^[a-z]"}]
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
check_equal answers_are_shown 1 "$(grep -c '"step 1, prompt 1 of 2: \\"say ' "$work/a.jsonl")"
check_equal and_lengths_reported "12 4" "$(series "$work/a.jsonl" length_max | awk '{print NF, $NF}')"

# a call for one token is no step: the limit of a step's silence is not learned from it, of which there are hundreds
check silences_of_steps_are_those_of_steps awk '/^training/ {for (i = 2; i <= NF; i++) n += substr($i, index($i, ":") + 1)}
    END {exit !(n > 0 && n < 120)}' "$work"/a/grpo-*/1/silences

# the same reward from a program: the same numbers, bit for bit
heddle local "$work/grpo.yaml" --set 'train.rewards=[{program: [/bin/sh, judge.sh, live]}]' --state-dir "$work/b" \
    -o jsonl >"$work/b.jsonl" 2>"$work/b.err"
check_equal a_program_rates_alike "$(series "$work/a.jsonl" loss)" "$(series "$work/b.jsonl" loss)"

# killed in the middle of the ratings of step 1, with the answers recorded; the second attempt reads them
heddle local "$work/grpo.yaml" --set 'train.rewards=[{program: [/bin/sh, judge.sh, die]}]' --state-dir "$work/c" \
    -o jsonl >"$work/c.jsonl" 2>"$work/c.err"
check_equal it_is_started_again 0 $?
check_equal with_the_same_numbers "$(series "$work/b.jsonl" loss)" "$(series "$work/c.jsonl" loss)"
check_equal in_the_second_attempt 1 "$(find "$work/c" -path '*/attempt-2' | wc -l)"

check validate_takes_rows_with_a_prompt_and_what_rewards_read heddle validate "$work/grpo.yaml"
check and_plan_too heddle plan "$work/grpo.yaml"
check_status a_program_that_is_not_there_is_2 2 heddle local "$work/grpo.yaml" \
    --set 'train.rewards=[{program: [./none]}]' --state-dir "$work/d"
finish
