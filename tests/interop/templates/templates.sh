#!/bin/bash
# jinja2 with the settings of transformers gives the same text, and the same places of
# {% generation %}: each template in TRL's wheel.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python every_template_gives_jinja2s_text jinja2 trl

check every_template_gives_jinja2s_text env PYTHONDONTWRITEBYTECODE=1 "$python" \
    "$HEDDLE_SOURCE_DIR/tests/interop/templates/compare.py" "${HEDDLE_BUILD_DIR:?}/tests/rendered"
cat "$work/check.out"
need_python answers_are_where_trl_marks_them jinja2 trl transformers
check answers_are_where_trl_marks_them env PYTHONDONTWRITEBYTECODE=1 "$python" \
    "$HEDDLE_SOURCE_DIR/tests/interop/templates/answers.py" "${HEDDLE_BUILD_DIR:?}/tests/rendered"
cat "$work/check.out"
finish
