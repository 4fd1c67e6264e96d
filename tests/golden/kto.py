#!/usr/bin/env python3
"""Writes tests/unit/kernels/kto.inc: loss, rewards, KL term and derivatives of batches of rated answers, as TRL's own
KTOTrainer._compute_loss makes them in fp64 from given log-probabilities (loss_type kto and apo_zero_unpaired). The model is
a stand-in that returns them: one token for each answer.

    python3 tests/golden/kto.py        needs torch and trl
"""
import os
import types
from collections import defaultdict

import torch
import trl
from trl.trainer.kto_trainer import KTOTrainer

# beta, weights of desirable and undesirable answers, loss_type
CASES = [(0.1, 1.0, 1.0, "kto"), (0.5, 1.5, 0.75, "kto"), (0.3, 1.0, 4 / 3, "apo_zero_unpaired"), (0.2, 1.0, 1.0, "kto"),
         (2.0, 2.0, 1.0, "kto")]
# log-ratios of four answers, and of the mismatched ones; the last but one case has a mean below 0
RATIOS = [[1.25, -0.75, 3.0, -2.5], [-20.0, 30.0, 4.0, 0.5], [0.0, 1.5, -3.25, 8.0], [2.0, -1.0, 0.25, 6.0],
          [40.0, -35.0, 0.125, 60.0]]
MISMATCHED = [[0.5, 1.75, -0.25, 2.0], [4.0, 7.5, 3.0, -1.0], [3.0, 3.0, 3.0, 3.0], [-3.0, 1.0, -2.0, 0.5],
              [9.0, 2.0, 4.0, 1.0]]
LABELS = [True, False, True, False]


def batch(ratios, mismatched):
    n = len(ratios)
    ids = torch.zeros((n, 2), dtype=torch.long)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": torch.tensor([[0, 1]] * n),
            "KL_input_ids": ids, "KL_attention_mask": torch.ones_like(ids), "KL_completion_mask": torch.tensor([[0, 1]] * n),
            "label": torch.tensor(LABELS), "ref_logps": torch.zeros(n, dtype=torch.float64),
            "ref_KL_logps": torch.zeros(n, dtype=torch.float64)}


def run(case, ratios, mismatched):
    beta, desirable, undesirable, kind = case
    lp = torch.tensor(ratios, dtype=torch.float64, requires_grad=True)
    kl_lp = torch.tensor(mismatched, dtype=torch.float64)
    accelerator = types.SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x)

    def model(**kwargs):
        return types.SimpleNamespace(log_probs=lp[:, None], entropy=torch.zeros(4, 1), mean_logits=torch.zeros(4, 1))

    me = types.SimpleNamespace(model=types.SimpleNamespace(training=True), accelerator=accelerator, beta=beta,
                               calculate_KL=kind == "kto", precompute_ref_logps=True, loss_type=kind,
                               desirable_weight=desirable, undesirable_weight=undesirable, aux_loss_enabled=False,
                               _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0, _tp_size=1,
                               _compute_kl_logps=lambda m, b: kl_lp if kind == "kto" else None)
    loss = KTOTrainer._compute_loss(me, model, batch(ratios, mismatched), False)
    loss.backward()
    kl = me._metrics["train"]["kl"][0]
    return loss.item() * 4, kl, (-4 * lp.grad).tolist()


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../unit/kernels/kto.inc"), "w") as out:
        out.write(f"/* by tests/golden/kto.py: trl {trl.__version__}, torch {torch.__version__} */\n")
        for case, ratios, mismatched in zip(CASES, RATIOS, MISMATCHED):
            total, kl, pull = run(case, ratios, mismatched)
            out.write("{%r, %r, %r, {%s}, %.17e, %.17e, {%s}},\n" % (
                *case[:3], ", ".join(map(repr, ratios)), kl, total, ", ".join("%.17e" % p for p in pull)))


main()
