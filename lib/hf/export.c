/* export: exports a checkpoint as a model directory. Files are written to OUT.part.PID and flushed,
 * then the directory is renamed to OUT, so OUT is always complete. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "hf/export_internal.h"

static enum hd_dtype dtype_of(const struct hd_exporter *x, const struct hd_export_tensor *t)
{
    return t->fp32 ? HD_F32 : x->options->dtype;
}

static int64_t tensor_bytes(const struct hd_exporter *x, const struct hd_export_tensor *t)
{
    if (t->copied)
        return t->copied->size_bytes;
    return t->elements * (int64_t)hd_dtype_size(dtype_of(x, t));
}

/* ---- the checkpoint and its base ---- */

const struct hd_ckpt_entry *hd_export_find(const struct hd_exporter *x, const char *name)
{
    const struct hd_ckpt_entry *found = hd_ckpt_find_tensor(x->ckpt, name);

    return found ? found : hd_export_find_in_base(x, name);
}

/* Checks, with `ema`, that the checkpoint has averages. */
static enum hd_status check_average(const struct hd_exporter *x)
{
    if (!x->options->ema)
        return HD_OK;
    for (size_t i = 0; i < hd_ckpt_tensor_count(x->ckpt); i++)
        if (hd_text_starts(hd_ckpt_get_tensor(x->ckpt, i)->name, HD_CKPT_EMA_PREFIX))
            return HD_OK;
    return hd_err(HD_INVALID,
                  "%s: has no moving average of its weights, because its job has no train.ema; "
                  "export it without --ema",
                  x->options->checkpoint_dir);
}

static enum hd_status read_piece(struct hd_exporter *x, const struct hd_ckpt_entry *want,
                                 float *ret_values)
{
    const struct hd_hf_base *base = x->options->base;

    if (hd_ckpt_find_tensor(x->ckpt, want->name))
        return hd_export_read(x, want, ret_values);
    return base->read(base->context,
                      (size_t)(hd_export_find_in_base(x, want->name) - base->entries), want,
                      ret_values);
}

/* ---- the list of tensors ---- */

static void begin_tensor(struct hd_exporter *x, const struct hd_hf_row *row, int64_t layer,
                         int64_t expert)
{
    struct hd_export_tensor *t = &x->tensors[x->count++];

    hd_hf_format_theirs(row, &x->job, &x->prefixes, layer, expert, t->name);
    t->transposed = row->transposed;
    t->one_row = row->one_row;
    t->fp32 = strcmp(row->ours, "blocks.#.moe.select_bias") == 0;
    t->by_heads = row->by_heads;
    t->middle = row->middle;
    t->groups = hd_hf_groups_of(&x->job, row);
    t->alternate = row->alternate;
    t->expert = hd_hf_per_expert(row) ? expert : -1;
}

/* Adds to the export the tensor of a row of the table of names for one layer, if the model has that
 * parameter. */
static void add_row(struct hd_exporter *x, const struct hd_hf_row *row, int64_t layer, size_t *used)
{
    const int experts = hd_hf_per_expert(row);
    char ours[HD_CKPT_NAME_MAX];
    const struct hd_ckpt_entry *entry;

    hd_hf_format_ours(row, &x->job, layer, ours);
    entry = hd_export_find(x, ours);
    if (!entry || !hd_hf_is_row_of(row, &x->job) || entry->dim_count < 1 + experts ||
        entry->dim_count > 3 || (entry->dim_count == 3 && entry->shape[0] != x->job.experts))
        return;
    for (int64_t e = 0; e < (experts ? entry->shape[0] : 1); e++) {
        if (row->place == 0)
            begin_tensor(x, row, layer, e);
        hd_export_add_part(&x->tensors[x->count - 1], entry);
    }
    if (strcmp(ours, HD_EXPORT_POSITIONS) == 0 && x->positions.columns == entry->shape[1]) {
        x->tensors[x->count - 1].rest = x->positions.rows;
        x->tensors[x->count - 1].shape[0] += x->positions.rows;
        x->tensors[x->count - 1].elements += x->positions.rows * x->positions.columns;
    }
    ++*used;
}

