#!/bin/bash
# Supervisors in units of their own: heddled asks heddle-launcher, which asks systemd-run. systemd is not
# there in a test: a script stands in for systemd-run, keeps what it was called with, and starts the
# command as systemd would, outside heddled's session and process tree.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

user=$(id -un) become=
if [ "$(id -u)" = 0 ]; then # ranks never run as root
    user=nobody become="setpriv --reuid=nobody --regid=$(id -gn nobody) --clear-groups"
    chmod a+x "${TMPDIR%/*}" "$TMPDIR" && chown nobody "$work" || exit 1 # the folder of all tests is root's alone
    $become test -x "$HEDDLE_BIN/heddled" || { printf 'skip launcher: user nobody may not run %s\n' "$HEDDLE_BIN"; exit 0; }
fi
cat >"$work/systemd-run" <<'STANDIN'
#!/bin/bash
printf '%s\n' "$@" >>"${0%/*}/asked"
[ ! -e "${0%/*}/refuse" ] || { echo "Failed to start transient service unit: no such thing" >&2; exit 1; }
declare -a variables=() as=()
while [ "$1" != -- ]; do
    case $1 in
    --setenv) shift; variables+=("$1") ;;
    --uid=*) [ "$(id -u)" != 0 ] || as+=(setpriv "--reuid=${1#*=}" --clear-groups) ;;
    --gid=*) [ "$(id -u)" != 0 ] || as+=("--regid=${1#*=}") ;;
    esac
    shift
done
shift
"${as[@]}" env -i PATH=/usr/bin:/bin "${variables[@]}" setsid "$@" </dev/null >/dev/null 2>&1 &
STANDIN
chmod 755 "$work/systemd-run"
socket=$work/l.sock
"$HEDDLE_BIN/heddle-launcher" --for "$user" --listen "$socket" --data-networks 10.0.0.0/8,fd00::/8 --systemd-run "$work/systemd-run" >"$work/launcher.log" 2>&1 &
launcher=$!
await 20 test -S "$socket"
check_equal its_socket_is_for_its_user_alone "600 $user" "$(stat -c '%a %U' "$socket")"
check_status it_serves_no_root 2 "$HEDDLE_BIN/heddle-launcher" --for root --listen "$work/x.sock"

# A second one whose systemd-run never ends; it is asked at once, and its answer looked at in the end.
printf '#!/bin/sh\necho begun\nexec >&- 2>&-\necho $$ >"%s/hangs.pid"\nexec sleep 600\n' "$work" >"$work/hangs" && chmod 755 "$work/hangs"
"$HEDDLE_BIN/heddle-launcher" --for "$user" --listen "$work/h.sock" --systemd-run "$work/hangs" >>"$work/launcher.log" 2>&1 &
hanging=$!
await 20 test -S "$work/h.sock"
request() { # TEXT SOCKET [AS]: the answer to a request
    printf "$1" | ${3-$become} perl -MIO::Socket::UNIX -e '
        my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or exit print "no door\n";
        local $/; print $s <STDIN>; $s->shutdown(1); print scalar <$s>' "$2"
}
good='heddle-launch 1\njob 9\nattempt 1\narg --job\n'
request "$good" "$work/h.sock" >"$work/hangs.answer" 2>&1 &
asked_hanging=$!

run_as() { $become env HOME="$work" "$@"; }
$become env HOME="$work" "$HEDDLE_BIN/heddle-controller" --state-dir "$work/controller" --listen "$HEDDLE_CONTROLLER" --jobs-dir "$work/jobs" \
    >"$work/controller.log" 2>&1 &
controller_pid=$!
heddle() { run_as "$HEDDLE_BIN/heddle" "$@"; }
await 20 heddle jobs || not_ok the_controller_answers "$(tail -n 3 "$work/controller.log")"
start_daemon() {
    $become env HOME="$work" NCCL_DEBUG=WARN LD_PRELOAD_NOT=1 "$HEDDLE_BIN/heddled" --state-dir "$work/n1" --node-name n1 --devices cpu:2 --probe never \
        --launcher "$socket" >>"$work/n1.log" 2>&1 &
    node_pids[n1]=$!
    await 20 node_is n1 ready
}
check the_daemon_is_ready start_daemon
file=$(job_file long)
chmod a+r "$file" "$work"/corpus.txt
job=$(submit "$file" --set train.steps=100000 --set validate.every=0 --set checkpoint.every=100000)
await 30 steps_at_least "$job" 5 || not_ok a_job_trains "$(heddle show "$job" 2>&1 | tail -n 5)"
supervisor=$(sed -n 's/^pid //p' "$work/jobs/$job/attempt-1/nodes/n1/supervisor")
check_equal its_supervisor_is_no_child_of_the_daemon "" "$(below "${node_pids[n1]}" | grep -x "$supervisor")"
check_equal it_has_a_unit_of_its_own "--unit=heddle-job-$job-attempt-1" "$(grep -x -- '--unit=.*' "$work/asked")"
check_equal in_the_slice_of_all_jobs "--slice=heddle.slice" "$(grep -x -- '--slice=.*' "$work/asked")"
check_equal a_shutdown_ends_it_before_the_jobs_directory "remote-fs.target network.target " \
    "$(sed -n 's/^--property=After=//p' "$work/asked" | tr '\n' ' ')"
