/* main of a program that holds several tests (entry.h):
 *
 *   PROGRAM ENTRY [ARG...]      runs the test of that name; without one, names them
 *
 * A test that starts its own program again (/proc/self/exe) gives no ENTRY: the environment has it.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entry.h"

static struct hd_test_entry *entries;

void hd_test_entry_add(struct hd_test_entry *entry)
{
    entry->next = entries;
    entries = entry;
}

static const struct hd_test_entry *find(const char *name)
{
    const struct hd_test_entry *e = entries;

    while (e && (!name || strcmp(e->name, name) != 0))
        e = e->next;
    return e;
}

int main(int argc, char **argv)
{
    const struct hd_test_entry *entry = argc > 1 ? find(argv[1]) : NULL;

    if (entry) {
        (void)setenv("HEDDLE_TEST_ENTRY", entry->name, 1);
        argv[1] = argv[0];
        argc--;
        argv++;
    } else {
        entry = find(getenv("HEDDLE_TEST_ENTRY"));
    }
    if (!entry) {
        (void)fprintf(stderr, "usage: %s ENTRY [ARG...]; the entries are\n", argv[0]);
        for (entry = entries; entry; entry = entry->next)
            (void)fprintf(stderr, "  %s\n", entry->name);
        return 2;
    }
    return entry->plain ? entry->plain() : entry->with_arguments(argc, argv);
}
