#!/usr/bin/env python3
"""Sends a run of Heddle to Weights & Biases, by the wandb package that is installed here.

    heddle-wandb.py RUN                                   a folder of heddle local, to its end
    heddle watch JOB -o jsonl | heddle-wandb.py -         a job of the controller

wandb's own settings hold: WANDB_API_KEY or `wandb login`, WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline.
Training never waits for this process: it reads what the run has written. Started again, it goes on in the
same run of W&B (its id follows from the folder or the job, and the first time), behind the last step that it logged.
"""
import argparse
import fcntl
import hashlib
import json
import os
import signal
import sys
import time

TICK_S = 0.5  # pause at the end of a history that is still written


def is_in_use(folder):
    """Whether a process holds the lock on the run's marker."""
    try:
        with open(os.path.join(folder, ".heddle-run")) as marker:
            fcntl.flock(marker, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def lines_of_folder(folder):
    """The lines of a run's history, as they are written, until the run has ended."""
    rest = ""
    with open(os.path.join(folder, "history.jsonl"), encoding="utf-8", errors="replace") as file:
        while True:
            in_use = is_in_use(folder)  # asked before the end is looked for
            piece = file.readline()
            if piece:
                rest += piece
                if rest.endswith("\n"):
                    yield rest
                    rest = ""
            elif in_use:
                time.sleep(TICK_S)
            else:
                return


def values_of(line):
    """The numbers of a step or a validation, by the names of their curves; {}: it has none."""
    if line.get("type") == "step":
        skip = ("type", "job", "attempt", "step", "time")
        return {"train/" + key: value for key, value in line.items()
                if key not in skip and isinstance(value, (int, float))}
    name = line.get("set")
    if line.get("type") == "validation" and name and isinstance(line.get("score"), (int, float)):
        return {"validation/" + name: line["score"]}  # whose name says which score it is
    if line.get("type") == "validation" and isinstance(line.get("loss"), (int, float)):
        return {"validation/" + (name + "/" if name else "") + "loss": line["loss"]}
    return {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run of heddle local, or - for lines of heddle watch -o jsonl")
    parser.add_argument("--project", default=os.environ.get("WANDB_PROJECT", "heddle"))
    parser.add_argument("--name", help="name of the run; else its folder's, or job-N")
    args = parser.parse_args()
    try:
        import wandb
    except ImportError:
        sys.exit("heddle-wandb: the package wandb is not installed here: pip install wandb")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    if args.run == "-":
        lines, folder = sys.stdin, None
    else:
        folder = os.path.realpath(args.run)
        if not os.path.isfile(os.path.join(folder, "history.jsonl")):
            sys.exit(f"heddle-wandb: {args.run} has no history.jsonl; name the folder of a run of heddle local")
        lines = lines_of_folder(folder)

    run, state, last = None, None, -1
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # a line that a killed process did not end
        if not isinstance(line, dict):
            continue
        if run is None:
            if "time" not in line:
                continue  # the first line with a time tells this run from another of its folder or number
            identity = f"{folder or 'job %s' % line.get('job')} of {line['time']}"
            run = wandb.init(project=args.project, id=hashlib.sha256(identity.encode()).hexdigest()[:16],
                             name=args.name or (os.path.basename(folder) if folder else f"job-{line.get('job')}"),
                             resume="allow", config={"heddle/run": identity})
            last = getattr(run, "step", 0) - 1  # steps that an earlier process logged
        state = line.get("state") if line.get("type") == "end" else None
        values, step = values_of(line), line.get("step")
        if values and isinstance(step, int) and step >= last:
            wandb.log(values, step=step)
            last = step
    if run is None:
        sys.exit("heddle-wandb: there is no line of a job's history")
    wandb.finish(exit_code=0 if state == "succeeded" else 1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
