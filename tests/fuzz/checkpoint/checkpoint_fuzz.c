/* Hostile bytes for everything that reads a checkpoint: JSON, the table of a shard, the manifest,
 * labels, the hashes of an export. Nothing may crash, and what is accepted must survive being
 * written and read again.
 *
 * LLVMFuzzerTestOneInput is the target for a coverage-guided fuzzer; the tests below drive it with
 * random changes to sound texts, from fixed seeds. The manifest's own hash is repaired before each
 * try, so that the fields behind it are reached. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "checkpoint/checkpoint_internal.h"
#include "hf/hf_internal.h"
#include "tests/program/test.h"

enum { KIND_JSON, KIND_TABLE, KIND_MANIFEST, KIND_LABEL, KIND_HASHES, KIND_COUNT };
enum { INPUT_MAX = 4096, ARENA_MAX = 1 << 20, ELEMENTS_TRIED = 4096 };

static int accepted[KIND_COUNT]; /* proof that the changes do not only hit the first check */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* ---- what is accepted must hold together ---- */

static size_t count_values(const struct hd_json *value)
{
    size_t n = 1, children = 0;

    for (const struct hd_json *v = value->first; v; v = v->next, children++)
        n += count_values(v);
    assert_int_equal(children, value->count);
    return n;
}

static void try_json(const char *text, size_t size)
{
    const struct hd_json_limits limits = {.values_max = 500, .depth_max = 16};
    const struct hd_json *root = NULL;
    struct hd_arena arena;

    hd_arena_init(&arena, ARENA_MAX);
    if (hd_json_parse(&arena, text, size, &limits, &root) == HD_OK) {
        assert_true(count_values(root) <= 500);
        accepted[KIND_JSON]++;
    }
    hd_arena_done(&arena);
}

static void assert_same(const struct hd_ckpt_entry *a, const struct hd_ckpt_entry *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->dim_count, b->dim_count);
    assert_memory_equal(a->shape, b->shape, sizeof a->shape);
    assert_memory_equal(a->start, b->start, sizeof a->start);
    assert_memory_equal(a->extent, b->extent, sizeof a->extent);
    assert_int_equal(a->flat_first, b->flat_first);
    assert_int_equal(a->flat_count, b->flat_count);
}

static enum hd_status add_run(void *context, int64_t entry_index, int64_t want_index, int64_t n)
{
    assert_true(entry_index >= 0 && want_index >= 0 && n > 0);
    return hd_ckpt_cover_add(context, want_index, n);
}

/* An entry overlaps itself in all its elements, once. */
static void try_overlap(const struct hd_ckpt_entry *entry)
{
    struct hd_ckpt_cover cover = {0};
    bool overlaps = true;

    if (entry->flat_count > ELEMENTS_TRIED)
        return;
    assert_int_equal(hd_ckpt_overlap(entry, entry, add_run, &cover), HD_OK);
    assert_int_equal(hd_ckpt_cover_check(&cover, entry, &overlaps), HD_OK);
    assert_false(overlaps);
    hd_ckpt_cover_free(&cover);
}

static void try_table(const char *json, size_t size, int64_t data_bytes)
{
    struct hd_ckpt_entry *entries;
    struct hd_ckpt_stored *stored = NULL, *again = NULL;
    struct hd_text head = {0};
    struct hd_arena arena;
    size_t n = 0, m = 0;

    hd_arena_init(&arena, ARENA_MAX);
    if (hd_ckpt_parse_table(&arena, json, size, 8 + (int64_t)size, data_bytes, &stored, &n))
        goto out;
    accepted[KIND_TABLE]++;
    entries = calloc(n, sizeof *entries);
    assert_non_null(entries);
    for (size_t i = 0; i < n; i++) {
        entries[i] = stored[i].entry;
        try_overlap(&entries[i]);
    }
    assert_int_equal(hd_ckpt_write_table(entries, n, &head), HD_OK);
    assert_int_equal(hd_ckpt_parse_table(&arena, head.data + 8, head.len_bytes - 8,
                                         (int64_t)head.len_bytes, data_bytes, &again, &m),
                     HD_OK);
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++)
        assert_same(&entries[i], &again[i].entry);
    free(entries);
    hd_text_free(&head);
out:
    hd_arena_done(&arena);
}

