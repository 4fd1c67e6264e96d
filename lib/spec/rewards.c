/* rewards: reads train.rewards and validate.tasks.check, a list of `{builtin: NAME, ..}`, `{program: [..],
 * ..}`, `{model: ..}` or names of builtins, into the JSON that the job stores (job/rewards.h). */
#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "base/words.h"
#include "job/rewards.h"
#include "spec_internal.h"

enum { REWARD_NAME_MAX = 32 };

/* ---- reading ---- */

static const char *text_in(const struct yaml_node *map, const char *key)
{
    const struct yaml_node *node = hd_yaml_find(map, key);

    return node && node->kind == YAML_KIND_SCALAR && node->text ? node->text : NULL;
}

/* Refuses a key that a reward of this kind does not have. */
static enum hd_status check_reward_keys(struct spec_reader *r, const struct yaml_node *node,
                                        enum hd_reward_kind kind)
{
    static const char *const names[] = {"builtin", "program", "model",     "name",
                                        "weight",  "timeout", "field",     "pattern",
                                        "buffer",  "memory",  "processes", "cpus"};
    const char *const own = hd_reward_kind_keys(kind);

    for (const struct yaml_node *c = node->first; c; c = c->next) {
        bool known = false;

        r->here = c;
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            known |= strcmp(names[i], c->key) == 0;
        if (!known)
            return spec_unknown_word(r->path, c->key, names, sizeof names / sizeof names[0]);
        if (!hd_words_have("builtin program model name weight", c->key) &&
            !hd_words_have(own, c->key))
            return hd_err(HD_INVALID, "%s: `%s` has no %s; remove it", r->path,
                          hd_reward_kind_name(kind), c->key);
    }
    r->here = node;
    return HD_OK;
}

/* Adds the number at `key`, or `otherwise` where the map lacks it. */
static enum hd_status add_real_key(struct spec_reader *r, const struct yaml_node *node,
                                   const char *key, const struct hd_key *range, double otherwise,
                                   struct hd_json_writer *w)
{
    const struct yaml_node *value = hd_yaml_find(node, key);
    const size_t len = strlen(r->path);
    double number = otherwise;
    enum hd_status st = HD_OK;

    if (value) {
        (void)spec_path_push(r, key);
        r->here = value;
        st = spec_read_real(r, range, value, &number);
        spec_path_pop(r, len);
    }
    hd_json_add_real(w, key, number);
    return st;
}

static enum hd_status add_program(struct spec_reader *r, const struct yaml_node *program,
                                  struct hd_json_writer *w)
{
    int count = 0;

    hd_json_begin(w, "program", '[');
    if (program->kind == YAML_KIND_SCALAR && program->text && *program->text) {
        hd_json_add_string(w, NULL, program->text);
        count++;
    }
    for (const struct yaml_node *c = program->kind == YAML_KIND_LIST ? program->first : NULL; c;
         c = c->next, count++) {
        if (c->kind != YAML_KIND_SCALAR || !c->text)
            return hd_err(HD_INVALID, "%s.program: expected a list of arguments", r->path);
        hd_json_add_string(w, NULL, c->text);
    }
    hd_json_end(w, ']');
    return count && count <= HD_REWARD_ARGUMENTS_MAX
               ? HD_OK
               : hd_err(HD_INVALID,
                        "%s.program: expected the path of a program, or a list of it and its "
                        "arguments, at most %d",
                        r->path, HD_REWARD_ARGUMENTS_MAX);
}

static enum hd_status check_pattern(const struct spec_reader *r, const char *pattern)
{
    char why[128];
    regex_t regex;
    int failed;

    if (!pattern || !*pattern)
        return hd_err(HD_INVALID, "%s: regex needs a pattern, an extended POSIX expression",
                      r->path);
    failed = regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB);
    if (failed) {
        (void)regerror(failed, &regex, why, sizeof why);
        return hd_err(HD_INVALID, "%s.pattern: is no extended POSIX expression: %s", r->path, why);
    }
    regfree(&regex);
    return HD_OK;
}