/* Adds all tensors of the model to the export, grouped by layer. */
static void add_rows(struct hd_exporter *x, const struct hd_hf_row *rows, size_t row_count,
                     size_t *used)
{
    size_t i = 0;

    while (i < row_count) {
        size_t end = i + 1;

        if (!strchr(rows[i].ours, '#')) {
            add_row(x, &rows[i++], 0, used);
            continue;
        }
        while (end < row_count && strchr(rows[end].ours, '#'))
            end++;
        for (int64_t layer = 0; layer < x->job.layers; layer++)
            for (size_t k = i; k < end; k++)
                add_row(x, &rows[k], layer, used);
        i = end;
    }
}

/* Adds the layers for further tokens, each a block and more, to the export. */
static void add_further(struct hd_exporter *x, const struct hd_hf_row *rows, size_t row_count,
                        size_t *used)
{
    size_t own_count, copy_count, copies = 0;
    const struct hd_family *family = hd_family_named(x->job.family);
    const struct hd_hf_row *own = hd_hf_further_rows(family, &own_count);
    const struct hd_hf_row *copy = hd_hf_further_copies(family, &copy_count);

    for (int64_t i = 0; i < hd_export_further(x); i++) {
        const int64_t layer = x->job.layers + i;

        for (size_t k = 0; k < own_count; k++)
            add_row(x, &own[k], layer, used);
        for (size_t k = 0; k < row_count; k++)
            if (strchr(rows[k].ours, '#'))
                add_row(x, &rows[k], layer, used);
        for (size_t k = 0; k < copy_count; k++)
            add_row(x, &copy[k], layer, &copies);
    }
}

/* Returns whether a weight must have a name in the export: not a factor of an adapter, nor one of a
 * layer for further tokens that files of the family cannot have. */
static bool needs_name(const struct hd_exporter *x, const char *name)
{
    return !hd_export_is_factor(name) && (hd_export_further(x) || !hd_hf_is_further(name));
}

static enum hd_status check_all_used(const struct hd_exporter *x, size_t used)
{
    const struct hd_hf_base *base = x->options->base;
    size_t weights = 0;

    for (size_t i = 0; i < hd_ckpt_tensor_count(x->ckpt); i++)
        weights += hd_ckpt_is_weight(hd_ckpt_get_tensor(x->ckpt, i)->name) &&
                   needs_name(x, hd_ckpt_get_tensor(x->ckpt, i)->name);
    for (size_t i = 0; base && i < base->count; i++)
        weights += needs_name(x, base->entries[i].name) &&
                   !hd_ckpt_find_tensor(x->ckpt, base->entries[i].name);
    if (x->job.mtp_layers && !hd_export_further(x) && x->options->notes)
        hd_text_add(x->options->notes,
                    "the export leaves out the layers of model.mtp: files of %s have no names for "
                    "%s",
                    x->job.family,
                    hd_hf_further_max(hd_family_named(x->job.family)) ? "so many" : "them");
    if (weights == used)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "%s: %zu of its %zu weights have no name in transformers' %s",
                  x->options->checkpoint_dir, weights - used, weights, x->job.family);
}

/* Assigns the export's tensors to files in order; begins a new file when shard_bytes_max is
 * reached. */
static void assign_files(struct hd_exporter *x)
{
    int64_t in_file = 0;

    x->file_count = 1;
    for (size_t i = 0; i < x->count; i++) {
        const int64_t bytes = tensor_bytes(x, &x->tensors[i]);

        if (in_file && !x->options->adapter && in_file + bytes > x->options->shard_bytes_max) {
            x->file_count++;
            in_file = 0;
        }
        in_file += bytes;
        x->tensors[i].file = x->file_count - 1;
        x->total_bytes += bytes;
    }
}

static enum hd_status plan(struct hd_exporter *x)
{
    const struct hd_hf_carry carry = hd_export_carry(x);
    const struct hd_hf_row *rows = NULL;
    const struct hd_family *type = NULL;
    const char *prefix = NULL;
    size_t row_count = 0, used = 0, per_layer = 0;
    int64_t largest = 1;
    enum hd_status st = hd_export_check_adapter(x);

