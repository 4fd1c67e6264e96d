/* checkpoint: what any layout saved, any other layout loads, bit for bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "checkpoint/checkpoint_internal.h"
#include "fixture.h"

/* ---- the example of the header ---- */

/* Goal: the seam as it is meant. Method: rows cut in two, each flat range cut in three; then read
 * whole, by columns, and by odd ranges of odd boxes. */
static void any_piece_is_assembled_from_rows_and_flat_ranges(void **state)
{
    const int64_t shape[] = {6, 10};
    struct fixture *f = *state;
    struct hd_ckpt_shard shards[6];
    struct hd_ckpt_entry piece;
    struct hd_ckpt *ckpt = NULL;
    struct hd_ckpt_manifest manifest;

    for (int rank = 0; rank < 6; rank++) {
        piece = hd_ckpt_entry_whole("w", HD_F32, 2, shape);
        hd_ckpt_entry_cut(&piece, 0, rank / 3 * 3, 3); /* 30 elements, in 3 flat ranges: */
        piece.flat_first = rank % 3 * 11;              /* 11, 11 and 8: never a whole row */
        piece.flat_count = rank % 3 == 2 ? 8 : 11;
        shards[rank] = write_shard(f->dir, rank, &piece, 1);
    }
    manifest = make_manifest(shards, 6);
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_OK);
    assert_int_equal(hd_ckpt_verify(f->dir), HD_OK);

    assert_int_equal(hd_ckpt_open(f->dir, &ckpt), HD_OK);
    piece = hd_ckpt_entry_whole("w", HD_F32, 2, shape);
    assert_reads(ckpt, &piece);
    for (int64_t rows = 1; rows <= 6; rows++)
        for (int64_t columns = 1; columns <= 10; columns++) {
            hd_ckpt_entry_cut(&piece, 0, 6 - rows, rows);
            hd_ckpt_entry_cut(&piece, 1, 10 - columns, columns);
            assert_reads(ckpt, &piece);
            for (int64_t first = 0; first < rows * columns; first += 3) {
                piece.flat_first = first;
                piece.flat_count = rows * columns - first;
                assert_reads(ckpt, &piece);
                piece.flat_count = 1;
                assert_reads(ckpt, &piece);
            }
        }
    hd_ckpt_close(ckpt);
}

/* ---- random layouts ---- */

enum { RANKS = 4, PIECES_MAX = 64, TENSORS = 5 };

struct layout {
    struct hd_ckpt_entry piece[PIECES_MAX];
    size_t count;
};

static int64_t below(uint64_t key, uint64_t *index, int64_t bound)
{
    return (int64_t)(hd_random_u64(key, (*index)++) % (uint64_t)bound);
}

/* Cuts one box in a random dimension at a random place, or a range at a random element. */
static void cut_somewhere(struct layout *l, uint64_t key, uint64_t *index)
{
    const size_t i = (size_t)below(key, index, (int64_t)l->count);
    struct hd_ckpt_entry *a = &l->piece[i], *b = &l->piece[l->count];
    const bool whole_box = a->flat_count == a->extent[0] * (a->dim_count > 1 ? a->extent[1] : 1) *
                                                (a->dim_count > 2 ? a->extent[2] : 1) *
                                                (a->dim_count > 3 ? a->extent[3] : 1);
    int d = a->dim_count ? (int)below(key, index, a->dim_count) : 0;

    if (a->dim_count == 0 || l->count == PIECES_MAX)
        return;
    *b = *a;
    if (whole_box && a->extent[d] > 1 && below(key, index, 2)) {
        const int64_t at = 1 + below(key, index, a->extent[d] - 1);

        hd_ckpt_entry_cut(b, d, a->start[d] + at, a->extent[d] - at);
        hd_ckpt_entry_cut(a, d, a->start[d], at);
        l->count++;
    } else if (a->flat_count > 1) {
        const int64_t at = 1 + below(key, index, a->flat_count - 1);

        b->flat_first += at;
        b->flat_count -= at;
        a->flat_count = at;
        l->count++;
    }
}