/* The last line gets the hash of what is before it, so that more than it is tried. */
static void repair_seal(char *text, size_t size)
{
    static const char line[] = "\n\"self_xxh64\":\"0123456789abcdef\"}\n";
    static const size_t line_bytes = sizeof line - 1, hash_at = sizeof "\n\"self_xxh64\":\"" - 1;
    char hash[HD_HASH_TEXT_MAX];

    if (size < line_bytes)
        return;
    hd_hash_format(hd_hash_bytes(text, size - line_bytes), hash);
    memcpy(text + size - line_bytes + hash_at, hash, 16);
}

static void try_manifest(char *text, size_t size)
{
    struct hd_ckpt_stored *stored = NULL, *again = NULL;
    struct hd_ckpt_tensor *tensors = NULL;
    struct hd_ckpt_hash_list *lists = NULL, *lists_again = NULL;
    struct hd_ckpt_manifest manifest, back;
    struct hd_arena arena, scratch;
    struct hd_text out = {0};
    size_t n = 0, m = 0, tensor_count = 0;

    repair_seal(text, size);
    hd_arena_init(&arena, ARENA_MAX);
    hd_arena_init(&scratch, ARENA_MAX);
    if (hd_ckpt_parse_manifest(&arena, &scratch, text, size, &manifest, &lists, &stored, &n))
        goto out;
    accepted[KIND_MANIFEST]++;
    assert_int_equal(hd_ckpt_write_manifest(&manifest, lists, stored, n, &out), HD_OK);
    assert_int_equal(hd_ckpt_parse_manifest(&arena, &scratch, out.data, out.len_bytes, &back,
                                            &lists_again, &again, &m),
                     HD_OK);
    assert_int_equal(n, m);
    assert_int_equal(lists == NULL, lists_again == NULL);
    for (size_t s = 0; lists && s < manifest.shard_count; s++) {
        assert_int_equal(lists[s].count, lists_again[s].count);
        assert_memory_equal(lists[s].hashes, lists_again[s].hashes,
                            lists[s].count * sizeof *lists[s].hashes);
    }
    for (size_t i = 0; i < n; i++) {
        assert_same(&stored[i].entry, &again[i].entry);
        assert_int_equal(stored[i].offset_bytes, again[i].offset_bytes);
        assert_int_equal(stored[i].shard, again[i].shard);
    }
    if (hd_ckpt_index(&arena, stored, n, &tensors, &tensor_count) == HD_OK)
        assert_in_range(tensor_count, 1, n);
out:
    hd_text_free(&out);
    hd_arena_done(&scratch);
    hd_arena_done(&arena);
}

/* Accepted hashes name no other folder, and has a hash for each block of each region. */
static void try_hashes(char *text, size_t size)
{
    struct hd_hf_listed *files = NULL;
    struct hd_arena arena;
    size_t count = 0;

    repair_seal(text, size);
    hd_arena_init(&arena, ARENA_MAX);
    if (hd_hf_parse_hashes(&arena, text, size, &files, &count) == HD_OK) {
        accepted[KIND_HASHES]++;
        for (size_t i = 0; i < count; i++) {
            int64_t bytes = 0;

            assert_null(strchr(files[i].file, '/'));
            assert_int_equal(hd_ckpt_count_blocks(files[i].regions, files[i].count),
                             files[i].hash_count);
            for (size_t r = 0; r < files[i].count; r++) {
                assert_in_range(files[i].regions[r].block_bytes, 1, HD_CKPT_BLOCK_BYTES);
                bytes += files[i].regions[r].size_bytes;
            }
            assert_int_equal(bytes, files[i].size_bytes);
        }
    }
    hd_arena_done(&arena);
}

static void try_label(const char *label)
{
    const int64_t shape[] = {4, 6};
    struct hd_ckpt_entry entry = hd_ckpt_entry_whole("x", HD_F32, 2, shape), again = entry;
    struct hd_text text = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, ARENA_MAX);
    if (hd_ckpt_parse_label(&arena, label, &entry) == HD_OK) {
        accepted[KIND_LABEL]++;
        assert_int_equal(hd_ckpt_check_entry(&entry), HD_OK);
        try_overlap(&entry);
        hd_ckpt_add_label(&text, &entry);
        again = hd_ckpt_entry_whole("x", HD_F32, entry.dim_count, entry.shape);
        assert_int_equal(hd_ckpt_parse_label(&arena, text.data, &again), HD_OK);
        assert_same(&entry, &again);
        hd_text_free(&text);
    }
    hd_arena_done(&arena);
}

