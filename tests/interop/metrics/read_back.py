"""read_back.py DIR STEPS JOB_DIR: reads event files with TensorBoard's own reader and compares with the ranks' logs."""
import glob
import re
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams

folder, steps, job = sys.argv[1], int(sys.argv[2]), sys.argv[3]
seen = EventAccumulator(folder, size_guidance={"scalars": 0})
seen.Reload()
tags = sorted(seen.Tags()["scalars"])
assert tags == ["train/grad_norm", "train/loss", "train/lr", "train/mfu", "train/targets", "train/tokens_per_s",
                "validation/loss"], tags

# the tab HPARAMS: the job's keys, and the end of the session
plugin = lambda tag: seen.SummaryMetadata(f"_hparams_/{tag}").plugin_data.content
keys = hparams.parse_session_start_info_plugin_data(plugin("session_start_info")).hparams
assert keys["train.steps"].number_value == steps and keys["model.family"].string_value == "llama", keys
assert hparams.parse_session_end_info_plugin_data(plugin("session_end_info")).status == 1  # STATUS_SUCCESS

loss, validation = {}, {}
for log in sorted(glob.glob(f"{job}/attempt-*/logs/rank-0.log")):  # the later attempt overwrites
    for line in open(log):
        if m := re.search(r"step (\d+): loss ([0-9.]+) ", line):
            loss[int(m[1])] = float(m[2])
        if m := re.search(r"step (\d+): val_loss ([0-9.]+) ", line):
            validation[int(m[1])] = float(m[2])

for tag, expected in (("train/loss", loss), ("validation/loss", validation)):
    events = seen.Scalars(tag)
    assert [e.step for e in events] == sorted(expected), (tag, [e.step for e in events])
    assert all(abs(e.value - expected[e.step]) <= 0.51e-4 for e in events), tag
    assert all(a.wall_time <= b.wall_time for a, b in zip(events, events[1:])), tag
    print(tag, len(events))
assert sorted(loss) == list(range(1, steps + 1))
for tag in tags[:6]:
    assert len(seen.Scalars(tag)) == steps, tag
