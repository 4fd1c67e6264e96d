/* tokenizer_sentencepiece_test: SentencePiece models, and models of type Unigram of a
 * tokenizer.json. tests/interop/tokenizers/sentencepiece_models.py and unigram.py made the golden
 * files, and compare random texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "golden.h"
#include "tests/program/test.h"
#include "tests/temporary.h"
#include "tokenizer/count.h"
#include "tokenizer/special.h"

enum { FILE_BYTES_MAX = 1 << 20 };

static uint32_t take_number(const struct hd_text *from, size_t *at)
{
    uint32_t value;

    assert_true(from->len_bytes - *at >= sizeof value);
    memcpy(&value, from->data + *at, sizeof value);
    *at += sizeof value;
    return value;
}

/* Compares the ids of each golden text; lens: also by the way that follows places in the text. */
static void check_model(const char *name, const char *suffix, bool with_places)
{
    struct hd_text texts = {0}, wanted = {0};
    struct hd_tokenizer *t = NULL;
    struct hd_encoder *encoder = NULL;
    struct hd_id_list list = {0};
    size_t at = 0, wanted_at = 0;
    char file[64];
    int32_t ids = 0;

    (void)snprintf(file, sizeof file, "%s.%s", name, suffix);
    assert_int_equal(golden_open(golden_path(file), &t), HD_OK);
    assert_int_equal(hd_tokenizer_count_ids(golden_path(file), &ids), HD_OK);
    assert_int_equal(ids, hd_tokenizer_vocab(t));
    (void)snprintf(file, sizeof file, "%s.ids", name);
    assert_int_equal(hd_file_read(golden_path("texts.sp"), FILE_BYTES_MAX, &texts), HD_OK);
    assert_int_equal(hd_file_read(golden_path(file), FILE_BYTES_MAX, &wanted), HD_OK);
    assert_int_equal(hd_encoder_new(t, &encoder), HD_OK);
    while (at < texts.len_bytes) {
        const uint32_t n = take_number(&texts, &at);
        struct hd_encoder_mark mark = {.at = n / 2};
        struct hd_encoder_places places = {.marks = &mark, .mark_count = n > 0};
        uint32_t count;

        list.count = 0;
        assert_int_equal(
            hd_encoder_add_places(encoder, texts.data + at, n, with_places ? &places : NULL, &list),
            HD_OK);
        at += n;
        count = take_number(&wanted, &wanted_at);
        assert_int_equal(list.count, count);
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(list.ids[i], take_number(&wanted, &wanted_at));
        assert_true(!with_places || mark.token <= list.count);
    }
    hd_encoder_free(encoder);
    hd_tokenizer_close(t);
    hd_id_list_free(&list);
    hd_text_free(&texts);
    hd_text_free(&wanted);
}

static void ids_are_those_of_the_library(void **state)
{
    static const char *const names[] = {"unigram", "bpe", "suffix"};

    for (size_t i = 0; i < 3; i++) {
        check_model(names[i], "model", false);
        check_model(names[i], "model", true);
    }
}

static void unigram_ids_are_those_of_tokenizers(void **state)
{
    static const char *const names[] = {"t5", "albert"};

    for (size_t i = 0; i < 2; i++) {
        check_model(names[i], "json", false);
        check_model(names[i], "json", true);
    }
}

/* Goal: without files beside it, a model names its special tokens, texts that spell them are
 * ordinary, and texts come back: spaces, bytes, and no space in front. */
static void a_model_alone_names_its_tokens(void **state)
{
    static const char text[] = "the </s> \xE2\x98\x83";
    struct hd_tokenizer *t = NULL;
    struct hd_encoder *encoder = NULL;
    struct hd_id_list list = {0};
    struct hd_text back = {0};
    struct hd_special special;

    assert_int_equal(golden_open(golden_path("bpe.model"), &t), HD_OK);
    assert_int_equal(hd_special_resolve(t, NULL, &special), HD_OK);
    assert_int_equal(special.end.id, 2); /* the trainer's defaults: <unk>, <s>, </s> */
    assert_int_equal(special.bos.id, 1);
    assert_true(hd_tokenizer_is_special(t, 2));
    assert_int_equal(hd_encoder_new(t, &encoder), HD_OK);
    assert_int_equal(hd_encoder_add(encoder, text, sizeof text - 1, &list), HD_OK);
    for (size_t i = 0; i < list.count; i++)
        assert_int_not_equal(list.ids[i], 2);
    assert_int_equal(hd_tokenizer_decode(t, list.ids, list.count, &back), HD_OK);
    assert_string_equal(back.data, text);
    hd_encoder_free(encoder);
    hd_tokenizer_close(t);
    hd_id_list_free(&list);
    hd_text_free(&back);
}

/* Goal: beside a tokenizer_config.json special tokens are found in a text, and what follows one gets
 * no space in front, as with AutoTokenizer. */
