#!/bin/bash
# Bad job files, and good ones with bad data or weights: each ends with 2 and says where and what; nothing is
# submitted.
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
change 's/precision: fp32/precision: fp32, fp8: {history: 8}/'
refuse a_key_of_another_precision 4 'train.fp8.history: only fp8 has scales of tensors, and train.precision is fp32; remove it, or set train.precision: fp8'
change 's/^name: good/name: \&a good/'
refuse an_anchor 1 'anchors (&name) and tags (!type) are not allowed; write the plain value'
change 's/^name: good/name: caf\xe9/'
refuse bytes_that_are_not_text 1 'not UTF-8 text; save the file as UTF-8'

# what no rank could read is refused in the same words by each command, before anything is started
same() { # NAME LINE MESSAGE
    local name=$1 expected="$work/bad.yaml:$2: $3" command message status
    for command in validate submit local; do
        message=$(heddle "$command" "$work/bad.yaml" 2>&1 >/dev/null)
        status=$?
        if [ $status = 2 ] && [ "$message" = "$expected" ]; then
            ok "${name}_by_$command"
        else
            not_ok "${name}_by_$command" "ended with $status: $message"
        fi
    done
}
# array NAME TYPE BYTES: a .npy of ten elements, whose file ends after so many bytes of them
array() {
    printf '\x93NUMPY\1\0\x76\0%-117s\n' "{'descr': '$2', 'fortran_order': False, 'shape': (10,), }" >"$work/$1"
    head -c "$3" /dev/zero >>"$work/$1"
}
array float.npy '<f4' 40
array cut.npy '<u2' 19
change 's/corpus.txt/float.npy/; s/context: 16/context: 16, vocab: 256/'
same an_array_of_floats 3 "data.train[0]: $work/float.npy: elements of type '<f4'; token ids are little-endian integers: save a.astype('<u2') or a.astype('<u4')"
change 's/corpus.txt/cut.npy/; s/context: 16/context: 16, vocab: 256/'
same an_array_that_was_cut 3 "data.train[0]: $work/cut.npy: 19 bytes after the header, but its 10 elements have 2 each; it was truncated or is being written"
# a tokenizer.json is heddle-worker's to open: where it cannot (no PCRE2), that is said instead, by all three
change "s|corpus.txt.|&, tokenizer: $HEDDLE_SOURCE_DIR/tests/unit/tokenizer/tokenizers/gpt2.json|; s/context: 16/context: 16, vocab: 300/"
check_status a_vocabulary_too_small 2 heddle validate "$work/bad.yaml"
cp "$work/check.err" "$work/vocab.err"
check_status by_submit 2 heddle submit "$work/bad.yaml"
check_equal in_the_same_words "$(cat "$work/vocab.err")" "$(cat "$work/check.err")"
check_status by_local 2 heddle local "$work/bad.yaml"
check_equal in_the_same_words_too "$(cat "$work/vocab.err")" "$(cat "$work/check.err")"
mkdir "$work/llama"
cat >"$work/llama/config.json" <<'END'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
 "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
END
head='{"model.embed_tokens.weight":{"dtype":"F32","shape":[256,32],"data_offsets":[0,32768]}}'
printf "\\x$(printf %02x ${#head})\\0\\0\\0\\0\\0\\0\\0%s" "$head" >"$work/llama/model.safetensors"
head -c 32768 /dev/zero >>"$work/llama/model.safetensors"
change 's/^model:.*/model: {from: llama}/'
same weights_of_another_shape 2 "model.from: $work/llama: model.safetensors: tensor model.embed_tokens.weight has the shape [256, 32], the model needs [256, 64]"
change 's/^(train: .*)}$/\1, init_from: step}/'
check a_checkpoint_is_made heddle local "$good" --set train.steps=1 --set model.hidden=32
ln -s "$(find "$work/heddle-runs" -type d -name 'step-*')" "$work/step"
same a_checkpoint_of_another_shape 4 "train.init_from: $work/step: weight embedding.weight has the shape [256, 32], the model needs [256, 64]"
change 's/^(train: .*)}$/\1, continue_from: step}/'
same nor_does_a_run_go_on_from_it 4 "train.continue_from: $(readlink -f "$work/step"): weight embedding.weight has the shape [256, 32], the model needs [256, 64]"
change 's/^(train: .*)}$/\1, continue_from: heddle-runs}/'
same a_folder_without_checkpoints 4 "train.continue_from: $work/heddle-runs is no checkpoint (step-N) and has none; give a checkpoint, or the folder of a run or attempt that has written one"
ln -s "$(find "$work/heddle-runs" -mindepth 1 -maxdepth 1 -type d)" "$work/run"
change 's/steps: 30/steps: 1/; s/^(train: .*)}$/\1, continue_from: run}/'
same steps_that_the_run_has_taken 4 "train.steps: the run of train.continue_from has taken 1, and its steps count; give more than that"
change 's/^(train: .*)}$/\1, continue_from: step, init_from: run}/'
same weights_from_two_places 4 "train.init_from: the weights come from train.continue_from; remove one of the two"
check_equal nothing_else_was_started 1 "$(find "$work/heddle-runs" -mindepth 1 -maxdepth 1 -type d | wc -l)"

head -c 300000 /dev/zero | tr '\0' ' ' >"$work/bad.yaml"
check_status a_file_that_is_too_large 2 heddle submit "$work/bad.yaml"
check_status a_file_that_is_not_there 2 heddle submit "$work/nowhere.yaml"
check_status a_bad_override 2 heddle submit "$good" --set train.steps=no

theirs=$HEDDLE_SOURCE_DIR/tests/unit/spec/foreign/axolotl_qlora.yml
check_status another_tools_file_is_named 2 heddle submit "$theirs"
check_equal and_its_settings_are_told "sequence_len model.context" \
    "$(sed -nE 's/^(sequence_len) +(model.context) .*/\1 \2/p' "$work/check.err")"
check_status it_is_translated 0 heddle translate "$theirs" --out "$work/theirs.yaml"
check_equal with_its_template "  template: alpaca.jinja alpaca.jinja" "$(cd "$work" && grep -oE '^  template: [a-z.]+' theirs.yaml) $(cd "$work" && echo alpaca.*)"
check_status no_file_is_replaced 2 heddle translate "$theirs" --out "$work/theirs.yaml"
: >"$work/empty.yaml"
check_status nor_is_one_without_text 2 heddle translate "$theirs" --out "$work/empty.yaml"

heddle validate "$good" --set train.reduce=fp32 --set train.only=all >/dev/null 2>"$work/old_names"
check_equal each_old_name_has_a_line 2 "$(grep -c 'the old name is read, too$' "$work/old_names")"

check_equal nothing_was_submitted '' "$(heddle jobs -o jsonl)"
check_status validate_starts_nothing 0 heddle validate "$good" --controller "$HEDDLE_CONTROLLER"
check_equal validate_says_what_it_would_wait_for 1 "$(grep -c 'it would wait' "$work/check.out")"
check_equal still_nothing_was_submitted '' "$(heddle jobs -o jsonl)"
finish
