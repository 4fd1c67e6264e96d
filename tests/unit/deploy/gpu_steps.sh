#!/bin/bash
# What tests/bench/first_gpu makes of a failure, of a test that hangs, that is not there or runs nothing, and of
# too little time, and the whole of it where nothing fails: a build folder of stand-ins takes the place of a GPU's.
set -u
build=$TMPDIR/build bad=0
mkdir -p "$build/tests" "$build/bench" "$TMPDIR/bin"
export PATH=$TMPDIR/bin:$PATH TMPDIR
printf '#!/bin/sh\n[ "$1" != -L ] || { [ -z "${NO_GPU-}" ] && echo "GPU 0: a GPU"; exit; }\necho "a GPU, 1.0"\n' >"$TMPDIR/bin/nvidia-smi"
cat >"$build/tests/kernels_cuda_tests" <<'EOF'
#!/bin/sh
case $1 in
gemm_test) echo 'ERROR: gemm: c[3,4] is 1.5, not 1.25'; echo '1 failed'; exit 1 ;;
step_test) echo 'step passed' ;;
esac
EOF
printf '#!/bin/sh\nexec sleep 600\n' >"$build/tests/train_cuda_tests"
printf '#!/bin/sh\necho "memory as planned"\n' >"$build/tests/cuda_device_memory_test"
printf '#!/bin/sh\n[ "$1" != bytes ] || { echo "SKIPPED: no plug-in"; exit; }\necho "$1 at 80%%"\n' >"$build/bench/kernels_gpu"
printf '#!/bin/sh\necho "  MFU; loss 4.0"\necho "ours 1 ms a step, 5 tokens/s"\n' >"$build/bench/train_gpu"
chmod +x "$TMPDIR/bin/nvidia-smi" "$build"/*/*
cat >"$build/tests/list" <<'EOF'
program cuda_step_test gpu short 300 alone kernels_cuda_tests step_test 
program cuda_gemm_test gpu short 300 alone kernels_cuda_tests gemm_test 
program cuda_golden_test gpu short 600 alone train_cuda_tests golden_test 
program cuda_device_memory_test gpu short 600 alone 
EOF

check() { # NAME STATUS
    if [ "$2" = 0 ]; then
        printf 'ok %s\n' "$1"
    else
        printf 'not ok %s:\n' "$1"
        cat "$TMPDIR/out/page.txt"
        bad=1
    fi
}
page=$TMPDIR/out/page.txt
says() { grep -qE -- "$1" "$page"; }

# The budget is told in seconds here: the script counts from a begin that lies back, or ahead.
run() { # SECONDS SCRIPT OPTION...
    rm -rf --one-file-system "$TMPDIR/out"
    SECONDS_LESS=$((60 - $1)) timeout 60 "$HEDDLE_SOURCE_DIR/tests/bench/$2" --minutes 1 --built \
        --build-dir "$build" --out "$TMPDIR/out" "${@:3}" >"$TMPDIR/printed" 2>&1
}
tiny=(--tiny --python /nowhere)
run 20 first_gpu "${tiny[@]}"
status=$?
[ $status = 1 ] && says '^  ok   cuda_step_test .*step passed' && says '^  FAIL cuda_gemm_test .*exit status 1' &&
    says '^      ERROR: gemm: c\[3,4\] is 1.5, not 1.25' && says '^  ok   cuda_device_memory_test .*memory as planned' &&
    cmp -s "$page" "$TMPDIR/printed" && grep -q 'c\[3,4\]' "$TMPDIR/out/cuda_gemm_test.txt"
check a_failure_is_on_the_page_and_the_next_step_begins $?
says '^  FAIL cuda_golden_test .*ended after its [0-9]+ seconds' && ! pgrep -f "$build/tests/train_cuda_tests" >/dev/null
check a_test_that_hangs_is_ended $?
says '^  FAIL comm_nccl_gpu_test +is not in ' && says '^4 failed, 0 left out'
check a_test_that_was_not_built_is_said $?
says '^  FAIL table_bytes .*it ran nothing' && says '^      SKIPPED: no plug-in'
check what_runs_nothing_is_no_success $?
says '^  ok   table_gemm .*gemm at 80%' && says '^ours 1 ms a step, 5 tokens/s'
check time_is_kept_for_the_tables_and_the_training $?

run 4 first_gpu "${tiny[@]}"
says '^  --   cuda_step_test +left out: no time is left for it' && says '^[0-9]+ failed, [1-9][0-9]* left out, '
check without_time_steps_are_left_out $?

run 30 second_gpu "${tiny[@]}"
says '^  FAIL cuda_update_train_test +is not in' && says '^  ok   train_toy .*5 tokens/s'
check the_second_script_runs_what_takes_longer $?

NO_GPU=1 run 20 first_gpu "${tiny[@]}"
[ $? = 2 ] && [ ! -e "$page" ] && grep -q 'nvidia-smi lists no GPU' "$TMPDIR/printed"
check without_a_gpu_nothing_is_called_ok $?

# Every test that the scripts name is there, and PyTorch: they go through to their last lines.
for name in $(sed -nE '/^kernels=\(/,/\)$/s/kernels=|[()]//gp' "$HEDDLE_SOURCE_DIR/tests/bench/first_gpu") step late device_memory golden \
    {gradient,update,resume,documents,profile}_train grid_{gpt2,llama,qwen3,mixtral}; do
    echo "program cuda_${name}_test gpu short 300 alone kernels_cuda_tests $name "
done >"$build/tests/list"
echo 'program comm_nccl_gpu_test gpu short 300 alone kernels_cuda_tests nccl ' >>"$build/tests/list"
mkdir "$build/bin"
printf '#!/bin/sh\necho "$*"\n' | tee "$build/tests/kernels_cuda_tests" "$build/bin/heddle-worker" "$build/bench/plan_gpu" \
    "$TMPDIR/bin/python3" "$TMPDIR/bin/compute-sanitizer" >/dev/null
printf '#!/bin/sh\necho "9.0"\n[ "$1" != -L ] || echo "GPU 0: a GPU"\n' >"$TMPDIR/bin/nvidia-smi"
printf '#!/bin/sh\necho "attention_forward ${HEDDLE_CUDA_ATTENTION-own} $1"\n' >"$build/bench/kernels_gpu"
cat >"$build/bench/train_gpu" <<'EOF'
#!/bin/sh
echo "ours 1 ms a step, 5 tokens/s $*"
case ${HEDDLE_CUDA_GRAPHS-}${HEDDLE_CUDA_GLU-} in on) echo "  MFU; loss ${LOSS_OF_GRAPHS-4.0002}" ;; wgmma) echo "  MFU; loss ${LOSS_OF_GLU-4.0003}" ;; *) echo '  MFU; loss 4.0001' ;; esac
printf '  class  ms\n  products 1\n  all 1\n  kernel ms\n'
EOF
chmod +x "${TMPDIR:?}"/bin/* "${build:?}"/*/*
run 2000 first_gpu
[ $? = 0 ] && says '^0 failed, 0 left out' && cmp -s "$page" "$TMPDIR/printed" && says '^  ok   cuda_late_test' &&
    tar -tzf "$TMPDIR/out/all.tar.gz" | grep -qx page.txt
check where_nothing_fails_it_goes_through_to_its_end $?
says '^attention_forward own attention' && says '^attention_forward wgmma attention' && says '^attention_forward cudnn attention' &&
    says '^ours .*--case 124m --micro 4' && says '^train_glu_wgmma:' && says '^ours .*--case qwen$' && says '^ours .*--case 124m --peer torch --peer torch-cudnn --python python3' &&
    says '^ours .*--case qwen --peer' && says '^  products 1' && ! says '^  kernel ms'
check the_page_has_each_table $?
LOSS_OF_GRAPHS=4.1 LOSS_OF_GLU=4.2 run 200 first_gpu "${tiny[@]}"
says "^  FAIL losses of graphs_off and graphs_on: 4.0001 4.1" &&
    says "^  FAIL losses of glu_separate and glu_wgmma: 4.0001 4.2" && says "^2 failed"
check losses_that_a_setting_changes_are_said $?
run 3000 second_gpu
[ $? = 0 ] && says '^0 failed, 0 left out' && says '^  ok   plan_gpu' && says '^  ok   memcheck_gemm' && says '^ours .*--case llama --peer'
check so_does_the_second_script $?
exit $bad
