/* Hostile lines of conversations. What is read has a counted answer; what is refused has a story.
 */
#include <stdlib.h>
#include <string.h>

#include "chat/conversation.h"
#include "tests/fuzz/driver.h"

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
    };
    size_t n;

    if (index >= sizeof seeds / sizeof *seeds || strlen(seeds[index]) > max_bytes)
        return 0;
    n = strlen(seeds[index]);
    memcpy(ret_bytes, seeds[index], n);
    return n;
}
