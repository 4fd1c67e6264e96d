/* conversation: what was said through a controller's door, message by message, as a text file.
 *
 * One line for each thing that happened, in its order:
 *
 *     root FOLDER             below which all folders of the recorded cluster were
 *     $ show 1 -o json        a command that was run next
 *     | {"type":"job", ..     a line that it printed
 *     7 open PATH             call 7 began
 *     7 > BYTES               a message of call 7 from the client, in hexadecimal digits
 *     7 < BYTES               one to the client
 *     7 .                     the client sends no more
 *     7 end STATUS TEXT       the call has ended with that enum hd_status
 *
 * Used by: tests/recorded.   Uses: plain.   Threads: none of its own.
 */
#ifndef HD_TESTS_RECORDED_CONVERSATION_H
#define HD_TESTS_RECORDED_CONVERSATION_H

#include <stdio.h>

#include "plain.h"
#include "rpc/rpc.h"

enum said_kind {
    SAID_COMMAND,
    SAID_OUTPUT,
    SAID_OPEN,
    SAID_REQUEST,
    SAID_ANSWER,
    SAID_HALF,
    SAID_END
};

struct said {
    enum said_kind kind;
    int call;
    char *text;               /* of COMMAND, OUTPUT; of OPEN the path; of END the message */
    struct plain_bytes bytes; /* of REQUEST, ANSWER */
    int status;               /* of END */
};

struct conversation {
    char root[128];
    struct said *lines;
    size_t count;
    int call_count; /* calls are 1 .. call_count */
};

/* A failure ends the program. */
void conversation_read(struct conversation *conversation, const char *path);
void conversation_free(struct conversation *conversation);
/* The path of a call. */
const char *conversation_path(const struct conversation *conversation, int call);

/* Writes bytes as lines of the file. */
void conversation_write_bytes(FILE *file, int call, char direction,
                              const struct plain_bytes *bytes);

/* Which of the protocol's calls are streams. */
enum hd_rpc_kind conversation_kind(const char *path);

/* A path in a text, from below one folder to below another, as often as there is one. */
void conversation_move(struct hd_text *text, const char *from, const char *to);

#endif
