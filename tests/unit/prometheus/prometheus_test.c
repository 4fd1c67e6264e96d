/* prometheus: the text format, and that every family is documented.
 *
 *   prometheus_test --write DOCS/metrics.md     writes the table there anew
 *   prometheus_test --check controller|daemon   checks a page on standard input, for scenarios */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/program/test.h"
#include "tests/unit/prometheus/check.h"

static char problem[512];

static void a_page_is_read_by_another_reader(void **state)
{
    struct hd_prom_histogram h = {.bounds = &hd_prom_latencies};
    struct hd_text page = {0}, labels = {0};

    hd_prom_add_process(&page, "a \"b\" \\ c\nd", "1.0");
    hd_prom_add_one(&page, HD_PROM_jobs_submitted_total, 12345678901.0);
    hd_prom_begin(&page, HD_PROM_job_loss);
    hd_prom_add(&page, HD_PROM_job_loss, "job_id=\"7\"", 2.5);
    hd_prom_add(&page, HD_PROM_job_loss, "job_id=\"8\"", NAN);
    hd_prom_add(&page, HD_PROM_job_loss, "job_id=\"9\"", -0.125);
    hd_prom_observe(&h, 0.0001); /* on a bound: in its bucket */
    hd_prom_observe(&h, 0.3);
    hd_prom_observe(&h, 99);
    hd_prom_add_histogram(&page, HD_PROM_commit_duration_seconds, &h);
    assert_false(page.failed);
    if (!prom_check(page.data, HD_PROM_CONTROLLER, problem))
        fail_msg("%s", problem);
    assert_true(prom_find(page.data, "heddle_jobs_submitted_total", "") == 12345678901.0);
    assert_true(prom_find(page.data, "heddle_job_loss", "job_id=\"7\"") == 2.5);
    assert_true(prom_find(page.data, "heddle_job_loss", "job_id=\"9\"") == -0.125);
    assert_non_null(strstr(page.data, "job_id=\"8\"} NaN\n"));
    assert_non_null(strstr(page.data, "program=\"a \\\"b\\\" \\\\ c\\nd\""));
    /* 0.0001 lies in the first bucket, 0.3 in that up to 0.5, 99 in +Inf alone */
    assert_true(prom_find(page.data, "heddle_commit_duration_seconds_bucket", "le=\"0.0001\"") ==
                1);
    assert_true(prom_find(page.data, "heddle_commit_duration_seconds_bucket", "le=\"0.25\"") == 1);
    assert_true(prom_find(page.data, "heddle_commit_duration_seconds_bucket", "le=\"0.5\"") == 2);
    assert_true(prom_find(page.data, "heddle_commit_duration_seconds_bucket", "le=\"+Inf\"") == 3);
    assert_true(prom_find(page.data, "heddle_commit_duration_seconds_count", "") == 3);
    assert_true(fabs(prom_find(page.data, "heddle_commit_duration_seconds_sum", "") - 99.3001) <
                1e-9);
    hd_text_free(&page);
    hd_text_free(&labels);
}

