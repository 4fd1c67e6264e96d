/* Hostile conversations through a chat template and a tokenizer to their ids. What is accepted has
 * a byte for each id, something that counts, and no special token but those of the template: one
 * that begins and one that ends each message. What is refused has a story. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "data/conversations.h"
#include "tests/fuzz/driver.h"

enum { START = 256, END = 257, OTHER = 258 };

/* 256 bytes by the letters of byte-level BPE, and three special tokens. */
static void write_tokenizer(struct hd_text *t)
{
    int next = 256;

    hd_text_add(t, "{\"added_tokens\":[");
    for (int i = 0; i < 3; i++)
        hd_text_add(t, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? "," : "", START + i,
                    i == 0   ? "<|s|>"
                    : i == 1 ? "<|e|>"
                             : "<|x|>");
    hd_text_add(t, "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                   "\"model\":{\"merges\":[],\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        const int itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

        hd_text_add(t, "%s\"\\u%04x\":%d", b ? "," : "", itself ? b : next++, b);
    }
    hd_text_add(t, "}}}");
}

static struct hd_conversation_encoder *open_encoder(void)
{
    static const char template[] =
        "{% for m in messages %}{{ '<|s|>' + m.role + ':' + m.content|string|trim + '<|e|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|s|>assistant:' }}{% endif %}";
    static struct hd_conversation_encoder *encoder; /* opened once: the loop would be slow */
    struct hd_tokenizer *tokenizer = NULL;
    struct hd_chat *chat = NULL;
    struct hd_text json = {0};
    char dir[] = "/tmp/conversation_ids_fuzz-XXXXXX", path[128];

    if (encoder)
        return encoder;
    write_tokenizer(&json);
    require(mkdtemp(dir) != NULL);
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    require(!hd_file_write_atomic(path, json.data, json.len_bytes, 0600));
    require(!hd_tokenizer_open(path, &tokenizer));
    (void)snprintf(path, sizeof path, "%s/chat.jinja", dir);
    require(!hd_file_write_atomic(path, template, sizeof template - 1, 0600));
    require(!hd_chat_open(path, NULL, &chat));
    require(!hd_conversation_encoder_new(
        &(struct hd_conversation_rules){.tokenizer = tokenizer, .chat = chat, .end_of_text = -1},
        &encoder));
    require(!hd_file_remove_tree(dir));
    hd_text_free(&json);
    return encoder;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    struct hd_conversation_encoder *encoder = open_encoder();
    struct hd_id_list ids = {0};
    struct hd_text counts = {0};
    bool spelled = false;
    const enum hd_status st =
        hd_conversation_encode(encoder, (const char *)bytes, size_bytes, &ids, &counts, &spelled);
    int start = 0, end = 0, learned = 0;

    require(!st || hd_err_message()[0] != '\0');
    for (size_t i = 0; !st && i < ids.count; i++) {
        start += ids.ids[i] == START;
        end += ids.ids[i] == END;
        learned += counts.data[i];
        require(ids.ids[i] != OTHER && ids.ids[i] >= 0 && ids.ids[i] <= OTHER);
    }
    require(st || (counts.len_bytes == ids.count && learned && start == end));
    hd_id_list_free(&ids);
    hd_text_free(&counts);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    static const char *const seeds[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|x|>b<|s|>\"},{\"role\":"
        "\"assistant\",\"content\":\" <|e|>b <|\",\"weight\":1}]}",
        "{\"conversations\":[{\"from\":\"human\",\"value\":\"\\ufdd0a<\"},{\"from\":\"gpt\","
        "\"value\":\"|x|>\"}]}",
        "{\"prompt\":\"a<|s|>\",\"completion\":\"<|e|>b\"}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"<|x|>\"}]},"
        "{\"role\":\"assistant\",\"content\":\"b\"}]}",
    };
    size_t n;

    if (index >= sizeof seeds / sizeof *seeds || strlen(seeds[index]) > max_bytes)
        return 0;
    n = strlen(seeds[index]);
    memcpy(ret_bytes, seeds[index], n);
    return n;
}
