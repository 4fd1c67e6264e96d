/* policy: parses the policy file, and answers from its rules. One rule per line, words separated by
 * spaces.
 *
 *     role NAME ROLE            NAME as heddle whoami prints it: ann, uid:1001, token
 *     role-of-uids ROLE         role of every other user who can open the Unix socket
 *     role-of-tokens ROLE       role of every other name of --token-file
 *     see WHO own|jobs|all      WHO: a NAME, or role:ROLE
 *     limit WHO LIMIT NUMBER    0: no limit
 *     user NAME SYSTEM-USER|own  system user of the ranks of NAME's jobs; own: heddled's own user
 *     user-of-uids SYSTEM-USER|same|own    for every other uid:NUMBER; same: that uid
 *     user-of-others SYSTEM-USER|same|own  for every other name; same: the user of that name
 *     keep history DAYS | history-jobs COUNT | step-lines COUNT after DAYS
 *
 * A rule for a name precedes the rule for its role. Two rules for the same subject are an error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "base/user.h"
#include "controller/identity/identity.h"

enum { FILE_BYTES_MAX = 1024 * 1024, RULES_MAX = 16384, WORDS_MAX = 6 };

#define DAY_MS INT64_C(86400000)

enum rule_kind { RULE_ROLE, RULE_SEE, RULE_LIMIT, RULE_USER };

struct policy_rule {
    enum rule_kind kind;
    char who[HD_CTL_NAME_BYTES_MAX + 1]; /* whom the rule is about: a name, or a role as
                                          * "role:user" */
    enum hd_limit limit;
    int64_t value;
    char user[HD_USER_BYTES_MAX + 1]; /* system user, with RULE_USER */
};

struct hd_policy {
    struct policy_rule *rules;
    size_t count, capacity;
    enum hd_role uids, tokens;
    bool uids_given, tokens_given, history_given, history_jobs_given, step_lines_given;
    struct hd_retention retention;
    bool maps_users; /* true: the policy has a rule for system users, so every owner needs one */
    char uids_user[HD_USER_BYTES_MAX + 1], others_user[HD_USER_BYTES_MAX + 1]; /* "": no rule */
};

const char *hd_limit_name(enum hd_limit limit)
{
    static const char *const names[] = {
#define X(name, word, preset, unit) word,
        HD_LIMIT_LIST(X)
#undef X
    };

    return names[limit];
}

const char *hd_limit_unit(enum hd_limit limit)
{
    static const char *const units[] = {
#define X(name, word, preset, unit) unit,
        HD_LIMIT_LIST(X)
#undef X
    };

    return units[limit];
}

struct hd_policy *hd_policy_new(void)
{
    struct hd_policy *policy = calloc(1, sizeof *policy);

    if (policy)
        policy->tokens = HD_ROLE_USER;
    return policy;
}

void hd_policy_free(struct hd_policy *policy)
{
    if (policy)
        free(policy->rules);
    free(policy);
}

/* ---- looking up -------------------------------------------------------------------------------*/

static const struct policy_rule *find(const struct hd_policy *policy, enum rule_kind kind,
                                      const char *who, enum hd_limit limit)
{
    for (size_t i = 0; i < policy->count; i++) {
        const struct policy_rule *rule = &policy->rules[i];

        if (rule->kind == kind && strcmp(rule->who, who) == 0 &&
            (kind != RULE_LIMIT || rule->limit == limit))
            return rule;
    }
    return NULL;
}

/* Returns the policy's rule of this kind for the name, else that for its role; NULL: neither
 * exists. */
static const struct policy_rule *find_for(const struct hd_policy *policy, enum rule_kind kind,
                                          const char *name, enum hd_role role, enum hd_limit limit)
{
    const struct policy_rule *rule = policy->count ? find(policy, kind, name, limit) : NULL;
    char who[32];

    if (rule || !policy->count)
        return rule;
    (void)snprintf(who, sizeof who, "role:%s", hd_role_name(role));
    return find(policy, kind, who, limit);
}

enum hd_role hd_policy_role(const struct hd_policy *policy, const char *name, enum hd_login login)
{
    const struct policy_rule *rule = find(policy, RULE_ROLE, name, 0);

    if (rule)
        return (enum hd_role)rule->value;
    return login == HD_LOGIN_SOCKET ? policy->uids : policy->tokens;
}

enum hd_visibility hd_policy_visibility(const struct hd_policy *policy, const char *name,
                                        enum hd_role role)
{
    const struct policy_rule *rule;

    if (hd_role_has(role, HD_ROLE_OPERATOR))
        return HD_VISIBILITY_ALL;
    rule = find_for(policy, RULE_SEE, name, role, 0);
    return rule ? (enum hd_visibility)rule->value : HD_VISIBILITY_OWN;
}

