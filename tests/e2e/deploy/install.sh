#!/bin/bash
# Heddle as an operator has it: installed, its units in order, run by something like systemd.
#
# systemd itself is not asked to run anything: a test has no right to. What it would do with a unit is done
# here by hand, as the unit says: its command line and environment, the notifications of
# Type=notify, what a stop ends (KillMode) and what a reload runs.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

# ---- installed ----

install_to() { # ROOT PREFIX: the plug-in of the GPUs is a part of its own, which tests do not build
    local part
    for part in client controller node; do
        DESTDIR=$1 cmake --install "$HEDDLE_BUILD_DIR" --prefix "$2" --component $part >>"$work/install.log" 2>&1 || return 1
    done
}
root=$work/root prefix=/opt/heddle
check it_is_installed_below_destdir install_to "$root" $prefix
check_equal nothing_else_is_touched "opt " "$(ls "$root" | tr '\n' ' ')"
check_equal all_programs_are_there "heddle heddle-controller heddle-launcher heddle-serve heddle-supervisor heddle-worker heddled " \
    "$(ls "$root$prefix/bin" | tr '\n' ' ')"
check_equal the_units_too "heddle-controller.service heddle-launcher.service heddle-launcher.socket heddled.service " \
    "$(ls "$root$prefix/lib/systemd/system" | tr '\n' ' ')"
doc=$root$prefix/share/doc/heddle
check_equal and_documents "ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md LICENSE README.md SECURITY.md docs kernels lib recipes tests " \
    "$(ls "$doc" | LC_ALL=C sort | tr '\n' ' ')"
check_equal whose_links_lead_there "" "$(cd "$doc" && for file in *.md docs/*.md docs/*/*.md recipes/*/*.md; do
    sed 's/`[^`]*`//g' "$file" | grep -oE '\]\([A-Za-z0-9_./-]+[)#]' | sed 's/^..//;s/.$//' | while read -r link; do
        [ -e "$(dirname "$file")/$link" ] || echo "$file: $link"
    done
done)"
check_equal a_page_of_the_manual_for_each_command "" "$("$root$prefix/bin/heddle" --help |
    sed -nE -e '/^Flags/q' -e 's/^  ([a-z-]+) .*/\1/p' | while read -r verb; do
        [ -s "$root$prefix/share/man/man1/heddle-$verb.1" ] || echo "$verb"
    done)"
check_equal and_for_each_program "heddle-controller.8 heddle-launcher.8 heddle-serve.8 heddle-supervisor.8 heddle-worker.8 heddled.8 " \
    "$(ls "$root$prefix/share/man/man8" | tr '\n' ' ')"
completes() { # WORD...: what bash completes the last word to
    bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); compopt() { :; }; _heddle; echo "${COMPREPLY[@]}"' \
        "$root$prefix/share/bash-completion/completions/heddle" heddle "$@"
}
check_equal bash_completes_commands "submit" "$(completes su)"
check_equal and_flags "--request-id" "$(completes submit --req)"
check_equal and_what_stands_behind_a_command "ls" "$(completes queue l)"
for shell in zsh fish; do
    command -v $shell >/dev/null || continue
    check "${shell}_reads_its_file" $shell -n "$root$prefix"/share/$([ $shell = zsh ] && echo zsh/site-functions/_heddle || echo fish/vendor_completions.d/heddle.fish)
done
check_equal the_version_names_the_commit 6 "$(for p in heddle heddle-{controller,serve,supervisor,worker} heddled; do "$root$prefix/bin/$p" --version; done |
    grep -cE "^heddle[a-z-]* [0-9.]+ \(commit ([0-9a-f]+\+?|unknown)\)$")"
for unit in heddle-controller heddled; do
    check_equal "${unit}_is_started_from_there" "$prefix/bin/$unit" \
        "$(sed -nE 's/^ExecStart=([^ ]*).*/\1/p' "$root$prefix/lib/systemd/system/$unit.service")"
done
# each program finds the others where it lies, and the plug-in in ../lib
bin=$root$prefix/bin
check_equal recipes_are_found_beside_the_program "$(ls "$HEDDLE_SOURCE_DIR/recipes" | wc -l) 0" \
    "$(HEDDLE_RECIPES='' "$bin/heddle" recipe ls -o jsonl | grep -c "\"folder\":\"$root$prefix/share/heddle/recipes/") $?"
