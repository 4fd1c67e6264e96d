#!/usr/bin/env python3
"""Writes tests/unit/kernels/preference.inc: loss, margin, mean reward and derivatives of pairs of answers, in
60 digits. The formulas are those of TRL 1.16: DPOTrainer with loss_type sigmoid and f-divergence
reverse_kl (its first lines of `# Get the log ratios`), ORPOTrainer.odds_ratio_loss, with the mean
log-probability of the chosen answer's tokens as its loss of the chosen answer, the other loss_type of
DPOTrainer and those of CPOTrainer with the same mean as their likelihood, and
RewardTrainer.compute_loss with center_rewards_coefficient, which stands in place of beta here.
Derivatives are central differences, whose error is about 1e-40.

    python3 tests/golden/preference.py        Python alone
"""
import os
from decimal import Decimal as D, getcontext

getcontext().prec = 60
STEP = D(10) ** -20


def log_sigmoid(x):
    return -(1 + (-x).exp()).ln()


def dpo(beta, s, n):
    margin = beta * (s[0] - s[1])
    return -log_sigmoid(margin), margin, beta * (s[0] + s[1]) / 2


def softplus(x):
    return -log_sigmoid(-x)


def sigmoid(x):
    return log_sigmoid(x).exp()


def logistic(x, e, robust=False):
    if robust:
        return ((1 - e) * softplus(-x) - e * softplus(x)) / (1 - 2 * e)
    return (1 - e) * softplus(-x) + e * softplus(x)


def of_sums(loss):
    """A loss of x = beta (s_chosen - s_rejected); `more` are smoothing, gamma and sft."""
    def value(beta, s, n, more):
        x = beta * (s[0] - s[1])
        return loss(x, beta, s, more) - more[2] * s[0] / n[0], x, beta * (s[0] + s[1]) / 2
    return value


def of_means(loss):
    def value(beta, s, n, more):
        a = [s[0] / n[0], s[1] / n[1]]
        x = beta * (a[0] - a[1])
        return loss(x, beta, a, more) - more[2] * a[0], x, beta * (a[0] + a[1]) / 2
    return value


cdpo = of_sums(lambda x, b, s, m: logistic(x, m[0]))
robust = of_sums(lambda x, b, s, m: logistic(x, m[0], True))
hinge = of_sums(lambda x, b, s, m: max(D(0), 1 - x))
apo_zero = of_sums(lambda x, b, s, m: 1 - sigmoid(b * s[0]) + sigmoid(b * s[1]))
apo_down = of_sums(lambda x, b, s, m: sigmoid(b * s[0]) + 1 - sigmoid(x))
ipo = of_means(lambda x, b, a, m: (a[0] - a[1] - 1 / (2 * b)) ** 2)
sigmoid_norm = of_means(lambda x, b, a, m: logistic(x, m[0]))
simpo = of_means(lambda x, b, a, m: logistic(x - m[1], m[0]))


def reward(center, s, n):
    return -log_sigmoid(s[0] - s[1]) + center * (s[0] + s[1]) ** 2, s[0] - s[1], (s[0] + s[1]) / 2


def orpo(beta, s, n):
    chosen, rejected = s[0] / n[0], s[1] / n[1]
    log_odds = (chosen - rejected) - ((1 - chosen.exp()).ln() - (1 - rejected.exp()).ln())
    return -chosen - beta * log_sigmoid(log_odds), beta * (chosen - rejected), beta * (chosen + rejected) / 2


# beta, log-ratio or log-probability of the chosen answer, its tokens, and of the rejected one
DPO = [(0.1, 0.0, 3, 0.0, 5), (0.1, 1.25, 3, -0.75, 5), (0.5, -20.0, 40, 30.0, 7), (0.01, 3.0, 2, 9.5, 2),
       (5.0, 60.0, 9, -80.0, 4), (5.0, -80.0, 9, 60.0, 4)]
ORPO = [(0.1, -3.0, 3, -10.0, 5), (0.1, -6.0, 3, -2.0, 4), (1.0, -0.001, 2, -55.0, 11),
        (0.25, -300.0, 20, -0.5, 8)]
# the same with rewards
REWARD = [(0.0, 0.0, 1, 0.0, 1), (0.0, 1.5, 1, -0.25, 1), (0.01, -3.0, 1, 2.5, 1), (0.5, 40.0, 1, -700.0, 1)]


RATIOS = [(0.1, 1.25, 3, -0.75, 5), (0.5, -20.0, 40, 30.0, 7), (2.0, 3.0, 2, 9.5, 3), (2.0, -60.0, 9, -80.0, 4)]
MORE = [(0, 0, 0), (0, 0, 0.25)]
SMOOTHED = [(0.1, 0, 0), (0.25, 0, 1.0)]
MARGINS = [(0, 0.5, 0), (0.125, 1.5, 0.25)]


def kin(name, loss, mores):
    for case in RATIOS:
        for more in mores:
            yield from rows(name, lambda b, s, n: loss(b, s, n, [D(m) for m in more]), [case], more)


def rows(name, loss, cases, more=(0, 0, 0)):
    for beta, chosen, n_chosen, rejected, n_rejected in cases:
        b, s, n = D(beta), [D(chosen), D(rejected)], [D(n_chosen), D(n_rejected)]
        value, margin, mean = loss(b, s, n)
        pull = []
        for i in range(2):
            up, down = list(s), list(s)
            up[i] += STEP
            down[i] -= STEP
            pull.append(-(loss(b, up, n)[0] - loss(b, down, n)[0]) / (2 * STEP))
        yield "{HD_PREFERENCE_%s, %r, {%g, %g, %g}, {%r, %d, %r, %d}, %.17e, %.17e, %.17e, {%.17e, %.17e}},\n" % (
            name, beta, *more, chosen, n_chosen, rejected, n_rejected, value, margin, mean, pull[0], pull[1])


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../unit/kernels/preference.inc"), "w") as out:
        out.write("/* by tests/golden/preference.py */\n")
        out.writelines(rows("DPO", dpo, DPO))
        out.writelines(kin("DPO", cdpo, SMOOTHED))
        out.writelines(kin("ROBUST", robust, MORE[1:] + SMOOTHED))
        out.writelines(kin("HINGE", hinge, MORE))
        out.writelines(kin("IPO", ipo, MORE))
        out.writelines(kin("SIGMOID_NORM", sigmoid_norm, MORE))
        out.writelines(kin("APO_ZERO", apo_zero, MORE))
        out.writelines(kin("APO_DOWN", apo_down, MORE))
        out.writelines(kin("SIMPO", simpo, MARGINS))
        out.writelines(kin("CPO", cdpo, MORE + SMOOTHED))
        out.writelines(rows("ORPO", orpo, ORPO))
        out.writelines(rows("REWARD", reward, REWARD))


main()
