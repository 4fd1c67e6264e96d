/* grid: ids and decoded texts of Hugging Face tokenizers for some 800 combinations of
 * {normalizer, two pre-tokenizers, model, decoder} over 2,000 odd texts: all blanks of Unicode,
 * U+2581, mixed scripts, emoji, controls. tests/interop/tokenizers/grid.py says what the files in
 * grid/ are and made them; `grid.py compare` shows the texts behind a digest that differs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "golden.h"
#include "tests/program/test.h"

enum { PARTS = 8, OF_A_KIND_MAX = 128, TEXTS_MAX = 4096, FILE_BYTES_MAX = 1 << 20 };

struct parts {
    const char *json[OF_A_KIND_MAX];
    size_t bytes[OF_A_KIND_MAX];
    int count;
};

struct grid {
    struct hd_text file, corpus;
    struct parts normalizers, pre_tokenizers, decoders, models, added;
    const char *texts[TEXTS_MAX];
    uint32_t text_bytes[TEXTS_MAX];
    int text_count;
};

struct combination { /* indices of parts; part: the texts with this index modulo PARTS */
    unsigned normalizer, first, second, model, decoder, part;
    uint64_t digest;
};

static void take_part(struct parts *parts, const char *from, const char *end)
{
    assert_in_range(parts->count, 0, OF_A_KIND_MAX - 1);
    parts->json[parts->count] = from;
    parts->bytes[parts->count++] = (size_t)(end - from);
}

static void read_grid(struct grid *g)
{
    *g = (struct grid){0};
    assert_int_equal(hd_file_read(golden_path("../grid/grid.txt"), FILE_BYTES_MAX, &g->file),
                     HD_OK);
    assert_int_equal(hd_file_read(golden_path("../grid/texts.bin"), FILE_BYTES_MAX, &g->corpus),
                     HD_OK);
    for (const char *p = g->file.data, *end; *p; p = end + 1) {
        end = strchr(p, '\n');
        assert_non_null(end);
        if (*p != 'C')
            take_part(*p == 'N'   ? &g->normalizers
                      : *p == 'P' ? &g->pre_tokenizers
                      : *p == 'D' ? &g->decoders
                      : *p == 'M' ? &g->models
                                  : &g->added,
                      p + 2, end);
    }
    for (size_t at = 0; at < g->corpus.len_bytes; at += g->text_bytes[g->text_count++]) {
        assert_in_range(g->text_count, 0, TEXTS_MAX - 1);
        memcpy(&g->text_bytes[g->text_count], g->corpus.data + at, 4);
        at += 4;
        g->texts[g->text_count] = g->corpus.data + at;
    }
}

static void add_part(struct hd_text *json, const char *before, const struct parts *parts,
                     unsigned index)
{
    assert_in_range(index, 0, parts->count - 1);
    hd_text_add(json, "%s%.*s", before, (int)parts->bytes[index], parts->json[index]);
}

static void write_file(const struct grid *g, const struct combination *c, struct hd_text *json)
{
    hd_text_clear(json);
    add_part(json, "{\"added_tokens\":", &g->added, c->model);
    add_part(json, ",\"normalizer\":", &g->normalizers, c->normalizer);
    if (!c->first || !c->second) { /* number 0 is none */
        add_part(json, ",\"pre_tokenizer\":", &g->pre_tokenizers, c->first + c->second);
    } else {
        add_part(json, ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[",
                 &g->pre_tokenizers, c->first);
        add_part(json, ",", &g->pre_tokenizers, c->second);
        hd_text_add(json, "]}");
    }
    add_part(json, ",\"decoder\":", &g->decoders, c->decoder);
    add_part(json, ",\"model\":", &g->models, c->model);
    hd_text_add(json, "}");
}

static uint64_t fnv(uint64_t value, const void *data, size_t count)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < count; i++)
        value = (value ^ p[i]) * UINT64_C(0x100000001B3);
    return value;
}

/* FNV-1a of the number of ids, the ids, the size of the decoded text and the text, for each. */
static uint64_t digest_of(const struct grid *g, const struct hd_tokenizer *t, unsigned part)
{
    struct hd_encoder *encoder = NULL;
    struct hd_id_list list = {0};
    struct hd_text back = {0};
    uint64_t value = UINT64_C(0xCBF29CE484222325);

    assert_int_equal(hd_encoder_new(t, &encoder), HD_OK);
    for (int i = (int)part; i < g->text_count; i += PARTS) {
        uint32_t count, bytes;

        list.count = 0;
        hd_text_clear(&back);
        if (hd_encoder_add(encoder, g->texts[i], g->text_bytes[i], &list) ||
            hd_tokenizer_decode(t, list.ids, list.count, &back))
            fail_msg("text %d: %s", i, hd_err_message());
        count = (uint32_t)list.count;
        bytes = (uint32_t)back.len_bytes;
        value = fnv(value, &count, 4);
        value = fnv(value, list.ids, count * sizeof *list.ids);
        value = fnv(value, &bytes, 4);
        value = fnv(value, back.data, bytes);
    }
    hd_encoder_free(encoder);
    hd_id_list_free(&list);
    hd_text_free(&back);
    return value;
}

static bool try_combination(const struct grid *g, const struct combination *c, struct hd_text *json)
{
    char path[] = "/tmp/grid_test.XXXXXX.json";
    const int fd = mkstemps(path, 5);
    struct hd_tokenizer *t = NULL;
    uint64_t digest;
    enum hd_status st;

    write_file(g, c, json);
    assert_true(fd >= 0);
    assert_int_equal(hd_file_write_all(fd, json->data, json->len_bytes), HD_OK);
    st = golden_open(path, &t);
    (void)close(fd);
    (void)unlink(path);
    if (st)
        fail_msg("N %u P %u P %u M %u: %s", c->normalizer, c->first, c->second, c->model,
                 hd_err_message());
    digest = digest_of(g, t, c->part);
    hd_tokenizer_close(t);
    return digest == c->digest;
}

static void every_combination_gives_the_golden_ids_and_texts(void **state)
{
    struct hd_text json = {0};
    struct combination c;
    static struct grid g;
    int count = 0, wrong = 0;

    read_grid(&g);
    for (const char *p = g.file.data; *p; p = strchr(p, '\n') + 1) {
        if (sscanf(p, "C %u %u %u %u %u %u %lx", &c.normalizer, &c.first, &c.second, &c.model,
                   &c.decoder, &c.part, &c.digest) != 7)
            continue;
        count++;
        if (!try_combination(&g, &c, &json) && wrong++ < 10)
            (void)printf("N %u P %u P %u M %u D %u, texts %u: other ids or texts\n", c.normalizer,
                         c.first, c.second, c.model, c.decoder, c.part);
    }
    (void)printf("%d of %d combinations differ\n", wrong, count);
    assert_true(count > 750 && g.text_count == 2000);
    assert_int_equal(wrong, 0);
    hd_text_free(&json);
    hd_text_free(&g.file);
    hd_text_free(&g.corpus);
}

RUN_CASES()
