/* The words that programs compare: documented, unique, and the ones that daemons send. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "controller/core/core.h"
#include "link/report.h"
#include "tests/program/test.h"

enum subject { JOB, REPORT, CLUSTER };

/* Fails unless docs/api.md has the rows, one after the other. */
static void expect_documented(const struct hd_text *rows, const char *list)
{
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    struct hd_text path = {0}, document = {0};

    hd_file_join(&path, root ? root : ".", "docs/api.md");
    assert_int_equal(hd_file_read(path.data, 1 << 20, &document), HD_OK);
    assert_false(rows->failed);
    if (!strstr(document.data, rows->data))
        fail_msg("docs/api.md differs from %s; its table is to be:\n%s", list, rows->data);
    hd_text_free(&path);
    hd_text_free(&document);
}

static void the_documented_kinds_of_events_are_those_there_are(void **state)
{
    static const char *const histories[] = {"job", "job (reported)", "cluster"};
    struct hd_text rows = {0};

#define X(name, word, subject, meaning) \
    hd_text_add(&rows, "| `%s` | %s | %s |\n", word, histories[subject], meaning);
    HD_EVENT_KIND_LIST(X)
#undef X
    expect_documented(&rows, "controller/core/event_kinds.h");
    hd_text_free(&rows);
}

static void the_documented_blockers_are_those_there_are(void **state)
{
    struct hd_text rows = {0};

    for (int b = 0; b < HD_CORE_BLOCKERS_MAX; b++)
        hd_text_add(&rows, "| `%s` | %s |\n", hd_core_blocker_word((enum hd_core_blocker)b),
                    hd_core_blocker_meaning((enum hd_core_blocker)b));
    expect_documented(&rows, "HD_CORE_WAIT_LIST");
    hd_text_free(&rows);
}

static void each_kind_of_event_has_a_word_of_its_own(void **state)
{
    for (int a = 0; a < HD_EVENT_KIND_COUNT; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(hd_event_kind_name((enum hd_event_kind)a),
                                    hd_event_kind_name((enum hd_event_kind)b));
}

/* Goal: events that say that a job or node is in a state carry the word of that state. */
static void an_event_of_a_state_has_the_word_of_the_state(void **state)
{
    assert_string_equal(hd_event_kind_name(HD_EVENT_SUCCEEDED),
                        hd_job_state_name(HD_JOB_STATE_SUCCEEDED));
    assert_string_equal(hd_event_kind_name(HD_EVENT_FAILED),
                        hd_job_state_name(HD_JOB_STATE_FAILED));
    assert_string_equal(hd_event_kind_name(HD_EVENT_CANCELLED),
                        hd_job_state_name(HD_JOB_STATE_CANCELLED));
    assert_string_equal(hd_event_kind_name(HD_EVENT_READY),
                        hd_node_state_name(HD_NODE_STATE_READY));
    assert_string_equal(hd_event_kind_name(HD_EVENT_DRAINING),
                        hd_node_state_name(HD_NODE_STATE_DRAINING));
    assert_string_equal(hd_event_kind_name(HD_EVENT_DRAINED),
                        hd_node_state_name(HD_NODE_STATE_DRAINED));
    assert_string_equal(hd_event_kind_name(HD_EVENT_LOST), hd_node_state_name(HD_NODE_STATE_LOST));
    assert_string_equal(hd_event_kind_name(HD_EVENT_UNREACHABLE),
                        hd_node_state_name(HD_NODE_STATE_UNREACHABLE));
}

/* Goal: what a rank reports as an event of its level is a documented kind (daemon/agent sends the
 * names of these levels as they are). */
static void a_rank_reports_documented_kinds(void **state)
{
    assert_string_equal(hd_event_kind_name(HD_EVENT_HANG), hd_link_level_name(HD_LINK_LEVEL_HANG));
    assert_string_equal(hd_event_kind_name(HD_EVENT_STRAGGLER),
                        hd_link_level_name(HD_LINK_LEVEL_STRAGGLER));
    assert_string_equal(hd_event_kind_name(HD_EVENT_GUARD),
                        hd_link_level_name(HD_LINK_LEVEL_GUARD));
    assert_string_equal(hd_event_kind_name(HD_EVENT_SAMPLE),
                        hd_link_level_name(HD_LINK_LEVEL_SAMPLE));
}

RUN_CASES()
