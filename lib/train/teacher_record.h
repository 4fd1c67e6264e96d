/* teacher_record: the records of a teacher's file (teacher.c).
 *
 * A record is, in native byte order: k ids plus 1 (u16 if all fit, else u32), then k log q (f16), the
 * largest first. An id of 0: no further one; a record of zeros is of a token without predictions, such
 * as one that is no target. The file has a head of HD_TEACHER_HEAD_BYTES, then a record for each token.
 *
 * Used by: batch, teacher.   Uses: base.
 * Threads: immutable once it is mapped.
 */
#ifndef HD_TRAIN_TEACHER_RECORD_H
#define HD_TRAIN_TEACHER_RECORD_H

#include <stddef.h>
#include <stdint.h>

enum { HD_TEACHER_HEAD_BYTES = 128 };

struct hd_teacher {
    void *map; /* the whole file */
    size_t bytes;
    int64_t tokens, vocab; /* records; token ids that occur in them are below vocab */
};

static inline int64_t hd_teacher_id_bytes(int64_t vocab)
{
    return vocab < UINT16_MAX ? 2 : 4; /* ids are stored plus 1 */
}

static inline int64_t hd_teacher_record_bytes(int64_t vocab, int64_t k)
{
    return k * (hd_teacher_id_bytes(vocab) + 2);
}

/* Copies the records of `rows` tokens, by their index in the training corpus (-1: none), to
 * [rows, k] ids and log q. An id is -1 where the record has no further one. teacher: may be NULL, a
 * file without records. */
void hd_teacher_read(const struct hd_teacher *teacher, int64_t k, const int64_t *places,
                     int64_t rows, int32_t *ret_ids, float *ret_logq);

#endif
