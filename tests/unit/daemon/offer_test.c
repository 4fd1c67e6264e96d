/* What heddled makes of answers about its GPUs, and of none: when it asks, and which ones it
 * withdraws. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/agent/question.h"
#include "daemon/agent/withdrawn.h"

static struct hd_gpu_list gpus;
static struct agent_withdrawn withdrawn;

/* ---- withdrawn by the kernel's log ---- */

/* A machine of GPU-0 and GPU-1, the newest fatal error of which, 79, stands at these places of the
 * log; 0: there is none, -1: the log cannot be read. Which ones are withdrawn: "1", "0 1". */
static const char *judge(int64_t at_0, int64_t at_1)
{
    static char got[8];
    const int64_t at[] = {at_0, at_1};

    got[0] = '\0';
    hd_gpu_list_init(&gpus);
    for (int i = 0; i < 2; i++) {
        struct hd_gpu *gpu = &gpus.gpus[gpus.count++];

        hd_gpu_init(gpu);
        (void)snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-%d", i);
        gpu->xid_fatal_at = at[i];
        gpu->xid_fatal = at[i] > 0 ? 79 : at[i];
    }
    agent_withdrawn_judge(&withdrawn, &gpus);
    for (int i = 0; i < 2; i++)
        if (gpus.gpus[i].problem[0])
            (void)snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", *got ? " " : "", i);
    return got;
}

static void an_error_is_new_by_its_place_in_the_log(void **state)
{
    (void)state;
    withdrawn = (struct agent_withdrawn){.count = 0};
    assert_string_equal(judge(500, 0), ""); /* what was there before anybody looked is old */
    assert_string_equal(judge(500, 0), "");
    assert_string_equal(judge(500, 600), "1");
    assert_non_null(strstr(gpus.gpus[1].problem, "(Xid 79)"));
    /* the old line of GPU 0 makes room, then there is a new one: no more of them than before */
    assert_string_equal(judge(0, 600), "1");
    assert_string_equal(judge(700, 600), "0 1");
}

/* The log forgets, and may not be readable any more; the GPU is as it was. */
static void a_withdrawn_gpu_stays_so_whatever_becomes_of_the_line(void **state)
{
    (void)state;
    withdrawn = (struct agent_withdrawn){.count = 0};
    assert_string_equal(judge(0, 0), "");
    assert_string_equal(judge(0, 600), "1");
    assert_string_equal(judge(0, 0), "1");
    assert_string_equal(judge(-1, -1), "1");
    assert_non_null(strstr(gpus.gpus[1].problem, "(Xid 79)"));
    withdrawn = (struct agent_withdrawn){.count = 0}; /* somebody has had it reset */
    assert_string_equal(judge(0, 600), "");
    assert_string_equal(judge(0, 601), "1");
}

static void nothing_is_withdrawn_by_a_log_that_nobody_could_read(void **state)
{
    (void)state;
    withdrawn = (struct agent_withdrawn){.count = 0};
    assert_string_equal(judge(-1, -1), "");
    assert_string_equal(judge(500, -1), ""); /* when it is read at last, what it has is old */
    assert_string_equal(judge(501, -1), "0");
}

/* ---- when, and what no answer means ---- */

static struct agent_question question;

/* Asks, and says whether what comes of it counts. It is over at `now_ms`. */
static bool ask(bool answered, int64_t now_ms)
{
    bool counts;

    assert_true(agent_question_is_due(&question, now_ms));
    agent_question_begin(&question, true);
    assert_false(agent_question_is_due(&question, now_ms));
    counts = agent_question_counts(&question, answered);
    agent_question_end(&question, false, now_ms);
    return counts;
}

/* All is well, and routine. */
static void begin_well(void)
{
    question = (struct agent_question){.number = 0};
    assert_true(ask(true, 0));
    assert_false(agent_question_is_due(&question, AGENT_QUESTION_EVERY_MS - 1));
}

static void a_driver_that_is_slow_for_once_withdraws_nothing(void **state)
{
    int64_t now_ms = AGENT_QUESTION_EVERY_MS;

    (void)state;
    begin_well();
    for (int i = 0; i < 2; i++) { /* each time anew */
        assert_false(ask(false, now_ms));
        assert_true(question.answered);
        now_ms += AGENT_QUESTION_NO_ANSWER_MS; /* soon again */
        assert_true(ask(true, now_ms));
        assert_false(agent_question_is_due(&question, now_ms + AGENT_QUESTION_EVERY_MS - 1));
        now_ms += AGENT_QUESTION_EVERY_MS;
    }
    assert_false(ask(false, now_ms));
    now_ms += AGENT_QUESTION_NO_ANSWER_MS;
    assert_true(ask(false, now_ms)); /* the second in a row */
    assert_false(question.answered);
    now_ms += AGENT_QUESTION_NO_ANSWER_MS;
    assert_true(ask(false, now_ms)); /* there is nothing that could stand */
}

static void no_answer_counts_at_once_when_there_is_reason_to_doubt(void **state)
{
    (void)state;
    begin_well();
    agent_question_press(&question);
    assert_true(ask(false, 1));
    assert_false(question.answered);
    /* one that was under way when the reason came was asked before: another follows at once */
    begin_well();
    agent_question_begin(&question, true);
    agent_question_press(&question);
    assert_true(agent_question_counts(&question, true));
    agent_question_end(&question, false, 7);
    assert_true(ask(false, 7));
    assert_false(question.answered);
    /* nor does one that cannot even be asked leave anything standing */
    begin_well();
    agent_question_press(&question);
    agent_question_begin(&question, false);
    assert_true(agent_question_counts(&question, false));
    /* and it was not pressing for ever */
    begin_well();
    agent_question_press(&question);
    assert_true(ask(true, 1));
    assert_false(ask(false, 1 + AGENT_QUESTION_EVERY_MS));
}

static void nothing_stands_before_the_first_answer(void **state)
{
    (void)state;
    question = (struct agent_question){.number = 0};
    assert_true(ask(false, 0));
    assert_true(ask(false, AGENT_QUESTION_NO_ANSWER_MS));
    assert_true(ask(true, 2 * AGENT_QUESTION_NO_ANSWER_MS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_is_new_by_its_place_in_the_log),
        cmocka_unit_test(a_withdrawn_gpu_stays_so_whatever_becomes_of_the_line),
        cmocka_unit_test(nothing_is_withdrawn_by_a_log_that_nobody_could_read),
        cmocka_unit_test(a_driver_that_is_slow_for_once_withdraws_nothing),
        cmocka_unit_test(no_answer_counts_at_once_when_there_is_reason_to_doubt),
        cmocka_unit_test(nothing_stands_before_the_first_answer),
    };
    return cmocka_run_group_tests_name("offer", tests, NULL, NULL);
}
