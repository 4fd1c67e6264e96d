/* refusals: a flood of refused calls is a handful of rows. */
#include <stdio.h>
#include <string.h>

#include "controller/services/refusals.h"
#include "tests/program/test.h"

static struct hd_audit_record refusal(const char *who, const char *method, const char *object,
                                      const char *source)
{
    return (struct hd_audit_record){.who = who,
                                    .role = "viewer",
                                    .method = method,
                                    .object = object,
                                    .source = source,
                                    .result = "denied"};
}

static bool take(struct refusals *all, const char *object, const char *source, int64_t now_ms)
{
    const struct hd_audit_record r = refusal("vic", "SetQueue", object, source);

    return refusals_take(all, &r, true, now_ms);
}

/* The port of a connection does not make another caller; another host does. */
static void equal_refusals_are_one_row_with_their_number(void **state)
{
    struct refusals *all = refusals_new();
    struct hd_audit_record row;

    assert_true(take(all, "queue a", "10.0.0.7:40000", 0));
    for (int i = 1; i <= 1000; i++) {
        char source[32];

        (void)snprintf(source, sizeof source, "10.0.0.7:%d", 40000 + i);
        assert_false(take(all, "queue a", source, i));
    }
    assert_true(take(all, "queue a", "10.0.0.8:40000", 10));
    assert_false(refusals_next(all, REFUSAL_WINDOW_MS - 1, false, &row));
    assert_true(refusals_next(all, REFUSAL_WINDOW_MS, false, &row));
    assert_string_equal(row.who, "vic");
    assert_string_equal(row.method, "SetQueue");
    assert_string_equal(row.object, "queue a");
    assert_string_equal(row.source, "10.0.0.7");
    assert_string_equal(row.result, "denied, 1000 times");
    assert_false(refusals_next(all, REFUSAL_WINDOW_MS, false, &row));
    refusals_free(all);
}

/* The first 8 objects of a window are named; then there is a number, with no name of several. */
static void different_objects_have_rows_of_their_own_up_to_a_bound(void **state)
{
    struct refusals *all = refusals_new();
    struct hd_audit_record row;
    int rows = 0;

    for (int i = 0; i < 100; i++) {
        char object[32];

        (void)snprintf(object, sizeof object, "job %d", i);
        rows += take(all, object, "10.0.0.7:1", i);
    }
    assert_int_equal(rows, REFUSAL_OBJECTS);
    assert_true(refusals_next(all, 1000, true, &row)); /* the controller stops */
    assert_string_equal(row.object, "several");
    assert_string_equal(row.result, "denied, 92 times"); /* 100 - 8 */
    assert_false(refusals_next(all, 1000, true, &row));
    refusals_free(all);
}

/* One refusal a second for a day. Windows of 1, 2, 4, 8, 16, 32 minutes are 63 minutes together; of
 * the other 1377 minutes each hour, begun or not, has one: 23. With the first: 1 + 6 + 23 = 30. */
static void a_flood_of_a_day_is_thirty_rows(void **state)
{
    struct refusals *all = refusals_new();
    struct hd_audit_record row;
    int rows = 0;

    for (int64_t s = 0; s < 24 * 3600; s++) {
        while (refusals_next(all, s * 1000, false, &row))
            rows++;
        rows += take(all, "queue a", "10.0.0.7:1", s * 1000);
    }
    while (refusals_next(all, INT64_C(86400000), true, &row))
        rows++;
    assert_int_equal(rows, 30);
    refusals_free(all);
}

/* More callers than there is room for are one row; each that is quiet for a window makes room. */
static void many_callers_have_a_bound(void **state)
{
    struct refusals *all = refusals_new();
    struct hd_audit_record row;
    int rows = 0;

    for (int i = 0; i < 3 * REFUSALS_MAX; i++) {
        char who[32];
        struct hd_audit_record r;

        (void)snprintf(who, sizeof who, "uid:%d", i);
        r = refusal(who, "GetJob", "job 1", "unix");
        rows += refusals_take(all, &r, true, 0);
    }
    assert_int_equal(rows, REFUSALS_MAX);
    assert_true(refusals_next(all, REFUSAL_WINDOW_MS, false, &row));
    assert_string_equal(row.who, "(several callers)");
    assert_string_equal(row.result, "refused, 1024 times"); /* 2 * 512 */
    assert_false(refusals_next(all, REFUSAL_WINDOW_MS, false, &row));
    assert_true(take(all, "queue a", "10.0.0.7:1", REFUSAL_WINDOW_MS));
    refusals_free(all);
}

/* While no row can be written the first refusal is counted as the others are. */
static void what_cannot_be_written_is_counted(void **state)
{
    struct refusals *all = refusals_new();
    const struct hd_audit_record r = refusal("vic", "SetQueue", "queue a", "unix");
    struct hd_audit_record row;

    for (int i = 0; i < 3; i++)
        assert_false(refusals_take(all, &r, false, 0));
    assert_true(refusals_next(all, REFUSAL_WINDOW_MS, false, &row));
    assert_string_equal(row.result, "denied, 3 times");
    refusals_free(all);
}

RUN_CASES()