/* The reader must be able to say no. */
static void the_reader_refuses_wrong_pages(void **state)
{
#define HEAD                                                                                \
    "# HELP heddle_jobs_submitted_total jobs accepted\n# TYPE heddle_jobs_submitted_total " \
    "counter\n"
    static const char *const bad[] = {
        "heddle_jobs_submitted_total 1\n",
        HEAD "heddle_jobs_submitted_total one\n",
        HEAD "heddle_jobs_submitted_total 1",
        HEAD "heddle_jobs_submitted_total -1\n",
        HEAD "heddle_jobs_submitted_total{x=\"1\"} 1\n",
        HEAD "heddle_steps_total 1\n",
        HEAD HEAD,
        "# HELP heddle_unknown x\n",
        "# HELP heddle_daemon_connected 1: the controller has accepted this node's connection\n",
        "# HELP heddle_jobs_submitted_total another help\n",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (prom_check(bad[i], HD_PROM_CONTROLLER, problem))
            fail_msg("page %zu was taken", i);
}

static bool has_suffix(const char *name, const char *suffix)
{
    const size_t n = strlen(name), s = strlen(suffix);

    return n >= s && strcmp(name + n - s, suffix) == 0;
}

/* https://prometheus.io/docs/practices/naming */
static void names_follow_the_rules(void **state)
{
    static const char *const not_base[] = {"_ms",        "_milliseconds", "_minutes",
                                           "_kilobytes", "_mb",           "_percent",
                                           "_mhz",       "_megahertz",    "_milliwatts"};

    for (int i = 0; i < HD_PROM_COUNT; i++) {
        const struct hd_prom_row *row = &hd_prom_families[i];

        assert_int_equal(strspn(row->name, "abcdefghijklmnopqrstuvwxyz0123456789_"),
                         strlen(row->name));
        if (has_suffix(row->name, "_total") != (row->kind == HD_PROM_COUNTER))
            fail_msg("%s: a counter ends with _total, nothing else does", row->name);
        if (strstr(row->labels, "job,") || strcmp(row->labels, "job") == 0)
            fail_msg("%s: Prometheus itself sets the label job", row->name);
        for (size_t u = 0; u < sizeof not_base / sizeof not_base[0]; u++)
            if (strstr(row->name, not_base[u]))
                fail_msg("%s is not in base units", row->name);
        assert_true(strlen(row->help) > 0 && !strchr(row->help, '\n') && !strchr(row->help, '|'));
    }
}

#define BEGIN "<!-- generated: prometheus_test --write -->\n"
#define END   "<!-- end -->\n"

/* Writes the table of docs/metrics.md. */
static void add_table(struct hd_text *out)
{
    static const char *const programs[] = {"controller", "heddled", "both"};
    static const char *const kinds[] = {"gauge", "counter", "histogram"};

    hd_text_add(out, "| name | of | kind | labels | meaning |\n|---|---|---|---|---|\n");
    for (int i = 0; i < HD_PROM_COUNT; i++) {
        const struct hd_prom_row *row = &hd_prom_families[i];

        hd_text_add(out, "| `%s` | %s | %s | %s | %s |\n", row->name, programs[row->program],
                    kinds[row->kind], row->labels, row->help);
    }
}

static void every_family_is_documented(void **state)
{
    struct hd_text docs = {0}, table = {0};
    const char *root = getenv("HEDDLE_SOURCE_DIR"), *begin, *end;
    char path[512];

    if (!root) {
        print_message("no HEDDLE_SOURCE_DIR\n");
        skip();
    }
    (void)snprintf(path, sizeof path, "%s/docs/metrics.md", root);
    assert_int_equal(hd_file_read(path, 1 << 20, &docs), HD_OK);
    begin = strstr(docs.data, BEGIN);
    end = strstr(docs.data, END);
    assert_true(begin && end && begin < end);
    begin += strlen(BEGIN);
    add_table(&table);
    if (strlen(table.data) != (size_t)(end - begin) ||
        strncmp(begin, table.data, (size_t)(end - begin)) != 0)
        fail_msg("docs/metrics.md differs from lib/prometheus/families.def; run: "
                 "build/dev/tests/prometheus_test --write docs/metrics.md");
    hd_text_free(&docs);
    hd_text_free(&table);
}

static int write_table(const char *path)
{
    struct hd_text docs = {0}, fresh = {0};
    const char *begin, *end;
    int code = 1;

    if (hd_file_read(path, 1 << 20, &docs) == HD_OK && (begin = strstr(docs.data, BEGIN)) &&
        (end = strstr(docs.data, END))) {
        hd_text_add_bytes(&fresh, docs.data, (size_t)(begin - docs.data) + strlen(BEGIN));
        add_table(&fresh);
        hd_text_add(&fresh, "%s", end);
        code = hd_file_write_atomic(path, fresh.data, fresh.len_bytes, 0644) != HD_OK;
    }
    hd_text_free(&docs);
    hd_text_free(&fresh);
    return code;
}

static int check_input(const char *program)
{
    struct hd_text page = {0};
    char piece[65536];
    size_t n;
    bool good;

    while ((n = fread(piece, 1, sizeof piece, stdin)) > 0)
        hd_text_add_bytes(&page, piece, n);
    good =
        page.data &&
        prom_check(page.data, strcmp(program, "daemon") == 0 ? HD_PROM_DAEMON : HD_PROM_CONTROLLER,
                   problem);
    if (!good)
        (void)puts(*problem ? problem : "the page is empty");
    hd_text_free(&page);
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_table(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--check") == 0)
        return check_input(argv[2]);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
