#include "conversation.h"

#include <stdlib.h>
#include <string.h>

static void *sure(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

static struct plain_bytes from_hex(const char *text)
{
    struct plain_bytes bytes = {.size_bytes = strlen(text) / 2};

    bytes.data = sure(malloc(bytes.size_bytes + 1));
    for (size_t i = 0; i < bytes.size_bytes; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};

        bytes.data[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return bytes;
}

static void read_call_line(struct conversation *c, struct said *said, char *line)
{
    char *rest = NULL;

    said->call = (int)strtol(line, &rest, 10);
    if (rest == line || *rest != ' ' || said->call < 1) {
        fprintf(stderr, "no line of a conversation: %.60s\n", line);
        exit(2);
    }
    rest++;
    c->call_count = said->call > c->call_count ? said->call : c->call_count;
    if (strncmp(rest, "open ", 5) == 0) {
        said->kind = SAID_OPEN;
        said->text = sure(strdup(rest + 5));
    } else if (strncmp(rest, "end ", 4) == 0) {
        said->kind = SAID_END;
        said->status = (int)strtol(rest + 4, &rest, 10);
        said->text = sure(strdup(*rest ? rest + 1 : ""));
    } else if (*rest == '.') {
        said->kind = SAID_HALF;
    } else {
        said->kind = *rest == '>' ? SAID_REQUEST : SAID_ANSWER;
        said->bytes = from_hex(rest + (rest[1] == ' ' ? 2 : 1));
    }
}

static void read_line(struct conversation *c, char *line)
{
    struct said *said;

    if (strncmp(line, "root ", 5) == 0) {
        (void)snprintf(c->root, sizeof c->root, "%s", line + 5);
        return;
    }
    c->lines = sure(realloc(c->lines, (c->count + 1) * sizeof *c->lines));
    said = &c->lines[c->count++];
    *said = (struct said){0};
    if (line[0] == '$' || line[0] == '|') {
        said->kind = line[0] == '$' ? SAID_COMMAND : SAID_OUTPUT;
        said->text = sure(strdup(line[1] ? line + 2 : ""));
    } else {
        read_call_line(c, said, line);
    }
}

void conversation_read(struct conversation *conversation, const char *path)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    ssize_t n;

    *conversation = (struct conversation){.count = 0};
    if (!file) {
        perror(path);
        exit(2);
    }
    while ((n = getline(&line, &size, file)) > 0) {
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        read_line(conversation, line);
    }
    free(line);
    (void)fclose(file);
}

void conversation_free(struct conversation *conversation)
{
    for (size_t i = 0; i < conversation->count; i++) {
        free(conversation->lines[i].text);
        free(conversation->lines[i].bytes.data);
    }
    free(conversation->lines);
}

const char *conversation_path(const struct conversation *conversation, int call)
{
    for (size_t i = 0; i < conversation->count; i++)
        if (conversation->lines[i].kind == SAID_OPEN && conversation->lines[i].call == call)
            return conversation->lines[i].text;
    fprintf(stderr, "call %d is never opened\n", call);
    exit(2);
}

void conversation_write_bytes(FILE *file, int call, char direction, const struct plain_bytes *bytes)
{
    fprintf(file, "%d %c ", call, direction);
    for (size_t i = 0; i < bytes->size_bytes; i++)
        fprintf(file, "%02x", bytes->data[i]);
    fprintf(file, "\n");
    (void)fflush(file);
}

enum hd_rpc_kind conversation_kind(const char *path)
{
    if (strcmp(path, "/heddle.v1.Control/WatchJob") == 0 ||
        strcmp(path, "/heddle.v1.Control/ReadLog") == 0)
        return HD_RPC_SERVER_STREAM;
    if (strcmp(path, "/heddle.v1.Fleet/Connect") == 0 || strcmp(path, "/heddle.v1.Fleet/Logs") == 0)
        return HD_RPC_BIDI;
    return HD_RPC_UNARY;
}

void conversation_move(struct hd_text *text, const char *from, const char *to)
{
    struct hd_text moved = {0};
    const char *at = text->data, *end = text->data + text->len_bytes, *hit;

    if (!text->len_bytes)
        return;
    while ((hit = memmem(at, (size_t)(end - at), from, strlen(from)))) {
        hd_text_add_bytes(&moved, at, (size_t)(hit - at));
        hd_text_add(&moved, "%s", to);
        at = hit + strlen(from);
    }
    hd_text_add_bytes(&moved, at, (size_t)(end - at));
    hd_text_free(text);
    *text = moved;
}
