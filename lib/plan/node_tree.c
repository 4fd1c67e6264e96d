#include "plan/node_tree.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads the range of numbers at *at, as in "1-16,20]", and moves *at behind it. False: no legal
 * range. */
static bool next_range(const char **at, long long *ret_first, long long *ret_last)
{
    char *end;

    if (!isdigit((unsigned char)**at))
        return false;
    *ret_first = *ret_last = strtoll(*at, &end, 10);
    if (*end == '-') {
        *at = end + 1;
        if (!isdigit((unsigned char)**at))
            return false;
        *ret_last = strtoll(*at, &end, 10);
    }
    *at = end;
    return *ret_last >= *ret_first && *ret_last - *ret_first < HD_CLUSTER_NODES_MAX;
}

/* Returns whether a number from first to last is in the ranges of the text from `from` to `to`. */
static bool has_number(const char *from, const char *to, long long first, long long last)
{
    long long low, high;

    while (from < to) {
        from++; /* skips the bracket or a comma */
        if (!next_range(&from, &low, &high) || (first <= high && low <= last))
            return true;
    }
    return false;
}

bool hd_node_names_count(const char *names, int64_t *ret_count)
{
    const char *at = strchr(names, '[');
    const char *const begin = at;
    long long largest = -1;
    int64_t count = 0;

    if (!isalpha((unsigned char)*names))
        return false;
    if (!at) {
        *ret_count = 1;
        return names[strcspn(names, "], ")] == '\0';
    }
    do {
        const char *const here = at;
        long long first, last;

        at++; /* skips the bracket or a comma */
        if (!next_range(&at, &first, &last) ||
            (first <= largest && has_number(begin, here, first, last)))
            return false;
        largest = last > largest ? last : largest;
        count += last - first + 1;
        if (count > HD_CLUSTER_NODES_MAX)
            return false;
    } while (*at == ',');
    *ret_count = count;
    return at[0] == ']' && at[1] == '\0';
}

int64_t hd_node_names_find(const char *names, const char *name)
{
    const char *at = strchr(names, '[');
    const size_t prefix = at ? (size_t)(at - names) : 0;
    long long number, first, last;
    int64_t before = 0;
    char *end;

    if (!at)
        return strcmp(names, name) == 0 ? 0 : -1;
    if (strncmp(names, name, prefix) != 0 || !isdigit((unsigned char)name[prefix]))
        return -1;
    number = strtoll(name + prefix, &end, 10);
    if (*end)
        return -1;
    do {
        at++;
        if (!next_range(&at, &first, &last))
            return -1;
        if (number >= first && number <= last)
            return before + (number - first);
        before += last - first + 1;
    } while (*at == ',');
    return -1;
}

/* Returns a number that is in the ranges of both name patterns; -1: none. */
static long long common_number(const char *a, const char *b)
{
    long long first, last, low, high;

    do {
        a++; /* skips the bracket or a comma */
        if (!next_range(&a, &first, &last))
            return -1;
        for (const char *at = b; *at == '[' || *at == ',';) {
            at++;
            if (!next_range(&at, &low, &high))
                break;
            if (first <= high && low <= last)
                return first > low ? first : low;
        }
    } while (*a == ',');
    return -1;
}

/* Looks up the names of `longer` one by one in `names`; sets ret_name to the first that is
 * found. */
static bool finds_one_of(const char *names, const char *longer, char ret_name[HD_NODE_NAME_MAX])
{
    const char *at = strchr(longer, '[');
    const int prefix = at ? (int)(at - longer) : 0;
    long long first, last;

    if (!at) {
        (void)snprintf(ret_name, HD_NODE_NAME_MAX, "%s", longer);
        return hd_node_names_find(names, longer) >= 0;
    }
    do {
        at++; /* skips the bracket or a comma */
        if (!next_range(&at, &first, &last))
            return false;
        for (long long n = first; n <= last; n++) {
            (void)snprintf(ret_name, HD_NODE_NAME_MAX, "%.*s%lld", prefix, longer, n);
            if (hd_node_names_find(names, ret_name) >= 0)
                return true;
        }
    } while (*at == ',');
    return false;
}

bool hd_node_names_meet(const char *a, const char *b, char ret_name[HD_NODE_NAME_MAX])
{
    const size_t a_prefix = strcspn(a, "["), b_prefix = strcspn(b, "[");
    const size_t shorter = a_prefix < b_prefix ? a_prefix : b_prefix;
    const char *const rest = a_prefix < b_prefix ? b + shorter : a + shorter;
    long long number;

    if (strncmp(a, b, shorter) != 0)
        return false;
    if (a[a_prefix] && b[b_prefix] && a_prefix == b_prefix) {
        number = common_number(a + a_prefix, b + b_prefix);
        (void)snprintf(ret_name, HD_NODE_NAME_MAX, "%.*s%lld", (int)a_prefix, a, number);
        return number >= 0;
    }
    /* "n[1-16]" can have names of "n1[0-6]", but none of "node[0-6]" */
    if (rest[strspn(rest, "0123456789")] != '[' && rest[strspn(rest, "0123456789")] != '\0')
        return false;
    return a_prefix < b_prefix ? finds_one_of(a, b, ret_name) : finds_one_of(b, a, ret_name);
}

int64_t hd_node_tree_position(const struct hd_node_tree *tree, const char *name)
{
    for (int g = 0; g < tree->group_count; g++) {
        const int64_t place =
            tree->groups[g].names ? hd_node_names_find(tree->groups[g].names, name) : -1;

        if (place >= 0)
            return tree->groups[g].first + place;
    }
    return -1;
}