/* The first byte chooses the reader, the second and third are the size of a shard's data. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    char *text; /* exactly as long as the input, so that a sanitizer sees any step beyond */

    if (count < 3 || count > INPUT_MAX)
        return 0;
    text = malloc(count - 3 + 1);
    assert_non_null(text);
    memcpy(text, bytes + 3, count - 3);
    if (bytes[0] % KIND_COUNT == KIND_LABEL) {
        text[count - 3] = '\0';
        try_label(text);
    } else {
        text = realloc(text, count - 3 + !(count - 3));
        assert_non_null(text);
        if (bytes[0] % KIND_COUNT == KIND_JSON)
            try_json(text, count - 3);
        else if (bytes[0] % KIND_COUNT == KIND_TABLE)
            try_table(text, count - 3, bytes[1] | bytes[2] << 8);
        else if (bytes[0] % KIND_COUNT == KIND_HASHES)
            try_hashes(text, count - 3);
        else
            try_manifest(text, count - 3);
    }
    free(text);
    return 0;
}

/* ---- driving it ---- */

/* One to four small changes: a bit, a byte, a cut, a copy of a stretch, a telling number. */
static size_t change(uint8_t *text, size_t size, uint64_t key)
{
    static const char *const tellings[] = {
        "0", "-1", "9223372036854775807", "4503599627370497", "[]", "{}", "\"\"", "null"};
    uint64_t i = 0;
    const uint64_t changes = 1 + hd_random_u64(key, i++) % 4;

    for (uint64_t c = 0; c < changes && size > 8; c++) {
        const uint64_t what = hd_random_u64(key, i++) % 5;
        const size_t at = hd_random_u64(key, i++) % size;
        const size_t n = 1 + hd_random_u64(key, i++) % 12;
        const char *telling = tellings[hd_random_u64(key, i++) % 8];

        if (what == 0) {
            text[at] ^= (uint8_t)(1 << n % 8);
        } else if (what == 1) {
            text[at] = (uint8_t)hd_random_u64(key, i++);
        } else if (what == 2 && at + n < size) {
            memmove(text + at, text + at + n, size - at - n);
            size -= n;
        } else if (what == 3 && size + n < INPUT_MAX && at + n < size) {
            memmove(text + at + n, text + at, size - at);
            size += n;
        } else if (what == 4 && at + strlen(telling) < size) {
            memcpy(text + at, telling, strlen(telling));
        }
    }
    return size;
}

static void drive(int kind, int64_t data_bytes, const char *text, size_t size, uint64_t tries)
{
    uint8_t input[INPUT_MAX];

    assert_true(size + 3 < INPUT_MAX);
    accepted[kind] = 0;
    for (uint64_t t = 0; t < tries; t++) {
        size_t n = size;

        input[0] = (uint8_t)kind;
        input[1] = (uint8_t)data_bytes;
        input[2] = (uint8_t)(data_bytes >> 8);
        memcpy(input + 3, text, size);
        if (t > 0) /* the first is the sound text itself */
            n = change(input + 3, size, hd_random_key((uint64_t)kind, t));
        (void)LLVMFuzzerTestOneInput(input, n + 3);
        if (t == 0)
            assert_int_equal(accepted[kind], 1);
    }
    /* some changes are harmless (inside a name), most are not */
    assert_in_range(accepted[kind], 2, tries / 2);
}

static size_t make_entries(struct hd_ckpt_entry ret_entries[3], int64_t *ret_data_bytes)
{
    const int64_t shape[] = {4, 6};

    *ret_data_bytes = 0;
    for (int i = 0; i < 3; i++) {
        ret_entries[i] = hd_ckpt_entry_whole(i == 2 ? "norm" : "q", HD_F32, 2, shape);
        if (i < 2)
            hd_ckpt_entry_cut(&ret_entries[i], 0, 2 * i, 2);
        if (i == 1) {
            ret_entries[i].flat_first = 1;
            ret_entries[i].flat_count = 11;
        }
        *ret_data_bytes += hd_ckpt_entry_bytes(&ret_entries[i]);
    }
    return 3;
}