static void make_tensor(struct layout *l, int tensor, uint64_t key, uint64_t *index)
{
    static const char *const names[TENSORS] = {"blocks.0.q", "blocks.0.norm", "head", "opt/m", "x"};
    int64_t shape[HD_CKPT_DIMS_MAX];
    const int dim_count = (int)below(key, index, HD_CKPT_DIMS_MAX + 1);

    for (int d = 0; d < dim_count; d++)
        shape[d] = 1 + below(key, index, 7);
    l->piece[0] = hd_ckpt_entry_whole(
        names[tensor], (enum hd_dtype)below(key, index, HD_DTYPE_COUNT), dim_count, shape);
    l->count = 1;
}

static void save_random(const char *dir, const struct layout *layouts, uint64_t key,
                        uint64_t *index)
{
    struct hd_ckpt_entry of_rank[RANKS][TENSORS * PIECES_MAX];
    struct hd_ckpt_shard shards[RANKS];
    struct hd_ckpt_manifest manifest;
    size_t counts[RANKS] = {0}, shard_count = 0;

    for (int t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < layouts[t].count; i++) {
            const int64_t rank = below(key, index, RANKS);

            of_rank[rank][counts[rank]++] = layouts[t].piece[i];
        }
    for (int rank = RANKS - 1; rank >= 0; rank--) /* the order of ranks does not matter */
        if (counts[rank]) {
            hd_ckpt_sort_entries(of_rank[rank], counts[rank]);
            shards[shard_count++] = write_shard(dir, rank, of_rank[rank], counts[rank]);
        }
    manifest = make_manifest(shards, shard_count);
    if (hd_ckpt_commit(dir, &manifest, NULL))
        fail_msg("%s", hd_err_message());
}

static void random_layouts_load_what_random_layouts_saved(void **state)
{
    struct fixture *f = *state;

    for (uint64_t trial = 0; trial < 60; trial++) {
        struct layout saved[TENSORS], loaded[TENSORS];
        struct hd_ckpt *ckpt = NULL;
        uint64_t index = 0;
        char dir[160];

        for (int t = 0; t < TENSORS; t++) {
            make_tensor(&saved[t], t, trial, &index);
            loaded[t] = saved[t];
            for (int64_t n = below(trial, &index, 30); n > 0; n--)
                cut_somewhere(&saved[t], trial, &index);
            for (int64_t n = below(trial, &index, 30); n > 0; n--)
                cut_somewhere(&loaded[t], trial, &index);
        }
        assert_int_equal(hd_ckpt_format_dir(f->attempt_dir, (int64_t)trial, dir, sizeof dir),
                         HD_OK);
        save_random(dir, saved, trial, &index);
        assert_int_equal(hd_ckpt_verify(dir), HD_OK);
        assert_int_equal(hd_ckpt_open(dir, &ckpt), HD_OK);
        assert_int_equal(hd_ckpt_tensor_count(ckpt), TENSORS);
        for (int t = 0; t < TENSORS; t++)
            for (size_t i = 0; i < loaded[t].count; i++)
                assert_reads(ckpt, &loaded[t].piece[i]);
        hd_ckpt_close(ckpt);
    }
}

/* Goal: runs longer than the reader's window, and windows inside one entry, come together rightly.
 * Method: 3 MiB per tensor: whole, and by columns of all rows. */
static void pieces_larger_than_the_window_are_read_right(void **state)
{
    const int64_t shape[] = {768, 1024};
    struct fixture *f = *state;
    struct hd_ckpt_entry piece = hd_ckpt_entry_whole("big", HD_F32, 2, shape);
    struct hd_ckpt_shard shards[2];
    struct hd_ckpt_manifest manifest;
    struct hd_ckpt *ckpt = NULL;

    for (int rank = 0; rank < 2; rank++) {
        hd_ckpt_entry_cut(&piece, 1, rank * 512, 512);
        shards[rank] = write_shard(f->dir, rank, &piece, 1);
    }
    manifest = make_manifest(shards, 2);
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_OK);
    assert_int_equal(hd_ckpt_open(f->dir, &ckpt), HD_OK);
    assert_reads(ckpt, &piece); /* as saved: one run of 1.5 MiB */
    piece = hd_ckpt_entry_whole("big", HD_F32, 2, shape);
    assert_reads(ckpt, &piece); /* 768 runs from each of two shards */
    hd_ckpt_entry_cut(&piece, 1, 500, 24);
    assert_reads(ckpt, &piece); /* thin columns across the cut */
    piece.flat_first = 24 * 700;
    piece.flat_count = 24 * 68;
    assert_reads(ckpt, &piece);
    hd_ckpt_close(ckpt);
}