    if (!st)
        st = check_average(x);
    if (!st && !x->options->adapter)
        st = hd_hf_type_of(&x->job, &type); /* may be another family than the job's */
    if (!st)
        st = hd_hf_rows(type ? type->name : x->job.family, &rows, &row_count, &prefix);
    if (!st && !x->options->adapter)
        st = hd_hf_carry_positions(&carry, &x->positions);
    if (!st)
        st = hd_export_open_wrapped(x, prefix, rows[0].theirs);
    if (st)
        return st;
    for (size_t i = 0; i < row_count; i++)
        per_layer += (size_t)hd_hf_tensors_of(&rows[i], &x->job);
    /* an adapter has up to three tensors per weight, a reward model one more vector */
    x->tensors = hd_arena_array(&x->arena,
                                3 * (per_layer + HD_EXPORT_FURTHER_TENSORS) *
                                        (size_t)(x->job.layers + hd_export_further(x)) +
                                    1 + hd_export_count_copied(x),
                                sizeof *x->tensors);
    if (!x->tensors)
        return hd_export_no_memory();
    if (x->options->adapter) {
        st = hd_export_list_adapter(x, rows, row_count);
    } else {
        add_rows(x, rows, row_count, &used);
        add_further(x, rows, row_count, &used);
        st = check_all_used(x, used);
    }
    if (st)
        return st;
    hd_export_add_copied(x);
    assign_files(x);
    for (size_t i = 0; i < x->count; i++)
        if (x->tensors[i].elements > largest)
            largest = x->tensors[i].elements;
    x->part = malloc((size_t)largest * sizeof *x->part);
    x->whole = malloc((size_t)largest * sizeof *x->whole);
    return x->part && x->whole ? HD_OK : hd_export_no_memory();
}

/* ---- one tensor ---- */

/* Copies `rows` rows of part p of a tensor from x->part into the matrix `to` [R, columns], or its
 * transpose: row r becomes row first + r, r part_count + p, or one between those of the other
 * parts (by_heads, groups). */
static void place_rows(const struct hd_exporter *x, const struct hd_export_tensor *t, int p,
                       int64_t first, int64_t rows, float *to)
{
    const int64_t R = t->shape[0], columns = t->shape[1];
    const int64_t groups = t->groups > 1 ? t->groups : 1, group = R / groups, own = rows / groups;

    for (int64_t r = 0; r < rows; r++) {
        const int64_t row = t->groups > 1  ? r / own * group + first / groups + r % own
                            : t->by_heads  ? hd_hf_row_by_heads(&x->job, p, r)
                            : t->alternate ? r * t->part_count + p
                                           : first + r;

        for (int64_t c = 0; c < columns; c++)
            to[t->transposed ? c * R + row : row * columns + c] = x->part[r * columns + c];
    }
}

/* Fills x->whole with a stack of experts, [E, rows, columns], or of transposed matrices: the parts of
 * each expert concatenated along the rows, or alternating. */
static enum hd_status assemble_stack(struct hd_exporter *x, const struct hd_export_tensor *t)
{
    const int64_t rows = t->shape[0], columns = t->shape[1];
    int64_t first = 0;

    for (int p = 0; p < t->part_count; p++) {
        for (int64_t e = 0; e < t->stacked; e++) {
            struct hd_ckpt_entry entry = *t->parts[p];
            enum hd_status st;

            hd_ckpt_entry_cut(&entry, 0, e, 1);
            st = read_piece(x, &entry, x->part);
            if (!st)
                st = hd_export_merge(x, &entry, x->part);
            if (st)
                return st;
            place_rows(x, t, p, first, t->parts[p]->shape[1], x->whole + e * rows * columns);
        }
        first += t->parts[p]->shape[1];
    }
    return HD_OK;
}

/* Fills x->whole with biases of experts [E, columns], whose parts alternate along the columns. */
static enum hd_status assemble_biases(struct hd_exporter *x, const struct hd_export_tensor *t)
{
    const int64_t columns = t->shape[1] / t->part_count;

    for (int p = 0; p < t->part_count; p++) {
        const enum hd_status st = read_piece(x, t->parts[p], x->part);

        if (st)
            return st;
        for (int64_t i = 0; i < t->shape[0] * columns; i++)
            x->whole[i * t->part_count + p] = x->part[i];
    }
    return HD_OK;
}

/* Fills x->whole with one tensor in its exported shape: its parts concatenated along the rows. */
static enum hd_status assemble(struct hd_exporter *x, const struct hd_export_tensor *t)
{
    const int64_t columns = t->shape[1];
    int64_t first = 0;

