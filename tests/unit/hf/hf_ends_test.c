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
    const struct hd_hf_ends ends = {.end = 5, .bos = 4, .pad = -1},
                            unknown = {.end = -1, .bos = -1, .pad = -1};

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

/* Goal: an export of a new model says which token fills texts, and a tokenizer without a
 * tokenizer_config.json gets one that names the run's tokens. */
static void a_run_names_its_tokens(void **state)
{
    const struct hd_hf_ends ends = {
        .end = 5, .bos = -1, .pad = 6, .end_token = "</s>", .pad_token = "\"fill\""};
    struct hd_text text = {0};

    hd_text_add(&text, "{\"eos_token_id\":5,\"pad_token_id\":null}");
    assert_int_equal(hd_hf_put_ends(&ends, &text), HD_OK);
    assert_string_equal(text.data, "{\"eos_token_id\":5,\"pad_token_id\":6}\n");
    hd_text_clear(&text);
    hd_hf_write_names(&ends, false, &text);
    assert_string_equal(text.data, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\","
                                   "\"eos_token\":\"</s>\",\"pad_token\":\"\\\"fill\\\"\","
                                   "\"clean_up_tokenization_spaces\":false}\n");
    hd_text_clear(&text);
    hd_hf_write_names(&ends, true, &text);
    assert_non_null(strstr(text.data, "\"tokenizer_class\":\"LlamaTokenizer\""));
    hd_text_free(&text);
}

RUN_CASES()
