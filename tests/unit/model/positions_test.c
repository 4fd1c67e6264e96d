/* The position encodings that the configuration of a model may have. */
#include <stdio.h>

#include "model/model.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

static struct hd_job job_of(const char *family, enum hd_job_positions positions)
{
    struct hd_job job;

    hd_job_set_defaults(&job);
    job.family = job_text("%s", family);
    job.layers = 2;
    job.hidden = 16;
    job.heads = job.kv_heads = 2;
    job.head_width = 8;
    job.ffn_hidden = 64;
    job.vocab = 32;
    job.context = 8;
    job.rope_fraction = 1;
    job.positions = positions;
    return job;
}

static enum hd_positions positions_of(const char *family, enum hd_job_positions positions)
{
    const struct hd_job job = job_of(family, positions);
    struct hd_model_config config;

    if (hd_model_config_from_job(&job, &config))
        fail_msg("%s", hd_err_message());
    return config.positions;
}

/* Goal: any family may have slopes, and one whose own encoding is slopes may rotate instead.
 * Method: the configuration of each pair that a job file may give. */
static void a_family_has_its_own_positions_or_slopes(void **state)
{
    (void)state;
    assert_int_equal(positions_of("bloom", HD_JOB_POSITIONS_ALIBI), HD_POSITIONS_ALIBI);
    assert_int_equal(positions_of("bloom", HD_JOB_POSITIONS_ROPE), HD_POSITIONS_ROPE);
    assert_int_equal(positions_of("llama", HD_JOB_POSITIONS_ROPE), HD_POSITIONS_ROPE);
    assert_int_equal(positions_of("llama", HD_JOB_POSITIONS_ALIBI), HD_POSITIONS_ALIBI);
    assert_int_equal(positions_of("gpt2", HD_JOB_POSITIONS_LEARNED), HD_POSITIONS_LEARNED);
}

static void a_table_is_for_families_that_have_one(void **state)
{
    const struct hd_job job = job_of("bloom", HD_JOB_POSITIONS_LEARNED);
    struct hd_model_config config;

    (void)state;
    assert_int_equal(hd_model_config_from_job(&job, &config), HD_UNSUPPORTED);
    assert_string_equal(hd_err_message(), "model.positions: 'learned' is not supported for bloom; "
                                          "use rope or alibi");
}

RUN_CASES()
