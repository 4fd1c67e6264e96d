#include "pairs.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "data/token_writer.h"
#include "tests/program/test.h"

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
