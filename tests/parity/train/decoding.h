/* decoding: one sequence by a decoder, for tests. A failure fails the test.
 */
#ifndef HD_TESTS_TRAIN_DECODING_H
#define HD_TESTS_TRAIN_DECODING_H

#include "train/decoder.h"

struct decoding {
    struct hd_decoder *decoder;
    int64_t filled; /* tokens of slot 0 */
};

/* On what the ranks of the test run on, with one thread. */
struct decoding decoding_open(const char *dir);
struct decoding decoding_open_shared(const char *dir, int tp); /* by so many ranks */
void decoding_close(struct decoding *d);

/* Logits behind a prompt, which begins a new sequence, and behind one more token; valid until the
 * next call. */
const float *decoding_prompt(struct decoding *d, const int32_t *tokens, int64_t count);
const float *decoding_next(struct decoding *d, int32_t token);

#endif