/* ---- the file format ---- */

/* The head in blocks of 64 bytes, then 6 and 4 elements of 4 bytes and 4 of 2: a block each. */
static uint64_t hash_by_blocks(const struct hd_text *file, size_t head_bytes)
{
    const size_t data[] = {24, 16, 8};
    uint64_t hashes[64];
    size_t n = 0, at = 0;

    assert_true(head_bytes < 60 * 64);
    for (; at < head_bytes; at += 64)
        hashes[n++] = hd_hash_bytes(file->data + at, head_bytes - at < 64 ? head_bytes - at : 64);
    at = head_bytes;
    for (int i = 0; i < 3; at += data[i++])
        hashes[n++] = hd_hash_bytes(file->data + at, data[i]);
    assert_int_equal(at, file->len_bytes);
    return hd_hash_bytes(hashes, n * sizeof *hashes);
}

/* Goal: a shard is a safetensors file to others. Method: the format's rules, checked by hand. */
static void shards_obey_the_rules_of_safetensors(void **state)
{
    const struct hd_json_limits limits = {.values_max = 1000, .depth_max = 4};
    const int64_t shape[] = {2, 3};
    struct fixture *f = *state;
    const struct hd_json *root = NULL, *tensor;
    struct hd_ckpt_entry entries[3];
    struct hd_ckpt_shard shard;
    struct hd_text file = {0};
    struct hd_arena arena;
    int64_t end = 0, from, to;
    uint64_t length = 0;
    char path[224];

    entries[0] = hd_ckpt_entry_whole("plain", HD_F32, 2, shape);
    entries[1] = hd_ckpt_entry_whole("cut", HD_F32, 2, shape);
    hd_ckpt_entry_cut(&entries[1], 1, 1, 2);
    entries[2] = hd_ckpt_entry_whole("flat", HD_BF16, 2, shape);
    entries[2].flat_first = 1;
    entries[2].flat_count = 4;
    shard = write_shard(f->dir, 3, entries, 3);
    assert_string_equal(shard.file, "rank-00003.safetensors");

    (void)snprintf(path, sizeof path, "%s/%s", f->dir, shard.file);
    read_whole_file(path, &file);
    assert_int_equal(file.len_bytes, shard.size_bytes);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | (unsigned char)file.data[i];
    assert_true(hash_by_blocks(&file, 8 + (size_t)length) == shard.hash);
    assert_int_equal(length % 8, 0);
    assert_int_equal(file.data[8], '{');

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_json_parse(&arena, file.data + 8, (size_t)length, &limits, &root), HD_OK);
    for (tensor = root->first; tensor; tensor = tensor->next) {
        const struct hd_json *offsets = NULL;

        if (strcmp(tensor->key, "__metadata__") == 0) { /* texts only */
            for (const struct hd_json *m = tensor->first; m; m = m->next)
                assert_int_equal(m->kind, HD_JSON_STRING);
            continue;
        }
        assert_int_equal(tensor->count, 3);
        assert_int_equal(hd_json_need(tensor, "data_offsets", HD_JSON_ARRAY, &offsets), HD_OK);
        assert_int_equal(hd_json_to_int64(offsets->first, 0, INT64_MAX, &from), HD_OK);
        assert_int_equal(hd_json_to_int64(offsets->first->next, 0, INT64_MAX, &to), HD_OK);
        assert_int_equal(from, end); /* no gap, no overlap */
        end = to;
    }
    assert_int_equal(8 + (int64_t)length + end, shard.size_bytes);
    /* 2 x 3 of 4 bytes, 2 x 2 of 4 bytes, 4 of 2 bytes */
    assert_int_equal(end, 24 + 16 + 8);
    assert_non_null(strstr(file.data + 8, "\"plain\":{\"dtype\":\"F32\",\"shape\":[2,3],"));
    assert_non_null(
        strstr(file.data + 8, "\"cut@0:2/2,1:3/3\":{\"dtype\":\"F32\",\"shape\":[2,2],"));
    assert_non_null(
        strstr(file.data + 8, "\"flat@0:2/2,0:3/3+1:5\":{\"dtype\":\"BF16\",\"shape\":[4],"));
    hd_arena_done(&arena);
    hd_text_free(&file);
}

