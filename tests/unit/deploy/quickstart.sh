#!/bin/bash
# What deploy/quickstart does around the programs: the text it finds, the order of things, its last
# line and its end. The programs are scripts here; tests/fresh and the e2e group run the real ones.
set -u

fake="$TMPDIR/a build folder"
mkdir -p "$fake/bin"
echo "build programs: phony" >"$fake/build.ninja"
bad=0
verdict() { # NAME STATUS
    if [ "$2" = 0 ]; then
        echo "ok $1"
    else
        echo "not ok $1: it said"
        sed 's/^/    /' "$TMPDIR/out"
        bad=1
    fi
}
cat >"$fake/bin/heddle" <<'END'
#!/bin/bash
# local FILE, or generate DIR...
echo "$*" >>"$PWD/asked"
[ "$1" = local ] || { echo "a sample"; exit 0; }
run=heddle-runs/x/attempt-1/nodes/local
mkdir -p "$run" && echo resolved >"$run/job" && ln -sfn x heddle-runs/latest
if [ -e "$PWD/../wait" ]; then
    trap 'kill $!; echo stopped >>asked; exit 130' INT
    touch ../waiting
    sleep 60 & wait
fi
printf '{"type":"validation","job":1,"attempt":1,"step":0,"loss":5.5,"tokens":10}\n' >heddle-runs/x/history.jsonl
printf '{"type":"step","job":1,"attempt":1,"step":1,"loss":9}\n' >>heddle-runs/x/history.jsonl
printf '{"type":"validation","job":1,"attempt":1,"step":9,"loss":1.75,"tokens":10}\n' >>heddle-runs/x/history.jsonl
END
printf '#!/bin/sh\n[ "$1 $2" = "bigram --job" ] && grep -q resolved "$3" && cat "%s/bigram"\n' "$TMPDIR" >"$fake/bin/heddle-worker"
chmod +x "$fake/bin/"*
echo 2.5 >"$TMPDIR/bigram"
quickstart() { "$HEDDLE_SOURCE_DIR/deploy/quickstart" --build-dir "$fake" "$@" >"$TMPDIR/out" 2>&1; }

quickstart --dir "$TMPDIR/a"
[ $? = 0 ] && [ "$(tail -n 1 "$TMPDIR/out")" = 'val_loss 5.5000 -> 1.7500 (bigram 2.5000)' ]
verdict the_last_line_is_the_verdict $?
[ "$(head -c 9 "$TMPDIR/a/asked")" = 'local job' ] && grep -q '^generate heddle-runs/latest ' "$TMPDIR/a/asked" &&
    grep -qx 'a sample' "$TMPDIR/out"
verdict another_process_writes_from_the_run_on_disk $?
[ "$(stat -c %a "$TMPDIR/a")" = 700 ]
verdict the_folder_is_private $?

# every source is there, this one too, and nothing of a build
cat "$TMPDIR/a/corpus/"*.txt | grep -q 'hd_file_write_atomic' &&
    ! grep -q 'CMAKE_HOME_DIRECTORY' "$TMPDIR/a/corpus/train.txt" &&
    [ "$(stat -c %s "$TMPDIR/a/corpus/val.txt")" -gt 20000 ]
verdict the_text_is_found_without_git $?

head -c 5000 /dev/zero | tr '\0' t >"$TMPDIR/text" # the sources are thousands of files
echo 1.75 >"$TMPDIR/bigram"
quickstart --dir "$TMPDIR/b" --data "$TMPDIR/text"
[ $? = 1 ] && [ "$(grep -c '^val_loss' "$TMPDIR/out")" = 1 ]
verdict a_model_no_better_than_bigrams_fails $?
echo 2.5 >"$TMPDIR/bigram"

# the last tenth of the first file is b, of the second d
{ head -c 90 /dev/zero | tr '\0' a; head -c 10 /dev/zero | tr '\0' b; } >"$TMPDIR/one file"
{ head -c 45 /dev/zero | tr '\0' c; head -c 5 /dev/zero | tr '\0' d; } >"$TMPDIR/two"
(cd "$TMPDIR" && quickstart --dir c --data "one file" two)
[ $? = 0 ] && [ "$(tr -d '\n' <"$TMPDIR/c/corpus/val.txt")" = bbbbbbbbbbddddd ] &&
    [ "$(tr -d 'ac' <"$TMPDIR/c/corpus/train.txt" | wc -c)" = 0 ]
verdict the_last_tenth_of_each_file_is_held_out $?

quickstart --data "$TMPDIR/none"
[ $? = 2 ] && grep -q 'cannot read the file' "$TMPDIR/out"
verdict a_file_that_is_not_there_is_named $?

quickstart --build-dir "$TMPDIR/unbuilt" --dir "$TMPDIR/a"
[ $? = 2 ] && grep -q 'not empty' "$TMPDIR/out" && [ ! -e "$TMPDIR/unbuilt" ]
verdict a_folder_in_use_is_refused_before_anything_is_built $?

touch "$TMPDIR/wait"
"$HEDDLE_SOURCE_DIR/deploy/quickstart" --build-dir "$fake" --dir "$TMPDIR/d" --data "$TMPDIR/text" >"$TMPDIR/out" 2>&1 &
pid=$!
for _ in $(seq 1200); do [ ! -e "$TMPDIR/waiting" ] || break; sleep 0.05; done
kill -TERM $pid # a background job of a script cannot be sent Ctrl-C; the path is the same
wait $pid
[ $? = 130 ] && grep -qx stopped "$TMPDIR/d/asked" && [ "$(tail -n 1 "$TMPDIR/out")" = 'quickstart: interrupted; no process is left' ]
verdict an_interrupt_reaches_the_run_and_waits_for_its_end $?

# The target that quickstart builds has every program and plug-in that `cmake --install` takes.
ninja -C "$HEDDLE_BUILD_DIR" -t query programs | sed "s|^ *|$HEDDLE_BUILD_DIR/|" >"$TMPDIR/built"
find "$HEDDLE_BUILD_DIR" -name cmake_install.cmake -exec \
    grep -hoE 'TYPE (EXECUTABLE|MODULE) FILES "[^"]*"' {} + | cut -d'"' -f2 | sort -u >"$TMPDIR/installed"
{ [ "$(wc -l <"$TMPDIR/installed")" -ge 7 ] && ! grep -vxFf "$TMPDIR/built" "$TMPDIR/installed"; } >"$TMPDIR/out"
verdict every_program_that_is_installed_is_built $?
exit $bad
