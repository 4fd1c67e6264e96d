/* Special tokens of folders: transformers' answers (special/make_cases.py) for files in all
 * combinations, and what only Heddle says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "golden.h"
#include "letters.h"
#include "tests/program/test.h"
#include "tokenizer/companions.h"
#include "tokenizer/special.h"
#include "tokenizer/tokenizer_internal.h"

struct special_setting {
    char dir[64];
    struct hd_arena arena;
    const struct hd_json *cases;
};

static int set_up(void **state)
{
    static const struct hd_json_limits limits = {.values_max = 1 << 20, .depth_max = 64};
    struct special_setting *s = calloc(1, sizeof *s);
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    struct hd_text path = {0}, text = {0};

    assert_non_null(s);
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/heddle-special.XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    hd_arena_init(&s->arena, 0);
    hd_text_add(&path, "%s/tests/unit/tokenizer/special/cases.json", root ? root : ".");
    assert_int_equal(hd_file_read(path.data, 4 << 20, &text), HD_OK);
    assert_int_equal(hd_json_parse(&s->arena, text.data, text.len_bytes, &limits, &s->cases),
                     HD_OK);
    hd_text_free(&text);
    hd_text_free(&path);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct special_setting *s = *state;

    (void)hd_file_remove_tree(s->dir);
    hd_arena_done(&s->arena);
    free(s);
    return 0;
}

/* ---- folders ---- */

static void put(const struct special_setting *s, const char *name, const char *text)
{
    struct hd_text path = {0};
    FILE *file;

    hd_file_join(&path, s->dir, name);
    file = fopen(path.data, "w"); /* thousands of files: none needs to be durable */
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
    hd_text_free(&path);
}

static void clear(const struct special_setting *s)
{
    static const char *const names[] = {
        "tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "config.json",           "generation_config.json"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct hd_text path = {0};

        hd_file_join(&path, s->dir, names[i]);
        (void)remove(path.data);
        hd_text_free(&path);
    }
}

static void put_tokenizer(const struct special_setting *s, const char *added, const char *post,
                          const struct hd_json *words)
{
    struct hd_text text = {0};

    letters_write(added, post, words, &text);
    put(s, "tokenizer.json", text.data);
    hd_text_free(&text);
}

static enum hd_status open_tokenizer(const struct special_setting *s,
                                     struct hd_tokenizer **ret_tokenizer)
{
    struct hd_text path = {0};
    enum hd_status st;

    hd_file_join(&path, s->dir, "tokenizer.json");
    st = golden_open(path.data, ret_tokenizer);
    hd_text_free(&path);
    return st;
}

static void put_files(const struct special_setting *s, const struct hd_json *c)
{
    clear(s);
    for (const struct hd_json *f = hd_json_member(c, "files")->first; f; f = f->next)
        put(s, f->key, f->text);
}

static int64_t number(const struct hd_json *value)
{
    int64_t n = 0;

    assert_int_equal(hd_json_to_int64(value, 0, INT32_MAX, &n), HD_OK);
    return n;
}

/* ---- transformers' answers ---- */

static const char *case_name; /* of the case that is compared, for messages */

static void compare_names(const struct hd_tokenizer *t, const struct hd_json *expect)
{
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    const struct hd_json *all = hd_json_member(expect, "names");

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct hd_json *pair = hd_json_member(all, names[i]);
        const struct hd_companion_name *have =
            hd_companions_find(hd_tokenizer_companions(t), names[i]);

        if (!pair != !have)
            fail_msg("%s: %s is '%s', not '%s'", case_name, names[i],
                     have ? have->token.content : "none", pair ? pair->first->text : "none");
        if (!pair)
            continue;
        if (strcmp(have->token.content, pair->first->text) != 0 ||
            hd_tokenizer_find(t, have->token.content) != number(pair->first->next))
            fail_msg("%s: %s is '%s' (%d), not '%s' (%lld)", case_name, names[i],
                     have->token.content, (int)hd_tokenizer_find(t, have->token.content),
                     pair->first->text, (long long)number(pair->first->next));
    }
}

