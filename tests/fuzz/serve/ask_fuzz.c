/* Hostile bodies. What is accepted is within its bounds, each prompt a text or a list of ids, and
 * messages are written as JSON again; what is refused has a message. */
#include <stdlib.h>
#include <string.h>

#include "generate/generator.h"
#include "serve/ask.h"
#include "tests/fuzz/driver.h"

static void look_at_prompts(const struct hd_ask *ask)
{
    int64_t id;

    for (int64_t i = 0; i < ask->prompt_count; i++) {
        const struct hd_json *p = hd_ask_prompt(ask, i);

        require(p->kind == HD_JSON_STRING || (p->kind == HD_JSON_ARRAY && p->count > 0));
        if (p->kind == HD_JSON_ARRAY)
            for (const struct hd_json *v = p->first; v; v = v->next)
                require(hd_json_to_int64(v, 0, INT32_MAX, &id) == HD_OK);
    }
}

static void look_at_messages(struct hd_arena *arena, const struct hd_ask *ask)
{
    static const struct hd_json_limits limits = {.values_max = HD_ASK_VALUES_MAX, .depth_max = 32};
    struct hd_text json = {0};
    const struct hd_json *root;

    if (hd_ask_write_messages(arena, ask, &json)) { /* arguments of a call are no object */
        require(*hd_err_message() != '\0');
        hd_text_free(&json);
        return;
    }
    require(hd_json_parse(arena, json.data, json.len_bytes, &limits, &root) == HD_OK);
    if (ask->tools)
        require(hd_json_need(root, "messages", HD_JSON_ARRAY, &root) == HD_OK);
    require(root->kind == HD_JSON_ARRAY && root->count == ask->messages->count);
    for (const struct hd_json *m = root->first; m; m = m->next) {
        const struct hd_json *content = hd_json_member(m, "content");

        require(!content || content->kind == HD_JSON_STRING || content->kind == HD_JSON_NULL);
    }
    hd_text_free(&json);
}

static void look(const char *body, size_t size_bytes, enum hd_ask_kind kind)
{
    struct hd_arena arena;
    struct hd_ask ask;
    const char *param;

    hd_arena_init(&arena, 0);
    if (hd_ask_read(&arena, kind, body, size_bytes, &ask, &param)) {
        require(*hd_err_message() != '\0');
    } else {
        require(ask.n >= 1 && ask.prompt_count >= 1);
        require(ask.n * ask.prompt_count <= HD_ASK_CHOICES_MAX);
        require(ask.top >= 0 && ask.top <= HD_GENERATE_TOP_MAX);
        require(ask.max_tokens >= -1 && ask.stop_count <= HD_STOP_TEXTS_MAX);
        require(ask.sampling.temperature >= 0 && ask.sampling.top_p >= 0 &&
                ask.sampling.top_p <= 1 && ask.sampling.top_k >= 0);
        for (int i = 0; i < ask.stop_count; i++)
            require(*ask.stops[i] && strlen(ask.stops[i]) <= HD_STOP_TEXT_BYTES_MAX);
        if (kind == HD_ASK_CHAT)
            look_at_messages(&arena, &ask);
        else
            look_at_prompts(&ask);
    }
    hd_arena_done(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    char *body = malloc(size_bytes + 1); /* its end is where a reader would run past */

    require(body != NULL);
    memcpy(body, bytes, size_bytes);
    body[size_bytes] = '\0';
    look(body, size_bytes, HD_ASK_COMPLETION);
    look(body, size_bytes, HD_ASK_CHAT);
    free(body);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *bytes, size_t size_bytes)
{
    static const char *const seeds[] = {
        "{\"prompt\":\"a\",\"n\":2,\"stop\":[\"x\"],\"logprobs\":1,\"echo\":true}",
        "{\"prompt\":[[1,2],[3]],\"max_tokens\":5,\"temperature\":0.5,\"top_p\":1,\"seed\":7}",
        ("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],"
         "\"logprobs\":true,\"top_logprobs\":2,\"stream\":true,\"tools\":[]}"),
        ("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{}"
         "\"}}]}],"
         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":"
         "\"auto\"}"),
        "{\"prompt\":[\"a\",\"b\"],\"stream_options\":{\"include_usage\":true},\"user\":null}"};
    const size_t count = sizeof seeds / sizeof seeds[0];

    if (index >= count || strlen(seeds[index]) > size_bytes)
        return 0;
    memcpy(bytes, seeds[index], strlen(seeds[index]));
    return strlen(seeds[index]);
}
