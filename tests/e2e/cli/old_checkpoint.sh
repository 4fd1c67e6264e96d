#!/bin/bash
# A checkpoint that an older build wrote is verified, written with and exported.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

unset HEDDLE_CONTROLLER
old=$HEDDLE_SOURCE_DIR/tests/golden/checkpoint_version_1
check it_is_whole heddle checkpoint verify "$old"
check it_writes heddle generate "$old" --prompt '2 is half of ' --max-tokens 8
check it_is_exported heddle checkpoint export "$old" --out "$work/hf"
check_equal with_its_width 1 "$(grep -c '"hidden_size": *16' "$work/hf/config.json")"
check and_the_export_is_whole heddle checkpoint verify "$work/hf"
finish