    if (t->stacked)
        return assemble_stack(x, t);
    if (t->alternate)
        return assemble_biases(x, t);
    for (int p = 0; p < t->part_count; p++) {
        struct hd_ckpt_entry entry = *t->parts[p];
        const int64_t part_rows = entry.shape[t->expert >= 0];
        enum hd_status st;
        float *to;

        if (entry.dtype != HD_F32)
            return hd_err(HD_UNSUPPORTED, "%s: is not stored as f32", entry.name);
        if (t->expert >= 0)
            hd_ckpt_entry_cut(&entry, 0, t->expert, 1);
        to = t->transposed || t->by_heads || t->groups > 1 ? x->part : x->whole + first * columns;
        st = t->doubled ? hd_export_read_doubled(x, &entry, to) : read_piece(x, &entry, to);
        if (!st)
            st = hd_export_merge(x, &entry, to);
        if (st)
            return st;
        if (t->transposed || t->by_heads || t->groups > 1)
            place_rows(x, t, p, first, part_rows, x->whole);
        first += part_rows;
    }
    if (t->rest)
        hd_hf_read_positions(&x->positions, x->whole + first * columns);
    return HD_OK;
}

/* Writes data to the file and adds it to the file's hashes, which are computed from memory. */
static enum hd_status put(int fd, struct hd_ckpt_blocks *blocks, const void *data,
                          size_t size_bytes)
{
    hd_ckpt_blocks_add(blocks, data, size_bytes);
    return hd_file_write_all(fd, data, size_bytes);
}

static enum hd_status write_tensor(struct hd_exporter *x, int fd, struct hd_ckpt_blocks *blocks,
                                   const struct hd_export_tensor *t)
{
    enum hd_status st = t->copied   ? HD_OK
                        : t->prefix ? hd_export_assemble_prefix(x, t)
                        : t->stack  ? hd_export_assemble_factors(x, t)
                                    : assemble(x, t);

    if (st)
        return st;
    if (t->copied) {
        st = put(fd, blocks, t->copied->data, (size_t)t->copied->size_bytes);
    } else if (dtype_of(x, t) == HD_BF16) {
        uint16_t *out = (uint16_t *)x->part;

        for (int64_t i = 0; i < t->elements; i++)
            out[i] = hd_f32_to_bf16(x->whole[i]);
        st = put(fd, blocks, out, (size_t)t->elements * sizeof *out);
    } else {
        st = put(fd, blocks, x->whole, (size_t)t->elements * sizeof *x->whole);
    }
    x->done_bytes += tensor_bytes(x, t);
    if (!st && x->options->progress)
        x->options->progress(x->options->context, x->done_bytes, x->total_bytes);
    return st;
}

/* ---- files ---- */

static void file_name(const struct hd_exporter *x, int file, char ret_name[64])
{
    if (x->options->adapter)
        (void)snprintf(ret_name, 64, "adapter_model.safetensors");
    else if (x->file_count == 1)
        (void)snprintf(ret_name, 64, "model.safetensors");
    else
        (void)snprintf(ret_name, 64, "model-%05d-of-%05d.safetensors", file + 1, x->file_count);
}

/* Sets ret_shape to the shape of an exported tensor, and returns its number of dimensions. */
static int shape_of(const struct hd_export_tensor *t, int64_t ret_shape[HD_WEIGHT_DIMS_MAX])
{
    int n = 0;

    if (t->stacked)
        ret_shape[n++] = t->stacked;
    if (t->one_row)
        ret_shape[n++] = 1;
    for (int d = 0; d < t->dim_count; d++) {
        ret_shape[n++] = t->shape[t->transposed ? t->dim_count - 1 - d : d];
        if (t->middle && d == 0)
            ret_shape[n++] = 1;
    }
    for (int d = 0; t->copied && d < t->copied->dim_count; d++)
        ret_shape[n++] = t->copied->shape[d];
    return n;
}

static enum hd_status write_head(const struct hd_exporter *x, int file, struct hd_text *ret_head)
{
    int64_t shape[HD_WEIGHT_DIMS_MAX];
    struct hd_safetensors_head head;
    char name[16];

    hd_safetensors_begin(&head, ret_head);
    for (size_t i = 0; i < x->count; i++) {
        const struct hd_export_tensor *t = &x->tensors[i];

        if (t->file == file)
            hd_safetensors_add(&head, t->name,
                               t->copied ? t->copied->form
                                         : hd_ckpt_dtype_name(dtype_of(x, t), name),
                               shape, shape_of(t, shape), tensor_bytes(x, t));
    }
    return hd_safetensors_end(&head);
}

