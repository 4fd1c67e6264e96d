#!/bin/bash
# rules: the alert rules and the board name metrics that exist, and the rules do what they say.
. "${HEDDLE_SOURCE_DIR:?}/tests/e2e/cluster.sh" || exit 1

deploy=$HEDDLE_SOURCE_DIR/deploy/prometheus
sed -n 's/^| `\(heddle_[a-z0-9_]*\)` .*/\1/p' "$HEDDLE_SOURCE_DIR/docs/metrics.md" | sort -u >"$work/known"
check_equal the_list_was_read yes "$([ "$(wc -l <"$work/known")" -gt 50 ] && echo yes)"
# unknown FILE: the metrics that it names and nobody exports
unknown() { grep -o 'heddle_[a-z0-9_]*' "$1" | sed 's/_bucket$//' | sort -u | comm -23 - "$work/known" | tr '\n' ' '; }
for file in rules.yml rules_test.yml grafana.json; do
    check_equal "all_metrics_of_${file%.*}_exist" '' "$(unknown "$deploy/$file")"
done
sed -n 's/^ *- alert: //p' "$deploy/rules.yml" | sort >"$work/alerts"
check_equal every_alert_is_tested '' "$(sed -n 's/^ *alertname: \([A-Za-z]*\).*/\1/p' "$deploy/rules_test.yml" | sort -u | comm -23 "$work/alerts" - | tr '\n' ' ')"
check_equal every_alert_clears_in_its_test '' "$(sed -n 's/.*{eval_time: .*, alertname: \([A-Za-z]*\)}.*/\1/p' "$deploy/rules_test.yml" | sort -u | comm -23 "$work/alerts" - | tr '\n' ' ')"
check_equal every_alert_is_documented '' "$(sed -n 's/^| \(Heddle[A-Za-z]*\) .*/\1/p' "$HEDDLE_SOURCE_DIR/docs/metrics.md" | sort | comm -3 "$work/alerts" - | tr '\n' ' ')"

if ! command -v promtool >/dev/null; then
    echo "skip rules_fire_and_clear: promtool is not installed"
    finish
fi
cd "$deploy" || exit 1
check rules_fire_and_clear promtool test rules rules_test.yml
check the_configuration_is_right promtool check config prometheus.yml
finish
