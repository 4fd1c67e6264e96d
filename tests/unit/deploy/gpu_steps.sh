#!/bin/bash
# What tests/bench/first_gpu makes of a failure, of a test that hangs, that is not there or runs nothing, and of
# too little time: a build folder of stand-ins takes the place of a GPU's.
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
printf '#!/bin/sh\necho "ours 1 ms a step, 5 tokens/s"\n' >"$build/bench/train_gpu"
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

# The budget is told in seconds here: the script counts from a begin that lies back.
run() { # SECONDS SCRIPT
    rm -rf --one-file-system "$TMPDIR/out"
    SECONDS_LESS=$((60 - $1)) timeout 60 "$HEDDLE_SOURCE_DIR/tests/bench/$2" --minutes 1 --tiny --built --python /nowhere \
        --build-dir "$build" --out "$TMPDIR/out" >"$TMPDIR/printed" 2>&1
}
run 20 first_gpu
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

run 4 first_gpu
says '^  --   cuda_step_test +left out: no time is left for it' && says '^[0-9]+ failed, [1-9][0-9]* left out, '
check without_time_steps_are_left_out $?

run 30 second_gpu
says '^  FAIL cuda_update_train_test +is not in' && says '^  ok   train_toy .*5 tokens/s'
check the_second_script_runs_what_takes_longer $?

NO_GPU=1 run 20 first_gpu
[ $? = 2 ] && [ ! -e "$page" ] && grep -q 'nvidia-smi lists no GPU' "$TMPDIR/printed"
check without_a_gpu_nothing_is_called_ok $?
exit $bad