static enum hd_status status_of_table(const char *json, int64_t data_bytes)
{
    struct hd_ckpt_stored *stored = NULL;
    struct hd_arena arena;
    enum hd_status st;
    size_t count = 0;

    hd_arena_init(&arena, 0);
    st = hd_ckpt_parse_table(&arena, json, strlen(json), 256, data_bytes, &stored, &count);
    hd_arena_done(&arena);
    return st;
}

CASE_WITH(NULL, NULL)
static void tables_with_gaps_or_overlaps_are_refused(void **state)
{
#define A           "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define B(from, to) "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" from "," to "]}"
    assert_int_equal(status_of_table("{" A "," B("8", "12") "}", 12), HD_OK);
    assert_int_equal(status_of_table("{" A "," B("8", "12") "}", 13), HD_INVALID);
    assert_int_equal(status_of_table("{" A "," B("8", "12") "}", 11), HD_INVALID);
    assert_int_equal(status_of_table("{" A "," B("12", "16") "}", 12), HD_INVALID); /* a gap */
    assert_int_equal(status_of_table("{" A "," B("12", "16") "}", 16), HD_INVALID);
    assert_int_equal(status_of_table("{" A "," B("4", "8") "}", 12), HD_INVALID);  /* an overlap */
    assert_int_equal(status_of_table("{" A "," B("8", "16") "}", 16), HD_INVALID); /* too long */
    assert_int_equal(status_of_table("{" B("8", "12") "," A "}", 12), HD_OK);      /* any order */
    assert_int_equal(status_of_table("{}", 0), HD_INVALID);
#undef A
#undef B
}

static void manifest_tells_what_was_committed(void **state)
{
    struct fixture *f = *state;
    const struct hd_ckpt_manifest *m;
    struct hd_text file = {0};
    struct hd_ckpt *ckpt = NULL;
    int64_t value = 0;
    char path[224];

    write_small_checkpoint(f->dir);
    assert_int_equal(hd_ckpt_open(f->dir, &ckpt), HD_OK);
    m = hd_ckpt_get_manifest(ckpt);
    assert_string_equal(m->job, "42");
    assert_int_equal(m->attempt, 1);
    assert_int_equal(m->step, 100);
    assert_int_equal(m->tokens_seen, 6400);
    assert_string_equal(m->config, "name \"tiny\"\nend\n");
    assert_string_equal(hd_ckpt_layout(ckpt, "zero"), "1");
    assert_null(hd_ckpt_layout(ckpt, "tp"));
    assert_string_equal(hd_ckpt_determinism(ckpt, "backend"), "cpu");
    assert_int_equal(hd_ckpt_get_counter(ckpt, "adam_step", &value), HD_OK);
    assert_int_equal(value, 99);
    assert_int_equal(hd_ckpt_get_counter(ckpt, "loss_scale", &value), HD_NOT_FOUND);
    assert_int_equal(hd_ckpt_tensor_count(ckpt), 3);
    assert_string_equal(hd_ckpt_get_tensor(ckpt, 0)->name, "b");
    assert_string_equal(hd_ckpt_get_tensor(ckpt, 1)->name, "n");
    assert_int_equal(hd_ckpt_find_tensor(ckpt, "w")->shape[1], 6);
    assert_null(hd_ckpt_find_tensor(ckpt, "v"));

    (void)snprintf(path, sizeof path, "%s/manifest.json", f->dir);
    read_whole_file(path, &file);
    assert_true(hd_ckpt_hash(ckpt) == hd_hash_bytes(file.data, file.len_bytes));
    hd_text_free(&file);
    hd_ckpt_close(ckpt);
    assert_small_checkpoint(f->dir);
}

/* The losses of checkpoint.best: to the bit, also by the reader that does not parse the manifest;
 * without them there are none, and not zeros. */
