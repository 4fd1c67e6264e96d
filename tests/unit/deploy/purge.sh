#!/bin/bash
# What the purge of the packages deletes: the scripts that are packed, on a root of their own (DPKG_ROOT),
# in a mount namespace of their own. dpkg-query, getent and userdel are this test's.
set -u

if [ "${1-}" != --inside ]; then
    if ! unshare -m --propagation private true 2>/dev/null; then
        echo "skip purge: mounting takes root"
        exit 0
    fi
    exec unshare -m --propagation private "$0" --inside
fi
cd "$HEDDLE_BUILD_DIR/deploy/debian" || exit 2
fakes=$TMPDIR/fakes root=$TMPDIR/root share=$TMPDIR/share host=$(uname -n)
state=$root/var/lib/heddle
mkdir -p "$fakes"
bad=0
for name in dpkg-query getent systemctl; do
    printf '#!/bin/sh\nexit %d\n' $([ $name = getent ] && echo 0 || echo 1) >"$fakes/$name"
done
printf '#!/bin/sh\necho "$@" >>"%s/users"\n' "$TMPDIR" >"$fakes/userdel"
chmod +x "$fakes"/*

check() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >/dev/null; then
        echo "ok $name"
    else
        echo "not ok $name: $(tr '\n' ' ' <"$TMPDIR/said")"
        bad=1
    fi
}
job() { # DIR JOB NODE: a job's folder with a checkpoint
    mkdir -p "$1/$2/attempt-1/nodes/$3" "$1/$2/attempt-1/checkpoints/step-4000"
    echo x >"$1/$2/attempt-1/checkpoints/step-4000/manifest.json"
}
has_job() { [ -f "$1/$2/attempt-1/checkpoints/step-4000/manifest.json" ]; }
machine() { # an installed node and controller with a job of their own
    mkdir -p "$state"/{node/attempts,controller,jobs} "$root"/{run,etc,var/cache}/heddle "$share"
    echo "$host" >"$state/node/node-name"
    touch "$state/controller/state.db" "$root"/etc/heddle/{node,client}.yaml
    job "$state/jobs" 1 "$host"
    rm -f "$TMPDIR/users"
}
purge() { DPKG_ROOT=$root PATH=$fakes:$PATH "heddle-$1/postrm" purge 2>"$TMPDIR/said"; }
purged() { [ ! -e "$state" ] && [ ! -e "$root/run/heddle" ] && [ ! -e "$root/var/cache/heddle" ]; }
says() { grep -qF -e "$1" "$TMPDIR/said"; }
clear() {
    rm -rf --one-file-system "$root" "$share"
}

for package in node controller; do
    machine
    rm -r "$root/var/cache/heddle" # the node's alone
    purge $package
    check "the_last_purge_of_${package}_leaves_nothing_of_this_machine" purged
    check "the_last_purge_of_${package}_removes_the_user" grep -qx heddle "$TMPDIR/users"
    check "the_last_purge_of_${package}_keeps_the_settings_of_the_command" [ "$(ls "$root/etc/heddle")" = client.yaml ]
    clear
done

# The share is another file system, a part of the same one, or in a folder below; at the units' own path.
for kind in tmpfs bind below; do
    machine
    rm -rf "$state/jobs"/*
    at=$state/jobs
    [ $kind != below ] || at="$state/jobs/7/a folder"
    mkdir -p "$at"
    if [ $kind = tmpfs ]; then mount -t tmpfs none "$at"; else mount --bind "$share" "$at"; fi
    job "$at" 4 "$host"
    purge node
    check "a_jobs_share_mounted_as_${kind}_keeps_its_checkpoints" has_job "$at" 4
    check "a_jobs_share_mounted_as_${kind}_is_named" says "left $at: a file system is mounted there"
    check "all_beside_a_jobs_share_mounted_as_${kind}_goes" [ ! -e "$state/node" -a ! -e "$state/controller" ]
    check "the_user_stays_with_a_jobs_share_mounted_as_${kind}" [ ! -e "$TMPDIR/users" ]
    umount "$at"
    clear
done

# The folder of everything is itself on a disk of its own, or the state of one service is.
machine
mount --bind "$share" "$state/node"
touch "$share/node-uuid"
purge node
check a_state_folder_that_is_mounted_stays [ -f "$share/node-uuid" ]
umount "$state/node"
clear
machine
job "$share" 4 other-node
mount --bind "$share" "$state"
purge controller
check checkpoints_on_a_disk_at_the_folder_of_all_stay has_job "$share" 4
umount "$state"
clear
machine
rm -r "$state"
job "$share" 4 other-node
ln -s "$share" "$state"
purge controller
check what_a_link_in_the_place_of_the_folder_of_all_leads_to_stays has_job "$share" 4
clear

machine
rm -r "$state/jobs"
job "$share" 4 other-node
ln -s "$share" "$state/jobs"
purge node
check a_link_to_a_jobs_share_goes [ ! -L "$state/jobs" ]
check what_a_link_leads_to_stays has_job "$share" 4
check what_a_link_leads_to_is_named says "left $share"
clear

# This machine has the share on its own disk, and lends it to others.
machine
job "$state/jobs" 4 other-node
purge node
check a_jobs_folder_with_jobs_of_other_nodes_stays has_job "$state/jobs" 4
check a_jobs_folder_with_jobs_of_other_nodes_is_named says "jobs of the node other-node are in it"
check all_beside_jobs_of_other_nodes_goes [ ! -e "$state/node" -a ! -e "$state/controller" ]
clear
machine
printf 'heddle-0\ncluster 1\nshare 2\nstate /var/lib/heddle/controller on elsewhere\n' >"$state/jobs/.heddle-probe"
purge node
check a_jobs_folder_of_a_controller_elsewhere_stays has_job "$state/jobs" 1
check a_jobs_folder_of_a_controller_elsewhere_is_named says "/var/lib/heddle/controller on elsewhere uses it"
clear
machine
printf 'heddle-0\ncluster 1\nstate /var/lib/heddle/controller on %s\n' "$host" >"$state/jobs/.heddle-probe"
job "$state/jobs" 2 a-given-name
echo a-given-name >"$state/node/node-name"
purge node
check a_jobs_folder_of_this_machines_controller_goes purged
clear
exit $bad
