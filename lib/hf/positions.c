/* positions: the rows of a base's table of learned positions that a run with a shorter context does
 * not have. A checkpoint stores them in a file of their own, as fp32, because the base may be gone
 * when the checkpoint is exported:
 *
 *     base/positions.safetensors    embedding.positions [rows, C]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/folder.h"
#include "hf/hf_internal.h"

#define POSITIONS "embedding.positions"

/* Returns the tensor of learned positions by the family's name for it, with or without the prefix;
 * NULL: none. */
static const struct hd_weight *find_table(const struct hd_weights *weights, const char *family)
{
    const struct hd_hf_row *rows = NULL;
    const struct hd_weight *found = NULL;
    const char *prefix = NULL;
    size_t count = 0;
    char name[HD_WEIGHTS_NAME_MAX];

    if (hd_hf_rows(family, &rows, &count, &prefix))
        return NULL;
    for (size_t i = 0; !found && i < count; i++)
        if (strcmp(rows[i].ours, POSITIONS) == 0) {
            (void)snprintf(name, sizeof name, "%s%s", prefix, rows[i].theirs);
            found = hd_weights_find(weights, name);
            found = found ? found : hd_weights_find(weights, rows[i].theirs);
        }
    return found;
}

/* Opens the rows of learned positions that an earlier run's checkpoint stores. */
static enum hd_status find_kept(const char *checkpoint, struct hd_hf_positions *ret_positions)
{
    struct hd_text path = {0};
    enum hd_status st = hd_folder_path(&path, checkpoint, "base/" HD_HF_POSITIONS_FILE);

    if (!st && hd_file_exists(path.data))
        st = hd_hf_open_positions(path.data, ret_positions);
    hd_text_free(&path);
    return st;
}

enum hd_status hd_hf_find_positions(const struct hd_job *job, const char *dir,
                                    struct hd_hf_positions *ret_positions)
{
    const int64_t used = hd_job_first_position(job) + job->context;
    struct hd_hf_positions p = {.first = used};

    *ret_positions = (struct hd_hf_positions){.rows = 0};
    if (job->positions != HD_JOB_POSITIONS_LEARNED || !*dir)
        return HD_OK;
    if (hd_source_is_checkpoint(dir))
        return find_kept(dir, ret_positions);
    if (hd_weights_open(dir, &p.weights))
        /* the folder no longer exists; a caller that needs its weights reports that */
        return HD_OK;
    p.table = find_table(p.weights, job->family);
    if (p.table && p.table->dim_count == 2 && p.table->dtype != HD_DTYPE_COUNT &&
        p.table->shape[0] > used && p.table->shape[1] == job->hidden) {
        p.rows = p.table->shape[0] - used;
        p.columns = job->hidden;
        *ret_positions = p;
    } else {
        hd_weights_close(p.weights);
    }
    return HD_OK;
}

enum hd_status hd_hf_open_positions(const char *path, struct hd_hf_positions *ret_positions)
{
    struct hd_hf_positions p = {.first = 0};
    enum hd_status st = hd_weights_open_file(path, &p.weights);

    if (st)
        return st;
    p.table = hd_weights_find(p.weights, POSITIONS);
    if (!p.table || p.table->dim_count != 2 || p.table->dtype != HD_F32) {
        hd_weights_close(p.weights);
        return hd_err(HD_CORRUPT, "%s: has no table of positions", path);
    }
    p.rows = p.table->shape[0];
    p.columns = p.table->shape[1];
    *ret_positions = p;
    return HD_OK;
}

void hd_hf_read_positions(const struct hd_hf_positions *p, float *ret_values)
{
    hd_hf_convert(p->table, p->first * p->columns, 1, p->rows * p->columns, ret_values);
}

void hd_hf_close_positions(struct hd_hf_positions *p)
{
    hd_weights_close(p->weights);
    *p = (struct hd_hf_positions){.rows = 0};
}

enum hd_status hd_hf_write_positions(const struct hd_hf_positions *p, const char *path)
{
    const size_t bytes = (size_t)(p->rows * p->columns) * sizeof(float);
    float *values = malloc(bytes + sizeof(float));
    struct hd_safetensors_head head;
    struct hd_text file = {0};
    enum hd_status st;

    hd_safetensors_begin(&head, &file);
    hd_safetensors_add(&head, POSITIONS, "F32", (int64_t[]){p->rows, p->columns}, 2,
                       (int64_t)bytes);
    st = hd_safetensors_end(&head);
    if (values && !st) {
        hd_hf_read_positions(p, values);
        hd_text_add_bytes(&file, values, bytes);
    }
    if (!st)
        st = !values || file.failed ? hd_err(HD_NO_MEMORY, "no memory for a table of positions")
                                    : hd_file_write_atomic(path, file.data, file.len_bytes, 0644);
    free(values);
    hd_text_free(&file);
    return st;
}
