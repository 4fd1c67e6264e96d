#!/bin/bash
# Arrays that NumPy saves are what we read, and token files that we write are what others read.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python numpy_and_we_read_the_same numpy
script=$HEDDLE_SOURCE_DIR/tests/interop/data/files.py

start_controller
start_node n1 cpu:2
"$python" "$script" write "$work" || exit 1

job_of() { printf '%s' "$work/jobs/$1/attempt-1"/nodes/*/job; } # the resolved job of a job's first attempt

# the bigram entropy sees every token of the training data, every window and every document's end
job=$(submit "$work/arrays.yaml")
check a_job_trains_on_what_numpy_saved heddle wait "$job"
check_equal numpy_and_we_read_the_same "$("$python" "$script" entropy "$work")" \
    "$("$HEDDLE_BIN/heddle-worker" bigram --job "$(job_of "$job")")"

job=$(submit "$work/lines.yaml")
check a_job_trains_on_json_lines heddle wait "$job"
check others_read_the_token_files_we_make "$python" "$script" compare "$work" "$work/jobs/$job/tokens"

# every container and codec that the libraries write
need_python containers_have_the_tokens_of_datasets datasets tokenizers pyarrow zstandard
mkdir "$work/containers"
check containers_have_the_tokens_of_datasets "$python" "$HEDDLE_SOURCE_DIR/tests/interop/data/containers.py" \
    "$HEDDLE_BIN/heddle-worker" "$work/containers"
finish