/* Begins the block hashes of an exported file: one region for its header, then one for each
 * tensor. */
static enum hd_status begin_blocks(const struct hd_exporter *x, int file, size_t head_bytes,
                                   struct hd_ckpt_blocks *ret_blocks)
{
    struct hd_ckpt_region *regions = calloc(x->count + 1, sizeof *regions);
    enum hd_status st;
    size_t n = 0;

    if (!regions)
        return hd_export_no_memory();
    regions[n++] = (struct hd_ckpt_region){NULL, (int64_t)head_bytes, HD_CKPT_HEAD_BLOCK_BYTES};
    for (size_t i = 0; i < x->count; i++)
        if (x->tensors[i].file == file)
            regions[n++] = (struct hd_ckpt_region){
                x->tensors[i].name, tensor_bytes(x, &x->tensors[i]), HD_CKPT_BLOCK_BYTES};
    st = hd_ckpt_blocks_begin(ret_blocks, regions, n);
    free(regions);
    return st;
}

static enum hd_status write_weights(struct hd_exporter *x, int file)
{
    struct hd_ckpt_blocks blocks = {.regions = NULL};
    struct hd_text path = {0}, head = {0};
    char name[64];
    enum hd_status st = write_head(x, file, &head);
    int fd = -1;

    file_name(x, file, name);
    if (!st)
        st = hd_folder_path(&path, x->part_dir, name);
    if (!st) {
        fd = open(path.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0)
            st = hd_err(HD_IO, "cannot create %s: %s", path.data, strerror(errno));
    }
    if (!st)
        st = begin_blocks(x, file, head.len_bytes, &blocks);
    if (!st)
        st = put(fd, &blocks, head.data, head.len_bytes);
    for (size_t i = 0; !st && i < x->count; i++)
        if (x->tensors[i].file == file)
            st = write_tensor(x, fd, &blocks, &x->tensors[i]);
    if (!st && fsync(fd) < 0)
        st = hd_err(HD_IO, "cannot flush %s: %s", path.data, strerror(errno));
    if (!st)
        hd_hf_hashes_add(&x->hashes, name, &blocks);
    hd_ckpt_blocks_done(&blocks);
    if (fd >= 0)
        (void)close(fd);
    hd_text_free(&path);
    hd_text_free(&head);
    return st;
}

static enum hd_status write_unlisted(const struct hd_exporter *x, const char *name,
                                     const struct hd_text *text)
{
    struct hd_text path = {0};
    enum hd_status st =
        text->failed ? hd_export_no_memory() : hd_folder_path(&path, x->part_dir, name);

    if (!st)
        st = hd_file_write_atomic(path.data, text->data, text->len_bytes, 0644);
    hd_text_free(&path);
    return st;
}

static enum hd_status write_text(struct hd_exporter *x, const char *name,
                                 const struct hd_text *text)
{
    const struct hd_ckpt_region all = {"", (int64_t)text->len_bytes, HD_CKPT_BLOCK_BYTES};
    struct hd_ckpt_blocks blocks;
    enum hd_status st;

    if (text->failed)
        return hd_export_no_memory();
    st = hd_ckpt_blocks_begin(&blocks, &all, 1);
    if (!st)
        st = write_unlisted(x, name, text);
    if (!st) {
        hd_ckpt_blocks_add(&blocks, text->data, text->len_bytes);
        hd_hf_hashes_add(&x->hashes, name, &blocks);
    }
    hd_ckpt_blocks_done(&blocks);
    return st;
}

static enum hd_status write_index(struct hd_exporter *x)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    enum hd_status st;
    char name[64];

    hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, "metadata", '{');
    hd_json_add_int64(&w, "total_size", x->total_bytes);
    hd_json_end(&w, '}');
    hd_json_begin(&w, "weight_map", '{');
    for (size_t i = 0; i < x->count; i++) {
        file_name(x, x->tensors[i].file, name);
        hd_json_add_string(&w, x->tensors[i].name, name);
    }
    hd_json_end(&w, '}');
    hd_json_end(&w, '}');
    st = write_text(x, "model.safetensors.index.json", &text);
    hd_text_free(&text);
    return st;
}

