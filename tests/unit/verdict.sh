# verdict.sh: sourced by scenarios that make lists of what is wrong. bad: 1 after a failure, the exit status.
bad=0
verdict() { # NAME FILE: ok if FILE, the list of what is wrong, is empty
    if [ -s "$2" ]; then
        echo "not ok $1: $(wc -l <"$2") found"
        sed 's/^/    /' "$2"
        bad=1
    else
        echo "ok $1"
    fi
}
