# http.sh: what the scenarios of the HTTP listener share; sourced behind cluster.sh. No curl: a request is
# a few bytes by bash's own TCP.

# url_of LOG WORDS: "HOST PORT" of the newest line of the log with these words
door_of() { sed -n "s#.*$2 on https\{0,1\}://\([0-9.]*\):\([0-9]*\)/.*#\1 \2#p" "$1" | tail -n 1; }
# ask HOST PORT PATH [HEADER...]: the answer, head and body
ask() {
    local host=$1 port=$2 path=$3 header
    shift 3
    exec 9<>"/dev/tcp/$host/$port" || return 1
    printf 'GET %s HTTP/1.1\r\nHost: %s:%s\r\n' "$path" "$host" "$port" >&9
    for header; do printf '%s\r\n' "$header" >&9; done
    printf '\r\n' >&9
    timeout 20 cat <&9
    exec 9>&-
}
body() { ask "$@" | sed '1,/^\r$/d'; }
status() { ask "$@" | sed -n '1s/^HTTP\/1.1 \([0-9]*\).*/\1/p'; }
# sample FILE NAME [LABELS]: the value of a sample
sample() { awk -v wanted="$2${3:+{$3\}}" '$1 == wanted { print $2 }' "$1"; }
