#!/bin/bash
# For which GPUs the plug-in is built by the version of nvcc, what its package depends on, and that no nvcc ends the
# configuration: each here is a script that only says its version and what it knows.
set -u

source_dir=${HEDDLE_SOURCE_DIR:?}
work=$TMPDIR/nvcc
mkdir -p "$work"
bad=0

check() { # NAME WANTED FOUND
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        printf 'not ok %s\n    wanted: %s\n    found:  %s\n' "$1" "$2" "$3"
        bad=1
    fi
}

# answer FILE FUNCTION ARGUMENT...   prints what the function of a CMake file gives, or "no: " and why not
answer() {
    local file=$1 function=$2 word call=""
    shift 2
    for word; do call+=" \"$word\""; done
    cat >"$work/call.cmake" <<EOF
cmake_minimum_required(VERSION 3.25)
include($source_dir/$file)
$function(result $call)
if(result STREQUAL "")
    set(result "no: \${result_PROBLEM}")
endif()
file(WRITE $work/answer "\${result}")
EOF
    cmake -P "$work/call.cmake" && cat "$work/answer"
}
architectures() { answer kernels/cuda/architectures.cmake hd_cuda_architectures "$@"; }

old="compute_35;compute_50;compute_70;compute_75;compute_80;compute_86;compute_89;compute_90"
new="compute_75;compute_80;compute_86;compute_89;compute_90;compute_100;compute_103;compute_120;compute_121"
check nvcc_11_8_builds_for_what_it_knows "80-real;90-real;90-virtual" "$(architectures 11.8 "$old" "")"
check so_does_12_0 "80-real;90-real;90-virtual" "$(architectures 12.0 "$old" "")"
check nvcc_13_adds_blackwell "80-real;90-real;100-real;120-real;90-virtual" "$(architectures 13.0 "$new" "")"
check a_list_stays_as_given "86-real;90a-real" "$(architectures 13.0 "$new" "86-real;90a-real")"
check an_unknown_one_is_named "no: nvcc 12.0 does not know 100-real of HEDDLE_CUDA_ARCHITECTURES; leave it out, or set the option to \"\"" \
    "$(architectures 12.0 "$old" "80-real;100-real")"
check an_older_nvcc_builds_nothing "no: nvcc 11.2 is older than 11.8" "$(architectures 11.2 "$old" "")"
check nor_one_without_a_version "no: nvcc does not tell its version" "$(architectures "" "$old" "")"
hopper() { answer kernels/cuda/architectures.cmake hd_cuda_hopper_architecture "$@"; }
check hopper_has_kernels_of_its_own "90a-real 90a-real no:  no: " \
    "$(hopper 12.0 "$old" "") $(hopper 13.0 "$new" "80-real;90-real") $(hopper 11.8 "$old" "") $(hopper 13.0 "$new" 80-real)"

packages() { answer deploy/cuda_packages.cmake hd_cuda_packages "$@"; }
check packages_of_the_version "libcublas-12-8 | libcublas-12-9 | libcublas-12-10 | libcublas-12-11 | libcublas-12-12 | libcublaslt12" \
    "$(packages 12.8)"
check packages_without_a_plugin libcublas-13-0 "$(packages "" | sed 's/ .*//')"

# configure VERSION ARCHITECTURES VARIABLE   configures the folder of the plug-in with such an nvcc
mkdir "$work/source"
cat >"$work/source/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(nvcc_versions C CXX)
add_subdirectory($source_dir/kernels/cuda cuda)
EOF
configure() {
    cat >"$work/nvcc" <<EOF
#!/bin/sh
case "\$*" in
    --version) echo "Cuda compilation tools, release $1, V$1.89" ;;
    --list-gpu-arch) echo "$old" | tr ';' '\n' ;;
    *) echo "nvcc fatal   : Unsupported gpu architecture 'compute_100'" >&2; exit 1 ;;
esac
EOF
    chmod +x "$work/nvcc"
    rm -rf "$work/build"
    env CUDACXX="$work/nvcc" cmake -S "$work/source" -B "$work/build" "-DHEDDLE_CUDA_ARCHITECTURES=$2" ${3:+"$3"} \
        >"$work/out" 2>&1
    echo "$? $(sed -n 's/^-- kernels.cuda: //p' "$work/out")"
}
check configure_with_12_0_and_a_list_of_later_ones_ends_well \
    "0 nvcc 12.0 does not know 100-real of HEDDLE_CUDA_ARCHITECTURES; leave it out, or set the option to \"\"; no plug-in for GPUs is built" \
    "$(configure 12.0 100-real "-DCMAKE_CUDA_COMPILER=$work/nvcc")"
check so_does_one_that_compiles_nothing "0 nvcc was not found, or it compiles nothing; no plug-in for GPUs is built" \
    "$(configure 11.8 "")"
exit $bad
