#include "golden.h"

#include "tests/program/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *golden_path(const char *file)
{
    static char path[4096];
    const char *root = getenv("HEDDLE_SOURCE_DIR");

    (void)snprintf(path, sizeof path, "%s/tests/unit/tokenizer/tokenizers/%s", root ? root : ".",
                   file);
    return path;
}

enum hd_status golden_open(const char *path, struct hd_tokenizer **ret_tokenizer)
{
    const enum hd_status st = hd_tokenizer_open(path, ret_tokenizer);

    if (st == HD_UNSUPPORTED && strstr(hd_err_message(), "and build again")) {
        (void)printf("built without PCRE2 or utf8proc\n");
        skip();
    }
    return st;
}
