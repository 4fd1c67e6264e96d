#!/bin/bash
# lm-evaluation-harness, as it is, examines models by heddle serve: per question, text and prompt it finds what its
# own model `hf` finds in fp32; and heddle eval --choices gives the same numbers. One of them is an adapter of PEFT
# over a base whose matrices are codes.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python examined_by_the_harness torch transformers tokenizers datasets lm_eval peft aiohttp tenacity

script=$HEDDLE_SOURCE_DIR/tests/interop/examination/examination.py
export HF_HOME=$work/hf
models=$("$python" "$script" make "$work" 2>"$work/make.log") || { not_ok make "$(tail -n 3 "$work/make.log")"; finish; }
for model in ${EXAMINE:-$models}; do # EXAMINE: only these
    read -ra served <"$work/$model.serve"
    : >"$work/address"
    "$HEDDLE_BIN/heddle" serve "${served[@]}" --name "$model" --threads 1 --listen 127.0.0.1:0 >"$work/address" 2>"$work/$model.log" &
    server=$!
    await 60 test -s "$work/address" || { not_ok "serve_$model" "$(tail -n 3 "$work/$model.log")"; finish; }
    "$python" "$script" run "$work" "$model" "$(cat "$work/address")" >"$work/verdicts" 2>"$work/run.log" ||
        not_ok "examine_$model" "$(tail -n 5 "$work/run.log")"
    sed -nE 's/^(ok [^:]*):(.*)/\1\n#\2/p; /^not ok/p' "$work/verdicts"
    failures=$((failures + $(grep -c '^not ok' "$work/verdicts")))
    check_equal "all_tasks_of_$model" 3 "$(wc -l <"$work/verdicts")"
    kill -TERM "$server"
    wait "$server"
    check "eval_of_$model" heddle eval "${served[@]}" --choices "$work/questions.jsonl" --threads 1 -o jsonl
    cp "$work/check.out" "$work/ours.jsonl"
    verdict=$("$python" "$script" compare "$work/$model.answers" "$work/ours.jsonl" 2>&1 | tail -n 1)
    check_equal "eval_gives_the_same_numbers_of_$model" ok "$verdict"
done
finish
