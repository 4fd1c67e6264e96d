/* fixture: a complete small job file, and the folder with the files that it names. */
#ifndef HD_TESTS_SPEC_FIXTURE_H
#define HD_TESTS_SPEC_FIXTURE_H

#include "spec/spec.h"
#include "tests/program/test.h"

/* Lines count from 1; the tests change one thing at a time. */
extern const char good[];
extern const size_t good_bytes; /* without the NUL at its end */

extern char folder[64];      /* of the job file */
extern struct hd_arena jobs; /* all that were read, until drop_corpus */

int make_corpus(void **state);
int drop_corpus(void **state);
void put_file(const char *name, size_t size_bytes); /* at most 1024, of x */
void put_text(const char *name, const char *text);  /* the same with this text */
/* A .npy of 16-bit ids, as NumPy writes it with this type: 0 1 2 .. 99 0 1 .., and `last` at the
 * end. Its head has 128 bytes. */
void put_array(const char *name, const char *type, int count, int last);

/* Replaces the first occurrence of a text by one of the same length. */
void change_text(const char *name, const char *from, const char *to);

/* A job file in the folder; override: KEY=VALUE or NULL. */
enum hd_status read_bytes(const void *bytes, size_t size_bytes, const char *override,
                          struct hd_job **ret_job);
struct hd_job *read_good(const char *override);

/* The good job with one line replaced; the caller frees. */
char *with_line(int line, const char *text);

struct mistake {
    int line;         /* of `good` that is replaced */
    const char *text; /* by this */
    const char *message;
};

/* Checks that each mistake is refused with this status and its message. */
void expect_refusals(const struct mistake *rows, size_t count, enum hd_status status);

#endif
