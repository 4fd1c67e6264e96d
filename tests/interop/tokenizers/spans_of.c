/* spans_of PATTERN: texts on stdin, as for tokens_of; for each the number of matches and their
 * bytes [from, to) on stdout (32 bits each). Exit status 3: the pattern was refused. */
#include <stdio.h>
#include <stdlib.h>

#include "tokenizer/tokenizer_internal.h"

static int fail(const char *what)
{
    (void)fprintf(stderr, "spans_of: %s\n", what);
    return 1;
}

static int answer(const struct hd_matcher *matcher, struct hd_regex_scratch *scratch,
                  const unsigned char *text, size_t size_bytes)
{
    struct hd_match_walk walk = {
        .matcher = matcher, .scratch = scratch, .text = text, .len_bytes = size_bytes};
    struct hd_text spans = {0};
    uint32_t count = 0;
    bool found = size_bytes > 0;

    hd_regex_scratch_newer(scratch, hd_unicode_has_newer(text, size_bytes));
    while (found) {
        size_t from = 0, to = 0;

        if (hd_match_next(&walk, &found, &from, &to))
            return fail(hd_err_message());
        if (found) {
            const uint32_t span[] = {(uint32_t)from, (uint32_t)to};

            hd_text_add_bytes(&spans, span, sizeof span);
            count++;
        }
    }
    (void)fwrite(&count, sizeof count, 1, stdout);
    (void)fwrite(spans.data, 1, spans.len_bytes, stdout);
    hd_text_free(&spans);
    return 0;
}

int main(int argc, char **argv)
{
    struct hd_matcher matcher = {0};
    struct hd_regex_scratch *scratch = NULL;
    unsigned char *text = NULL;
    uint32_t size_bytes;
    int rc = 0;

    if (argc < 2)
        return fail("which pattern?");
    if (hd_regex_new(argv[1], &matcher.regex) || hd_regex_scratch_new(&scratch)) {
        (void)fail(hd_err_message());
        return 3;
    }
    while (!rc && fread(&size_bytes, sizeof size_bytes, 1, stdin) == 1) {
        text = realloc(text, size_bytes + 1);
        if (!text || fread(text, 1, size_bytes, stdin) != size_bytes)
            rc = fail("the input ends inside a text");
        else
            rc = answer(&matcher, scratch, text, size_bytes);
    }
    if (fflush(stdout))
        rc = fail("cannot write the spans");
    free(text);
    hd_regex_scratch_free(scratch);
    hd_matcher_done(&matcher);
    return rc;
}
