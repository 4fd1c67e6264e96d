/* key: the table of keys, and conversion of single values to and from text. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/job.h"

#define WORD_TEXT(name, text)    text,
#define WORD_IN_LIST(name, text) " " text
#define TEXTS_WORD(member) \
    const char *const hd_job_##member##_words[] = {"", HD_JOB_WORDS_##member(WORD_TEXT) NULL};
#define TEXTS_NAME(member)
#define TEXTS_PATH(member)
#define TEXTS_INT(member)
#define TEXTS_REAL(member)
#define TEXTS_BOOL(member)
#define K(kind, member, path, ...) TEXTS_##kind(member)
#define L(kind, member, path, ...) TEXTS_##kind(member)
#define F(path, ...)
#include "job/keys.def"
#undef F
#undef L
#undef K

#define WORDS_WORD(member) \
    .words = &HD_JOB_WORDS_##member(WORD_IN_LIST)[1], .texts = hd_job_##member##_words,
#define WORDS_NAME(member)
#define WORDS_PATH(member)
#define WORDS_INT(member)
#define WORDS_REAL(member)
#define WORDS_BOOL(member)
const struct hd_key hd_job_keys[] = {
#define K(key_kind, member, key_path, ...)      \
    {.path = key_path,                          \
     .kind = HD_KEY_##key_kind,                 \
     .offset = offsetof(struct hd_job, member), \
     WORDS_##key_kind(member) __VA_ARGS__},
#define L(key_kind, member, key_path, ...) K(key_kind, member, key_path, __VA_ARGS__)
#define F(key_path, ...)                   {.path = key_path, .kind = HD_KEY_FORM, __VA_ARGS__},
#include "job/keys.def"
#undef F
#undef L
#undef K
};
const size_t hd_job_key_count = sizeof hd_job_keys / sizeof hd_job_keys[0];

/* ---- keys by their paths ---- */

/* The keys in the order of their paths, and of their stored paths, sorted once per process. */
static const struct hd_key *by_path[sizeof hd_job_keys / sizeof hd_job_keys[0]],
    *by_stored_path[sizeof hd_job_keys / sizeof hd_job_keys[0]];

static int compare_paths(const void *a, const void *b)
{
    return strcmp((*(const struct hd_key *const *)a)->path,
                  (*(const struct hd_key *const *)b)->path);
}

static int compare_stored_paths(const void *a, const void *b)
{
    return strcmp(hd_job_stored_path(*(const struct hd_key *const *)a),
                  hd_job_stored_path(*(const struct hd_key *const *)b));
}

static void sort_keys(void)
{
    for (size_t i = 0; i < hd_job_key_count; i++)
        by_path[i] = by_stored_path[i] = &hd_job_keys[i];
    qsort(by_path, hd_job_key_count, sizeof by_path[0], compare_paths);
    qsort(by_stored_path, hd_job_key_count, sizeof by_stored_path[0], compare_stored_paths);
}

static pthread_once_t sorted_once = PTHREAD_ONCE_INIT;

static const struct hd_key *find(const struct hd_key *const *keys, const char *path,
                                 int (*compare)(const void *, const void *))
{
    const struct hd_key wanted = {.path = path}, *const at = &wanted;
    const struct hd_key *const *found;

    (void)pthread_once(&sorted_once, sort_keys);
    found = bsearch(&at, keys, hd_job_key_count, sizeof *keys, compare);
    return found ? *found : NULL;
}

const struct hd_key *hd_job_find_key(const char *path)
{
    return find(by_path, path, compare_paths);
}

const struct hd_key *hd_job_find_stored_key(const char *path)
{
    return find(by_stored_path, path, compare_stored_paths);
}