/* The tokens as JSON, as cases.json has them. */
static void write_added(const char *path, struct hd_text *ret_text)
{
    struct hd_companions companions;
    struct hd_bpe bpe = {0};
    struct hd_text text = {0};
    char *dir = strndup(path, (size_t)(strrchr(path, '/') - path));
    int last = -1;

    assert_int_equal(hd_file_read(path, 1 << 20, &text), HD_OK);
    assert_int_equal(hd_companions_read(dir, &text, &companions), HD_OK);
    assert_int_equal(hd_bpe_read(text.data, text.len_bytes, &companions, &bpe), HD_OK);
    for (int n = 0; n < bpe.token_count; n++) {
        const struct hd_added_token *next = NULL;

        for (int i = 0; i < bpe.token_count; i++)
            if (bpe.tokens[i].id > last && (!next || bpe.tokens[i].id < next->id))
                next = &bpe.tokens[i];
        assert_non_null(next);
        last = next->id;
        hd_text_add(ret_text, "%d %s %c%c%c%c%c\n", (int)next->id, bpe.texts[next->id].content,
                    next->lstrip ? 'l' : '-', next->rstrip ? 'r' : '-',
                    next->single_word ? 's' : '-', next->normalized ? 'n' : '-',
                    next->special ? 's' : '-');
    }
    hd_bpe_done(&bpe);
    hd_companions_done(&companions);
    hd_text_free(&text);
    free(dir);
}

static void compare_added(const struct hd_tokenizer *t, const struct hd_json *expect)
{
    struct hd_text have = {0}, right = {0};

    for (const struct hd_json *a = hd_json_member(expect, "added")->first; a; a = a->next)
        hd_text_add(&right, "%s %s %s\n", a->first->text, a->first->next->text,
                    a->first->next->next->text);
    write_added(hd_tokenizer_name(t), &have);
    if (strcmp(have.data ? have.data : "", right.data ? right.data : "") != 0)
        fail_msg("%s: the added tokens are\n%snot\n%s", case_name, have.data, right.data);
    hd_text_free(&have);
    hd_text_free(&right);
}

static bool same_ids(const int32_t *ids, size_t count, const struct hd_json *list)
{
    const struct hd_json *v = list->first;

    if (count != list->count)
        return false;
    for (size_t i = 0; i < count; i++, v = v->next)
        if (number(v) != ids[i])
            return false;
    return true;
}

static void compare_texts(const struct special_setting *s, const struct hd_tokenizer *t,
                          const struct hd_json *expect)
{
    const struct hd_json *text = hd_json_member(s->cases, "texts")->first,
                         *ids = hd_json_member(expect, "texts");
    struct hd_encoder *encoder = NULL;
    struct hd_id_list list = {0};

    assert_int_equal(hd_encoder_new(t, &encoder), HD_OK);
    for (ids = ids ? ids->first : NULL; ids; ids = ids->next, text = text->next) {
        list.count = 0;
        assert_int_equal(hd_encoder_add(encoder, text->text, strlen(text->text), &list), HD_OK);
        if (!same_ids(list.ids, list.count, ids))
            fail_msg("%s: '%s' has other ids", case_name, text->text);
    }
    hd_encoder_free(encoder);
    hd_id_list_free(&list);
}

/* Compares what is put around the text "a", whose only id is 97. */
static void compare_around(const struct hd_tokenizer *t, const struct hd_json *expect)
{
    int before = 0, behind = 0;
    const int32_t *front = hd_tokenizer_before(t, &before), *back = hd_tokenizer_behind(t, &behind);
    int32_t ids[32];
    size_t n = 0;

    for (int i = 0; i < before; i++)
        ids[n++] = front[i];
    ids[n++] = 'a';
    for (int i = 0; i < behind; i++)
        ids[n++] = back[i];
    if (!same_ids(ids, n, hd_json_member(expect, "around")))
        fail_msg("%s: %d tokens before and %d behind a text", case_name, before, behind);
}

