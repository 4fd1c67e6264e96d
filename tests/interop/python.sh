# python.sh: finds the Python that interop scenarios compare with; sourced behind e2e/cluster.sh.
#
#   . "$HEDDLE_SOURCE_DIR/tests/interop/python.sh"
#   need_python NAME PACKAGE...     ends the scenario with `skip NAME` when a package is missing
python=${HEDDLE_PYTHON:-python3}

need_python() { # NAME PACKAGE...
    local name=$1 package
    shift
    for package; do
        "$python" -c "import $package" >/dev/null 2>&1 && continue
        printf 'skip %s: %s has no package %s (HEDDLE_PYTHON names another)\n' "$name" "$python" "$package"
        finish
    done
}
