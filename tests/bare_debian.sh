# bare_debian: what tests/fresh, tests/packages and tests/booted share: a bare Debian that is bootstrapped once,
# how apt in it reaches a mirror, and Heddle's packages in two versions. It is sourced, with these variables:
#
#   suite        bookworm or trixie
#   source_dir   the clone
#   build_dir    where packages are built (tests/fresh builds none)
#   log          a file for what commands say; the end of it is shown of a check that fails
#
# HEDDLE_MIRROR names another mirror than deb.debian.org.
export LC_ALL=C
mirror=${HEDDLE_MIRROR:-http://deb.debian.org/debian}
base_dir=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/heddle
passed=0 failed=0 skipped=0

check() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        printf 'ok   %s\n' "$suite.$name"
    else
        failed=$((failed + 1))
        printf 'FAIL %s\n' "$suite.$name"
        tail -n 20 "$log" | sed 's/^/    | /'
    fi
}
check_equal() { # NAME WANTED FOUND
    check "$1" is_equal "$2" "$3"
}
is_equal() {
    [ "$1" = "$2" ] || { printf 'wanted: %s\nfound:  %s\n' "$1" "$2"; false; }
}
closing_line() { printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"; }
await() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}

# unpack_base ROOT: a bare system of the suite; ROOT must not exist. What debootstrap made is kept as a
# tarball, which holds no trace of this machine.
unpack_base() {
    local base=$base_dir/base-$suite.tar.gz made
    if [ ! -f "$base" ]; then
        made=$(mktemp -d "${TMPDIR:-/tmp}/hdf.XXXXXX") || return 1
        printf 'bootstrapping %s from %s\n' "$suite" "$mirror"
        mkdir -p "$base_dir" && debootstrap --variant=minbase "$suite" "$made/root" "$mirror" >"$made/log" 2>&1 &&
            tar -C "$made/root" --exclude='./var/cache/apt/archives/*.deb' -czf "$base.$$" . && mv "$base.$$" "$base" ||
            { tail -n 5 "$made/log"; printf 'cannot bootstrap %s\n' "$suite"; }
        rm -rf --one-file-system "$made" "$base.$$"
    fi
    [ -f "$base" ] && mkdir "$1" && chmod 0755 "$1" && tar -C "$1" -xzf "$base"
}
# connect ROOT: what apt needs to reach its mirrors from inside: names, proxies, sources.
connect() {
    cat /etc/resolv.conf >"$1/etc/resolv.conf" 2>/dev/null
    grep -v '^[^#]*::1' /etc/hosts >"$1/etc/hosts" 2>/dev/null
    apt-config dump 2>/dev/null | grep -iE '^Acquire::(http|https)::Proxy' >"$1/etc/apt/apt.conf.d/50proxy"
    printf 'deb %s %s main\n' "$mirror" "$suite" >"$1/etc/apt/sources.list"
}

# Packages are made for the system that this machine has. For another suite, what that lacks of their libraries comes
# from this machine's one. add_libraries ROOT: says so to its apt; needs_of FOLDER: what the packages in it
# depend on, for `apt-get satisfy`.
add_libraries() {
    local own
    own=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
    [ "$own" != "$suite" ] || return 0
    printf 'deb %s %s main\n' "$mirror" "$own" >>"$1/etc/apt/sources.list"
    printf 'APT::Default-Release "%s";\n' "$suite" >"$1/etc/apt/apt.conf.d/60suite"
}
needs_of() {
    local package
    for package in "$1"/*.deb; do
        dpkg-deb -f "$package" Depends
    done | tr , '\n' | grep -v '^ *heddle' | sort -u | paste -s -d ,
}

# make_two_versions FOLDER: the packages of this clone in FOLDER/one, and in a later version in FOLDER/two, unless
# they are there. Sets `later` to that version. build_dir is configured and built if need be, and has its own
# version in the end.
make_two_versions() {
    local version
    version=$(sed -nE 's/^set\(HEDDLE_VERSION ([0-9.]+) CACHE.*/\1/p' "$source_dir/CMakeLists.txt")
    later=${version%.*}.$((${version##*.} + 1))
    { [ -d "$1/two" ] || make_packages "$later" "$1/two"; } && { [ -d "$1/one" ] || make_packages "$version" "$1/one"; }
}
make_packages() { # VERSION FOLDER
    rm -rf --one-file-system "$2.part"
    cmake -S "$source_dir" -B "$build_dir" -DHEDDLE_VERSION="$1" >"$log" 2>&1 &&
        ninja -C "$build_dir" programs >"$log" 2>&1 &&
        mkdir -p "$2.part" && (cd "$build_dir" && umask 077 && cpack -B "$2.part" >"$log" 2>&1) &&
        rm -rf --one-file-system "$2.part/_CPack_Packages" && mv "$2.part" "$2" || { tail -n 20 "$log"; false; }
}