int64_t hd_policy_limit(const struct hd_policy *policy, const char *name, enum hd_role role,
                        enum hd_limit limit)
{
    static const int64_t presets[] = {
#define X(name, word, preset, unit) preset,
        HD_LIMIT_LIST(X)
#undef X
    };
    const struct policy_rule *rule = find_for(policy, RULE_LIMIT, name, role, limit);
    int64_t value = rule ? rule->value : 0;

    if (!rule && !hd_role_has(role, HD_ROLE_OPERATOR))
        value = presets[limit];
    return value ? value : INT64_MAX;
}

struct hd_retention hd_policy_retention(const struct hd_policy *policy)
{
    return policy->retention;
}

/* Sets ret_user to the system user that `same` means for an owner: the owner's name itself; for a
 * certificate the part after "cert:". */
static enum hd_status same_user(const char *owner, char ret_user[HD_USER_BYTES_MAX + 1])
{
    const char *word = hd_text_starts(owner, "cert:") ? owner + 5 : owner;
    enum hd_status st = strcmp(owner, "token") == 0
                            ? hd_err(HD_INVALID, "\"token\" is the name of no one")
                            : hd_user_check(word);

    if (!st)
        (void)snprintf(ret_user, HD_USER_BYTES_MAX + 1, "%s", word);
    return st;
}

enum hd_status hd_policy_user(const struct hd_policy *policy, const char *owner,
                              char ret_user[HD_USER_BYTES_MAX + 1])
{
    const struct policy_rule *rule = policy->maps_users ? find(policy, RULE_USER, owner, 0) : NULL;
    const bool is_uid = hd_text_starts(owner, "uid:");
    const char *user = rule                             ? rule->user
                       : is_uid && policy->uids_user[0] ? policy->uids_user
                                                        : policy->others_user;
    enum hd_status st = HD_OK;

    ret_user[0] = '\0';
    if (!policy->maps_users || strcmp(user, "own") == 0)
        return HD_OK;
    if (!*user)
        return hd_err(HD_DENIED,
                      "the policy names no system user for jobs of %s; an admin adds the line "
                      "\"user %s NAME\" to the policy file and reloads the controller",
                      owner, owner);
    if (strcmp(user, "same") == 0)
        st = same_user(owner, ret_user);
    else
        (void)snprintf(ret_user, HD_USER_BYTES_MAX + 1, "%s", user);
    return st ? hd_err(HD_DENIED,
                       "jobs of %s have no system user: %.200s; an admin adds the line \"user %s "
                       "NAME\" to the policy file and reloads the controller",
                       owner, hd_err_message(), owner)
              : HD_OK;
}

/* ---- reading ----------------------------------------------------------------------------------*/

static enum hd_status add(struct hd_policy *policy, const struct policy_rule *rule)
{
    struct policy_rule *bigger;
    size_t capacity;

    if (find(policy, rule->kind, rule->who, rule->limit))
        return hd_err(HD_INVALID, "a second rule for %s; keep one of them", rule->who);
    if (policy->count == RULES_MAX)
        return hd_err(HD_LIMIT, "more than %d rules", RULES_MAX);
    if (policy->count == policy->capacity) {
        capacity = policy->capacity ? 2 * policy->capacity : 16;
        bigger = realloc(policy->rules, capacity * sizeof *bigger);
        if (!bigger)
            return hd_err(HD_NO_MEMORY, "no memory for a policy");
        policy->rules = bigger;
        policy->capacity = capacity;
    }
    policy->rules[policy->count++] = *rule;
    return HD_OK;
}

/* Returns whether a word is uid:NUMBER, cert:NAME, or a name of a token, including "token". */
static bool is_name(const char *word)
{
    int64_t uid;

    if (hd_text_starts(word, "uid:"))
        return hd_text_to_int64(word + 4, 0, UINT32_MAX - 1, &uid) == HD_OK && word[4] != '+' &&
               (word[4] != '0' || !word[5]);
    if (hd_text_starts(word, "cert:"))
        return hd_identity_is_name(word + 5);
    return strcmp(word, "token") == 0 || hd_identity_is_name(word);
}

static enum hd_status read_who(const char *word, bool takes_roles, struct policy_rule *rule)
{
    enum hd_role role;

    if (takes_roles && hd_text_starts(word, "role:")) {
        if (!hd_role_of(word + 5, &role))
            return hd_err(HD_INVALID, "%s: the roles are viewer, user, operator and admin", word);
    } else if (!is_name(word)) {
        return hd_err(HD_INVALID,
                      "\"%s\" is no name: write it as heddle whoami says it, such as ann or "
                      "uid:1001%s; there are no patterns",
                      word, takes_roles ? ", or role:user for all users" : "");
    }
    (void)snprintf(rule->who, sizeof rule->who, "%s", word);
    return HD_OK;
}

