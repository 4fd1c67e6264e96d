#include "train/builtin_reward.h"

#include <ctype.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

struct hd_builtin_reward {
    struct hd_reward of;
    regex_t regex;
    bool has_regex;
};

enum hd_status hd_builtin_reward_new(const struct hd_reward *reward,
                                     struct hd_builtin_reward **ret_reward)
{
    struct hd_builtin_reward *b = calloc(1, sizeof *b);

    if (!b)
        return hd_err(HD_NO_MEMORY, "no memory for a reward");
    b->of = *reward;
    if (reward->kind == HD_REWARD_REGEX) {
        if (regcomp(&b->regex, reward->pattern, REG_EXTENDED | REG_NOSUB)) {
            free(b);
            return hd_err(HD_INVALID, "%s: the pattern is no extended POSIX expression",
                          reward->name);
        }
        b->has_regex = true;
    }
    *ret_reward = b;
    return HD_OK;
}

void hd_builtin_reward_free(struct hd_builtin_reward *b)
{
    if (b && b->has_regex)
        regfree(&b->regex);
    free(b);
}

/* ---- numbers ---- */

/* Reads a number that begins at `at`, with commas between groups of digits. Returns the place behind
 * it; NULL: there is none. */
static const char *read_number(const char *at, double *ret_number)
{
    char digits[64];
    size_t n = 0;
    bool any = false, point = false;

    if (*at == '-' || *at == '+')
        digits[n++] = *at++;
    for (; n + 1 < sizeof digits; at++) {
        if (isdigit((unsigned char)*at)) {
            any = true;
        } else if (*at == ',' && any && !point && isdigit((unsigned char)at[1])) {
            continue;
        } else if (*at == '.' && !point && isdigit((unsigned char)at[1])) {
            point = true;
        } else {
            break;
        }
        digits[n++] = *at;
    }
    digits[n] = '\0';
    if (!any)
        return NULL;
    *ret_number = strtod(digits, NULL);
    return at;
}

/* Returns whether a sign at `at` belongs to a number, and is no operator behind another one. */
static bool is_sign(const char *text, const char *at)
{
    while (at > text && at[-1] == ' ')
        at--;
    return at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == ')' || at[-1] == '}');
}

static bool last_number_in(const char *text, size_t bytes, double *ret_number)
{
    const char *const end = text + bytes;
    bool found = false;

    for (const char *at = text; at < end;) {
        const bool digit =
            isdigit((unsigned char)*at) || (*at == '.' && isdigit((unsigned char)at[1]));
        const bool sign = (*at == '-' || *at == '+') && is_sign(text, at) &&
                          (isdigit((unsigned char)at[1]) || at[1] == '.');
        const char *behind = digit || sign ? read_number(at, ret_number) : NULL;

        found |= behind != NULL;
        at = behind ? behind : at + 1;
    }
    return found;
}

bool hd_find_last_number(const char *text, double *ret_number)
{
    const char *boxed = NULL;

    for (const char *at = text; (at = strstr(at, "\\boxed{")); at++)
        boxed = at + strlen("\\boxed{");
    if (boxed && last_number_in(boxed, strcspn(boxed, "}"), ret_number))
        return true;
    return last_number_in(text, strlen(text), ret_number);
}

/* ---- the rewards ---- */

static bool are_close(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b)));
}

/* Returns 1 if the last number of the text is that of the field, which is a number or a text with
 * one, as the answers of GSM8K. */
static double rate_number(const struct hd_json *field, const char *text)
{
    double right, own;

    if (!field || (field->kind != HD_JSON_NUMBER && field->kind != HD_JSON_STRING))
        return NAN;
    if (field->kind == HD_JSON_NUMBER)
        right = strtod(field->text, NULL);
    else if (!hd_find_last_number(field->text, &right))
        return NAN;
    return hd_find_last_number(text, &own) && are_close(own, right) ? 1 : 0;
}

static void trim(const char **text, size_t *bytes)
{
    while (*bytes && isspace((unsigned char)**text))
        (*text)++, (*bytes)--;
    while (*bytes && isspace((unsigned char)(*text)[*bytes - 1]))
        (*bytes)--;
}

static double rate_exact(const struct hd_json *field, const char *text)
{
    const char *right = field ? field->text : NULL;
    size_t right_bytes, bytes = strlen(text);

    if (!right || (field->kind != HD_JSON_STRING && field->kind != HD_JSON_NUMBER))
        return NAN;
    right_bytes = strlen(right);
    trim(&right, &right_bytes);
    trim(&text, &bytes);
    return bytes == right_bytes && memcmp(text, right, bytes) == 0 ? 1 : 0;
}

/* Returns 1 if the text is <think>..</think> and more than blanks behind it, each tag once. */
static double rate_format(const char *text)
{
    static const char open[] = "<think>", close[] = "</think>";
    size_t bytes = strlen(text);
    const char *end;

    trim(&text, &bytes);
    if (strncmp(text, open, strlen(open)) != 0 || strstr(text + 1, open))
        return 0;
    end = strstr(text, close);
    if (!end || strstr(end + 1, close))
        return 0;
    end += strlen(close);
    return end + strspn(end, " \t\r\n") < text + bytes ? 1 : 0;
}

/* Returns the soft penalty of DAPO (Yu et al. 2025): 0 up to max_tokens - buffer, -1 at the end. */
static double rate_overlong(const struct hd_rated_answer *a, int64_t buffer)
{
    const double over = (double)(a->tokens - (a->max_tokens - buffer));

    return over <= 0 ? 0 : fmax(-1, -over / (double)buffer);
}

double hd_builtin_reward_rate(const struct hd_builtin_reward *b, const struct hd_rated_answer *a)
{
    const struct hd_json *field = *b->of.field ? hd_json_member(a->row, b->of.field) : NULL;

    switch (b->of.kind) {
    case HD_REWARD_EXACT:
        return rate_exact(field, a->text);
    case HD_REWARD_NUMBER:
        return rate_number(field, a->text);
    case HD_REWARD_REGEX:
        return regexec(&b->regex, a->text, 0, NULL, 0) == 0 ? 1 : 0;
    case HD_REWARD_FORMAT:
        return rate_format(a->text);
    case HD_REWARD_LENGTH:
        return (double)a->tokens / (double)a->max_tokens;
    case HD_REWARD_OVERLONG:
        return rate_overlong(a, b->of.buffer);
    case HD_REWARD_PROGRAM:
    case HD_REWARD_MODEL:
        break;
    }
    return NAN;
}
