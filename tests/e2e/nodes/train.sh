#!/bin/bash
# One job over several nodes: the same numbers as on one node, and people see where its ranks are.
# Each daemon on this machine stands for a node; c is as large as a and b together.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

# What was learned, in every bit: the curves as they were reported, and the last checkpoint.
curve() { # JOB
    heddle watch "$1" -o jsonl |
        sed -nE 's/^\{"type":"(step|validation)".*"step":([0-9]+),.*"loss":([^,}]*).*/\1 \2 \3/p' | sort
}
norms() { heddle watch "$1" -o jsonl | sed -nE 's/.*"step":([0-9]+),.*"grad_norm":([^,}]*).*/\1 \2/p' | sort; }
weights() { (cd "$work/jobs/$1/attempt-1/checkpoints/step-00000020" && cksum rank-*.safetensors); }
ranks_of() { heddle show "$1" | sed -nE 's/^ranks +//p'; }
reason_of() { heddle show "$1" | sed -nE 's/^reason +//p'; }
runs() { # NAME JOB: waits for its good end
    check "$1" timeout 200 "$HEDDLE_BIN/heddle" wait "$2"
}
bool_of() { heddle nodes -o jsonl | grep -F "\"name\":\"$1\"" | sed -nE 's/.*"jobs_dir_visible":(true|false).*/\1/p'; }

file=$(job_file spread)
sed 's/.*/{"text": "&"}/' <(tr -d '"\\' <"$work/corpus.txt") >"$work/corpus.jsonl"
job() { # DEVICES BATCH [ARG...]: text that becomes token files first
    submit "$file" --set train.steps=20 --set "data.train=[$work/corpus.jsonl]" --set data.documents=joined \
        --set "resources.devices=$1" --set "train.global_batch=$2" "${@:3}"
}

start_controller
start_node c cpu:6:1
four=$(job 4 8)
runs four_ranks_train_on_one_node "$four"
six=$(job 6 12)
runs six_ranks_train_on_one_node "$six"
check_equal they_are_all_on_it '0-5 on c' "$(ranks_of "$six")"
check the_large_node_takes_nothing_new heddle drain c --reason "the others are to work"

start_node a cpu:2:1
waiting=$(job 4 8)
check_equal one_small_node_does_not_do "needs 4 cpu devices; a has 2, c is drained: the others are to work" "$(reason_of "$waiting")"
start_node b cpu:2:1
runs four_ranks_train_on_two_nodes "$waiting"
check_equal ranks_of_a_node_are_neighbours '0-1 on a, 2-3 on b' "$(ranks_of "$waiting")"
check_equal it_took_one_attempt 1 "$(heddle show "$waiting" -o jsonl | member attempt)"
check_equal every_loss_is_the_same "$(curve "$four" | cksum)" "$(curve "$waiting" | cksum)"
check_equal every_norm_is_the_same "$(norms "$four" | cksum)" "$(norms "$waiting" | cksum)"
check_equal there_are_norms 20 "$(norms "$waiting" | wc -l)"
check_equal there_is_a_curve 20 "$(curve "$waiting" | grep -c '^step ')"
check_equal every_weight_is_the_same "$(weights "$four")" "$(weights "$waiting")"
check the_checkpoint_of_both_is_whole heddle checkpoint verify "$work/jobs/$waiting/attempt-1/checkpoints/step-00000020"

more=$(heddle plan "$file" --devices cpu:4:1 | sed -nE 's/^on several nodes each takes (.*) more, .*/\1/p')
check_equal what_nodes_take_beside_the_total_was_planned "note: $more more per rank, for messages between nodes" \
    "$(heddle events "$waiting" -o jsonl | sed -nE 's/.*"message":"([^"]* more per rank, [^"]*)".*/note: \1/p')"
check_equal and_one_node_takes_nothing_of_it '' "$(heddle events "$four" -o jsonl | grep 'between nodes')"

start_node d cpu:2:1
three=$(job 6 12)
runs six_ranks_train_on_three_nodes "$three"
check_equal they_are_on_all_three '0-1 on a, 2-3 on b, 4-5 on d' "$(ranks_of "$three")"
check_equal their_losses_are_the_same_too "$(curve "$six" | cksum)" "$(curve "$three" | cksum)"
check_equal and_their_weights "$(weights "$six")" "$(weights "$three")"

# A cancel reaches all of them, after one checkpoint that is whole.
long=$(job 4 8 --set train.steps=100000 --set checkpoint.every=0)
await 60 steps_at_least "$long" 5 || not_ok the_long_job_runs "no five steps in 60 s"
# those that have met make no connection any more: a second filter beside that of each rank
rank=$(ranks_below "${node_pids[a]}" | head -n 1)
case $(sed -n 's/^Seccomp_filters:\t//p' "/proc/$rank/status") in
'') printf 'skip ranks_that_have_met_close_the_network: this kernel does not count filters\n' ;;
2) ok ranks_that_have_met_close_the_network ;;
*) not_ok ranks_that_have_met_close_the_network "$(grep Seccomp "/proc/$rank/status" | tr '\n' ' ')" ;;
esac
check cancel_is_accepted heddle cancel "$long"
check_status wait_is_1_when_it_is_cancelled 1 timeout 200 "$HEDDLE_BIN/heddle" wait "$long"
check_equal the_job_is_cancelled cancelled "$(state_of "$long")"
check_equal there_is_one_checkpoint 1 "$(heddle checkpoint ls "$long" -o jsonl | grep -c '"step":')"
check it_is_whole heddle checkpoint verify "$long"

check_equal nodes_see_the_jobs true "$(bool_of a)"
finish
