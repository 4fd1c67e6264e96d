#!/bin/bash
# Ranks run as the system user of their job's owner, by the policy's map: two people on one node, in a
# private view of /etc/passwd. systemd is not there in a test: scripts stand in for systemd-run, which
# starts the command as systemd would (user, groups, umask, a session of its own), and for systemctl.
if [ "$(id -u)" != 0 ]; then
    echo "skip users: starting processes as other users takes root"
    exit 0
fi
if [ -z "${HEDDLE_TEST_UNSHARED-}" ]; then
    if ! unshare -m --propagation private mount --bind /etc/passwd /etc/passwd 2>/dev/null; then
        echo "skip users: a private mount is not possible here"
        exit 0
    fi
    HEDDLE_TEST_UNSHARED=1 exec unshare -m --propagation private "$0" "$@"
fi
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

await() { # as cluster.sh, but asks less often: most of what is awaited here takes seconds
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.25
    done
}

# ---- people, and what stands in for systemd ----

{ cat /etc/passwd && printf 'hd:x:990:990::/:/bin/false\nsvc:x:333:333::/:/bin/false\n' &&
    printf 'ann:x:20001:20001::/:/bin/false\nbob:x:20002:20002::/:/bin/false\neve:x:20003:20003::/:/bin/false\n'; } >"$work/passwd"
{ cat /etc/group && printf 'hd:x:990:\nsvc:x:333:\nann:x:20001:\nbob:x:20002:\neve:x:20003:\nlab:x:20010:ann,bob\ncallers:x:20011:hd,ann,bob,eve\n'; } >"$work/group"
chmod 644 "$work/passwd" "$work/group"
mount --bind "$work/passwd" /etc/passwd && mount --bind "$work/group" /etc/group || exit 1
as() { # USER COMMAND...
    local user=$1
    shift
    setpriv --reuid="$user" --regid="$user" --init-groups env HOME="$work" "$@"
}
chmod a+x "${TMPDIR%/*}" "$TMPDIR" "$work" # the folder of all tests is root's alone
for user in hd ann bob eve; do mkdir "$work/$user" && chown "$user:$user" "$work/$user" && chmod 700 "$work/$user"; done
as hd test -x "$HEDDLE_BIN/heddled" || { printf 'skip users: user hd may not run %s\n' "$HEDDLE_BIN"; exit 0; }
mkdir "$work/units"
cat >"$work/systemd-run" <<'STANDIN'
#!/bin/bash
declare -a variables=()
while [ "$1" != -- ]; do
    case $1 in
    --setenv) shift; variables+=("$1") ;;
    --uid=*) uid=${1#*=} ;;
    --gid=*) gid=${1#*=} ;;
    --unit=*) unit=${1#*=} ;;
    --property=UMask=*) umask "${1##*=}" ;;
    esac
    shift
done
shift
printf '%s %s %s\n' "$unit" "$uid" "$gid" >>"${0%/*}/asked"
setsid setpriv "--reuid=$uid" "--regid=$gid" --init-groups env -i PATH=/usr/bin:/bin "${variables[@]}" "$@" </dev/null >"${0%/*}/units/$unit.out" 2>&1 &
echo $! >"${0%/*}/units/$unit.service"
STANDIN
cat >"$work/systemctl" <<'STANDIN'
#!/bin/bash
unit=${!#} session=$(cat "${0%/*}/units/${!#}" 2>/dev/null)
left=$([ -z "$session" ] || ps -o pid= -s "$session")
case $1 in
show) [ -n "$left" ] && echo active || echo inactive ;;
kill) printf '%s\n' "$*" >>"${0%/*}/kills" && [ -n "$left" ] && kill "-${2#--signal=SIG}" $left ;;
esac
STANDIN
chmod 755 "$work/systemd-run" "$work/systemctl"
start_launcher() { # ARG...
    "$HEDDLE_BIN/heddle-launcher" --for hd --listen "$work/l.sock" --systemd-run "$work/systemd-run" \
        --systemctl "$work/systemctl" "$@" >>"$work/launcher.log" 2>&1 &
    launcher=$!
    await 20 test -S "$work/l.sock"
}
end_launcher() { kill "$launcher" && wait "$launcher" 2>/dev/null; rm -f "$work/l.sock"; }
policy() { printf '%s\n' "role-of-uids user" "$@" >"$work/policy"; }

# ---- a cluster ----