static void a_manifest_holds_validation_losses_if_it_has_them(void **state)
{
    struct fixture *f = *state;
    const double losses[] = {1.0 / 3, 0.1};

    for (int known = 0; known < 3; known++) {
        const int64_t shape[] = {5};
        const struct hd_ckpt_entry entry = hd_ckpt_entry_whole("b", HD_F32, 1, shape);
        const struct hd_ckpt_shard shard = write_shard(f->dir, 0, &entry, 1);
        struct hd_ckpt_manifest manifest = make_manifest(&shard, 1);
        struct hd_ckpt_summary summary;
        const struct hd_ckpt_manifest *m;
        struct hd_ckpt *ckpt = NULL;

        manifest.config = "name \"val_loss\":9\nend\n"; /* no line of the manifest's own */
        manifest.has_val_loss = known > 1;
        manifest.val_loss = losses[0];
        manifest.has_lowest_val_loss = known > 0;
        manifest.lowest_val_loss = losses[1];
        assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_OK);
        assert_int_equal(hd_ckpt_open(f->dir, &ckpt), HD_OK);
        m = hd_ckpt_get_manifest(ckpt);
        assert_int_equal(m->has_val_loss, known > 1);
        assert_int_equal(m->has_lowest_val_loss, known > 0);
        assert_true(known < 2 || m->val_loss == losses[0]);
        assert_true(known < 1 || m->lowest_val_loss == losses[1]);
        hd_ckpt_close(ckpt);
        assert_int_equal(hd_ckpt_summarize(f->dir, &summary), HD_OK);
        assert_true(known < 2 ? isnan(summary.val_loss) : summary.val_loss == losses[0]);
        assert_int_equal(hd_file_remove_tree(f->dir), HD_OK);
    }
}

static void equal_states_give_equal_bytes(void **state)
{
    struct fixture *f = *state;
    const int64_t shape[] = {8};
    uint64_t hashes[2] = {0, 1};

    for (int order = 0; order < 2; order++) {
        struct hd_ckpt_shard shards[2];
        struct hd_ckpt_manifest manifest;
        char dir[160];

        assert_int_equal(hd_ckpt_format_dir(f->attempt_dir, order, dir, sizeof dir), HD_OK);
        for (int rank = 0; rank < 2; rank++) {
            struct hd_ckpt_entry piece = hd_ckpt_entry_whole("v", HD_F32, 1, shape);

            hd_ckpt_entry_cut(&piece, 0, 4 * rank, 4);
            shards[rank ^ order] = write_shard(dir, rank, &piece, 1);
        }
        manifest = make_manifest(shards, 2);
        assert_int_equal(hd_ckpt_commit(dir, &manifest, &hashes[order]), HD_OK);
    }
    assert_true(hashes[0] == hashes[1]);
}

/* ---- what is refused ---- */

static void a_missing_range_is_named_and_not_committed(void **state)
{
    const int64_t shape[] = {4, 6};
    struct fixture *f = *state;
    struct hd_ckpt_entry piece = hd_ckpt_entry_whole("w", HD_F32, 2, shape);
    struct hd_ckpt_shard shards[2];
    struct hd_ckpt_manifest manifest;
    struct hd_ckpt *ckpt = NULL;

    piece.flat_count = 8; /* up to [1,1] */
    shards[0] = write_shard(f->dir, 0, &piece, 1);
    piece.flat_first = 11; /* from [1,5] on: [1,2] .. [1,4] are nowhere */
    piece.flat_count = 13;
    shards[1] = write_shard(f->dir, 1, &piece, 1);
    manifest = make_manifest(shards, 2);
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "w: the elements [1,2] to [1,4] (3 of them)"));
    assert_int_equal(hd_ckpt_open(f->dir, &ckpt), HD_NOT_FOUND);

    manifest.shard_count = 1;
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "[1,2] to [3,5] (16 of them)"));
}