check a_worker_is_found_there "$bin/heddle" validate "$(job_file tiny)"
unset HEDDLE_CUDA_PLUGIN
"$bin/heddle-worker" gpus >"$work/gpus" 2>&1
check_equal without_a_plugin_the_place_is_named 1 "$(grep -c "no such file: $bin/../lib/libheddle_cuda.so" "$work/gpus")"
: >"$root$prefix/lib/libheddle_cuda.so" # no library: enough to be found
"$bin/heddle-worker" gpus >"$work/gpus" 2>&1
check_equal with_one_it_is_found_there 0 "$(grep -c "no such file: $bin/../lib" "$work/gpus")"
rm "$root$prefix/lib/libheddle_cuda.so"
export HEDDLE_CUDA_PLUGIN=none

# ---- the units, as systemd reads them ----

real=$work/real # without DESTDIR: what the units name is there
check it_is_installed_below_a_prefix install_to "" "$real"
units=$real/lib/systemd/system
if command -v systemd-analyze >/dev/null 2>&1; then
    for unit in heddle-controller heddle-launcher heddled; do
        systemd-analyze verify --recursive-errors=no "$units/$unit.service" >"$work/verify" 2>&1
        # what it finds in the machine's own units is not our affair
        check_equal "systemd_understands_$unit" "0 " "$? $(grep heddle "$work/verify" | tr '\n' ' ')"
        # systemd's own measure of hardening, 0 to 10: printed, and not to grow unnoticed
        case $unit in heddled) limit=2.0 ;; *launcher) limit=1 ;; *) limit=1.5 ;; esac # what systemd 252 says, at most
        if systemd-analyze security --offline=true "$units/$unit.service" >"$work/security" 2>/dev/null; then
            tail -n 1 "$work/security"
            check "${unit}_is_hardened" awk -v limit=$limit '/Overall exposure/ { found = $(NF - 2) <= limit } END { exit !found }' "$work/security"
        fi
    done
else
    printf 'skip systemd_understands_the_units: systemd-analyze is not installed\n'
fi

# systemd 252 has these in no group of system calls: without them a node would say that it lacks the locks
check_equal the_daemon_may_ask_which_locks_there_are "seccomp landlock_create_ruleset" \
    "$(sed -nE 's/^SystemCallFilter=(seccomp.*)/\1/p' "$units/heddled.service")"

# ---- run as the units say ----