start_launcher --job-users all
policy "user-of-uids same" "user uid:20003 nosuch"
mkdir "$work/run" && chown hd "$work/run" "$work/policy" && HEDDLE_CONTROLLER=unix:$work/run/c.sock
umask 027
setpriv --reuid=hd --regid=hd --init-groups "$HEDDLE_BIN/heddle-controller" --state-dir "$work/hd/controller" --listen "$HEDDLE_CONTROLLER" \
    --socket-group callers --jobs-dir "$work/hd/jobs" --policy "$work/policy" >"$work/controller.log" 2>&1 &
controller_pid=$!
await 20 heddle jobs || { not_ok the_controller_answers "$(tail -n 3 "$work/controller.log")"; finish; }
start_daemon() { # [ARG...]
    setpriv --reuid=hd --regid=hd --init-groups env HOME="$work/hd" "$HEDDLE_BIN/heddled" --state-dir "$work/hd/n1" --node-name n1 \
        --devices cpu:2 --probe never "$@" >>"$work/n1.log" 2>&1 &
    node_pids[n1]=$!
    await 20 node_is n1 ready
}
end_daemon() { kill "${node_pids[n1]}" && wait "${node_pids[n1]}" 2>/dev/null; }
chmod 711 "$work/hd" # as /var/lib/heddle is
check the_daemon_is_ready start_daemon --launcher "$work/l.sock"
check_equal the_node_says_as_whom "all" "$(heddle show-node n1 -o json | member users)"
for user in ann bob eve; do
    cat "$HEDDLE_SOURCE_DIR/LICENSE" >"$work/$user/corpus.txt"
    cat >"$work/$user/job.yaml" <<END
name: $user
model: {family: llama, layers: 1, hidden: 32, heads: 2, context: 32}
data: {train: [$work/$user/corpus.txt], val_split: 0.1}
train: {steps: 100000, global_batch: 4, lr: 3e-3, precision: fp32}
resources: {devices: 1}
checkpoint: {every: 200, keep: 2}
END
    chown "$user:$user" "$work/$user"/*
    chmod 600 "$work/$user"/*
done
chown ann:lab "$work/ann/corpus.txt" && chmod 640 "$work/ann/corpus.txt" && chmod 711 "$work/ann"
cp "$work/ann/corpus.txt" "$work/ann/own.txt" && chown ann "$work/ann/own.txt" && chmod 644 "$work/ann/own.txt"
submit_as() { local user=$1; shift; as "$user" "$HEDDLE_BIN/heddle" submit -q "$@"; }
a=$(submit_as ann "$work/ann/job.yaml")
b=$(submit_as bob "$work/bob/job.yaml")
await 30 steps_at_least "$a" 450 && await 30 steps_at_least "$b" 250 ||
    not_ok both_train "$(heddle show "$a" 2>&1 | tail -n 4) $(heddle show "$b" 2>&1 | tail -n 4) $(cat "$work"/units/*.out)"
supervisor_of() { cat "$work/units/heddle-job-$1-attempt-${2-1}.service"; }
identity() { sed -nE 's/^(Uid|Gid|Groups):[[:space:]]*([0-9]+).*/\2/p' "/proc/$1/status" | tr '\n' ' '; }
rank_a=$(ranks_below "$(supervisor_of "$a")") rank_b=$(ranks_below "$(supervisor_of "$b")")
check_equal anns_rank_is_anns_with_her_groups_alone "20001 20001 20001 20010 20011" \
    "$(identity "$rank_a" | cut -d' ' -f1,2) $(sed -n 's/^Groups:[[:space:]]*//p' "/proc/$rank_a/status" | tr ' ' '\n' | sort | xargs)"
check_equal bobs_is_bobs "20002 20002" "$(identity "$rank_b" | cut -d' ' -f1,2)"
check_equal the_owner_of_its_log_is_ann ann "$(stat -c %U "$work/hd/jobs/$a/attempt-1/logs/rank-0.log")"
check show_says_as_whom grep -q '^runs as *uid:20001' <(heddle show "$a")

# ---- neither reaches the other ----

