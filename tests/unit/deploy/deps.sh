#!/bin/bash
# The promises of deploy/deps, with a dpkg, an apt and a sudo of our own that say what they were
# asked. The state of this imaginary machine is files in $machine.
set -u

machine=$TMPDIR/machine
fakes=$TMPDIR/fakes
mkdir -p "$machine" "$fakes"
bad=0

fake() { # NAME: the script is on stdin
    { printf '#!/bin/sh\nmachine="%s"\n' "$machine"; cat; } >"$fakes/$1"
    chmod +x "$fakes/$1"
}
fake dpkg-query <<'END'
sed 's/^/installed /' "$machine/installed"
END
fake apt-cache <<'END'
# policy NAME
grep -qx "$2" "$machine/offered" && printf '%s:\n  Installed: (none)\n  Candidate: 1.0\n' "$2"
END
fake apt-get <<'END'
words=
for word; do case $word in -* | *=*) ;; *) words="$words $word" ;; esac; done
case " $* " in
*" --print-uris "*) printf "'http://mirror/a.deb' a.deb 7000000 SHA256:0\n"; exit 0 ;;
*" --download-only "*) echo "download$words" >>"$machine/asked" ;;
*) echo "apt-get$words" >>"$machine/asked" ;;
esac
case $words in
*update) cp "$machine/offered-after-update" "$machine/offered" ;;
esac
left=$(cat "$machine/refusals")
if [ "$left" -gt 0 ]; then
    echo $((left - 1)) >"$machine/refusals"
    exit 100
fi
END
fake id <<'END'
cat "$machine/uid"
END
fake sudo <<'END'
echo sudo >>"$machine/asked"
[ "$1" != -n ] || shift
[ "$(cat "$machine/sudo")" = allows ] && exec "$@"
END
fake sleep <<'END'
END

all=$(sed -nE "/^need='/,/'\$/p" "$HEDDLE_SOURCE_DIR/deploy/deps" | tr -d "'" | sed 's/^need=//; s/|[^ ]*//g' | tr ' ' '\n')
reset() { # a machine that lacks ninja-build, whose lists are fresh, with us as root
    printf '%s\n' "$all" | grep -vx ninja-build >"$machine/installed"
    printf '%s\n' "$all" libsystemd-dev >"$machine/offered"
    cp "$machine/offered" "$machine/offered-after-update"
    : >"$machine/asked"
    echo 0 >"$machine/refusals"
    echo 0 >"$machine/uid"
    echo refuses >"$machine/sudo"
}
deps() { env -i PATH="$fakes:/usr/bin:/bin" "$HEDDLE_SOURCE_DIR/deploy/deps" "$@" >"$TMPDIR/out" 2>&1 </dev/null; }
asked() { [ "$(tr '\n' ',' <"$machine/asked")" = "$1" ]; }
verdict() { # NAME STATUS
    if [ "$2" = 0 ]; then
        echo "ok $1"
    else
        echo "not ok $1: it said, and asked for"
        sed 's/^/    /' "$TMPDIR/out" "$machine/asked"
        bad=1
    fi
}

reset
echo ninja-build >>"$machine/installed"
deps
[ $? = 0 ] && asked '' && [ ! -s "$TMPDIR/out" ]
verdict nothing_missing_touches_neither_apt_nor_sudo $?

reset
deps
[ $? = 0 ] && asked 'download install ninja-build libsystemd-dev,apt-get install ninja-build libsystemd-dev,' &&
    grep -q 'to download: 7 MB for ninja-build' "$TMPDIR/out"
verdict what_is_missing_is_downloaded_and_installed $?

reset
: >"$machine/offered"
deps
[ $? = 0 ] && [ "$(head -n 1 "$machine/asked")" = 'apt-get update' ]
verdict missing_lists_are_fetched_first $?

reset
grep -vx ninja-build "$machine/offered" >"$machine/offered-after-update"
cp "$machine/offered-after-update" "$machine/offered"
deps
[ $? = 1 ] && grep -q 'none of the names of: ninja-build' "$TMPDIR/out" && ! grep -q install "$machine/asked"
verdict a_package_that_nobody_offers_is_named $?

reset
echo 1 >"$machine/refusals"
deps
[ $? = 0 ] && asked 'download install ninja-build libsystemd-dev,apt-get update,download install ninja-build libsystemd-dev,apt-get install ninja-build libsystemd-dev,'
verdict old_lists_are_renewed_after_a_failed_download $?

reset
sed -i 's/^pkg-config$/pkgconf/' "$machine/installed"
echo ninja-build >>"$machine/installed"
deps
[ $? = 0 ] && asked ''
verdict another_name_of_the_same_thing_will_do $?

reset
echo 1000 >"$machine/uid"
deps
[ $? = 2 ] && asked 'sudo,' &&
    grep -qE '^    apt-get update && apt-get install -y --no-install-recommends ninja-build *$' "$TMPDIR/out"
verdict without_root_and_sudo_the_command_is_printed $?

reset
echo 1000 >"$machine/uid"
echo allows >"$machine/sudo"
deps
[ $? = 0 ] && [ "$(grep -c sudo "$machine/asked")" -ge 2 ] && grep -qx 'apt-get install ninja-build libsystemd-dev' "$machine/asked"
verdict a_user_with_sudo_installs_by_it $?

reset
deps --check
[ $? = 1 ] && asked '' && grep -q 'missing: ninja-build' "$TMPDIR/out"
verdict check_names_and_installs_nothing $?
exit $bad
