/* print: a conversation for people. */
#include <stdio.h>

#include "conversation.h"
#include "play.h"

int play_print(const struct protocol *protocol, const char *file)
{
    struct conversation c;

    conversation_read(&c, file);
    printf("root %s\n", c.root);
    for (size_t i = 0; i < c.count; i++) {
        const struct said *s = &c.lines[i];
        const struct protocol_rpc *rpc =
            s->call ? protocol_find_rpc(protocol, conversation_path(&c, s->call)) : NULL;
        struct hd_text text = {0};

        switch (s->kind) {
        case SAID_COMMAND:
        case SAID_OUTPUT:
            printf("%c %s\n", s->kind == SAID_COMMAND ? '$' : '|', s->text);
            break;
        case SAID_OPEN:
            printf("%d open %s\n", s->call, s->text);
            break;
        case SAID_REQUEST:
        case SAID_ANSWER:
            plain_print(protocol, s->kind == SAID_REQUEST ? rpc->request : rpc->response, &s->bytes,
                        &text);
            printf("%d %c %zu bytes\n%s", s->call, s->kind == SAID_REQUEST ? '>' : '<',
                   s->bytes.size_bytes, text.len_bytes ? text.data : "");
            break;
        case SAID_HALF:
            printf("%d .\n", s->call);
            break;
        case SAID_END:
            printf("%d end %d %s\n", s->call, s->status, s->text);
            break;
        }
        hd_text_free(&text);
    }
    conversation_free(&c);
    return 0;
}
