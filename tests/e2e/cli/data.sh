#!/bin/bash
# heddle data tokenize: its formats, and what it leaves when it does not come to its end.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

tokenizer=$HEDDLE_SOURCE_DIR/tests/unit/tokenizer/tokenizers/gpt2.json
out=$work/out
mkdir "$out"
printf '{"text": "one"}\n{"text": "fourteen bytes"}\n' >"$work/two.jsonl"
size() { stat -c %s "$1" 2>/dev/null; }
tokenize() { heddle data tokenize "$@"; }
check_status tokens_are_no_text 2 heddle data tokenize "$work/numbers.npy" --out "$work/again.npy" --tokenizer bytes

# 17 bytes are 17 ids of 16 bits; heads of 128 (.npy) and 1024 bytes (llm.c); Megatron's index has 34,
# a length and a pointer for each of 2 sequences, and 3 entries of documents
check an_array tokenize "$work/two.jsonl" --out "$out/a.npy" --tokenizer bytes
check_equal an_array_has_a_head_and_ids $((128 + 34)) "$(size "$out/a.npy")"
check a_file_of_llm_c tokenize "$work/two.jsonl" --out "$out/b.bin" --tokenizer bytes
check_equal it_has_a_head_and_ids $((1024 + 34)) "$(size "$out/b.bin")"
check two_files_by_the_format tokenize "$work/two.jsonl" --out "$out/c" --format megatron --tokenizer bytes
check_equal the_ids_alone 34 "$(size "$out/c.bin")"
check_equal and_an_index $((34 + 12 * 2 + 8 * 3)) "$(size "$out/c.idx")"
check two_files_by_the_ending tokenize "$work/two.jsonl" --out "$out/d.idx" --tokenizer bytes
check_equal both_ways_give_the_same "$(cksum <"$out/c.idx") $(cksum <"$out/c.bin")" \
    "$(cksum <"$out/d.idx") $(cksum <"$out/d.bin")"
check the_format_goes_before_the_ending tokenize "$work/two.jsonl" --out "$out/e.bin" --format megatron --tokenizer bytes
check_equal so_that_it_is_the_same_again "$(cksum <"$out/c.bin")" "$(cksum <"$out/e.bin")"
files=$HEDDLE_SOURCE_DIR/tests/unit/records/files
check rows_of_a_table tokenize "$files/required.parquet" --out "$out/rows.npy" --tokenizer bytes
cp "$files/required.rows" "$work/rows.jsonl"
check the_same_as_lines tokenize "$work/rows.jsonl" --out "$out/lines.npy" --tokenizer bytes
check_equal give_the_same_tokens "$(cksum <"$out/lines.npy")" "$(cksum <"$out/rows.npy")"
rm -f "$out/rows.npy" "$out/lines.npy"
check_status an_unknown_ending 2 tokenize "$work/two.jsonl" --out "$out/f.tokens" --tokenizer bytes
check_status an_unknown_format 2 tokenize "$work/two.jsonl" --out "$out/f.npy" --format hdf5 --tokenizer bytes
check_equal is_told_with_those_known 1 "$(grep -c "'hdf5' is not npy, bin or megatron" "$work/check.err")"
check_status a_name_that_no_reader_takes 2 tokenize "$work/two.jsonl" --out "$out/f" --format npy --tokenizer bytes
check_equal refusals_leave_nothing "a.npy b.bin c.bin c.idx d.bin d.idx e.bin e.idx" "$(cd "$out" && echo *)"

