#include "plan/node_tree.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Calls that read "1-16,20]": the next range. False: it is none, or `at` is at the end. */
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

/* A number from first to last is in the ranges from `from` to `to`. */
static bool has_number(const char *from, const char *to, long long first, long long last)
{
    long long low, high;

    while (from < to) {
        from++; /* the bracket or a comma */
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

        at++; /* the bracket or a comma */
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