static void files_beside_a_model_count(void **state)
{
    char folder[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 32], config[TEMPORARY_BYTES + 32];
    struct hd_text model = {0};
    struct hd_tokenizer *t = NULL;
    struct hd_encoder *encoder = NULL;
    struct hd_id_list list = {0}, plain = {0};
    int32_t ids = 0, more = 0;
    uint64_t hash = 0, same = 0;
    char *the;

    if (golden_open(golden_path("bpe.model"), &t))
        return;
    ids = hd_tokenizer_vocab(t);
    hd_tokenizer_close(t);
    temporary_dir(folder, "sentencepiece");
    (void)snprintf(path, sizeof path, "%s/tokenizer.model", folder);
    (void)snprintf(config, sizeof config, "%s/tokenizer_config.json", folder);
    assert_int_equal(hd_file_read(golden_path("bpe.model"), FILE_BYTES_MAX, &model), HD_OK);
    assert_int_equal(hd_file_write_atomic(path, model.data, model.len_bytes, 0644), HD_OK);
    assert_int_equal(hd_file_write_atomic(
                         config, "{\"eos_token\": \"</s>\", \"pad_token\": \"<fill>\"}", 44, 0644),
                     HD_OK);
    assert_int_equal(hd_tokenizer_open(path, &t), HD_OK);
    assert_int_equal(hd_tokenizer_vocab(t), ids + 1); /* <fill> is new */
    assert_int_equal(hd_tokenizer_count_ids(path, &more), HD_OK);
    assert_int_equal(more, ids + 1);
    /* a token that is added changes no other; one piece that is another does */
    assert_int_equal(hd_tokenizer_hash_ids(path, ids, &hash), HD_OK);
    assert_int_equal(hd_tokenizer_hash_ids(golden_path("bpe.model"), ids, &same), HD_OK);
    assert_true(hash == same);
    the = memmem(model.data, model.len_bytes, "\xe2\x96\x81the", 6);
    assert_non_null(the);
    memcpy(the + 3, "tha", 3);
    assert_int_equal(hd_file_write_atomic(path, model.data, model.len_bytes, 0644), HD_OK);
    assert_int_equal(hd_tokenizer_hash_ids(path, ids, &same), HD_OK);
    assert_true(hash != same);
    assert_int_equal(hd_encoder_new(t, &encoder), HD_OK);
    assert_int_equal(hd_encoder_add(encoder, "</s>the", 7, &list), HD_OK);
    assert_int_equal(list.ids[0], 2);
    assert_int_equal(hd_encoder_add(encoder, "the", 3, &plain), HD_OK);
    assert_true(list.ids[1] != plain.ids[0]); /* the first one of a text has a space */
    hd_encoder_free(encoder);
    hd_tokenizer_close(t);
    hd_id_list_free(&list);
    hd_id_list_free(&plain);
    hd_text_free(&model);
    assert_int_equal(hd_file_remove_tree(folder), HD_OK);
}

/* Writes bytes to a file and expects that it is refused with a message that has `words`. */
static void refuse(const char *folder, const void *bytes, size_t n, const char *words)
{
    struct hd_tokenizer *t = NULL;
    char path[64];

    (void)snprintf(path, sizeof path, "%s/t.model", folder);
    assert_int_equal(hd_file_write_atomic(path, bytes, n, 0644), HD_OK);
    assert_int_not_equal(hd_tokenizer_open(path, &t), HD_OK);
    if (!strstr(hd_err_message(), words))
        fail_msg("%s, not %s", hd_err_message(), words);
}

/* Goal: what is no model, is cut off or not supported is refused with a reason. Method: pieces by
 * hand: field 1 of n bytes: {field 1: text, field 3: type}; trainer_spec, field 2: {field 3: kind}. */
static void what_cannot_be_read_is_refused(void **state)
{
    static const unsigned char word[] = {0x0A, 5, 0x0A, 1, 'a', 0x18, 2, 0x12, 2, 0x18, 3};
    static const unsigned char no_unknown[] = {0x0A, 3, 0x0A, 1, 'a'};
    static const unsigned char twice[] = {0x0A, 5, 0x0A, 1,    'u', 0x18, 2, 0x0A, 3,
                                          0x0A, 1, 'a',  0x0A, 3,   0x0A, 1, 'a'};
    static const unsigned char cut[] = {0x0A, 9, 0x0A, 1, 'a'};
    static const unsigned char empty_piece[] = {0x0A, 2, 0x18, 2};
    char folder[TEMPORARY_BYTES];

    temporary_dir(folder, "sentencepiece");
    refuse(folder, "", 0, "it has no pieces");
    refuse(folder, "{}", 2, "byte ");
    refuse(folder, word, sizeof word, "model_type is word; only unigram and bpe are supported");
    refuse(folder, no_unknown, sizeof no_unknown, "no piece is unknown");
    refuse(folder, twice, sizeof twice, "pieces 1 and 2 are both 'a'");
    refuse(folder, cut, sizeof cut, "byte 2: a field is longer than the rest");
    refuse(folder, empty_piece, sizeof empty_piece, "piece 0 is empty");
    assert_int_equal(hd_file_remove_tree(folder), HD_OK);
}

RUN_CASES()