/* Returns the first key of a group; if there is none, a key that is not of the group. */
static const struct hd_key *first_key(const char *group)
{
    size_t low = 0, high = hd_job_key_count - 1;
    const struct hd_key *key;

    (void)pthread_once(&sorted_once, sort_keys);
    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (strcmp(by_path[middle]->path, group) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (key = by_path[low]; key > hd_job_keys && hd_text_starts(key[-1].path, group); key--)
        ;
    return key;
}

const struct hd_key *hd_job_next_key(const char *group, const struct hd_key *last)
{
    const struct hd_key *key = last ? last + 1 : first_key(group);

    return key < hd_job_keys + hd_job_key_count && hd_text_starts(key->path, group) ? key : NULL;
}

/* ---- words ---- */

bool hd_job_each_word(const struct hd_key *key,
                      bool (*each)(void *context, const char *word, double value), void *context)
{
    const char *at = key->words ? key->words : "";

    for (int index = 1; *at; index++) {
        const size_t len = strcspn(at, " "), name_len = strcspn(at, "= ");
        char word[HD_JOB_WORD_MAX];
        double value = index;

        memcpy(word, at, name_len);
        word[name_len] = '\0';
        if (name_len < len)
            value = strtod(at + name_len + 1, NULL);
        if (each(context, word, value))
            return true;
        at += len + (at[len] == ' ');
    }
    return false;
}

struct word_search {
    const char *word; /* word to find; NULL: search by value */
    double value;
    char *ret_word;
};

static bool matches(void *context, const char *word, double value)
{
    struct word_search *s = context;

    if (s->word ? strcmp(s->word, word) != 0 : s->value != value)
        return false;
    s->value = value;
    if (s->ret_word)
        memcpy(s->ret_word, word, strlen(word) + 1);
    return true;
}

unsigned hd_job_find_word(const char *const *texts, const char *word)
{
    for (unsigned v = 1; texts[v]; v++)
        if (strcmp(texts[v], word) == 0)
            return v;
    return 0;
}

bool hd_job_word_of(const struct hd_key *key, double value, char ret_word[HD_JOB_WORD_MAX])
{
    struct word_search search = {.value = value, .ret_word = ret_word};

    return hd_job_each_word(key, matches, &search);
}

bool hd_job_word_value(const struct hd_key *key, const char *word, double *ret_value)
{
    struct word_search search = {.word = word};

    if (!hd_job_each_word(key, matches, &search))
        return false;
    *ret_value = search.value;
    return true;
}

bool hd_job_number_is_possible(const struct hd_key *key, double value)
{
    char word[HD_JOB_WORD_MAX];

    return (value >= key->min && value <= key->max) || hd_job_word_of(key, value, word);
}

/* ---- values ---- */

bool hd_job_key_is_of_layout(const struct hd_key *key)
{
    return key->kind != HD_KEY_FORM && key->offset >= offsetof(struct hd_job, layout) &&
           key->offset < offsetof(struct hd_job, layout) + sizeof(struct hd_layout_sizes);
}

/* Sets a text to one that lives as long as the job. */
static void set_text(const struct hd_key *key, const char *text, struct hd_job *job)
{
    void *member = hd_job_member(key, job);

    text = text ? text : "";
    if (key->kind == HD_KEY_WORD)
        *(unsigned *)member = hd_job_find_word(key->texts, text);
    else if (hd_job_key_is_of_layout(key))
        memcpy(member, text, strlen(text) + 1);
    else
        *(const char **)member = text;
}

const char *hd_job_text(const struct hd_key *key, const struct hd_job *job)
{
    const void *member = hd_job_const_member(key, job);

    if (key->kind == HD_KEY_WORD)
        return key->texts[*(const unsigned *)member];
    return hd_job_key_is_of_layout(key) ? member : *(const char *const *)member;
}

/* Returns whether the key's member is a pointer to its text. */
static bool is_pointer(const struct hd_key *key)
{
    return key->kind == HD_KEY_PATH || (key->kind == HD_KEY_NAME && !hd_job_key_is_of_layout(key));
}

struct hd_job hd_job_fill(struct hd_job job)
{
    for (size_t i = 0; i < hd_job_key_count; i++)
        if (is_pointer(&hd_job_keys[i]) && !hd_job_text(&hd_job_keys[i], &job))
            set_text(&hd_job_keys[i], "", &job);
    return job;
}

void hd_job_init(struct hd_job *ret_job, struct hd_arena *arena)
{
    *ret_job = HD_JOB(.arena = arena);
}

enum hd_status hd_job_set_text(struct hd_job *job, const char **member, const char *text)
{
    const char *copy = !*text ? "" : job->arena ? hd_arena_strdup(job->arena, text) : NULL;

    *member = copy ? copy : "";
    if (!copy && !job->arena)
        return hd_err(HD_INTERNAL, "a job without an arena takes no text");
    return copy ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a text of a job");
}

enum hd_status hd_job_take_text(struct hd_job *job, const char **member, struct hd_text *text)
{
    enum hd_status st = text->failed ? hd_err(HD_NO_MEMORY, "no memory for a job")
                        : text->len_bytes >= HD_JOB_PATH_MAX ? HD_LIMIT
                                                             : HD_OK;

    if (!st)
        st = hd_job_set_text(job, member, text->data ? text->data : "");
    hd_text_free(text);
    return st;
}

enum hd_status hd_job_print_text(struct hd_job *job, const char **member, const char *fmt, ...)
{
    char text[HD_JOB_PATH_MAX];
    va_list args;
    int len;

    va_start(args, fmt);
    len = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return len < HD_JOB_PATH_MAX ? hd_job_set_text(job, member, text) : HD_LIMIT;
}

static void set_number(const struct hd_key *key, double number, struct hd_job *job)
{
    void *member = hd_job_member(key, job);

    if (key->kind == HD_KEY_INT)
        *(int64_t *)member = (int64_t)number;
    else if (key->kind == HD_KEY_REAL)
        *(double *)member = number;
    else
        *(bool *)member = number != 0;
}

enum hd_status hd_job_store_text(const struct hd_key *key, const char *text, struct hd_job *job)
{
    const char *plain = !*text ? "" : key->text && strcmp(text, key->text) == 0 ? key->text : NULL;

    if (!is_pointer(key) || plain) {
        set_text(key, plain ? plain : text, job);
        return HD_OK;
    }
    return hd_job_set_text(job, hd_job_member(key, job), text);
}

enum hd_status hd_job_copy_member(const struct hd_key *key, const struct hd_job *from,
                                  struct hd_job *to)
{
    if (is_pointer(key) && from->arena != to->arena)
        return hd_job_store_text(key, hd_job_text(key, from), to);
    if (hd_job_key_is_text(key))
        set_text(key, hd_job_text(key, from), to);
    else if (key->kind == HD_KEY_INT)
        *(int64_t *)hd_job_member(key, to) = *(const int64_t *)hd_job_const_member(key, from);
    else if (key->kind == HD_KEY_REAL)
        *(double *)hd_job_member(key, to) = *(const double *)hd_job_const_member(key, from);
    else if (key->kind == HD_KEY_BOOL)
        *(bool *)hd_job_member(key, to) = *(const bool *)hd_job_const_member(key, from);
    return HD_OK;
}

bool hd_job_members_equal(const struct hd_key *key, const struct hd_job *a, const struct hd_job *b)
{
    const void *x = hd_job_const_member(key, a), *y = hd_job_const_member(key, b);

    if (hd_job_key_is_text(key))
        return strcmp(hd_job_text(key, a), hd_job_text(key, b)) == 0;
    if (key->kind == HD_KEY_INT)
        return *(const int64_t *)x == *(const int64_t *)y;
    if (key->kind == HD_KEY_REAL)
        return *(const double *)x == *(const double *)y;
    return key->kind != HD_KEY_BOOL || *(const bool *)x == *(const bool *)y;
}

size_t hd_job_member_bytes(const struct hd_key *key, const struct hd_job *job)
{
    if (hd_job_key_is_text(key))
        return strlen(hd_job_text(key, job));
    return key->kind == HD_KEY_FORM ? 0 : key->kind == HD_KEY_BOOL ? sizeof(bool) : sizeof(int64_t);
}

bool hd_job_is_default(const struct hd_key *key, const struct hd_job *job)
{
    const void *member = hd_job_const_member(key, job);

    if (hd_job_key_is_text(key))
        return strcmp(hd_job_text(key, job), key->text ? key->text : "") == 0;
    if (key->kind == HD_KEY_INT)
        return *(const int64_t *)member == (int64_t)key->number;
    if (key->kind == HD_KEY_REAL) /* -0.0 is not 0.0, since its text is another one */
        return memcmp(member, &key->number, sizeof key->number) == 0;
    return key->kind != HD_KEY_BOOL || *(const bool *)member == (key->number != 0);
}

/* ---- sets of keys ---- */

/* A job of defaults, and the keys with a member in each word of a job, by which jobs are compared; made
 * once per process. */
enum { MEMBER_WORDS = offsetof(struct hd_job, arena) / sizeof(uint64_t) };
_Static_assert(offsetof(struct hd_job, arena) % sizeof(uint64_t) == 0, "keys fill whole words");
_Static_assert(sizeof hd_job_keys / sizeof hd_job_keys[0] <= HD_JOB_KEYS_MAX, "a set has room");
static struct hd_job defaults;
static uint16_t first_of_word[MEMBER_WORDS]; /* 1 + index of a key; 0: none */
static uint16_t next_in_word[HD_JOB_KEYS_MAX];

static void make_words(void)
{
    hd_job_set_defaults(&defaults);
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        const bool is_array = key->kind == HD_KEY_NAME && hd_job_key_is_of_layout(key);
        const size_t first = key->offset / sizeof(uint64_t);
        const size_t last = (key->offset + (is_array ? HD_JOB_WORD_MAX : 1) - 1) / sizeof(uint64_t);

        if (key->kind == HD_KEY_FORM)
            continue;
        next_in_word[i] = first_of_word[first];
        /* no key before an array has a member in its further words */
        for (size_t word = first; word <= last; word++)
            first_of_word[word] = (uint16_t)(i + 1);
    }
}

