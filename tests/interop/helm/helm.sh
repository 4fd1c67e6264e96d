#!/bin/bash
# The chart in deploy/helm by Helm's own library: lint, what it renders against the schemas of Kubernetes, and what
# its values refuse; and what it renders against the programs, whose options and configuration files it writes.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1
. "$HEDDLE_SOURCE_DIR/tests/interop/python.sh" || exit 1
need_python the_chart_is_sound helm_python kubernetes_validate yaml

"$python" "$HEDDLE_SOURCE_DIR/tests/interop/helm/chart.py" "$HEDDLE_SOURCE_DIR/deploy/helm/heddle" "$work" \
    >"$work/verdicts" 2>"$work/chart.log" || not_ok chart "$(tail -n 5 "$work/chart.log")"
cat "$work/verdicts"
failures=$((failures + $(grep -c '^not ok' "$work/verdicts")))
check_equal all_was_looked_at 19 "$(wc -l <"$work/verdicts")"

# the arguments and files that pods would get; the paths in them are made here
mkdir -p "$work/etc" "$work/lib"
here() { sed -e "s|/etc/heddle-chart|$work/etc|g; s|/var/lib/heddle|$work/lib|g; s|/run/heddle|$work|g" "$1"; }
for name in plain all; do
    cp "$work/$name"-controller.yaml "$work/etc/controller.yaml"
    cp "$work/$name"-policy "$work/etc/policy"
    cp "$work/$name"-node.yaml "$work/etc/node.yaml"
    mapfile -t arguments < <(here "$work/$name-init.args")
    check "${name}_init_runs" "$HEDDLE_BIN/heddle-controller" "${arguments[@]}"
    check "${name}_init_runs_again" "$HEDDLE_BIN/heddle-controller" "${arguments[@]}"
    mapfile -t arguments < <(here "$work/$name-controller.args")
    check "${name}_controller_takes_its_options" "$HEDDLE_BIN/heddle-controller" "${arguments[@]}" --check-config
    mapfile -t arguments < <(here "$work/$name-heddled.args")
    check "${name}_heddled_takes_its_options" "$HEDDLE_BIN/heddled" "${arguments[@]}" --check-config
    rm -rf --one-file-system "$work/lib"
done
for script in "$work"/*.sh; do
    check "script_$(basename "$script" .sh)_is_one" bash -n "$script"
done
finish
