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
/* Opens a decoder with these options; backend and threads are set here. */
struct decoding decoding_open_as(const char *dir, struct hd_decoder_options options);
void decoding_close(struct decoding *d);

/* Logits behind a prompt, which begins a new sequence, and behind one more token; valid until the
 * next call. */
const float *decoding_prompt(struct decoding *d, const int32_t *tokens, int64_t count);
const float *decoding_next(struct decoding *d, int32_t token);

#endif