void hd_job_add_given(const struct hd_job *job, struct hd_key_set *set)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *a = (const char *)job, *b = (const char *)&defaults;

    (void)pthread_once(&once, make_words);
    for (size_t w = 0; w < MEMBER_WORDS; w++, a += sizeof(uint64_t), b += sizeof(uint64_t))
        if (memcmp(a, b, sizeof(uint64_t)) != 0)
            for (size_t i = first_of_word[w]; i; i = next_in_word[i - 1])
                if (!hd_job_is_default(&hd_job_keys[i - 1], job))
                    hd_key_set_add(set, &hd_job_keys[i - 1]);
}

size_t hd_key_set_count(const struct hd_key_set *set)
{
    size_t count = 0;

    for (size_t w = 0; w < HD_JOB_KEYS_MAX / 64; w++)
        count += (size_t)__builtin_popcountll(set->words[w]);
    return count;
}

const struct hd_key *hd_key_set_next(const struct hd_key_set *set, const struct hd_key *last)
{
    size_t i = last ? (size_t)(last - hd_job_keys) + 1 : 0;

    while (i < HD_JOB_KEYS_MAX) {
        const uint64_t rest = set->words[i / 64] >> i % 64;

        if (rest)
            return &hd_job_keys[i + (size_t)__builtin_ctzll(rest)];
        i = (i / 64 + 1) * 64;
    }
    return NULL;
}

