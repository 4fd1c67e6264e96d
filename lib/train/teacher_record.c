#include "train/teacher_record.h"

#include <stdbool.h>
#include <string.h>

#include "base/dtype.h"

static void take_record(const struct hd_teacher *teacher, int64_t k, int64_t place,
                        int32_t *ret_ids, float *ret_logq)
{
    bool present = teacher && place >= 0 && place < teacher->tokens;
    const int64_t id_size = present ? hd_teacher_id_bytes(teacher->vocab) : 0;
    const char *record = present ? (const char *)teacher->map + HD_TEACHER_HEAD_BYTES +
                                       place * hd_teacher_record_bytes(teacher->vocab, k)
                                 : NULL;

    for (int64_t j = 0; j < k; j++) {
        uint32_t id = 0;
        uint16_t narrow = 0, logq = 0;

        if (present && id_size == 2) {
            memcpy(&narrow, record + j * 2, sizeof narrow);
            id = narrow;
        } else if (present) {
            memcpy(&id, record + j * 4, sizeof id);
        }
        if (present)
            memcpy(&logq, record + k * id_size + j * 2, sizeof logq);
        present = present && id > 0 && id <= teacher->vocab;
        ret_ids[j] = present ? (int32_t)id - 1 : -1;
        ret_logq[j] = present ? hd_f16_to_f32(logq) : 0;
    }
}

void hd_teacher_read(const struct hd_teacher *teacher, int64_t k, const int64_t *places,
                     int64_t rows, int32_t *ret_ids, float *ret_logq)
{
    for (int64_t r = 0; r < rows; r++)
        take_record(teacher, k, places[r], ret_ids + r * k, ret_logq + r * k);
}
