# gpu_steps.sh: steps on a GPU within a budget of time. first_gpu and second_gpu source it.
#
# A step that fails or runs out of its time is said on the page, with the first lines that tell why,
# and the next one begins. A step for which too little time is left is said to be left out. All that
# a step prints is in its own file in the folder.
set -u
export LC_ALL=C
PATH=$PATH:${CUDA_HOME-/usr/local/cuda}/bin # of nvcc and compute-sanitizer; CMake looks there only for libraries

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P) || exit 2
program=${0##*/} minutes=12 out= python=python3 build_dir= tiny=0 built=0
usage() { printf '%s: %s; see %s --help\n' "$program" "$1" "$program" >&2; exit 2; }
while [ $# -gt 0 ]; do
    case $1 in
    --minutes | --out | --python | --build-dir) [ $# -ge 2 ] || usage "$1 wants a value" ;;
    esac
    case $1 in
    --minutes) minutes=$2; shift ;;
    --out) out=$2; shift ;;
    --python) python=$2; shift ;;
    --build-dir) build_dir=$2; shift ;;
    --built) built=1 ;;
    --tiny) tiny=1 ;;
    -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) usage "unknown argument $1" ;;
    esac
    shift
done
[[ $minutes =~ ^[1-9][0-9]{0,2}$ ]] || usage "--minutes wants a number from 1 to 999"
case ${HEDDLE_CUDA_PLUGIN-} in
*/libheddle_cudasim.so) ;;
*) nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || usage "nvidia-smi lists no GPU; run it where there is one, or set HEDDLE_CUDA_PLUGIN to the emulator and give --tiny" ;;
esac
# where this Python has NVIDIA's packages: cuDNN and NCCL are often there alone (kernels/library.h)
: "${VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)' 2>/dev/null)}"
export VIRTUAL_ENV
: "${build_dir:=$source_dir/build/engine}"
: "${out:=${TMPDIR:-/tmp}/$program-$(date +%Y%m%d-%H%M%S)}"
mkdir -p "$out" && out=$(cd "$out" && pwd -P) || usage "cannot make the folder $out"
page=$out/page.txt
: >"$page" || usage "cannot write $page"
# A test makes it shorter than a minute.
deadline=$((SECONDS + 60 * minutes - ${SECONDS_LESS-0})) failed=0 left_out=0 child=
trap 'trap "" INT TERM; [ -z "$child" ] || kill -TERM -- "-$child" 2>/dev/null; say "interrupted"; exit 130' INT TERM

say() { printf '%s\n' "$*" | tee -a "$page"; }

# What a failure is about: the first lines that look like one, else the last ones.
why() { # FILE
    local lines
    lines=$(grep -aE -m 6 'ERROR|error|FAILED|Failure|failed|differ|cannot|refused|terminate|Xid|SKIPPED:' "$1")
    [ -n "$lines" ] || lines=$(tail -n 4 "$1")
    printf '%s\n' "$lines" | cut -c1-220 | sed 's/^/      /'
}

# Tests of a GPU that cannot be used skip themselves; here there is one.
skipped_all() { # FILE
    grep -qaE '^SKIPPED|^\[  SKIPPED \]' "$1" && ! grep -qaE '^\[  PASSED  \] [1-9]' "$1"
}