void hd_job_set_constant(const struct hd_key *key, double number, const char *text,
                         struct hd_job *job)
{
    if (hd_job_key_is_text(key))
        set_text(key, text, job);
    else if (key->kind != HD_KEY_FORM)
        set_number(key, number, job);
}

void hd_job_set_default(const struct hd_key *key, struct hd_job *job)
{
    hd_job_set_constant(key, key->number, key->text, job);
}

void hd_job_set_old_default(const struct hd_key *key, struct hd_job *job)
{
    hd_job_set_constant(key, key->old_default, key->old_default_text, job);
}

void hd_job_set_defaults(struct hd_job *ret_job)
{
    hd_job_init(ret_job, NULL);
    for (size_t i = 0; i < hd_job_key_count; i++)
        hd_job_set_default(&hd_job_keys[i], ret_job);
}

static enum hd_status parse_text(const struct hd_key *key, const char *text, struct hd_job *job)
{
    const size_t max = key->kind == HD_KEY_PATH ? HD_JOB_PATH_MAX : HD_JOB_WORD_MAX;

    if (key->kind != HD_KEY_PATH && (!*text || strpbrk(text, " \t")))
        return hd_err(HD_INVALID, "'%s' is not one word", text);
    if (strpbrk(text, "\n\r"))
        return hd_err(HD_INVALID, "a line break is not possible here");
    if (strlen(text) >= max)
        return hd_err(HD_INVALID, "longer than %zu bytes", max - 1);
    if (key->kind == HD_KEY_WORD && !hd_job_find_word(key->texts, text))
        return hd_err(HD_INVALID, "'%s' is not one of: %s", text, key->words);
    return hd_job_store_text(key, text, job);
}