/* Adds the limits of a program that the job gives. */
static enum hd_status add_limits(struct spec_reader *r, const struct yaml_node *node,
                                 struct hd_json_writer *w)
{
    static const struct hd_key processes = {.kind = HD_KEY_REAL, .min = 1, .max = 1 << 20},
                               cpus = {.kind = HD_KEY_REAL, .min = 0.01, .max = 4096};
    const char *memory = text_in(node, "memory");
    enum hd_status st = HD_OK;
    int64_t bytes = 0;

    if (hd_yaml_find(node, "memory") && (!memory || hd_text_to_bytes(memory, 1 << 20, &bytes)))
        return hd_err(HD_INVALID, "%s.memory: expected a size of at least 1MiB, such as 4GiB",
                      r->path);
    if (bytes)
        hd_json_add_int64(w, "memory", bytes);
    if (hd_yaml_find(node, "processes"))
        st = add_real_key(r, node, "processes", &processes, 0, w);
    if (!st && hd_yaml_find(node, "cpus"))
        st = add_real_key(r, node, "cpus", &cpus, 0, w);
    return st;
}

/* Adds the keys that the kind has. */
static enum hd_status add_own_keys(struct spec_reader *r, const struct yaml_node *node,
                                   enum hd_reward_kind kind, struct hd_json_writer *w)
{
    static const struct hd_key seconds = {.kind = HD_KEY_REAL, .min = 0.05, .max = 86400};
    static const struct hd_key tokens = {.kind = HD_KEY_REAL, .min = 1, .max = 1 << 20};
    const char *const own = hd_reward_kind_keys(kind);
    const char *field = text_in(node, "field"), *pattern = text_in(node, "pattern");
    enum hd_status st = HD_OK;

    if (hd_words_have(own, "field"))
        hd_json_add_string(w, "field", field && *field ? field : "answer");
    if (hd_words_have(own, "pattern")) {
        st = check_pattern(r, pattern);
        hd_json_add_string(w, "pattern", pattern ? pattern : "");
    }
    if (!st && hd_words_have(own, "buffer") && !hd_yaml_find(node, "buffer"))
        return hd_err(HD_INVALID,
                      "%s: overlong needs `buffer`, the number of last tokens in which the reward "
                      "falls to -1",
                      r->path);
    if (!st && hd_words_have(own, "buffer"))
        st = add_real_key(r, node, "buffer", &tokens, 0, w);
    if (!st && hd_words_have(own, "timeout"))
        st = add_real_key(r, node, "timeout", &seconds, 30, w);
    if (!st && kind == HD_REWARD_PROGRAM)
        st = add_limits(r, node, w);
    return st;
}

/* Returns the name of a reward: what the job gives, or its kind. */
static const char *name_of(const struct yaml_node *node)
{
    static const char *const from[] = {"name", "builtin"};

    if (node->kind == YAML_KIND_SCALAR)
        return node->text;
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++)
        if (text_in(node, from[i]))
            return text_in(node, from[i]);
    return hd_yaml_find(node, "model") ? "model" : "program";
}

/* Returns whether the list has a reward of this name among its first `until` ones. */
static bool is_named(const struct yaml_node *list, const struct yaml_node *until, const char *name)
{
    for (const struct yaml_node *c = list->first; c != until; c = c->next)
        if (name_of(c) && strcmp(name_of(c), name) == 0)
            return true;
    return false;
}

/* Takes the folder of the reward model. dir_member: where the job keeps it; NULL: the list may have none,
 * and spec_check_choices refuses it. */
static enum hd_status add_model(struct spec_reader *r, const char *dir, const char **dir_member,
                                struct hd_json_writer *w)
{
    if (!dir || !*dir || strlen(dir) >= HD_JOB_PATH_MAX)
        return hd_err(HD_INVALID,
                      "%s.model: expected the folder of a reward model, at most %d bytes", r->path,
                      HD_JOB_PATH_MAX - 1);
    hd_json_add_bool(w, "model", true);
    return dir_member ? hd_job_set_text(r->draft.job, dir_member, dir) : HD_OK;
}