static enum hd_status read_role(const char *word, enum hd_role *ret_role)
{
    return hd_role_of(word, ret_role)
               ? HD_OK
               : hd_err(HD_INVALID,
                        "\"%s\" is no role: write none, viewer, user, operator or admin", word);
}

static enum hd_status take_role(struct hd_policy *policy, char **words)
{
    struct policy_rule rule = {.kind = RULE_ROLE};
    enum hd_role role = HD_ROLE_NONE;
    enum hd_status st = read_who(words[1], false, &rule);

    if (!st)
        st = read_role(words[2], &role);
    rule.value = role;
    return st ? st : add(policy, &rule);
}

static enum hd_status take_role_of(char **words, enum hd_role *ret_role, bool *given)
{
    enum hd_status st = read_role(words[1], ret_role);

    if (!st && *given)
        st = hd_err(HD_INVALID, "a second %s; keep one of them", words[0]);
    if (!st && hd_role_has(*ret_role, HD_ROLE_OPERATOR))
        st = hd_err(HD_INVALID, "%s %s would be for everyone: give that role by name", words[0],
                    words[1]);
    *given = true;
    return st;
}

static enum hd_status take_see(struct hd_policy *policy, char **words)
{
    static const char *const visibilities[] = {
        [HD_VISIBILITY_OWN] = "own", [HD_VISIBILITY_JOBS] = "jobs", [HD_VISIBILITY_ALL] = "all"};
    struct policy_rule rule = {.kind = RULE_SEE, .value = -1};
    enum hd_status st = read_who(words[1], true, &rule);

    for (int i = 0; !st && i < 3; i++)
        if (strcmp(words[2], visibilities[i]) == 0)
            rule.value = i;
    if (!st && rule.value < 0)
        st = hd_err(HD_INVALID, "\"%s\": write see %s own, jobs or all", words[2], words[1]);
    return st ? st : add(policy, &rule);
}

static enum hd_status take_limit(struct hd_policy *policy, char **words)
{
    struct policy_rule rule = {.kind = RULE_LIMIT, .limit = HD_LIMIT_COUNT};
    enum hd_status st = read_who(words[1], true, &rule);

    for (int i = 0; !st && i < HD_LIMIT_COUNT; i++)
        if (strcmp(words[2], hd_limit_name((enum hd_limit)i)) == 0)
            rule.limit = (enum hd_limit)i;
    if (!st && rule.limit == HD_LIMIT_COUNT)
        st = hd_err(HD_INVALID, "\"%s\" is no limit; the limits are those of heddle limits",
                    words[2]);
    if (!st)
        st = hd_text_to_bytes(words[3], 0, &rule.value);
    return st ? st : add(policy, &rule);
}

static enum hd_status read_days(const char *word, int64_t *ret_ms)
{
    int64_t days;
    enum hd_status st = hd_text_to_int64(word, 1, 36500, &days);

    if (!st)
        *ret_ms = days * DAY_MS;
    return st ? hd_err_prefix(st, "days") : HD_OK;
}

static enum hd_status once(bool *given, const char *what)
{
    if (*given)
        return hd_err(HD_INVALID, "a second keep %s; keep one of them", what);
    *given = true;
    return HD_OK;
}

static enum hd_status take_retention(struct hd_policy *policy, char **words, size_t count)
{
    struct hd_retention *retention = &policy->retention;
    enum hd_status st;

    if (count == 3 && strcmp(words[1], "history") == 0) {
        st = once(&policy->history_given, words[1]);
        return st ? st : read_days(words[2], &retention->history_ms);
    }
    if (count == 3 && strcmp(words[1], "history-jobs") == 0) {
        st = once(&policy->history_jobs_given, words[1]);
        return st ? st : hd_text_to_int64(words[2], 1, INT32_MAX, &retention->history_jobs);
    }
    if (count == 5 && strcmp(words[1], "step-lines") == 0 && strcmp(words[3], "after") == 0) {
        st = once(&policy->step_lines_given, words[1]);
        if (!st)
            st = hd_text_to_int64(words[2], 16, INT32_MAX, &retention->step_lines);
        return st ? st : read_days(words[4], &retention->step_lines_ms);
    }
    return hd_err(HD_INVALID, "write keep history DAYS, keep history-jobs COUNT, or keep "
                              "step-lines COUNT after DAYS");
}

/* Reads the name of a system user from a rule. takes_same: the rule covers many names, so `same` is
 * allowed. */