static enum hd_status describe(struct hd_exporter *x, struct hd_text *ret_text)
{
    const struct hd_hf_carry carry = hd_export_carry(x);
    const struct hd_ckpt_entry *positions = hd_export_find(x, HD_EXPORT_POSITIONS);
    struct hd_hf_description now = {.job = &x->job,
                                    .bos = -1, /* hd_hf_put_ends adds the run's ids */
                                    .eos = -1,
                                    .pad = -1,
                                    .dtype = x->options->dtype,
                                    .text_only = x->options->text_only,
                                    .extra_layers = x->extra_layers,
                                    .further = hd_export_further(x),
                                    .positions =
                                        positions ? positions->shape[0] + x->positions.rows : 0};
    struct hd_text base = {0};
    enum hd_status st = hd_hf_read_carried(&carry, "config.json", &base);

    if (base.len_bytes && hd_job_is_reward(&x->job))
        now.pad = hd_hf_pad_token(base.data, base.len_bytes);
    if (!st)
        st = base.len_bytes ? hd_hf_merge(&now, base.data, base.len_bytes, ret_text)
                            : hd_hf_describe(&now, ret_text);
    hd_text_free(&base);
    return st;
}

/* Writes adapter_config.json, with the unchanged keys of the adapter from which the run started. */
static enum hd_status describe_adapter(struct hd_exporter *x, struct hd_text *ret_text)
{
    const struct hd_hf_carry carry = hd_export_carry(x);
    struct hd_text before = {0}, now = {0};
    enum hd_status st = hd_hf_read_carried(&carry, "adapter_config.json", &before);

    if (!st)
        st = hd_export_adapter_config(x, before.len_bytes ? &now : ret_text);
    if (!st && before.len_bytes)
        st = hd_export_merge_adapter(&before, &now, ret_text);
    hd_text_free(&before);
    hd_text_free(&now);
    return st;
}

static enum hd_status write_config(struct hd_exporter *x)
{
    struct hd_text text = {0};
    enum hd_status st = x->options->adapter ? describe_adapter(x, &text) : describe(x, &text);

    if (!st && !x->options->adapter)
        st = hd_hf_put_ends(x->options->ends, &text);
    if (!st)
        st = write_text(x, x->options->adapter ? "adapter_config.json" : "config.json", &text);
    hd_text_free(&text);
    return st;
}

static enum hd_status put_carried(void *context, const char *name, const struct hd_text *text)
{
    struct hd_exporter *x = context;
    struct hd_text path = {0}, ended = {0};
    enum hd_status st;

    if (strcmp(name, "config.json") == 0 || strcmp(name, "adapter_config.json") == 0)
        return HD_OK; /* write_config has already merged it */
    hd_text_add(&path, "%s/%s", x->part_dir, name);
    st = path.failed ? hd_export_no_memory() : hd_folder_make_of(path.data, 0755);
    if (strcmp(name, "generation_config.json") == 0) {
        hd_text_add_bytes(&ended, text->data, text->len_bytes);
        if (!st && ended.failed)
            st = hd_export_no_memory();
        if (!st)
            st = hd_hf_put_ends(x->options->ends, &ended);
        text = &ended;
    }
    if (!st)
        st = write_text(x, name, text);
    hd_text_free(&path);
    hd_text_free(&ended);
    return st;
}

static enum hd_status copy_carried(struct hd_exporter *x)
{
    struct hd_hf_carry carry = hd_export_carry(x);

    carry.put = put_carried;
    return hd_hf_carry_files(&carry);
}

static enum hd_status write_hashes(struct hd_exporter *x)
{
    enum hd_status st = hd_hf_hashes_end(&x->hashes);

    return st ? st : write_unlisted(x, HD_HF_HASHES_FILE, &x->hashes.text);
}

static enum hd_status write_files(struct hd_exporter *x)
{
    enum hd_status st;

    hd_hf_hashes_begin(&x->hashes);
    st = write_config(x);

    if (!st)
        st = copy_carried(x);
    for (int f = 0; !st && f < x->file_count; f++)
        st = write_weights(x, f);
    if (!st && x->file_count > 1)
        st = write_index(x);
    if (!st)
        st = write_hashes(x);
    return st ? st : hd_file_sync_dir(x->part_dir);
}

/* ---- the directory ---- */

/* Refuses an existing target, unless `force` is set and the target is a model directory that
 * contains only files of an export. */
static enum hd_status check_target(const struct hd_hf_export *o)
{
    struct stat info;