/* Goal: a folder's tokens are those of AutoTokenizer. Method: 350 folders, each with its own
 * combination of files, keys and forms, whose answers were recorded. */
static void a_folder_has_the_special_tokens_that_transformers_finds_in_it(void **state)
{
    struct special_setting *s = *state;
    int count = 0;

    for (const struct hd_json *c = hd_json_member(s->cases, "tokens")->first; c; c = c->next) {
        const struct hd_json *post = hd_json_member(c, "post"), *added = hd_json_member(c, "added"),
                             *expect = hd_json_member(c, "expect");
        struct hd_tokenizer *t = NULL;
        enum hd_status st;

        case_name = hd_json_member(c, "name")->text;
        put_files(s, c);
        put_tokenizer(s, added ? added->text : LETTERS_THREE, post ? post->text : "null",
                      hd_json_member(c, "words"));
        st = open_tokenizer(s, &t);
        count++;
        if (expect->kind == HD_JSON_NULL) { /* transformers refuses it */
            if (st != HD_INVALID || !strstr(hd_err_message(), ".json: "))
                fail_msg("%s: accepted, or '%s' names no file", case_name, hd_err_message());
            continue;
        }
        if (st)
            fail_msg("%s: %s", case_name, hd_err_message());
        compare_names(t, expect);
        compare_added(t, expect);
        compare_texts(s, t, expect);
        compare_around(t, expect);
        hd_tokenizer_close(t);
    }
    assert_in_range(count, 300, 1000);
}

static void compare_id(const char *name, int32_t have, const struct hd_json *right)
{
    const int64_t id = right->kind == HD_JSON_NULL ? -1 : number(right);

    if (have != id)
        fail_msg("%s: %s is %d, not %lld", case_name, name, (int)have, (long long)id);
}

/* Goal: a model's ids are those with which transformers' generate begins, ends and pads. */
static void a_model_folder_has_the_ids_that_generate_reads(void **state)
{
    struct special_setting *s = *state;
    int count = 0;

    for (const struct hd_json *c = hd_json_member(s->cases, "models")->first; c; c = c->next) {
        const struct hd_json *expect = hd_json_member(c, "expect");
        struct hd_model_ids ids;

        case_name = hd_json_member(c, "name")->text;
        put_files(s, c);
        if (hd_model_ids_read(s->dir, &ids))
            fail_msg("%s: %s", case_name, hd_err_message());
        if (!same_ids(ids.eos, (size_t)ids.eos_count, hd_json_member(expect, "eos")))
            fail_msg("%s: %d ids end a text", case_name, ids.eos_count);
        compare_id("bos_token_id", ids.bos, hd_json_member(expect, "bos"));
        compare_id("pad_token_id", ids.pad, hd_json_member(expect, "pad"));
        count++;
    }
    assert_in_range(count, 30, 100);
}

/* ---- what follows of both ---- */

/* Goal: one answer for training and generation. Method: files that agree, that leave out something,
 * and that contradict each other; ids as above, 259 is the next free one. */