static void shards_that_disagree_on_a_tensor_are_not_committed(void **state)
{
    const int64_t shape[] = {4}, other[] = {5};
    struct fixture *f = *state;
    struct hd_ckpt_entry piece = hd_ckpt_entry_whole("w", HD_F32, 1, shape);
    struct hd_ckpt_shard shards[2];
    struct hd_ckpt_manifest manifest;

    shards[0] = write_shard(f->dir, 0, &piece, 1);
    piece = hd_ckpt_entry_whole("w", HD_F32, 1, other);
    shards[1] = write_shard(f->dir, 1, &piece, 1);
    manifest = make_manifest(shards, 2);
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "w: its entries differ"));
    shards[1] = shards[0];
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "listed twice"));
    (void)snprintf(shards[1].file, sizeof shards[1].file, "../evil");
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_INVALID);
    manifest.shard_count = 1;
    shards[0].size_bytes++;
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "rank-00000.safetensors"));
}

static void overlapping_entries_must_be_equal(void **state)
{
    const int64_t shape[] = {4};
    struct fixture *f = *state;

    for (int equal = 0; equal < 2; equal++) {
        struct hd_ckpt_entry piece = hd_ckpt_entry_whole("v", HD_U8, 1, shape);
        const unsigned char one[] = {1, 2, 3}, same[] = {3, 4}, not_same[] = {9, 4};
        const void *data[] = {one};
        unsigned char back[4];
        struct hd_ckpt_shard shards[2];
        struct hd_ckpt_manifest manifest;
        struct hd_ckpt *ckpt = NULL;
        char dir[160];

        assert_int_equal(hd_ckpt_format_dir(f->attempt_dir, equal, dir, sizeof dir), HD_OK);
        hd_ckpt_entry_cut(&piece, 0, 0, 3);
        assert_int_equal(hd_ckpt_write_shard(dir, 0, &piece, 1, bytes_in_array, data, &shards[0]),
                         HD_OK);
        hd_ckpt_entry_cut(&piece, 0, 2, 2);
        data[0] = equal ? same : not_same;
        assert_int_equal(hd_ckpt_write_shard(dir, 1, &piece, 1, bytes_in_array, data, &shards[1]),
                         HD_OK);
        manifest = make_manifest(shards, 2);
        assert_int_equal(hd_ckpt_commit(dir, &manifest, NULL), HD_OK);
        assert_int_equal(hd_ckpt_open(dir, &ckpt), HD_OK);
        piece = hd_ckpt_entry_whole("v", HD_U8, 1, shape);
        assert_int_equal(hd_ckpt_read(ckpt, &piece, back), equal ? HD_OK : HD_CORRUPT);
        if (equal)
            assert_memory_equal(back, "\1\2\3\4", 4);
        else
            assert_non_null(strstr(hd_err_message(), "v: two entries"));
        hd_ckpt_close(ckpt);
    }
}

static void a_wish_that_does_not_fit_is_refused_in_words(void **state)
{
    const int64_t shape[] = {4, 6}, other[] = {6, 4};
    struct fixture *f = *state;
    struct hd_ckpt_entry want;
    struct hd_ckpt *ckpt = NULL;
    float data[24];

    write_small_checkpoint(f->dir);
    assert_int_equal(hd_ckpt_open(f->dir, &ckpt), HD_OK);
    want = hd_ckpt_entry_whole("v", HD_F32, 2, shape);
    assert_int_equal(hd_ckpt_read(ckpt, &want, data), HD_NOT_FOUND);
    assert_non_null(strstr(hd_err_message(), "no tensor v"));
    want = hd_ckpt_entry_whole("w", HD_F32, 2, other);
    assert_int_equal(hd_ckpt_read(ckpt, &want, data), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "has f32[4,6], expected f32[6,4]"));
    want = hd_ckpt_entry_whole("w", HD_BF16, 2, shape);
    assert_int_equal(hd_ckpt_read(ckpt, &want, data), HD_INVALID);
    want = hd_ckpt_entry_whole("w", HD_F32, 2, shape);
    want.flat_first = 1; /* 24 elements from 1 on are one too many */
    assert_int_equal(hd_ckpt_read(ckpt, &want, data), HD_INVALID);
    hd_ckpt_close(ckpt);
}