static enum hd_status read_user(const char *word, bool takes_same,
                                char ret_user[HD_USER_BYTES_MAX + 1])
{
    enum hd_status st = HD_OK;

    if (strcmp(word, "own") != 0 && !(takes_same && strcmp(word, "same") == 0))
        st = hd_user_check(word);
    if (st == HD_DENIED) /* a rule that names root is an invalid value, like any other mistake in
                          * the file */
        st = hd_err(HD_INVALID, "%s", hd_err_message());
    if (!st && strcmp(word, "same") == 0 && !takes_same)
        st = hd_err(HD_INVALID, "same is for user-of-uids and user-of-others; write the user");
    if (!st)
        (void)snprintf(ret_user, HD_USER_BYTES_MAX + 1, "%s", word);
    return st;
}

static enum hd_status take_user(struct hd_policy *policy, char **words)
{
    struct policy_rule rule = {.kind = RULE_USER};
    enum hd_status st = read_who(words[1], false, &rule);

    if (!st)
        st = read_user(words[2], false, rule.user);
    policy->maps_users = true;
    return st ? st : add(policy, &rule);
}

static enum hd_status take_user_of(struct hd_policy *policy, char **words,
                                   char user[HD_USER_BYTES_MAX + 1])
{
    policy->maps_users = true;
    return *user ? hd_err(HD_INVALID, "a second %s; keep one of them", words[0])
                 : read_user(words[1], true, user);
}

static enum hd_status take_line(struct hd_policy *policy, char *line)
{
    char *words[WORDS_MAX] = {NULL}, *rest = NULL;
    size_t count = 0;

    line[strcspn(line, "#")] = '\0';
    for (char *word = strtok_r(line, " \t\r", &rest); word; word = strtok_r(NULL, " \t\r", &rest)) {
        if (count == WORDS_MAX)
            return hd_err(HD_INVALID, "more words than any rule has");
        words[count++] = word;
    }
    if (!count)
        return HD_OK;
    if (strcmp(words[0], "role") == 0 && count == 3)
        return take_role(policy, words);
    if (strcmp(words[0], "role-of-uids") == 0 && count == 2)
        return take_role_of(words, &policy->uids, &policy->uids_given);
    if (strcmp(words[0], "role-of-tokens") == 0 && count == 2)
        return take_role_of(words, &policy->tokens, &policy->tokens_given);
    if (strcmp(words[0], "see") == 0 && count == 3)
        return take_see(policy, words);
    if (strcmp(words[0], "limit") == 0 && count == 4)
        return take_limit(policy, words);
    if (strcmp(words[0], "user") == 0 && count == 3)
        return take_user(policy, words);
    if (strcmp(words[0], "user-of-uids") == 0 && count == 2)
        return take_user_of(policy, words, policy->uids_user);
    if (strcmp(words[0], "user-of-others") == 0 && count == 2)
        return take_user_of(policy, words, policy->others_user);
    if (strcmp(words[0], "keep") == 0)
        return take_retention(policy, words, count);
    return hd_err(HD_INVALID,
                  "this is no rule; write role NAME ROLE, role-of-uids ROLE, "
                  "role-of-tokens ROLE, see WHO WHAT, limit WHO LIMIT NUMBER, user NAME "
                  "SYSTEM-USER, user-of-uids SYSTEM-USER, user-of-others SYSTEM-USER "
                  "or keep WHAT NUMBER");
}

enum hd_status hd_policy_parse(const char *name, const char *text, struct hd_policy **ret_policy)
{
    struct hd_policy *policy = hd_policy_new();
    char *copy = strdup(text), *rest = copy;
    enum hd_status st = policy && copy ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a policy");

    for (int number = 1; !st && rest; number++) {
        char *line = rest, *end = strchr(rest, '\n');

        rest = end ? end + 1 : NULL;
        if (end)
            *end = '\0';
        st = take_line(policy, line);
        if (st)
            st = hd_err_prefix(st, "%s:%d", name, number);
    }
    free(copy);
    if (st)
        hd_policy_free(policy);
    else
        *ret_policy = policy;
    return st;
}

enum hd_status hd_policy_read(const char *path, const char *dir, struct hd_policy **ret_policy)
{
    struct hd_text text = {0};
    mode_t mode = 0;
    enum hd_status st = hd_user_read_file(path, FILE_BYTES_MAX, 0, dir, &mode, &text);

    if (!st && mode & (S_IWGRP | S_IWOTH))
        st = hd_err(HD_DENIED, "others may change the policy %s; run: chmod go-w %s", path, path);
    if (!st && text.len_bytes && strlen(text.data) != text.len_bytes)
        st = hd_err(HD_INVALID, "%s is no policy file: it has a NUL byte", path);
    if (!st)
        st = hd_policy_parse(path, text.data ? text.data : "", ret_policy);
    hd_text_free(&text);
    return st;
}