unit_value() { sed -nE "s/^$2=//p" "$units/$1.service"; } # UNIT KEY: all its values, a line each
mkdir -p "$work/etc" && cp "$real"/share/heddle/*.yaml "$work/etc/" # as the packages do in /etc/heddle
unfold() { sed -e "s|/etc/heddle/|$work/etc/|g" -e "s|%S|$work/state|g" -e "s|%t|$work/run|g" -e "s|%C|$work/cache|g"; }

# a right that a drop-in may give heddled, where the test may give it
with_rights=
setpriv --inh-caps=+syslog --ambient-caps=+syslog true 2>/dev/null &&
    with_rights='setpriv --inh-caps=+syslog --ambient-caps=+syslog'

# what systemd opens as its standard input, as far as the test may
input_of() {
    local file
    file=$(unit_value "$1" StandardInput)
    file=${file#file:}
    { [ -n "$file" ] && : <"$file"; } 2>/dev/null && echo "$file" || echo /dev/null
}

declare -A main_pid=() listener=()
# start_unit UNIT ARGS: its command line; ARGS in place of the variable that ends it
start_unit() {
    local unit=$1 command word
    mkdir -p "$work/run/heddle"
    for word in $(unit_value "$unit" StateDirectory); do
        mkdir -p -m "$(unit_value "$unit" StateDirectoryMode)" "$work/state/$word"
    done
    rm -f "$work/$unit.notify"
    "$HEDDLE_BUILD_DIR/tests/deploy_notify" "$work/$unit.notify" >>"$work/$unit.said" &
    listener[$unit]=$!
    await 20 test -S "$work/$unit.notify"
    command=$(unit_value "$unit" ExecStart | unfold)
    command=${command% \$*}
    command=${command/ --launcher $work\/run\/heddle-launcher.sock/} # it needs systemd: launcher.sh has a stand-in
    (
        umask "$(unit_value "$unit" UMask)"
        export NOTIFY_SOCKET=$work/$unit.notify WATCHDOG_USEC=2000000 # WatchdogSec=2
        unset HEDDLE_CONTROLLER
        while read -r word; do
            [ -z "$word" ] || export "$word"
        done < <(unit_value "$unit" Environment | unfold)
        [ "$unit" = heddled ] && command="$with_rights $command"
        exec $command $2
    ) >>"$work/$unit.log" 2>&1 <"$(input_of "$unit")" &
    main_pid[$unit]=$!
    await 20 said "$unit" READY=1
}
said() { grep -qF -- "$2" "$work/$1.said"; } # UNIT TEXT
# stop_unit UNIT: as KillMode says; the main process's exit status
stop_unit() {
    local unit=$1 pid=${main_pid[$1]} others= status
    case $(unit_value "$unit" KillMode) in
    process) ;;
    *) others=$(below "$pid") ;; # control-group, the default: everything that the unit started
    esac
    kill -TERM "$pid" $others 2>/dev/null
    wait "$pid"
    status=$?
    [ -z "$others" ] || kill -KILL $others 2>/dev/null
    kill "${listener[$unit]}" 2>/dev/null
    wait "${listener[$unit]}" 2>/dev/null
    return $status
}
heddle() { "$real/bin/heddle" "$@"; }
export HEDDLE_CONTROLLER=unix:$work/run/heddle/controller.sock
for unit in heddle-controller heddled; do
    check_equal "${unit}_tells_when_it_is_ready" notify "$(unit_value $unit Type)"
done
check the_daemon_is_ready_before_its_controller start_unit heddled "--node-name n1 --devices cpu:2"
check and_says_what_is_missing await 20 said heddled "STATUS=not connected to $HEDDLE_CONTROLLER as node n1; 0 attempts running here"
check the_controller_says_that_it_is_ready start_unit heddle-controller ""
check and_then_it_answers heddle jobs
check the_daemon_joins await 20 node_is n1 ready
check it_says_how_it_is await 20 said heddled "STATUS=connected to $HEDDLE_CONTROLLER as node n1; 0 attempts running here"
check as_the_controller_does await 20 said heddle-controller "STATUS=0 jobs queued or running, 1 of 1 nodes connected"

# reload_unit UNIT: both commands, as systemd runs them: the second one only after the first
reload_unit() {
    local MAINPID=${main_pid[$1]} HEDDLED_ARGS="--node-name n1 --devices cpu:2" HEDDLE_CONTROLLER_ARGS= command
    while read -r command; do
        eval "$command" || return 1
    done < <(unit_value "$1" ExecReload | unfold)
}
check_equal a_reload_needs_no_other_package "/bin/sh $real/bin/heddle-controller /bin/sh $real/bin/heddled " \
    "$(for unit in heddle-controller heddled; do unit_value $unit ExecReload; done | cut -d' ' -f1 | tr '\n' ' ')"
check the_daemon_reloads reload_unit heddled
check a_reload_is_told await 20 said heddled RELOADING=1
check and_its_end await 10 eval '[ "$(grep -c READY=1 "$work/heddled.said")" = 2 ]'
check_equal in_this_order "READY=1 RELOADING=1 READY=1 " "$(grep -E '^(READY|RELOADING)=' "$work/heddled.said" | tr '\n' ' ')"

# ---- the watchdog ----

fed() { grep -c '^WATCHDOG=1' "$work/$1.said"; } # UNIT: how often until now
for unit in heddle-controller heddled; do
    count=$(fed $unit)
    check "${unit}_feeds_the_watchdog" await 20 eval "[ \$(fed $unit) -gt $count ]"
    check_equal "the_unit_of_${unit}_has_one" 60 "$(unit_value $unit WatchdogSec)"
done
kill -STOP "${main_pid[heddle-controller]}"
sleep 0.3 # what was on its way
count=$(fed heddle-controller)
sleep 2.2 # longer than the watchdog waits
check_equal a_stopped_controller_does_not "$count" "$(fed heddle-controller)"
kill -CONT "${main_pid[heddle-controller]}"
check and_does_again_when_it_goes_on await 20 eval '[ $(fed heddle-controller) -gt $count ]'

# ---- a reload ----

logged() { grep -qF -- "$1" "$work/heddle-controller.log"; }
reload_unit heddle-controller
check a_reload_without_a_change_says_so await 20 logged "reload: no setting of flags and configuration file has changed"
check_equal and_is_told_with_its_end "READY=1 RELOADING=1 READY=1 " \
    "$(grep -E '^(READY|RELOADING)=' "$work/heddle-controller.said" | tr '\n' ' ')"
printf 'node_lost_after: 200\numask: 022\n' >"$work/etc/controller.yaml"
reload_unit heddle-controller
check what_waits_for_a_restart_is_said await 20 logged "reload: node_lost_after: (default) -> 200, waits for a restart"
check and_what_is_in_force await 20 logged "reload: umask: (default) -> 022, in force now"
printf 'node_lost_aftr: 200\n' >"$work/etc/controller.yaml"
reload_unit heddle-controller
check_status and_it_fails 1 reload_unit heddle-controller
check a_mistake_changes_nothing await 20 logged \
    "reload: $work/etc/controller.yaml:1: unknown key node_lost_aftr; did you mean node_lost_after? Else remove this line"
check and_says_so await 20 logged "reload: everything stays as it was"
check and_the_controller_goes_on heddle jobs
: >"$work/etc/controller.yaml"
check_status a_mistake_is_2_at_a_start 2 "$real/bin/heddle-controller" --state-dir "$work/none" --listn x

# ---- stopped, upgraded and started under a job ----

job=$(submit "$(job_file long)" --set train.steps=100000 --set validate.every=0 --set checkpoint.every=100000)
await 30 steps_at_least "$job" 5 || not_ok the_job_trains "$(heddle show "$job" 2>&1 | tail -n 5)"
ranks() { ranks_below "$(supervisor)"; }
supervisor() { # the process of the job's only one, by its record
    sed -n 's/^pid //p' "$work/state/heddle/jobs/$job/attempt-1/nodes/n1/supervisor"
}
before=$(ranks)
check_equal it_has_two_ranks 2 "$(printf '%s\n' $before | wc -l)"
check_equal all_run_from_where_they_are_installed "$real/bin/heddle-supervisor $real/bin/heddle-worker" \
    "$(readlink "/proc/$(supervisor)/exe") $(readlink "/proc/${before%%$'\n'*}/exe")"
if [ -n "$with_rights" ]; then
    ambient() { sed -n 's/^CapAmb:\s*//p' "/proc/$1/status"; }
    check_equal ranks_have_no_rights_of_the_daemon "0000000400000000 0000000000000000" \
        "$(ambient "${main_pid[heddled]}") $(ambient "${before%%$'\n'*}")" # CAP_SYSLOG is number 34