static enum hd_status add_reward(struct spec_reader *r, const struct yaml_node *list,
                                 const struct yaml_node *node, const char **dir_member,
                                 struct hd_json_writer *w)
{
    static const struct hd_key weight = {.kind = HD_KEY_REAL, .min = -1e6, .max = 1e6};
    const bool is_word = node->kind == YAML_KIND_SCALAR && node->text;
    const char *builtin = is_word ? node->text : text_in(node, "builtin");
    const struct yaml_node *program = is_word ? NULL : hd_yaml_find(node, "program");
    const bool is_model = !is_word && hd_yaml_find(node, "model");
    enum hd_reward_kind kind = is_model ? HD_REWARD_MODEL : HD_REWARD_PROGRAM;
    const char *name;
    enum hd_status st;

    if (!is_word && node->kind != YAML_KIND_MAP)
        return hd_err(
            HD_INVALID,
            "%s: expected {builtin: NAME, ..}, {program: [..], ..} or {model: FOLDER, ..}",
            r->path);
    if (builtin && !hd_reward_kind_find(builtin, &kind)) {
        static const char *const words[] = {
#define X(code, word, keys) word,
            HD_REWARD_LIST(X)
#undef X
        };

        return spec_unknown_word(r->path, builtin, words, sizeof words / sizeof words[0]);
    }
    st = is_word ? HD_OK : check_reward_keys(r, node, kind);
    if (!st && (builtin != NULL) + (program != NULL) + is_model != 1)
        st = hd_err(HD_INVALID, "%s: expected one of `builtin`, `program` and `model`", r->path);
    if (st)
        return st;
    name = name_of(node);
    if (!*name || strlen(name) >= REWARD_NAME_MAX || strpbrk(name, " /\t\"\\"))
        return hd_err(HD_INVALID, "%s.name: is a word of at most %d bytes, without / and blanks",
                      r->path, REWARD_NAME_MAX - 1);
    if (is_model && dir_member && **dir_member)
        return hd_err(HD_INVALID,
                      "%s.model: a job has at most one reward model; run another one in "
                      "a program, which has processors and no network",
                      r->path);
    if (is_named(list, node, name))
        return hd_err(HD_INVALID, "%s: a reward before it has the name %s, too; give it a `name`",
                      r->path, name);
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "name", name);
    if (builtin)
        hd_json_add_string(w, "builtin", builtin);
    else
        st = is_model ? add_model(r, text_in(node, "model"), dir_member, w)
                      : add_program(r, program, w);
    if (!st)
        st = add_real_key(r, node, "weight", &weight, 1, w);
    if (!st)
        st = add_own_keys(r, node, kind, w);
    hd_json_end(w, '}');
    return st;
}

enum hd_status spec_read_rewards(struct spec_reader *r, const struct yaml_node *node,
                                 const char *stored, const char **member)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    const size_t len = strlen(r->path);
    enum hd_status st = HD_OK;
    int64_t index = 0;
    const char **const dir_member =
        member == &r->draft.job->rewards ? &r->draft.job->reward_dir : NULL;

    *spec_given(&r->draft, stored) = true;
    if (dir_member) {
        *spec_given(&r->draft, "train.rewards.folder") = true;
        *dir_member = "";
    }
    if (node->kind != YAML_KIND_LIST || !node->first)
        return hd_err(HD_INVALID, "%s: expected a list of rewards, such as [{builtin: number}]",
                      r->path);
    hd_json_begin(&w, NULL, '[');
    for (const struct yaml_node *c = node->first; c && !st; c = c->next, index++) {
        (void)snprintf(r->path + len, sizeof r->path - len, "[%lld]", (long long)index);
        r->here = c;
        st = index == HD_REWARDS_MAX
                 ? hd_err(HD_INVALID, "%s: more than %d rewards", r->path, HD_REWARDS_MAX)
                 : add_reward(r, node, c, dir_member, &w);
        spec_path_pop(r, len);
    }
    hd_json_end(&w, ']');
    if (!st)
        st = spec_keep_rewards(r->path, &text, r->draft.job, member);
    hd_text_free(&text);
    return st;
}