check her_own_folder_is_open_to_her as ann ls "$work/hd/jobs/$a/attempt-1/checkpoints"
check_status the_others_is_not 2 as bob ls "$work/hd/jobs/$a"
check_status nor_below_it 2 as bob ls "$work/hd/jobs/$a/attempt-1/checkpoints"
check_status a_stranger_gets_in_neither 2 as eve ls "$work/hd/jobs/$b"
check_status she_removes_no_folder_of_heddleds 1 as ann rmdir "$work/hd/jobs/$a/attempt-1/profile" "$work/hd/jobs/$a/attempt-1/nodes"
check_status nor_renames_one 1 as ann mv "$work/hd/jobs/$a/attempt-1/logs" "$work/hd/jobs/$a/attempt-1/l"
check logs_are_read_by_the_command grep -q step <(as ann "$HEDDLE_BIN/heddle" logs "$a" --tail 3)
as ann sh -c "mv '$work/hd/jobs/$a/attempt-1/logs/rank-0.log' '$work/ann/log' && ln -s '$work/hd/controller/state.db' '$work/hd/jobs/$a/attempt-1/logs/rank-0.log'"
check_equal a_link_in_the_place_of_a_log_is_not_followed 0 "$(as ann "$HEDDLE_BIN/heddle" logs "$a" 2>&1 | grep -c 'SQLite')"
as ann mv "$work/ann/log" "$work/hd/jobs/$a/attempt-1/logs/rank-0.log"
c=$(submit_as bob "$work/bob/job.yaml" --set data.train="[$work/ann/own.txt]" --set restart.max=3 --set name=thief)
chmod 600 "$work/ann/own.txt" # the command has looked at it, and the job waits for a device
heddle cancel "$b" --now >/dev/null
check data_is_opened_with_the_users_rights await 30 state_is "$c" failed
check_equal and_the_message_says_whom_and_what_helps 1 \
    "$(heddle show "$c" -o json | grep -c "cannot open the data file $work/ann/own.txt: permission denied for bob (uid 20002); let that user read")"
check_equal it_is_not_tried_again 1 "$(heddle show "$c" -o json | grep -o '"attempt":[0-9]*,"state":"ended"' | wc -l)"

# ---- a file that one person alone may read, and a job on it that is resumed ----

printf 'the marker of a secret\n' >>"$work/bob/corpus.txt"
check_equal the_file_is_bobs_alone "bob 600" "$(stat -c '%U %a' "$work/bob/corpus.txt")"
s=$(submit_as bob "$work/bob/job.yaml" --set name=private --set train.steps=200)
check a_job_on_it_succeeds await 60 state_is "$s" succeeded
check it_is_resumed as bob "$HEDDLE_BIN/heddle" resume "$s" --set train.steps=100000
goes_on() { steps_at_least "$s" 400 && ranks_below "$(supervisor_of "$s" 2)" | grep -q .; }
check and_goes_on await 30 goes_on
check_equal as_bob_again "20002 20002" "$(identity "$(ranks_below "$(supervisor_of "$s" 2)")" | cut -d' ' -f1,2)"
check from_its_checkpoint grep -q '"base_checkpoint":{' <(heddle show "$s" -o json)
as bob "$HEDDLE_BIN/heddle" cancel "$s" >/dev/null # heddled tells the supervisor, which is another user's
check and_ends_when_he_says_so await 60 state_is "$s" cancelled
check_equal and_by_no_signal "" "$(grep -h "SIGKILL heddle-job-$s-" "$work/kills" 2>/dev/null)"
check_status a_stranger_sees_nothing_of_it 2 as eve ls "$work/hd/jobs/$s"
heddle debug bundle "$s" --out "$work/private.tar" >/dev/null
heddle show "$s" -o json >"$work/private.json"
heddle logs "$s" >"$work/private.log"
check_equal what_is_in_the_file_is_shown_nowhere "" \
    "$(grep -rlF 'the marker of a secret' "$work/hd" "$work/units" "$work"/private.* "$work"/*.log)"

# ---- restart, checkpoints, end ----