# heddle validate says what those files hold: a weight for each source, the corpus of 40 bytes, Megatron's
# two documents, and of the array, where no token ends a text, tokens alone
printf 'forty bytes are what this text is, so 40' >"$work/corpus.txt"
mixed() { # TRAIN
    cat <<END
name: mixed
model: {family: llama, layers: 1, hidden: 8, heads: 1, ffn_hidden: 8, context: 4}
data: {train: $1, val: [corpus.txt]}
train: {steps: 1, global_batch: 1, lr: 0.1}
END
}
mkdir "$work/both"
cp "$work/corpus.txt" "$work/two.jsonl" "$work/both"
mixed '[{path: both/*, weight: 0.5}, {path: out/c.bin, weight: 0.25}, {path: out/b.bin, weight: 0.25}]' >"$work/mixed.yaml"
check a_job_with_all_kinds_is_valid heddle validate "$work/mixed.yaml"
has_line() { check_equal "$1" 1 "$(grep -cxF -- "$2" "$work/check.out")"; }
cp "$work/check.out" "$work/valid.out"
has_line it_names_the_tokenizer "tokenizer: bytes, 256 tokens, no token ends a text"
has_line text_and_lines "data.train[0], weight 0.5: mixed, 2 files of $((40 + $(size "$work/two.jsonl"))) B: 3 documents, tokens to be made when the job starts"
has_line documents_that_are_told "data.train[1], weight 0.25: megatron, 1 file of 116 B: 2 documents, 17 tokens"
has_line an_array_tells_none "data.train[2], weight 0.25: llm.c, 1 file of 1.0 KiB: documents not told, 17 tokens"
has_line a_token_for_each_byte "data.val: text, 1 file of 40 B: 1 document, 40 tokens"
mixed '[table.csv], columns: {text: label}' >"$work/columns.yaml"
cp "$files/table.csv" "$work"
check a_named_column_is_the_text heddle validate "$work/columns.yaml"
check_equal of_each_row 1 "$(grep -c 'data.train: csv, 1 file of .*: 5 documents, tokens to be made' "$work/check.out")"
check a_named_column_is_tokenized tokenize "$work/table.csv" --columns text=label --out "$out/columns.npy" --tokenizer bytes
check_equal into_its_bytes $((128 + 2 * 13)) "$(size "$out/columns.npy")" # 1, two, NA, no text and an empty one
rm "$out/columns.npy"
# a folder of save_to_disk: what its state.json names, in that order, and nothing else
mkdir "$work/saved"
cp "$files/required.arrow" "$work/saved/data-00000-of-00001.arrow"
printf 'no data' >"$work/saved/cache-0.arrow"
printf '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": null}' >"$work/saved/state.json"
mixed '[saved]' >"$work/saved.yaml"
check a_saved_set_is_valid heddle validate "$work/saved.yaml"
check_equal it_has_its_documents 1 "$(grep -c 'data.train: arrow, 1 file of .*: 50 documents, tokens to be made' "$work/check.out")"
printf '{"splits": ["train", "test"]}' >"$work/saved/dataset_dict.json"
check_status splits_are_refused 2 heddle validate "$work/saved.yaml"
check_equal by_their_names 1 "$(grep -c 'has the splits train, test; name one of them' "$work/check.err")"
sed 's/val: \[corpus.txt\]/&, end_of_text: 101/' "$work/mixed.yaml" >"$work/ends.yaml" # 101 is the letter e
check with_an_end_of_text heddle validate "$work/ends.yaml"
has_line ends_are_counted "data.train[2], weight 0.25: llm.c, 1 file of 1.0 KiB: 5 documents, 17 tokens" # four letters, and an s behind the last
check as_json heddle validate "$work/mixed.yaml" -o json
check_equal with_the_same_numbers 1 "$(grep -c '"kind":"megatron","files":1,"size_bytes":116,"documents":2,"tokens":17' "$work/check.out")"
head -c 30 "$out/c.idx" >"$work/short.idx"
cp "$out/c.bin" "$work/short.bin"
mixed '[short.bin]' >"$work/bad.yaml"
check_status a_damaged_file_is_an_error 2 heddle validate "$work/bad.yaml"
check_equal that_names_it 1 "$(grep -c 'data.train\[0\]: .*short.bin: .*MMIDIDX' "$work/check.err")"
printf '{"text": "one"}\nno json\n' >"$work/bad.jsonl"
mixed '[bad.jsonl]' >"$work/bad.yaml"
check_status lines_that_are_none_are_an_error 2 heddle validate "$work/bad.yaml"
check_equal with_the_line 1 "$(grep -c 'bad.jsonl:2: ' "$work/check.err")"
check_equal and_the_number_of_such_records 1 "$(grep -c '1 of 2 records cannot be used; mend' "$work/check.err")"