    if (lstat(o->out_dir, &info) < 0)
        return errno == ENOENT
                   ? HD_OK
                   : hd_err(HD_IO, "cannot examine %s: %s", o->out_dir, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return hd_err(HD_INVALID, "%s is no folder; choose a folder that is not there yet",
                      o->out_dir);
    if (!o->force)
        return hd_err(HD_EXISTS,
                      "%s exists already; choose another folder, or use --force to replace it",
                      o->out_dir);
    if (!hd_hf_has_config(o->out_dir) && !hd_hf_has_hashes(o->out_dir))
        return hd_err(
            HD_EXISTS,
            "%s is not a model directory (it has neither config.json nor " HD_HF_HASHES_FILE
            "); --force replaces only model directories",
            o->out_dir);
    return hd_hf_check_own(o->out_dir);
}

/* Renames the new directory in one step; an old one then has the temporary name. */
static enum hd_status publish(const struct hd_exporter *x)
{
    const char *out = x->options->out_dir;
    struct stat info;
    const bool replace = x->options->force && lstat(out, &info) == 0;
    enum hd_status st;

    /* some network file systems lack RENAME_NOREPLACE; rename replaces only an empty directory */
    if (renameat2(AT_FDCWD, x->part_dir, AT_FDCWD, out,
                  replace ? RENAME_EXCHANGE : RENAME_NOREPLACE) < 0 &&
        (replace || errno != EINVAL || rename(x->part_dir, out) < 0))
        return hd_err(errno == EEXIST || errno == ENOTEMPTY ? HD_EXISTS : HD_IO,
                      "cannot rename %s to %s: %s", x->part_dir, out, strerror(errno));
    st = hd_folder_sync_of(out);
    return !st && replace ? hd_file_remove_tree(x->part_dir) : st;
}

static enum hd_status write_dir(struct hd_exporter *x)
{
    struct hd_error story;
    enum hd_status st;

    x->part_dir = hd_arena_printf(&x->arena, "%s.part.%d", x->options->out_dir, (int)getpid());
    if (!x->part_dir)
        return hd_export_no_memory();
    /* a directory left by a killed process with the same pid */
    st = hd_file_remove_tree(x->part_dir);
    if (!st)
        st = hd_file_make_dirs(x->part_dir, 0755);
    if (!st)
        st = write_files(x);
    if (!st)
        st = publish(x);
    if (st) {
        hd_err_save(st, &story);
        (void)hd_file_remove_tree(x->part_dir); /* best effort: the caller needs the first error */
        st = hd_err_restore(&story);
    }
    return st;
}

static enum hd_status open_checkpoint(struct hd_exporter *x)
{
    const char *dir = x->options->checkpoint_dir;
    enum hd_status st = hd_ckpt_verify(dir); /* never export damaged weights */

    if (!st)
        st = hd_ckpt_open(dir, &x->ckpt);
    return st ? st : hd_stored_job_of(x->ckpt, &x->arena, &x->job);
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;

    return *a && *b && stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

/* Refuses an out_dir that is a folder from which the job started: the job's checkpoints may need
 * it. */
static enum hd_status check_sources(const struct hd_exporter *x)
{
    const struct {
        const char *key, *path;
    } sources[] = {{"train.init_from", x->job.init_from},
                   {"train.adapter.from", x->job.adapter_from},
                   {"--base", x->options->base_dir ? x->options->base_dir : ""}};

    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        if (is_same_file(x->options->out_dir, sources[i].path))
            return hd_err(HD_CONFLICT,
                          "%s is what the job began with (%s), and its checkpoints may need it; "
                          "choose another folder",
                          x->options->out_dir, sources[i].key);
    return HD_OK;
}

enum hd_status hd_hf_export_run(const struct hd_hf_export *options)
{
    struct hd_exporter x = {.options = options};
    enum hd_status st;

    if (options->dtype != HD_F32 && options->dtype != HD_BF16)
        return hd_err(HD_INVALID, "a model is exported as f32 or bf16");
    hd_arena_init(&x.arena, 0);
    st = check_target(options);
    if (!st)
        st = open_checkpoint(&x);
    if (!st)
        st = check_sources(&x);
    if (!st)
        st = plan(&x);
    if (!st)
        st = write_dir(&x);
    hd_ckpt_close(x.ckpt);
    hd_hf_close_positions(&x.positions);
    hd_weights_close(x.source);
    free(x.part);
    free(x.whole);
    hd_text_free(&x.hashes.text);
    hd_arena_done(&x.arena);
    return st;
}
