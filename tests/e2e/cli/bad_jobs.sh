#!/bin/bash
# Ten kinds of bad job file: each ends with 2 and says where and what; nothing is submitted.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

start_controller
good=$(job_file good)

# refuse NAME LINE MESSAGE: the file $work/bad.yaml is refused in these words
refuse() {
    local name=$1 line=$2 expected="$work/bad.yaml:$2: $3" message
    message=$(heddle submit "$work/bad.yaml" 2>&1 >/dev/null)
    local status=$?
    if [ $status = 2 ] && [ "$message" = "$expected" ]; then
        ok "$name"
    else
        not_ok "$name" "ended with $status: $message"
    fi
}
# change SED: makes bad.yaml out of the good one
change() { sed -E "$1" "$good" >"$work/bad.yaml"; }

change 's/layers: 2/layer: 2/'
refuse an_unknown_key 2 'model.layer: unknown key; did you mean layers?'
change 's/^(name: .*)/\1\n\1/'
refuse a_key_that_stands_twice 2 'name: is given twice, first in line 1; remove one'
change 's/steps: 30/steps: many/'
refuse a_word_for_a_number 4 "train.steps: 'many' is not a whole number; write digits only, such as 1000"
change 's/layers: 2/layers: 0/'
refuse a_number_out_of_range 2 'model.layers: 0 is not possible; give a whole number from 1 to 1024'
change 's/heads: 4/heads: 5/'
refuse heads_that_do_not_divide 2 'model.heads: 5 does not divide model.hidden = 64; use 1, 2, 4 or 8, or give model.head_width, a multiple of 8 up to 256'
change 's/corpus.txt/none.txt/'
refuse a_missing_file 3 "data.train[0]: cannot find $work/none.txt: No such file or directory; check the path, which is relative to the job file's folder"
change 's/corpus.txt/none-*.txt/'
refuse a_pattern_without_a_match 3 "data.train[0]: 'none-*.txt' matches no file; it is searched as $work/none-*.txt"
change 's/^validate:.*/parallel: {pp: 2}/'
refuse a_layout_that_is_not_built 5 'parallel.pp: pipeline parallelism is not supported yet; use auto or 1'
change 's/^name: good/name: \&a good/'
refuse an_anchor 1 'anchors (&name) and tags (!type) are not allowed; write the plain value'
change 's/^name: good/name: caf\xe9/'
refuse bytes_that_are_not_text 1 'not UTF-8 text; save the file as UTF-8'

head -c 300000 /dev/zero | tr '\0' ' ' >"$work/bad.yaml"
check_status a_file_that_is_too_large 2 heddle submit "$work/bad.yaml"
check_status a_file_that_is_not_there 2 heddle submit "$work/nowhere.yaml"
check_status a_bad_override 2 heddle submit "$good" --set train.steps=no

check_equal nothing_was_submitted '' "$(heddle jobs -o jsonl)"
check_status validate_starts_nothing 0 heddle validate "$good" --controller "$HEDDLE_CONTROLLER"
check_equal validate_says_what_it_would_wait_for 1 "$(grep -c 'it would wait' "$work/check.out")"
check_equal still_nothing_was_submitted '' "$(heddle jobs -o jsonl)"
finish