static void the_writer_refuses_what_no_reader_could_read(void **state)
{
    static const char *const bad_names[] = {"",    "a b",      "a\"b",        "a\\b",
                                            "a@b", "\xC3\xA9", "__metadata__"};
    const int64_t shape[] = {4}, empty[] = {0}, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    struct fixture *f = *state;
    struct hd_ckpt_writer *writer = NULL;
    struct hd_ckpt_entry pair[2];

    for (size_t i = 0; i < sizeof bad_names / sizeof bad_names[0]; i++) {
        pair[0] = hd_ckpt_entry_whole(bad_names[i], HD_F32, 1, shape);
        assert_int_equal(hd_ckpt_writer_open(f->dir, 0, pair, 1, &writer), HD_INVALID);
    }
    pair[0] = hd_ckpt_entry_whole("a", HD_F32, 1, empty);
    assert_int_equal(hd_ckpt_writer_open(f->dir, 0, pair, 1, &writer), HD_INVALID);
    pair[0] = hd_ckpt_entry_whole("a", HD_F32, 1, shape);
    pair[0].dim_count = 2;
    memcpy(pair[0].shape, huge, sizeof huge);
    memcpy(pair[0].extent, huge, sizeof huge);
    assert_int_equal(hd_ckpt_writer_open(f->dir, 0, pair, 1, &writer), HD_INVALID);
    pair[0] = pair[1] = hd_ckpt_entry_whole("a", HD_F32, 1, shape);
    assert_int_equal(hd_ckpt_writer_open(f->dir, 0, pair, 2, &writer), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "is listed twice"));
    pair[0] = hd_ckpt_entry_whole("a", HD_BF16, 0, NULL); /* 2 bytes before 4-byte numbers */
    assert_int_equal(hd_ckpt_writer_open(f->dir, 0, pair, 2, &writer), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "hd_ckpt_sort_entries"));
    assert_int_equal(hd_ckpt_writer_open(f->dir, -1, pair, 1, &writer), HD_LIMIT);
    assert_int_equal(hd_ckpt_writer_open(f->dir, 0, pair, 0, &writer), HD_LIMIT);
    assert_false(hd_file_exists(f->dir));                 /* nothing was begun */
    pair[0] = hd_ckpt_entry_whole("a", HD_F32, 1, shape); /* no folder can be made in /dev/null */
    assert_int_equal(
        hd_ckpt_writer_open("/dev/null/attempt-1/checkpoints/step-00000001", 0, pair, 1, &writer),
        HD_IO);
    assert_non_null(strstr(hd_err_message(), "folder /dev/null/attempt-1 is gone"));
}

static void a_shard_has_exactly_the_declared_bytes(void **state)
{
    const int64_t shape[] = {4};
    struct fixture *f = *state;
    const struct hd_ckpt_entry entry = hd_ckpt_entry_whole("a", HD_F32, 1, shape);
    struct hd_ckpt_writer *writer = NULL;
    struct hd_ckpt_shard shard;
    char path[224];

    (void)snprintf(path, sizeof path, "%s/rank-00000.safetensors", f->dir);
    assert_int_equal(hd_ckpt_writer_open(f->dir, 0, &entry, 1, &writer), HD_OK);
    assert_int_equal(hd_ckpt_writer_add(writer, "123456789012345", 15), HD_OK);
    assert_int_equal(hd_ckpt_writer_finish(writer, &shard), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "1 bytes of the declared entries were never added"));
    assert_false(hd_file_exists(path));

    assert_int_equal(hd_ckpt_writer_open(f->dir, 0, &entry, 1, &writer), HD_OK);
    assert_int_equal(hd_ckpt_writer_add(writer, "12345678901234567", 17), HD_INVALID);
    assert_int_equal(hd_ckpt_writer_add(writer, "1234567890123456", 16), HD_INVALID); /* sticks */
    assert_int_equal(hd_ckpt_writer_finish(writer, &shard), HD_INVALID);
    assert_false(hd_file_exists(path));

    assert_int_equal(hd_ckpt_writer_open(f->dir, 0, &entry, 1, &writer), HD_OK);
    assert_int_equal(hd_ckpt_writer_add(writer, "1234567", 7), HD_OK); /* pieces of any size */
    assert_int_equal(hd_ckpt_writer_add(writer, "890123456", 9), HD_OK);
    assert_int_equal(hd_ckpt_writer_finish(writer, &shard), HD_OK);
    assert_true(hd_file_exists(path));
}

RUN_EACH_CASE_WITH(set_up, tear_down)
