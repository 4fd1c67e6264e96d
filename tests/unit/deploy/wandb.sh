#!/bin/bash
# deploy/wandb/heddle-wandb.py against a stand-in for the package wandb: a history to its end, from a pipe and from a
# folder; a step that is repeated, a line that was cut, a run that goes on.
command -v python3 >/dev/null || {
    echo "skip wandb: there is no python3"
    exit 0
}
bad=0
check_equal() { # NAME EXPECTED GOT
    if [ "$2" = "$3" ]; then echo "ok $1"; else
        printf "not ok %s: expected '%s', got '%s'\n" "$1" "$2" "$3"
        bad=1
    fi
}
work=$TMPDIR
follow=$HEDDLE_SOURCE_DIR/deploy/wandb/heddle-wandb.py
mkdir "$work/run" "$work/modules"
cat >"$work/modules/wandb.py" <<'END'
import os
class Run:
    step = int(os.environ.get("STEP", 0))
def init(project, id, name, resume, config):
    print("init", project, name, len(id), resume)
    return Run()
def log(values, step):
    print("log", step, *[f"{k}={v}" for k, v in sorted(values.items())])
def finish(exit_code):
    print("finish", exit_code)
END
cat >"$work/run/history.jsonl" <<'END'
{"type":"event","job":3,"kind":"state","state":"queued"}
{"type":"event","time":"2026-01-01T00:00:00.000Z","kind":"submitted","job":3}
{"type":"validation","job":3,"attempt":1,"step":0,"loss":5.5,"time":"2026-01-01T00:00:01.000Z"}
{"type":"step","job":3,"attempt":1,"step":1,"loss":5,"lr":0.1,"time":"2026-01-01T00:00:02.000Z"}
{"type":"step","job":3,"attempt":1,"step":2,"loss":4,"lr":0.1,"time":"2026-01-01T00:00:03.000Z"}
{"type":"step","job":3,"attempt":2,"step":1,"loss":5,"lr":0.1,"time":"2026-01-01T00:00:04.000Z"}
{"type":"validation","job":3,"set":"code","step":2,"loss":null,"time":"2026-01-01T00:00:05.000Z"}
{"type":"validation","job":3,"set":"code","step":2,"loss":4.5,"time":"2026-01-01T00:00:05.000Z"}
{"type":"validation","job":3,"set":"quiz/acc","step":2,"score":0.5,"time":"2026-01-01T00:00:05.000Z"}
{"type":"st
{"type":"end","job":3,"state":"succeeded"}
END
expected="init heddle run 16 allow
log 0 validation/loss=5.5
log 1 train/loss=5 train/lr=0.1
log 2 train/loss=4 train/lr=0.1
log 2 validation/code/loss=4.5
log 2 validation/quiz/acc=0.5
finish 0"
export PYTHONPATH=$work/modules PYTHONDONTWRITEBYTECODE=1
unset WANDB_PROJECT
check_equal a_folder_is_followed_to_its_end "$expected" "$(python3 "$follow" "$work/run")"
check_equal so_is_a_pipe "${expected/run 16/job-3 16}" "$(python3 "$follow" - <"$work/run/history.jsonl")"
check_equal a_run_goes_on_behind_what_was_logged "log 2 train/loss=4 train/lr=0.1" \
    "$(STEP=3 python3 "$follow" "$work/run" | grep train/)"
check_equal a_job_that_failed_fails "finish 1" "$(sed 's/succeeded/failed/' "$work/run/history.jsonl" | python3 "$follow" - | tail -n 1)"
check_equal without_the_package_it_says_how_to_get_it 1 "$(PYTHONPATH='' python3 -S "$follow" "$work/run" 2>&1 | grep -c 'pip install wandb')"
exit $bad
