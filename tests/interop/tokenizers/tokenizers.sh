#!/bin/bash
# Hugging Face tokenizers gives the same ids and texts: each character of Unicode, random texts, and
# random combinations of all parts of a tokenizer.json; its patterns match the
# same, and tokenizers made from the same text are equal.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python every_character_and_random_texts_have_the_same_ids tokenizers

check every_character_and_random_texts_have_the_same_ids env PYTHONDONTWRITEBYTECODE=1 "$python" \
    "$HEDDLE_SOURCE_DIR/tests/interop/tokenizers/compare.py" "${HEDDLE_BUILD_DIR:?}/tests/tokens_of" 20000
cat "$work/check.out"
check random_combinations_of_all_parts_have_the_same_ids_and_texts env PYTHONDONTWRITEBYTECODE=1 "$python" \
    "$HEDDLE_SOURCE_DIR/tests/interop/tokenizers/grid.py" compare "$HEDDLE_BUILD_DIR/tests/tokens_of" 20 "$RANDOM"
cat "$work/check.out"
check random_patterns_match_the_same env PYTHONDONTWRITEBYTECODE=1 "$python" \
    "$HEDDLE_SOURCE_DIR/tests/interop/tokenizers/patterns.py" compare "$HEDDLE_BUILD_DIR/tests/spans_of" 300 "$RANDOM"
cat "$work/check.out"
check trained_tokenizers_are_equal env PYTHONDONTWRITEBYTECODE=1 "$python" \
    "$HEDDLE_SOURCE_DIR/tests/interop/tokenizers/train.py" compare "$HEDDLE_BIN/heddle-worker" 20 "$RANDOM"
cat "$work/check.out"
if "$python" -c 'import sentencepiece' 2>/dev/null; then
    check models_of_sentencepiece_have_the_same_ids env PYTHONDONTWRITEBYTECODE=1 "$python" \
        "$HEDDLE_SOURCE_DIR/tests/interop/tokenizers/sentencepiece_models.py" compare \
        "$HEDDLE_BUILD_DIR/tests/tokens_of" 2000 "$RANDOM"
    cat "$work/check.out"
    check unigram_models_have_the_same_ids env PYTHONDONTWRITEBYTECODE=1 "$python" \
        "$HEDDLE_SOURCE_DIR/tests/interop/tokenizers/unigram.py" compare "$HEDDLE_BUILD_DIR/tests/tokens_of" 12 "$RANDOM"
    cat "$work/check.out"
else
    skip models_of_sentencepiece_have_the_same_ids "this Python has no sentencepiece"
    skip unigram_models_have_the_same_ids "this Python has no sentencepiece"
fi
finish