static void ends_and_stops_follow_from_the_tokenizer_and_the_model(void **state)
{
    static const struct {
        const char *tokenizer_config, *config, *generation; /* NULL: there is no such file */
        int32_t end, bos, pad, stops[4];                    /* stops: up to -1 */
        const char *note;                                   /* part of the notes; "": none */
    } cases[] = {
        {"{\"eos_token\":\"<|im_end|>\"}", NULL, NULL, 258, -1, -1, {258, -1}, ""},
        {"{\"eos_token\":\"<|eos|>\"}", NULL, NULL, 259, -1, -1, {259, -1}, ""},
        {NULL, "{\"eos_token_id\":257}", NULL, 257, -1, -1, {257, -1}, ""},
        {NULL,
         "{\"eos_token_id\":257}",
         "{\"eos_token_id\":[258,256]}",
         258,
         -1,
         -1,
         {258, 256, -1},
         ""},
        {"{\"eos_token\":\"<|im_end|>\"}",
         NULL,
         "{\"eos_token_id\":[256,258]}",
         258,
         -1,
         -1,
         {256, 258, -1},
         ""},
        {"{\"eos_token\":\"<|im_end|>\"}",
         NULL,
         "{\"eos_token_id\":[256,257]}",
         258,
         -1,
         -1,
         {256, 257, -1},
         "tokenizer_config.json: eos_token is '<|im_end|>' (258), and eos_token_id of "
         "generation_config.json is 256, 257"},
        {"{\"eos_token\":\"<|im_end|>\"}",
         "{\"eos_token_id\":257}",
         "{}",
         258,
         -1,
         -1,
         {258, -1},
         ""},
        {"{\"eos_token\":null}", NULL, NULL, -1, -1, -1, {-1}, ""},
        {"{\"eos_token\":\"<|eos|>\"}",
         NULL,
         "{\"eos_token_id\":null}",
         259,
         -1,
         -1,
         {259, -1},
         "generation_config.json: eos_token_id is null: generation stops at eos_token '<|eos|>' "
         "(259) of tokenizer_config.json"},
        {"{\"eos_token\":\"<|eos|>\"}",
         NULL,
         "{\"eos_token_id\":[]}",
         259,
         -1,
         -1,
         {259, -1},
         "eos_token_id is a list without an id: generation stops at"},
        {NULL,
         NULL,
         "{\"eos_token_id\":-1}",
         -1,
         -1,
         -1,
         {-1},
         "eos_token_id is negative, and no file names an eos_token"},
        {"{\"eos_token\":{\"content\":\"<|eos|>\",\"lstrip\":true}}",
         NULL,
         NULL,
         259,
         -1,
         -1,
         {259, -1},
         ""}, /* without "__type", which transformers refuses and people write */
        {"{\"bos_token\":\"<|im_start|>\"}",
         "{\"bos_token_id\":256,\"pad_token_id\":3}",
         NULL,
         -1,
         257,
         3,
         {-1},
         "bos_token is token 257, and bos_token_id of config.json is 256"},
        {NULL,
         "{\"eos_token_id\":9000,\"pad_token_id\":9000}",
         NULL,
         -1,
         -1,
         -1,
         {-1},
         "eos_token_id 9000 is no token of"},
        {NULL, "{\"eos_token_id\":-1,\"pad_token_id\":-1}", NULL, -1, -1, -1, {-1}, ""},
        {NULL, "{\"text_config\":{\"eos_token_id\":[1,257]}}", NULL, 257, -1, -1, {1, 257, -1}, ""},
        {NULL,
         "{\"eos_token_id\":35}",
         NULL,
         -1,
         -1,
         -1,
         {35, -1},
         "config.json: eos_token_id 35 is '#', which is no special token"},
    };
    struct special_setting *s = *state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_special special;
        struct hd_tokenizer *t = NULL;
        int n = 0;

        clear(s);
        put_tokenizer(s, LETTERS_THREE, "null", NULL);
        if (cases[i].tokenizer_config)
            put(s, "tokenizer_config.json", cases[i].tokenizer_config);
        if (cases[i].config)
            put(s, "config.json", cases[i].config);
        if (cases[i].generation)
            put(s, "generation_config.json", cases[i].generation);
        assert_int_equal(open_tokenizer(s, &t), HD_OK);
        assert_int_equal(hd_special_resolve(t, s->dir, &special), HD_OK);
        if (special.end.id != cases[i].end || special.bos.id != cases[i].bos ||
            special.pad.id != cases[i].pad)
            fail_msg("case %zu: end %d, bos %d, pad %d", i, (int)special.end.id,
                     (int)special.bos.id, (int)special.pad.id);
        for (; cases[i].stops[n] >= 0; n++)
            if (n == special.stop_count || special.stops[n] != cases[i].stops[n])
                fail_msg("case %zu: stop %d is not %d", i, n, (int)cases[i].stops[n]);
        assert_int_equal(special.stop_count, n);
        if (*cases[i].note ? !strstr(special.notes, cases[i].note) : *special.notes != '\0')
            fail_msg("case %zu: the notes are '%s'", i, special.notes);
        hd_tokenizer_close(t);
    }
}