static void changed_json_neither_crashes_nor_miscounts(void **state)
{
    static const char text[] =
        "{\"a\":[1,-2.5e3,{\"b\":\"\\u20ac\\ud83d\\ude00\\n\"},null,true],\"c\":{\"d\":[[],{}]}}";

    drive(KIND_JSON, 0, text, sizeof text - 1, 30000);
}

static void changed_tables_neither_crash_nor_change_meaning(void **state)
{
    struct hd_ckpt_entry entries[3];
    struct hd_text head = {0};
    int64_t data_bytes = 0;

    assert_int_equal(hd_ckpt_write_table(entries, make_entries(entries, &data_bytes), &head),
                     HD_OK);
    drive(KIND_TABLE, data_bytes, head.data + 8, head.len_bytes - 8, 30000);
    hd_text_free(&head);
}

static void change_manifests(bool has_blocks)
{
    static const uint64_t hashes[] = {1, UINT64_MAX, 77};
    const struct hd_ckpt_hash_list list = {hashes, 3};
    static const struct hd_ckpt_fact facts[] = {{"dp", "2"}};
    static const struct hd_ckpt_counter counters[] = {{"step", 7}};
    struct hd_ckpt_shard shard = {.file = "rank-00000.safetensors",
                                  .size_bytes = 4096,
                                  .hash = hd_ckpt_hash_of_hashes(hashes, 3)};
    const struct hd_ckpt_manifest manifest = {.job = "7",
                                              .config = "x\n",
                                              .layout = facts,
                                              .layout_count = 1,
                                              .determinism = facts,
                                              .determinism_count = 1,
                                              .counters = counters,
                                              .counter_count = 1,
                                              .shards = &shard,
                                              .shard_count = 1};
    struct hd_ckpt_entry entries[3];
    struct hd_ckpt_stored stored[3] = {0};
    struct hd_text text = {0};
    int64_t data_bytes = 0;

    (void)make_entries(entries, &data_bytes);
    for (int i = 0; i < 3; i++)
        stored[i] = (struct hd_ckpt_stored){.entry = entries[i], .offset_bytes = 512 * (i + 1)};
    assert_int_equal(hd_ckpt_write_manifest(&manifest, has_blocks ? &list : NULL, stored, 3, &text),
                     HD_OK);
    drive(KIND_MANIFEST, 0, text.data, text.len_bytes, 30000);
    hd_text_free(&text);
}

static void changed_manifests_neither_crash_nor_change_meaning(void **state)
{
    change_manifests(true);
}

static void changed_manifests_of_version_1_neither_crash_nor_change_meaning(void **state)
{
    change_manifests(false);
}

static void changed_hashes_of_an_export_do_not_crash(void **state)
{
    static const struct hd_ckpt_region text[] = {{"", 12, HD_CKPT_BLOCK_BYTES}};
    static const struct hd_ckpt_region weights[] = {{NULL, 100, HD_CKPT_HEAD_BLOCK_BYTES},
                                                    {"model.norm.weight", 32, 16}};
    const struct hd_ckpt_region *regions[] = {text, weights};
    static const unsigned char data[132];
    struct hd_ckpt_blocks blocks[2];
    struct hd_hf_hashes hashes;

    hd_hf_hashes_begin(&hashes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hd_ckpt_blocks_begin(&blocks[i], regions[i], i ? 2 : 1), HD_OK);
        hd_ckpt_blocks_add(&blocks[i], data, i ? 132 : 12);
        hd_hf_hashes_add(&hashes, i ? "model.safetensors" : "config.json", &blocks[i]);
        hd_ckpt_blocks_done(&blocks[i]);
    }
    assert_int_equal(hd_hf_hashes_end(&hashes), HD_OK);
    drive(KIND_HASHES, 0, hashes.text.data, hashes.text.len_bytes, 30000);
    hd_text_free(&hashes.text);
}

static void changed_labels_neither_crash_nor_change_meaning(void **state)
{
    static const char label[] = "blocks.0.q@1:3/4,0:6/6+3:11";

    drive(KIND_LABEL, 0, label, sizeof label - 1, 30000);
}

RUN_CASES()
