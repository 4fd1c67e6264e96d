#!/bin/sh
# Writes the sums of three digits in an order of their own: 800 into train.jsonl, and 200, which no training sees, into
# test.jsonl. `completion` is for the warm-up, and for the reward to compare with.
awk 'BEGIN {
    srand(1)
    for (a = 0; a < 10; a++) for (b = 0; b < 10; b++) for (c = 0; c < 10; c++) {
        row[++n] = sprintf("{\"prompt\": \"%d+%d+%d=\", \"completion\": \"%d\"}", a, b, c, a + b + c)
    }
    for (i = n; i > 1; i--) { j = int(rand() * i) + 1; other = row[i]; row[i] = row[j]; row[j] = other }
    for (i = 1; i <= n; i++) print row[i] > (i <= 200 ? "test.jsonl" : "train.jsonl")
}'