else
    printf 'skip ranks_have_no_rights_of_the_daemon: CAP_SYSLOG takes root\n'
fi
check_equal what_systemd_opens_for_heddled_is_not_theirs "$(input_of heddled) /dev/null" \
    "$(readlink "/proc/${main_pid[heddled]}/fd/0") $(readlink "/proc/${before%%$'\n'*}/fd/0")"
check a_stop_is_clean stop_unit heddled
check_equal and_told STOPPING=1 "$(grep -E '^STOPPING=' "$work/heddled.said" | tail -n 1)"
check the_ranks_go_on kill -0 $before
step=$(heddle show "$job" -o json | sed -nE 's/.*"restarts":[0-9]+,"step":([0-9]+).*/\1/p')
touch -d 2001-01-01 "$real"/bin/* # or cmake would find nothing to do
inode=$(stat -c %i "$real/bin/heddle-supervisor")
check an_upgrade_installs_over_what_runs install_to "" "$real"
check_equal and_leaves_running_programs_their_files 1 "$([ "$inode" != "$(stat -c %i "$real/bin/heddle-supervisor")" ] && echo 1)"
rm -f "$work/heddled.said"
check the_new_daemon_is_ready start_unit heddled "--node-name n1 --devices cpu:2"
check it_finds_the_attempt await 10 said heddled "; 1 attempt running here"
check steps_made_meanwhile_and_later_arrive await 20 steps_at_least "$job" $((step + 20))
check_equal by_the_same_ranks "$before" "$(ranks)"
check_equal in_the_same_attempt 0 "$(heddle show "$job" -o json | sed -nE 's/.*"restarts":([0-9]+),"step".*/\1/p')"
check the_controller_stops_cleanly stop_unit heddle-controller
check_equal and_says_so STOPPING=1 "$(grep -E '^STOPPING=' "$work/heddle-controller.said" | tail -n 1)"
check the_daemon_sees_it_go await 20 said heddled "STATUS=not connected to $HEDDLE_CONTROLLER as node n1; 1 attempt running here"
check and_it_comes_back start_unit heddle-controller ""
check steps_go_on await 20 steps_at_least "$job" $((step + 40))
check_equal with_the_same_ranks "$before" "$(ranks)"
heddle cancel "$job" --now >/dev/null
check the_job_is_ended_by_its_user await 20 state_is "$job" cancelled
check_equal nothing_is_open_to_all "" "$(find "$work/state/heddle/jobs" -perm /007)"
stop_unit heddled

# an operator who wants everybody to read
check_status a_umask_that_is_none_is_2 2 "$real/bin/heddled" --state-dir "$work/none" --umask 999
rm -f "$work/heddled.said"
check a_wider_umask_is_taken start_unit heddled "--node-name n1 --devices cpu:2 --umask 022"
job=$(submit "$(job_file open)" --set train.steps=2 --set checkpoint.every=2)
check its_job_succeeds heddle wait "$job"
check_equal and_its_folders_and_logs_are_open "755 755 644" \
    "$(cd "$work/state/heddle/jobs/$job" && stat -c %a . attempt-1/checkpoints attempt-1/logs/rank-0.log | tr '\n' ' ' | sed 's/ $//')"
stop_unit heddled
stop_unit heddle-controller
finish
