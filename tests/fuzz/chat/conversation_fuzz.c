/* Hostile lines of conversations, and the same bytes as what a model writes. What is read has a
 * counted answer; what is refused has a story; what a stream may send is no part of a call, and each
 * call has a name and arguments. */
#include <stdlib.h>
#include <string.h>

#include "chat/calls.h"
#include "chat/conversation.h"
#include "tests/fuzz/driver.h"

static void find_calls(struct hd_arena *arena, const char *text, size_t bytes)
{
    for (int form = HD_CALLS_TAGGED; form <= HD_CALLS_BARE; form++) {
        struct hd_chat_calls calls;
        size_t last = 0;

        for (size_t n = 0; n <= bytes && n < 64; n++) {
            const size_t safe = hd_chat_calls_safe((enum hd_call_form)form, text, n);

            require(safe >= last && safe <= n);
            last = safe;
        }
        if (hd_chat_calls_find(arena, (enum hd_call_form)form, text, NULL, &calls))
            continue; /* the arena is full */
        require(calls.content != NULL);
        for (size_t i = 0; i < calls.count; i++)
            require(*calls.calls[i].name && calls.calls[i].arguments->kind == HD_JSON_OBJECT);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    struct hd_conversation c;
    struct hd_arena arena;
    size_t i = 0;
    bool any = false;
    enum hd_status st;

    hd_arena_init(&arena, 1 << 22);
    st = hd_conversation_read(&arena, (const char *)bytes, size_bytes, HD_CHAT_AUTO, NULL, &c);
    require(!st || hd_err_message()[0] != '\0');
    if (!st && !c.answer) {
        for (const struct hd_json *m = c.messages.first; m; m = m->next)
            any |= c.counts[i++];
        require(any && i == c.messages.count);
    }
    if (!memchr(bytes, 0, size_bytes)) {
        char *text = strndup((const char *)bytes, size_bytes);

        require(text != NULL);
        find_calls(&arena, text, size_bytes);
        free(text);
    }
    hd_arena_done(&arena);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    static const char *const seeds[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"weight\":1}],\"tools\":[{}]}",
        "{\"system\":\"s\",\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":"
        "\"gpt\","
        "\"value\":\"b\"}]}",
        "{\"instruction\":\"a\",\"input\":\"b\",\"output\":\"c\"}",
        "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion\":[{\"role\":"
        "\"assistant\","
        "\"content\":\"b\"}]}",
        "{\"prompt\":\"a\",\"completion\":\"b\",\"text\":\"c\"}",
        "{\"conversations\":[{\"from\":\"function_call\",\"value\":\"[{\\\"name\\\":\\\"f\\\"}]\"},"
        "{\"from\":\"observation\",\"value\":\"<tool_response>a</tool_response>\"}],\"tools\":\"[{"
        "\\\"name\\\":\\\"f\\\"}]\"}",
        "a<tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>",
        "[TOOL_CALLS][{\"name\":\"f\"}]",
        "[TOOL_CALLS]f[CALL_ID]1[ARGS]{\"a\":[1]}",
        "{\"name\":\"f\",\"parameters\":{}};{\"name\":\"g\"}",
    };
    size_t n;

    if (index >= sizeof seeds / sizeof *seeds || strlen(seeds[index]) > max_bytes)
        return 0;
    n = strlen(seeds[index]);
    memcpy(ret_bytes, seeds[index], n);
    return n;
}
