/* tells: checks that a message tells its facts, whatever the words between them.
 *
 * Used by: tests.   Uses: cmocka.
 */
#ifndef HD_TESTS_PROGRAM_TELLS_H
#define HD_TESTS_PROGRAM_TELLS_H

#include <string.h>

#include "tests/program/test.h"

static inline void tells_words(const char *text, const char *const *words)
{
    const char *at = text;

    for (; at && *words; words++) {
        const char *found = strstr(at, *words);

        if (!found)
            fail_msg("\"%s\" does not tell \"%s\", in its place", text, *words);
        at = found ? found + strlen(*words) : NULL;
    }
}

/* Fails unless the words are in the text one after the other: a message's place, value and remedy. */
#define assert_tells(text, ...) tells_words((text), (const char *const[]){__VA_ARGS__, NULL})

#endif