# step NAME LIMIT RESERVE COMMAND...: LIMIT seconds at most, and RESERVE are left for what comes later. With
# --tiny ten times LIMIT: the emulator computes on the cores, which others may be using.
step() {
    local name=$1 limit=$2 reserve=$3 began=$SECONDS rest log status
    shift 3
    log=$out/${name//[^a-z0-9_]/_}.txt
    rest=$((deadline - SECONDS - reserve))
    [ $tiny = 0 ] || limit=$((10 * limit))
    [ "$rest" -ge "$limit" ] || limit=$rest
    if [ "$limit" -lt 3 ]; then
        left_out=$((left_out + 1))
        say "  --   $(printf '%-34s' "$name") left out: no time is left for it"
        return 1
    fi
    setsid timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null &
    child=$!
    wait $child
    status=$?
    child=
    [ $status != 0 ] || ! skipped_all "$log" || status=skipped
    if [ $status = 0 ]; then
        say "  ok   $(printf '%-34s %4d s' "$name" $((SECONDS - began)))  $(tail -n 1 "$log" | cut -c1-120)"
        return 0
    fi
    failed=$((failed + 1))
    if [ $status = 124 ] || [ $status = 137 ]; then
        say "  FAIL $(printf '%-34s %4d s' "$name" $((SECONDS - began)))  ended after its $limit seconds"
    elif [ $status = skipped ]; then
        say "  FAIL $(printf '%-34s %4d s' "$name" $((SECONDS - began)))  it ran nothing"
    else
        say "  FAIL $(printf '%-34s %4d s' "$name" $((SECONDS - began)))  exit status $status"
    fi
    why "$log" | tee -a "$page"
    return 1
}

# A test of the build's list, as tests/run would start it.
test_of_list() { # NAME LIMIT RESERVE
    local kind name group _ words
    words=$(grep -E "^program $1 " "$build_dir/tests/list" 2>/dev/null | head -n 1)
    if [ -z "$words" ]; then
        failed=$((failed + 1))
        say "  FAIL $(printf '%-34s' "$1") is not in $build_dir/tests/list"
        return 1
    fi
    read -r kind name group _ _ _ words <<<"$words"
    [ -n "$words" ] || words=$name # a program of its own
    read -ra words <<<"$words"
    step "$1" "$2" "$3" "$source_dir/tests/own_folder" "$build_dir/tests/${words[0]}" "${words[@]:1}"
}

inventory() {
    date -u
    git -C "$source_dir" log -1 --format='commit %H %s' 2>/dev/null
    nvidia-smi 2>&1 | head -n 30
    nvidia-smi topo -m 2>&1 | head -n 30
    nproc
    grep -m 1 'model name' /proc/cpuinfo
    free -g | head -n 2
    for tool in nvcc cc cmake ninja "$python"; do
        printf '%s: ' "$tool"
        command -v "$tool" || echo "not found"
    done
    nvcc --version 2>&1 | tail -n 2
    "$python" -c 'import torch; print("torch", torch.__version__, torch.version.cuda, "NCCL", torch.cuda.nccl.version(), "cuDNN", torch.backends.cudnn.version())' 2>&1 | tail -n 1
    ldconfig -p 2>/dev/null | grep -E 'libcublasLt|libnccl|libcudart' | head
    # the last line stands on the page
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader 2>/dev/null | sort | uniq -c
}

inventory_step() {
    say "$program, $(date -u +%FT%TZ), $minutes minutes"
    step inventory 30 0 env source_dir="$source_dir" python="$python" bash -c "$(declare -f inventory); inventory"
}

# Configures for the GPU that is here, and builds TARGET...; what cannot be built is named, the rest is.
build() { # LIMIT TARGET...
    local limit=$1 architecture
    shift
    [ $built = 0 ] || return 0
    architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | sed 's/\.//;s/$/-real/' | paste -sd';')
    step configure 60 0 cmake --preset engine -S "$source_dir" -B "$build_dir" ${architecture:+"-DHEDDLE_CUDA_ARCHITECTURES=$architecture"} || return 1
    sed -n 's/^-- kernels\/cuda: /       /p' "$out/configure.txt" | tee -a "$page" # for which GPUs, or why for none
    step build "$limit" 0 ninja -k 0 -C "$build_dir" "$@"
}

# Runs ours and, if PyTorch finds a GPU, both of its attentions at the same steps; what they print stands on the page.
train_beside() { # CASE LIMIT RESERVE
    local peer=()
    "$python" -c 'import torch; assert torch.cuda.is_available()' >/dev/null 2>&1 &&
        peer=(--peer torch --peer torch-cudnn --python "$python")
    step "train_$1" "$2" "$3" "$build_dir/bench/train_gpu" --case "$1" "${peer[@]}"
    sed -nE '/tokens\/s|torch \/ ours|did not get through/p; /^  class /,/^  all /p' "$out/train_$1.txt" 2>/dev/null | tee -a "$page"
}

finish() {
    say "$failed failed, $left_out left out, $((SECONDS / 60)) min $((SECONDS % 60)) s of $minutes min; everything is in $out"
    (cd "$out" && tar --exclude=all.tar.gz -czf all.tar.gz -- *) # one file to take along
    [ $failed = 0 ]
    exit
}