check_equal its_control_group_is_its_own 1 "$(grep -c -x -- '--property=Delegate=memory pids cpuset' "$work/asked")"
check_equal a_job_on_the_processor_has_no_device_file "--property=DevicePolicy=closed " "$(grep -- 'Device' "$work/asked" | tr '\n' ' ')"
check_equal it_reaches_the_networks_of_nodes_alone "any localhost 10.0.0.0/8 fd00::/8 " "$(sed -n 's/^--property=IPAddress[A-Za-z]*=//p' "$work/asked" | tr '\n' ' ')"
check_equal as_the_user_that_asked "--uid=$(id -u "$user")" "$(grep -x -- '--uid=.*' "$work/asked")"
check_equal the_program_is_not_chosen_by_who_asks "$HEDDLE_BIN/heddle-supervisor" "$(grep -A1 -x -- -- "$work/asked" | tail -n 1)"
check_equal of_the_environment_what_is_allowed_goes_along "NCCL_DEBUG=WARN " "$(grep -A1 -x -- --setenv "$work/asked" | grep -E '^(NCCL|LD|HOME)' | tr '\n' ' ')"
check_equal its_log_is_where_it_always_is 1 "$([ -e "$work/jobs/$job/attempt-1/nodes/n1/supervisor.log" ] && echo 1)"
before=$(ranks_below "$supervisor")
kill -KILL "${node_pids[n1]}" # as a crash
wait "${node_pids[n1]}" 2>/dev/null
check a_new_daemon_finds_it start_daemon
step=$(heddle show "$job" -o json | sed -nE 's/.*"restarts":[0-9]+,"step":([0-9]+).*/\1/p')
check steps_go_on await 20 steps_at_least "$job" $((step + 20))
check_equal by_the_same_ranks "$before" "$(ranks_below "$supervisor")"
heddle cancel "$job" --now >/dev/null
check its_end_is_heard_of await 20 state_is "$job" cancelled

# ---- what the launcher refuses ----

ask() { request "$1" "$socket" "${2-$become}"; }
count() { grep -c -x -- '--quiet' "$work/asked"; }
started=$(count)
if perl -MIO::Socket::UNIX -e 1 2>/dev/null; then
    check_equal an_unknown_line "error unknown line run" "$(ask "${good}run /bin/sh\n")"
    check_equal a_variable_that_loads_code "error the variable LD_PRELOAD=/x.so is not handed on" "$(ask "${good}env LD_PRELOAD=/x.so\n")"
    check_equal a_job_that_is_no_number 1 "$(ask 'heddle-launch 1\njob ../x\nattempt 1\narg a\n' | grep -c '^error ')"
    check_equal a_device_that_is_no_gpu "error /dev/sda is no GPU" "$(ask "${good}gpu /dev/sda\n")"
    check_equal nor_is_a_path_through_one "error /dev/nvidia0/../sda is no GPU" "$(ask "${good}gpu /dev/nvidia0/../sda\n")"
    check_equal what_systemd_would_replace 1 "$(ask "${good}arg /srv/%%h\n" | grep -c '^error systemd would change')"
    check_equal another_form "error the request is not of form 1; install one version of Heddle" "$(ask 'heddle-launch 2\n')"
    check_equal an_empty_one 1 "$(ask '' | grep -c '^error ')"
    if [ -n "$become" ]; then
        check_equal another_user "refused only nobody may ask, not uid 0" "$(ask "$good" ' ')"
    else
        printf 'skip another_user: asking as another user takes root\n'
    fi
    wait "$asked_hanging"
    check_equal a_systemd_run_that_never_ends_is_given_up "error $work/hangs: it did not end within 10 s" "$(cat "$work/hangs.answer")"
    check_equal and_it_is_killed "" "$(ps -o pid= -p "$(cat "$work/hangs.pid")")"
    check_equal none_of_them_started_anything "$started" "$(count)"
else
    printf 'skip what_the_launcher_refuses: perl is not installed\n'
fi
touch "$work/refuse"
job=$(submit "$file" --set restart.max=0)
check what_systemd_says_ends_the_attempt await 30 state_is "$job" failed
check_equal with_its_words 1 "$(heddle show "$job" -o json | grep -c 'Failed to start transient service unit: no such thing')"
kill "$launcher" "$hanging"
wait "$launcher" "$hanging" 2>/dev/null
finish
