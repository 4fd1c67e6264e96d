/* The ends of a run's texts in the files of its export. */
#include <string.h>

#include "hf/hf_internal.h"
#include "tests/program/test.h"

/* Goal: transformers stops at the token with which the run's documents ended, and at all at which
 * its base stopped; everything else stays as it was, numbers as they were written. Method: end 5,
 * begin 4. */
static void the_files_of_an_export_have_the_ends_of_its_run(void **state)
{
    static const struct {
        const char *before, *after; /* after NULL: the same text */
    } cases[] = {
        {"{\"eos_token_id\": null, \"bos_token_id\": null, \"a\": 1.0}\n",
         "{\"a\":1.0,\"bos_token_id\":4,\"eos_token_id\":5}\n"},
        {"{}", "{\"bos_token_id\":4,\"eos_token_id\":5}\n"},
        {"{\"eos_token_id\":7,\"bos_token_id\":1}",
         "{\"bos_token_id\":1,\"eos_token_id\":[7,5]}\n"},
        {"{\"eos_token_id\":[7,8],\"bos_token_id\":1}",
         "{\"bos_token_id\":1,\"eos_token_id\":[7,8,5]}\n"},
        {"{\"eos_token_id\":[7, 5],\"bos_token_id\": 1}", NULL},
        {"{\"eos_token_id\": 5,\"bos_token_id\": 1}", NULL},
        {"{\"x\":{\"y\":[1,true,null,\"z\"]},\"eos_token_id\":5}",
         "{\"x\":{\"y\":[1,true,null,\"z\"]},\"eos_token_id\":5,\"bos_token_id\":4}\n"},
    };
    const struct hd_hf_ends ends = {.end = 5, .bos = 4}, unknown = {-1, -1};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_text text = {0};

        hd_text_add(&text, "%s", cases[i].before);
        assert_int_equal(hd_hf_put_ends(&unknown, &text), HD_OK);
        assert_int_equal(hd_hf_put_ends(NULL, &text), HD_OK);
        assert_string_equal(text.data, cases[i].before);
        assert_int_equal(hd_hf_put_ends(&ends, &text), HD_OK);
        assert_string_equal(text.data, cases[i].after ? cases[i].after : cases[i].before);
        hd_text_free(&text);
    }
}

RUN_CASES()
