#include "controller/cli/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

static int no_memory_for_members(void)
{
    return cli_fail(hd_err(HD_NO_MEMORY, "no memory for the members of an array"));
}

static struct cli_list *copy_list(struct hd_arena *arena, const struct cli_list *list)
{
    struct cli_list *copy = hd_arena_alloc(arena, sizeof *copy);

    if (copy)
        *copy = *list;
    return copy;
}

/* ---- --array ---- */

/* Reads "8" (1 to 8) or "3-10", behind which "%4" is a limit of members that run at a time; 0:
 * none. */
static int read_range(const char *text, int64_t *ret_first, int64_t *ret_last, int64_t *ret_at_once)
{
    const char *dash = strchr(text, '-'), *percent = strchr(text, '%');
    char first[32] = "1", last[32];

    *ret_at_once = 0;
    if (percent && hd_text_to_int64(percent + 1, 1, ARRAY_MEMBERS_MAX, ret_at_once))
        return cli_usage(
            "submit: --array %s: %s; behind %% is how many members run at a time, such "
            "as 0-99%%4",
            text, hd_err_message());
    if (dash)
        (void)snprintf(first, sizeof first, "%.*s", (int)(dash - text), text);
    (void)snprintf(last, sizeof last, "%s", dash ? dash + 1 : text);
    last[strcspn(last, "%")] = '\0';
    if (dash && !hd_text_to_int64(first, 0, INT32_MAX, ret_first) &&
        !hd_text_to_int64(last, 0, INT32_MAX, ret_last) && *ret_last < *ret_first)
        return cli_usage("submit: --array %s: the range ends before it begins; write %s-%s", text,
                         last, first);
    if (hd_text_to_int64(first, 0, INT32_MAX, ret_first) ||
        hd_text_to_int64(last, *ret_first, *ret_first + ARRAY_MEMBERS_MAX - 1, ret_last))
        return cli_usage("submit: --array %s: %s; give a number of members, such as 8, or a range, "
                         "such as 3-10, of at most %d",
                         text, hd_err_message(), ARRAY_MEMBERS_MAX);
    return CLI_CONTINUE;
}

/* Returns a --set with each %a replaced by the number of a member; NULL: out of memory. */
static const char *put_number(struct hd_arena *arena, const char *item, int64_t number)
{
    struct hd_text text = {0};
    const char *at, *copy;

    for (; (at = strstr(item, "%a")); item = at + 2)
        hd_text_add(&text, "%.*s%lld", (int)(at - item), item, (long long)number);
    hd_text_add(&text, "%s", item);
    copy = text.failed ? NULL : hd_arena_strdup(arena, text.data);
    hd_text_free(&text);
    return copy;
}

static bool has_number(const struct cli_list *set)
{
    for (size_t i = 0; i < set->count; i++)
        if (strstr(set->items[i], "%a"))
            return true;
    return false;
}

static int expand_range(const char *text, const struct cli_list *set, struct hd_arena *arena,
                        struct array *array)
{
    int64_t first, last;
    int code = read_range(text, &first, &last, &array->at_once);

    if (code != CLI_CONTINUE)
        return code;
    array->count = (size_t)(last - first + 1);
    array->members = hd_arena_array(arena, array->count, sizeof *array->members);
    for (size_t i = 0; array->members && i < array->count; i++) {
        struct array_member *m = &array->members[i];

        (void)snprintf(m->suffix, sizeof m->suffix, "-%lld", (long long)first + (long long)i);
        m->set = hd_arena_alloc(arena, sizeof *m->set);
        for (size_t k = 0; m->set && k < set->count; k++)
            m->set->items[m->set->count++] = put_number(arena, set->items[k], first + (int64_t)i);
    }
    if (!array->members || hd_arena_failed(arena))
        return no_memory_for_members();
    if (array->count > 1 && !has_number(set))
        cli_note("heddle: the members of --array %s differ in their names alone; --set "
                 "train.seed=%%a gives each a seed of its own",
                 text);
    return CLI_CONTINUE;
}

/* ---- --sweep ---- */

struct sweep {
    const char *key;  /* such as "train.lr.peak" */
    const char *word; /* last word of the key, such as "peak", for names */
    const char **values;
    size_t count;
};

