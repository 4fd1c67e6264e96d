#!/bin/bash
# The database that an older build wrote (tests/golden/state_version_15, whose README says what it
# holds) is served: jobs, history, checkpoints, queues, accounts and the audit log, and the next job.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

umask 077
mkdir "$work/controller" "$work/jobs"
gzip -dc "$HEDDLE_SOURCE_DIR/tests/golden/state_version_15/state.db.gz" >"$work/controller/state.db"
start_controller
check_equal its_jobs_are_known "succeeded failed cancelled" "$(state_of 1) $(state_of 2) $(state_of 3)"
heddle watch 1 -o jsonl >"$work/history"
# 30 steps, validations before the first and behind steps 10, 20 and 30, as job_file of cluster.sh says
check_equal each_of_its_30_steps_is_there_once "$(seq -s ' ' 1 30)" \
    "$(sed -nE 's/^\{"type":"step".*"step":([0-9]+).*/\1/p' "$work/history" | xargs)"
check_equal its_validations_too "0 10 20 30" "$(sed -nE 's/^\{"type":"validation".*"step":([0-9]+).*/\1/p' "$work/history" | xargs)"
check_equal its_checkpoints_are_listed "10 20 30" "$(heddle checkpoint ls 1 -o jsonl | sed -nE 's/.*"step":([0-9]+).*/\1/p' | xargs)"
check_equal its_spec_is_read 64 "$(heddle show 1 -o json | member hidden)"
check_equal the_cause_of_the_failure_is rank_exit "$(heddle show 2 -o json | member cause)"
check the_queue_is_there grep -q '^night' <(heddle queue ls)
check_equal the_account_is_there ann "$(heddle token ls -a -o jsonl | member name)"
check no_row_of_the_audit_log_was_changed heddle audit --verify
check a_node_that_is_gone_is_forgotten heddle node rm n1
start_node n1 cpu:2
# Its jobs had a folder that is not here: nothing starts in an empty one until an operator says so.
check an_empty_jobs_directory_is_not_taken_for_its_own grep -q 'no job starts' <(heddle nodes 2>&1)
kill -TERM "${node_pids[n1]}" "$controller_pid" && wait "${node_pids[n1]}" "$controller_pid"
check_status an_empty_one_is_refused 6 "$HEDDLE_BIN/heddle-controller" adopt --state-dir "$work/controller" --jobs-dir "$work/jobs"
check another_jobs_directory_is_adopted "$HEDDLE_BIN/heddle-controller" adopt empty --state-dir "$work/controller" --jobs-dir "$work/jobs"
start_controller
start_node n1 cpu:2
check_equal the_next_job_has_the_next_number 4 "$(submit "$(job_file next)" --set train.steps=3)"
check it_runs await 60 state_is 4 succeeded
finish
