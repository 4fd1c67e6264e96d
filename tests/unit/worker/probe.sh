#!/bin/bash
# A probe of two devices, with its smallest sizes: what it stores, and what it leaves.
set -u

bad=0
verdict() { # NAME STATUS: ok if STATUS is 0
    if [ "$2" -eq 0 ]; then
        echo "ok $1"
    else
        echo "not ok $1"
        bad=1
    fi
}

worker=$HEDDLE_BIN/heddle-worker
mkdir "$TMPDIR/out"
file=$TMPDIR/out/calibration

"$worker" probe --devices cpu:2:1 --seconds 40 --quick --out "$file" 2>"$TMPDIR/said"
verdict a_probe_ends_well $?
# Some kernels have other sizes on each rank, such as those of experts.
read -r both all < <(sed -nE 's/.* ([0-9]+) of ([0-9]+) measurements of kernels were made on all 2 devices$/\1 \2/p' "$TMPDIR/said")
[ "${all:-0}" -gt 0 ] && [ $((both * 10)) -ge $((all * 8)) ] || { cat "$TMPDIR/said"; false; }
verdict times_are_means_of_all_devices $?
missing=0
for part in '"kernel":"gemm","variant":"f32.nt"' '"kernel":"attention_backward"' '"kernel":"adamw"' \
    '"kind":"all_reduce","members":2' '"kind":"send","members":2' '"threads":1,"devices":2'; do
    grep -qF "$part" "$file" || { echo "    no $part"; missing=1; }
done
verdict it_stores_kernels_and_collectives $missing
[ "$(ls -A "$TMPDIR/out")" = calibration ]
verdict it_leaves_nothing_else $?

# Of three devices one rests in each round of messages; each two of them have met.
said=$("$worker" probe --devices cpu:3:1 --seconds 40 --quick --answer --out "$TMPDIR/three")
[ $? -eq 0 ] && [ "$said" = measured ]
verdict it_says_that_it_has_measured $?
sed -n 's/.*"each":\(.*\),"kernels".*/\1/p' "$TMPDIR/three" >"$TMPDIR/devices"
n='[0-9][-+.e0-9]*'
grep -qxE "\[(\[[1-9][-+.e0-9]*,[1-9][-+.e0-9]*,[1-9][-+.e0-9]*\],?){3}\],\"pairs\":\[\[0,1,$n,$n\],\[0,2,$n,$n\],\[1,2,$n,$n\]\]" \
    "$TMPDIR/devices" || { echo "    $(cat "$TMPDIR/devices")"; false; }
verdict it_measures_each_device_and_each_two $?

message=$("$worker" probe --devices gpu:1 --out "$TMPDIR/out/other" 2>&1)
[ $? -eq 2 ] && [[ $message == *'give cpu:N or cpu:N:T'* ]]
verdict devices_that_it_cannot_probe_are_named $?

said=$(HEDDLE_CUDA_PLUGIN=none "$worker" probe --devices cuda:1 --answer --out "$TMPDIR/out/other" 2>"$TMPDIR/message")
[ $? -eq 6 ] && [[ $said == *'device 0: GPUs are switched off'* ]]
verdict the_answer_says_why_a_device_failed $?

# Nothing else ends a probe by hand where the driver does not answer: here whoever opens the plug-in waits.
mkfifo "$TMPDIR/hangs"
said=$(HEDDLE_CUDA_PLUGIN=$TMPDIR/hangs timeout -s KILL 30 "$worker" probe --devices cuda:1 --seconds 1 --answer \
    --out "$TMPDIR/out/other" 2>"$TMPDIR/message")
[ $? -eq 6 ] && [[ $said == *'time was over'* ]] && [ "$(ls -A "$TMPDIR/out")" = calibration ]
verdict a_driver_that_hangs_ends_with_the_time $?

# GPUs are named as everywhere, not by their places among those that are measured.
said=$(HEDDLE_CUDA_PLUGIN=none "$worker" probe --devices cuda:GPU-7 --answer --out "$TMPDIR/out/other" 2>"$TMPDIR/message")
[ $? -eq 6 ] && [[ $said == 'GPU-7: GPUs are switched off'* ]]
verdict the_answer_names_the_gpu $?
said=$(HEDDLE_CUDA_PLUGIN=none "$worker" probe --devices cuda:MIG-7 --answer --out "$TMPDIR/out/other" 2>"$TMPDIR/message")
[ $? -eq 6 ] && [[ $said == 'MIG-7: GPUs are switched off'* ]]
verdict a_slice_may_be_probed $?
said=$(HEDDLE_CUDA_PLUGIN=none "$worker" probe --devices cuda:PCI-0000:3b:00.0 --answer --out "$TMPDIR/out/other" 2>"$TMPDIR/message")
[ $? -eq 6 ] && [[ $said == 'PCI-0000:3b:00.0: GPUs are switched off'* ]]
verdict one_without_a_uuid_is_named $?
"$worker" probe --devices cuda:MIG-7,MIG-8 --out "$TMPDIR/out/other" 2>"$TMPDIR/message"
[ $? -ne 0 ] && grep -q 'name one slice' "$TMPDIR/message"
verdict several_are_refused $?

"$worker" probe --devices cpu:2:1 --out "$TMPDIR/out/killed" 2>"$TMPDIR/message" &
probe=$!
until child=$(cut -d' ' -f2 "/proc/$probe/task/$probe/children" 2>/dev/null) && [ -n "$child" ]; do sleep 0.05; done
kill -KILL "$child"
wait "$probe"
[ $? -eq 6 ] && grep -q 'the process of device [01] was killed by signal 9 (Killed)' "$TMPDIR/message"
verdict it_says_how_a_process_ended $?

# What it measures it measures in other processes: they end with it.
"$worker" probe --devices cpu:2:1 --out "$TMPDIR/out/stopped" 2>"$TMPDIR/message" &
probe=$!
for ((i = 0; i < 100; i++)); do
    children=$(cat "/proc/$probe/task/$probe/children" 2>/dev/null)
    [ "$(wc -w <<<"$children")" -eq 2 ] && break
    sleep 0.05
done
kill -TERM "$probe"
wait "$probe"
[ $? -eq 6 ] && grep -q 'stopped by a signal' "$TMPDIR/message" && [ -n "$children" ] &&
    [ "$(ls -A "$TMPDIR/out")" = calibration ]
verdict a_probe_that_is_stopped_says_so_and_leaves_nothing $?
left=0
for child in $children; do
    [ -e "/proc/$child" ] && left=1
done
verdict its_processes_end_with_it $left
exit $bad
