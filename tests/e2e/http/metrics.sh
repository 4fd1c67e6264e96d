#!/bin/bash
# metrics: a job on CPU devices is scraped while it runs; the numbers are those of heddle show. And a
# node with a GPU, whose driver is a stand-in.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/e2e/http/http.sh" || exit 1

# near NAME EXPECTED ACTUAL: to 9 digits (a page has 12)
near() {
    if awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; m = a < 0 ? -a : a; exit !(a != "" && b != "" && d <= 1e-9 * (m > 1 ? m : 1)) }'; then
        ok "$1"
    else
        not_ok "$1" "expected '$2', got '$3'"
    fi
}
page() { body $controller /metrics >"$work/page"; }
# good_page NAME PROGRAM FILE: by the second reader of the format, and by promtool where it is
good_page() {
    check "$1" "$HEDDLE_BUILD_DIR/tests/prometheus_test" --check "$2" <"$3"
    if command -v promtool >/dev/null; then
        check "$1_for_promtool" sh -c 'promtool check metrics <"$1"' - "$3"
    else
        echo "skip $1_for_promtool: promtool is not installed"
    fi
}

# ---- a job ----

start_controller --http 127.0.0.1:0
controller=$(door_of "$work/controller.log" "dashboard and metrics")
start_node n1 cpu:2 --http 127.0.0.1:0
file=$(job_file one)
job=$(submit "$file" --set train.steps=100000)
waits=$(submit "$file" --set resources.devices=4)
await 60 steps_at_least "$job" 12 || not_ok the_job_trains "it makes no steps"
page
good_page the_controllers_page_is_right controller "$work/page"
check_equal jobs_are_counted_by_state "1 1" "$(sample "$work/page" heddle_jobs 'state="running"') $(sample "$work/page" heddle_jobs 'state="queued"')"
check_equal a_waiting_job_has_its_reason 1 "$(sample "$work/page" heddle_jobs_waiting 'blocker="capacity"')"
check_equal a_job_has_its_name 1 "$(grep -c "^heddle_job_info{job_id=\"$job\",name=\"one\",owner=\"uid:$(id -u)\",queue=\"default\"} 1$" "$work/page")"
check_equal devices_are_counted_by_use "2 0" "$(sample "$work/page" heddle_node_devices 'node="n1",use="held"') $(sample "$work/page" heddle_node_devices 'node="n1",use="free"')"
check_equal a_goodput_is_a_ratio yes "$(sample "$work/page" heddle_job_goodput_ratio "job_id=\"$job\"" | awk '{ print ($1 > 0 && $1 <= 1 ? "yes" : $1) }')"
check_equal commits_are_timed yes "$(sample "$work/page" heddle_commit_duration_seconds_count | awk '{ print ($1 > 3 ? "yes" : $1) }')"

# Stopped, the job's numbers stay: now both tell of the same step.
heddle hold "$job" >/dev/null && heddle requeue "$job" >/dev/null
await 30 state_is "$job" queued || not_ok the_job_stops "it is $(state_of "$job")"
heddle show "$job" -o json >"$work/show"
page
label="job_id=\"$job\""
near its_step_is_that_of_show "$(sed -nE 's/.*"restarts":[0-9]+,"step":([0-9]+).*/\1/p' "$work/show")" "$(sample "$work/page" heddle_job_step "$label")"
near its_loss_is_that_of_show "$(grep -o '"loss":[0-9.]*' "$work/show" | head -n 1 | cut -d : -f 2)" "$(sample "$work/page" heddle_job_loss "$label")"
near its_rate_is_that_of_show "$(member tokens_per_s <"$work/show")" "$(sample "$work/page" heddle_job_tokens_per_second "$label")"
near its_checkpoint_is_that_of_show "$(member checkpoint_step <"$work/show")" "$(sample "$work/page" heddle_job_checkpoint_step "$label")"
near its_attempts_are_those_of_show "$(member attempt <"$work/show")" "$(sample "$work/page" heddle_job_attempts_total "$label")"
open=$(sample "$work/page" heddle_queue_closed 'queue="default"')
heddle queue set default --closed >/dev/null && page
check_equal a_closed_queue_is_shown "0 1" "$open $(sample "$work/page" heddle_queue_closed 'queue="default"')"
heddle queue set default --open >/dev/null
check_equal it_does_not_run 0 "$(sample "$work/page" heddle_job_running "$label")"
check_equal its_end_has_a_cause 1 "$(sample "$work/page" heddle_attempts_ended_total 'cause="user"')"
body $controller "/api/v1/jobs/$job" | tr -d '\n' >"$work/http"
tr -d '\n' <"$work/show" >"$work/cli"
check_equal the_same_object_by_http_and_by_show "$(cksum <"$work/cli")" "$(cksum <"$work/http")"
heddle nodes -o json | tr -d '\n' | sed 's/"seen_at":"[^"]*"//' >"$work/cli"
body $controller /api/v1/nodes | tr -d '\n' | sed 's/"seen_at":"[^"]*"//' >"$work/http"
check_equal the_same_nodes_by_http_and_by_nodes "$(cksum <"$work/cli")" "$(cksum <"$work/http")"
heddle events "$job" -o json | tr -d '\n' >"$work/cli"
body $controller "/api/v1/jobs/$job/events" | tr -d '\n' >"$work/http"
check_equal the_same_events_by_http_and_by_events "$(cksum <"$work/cli")" "$(cksum <"$work/http")"
check_equal the_newest_events_are_the_last "$(grep -o '"sequence":[0-9]*' "$work/cli" | tail -n 2 | paste -sd' ')" \
    "$(body $controller "/api/v1/jobs/$job/events?limit=2" | grep -o '"sequence":[0-9]*' | paste -sd' ')"
