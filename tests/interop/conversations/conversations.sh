#!/bin/bash
# transformers gives the same ids and the same mask of answers: apply_chat_template with
# return_assistant_tokens_mask where the template has {% generation %}, else by rendered prefixes.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python conversations_have_the_ids_and_masks_of_transformers transformers jinja2

check conversations_have_the_ids_and_masks_of_transformers env PYTHONDONTWRITEBYTECODE=1 "$python" \
    "$HEDDLE_SOURCE_DIR/tests/interop/conversations/compare.py" \
    "${HEDDLE_BUILD_DIR:?}/tests/conversation_ids" 200
cat "$work/check.out"
finish
