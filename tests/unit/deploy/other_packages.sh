#!/bin/bash
# The recipes of packages that CI cannot build (deploy/rpm, deploy/spack, deploy/apptainer), against what CMake has: the
# version, the programs, the settings of the build; and their syntax, by the tools that are installed.
bad=0
check() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$TMPDIR/out" 2>&1; then echo "ok $name"; else
        echo "not ok $name: $(tail -n 3 "$TMPDIR/out" | tr '\n' ' ')"
        bad=1
    fi
}
check_equal() { # NAME EXPECTED GOT
    if [ "$2" = "$3" ]; then echo "ok $1"; else
        printf "not ok %s: expected '%s', got '%s'\n" "$1" "$2" "$3"
        bad=1
    fi
}
cd "$HEDDLE_SOURCE_DIR" || exit 1
spec=deploy/rpm/heddle.spec recipe=deploy/spack/spack_repo/heddle/packages/heddle/package.py image=deploy/apptainer/heddle.def

version=$(sed -n 's/^set(HEDDLE_VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
check_equal the_spec_has_the_version "$version" "$(sed -n 's/^Version: *//p' $spec)"
check_equal spack_has_the_version "$version" "$(sed -n 's/^ *version("\([0-9.]*\)", tag=.*/\1/p' $recipe)"
cmake=$(sed -n 's/^cmake_minimum_required(VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
check both_ask_for_the_same_cmake grep -q "cmake >= $cmake" $spec
check and_so_does_spack grep -q "cmake@$cmake:" $recipe

# each program that is installed is in one list of files, and each unit
missing=
for program in heddle heddle-controller heddled heddle-launcher heddle-serve heddle-supervisor heddle-worker; do
    [ "$(grep -cx "%{_bindir}/$program" $spec)" = 1 ] || missing="$missing $program"
done
for unit in deploy/systemd/*; do grep -qx "%{_unitdir}/${unit##*/}" $spec || missing="$missing ${unit##*/}"; done
for page in $(sed -n 's/.*{made}\/man\/\([a-z-]*\)\.8.*/\1/p' deploy/CMakeLists.txt); do
    grep -q "%{_mandir}/man8/$page\.8" $spec || missing="$missing $page.8"
done
check_equal the_spec_lists_what_is_installed '' "$missing"
unknown=
for option in $(grep -oh 'HEDDLE_[A-Z_]*' $spec $recipe | sort -u); do
    grep -q "option($option\|$option" CMakeLists.txt kernels/cuda/CMakeLists.txt || unknown="$unknown $option"
done
check_equal their_options_are_those_of_the_build '' "$unknown"

if command -v rpmspec >/dev/null; then
    check rpm_reads_the_spec rpmspec --parse $spec
    check rpm_reads_it_with_cuda rpmspec --with cuda --parse $spec
fi
if command -v python3 >/dev/null; then
    check python_reads_spacks_recipe python3 -c "import ast, sys; ast.parse(open(sys.argv[1]).read())" $recipe
fi
for section in post runscript test environment; do # {{ X }} is an argument of the build
    sed -n "/^%$section\$/,/^%/{/^%/d;s/{{ *\([a-z_]*\) *}}/\1/g;p}" $image >"$TMPDIR/$section.sh"
    check "apptainers_${section}_is_a_shell_script" sh -c 'test -s "$1" && sh -n "$1"' sh "$TMPDIR/$section.sh"
done
exit $bad