heddle queue ls -o json | tr -d '\n' >"$work/cli"
body $controller /api/v1/queues | tr -d '\n' >"$work/http"
check_equal the_same_queues_by_http_and_by_queue_ls "$(cksum <"$work/cli")" "$(cksum <"$work/http")"
body $controller "/api/v1/jobs/$job/log?offset=0&bytes=4000" >"$work/http"
check the_log_is_there grep -q '"offset_bytes":0,.*"text":".*heddle-worker' "$work/http"
check_equal the_next_piece_begins_where_one_ends "$(sed -nE 's/.*"next_offset_bytes":([0-9]+).*/\1/p' "$work/http")" \
    "$(body $controller "/api/v1/jobs/$job/log?offset=$(sed -nE 's/.*"next_offset_bytes":([0-9]+).*/\1/p' "$work/http")&bytes=10" |
        sed -nE 's/.*"offset_bytes":([0-9]+),.*/\1/p')"
check_equal the_resolved_job_is_that_of_the_ranks HEDDLE-JOB "$(body $controller "/api/v1/jobs/$job/resolved" | head -n 1 | cut -d' ' -f1)"
check_equal the_curve_has_every_step "$(sed -nE 's/.*"restarts":[0-9]+,"step":([0-9]+).*/\1/p' "$work/show")" "$(body $controller "/api/v1/jobs/$job/curve" | member last_step)"

heddle cancel "$waits" "$job" >/dev/null
await 30 state_is "$job" cancelled
page
check_equal a_job_that_has_ended_has_no_series 0 "$(grep -c "job_id=\"$job\"" "$work/page")"
check_equal the_ended_are_counted 2 "$(sample "$work/page" heddle_jobs_ended_total 'state="cancelled"')"

# ---- a daemon, and a GPU ----

body $(door_of "$work/n1.log" metrics) /metrics >"$work/page"
good_page the_daemons_page_is_right daemon "$work/page"
check_equal the_daemon_is_connected 1 "$(sample "$work/page" heddle_daemon_connected)"
check_equal without_a_gpu_there_is_no_value 0 "$(grep -c '^heddle_gpu' "$work/page")"

export FAKE_GPUS='{"problem":"","log_problem":"","libraries":"","gpus":[{"uuid":"GPU-a","name":"Stand-in H100","bus":"0000:01:00.0",
"problem":"","fault":"","memory_bytes":85899345920,"fault_at":0}]}'
export NVML_HANGS=$work/hangs
cat >"$work/worker" <<END
#!/bin/sh
[ "\$1" = gpu-sample ] || exec "$HEDDLE_BUILD_DIR/tests/fake_worker" "\$@"
LD_LIBRARY_PATH="$HEDDLE_BUILD_DIR/lib/nvml_stand_in" exec "$HEDDLE_BIN/heddle-worker" gpu-sample
END
chmod +x "$work/worker"
start_node gpu cuda --worker "$work/worker" --http 127.0.0.1:0
gpu=$(door_of "$work/gpu.log" metrics)
sampled() { body $gpu /metrics >"$work/page" && grep -q '^heddle_gpu_power_watts' "$work/page"; }
await 30 sampled || not_ok a_gpu_is_sampled "$(grep gpu "$work/page" | head -n 5 | tr '\n' ' ')"
good_page the_page_of_a_gpu_is_right daemon "$work/page"
check_equal power_is_in_watts 412.345 "$(sample "$work/page" heddle_gpu_power_watts 'device="0"')"
check_equal energy_is_in_joules 7000.5 "$(sample "$work/page" heddle_gpu_energy_joules_total 'device="0"')"
check_equal clocks_are_in_hertz 1755000000 "$(sample "$work/page" heddle_gpu_clock_hertz 'device="0",clock="sm"')"
check_equal it_is_held_down_by_power_and_heat "1 1 0 0" "$(for r in power thermal hardware brake; do sample "$work/page" heddle_gpu_throttled "device=\"0\",reason=\"$r\""; done | paste -sd' ')"
check_equal memory_errors_are_counted "12 0" "$(sample "$work/page" heddle_gpu_ecc_errors_total 'device="0",severity="corrected"') $(sample "$work/page" heddle_gpu_ecc_errors_total 'device="0",severity="uncorrected"')"
check_equal its_busy_part_is_a_ratio 0.87 "$(sample "$work/page" heddle_gpu_busy_ratio 'device="0"')"
check_equal what_the_driver_does_not_tell_is_absent 0 "$(grep -c '^heddle_gpu_power_limit_watts' "$work/page")"

# ---- a node that goes ----

up() { page; echo "$(sample "$work/page" heddle_node_up 'node="gpu"') $(sample "$work/page" heddle_nodes 'state="ready"') $(sample "$work/page" heddle_nodes 'state="unreachable"')"; }
check_equal two_nodes_are_up "1 2 0" "$(up)"
kill "${node_pids[gpu]}"
wait "${node_pids[gpu]}" 2>/dev/null
is_gone() { [ "$(up)" = "0 1 1" ]; }
await 10 is_gone || not_ok a_node_whose_daemon_has_gone_is_not_up "$(up)"
check_equal as_the_list_of_nodes_says 1 "$(heddle nodes | grep -c '^gpu .* unreachable ')"
finish
