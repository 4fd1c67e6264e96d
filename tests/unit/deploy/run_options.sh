#!/bin/bash
# What tests/run refuses before it builds anything. A machine with a GPU is an nvidia-smi of our own.
set -u

run=${HEDDLE_SOURCE_DIR:?}/tests/run
fakes=$TMPDIR/fakes
bad=0
mkdir -p "$fakes"
cat >"$fakes/nvidia-smi" <<'EOF'
#!/bin/sh
case $* in -L) echo 'GPU 0: of a test (UUID: GPU-0)' ;; *compute_cap*) echo 9.0 ;; esac
EOF
chmod +x "$fakes/nvidia-smi"

# refuses NAME WORDS ARG...: exit status 2, one line, and the line has the words
refuses() {
    local name=$1 words=$2 said status
    shift 2
    said=$(PATH=$fakes:/usr/bin:/bin CUDA_HOME=$TMPDIR/none HEDDLE_CUDA_PLUGIN=${plugin-} "$run" --build-dir "$TMPDIR/build" "$@" 2>&1)
    status=$?
    if [ $status = 2 ] && [ "$(wc -l <<<"$said")" = 1 ] && grep -qF -- "$words" <<<"$said" && [ ! -e "$TMPDIR/build" ]; then
        printf 'ok %s\n' "$name"
    else
        printf 'not ok %s: status %d: %.300s\n' "$name" $status "$said"
        bad=1
    fi
}

refuses an_unknown_tool_is_named 'no tool called memchk; it is memcheck, racecheck' --sanitizer memchk gpu
refuses a_sanitizer_is_for_one_group '--sanitizer is for the group gpu' --sanitizer memcheck unit
PATH=/usr/bin:/bin command -v compute-sanitizer >/dev/null ||
    refuses a_sanitizer_that_is_not_there_is_missed 'compute-sanitizer was not found' --sanitizer racecheck gpu
refuses a_defect_has_a_name 'no defect or package is called nonsense' --selfcheck --only nonsense
refuses defects_name_their_tests '--selfcheck runs what the defects name, not a group' --selfcheck unit
refuses changed_chooses_by_itself '--changed chooses by itself' --changed unit
refuses a_commit_that_is_not_there_is_named 'git knows no commit nonsense' --since nonsense
rm "$fakes/nvidia-smi"
if [ ! -e /dev/nvidiactl ] && ! nvidia-smi -L >/dev/null 2>&1; then
    plugin=/nowhere/libheddle_cudasim.so
    refuses an_emulator_is_no_gpu_for_it '--sanitizer needs an NVIDIA GPU' --sanitizer memcheck gpu
fi
exit $bad
