# Removes what the services made. A part of both postrm scripts (deploy/packages.cmake puts it there).
#
# Never another file system or a folder that something is mounted on, also a bind mount; never what a link
# leads to; never a jobs directory with jobs of other machines. Each thing that stays is named.
root=${DPKG_ROOT-}
stays() {
    left=1
    echo "$package: left $1: $2" >&2
}

# The path as /proc/self/mountinfo writes it.
encoded() {
    printf '%s\n' "$1" | sed -e 's/\\/\\134/g' -e 's/ /\\040/g' -e 's/	/\\011/g'
}
mount_points() { cut -d ' ' -f 5 /proc/self/mountinfo 2>/dev/null || true; }
is_mounted_on() { mount_points | grep -qxF -e "$(encoded "$1")"; }
has_mounts_below() {
    prefix=$(encoded "$1")/
    mount_points | while IFS= read -r at; do
        case $at in "$prefix"*) echo "$at" ;; esac
    done | grep -q .
}

# Where nothing is mounted below, rm does it at once; else entry by entry.
remove_real() {
    if is_mounted_on "$1"; then
        stays "$1" "a file system is mounted there"
    elif [ -L "$1" ] || [ ! -d "$1" ] || ! has_mounts_below "$1"; then
        rm -rf --one-file-system -- "$1" || stays "$1" "it cannot be removed whole"
    else
        for entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
            [ -e "$entry" ] || [ -L "$entry" ] || continue
            (left= && remove_real "$entry" && [ -z "$left" ]) || left=1
        done
        rmdir --ignore-fail-on-non-empty -- "$1"
    fi
}
lies_elsewhere() { # the folder of all is a link, or has a disk of its own
    [ -L "$root/var/lib/heddle" ] || is_mounted_on "$(readlink -f -- "$root/var/lib/heddle")"
}
remove() {
    for path in "$@"; do
        [ -e "$root$path" ] || [ -L "$root$path" ] || continue
        case $path in
        /var/lib/heddle/*) ! lies_elsewhere || { stays "$root$path" "/var/lib/heddle is a link or a mount"; continue; } ;;
        esac
        [ ! -L "$root$path" ] || stays "$(readlink -f -- "$root$path")" "$path was a link to it"
        parent=$(cd -P -- "$(dirname -- "$root$path")" && pwd -P) || continue
        remove_real "${parent%/}/$(basename -- "$path")"
    done
}

# Why the jobs directory $1 is not this machine's alone; nothing: it is.
jobs_of_others() {
    host=$(uname -n)
    state=$(sed -n 's/^state //p' "$1/.heddle-probe" 2>/dev/null | head -n 1)
    if [ -n "$state" ] && [ "$state" != "/var/lib/heddle/controller on $host" ]; then
        echo "a controller with the state directory $state uses it"
        return
    fi
    for run in "$1"/*/attempt-*/nodes/*; do
        [ -d "$run" ] || continue
        node=${run##*/}
        [ "$node" = "$host" ] || [ "$node" = "${host%%.*}" ] || [ "$node" = "$node_name" ] || {
            echo "jobs of the node $node are in it"
            return
        }
    done
}
remove_jobs() {
    jobs=$root/var/lib/heddle/jobs
    why=
    [ -L "$jobs" ] || lies_elsewhere || is_mounted_on "$(readlink -f -- "$jobs")" || why=$(jobs_of_others "$jobs")
    if [ -n "$why" ]; then
        stays "$jobs" "$why; remove it yourself when it is needed no more"
    else
        remove /var/lib/heddle/jobs
    fi
}

# With the last of the packages that have services: logs and checkpoints, settings, and the user.
purge_all() {
    remove_jobs
    for entry in "$root"/var/lib/heddle/* "$root"/var/lib/heddle/.[!.]*; do
        case $entry in */jobs) ;; *) remove "${entry#"$root"}" ;; esac
    done
    lies_elsewhere || [ ! -d "$root/var/lib/heddle" ] || rmdir --ignore-fail-on-non-empty "$root/var/lib/heddle"
    remove /run/heddle
    for entry in "$root"/etc/heddle/* "$root"/etc/heddle/.[!.]*; do # client.yaml is the package heddle's
        case $entry in */client.yaml) ;; *) remove "${entry#"$root"}" ;; esac
    done
    [ ! -d "$root/etc/heddle" ] || rmdir --ignore-fail-on-non-empty "$root/etc/heddle"
    if [ -n "$left" ]; then
        echo "$package: the user heddle stays, because files of it do" >&2
    elif getent passwd heddle >/dev/null; then
        userdel heddle || true
    fi
}
left=
node_name=$(cat "$root/var/lib/heddle/node/node-name" 2>/dev/null || true)