# a worker that is killed says nothing itself: beside a copy of the command stands one that is
mkdir "$work/bin"
cp "$HEDDLE_BIN/heddle" "$work/bin"
printf '#!/bin/sh\nkill -KILL $$\n' >"$work/bin/heddle-worker"
chmod +x "$work/bin/heddle-worker"
check_status a_killed_worker_is_an_error 6 "$work/bin/heddle" validate "$work/mixed.yaml"
check_equal that_is_said 1 "$(grep -c 'heddle-worker was killed while it read the data files' "$work/check.err")"

# what a model directory says of dropout is taken
mkdir "$work/gpt"
cat >"$work/gpt/config.json" <<'END'
{"model_type": "gpt2", "vocab_size": 256, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 16, "resid_pdrop": 0.1}
END
mixed '[corpus2.txt]' | sed 's/^model:.*/model: {from: gpt}/; s/^data: {/&tokenizer: bytes, /; s/lr: 0.1/&, init_from: none/' >"$work/gpt.yaml"
cp "$HEDDLE_SOURCE_DIR/README.md" "$work/corpus2.txt" # a copy of what validates would be told of
check a_model_with_dropout_is_valid heddle validate "$work/gpt.yaml"
check_equal and_nothing_has_to_be_said "" "$(cat "$work/check.err")"

# a disk that is full: no file may grow past 64 KiB
seq 1 12000000 >"$work/numbers.txt"
small_disk() { (ulimit -f 64 && heddle "$@"); }
printf 'what was there' >"$out/a.npy"
for format in npy bin megatron; do
    name=$out/a.${format/megatron/idx}
    check_status "a_full_disk_ends_$format" 6 small_disk data tokenize "$work/numbers.txt" --out "$name" --tokenizer bytes
    check_equal "and_is_said_for_$format" 1 "$(grep -c "$out/a.*: File too large" "$work/check.err")"
done
check_equal what_was_there_stays "what was there" "$(cat "$out/a.npy")"
check_equal and_nothing_else_came "a.npy b.bin c.bin c.idx d.bin d.idx e.bin e.idx" "$(cd "$out" && echo *)"

# Ctrl-C, SIGTERM, and a terminal that is closed: seconds of work for one thread, ended when the first file is there
tokenize "$work/two.jsonl" --out "$out/g.npy" --tokenizer "$tokenizer" >/dev/null 2>&1 || tokenizer=bytes # no PCRE2
mkdir "$work/stopped"
has_file() { [ -n "$(ls -A "$work/stopped")" ]; }
for signal in INT HUP TERM; do
    set -m # so that the signal is not ignored, as in a script's background or under nohup it would be
    env --default-signal=HUP,INT "$HEDDLE_BIN/heddle" data tokenize "$work/numbers.txt" --out "$work/stopped/n.idx" --tokenizer "$tokenizer" \
        --threads 1 >"$work/stopped.out" 2>&1 &
    pid=$!
    set +m
    await 60 has_file || not_ok "the_file_is_begun_$signal" "nothing came: $(cat "$work/stopped.out")"
    kill -$signal "$pid"
    wait "$pid"
    status=$?
    check_equal "${signal}_ends_with_its_code" "$([ $signal = TERM ] && echo 143 || echo 130)" $status
    check_equal "${signal}_is_said" 1 "$(grep -c interrupted "$work/stopped.out")"
    check_equal "${signal}_leaves_nothing" "" "$(ls -A "$work/stopped")"
done

# windows of two lengths in one run: the ranks go on from a checkpoint, in other trainers
cat >"$work/spans.yaml" <<END
name: spans
model: {family: llama, layers: 1, hidden: 8, heads: 1, ffn_hidden: 8, context: 4}
data: {stages: [{until: 2, train: [corpus.txt]}, {train: [corpus.txt], context: 8}]}
train: {steps: 4, global_batch: 2, lr: 0.01}
resources: {device_type: cpu}
END
check a_run_has_windows_of_two_lengths heddle local "$work/spans.yaml" --dir "$work/spans"
check_equal longer_ones_in_a_smaller_batch 1 "$(cat "$work"/check.{out,err} | grep -c "^to step 4 it trains on windows of 8 tokens, 1 in a step")"
check_equal behind_the_checkpoint_between 1 "$(cat "$work"/check.{out,err} | grep -c "^goes on from step 2 ")"
finish
