#!/bin/bash
# deploy/slurm/heddle.sbatch in a Slurm of this machine alone, with two nodes that are both it: a job
# that ends, one that is stopped before its limit and goes on, one that is cancelled, one that is wrong.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd sbatch; do
    command -v $program >/dev/null && [ "$(id -u)" = 0 ] && continue
    echo "skip a_cluster_inside_an_allocation: Slurm is not installed, or this is not root"
    finish
done

# ---- Slurm ----

slurm=$(mktemp -d /tmp/slurm.XXXXXX) # short: sockets live there
export SLURM_CONF=$slurm/slurm.conf
host=$(hostname -s)
mkdir "$slurm/state" "$slurm/spool" "$slurm/run"
head -c 1024 /dev/urandom >"$slurm/munge.key" && chmod 400 "$slurm/munge.key"
base=$((20000 + $$ % 2000 * 5)) # and the four behind it
cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$base
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=$slurm/munge
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool/%n
SlurmctldPidFile=$slurm/ctld.pid
SlurmdPidFile=$slurm/slurmd-%n.pid
SlurmctldLogFile=$slurm/ctld.log
SlurmdLogFile=$slurm/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((base + 1))-$((base + 2))] CPUs=1 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
stop_slurm() {
    local file
    scancel --user=root 2>/dev/null
    await 20 no_jobs
    for file in "$slurm"/slurmd-*.pid "$slurm/ctld.pid" "$slurm/munge.pid"; do
        [ -s "$file" ] && kill "$(cat "$file")" 2>/dev/null
    done
    sleep 1
    [ $failures = 0 ] || { grep 'JobId=' "$slurm/ctld.log" | tail -n 30; tail -n 5 "$slurm"/*.log "$slurm"/run/*.out "$slurm"/run/heddle-*/*.log; }
    rm -rf --one-file-system "$slurm"
}
no_jobs() { [ -z "$(squeue --noheader)" ]; }
state_of_job() { scontrol show job "$1" | sed -nE 's/.*JobState=([A-Z]+).*/\1/p'; }
has_ended() { case $(state_of_job "$1") in COMPLETED | FAILED | CANCELLED) ;; *) false ;; esac }
out() { printf '%s/run/slurm-%s.out' "$slurm" "$1"; }

trap stop_slurm EXIT
munged --force --key-file="$slurm/munge.key" --socket="$slurm/munge" --pid-file="$slurm/munge.pid" \
    --log-file="$slurm/munge.log" --seed-file="$slurm/munge.seed" && slurmctld && slurmd -N n1 && slurmd -N n2
both_idle() { [ "$(sinfo --noheader --Node --format=%T | grep -c idle)" = 2 ]; }
if ! await 30 both_idle; then
    not_ok slurm_starts "$(sinfo 2>&1 | tail -n 1)"
    finish
fi

# ---- jobs ----

cd "$slurm/run"
cat "$HEDDLE_SOURCE_DIR/LICENSE" >corpus.txt
mv "$(job_file small)" job.yaml
unset HEDDLE_CONTROLLER
export HEDDLE_DEVICES=cpu:1:1
start() { sbatch --parsable --nodes=2 "$HEDDLE_SOURCE_DIR/deploy/slurm/heddle.sbatch" "$@"; }

export HEDDLE_PORT=$((base + 3)) # one job runs at a time
job=$(start job.yaml)
await 90 has_ended "$job"
check_equal a_job_on_two_nodes_succeeds "COMPLETED" "$(state_of_job "$job")"
check_equal its_output_is_that_of_watch 1 "$(grep -c '^job succeeded at step 30,' "$(out "$job")")"
check_equal both_nodes_trained 1 "$(grep -c '^running on 2 cpu devices of n1, n2,' "$(out "$job")")"
check the_checkpoint_is_in_the_shared_folder test -d "heddle-$job/jobs/1/attempt-1/checkpoints/step-00000030"

job=$(start job.yaml --set train.stepz=3)
await 90 has_ended "$job"
check_equal a_wrong_job_fails "FAILED ExitCode=2:0" "$(state_of_job "$job") $(scontrol show job "$job" | grep -o 'ExitCode=[0-9:]*')"
check_equal and_says_why 1 "$(grep -c 'train.stepz' "$(out "$job")")"

job=$(start job.yaml --set train.steps=120)
trains() { grep -q '^step 4[0-9]/120 ' "$(out "$job")"; }
await 90 trains
scancel --batch --signal=USR1 "$job" # as --signal=B:USR1@180 does
waits() { [ "$(state_of_job "$job")" = PENDING ]; }
check before_its_limit_it_waits_again await 60 waits
check its_state_is_kept test -s "heddle-$job/state.db"
stopped=$(sed -nE 's/^job cancelled at step ([0-9]+),.*/\1/p' "$(out "$job")")
begin() { scontrol update JobId="$job" StartTime=now; ! waits; } # Slurm would wait for two minutes
await 60 begin
await 90 has_ended "$job"
check_equal it_goes_on_from_there "COMPLETED 1" "$(state_of_job "$job") $(grep -c "^resumed from step $stopped " "$(out "$job")")"
check_equal to_its_end 1 "$(grep -c '^job succeeded at step 120 in 2 attempts,' "$(out "$job")")"

job=$(start job.yaml --set train.steps=100000 --set checkpoint.every=20)
await 90 grep -q '^checkpoint at step 20:' "$(out "$job")"
scancel --full "$job" # also its ranks
check a_cancelled_job_ends await 60 no_jobs
check_equal and_is_not_queued_again CANCELLED "$(state_of_job "$job")"
scontrol requeue "$job"
await 60 begin
resumed() { grep -qE '^resumed from step [1-9][0-9]*0 ' "$(out "$job")"; }
check queued_by_hand_it_goes_on_from_its_newest_checkpoint await 120 resumed
scancel "$job"
check it_ends_again await 60 no_jobs
check_equal nothing_stays "" "$(pgrep -f "$slurm/run" | head -n 3)$(ls -d "${TMPDIR:-/tmp}"/heddle-node.* 2>/dev/null)"
finish