static enum hd_status parse_int(const struct hd_key *key, const char *text, struct hd_job *job)
{
    int64_t value;
    enum hd_status st = hd_text_to_int64(text, INT64_MIN, INT64_MAX, &value);

    if (st)
        return st;
    if (!hd_job_number_is_possible(key, (double)value))
        return hd_err(HD_INVALID, "%s is outside %.0f to %.0f", text, key->min, key->max);
    *(int64_t *)hd_job_member(key, job) = value;
    return HD_OK;
}

static enum hd_status parse_real(const struct hd_key *key, const char *text, struct hd_job *job)
{
    double value;
    enum hd_status st = hd_text_to_double(text, -HUGE_VAL, HUGE_VAL, &value);

    if (st)
        return st;
    if (!hd_job_number_is_possible(key, value))
        return hd_err(HD_INVALID, "%s is outside %g to %g", text, key->min, key->max);
    *(double *)hd_job_member(key, job) = value;
    return HD_OK;
}

enum hd_status hd_job_parse(const struct hd_key *key, const char *text, struct hd_job *job)
{
    double value;

    if (hd_job_key_is_text(key))
        return parse_text(key, text, job);
    if (hd_job_word_value(key, text, &value)) {
        set_number(key, value, job);
        return HD_OK;
    }
    if (key->kind == HD_KEY_INT)
        return parse_int(key, text, job);
    if (key->kind == HD_KEY_REAL)
        return parse_real(key, text, job);
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0 && strcmp(text, "1") != 0 &&
        strcmp(text, "0") != 0)
        return hd_err(HD_INVALID, "'%s' is neither true nor false", text);
    *(bool *)hd_job_member(key, job) = *text == 't' || *text == '1';
    return HD_OK;
}

static void add_text(const char *text, struct hd_text *out)
{
    hd_text_add_bytes(out, text, strlen(text));
}

static void add_int(int64_t value, struct hd_text *out)
{
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    char digits[24], *at = digits + sizeof digits;

    do
        *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0)
        *--at = '-';
    hd_text_add_bytes(out, at, (size_t)(digits + sizeof digits - at));
}

/* Appends the digits of "%.17g", of which reading gives exactly the same double. */
static void add_real(double value, struct hd_text *out)
{
    if (fabs(value) < 1e15 && value == floor(value) && !(value == 0 && signbit(value)))
        add_int((int64_t)value, out);
    else
        hd_text_add(out, "%.17g", value);
}

enum hd_status hd_job_format(const struct hd_key *key, const struct hd_job *job,
                             struct hd_text *ret_text)
{
    const void *member = hd_job_const_member(key, job);
    const char *text = hd_job_key_is_text(key) ? hd_job_text(key, job) : "";
    char word[HD_JOB_WORD_MAX];

    switch (key->kind) {
    case HD_KEY_WORD:
    case HD_KEY_NAME:
        if (!*text && key->old_default_text)
            text = key->old_default_text;
        if (!*text || strpbrk(text, " \t\n\r"))
            return hd_err(HD_INVALID, "%s: '%s' is not one word", key->path, text);
        add_text(text, ret_text);
        break;
    case HD_KEY_PATH:
        if (strpbrk(text, "\n\r"))
            return hd_err(HD_INVALID, "%s: a path may not contain a line break", key->path);
        add_text(text, ret_text);
        break;
    case HD_KEY_INT:
        if (hd_job_word_of(key, (double)*(const int64_t *)member, word))
            add_text(word, ret_text);
        else
            add_int(*(const int64_t *)member == 0 && key->min > 0 ? (int64_t)key->old_default
                                                                  : *(const int64_t *)member,
                    ret_text);
        break;
    case HD_KEY_REAL:
        if (hd_job_word_of(key, *(const double *)member, word))
            add_text(word, ret_text);
        else
            add_real(*(const double *)member == 0 && key->min > 0 ? key->old_default
                                                                  : *(const double *)member,
                     ret_text);
        break;
    case HD_KEY_BOOL:
        add_text(*(const bool *)member ? "true" : "false", ret_text);
        break;
    case HD_KEY_FORM:
        break;
    }
    return HD_OK;
}