/* Returns the length of the value at `text`: up to a comma outside brackets and quotes. */
static size_t sweep_value_length(const char *text)
{
    char quote = '\0';
    int depth = 0;
    size_t n = 0;

    for (; text[n] && (quote || depth > 0 || text[n] != ','); n++) {
        if (quote)
            quote = text[n] == quote ? '\0' : quote;
        else if (text[n] == '"' || text[n] == '\'')
            quote = text[n];
        else if (strchr("[{", text[n]))
            depth++;
        else if (strchr("]}", text[n]))
            depth--;
    }
    return n;
}

/* Reads KEY=V1,V2,... */
static int read_sweep(const char *text, struct hd_arena *arena, struct sweep *sweep)
{
    const char *equals = strchr(text, '='), *at = equals ? equals + 1 : "";
    char *key = hd_arena_strdup(arena, text);

    sweep->values = hd_arena_array(arena, ARRAY_MEMBERS_MAX, sizeof *sweep->values);
    if (!key || !sweep->values)
        return no_memory_for_members();
    if (!equals || equals == text)
        return cli_usage("submit: --sweep %s is no KEY=VALUE,VALUE..., such as "
                         "train.lr.peak=1e-3,3e-4",
                         text);
    key[equals - text] = '\0';
    sweep->key = key;
    sweep->word = strrchr(key, '.') ? strrchr(key, '.') + 1 : key;
    if (strcmp(key, "name") == 0)
        return cli_usage("submit: --sweep name: members get names of their own");
    for (;;) {
        const size_t n = sweep_value_length(at);

        if (!n)
            return cli_usage("submit: --sweep %s: a value is empty", text);
        if (sweep->count == ARRAY_MEMBERS_MAX)
            return cli_usage("submit: --sweep %s: more than %d values", key, ARRAY_MEMBERS_MAX);
        sweep->values[sweep->count++] = hd_arena_printf(arena, "%.*s", (int)n, at);
        if (!at[n])
            break;
        at += n + 1;
    }
    return hd_arena_failed(arena) ? no_memory_for_members() : CLI_CONTINUE;
}

static int read_sweeps(const struct cli_list *texts, const struct cli_list *set,
                       struct hd_arena *arena, struct sweep *sweeps, size_t *ret_count)
{
    int code = CLI_CONTINUE;

    *ret_count = 1;
    if (texts->count > ARRAY_SWEEPS_MAX)
        return cli_usage("submit: more than %d --sweep", ARRAY_SWEEPS_MAX);
    for (size_t i = 0; i < texts->count && code == CLI_CONTINUE; i++) {
        code = read_sweep(texts->items[i], arena, &sweeps[i]);
        if (code != CLI_CONTINUE)
            return code;
        for (size_t k = 0; k < i; k++)
            if (strcmp(sweeps[k].key, sweeps[i].key) == 0)
                return cli_usage("submit: --sweep %s is given twice; give all values in one",
                                 sweeps[i].key);
        for (size_t k = 0; k < set->count; k++)
            if (strncmp(set->items[k], sweeps[i].key, strlen(sweeps[i].key)) == 0 &&
                set->items[k][strlen(sweeps[i].key)] == '=')
                return cli_usage("submit: %s is in --set and in --sweep", sweeps[i].key);
        *ret_count *= sweeps[i].count;
        if (*ret_count > ARRAY_MEMBERS_MAX)
            return cli_usage("submit: the --sweep make more than %d members", ARRAY_MEMBERS_MAX);
    }
    return code;
}

/* Appends the word of a key and a value to a member's name. Returns false if it gets too long. */
static bool add_to_suffix(const struct sweep *sweep, const char *value, char *suffix)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t before = strlen(suffix);
    const int n = snprintf(suffix + before, HD_JOB_WORD_MAX - before, "-%s%s", sweep->word, value);

    if (n < 0 || before + (size_t)n >= HD_JOB_WORD_MAX)
        return false;
    for (char *at = suffix + before; *at; at++)
        if (!strchr(letters, *at))
            *at = '-';
    return true;
}

static bool has_suffix(const struct array *array, size_t count, const char *suffix)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(array->members[i].suffix, suffix) == 0)
            return true;
    return false;
}

static void number_members(const struct array *array)
{
    for (size_t i = 0; i < array->count; i++)
        (void)snprintf(array->members[i].suffix, sizeof array->members[i].suffix, "-%zu", i + 1);
}

