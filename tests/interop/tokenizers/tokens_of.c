/* tokens_of TOKENIZER: texts on stdin, their ids on stdout, for those who compare.
 *
 * A text is its size in bytes (32 bits) and the bytes; the answer is the number of ids and the ids
 * (32 bits each), or -1 where the text was refused. Then the ids are decoded, and it is an error
 * unless that gives the text again (with `lossy` as a second argument it may differ: a normaliser
 * is at work). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

static int fail(const char *what)
{
    (void)fprintf(stderr, "tokens_of: %s\n", what);
    return 1;
}

int main(int argc, char **argv)
{
    struct hd_tokenizer *tokenizer = NULL;
    struct hd_encoder *encoder = NULL;
    struct hd_id_list list = {0};
    struct hd_text back = {0};
    unsigned char *text = NULL;
    uint32_t size_bytes;
    int rc = 0;

    if (argc < 2)
        return fail("which tokenizer?");
    if (hd_tokenizer_open(argv[1], &tokenizer) || hd_encoder_new(tokenizer, &encoder)) {
        rc = fail(hd_err_message());
        hd_tokenizer_close(tokenizer);
        return rc;
    }
    while (!rc && fread(&size_bytes, sizeof size_bytes, 1, stdin) == 1) {
        int32_t count;

        text = realloc(text, size_bytes + 1);
        if (!text || fread(text, 1, size_bytes, stdin) != size_bytes) {
            rc = fail("the input ends inside a text");
            break;
        }
        list.count = 0;
        count = hd_encoder_add(encoder, text, size_bytes, &list) ? -1 : (int32_t)list.count;
        (void)fwrite(&count, sizeof count, 1, stdout);
        (void)fwrite(list.ids, sizeof *list.ids, list.count, stdout);
        hd_text_clear(&back);
        if (count >= 0 && argc < 3 &&
            (hd_tokenizer_decode(tokenizer, list.ids, list.count, &back) ||
             back.len_bytes != size_bytes || (size_bytes && memcmp(back.data, text, size_bytes))))
            rc = fail("the ids do not give the text again");
    }
    if (fflush(stdout))
        rc = fail("cannot write the ids");
    free(text);
    hd_text_free(&back);
    hd_id_list_free(&list);
    hd_encoder_free(encoder);
    hd_tokenizer_close(tokenizer);
    return rc;
}