end_daemon
check a_new_daemon_finds_the_attempt start_daemon --launcher "$work/l.sock"
step=$(heddle show "$a" -o jsonl | sed -nE 's/.*"restarts":[0-9]+,"step":([0-9]+).*/\1/p')
check steps_go_on await 20 steps_at_least "$a" $((step + 20))
check_equal by_the_same_rank "$rank_a" "$(ranks_below "$(supervisor_of "$a")")"
policy "user-of-uids bob"
kill -HUP "$controller_pid"
await 20 grep -q 'policy' "$work/controller.log"
kill -KILL "$rank_a"
second() { [ "$(heddle show "$a" -o json | grep -o '"attempt":2' | head -n 1)" ] && ranks_below "$(supervisor_of "$a" 2)" | grep -q .; }
check a_rank_that_dies_is_started_anew await 30 second
check it_goes_on_from_a_checkpoint_of_the_user_before grep -q '"base_checkpoint":{' <(heddle show "$a" -o json)
rank_a=$(ranks_below "$(supervisor_of "$a" 2)")
check_equal as_whom_the_map_says_now "20002 20002" "$(identity "$rank_a" | cut -d' ' -f1,2)"
step=$(heddle show "$a" -o jsonl | sed -nE 's/.*"restarts":[0-9]+,"step":([0-9]+).*/\1/p')
check and_trains await 30 steps_at_least "$a" $((step + 450))
kill -STOP "$(supervisor_of "$a" 2)"
heddle cancel "$a" --now >/dev/null
check a_supervisor_that_was_stopped_ends await 40 state_is "$a" cancelled
check_equal nothing_is_left_of_it "" "$(ps -o pid= -s "$(supervisor_of "$a" 2)")"
d=$(heddle checkpoint ls "$a" -o jsonl | sed -nE 's/.*"step":([0-9]+).*/\1/p' | head -n 1)
check a_checkpoint_is_removed heddle checkpoint rm "$a" --step "$d" --yes
check its_files_are_gone await 20 sh -c "! ls -d '$work/hd/jobs/$a'/attempt-*/checkpoints/step-*$d 2>/dev/null"
check a_job_is_removed heddle rm "$a" --yes
check with_its_folder await 20 sh -c "! [ -e '$work/hd/jobs/$a' ]"

# ---- who is refused ----

refused() { # NAME TEXT POLICY...: a job of eve's fails at once, with the text
    local name=$1 text=$2 job
    shift 2
    policy "$@"
    kill -HUP "$controller_pid"
    await 20 policy_is_read
    job=$(submit_as eve "$work/eve/job.yaml" 2>"$work/refused.err") || { check "$name" grep -qF "$text" "$work/refused.err"; return; }
    await 20 state_is "$job" failed
    check_equal "$name" 1 "$(heddle show "$job" -o json | grep -cF "$text")"
    check_equal "${name}_once" 1 "$(heddle show "$job" -o json | grep -o '"attempt":[0-9]*,"state":"ended"' | wc -l)"
}
reads=0
policy_is_read() { [ "$(grep -c 'policy' "$work/controller.log")" -gt "$reads" ] && reads=$(grep -c 'policy' "$work/controller.log"); }
refused an_unknown_user "this machine has no user nosuch" "user uid:20003 nosuch"
refused a_system_user "svc (uid 333) is a system user" "user uid:20003 svc"
refused heddleds_own_user "hd is heddled's own user" "user uid:20003 hd"
refused an_owner_without_a_rule "names no system user for jobs of uid:20003" "user uid:20001 ann"
printf 'user uid:20003 root\n' >"$work/bad"
check_status root_in_the_policy 2 "$HEDDLE_BIN/heddle-controller" --state-dir "$work/x" --listen "unix:$work/x.sock" --policy "$work/bad"
check_equal is_named 1 "$(grep -c 'jobs never run as root' "$work/check.err")"
end_launcher
start_launcher --job-users svc,@lab
refused one_whom_the_launcher_does_not_list "starts no jobs as eve (uid 20003)" "user-of-uids same"
end_daemon
check a_daemon_without_the_launcher start_daemon
refused runs_jobs_as_itself_alone "heddled has no heddle-launcher" "user-of-uids same"
check_equal and_says_so own "$(heddle show-node n1 -o json | member users)"
if perl -MIO::Socket::UNIX -e 1 2>/dev/null; then
    ask() { # TEXT: the launcher's answer
        printf "heddle-launch 1\n$1" | as hd perl -MIO::Socket::UNIX -e '
            my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or exit print "no door\n";
            local $/; print $s <STDIN>; $s->shutdown(1); print scalar <$s>' "$work/l.sock"
    }
    start='job 9\nattempt 1\narg --job\n' before=$(wc -l <"$work/asked")
    for user in root uid:0 uid:00 0 20001 -x '../x' 'ann bob' daemon uid:65534 hd uid:990 '' eve 'ann\nuser bob'; do
        check_equal "the_launcher_refuses_${user:-nothing}" 1 "$(ask "${start}user $user\n" | grep -cE '^(refused|error) ')"
    done
    check_equal nothing_was_started "$before" "$(wc -l <"$work/asked")"
    check_equal one_whom_it_lists_it_finds "ok 333" "$(ask 'do find\nuser svc\n')"
    check_equal one_of_a_listed_group_too "ok 20002" "$(ask 'do find\nuser bob\n')"
else
    printf 'skip what_the_launcher_refuses: perl is not installed\n'
fi
end_launcher
finish
