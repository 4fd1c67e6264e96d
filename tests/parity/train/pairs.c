#include "pairs.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "data/token_writer.h"
#include "tests/program/test.h"
#include "train/policy.h"

int pairs_document(int pair, enum pairs_side side, int32_t ids[PAIRS_DOCUMENT_MAX],
                   char counts[PAIRS_DOCUMENT_MAX])
{
    const int prompt = 2 + pair % 3;
    const int n = prompt + (side == PAIRS_REJECTED ? 2 + pair % 5 : 3 + pair % 4);

    for (int i = 0; i < n; i++) {
        const uint64_t key = (uint64_t)(2 * pair + (i < prompt ? 0 : (int)side));

        ids[i] = 'a' + (int32_t)(hd_random_u64(77 + key, (uint64_t)i) % 20);
        counts[i] = i >= prompt;
    }
    return n;
}

void pairs_write(const struct harness *h, int first, int count, enum pairs_side side,
                 char path[PAIRS_PATH_MAX], struct hd_job_file *ret_file)
{
    char out[PAIRS_PATH_MAX - 4];
    struct hd_token_writer *w;
    struct stat info;

    (void)snprintf(out, sizeof out, "%.150s/pairs", h->dir);
    (void)snprintf(path, PAIRS_PATH_MAX, "%s.bin", out);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
    for (int k = first; k < first + count; k++)
        for (int s = PAIRS_CHOSEN; s <= PAIRS_REJECTED; s++) {
            int32_t ids[PAIRS_DOCUMENT_MAX];
            char counts[PAIRS_DOCUMENT_MAX];
            const int n = pairs_document(k, (enum pairs_side)s, ids, counts);

            if (side == PAIRS_BOTH || s == (int)side)
                assert_int_equal(hd_token_writer_add_document(w, ids, counts, n), HD_OK);
        }
    assert_int_equal(hd_token_writer_finish(w), HD_OK);
    assert_int_equal(stat(path, &info), 0);
    *ret_file = (struct hd_job_file){.path = path, .size_bytes = info.st_size};
}

void pairs_forget_reference(const struct harness *h)
{
    char path[PAIRS_PATH_MAX];

    (void)snprintf(path, sizeof path, "%.160s/tokens/reference", h->dir);
    (void)unlink(path);
}

/* ---- completions ---- */

enum { COMPLETIONS = 24 };

struct samples {
    int32_t ids[COMPLETIONS][PAIRS_DOCUMENT_MAX];
    float sampled[COMPLETIONS][PAIRS_DOCUMENT_MAX], reference[COMPLETIONS][PAIRS_DOCUMENT_MAX];
    struct hd_policy_completion list[COMPLETIONS];
};

/* Log-probabilities around those of an even distribution over 258 ids. One of them is not a number, and
 * one completion is masked. */
static void make_samples(struct samples *s)
{
    for (int i = 0; i < COMPLETIONS; i++) {
        char counts[PAIRS_DOCUMENT_MAX];
        const int n = pairs_document(i / 2, (enum pairs_side)(i % 2), s->ids[i], counts);
        int prompt = 0;

        while (!counts[prompt])
            prompt++;
        for (int k = 0; k < n - prompt; k++) {
            s->sampled[i][k] = -5.5f + 0.3f * hd_random_normal(91 + (uint64_t)i, (uint64_t)k);
            s->reference[i][k] = -5.5f + 0.6f * hd_random_normal(191 + (uint64_t)i, (uint64_t)k);
        }
        if (i == 5)
            s->sampled[i][1] = NAN;
        s->list[i] = (struct hd_policy_completion){.prompt = s->ids[i],
                                                   .prompt_count = prompt,
                                                   .ids = s->ids[i] + prompt,
                                                   .count = n - prompt,
                                                   .sampled = s->sampled[i],
                                                   .reference = s->reference[i],
                                                   .advantage = hd_random_normal(7, (uint64_t)i),
                                                   .masked = i == 8};
    }
}

enum hd_status pairs_step(struct hd_trainer *t, struct hd_step_result *ret_result)
{
    struct samples s;
    enum hd_status st = HD_OK;

    if (hd_job_has_policy(&hd_trainer_rank_program(t)->job)) {
        make_samples(&s);
        st = hd_trainer_set_completions(t, s.list, COMPLETIONS);
    }
    return st ? st : hd_trainer_step(t, 0, ret_result);
}
