/* tokens_of TOKENIZER: texts on stdin, their ids and the text of these on stdout, to be compared.
 *
 * A text is its size in bytes (32 bits) and the bytes. The answer is the number of ids and the ids
 * (32 bits each), or -1 where the text was refused, with the reason on stderr; then the size of the
 * decoded text and its bytes. Exit status 3: the tokenizer was refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

static int fail(const char *what)
{
    (void)fprintf(stderr, "tokens_of: %s\n", what);
    return 1;
}

static int answer(const struct hd_tokenizer *tokenizer, struct hd_encoder *encoder,
                  const void *text, size_t size_bytes, struct hd_id_list *list,
                  struct hd_text *back)
{
    int32_t count, back_bytes;

    list->count = 0;
    hd_text_clear(back);
    count = hd_encoder_add(encoder, text, size_bytes, list) ? -1 : (int32_t)list->count;
    if (count < 0)
        (void)fail(hd_err_message());
    else if (hd_tokenizer_decode(tokenizer, list->ids, list->count, back))
        return fail(hd_err_message());
    back_bytes = (int32_t)back->len_bytes;
    (void)fwrite(&count, sizeof count, 1, stdout);
    (void)fwrite(list->ids, sizeof *list->ids, list->count, stdout);
    (void)fwrite(&back_bytes, sizeof back_bytes, 1, stdout);
    (void)fwrite(back->data, 1, back->len_bytes, stdout);
    return 0;
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
        (void)fail(hd_err_message());
        hd_tokenizer_close(tokenizer);
        return 3;
    }
    while (!rc && fread(&size_bytes, sizeof size_bytes, 1, stdin) == 1) {
        text = realloc(text, size_bytes + 1);
        if (!text || fread(text, 1, size_bytes, stdin) != size_bytes)
            rc = fail("the input ends inside a text");
        else
            rc = answer(tokenizer, encoder, text, size_bytes, &list, &back);
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
