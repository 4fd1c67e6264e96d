#include "job/rewards.h"

#include <stdlib.h>
#include <string.h>

#include "base/words.h"

static const struct {
    const char *name, *keys;
} kinds[] = {
#define X(code, name, keys) [HD_REWARD_##code] = {name, keys},
    HD_REWARD_LIST(X)
#undef X
        [HD_REWARD_PROGRAM] = {"program", "timeout memory processes cpus"},
    [HD_REWARD_MODEL] = {"model", ""},
};

const char *hd_reward_kind_name(enum hd_reward_kind kind)
{
    return kinds[kind].name;
}

const char *hd_reward_kind_keys(enum hd_reward_kind kind)
{
    return kinds[kind].keys;
}

bool hd_reward_kind_find(const char *name, enum hd_reward_kind *ret_kind)
{
    for (int k = 0; k < HD_REWARD_PROGRAM; k++)
        if (strcmp(kinds[k].name, name) == 0) {
            *ret_kind = (enum hd_reward_kind)k;
            return true;
        }
    return false;
}

double hd_rewards_sum(const struct hd_rewards *rewards, const double *values)
{
    double sum = 0;

    for (int64_t i = 0; i < rewards->count; i++)
        sum += rewards->list[i].weight * values[i];
    return sum;
}

bool hd_rewards_name_program(const char *text)
{
    return strstr(text, "\"program\":") != NULL; /* a quote within a text is escaped */
}

int64_t hd_rewards_find(const struct hd_rewards *rewards, enum hd_reward_kind kind)
{
    for (int64_t i = 0; i < rewards->count; i++)
        if (rewards->list[i].kind == kind)
            return i;
    return -1;
}

static double number_of(const struct hd_json *reward, const char *key, double otherwise)
{
    const struct hd_json *value = hd_json_member(reward, key);

    return value && value->kind == HD_JSON_NUMBER ? strtod(value->text, NULL) : otherwise;
}

static const char *text_of(const struct hd_json *reward, const char *key)
{
    const char *text = hd_json_text(reward, key);

    return text ? text : "";
}

static enum hd_status read_reward(const struct hd_json *from, struct hd_reward *ret)
{
    const struct hd_json *program = hd_json_member(from, "program");
    int count = 0;

    *ret = (struct hd_reward){.kind = HD_REWARD_PROGRAM,
                              .name = text_of(from, "name"),
                              .weight = number_of(from, "weight", 1),
                              .field = text_of(from, "field"),
                              .pattern = text_of(from, "pattern"),
                              .buffer = (int64_t)number_of(from, "buffer", 0),
                              .timeout_s = number_of(from, "timeout", 30),
                              .memory_bytes = (int64_t)number_of(from, "memory", 0),
                              .processes = (int64_t)number_of(from, "processes", 0),
                              .cpus = number_of(from, "cpus", 0)};
    if (hd_json_member(from, "model")) {
        ret->kind = HD_REWARD_MODEL;
        return HD_OK;
    }
    if (!program)
        return hd_reward_kind_find(text_of(from, "builtin"), &ret->kind)
                   ? HD_OK
                   : hd_err(HD_INVALID, "there is no builtin '%s'", text_of(from, "builtin"));
    for (const struct hd_json *a = program->first; a; a = a->next) {
        if (a->kind != HD_JSON_STRING || count == HD_REWARD_ARGUMENTS_MAX)
            return hd_err(HD_INVALID, "program: expected at most %d texts",
                          HD_REWARD_ARGUMENTS_MAX);
        ret->argv[count++] = a->text;
    }
    return count ? HD_OK : hd_err(HD_INVALID, "program: has no argument");
}

enum hd_status hd_rewards_read(const char *key, const char *text, struct hd_arena *arena,
                               struct hd_rewards *ret_rewards)
{
    static const struct hd_json_limits limits = {.values_max = 4096, .depth_max = 4};
    const struct hd_json *root = NULL;
    enum hd_status st = HD_OK;

    *ret_rewards = (struct hd_rewards){.count = 0};
    if (!*text)
        return HD_OK;
    st = hd_json_parse(arena, text, strlen(text), &limits, &root);
    if (!st && (root->kind != HD_JSON_ARRAY || root->count > HD_REWARDS_MAX))
        st = hd_err(HD_INVALID, "expected a list of at most %d rewards", HD_REWARDS_MAX);
    for (const struct hd_json *r = st ? NULL : root->first; !st && r; r = r->next) {
        if (r->kind != HD_JSON_OBJECT)
            st = hd_err(HD_INVALID, "a reward is no object");
        else
            st = read_reward(r, &ret_rewards->list[ret_rewards->count]);
        if (st)
            return hd_err_prefix(st, "%s[%lld]", key, (long long)ret_rewards->count);
        ret_rewards->count++;
    }
    return st ? hd_err_prefix(st, "%s", key) : HD_OK;
}