/* Goal: a contradiction between files is said, with both values. */
static void a_name_that_two_files_give_differently_is_noted(void **state)
{
    struct special_setting *s = *state;
    struct hd_tokenizer *t = NULL;
    const char *notes;

    clear(s);
    put_tokenizer(s, LETTERS_THREE, "null", NULL);
    put(s, "tokenizer_config.json",
        "{\"eos_token\":\"<|endoftext|>\",\"pad_token\":\"<|im_end|>\"}");
    put(s, "special_tokens_map.json",
        "{\"eos_token\":\"<|im_end|>\",\"pad_token\":{\"content\":\"<|im_end|>\"}}");
    assert_int_equal(open_tokenizer(s, &t), HD_OK);
    notes = hd_tokenizer_companions(t)->notes.data;
    assert_non_null(strstr(notes, "eos_token is '<|endoftext|>' in tokenizer_config.json and "
                                  "'<|im_end|>' in special_tokens_map.json"));
    assert_null(strstr(notes, "pad_token")); /* both say the same */
    hd_tokenizer_close(t);
    put(s, "special_tokens_map.json", "{\"eos_token\":null}");
    assert_int_equal(open_tokenizer(s, &t), HD_OK);
    assert_non_null(strstr(hd_tokenizer_companions(t)->notes.data,
                           "eos_token is '<|endoftext|>' in tokenizer_config.json and none in "
                           "special_tokens_map.json"));
    hd_tokenizer_close(t);
    put(s, "tokenizer_config.json",
        "{\"added_tokens_decoder\":{\"300\":{\"content\":\"<A>\",\"special\":true}}}");
    assert_int_equal(open_tokenizer(s, &t), HD_OK);
    assert_non_null(strstr(hd_tokenizer_companions(t)->notes.data,
                           "tokenizer_config.json: '<A>' has the id 300 there, and is token 259"));
    hd_tokenizer_close(t);
}

/* Goal: split_special_tokens holds for all that becomes ids, and for the identity of tokens.
 * Method: cases.json has ids of texts; here what chats guard, and the hash. */
static void no_text_spells_a_special_token_where_they_are_split(void **state)
{
    struct special_setting *s = *state;
    uint64_t hashes[2] = {0};

    for (int splits = 0; splits < 2; splits++) {
        struct hd_tokenizer *t = NULL;
        size_t at = 0;

        clear(s);
        put_tokenizer(s, LETTERS_THREE, "null", NULL);
        put(s, "tokenizer_config.json", splits ? "{\"split_special_tokens\":true}" : "{}");
        assert_int_equal(open_tokenizer(s, &t), HD_OK);
        assert_int_equal(hd_tokenizer_find_special(t, "a<|im_end|>", 11, &at), !splits);
        hashes[splits] = hd_companions_hash(hd_tokenizer_companions(t));
        assert_int_equal(hd_tokenizer_companions(t)->notes.data != NULL, splits);
        hd_tokenizer_close(t);
    }
    assert_true(hashes[0] != hashes[1]);
}

/* Goal: ids are those of transformers, or there are none. GPT2Tokenizer makes its pre-tokenizer of
 * add_prefix_space; the general class takes that of the file, which adds no space. */
