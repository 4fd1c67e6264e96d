#!/bin/bash
# Hugging Face tokenizers gives the same ids: each character of Unicode, and random texts.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python every_character_and_random_texts_have_the_same_ids tokenizers

check every_character_and_random_texts_have_the_same_ids env PYTHONDONTWRITEBYTECODE=1 "$python" \
    "$HEDDLE_SOURCE_DIR/tests/interop/tokenizers/compare.py" "${HEDDLE_BUILD_DIR:?}/tests/tokens_of" 50000
cat "$work/check.out"
finish
