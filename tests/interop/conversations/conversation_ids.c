/* conversation_ids: prints what becomes of conversations, for conversations.sh to compare.
 *
 *     conversation_ids TOKENIZER TEMPLATE answers|last|all < CASES
 *
 * Each line of CASES is a conversation. Each line of the output is a JSON object: `ids` and
 * `counts`, or `error`. Names of special tokens come from the folder of the tokenizer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/conversations.h"

static void print(enum hd_status st, const struct hd_id_list *ids, const struct hd_text *counts)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};

    hd_json_begin(&w, NULL, '{');
    if (st)
        hd_json_add_string(&w, "error", hd_err_message());
    hd_json_begin(&w, "ids", '[');
    for (size_t i = 0; !st && i < ids->count; i++)
        hd_json_add_int64(&w, NULL, ids->ids[i]);
    hd_json_end(&w, ']');
    hd_json_begin(&w, "counts", '[');
    for (size_t i = 0; !st && i < ids->count; i++)
        hd_json_add_int64(&w, NULL, counts->data[i]);
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    (void)printf("%s\n", text.data);
    hd_text_free(&text);
}

static enum hd_status open_all(char **argv, struct hd_conversation_rules *rules,
                               struct hd_tokenizer **tokenizer, struct hd_chat **chat)
{
    char *dir = strdup(argv[1]), *slash = dir ? strrchr(dir, '/') : NULL;
    enum hd_status st = hd_tokenizer_open(argv[1], tokenizer);

    if (slash)
        *slash = '\0';
    if (!st)
        st = hd_chat_open(argv[2], dir, chat);
    *rules =
        (struct hd_conversation_rules){.tokenizer = *tokenizer,
                                       .chat = *chat,
                                       .end_of_text = -1,
                                       .loss = strcmp(argv[3], "all") == 0    ? HD_CHAT_ALL
                                               : strcmp(argv[3], "last") == 0 ? HD_CHAT_LAST
                                                                              : HD_CHAT_ANSWERS};
    free(dir);
    return st;
}

int main(int argc, char **argv)
{
    struct hd_conversation_encoder *encoder = NULL;
    struct hd_conversation_rules rules;
    struct hd_tokenizer *tokenizer = NULL;
    struct hd_chat *chat = NULL;
    struct hd_id_list ids = {0};
    struct hd_text counts = {0};
    bool spelled;
    size_t room = 0;
    char *line = NULL;
    ssize_t n;

    if (argc != 4 || open_all(argv, &rules, &tokenizer, &chat) ||
        hd_conversation_encoder_new(&rules, &encoder)) {
        (void)fprintf(stderr, "conversation_ids: %s\n", argc == 4 ? hd_err_message() : "usage");
        return 1;
    }
    while ((n = getline(&line, &room, stdin)) > 0) {
        ids.count = 0;
        hd_text_clear(&counts);
        print(hd_conversation_encode(encoder, line, (size_t)n, &ids, &counts, &spelled), &ids,
              &counts);
    }
    free(line);
    hd_id_list_free(&ids);
    hd_text_free(&counts);
    hd_conversation_encoder_free(encoder);
    hd_chat_close(chat);
    hd_tokenizer_close(tokenizer);
    return 0;
}