static void a_space_in_front_that_files_tell_differently_is_refused(void **state)
{
    static const struct {
        const char *config;
        enum hd_status st;
    } cases[] = {
        {"{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_prefix_space\":true}", HD_UNSUPPORTED},
        {"{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_prefix_space\":false}", HD_OK},
        {"{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_prefix_space\":null}", HD_OK},
        {"{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"add_prefix_space\":true}", HD_OK},
        {"{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_prefix_space\":1}", HD_INVALID},
    };
    struct special_setting *s = *state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_tokenizer *t = NULL;

        clear(s);
        put_tokenizer(s, LETTERS_THREE, "null", NULL);
        put(s, "tokenizer_config.json", cases[i].config);
        assert_int_equal(open_tokenizer(s, &t), cases[i].st);
        if (cases[i].st)
            assert_non_null(strstr(hd_err_message(), "add_prefix_space"));
        else
            hd_tokenizer_close(t);
    }
}

/* Goal: a file that cannot be read is an error with its name, never a missing token. */
static void a_damaged_file_beside_the_tokenizer_is_named(void **state)
{
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        {"tokenizer_config.json", "{\"eos_token\":", "tokenizer_config.json: "},
        {"tokenizer_config.json", "", "tokenizer_config.json: "},
        {"tokenizer_config.json", "[]", "tokenizer_config.json: is not an object"},
        {"tokenizer_config.json", "{\"eos_token\":{}}", "tokenizer_config.json: eos_token: "},
        {"tokenizer_config.json", "{\"eos_token\":{\"content\":\"a\",\"lstrip\":1}}",
         "eos_token: lstrip is neither true nor false"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":[]}", "added_tokens_decoder: "},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"-1\":{\"content\":\"a\"}}}",
         "'-1' is no token id"},
        {"special_tokens_map.json", "{\"eos_token\":7}", "special_tokens_map.json: eos_token: "},
        {"added_tokens.json", "{\"<A>\":\"x\"}", "added_tokens.json: <A>: "},
        {"config.json", "{", "config.json: "},
        {"generation_config.json", "{\"eos_token_id\":\"</s>\"}",
         "generation_config.json: eos_token_id: is neither a token id nor null"},
        {"generation_config.json", "{\"eos_token_id\":[1,[2]]}",
         "generation_config.json: eos_token_id: "},
        {"config.json", "{\"text_config\":{\"bos_token_id\":1.5}}",
         "text_config: config.json: bos_token_id: "},
    };
    struct special_setting *s = *state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_special special;
        struct hd_tokenizer *t = NULL;
        enum hd_status st;

        clear(s);
        put_tokenizer(s, LETTERS_THREE, "null", NULL);
        put(s, cases[i].name, cases[i].text);
        st = open_tokenizer(s, &t);
        if (!st)
            st = hd_special_resolve(t, s->dir, &special);
        if (st != HD_INVALID || !strstr(hd_err_message(), cases[i].says))
            fail_msg("case %zu: '%s' does not say '%s'", i, hd_err_message(), cases[i].says);
        hd_tokenizer_close(t);
    }
}

/* Python's json, and so transformers, takes the last value of a key that comes twice. */
static void the_last_of_a_doubled_key_counts(void **state)
{
    struct special_setting *s = *state;
    struct hd_special special;
    struct hd_tokenizer *t = NULL;

    clear(s);
    put_tokenizer(s, LETTERS_THREE, "null", NULL);
    put(s, "tokenizer_config.json", "{\"eos_token\":\"a\",\"eos_token\":\"b\"}");
    put(s, "generation_config.json", "{\"eos_token_id\":1,\"eos_token_id\":0}");
    assert_int_equal(open_tokenizer(s, &t), HD_OK);
    assert_int_equal(hd_special_resolve(t, s->dir, &special), HD_OK);
    assert_int_equal(special.end.id, hd_tokenizer_find(t, "b"));
    assert_int_equal(special.stop_count, 1);
    assert_int_equal(special.stops[0], 0);
    hd_tokenizer_close(t);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