/* Makes the product of all values; those of the last sweep change fastest. */
static int expand_sweeps(const struct cli_list *texts, const struct cli_list *set,
                         struct hd_arena *arena, struct array *array)
{
    struct sweep sweeps[ARRAY_SWEEPS_MAX] = {{NULL, NULL, NULL, 0}};
    bool numbered = false;
    int code = read_sweeps(texts, set, arena, sweeps, &array->count);

    if (code != CLI_CONTINUE)
        return code;
    array->members = hd_arena_array(arena, array->count, sizeof *array->members);
    for (size_t i = 0; array->members && i < array->count; i++) {
        struct array_member *m = &array->members[i];
        size_t step = array->count;

        m->set = copy_list(arena, set);
        for (size_t k = 0; m->set && k < texts->count; k++) {
            const char *value;

            step /= sweeps[k].count;
            value = sweeps[k].values[i / step % sweeps[k].count];
            if (m->set->count == sizeof m->set->items / sizeof m->set->items[0])
                return cli_usage("submit: more than %zu --set", m->set->count);
            m->set->origins[m->set->count] =
                hd_arena_printf(arena, "--sweep %s=%s", sweeps[k].key, value);
            m->set->items[m->set->count++] = hd_arena_printf(arena, "%s=%s", sweeps[k].key, value);
            numbered |= !add_to_suffix(&sweeps[k], value, m->suffix);
        }
        numbered |= has_suffix(array, i, m->suffix);
    }
    if (!array->members || hd_arena_failed(arena))
        return no_memory_for_members();
    array->is_sweep = true;
    if (numbered)
        number_members(array);
    return CLI_CONTINUE;
}

/* ---- both ---- */

int array_expand(const char *text, const struct cli_list *sweeps, const struct cli_list *set,
                 struct hd_arena *arena, struct array *ret_array)
{
    *ret_array = (struct array){.count = 1};
    if (text && sweeps->count)
        return cli_usage("submit: --array and --sweep: give one of them; --sweep train.seed=1,2,3 "
                         "makes members with seeds, too");
    if (text)
        return expand_range(text, set, arena, ret_array);
    if (sweeps->count)
        return expand_sweeps(sweeps, set, arena, ret_array);
    ret_array->is_one = true;
    ret_array->members = hd_arena_array(arena, 1, sizeof *ret_array->members);
    if (!ret_array->members)
        return no_memory_for_members();
    ret_array->members[0].set = copy_list(arena, set);
    return ret_array->members[0].set ? CLI_CONTINUE : no_memory_for_members();
}

int array_name(const struct array *array, struct hd_job *const *jobs)
{
    size_t longest = 0;

    for (size_t i = 0; i < array->count; i++)
        longest =
            strlen(array->members[i].suffix) > longest ? strlen(array->members[i].suffix) : longest;
    if (array->is_sweep && strlen(jobs[0]->name) + longest >= HD_JOB_WORD_MAX)
        number_members(array);
    for (size_t i = 0; i < array->count && !array->is_one; i++) {
        char name[2 * HD_JOB_WORD_MAX];

        (void)snprintf(name, sizeof name, "%s%s", jobs[i]->name, array->members[i].suffix);
        if (strlen(name) >= HD_JOB_WORD_MAX)
            return cli_usage("submit: the name of a member, %s, is longer than %d characters; give "
                             "the job a shorter name",
                             name, HD_JOB_WORD_MAX - 1);
        if (hd_job_set_text(jobs[i], &jobs[i]->name, name))
            return cli_fail(HD_NO_MEMORY);
    }
    return CLI_CONTINUE;
}

void array_limit(const struct array *array, const char *id, struct hd_job *const *jobs)
{
    /* the name of the job and a hash of the request's id, of which only the end may be unique */
    const uint64_t hash = hd_hash_bytes(id, strlen(id));
    const int length = (int)(strlen(jobs[0]->name) - strlen(array->members[0].suffix));

    for (size_t i = 0; i < array->count && array->at_once; i++) {
        if (strcmp(jobs[i]->array_id, "none") == 0)
            (void)hd_job_print_text(jobs[i], &jobs[i]->array_id, "%.*s-%016" PRIx64,
                                    length < 46 ? length : 46, jobs[0]->name, hash);
        jobs[i]->array_at_once = array->at_once;
    }
}
