#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/random.h"
#include "base/text.h"
#include "base/user.h"
#include "rpc/credentials.h"

enum { FILE_BYTES_MAX = 2 * 1024 * 1024 };

enum hd_status hd_rpc_check_token(const char *token)
{
    size_t len_bytes = strlen(token);

    if (len_bytes < HD_RPC_TOKEN_MIN || len_bytes > HD_RPC_TOKEN_MAX)
        return hd_err(HD_INVALID,
                      "a token has %d to %d bytes, this one has %zu; make one with: openssl rand "
                      "-hex 32",
                      HD_RPC_TOKEN_MIN, HD_RPC_TOKEN_MAX, len_bytes);
    for (const char *p = token; *p; p++)
        if (*p <= ' ' || *p > '~')
            return hd_err(HD_INVALID, "a token is printable ASCII without spaces; byte %td is not",
                          p - token);
    return HD_OK;
}

/* ---- files ---- */

static enum hd_status read_private(const char *path, int patience_ms, const char *dir,
                                   struct hd_text *ret_text)
{
    mode_t mode = 0;
    enum hd_status st = hd_user_read_file(path, FILE_BYTES_MAX, patience_ms, dir, &mode, ret_text);

    if (st && st != HD_DENIED)
        return hd_err_prefix(st, "token file");
    if (!st && mode & (S_IRWXG | S_IRWXO))
        st = hd_err(HD_DENIED, "others may read the token in %s; run: chmod 600 %s", path, path);
    if (!st && ret_text->len_bytes && strlen(ret_text->data) != ret_text->len_bytes)
        st = hd_err(HD_INVALID, "%s is not a token file: it has a NUL byte", path);
    return st;
}

static enum hd_status check_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@";
    const size_t length = strlen(name);

    if (length < 1 || length > HD_RPC_TOKEN_NAME_MAX || strspn(name, allowed) != length)
        return hd_err(HD_INVALID, "a name has 1 to %d letters, digits or . _ - @",
                      HD_RPC_TOKEN_NAME_MAX);
    if (strcmp(name, "token") == 0 || strcmp(name, "node") == 0)
        return hd_err(HD_INVALID, "\"%s\" is what a token without a name is called; choose another",
                      name);
    return HD_OK;
}

/* Splits a line of a token file into *ret_name and *ret_token; a line of one word has name "".
 * HD_NOT_FOUND: the line is empty. */
static enum hd_status split_line(char *line, const char **ret_name, const char **ret_token)
{
    static const char space[] = " \t\r";
    char *rest = NULL;
    const char *first = strtok_r(line, space, &rest), *second = strtok_r(NULL, space, &rest);

    if (!first || *first == '#')
        return HD_NOT_FOUND;
    *ret_name = second ? first : "";
    *ret_token = second ? second : first;
    if (strtok_r(NULL, space, &rest))
        return hd_err(HD_INVALID, "it has more than a name and a token");
    return second ? check_name(first) : HD_OK;
}

/* Checks that `tokens` does not have this token yet. before: number of tokens when reading of this
 * file began; a token without a name among those does not count as a second one. */
static enum hd_status check_new(const struct hd_rpc_tokens *tokens, size_t before,
                                const struct hd_rpc_token *made)
{
    if (tokens->count >= HD_RPC_TOKENS_MAX)
        return hd_err(HD_LIMIT, "there are more than %d tokens", HD_RPC_TOKENS_MAX);
    for (size_t i = 0; i < tokens->count; i++) {
        const struct hd_rpc_token *other = &tokens->items[i];

        if (strcmp(other->token, made->token) == 0)
            return hd_err(HD_INVALID, "%s",
                          other->party != made->party
                              ? "this is a user's token and a node's: they must differ"
                              : "the token of this line was given before");
        if (i >= before && !other->name[0] && !made->name[0])
            return hd_err(HD_INVALID, "a second token without a name; only one may be without: "
                                      "write NAME TOKEN");
    }
    return HD_OK;
}

/* Enlarges the array by a copy, because realloc would leave secrets in freed memory. */
static enum hd_status grow_tokens(struct hd_rpc_tokens *tokens)
{
    struct hd_rpc_tokens bigger = {.count = tokens->count,
                                   .capacity = tokens->capacity ? 2 * tokens->capacity : 16};

    bigger.items = calloc(bigger.capacity, sizeof *bigger.items);
    if (!bigger.items)
        return hd_err(HD_NO_MEMORY, "no memory for tokens");
    if (tokens->count)
        memcpy(bigger.items, tokens->items, tokens->count * sizeof *tokens->items);
    hd_rpc_tokens_done(tokens);
    *tokens = bigger;
    return HD_OK;
}

static enum hd_status add(struct hd_rpc_tokens *tokens, size_t before,
                          const struct hd_rpc_token *made)
{
    enum hd_status st = check_new(tokens, before, made);

    if (!st && tokens->count == tokens->capacity)
        st = grow_tokens(tokens);
    if (!st)
        tokens->items[tokens->count++] = *made;
    return st;
}

static enum hd_status take_line(struct hd_rpc_tokens *tokens, size_t before,
                                enum hd_rpc_party party, char *line)
{
    struct hd_rpc_token made = {.party = party};
    const char *name, *token;
    enum hd_status st = split_line(line, &name, &token);

    if (st)
        return st == HD_NOT_FOUND ? HD_OK : st;
    st = hd_rpc_check_token(token);
    if (!st) {
        memcpy(made.name, name, strlen(name) + 1);
        memcpy(made.token, token, strlen(token) + 1);
        st = add(tokens, before, &made);
    }
    explicit_bzero(&made, sizeof made);
    return st;
}

static enum hd_status read_tokens(struct hd_rpc_tokens *tokens, const char *path, int patience_ms,
                                  const char *dir, enum hd_rpc_party party)
{
    const size_t before = tokens->count;
    struct hd_text text = {0};
    enum hd_status st = read_private(path, patience_ms, dir, &text);
    char *rest = text.data;
    int number = 0;

    while (!st && rest && *rest) {
        char *line = rest, *end = strchr(rest, '\n');

        rest = end ? end + 1 : NULL;
        if (end)
            *end = '\0';
        number++;
        st = take_line(tokens, before, party, line);
        if (st)
            st = hd_err_prefix(st, "%s:%d", path, number);
    }
    if (!st && tokens->count == before)
        st = hd_err(
            HD_INVALID,
            "%s has no token; a person gets one of an admin (heddle token create); a new one for "
            "a controller's file is made with: openssl rand -hex 32 >%s",
            path, path);
    if (text.data)
        explicit_bzero(text.data, text.size_bytes);
    hd_text_free(&text);
    return st;
}

enum hd_status hd_rpc_tokens_read(struct hd_rpc_tokens *tokens, const char *path, const char *dir,
                                  enum hd_rpc_party party)
{
    return read_tokens(tokens, path, 0, dir, party);
}

void hd_rpc_tokens_done(struct hd_rpc_tokens *tokens)
{
    if (tokens->items)
        explicit_bzero(tokens->items, tokens->capacity * sizeof *tokens->items);
    free(tokens->items);
    *tokens = (struct hd_rpc_tokens){0};
}

enum hd_status hd_rpc_read_token(const char *path, int patience_ms,
                                 char ret_token[HD_RPC_TOKEN_MAX + 1])
{
    struct hd_rpc_tokens tokens = {0};
    enum hd_status st = read_tokens(&tokens, path, patience_ms, NULL, HD_RPC_PARTY_USER);

    if (!st && tokens.count > 1)
        st = hd_err(HD_INVALID,
                    "%s has %zu tokens; here a file with one line is needed, the caller's own",
                    path, tokens.count);
    if (!st)
        memcpy(ret_token, tokens.items[0].token, HD_RPC_TOKEN_MAX + 1);
    hd_rpc_tokens_done(&tokens);
    return st;
}

/* ---- a server's tokens ---- */

static uint64_t hash_of(const struct hd_rpc_token_set *set, const char *token)
{
    struct hd_hash hash;

    hd_hash_begin(&hash);
    hd_hash_add(&hash, set->key, sizeof set->key);
    hd_hash_add(&hash, token, strlen(token));
    return hd_hash_value(&hash);
}

enum hd_status hd_rpc_token_set_init(struct hd_rpc_token_set *ret_set,
                                     const struct hd_rpc_tokens *tokens)
{
    const size_t count = tokens ? tokens->count : 0;
    struct hd_rpc_token_set set = {0};
    enum hd_status st = hd_random_bytes(set.key, sizeof set.key);

    for (size_t i = 0; !st && i < count; i++)
        st = hd_rpc_check_token(tokens->items[i].token);
    if (st)
        return st;
    set.tokens.items = calloc(count + 1, sizeof *set.tokens.items);
    set.hashes = calloc(count + 1, sizeof *set.hashes);
    if (!set.tokens.items || !set.hashes) {
        free(set.tokens.items);
        free(set.hashes);
        return hd_err(HD_NO_MEMORY, "no memory for tokens");
    }
    set.tokens.count = set.tokens.capacity = count;
    for (size_t i = 0; i < count; i++) {
        set.tokens.items[i] = tokens->items[i];
        set.hashes[i] = hash_of(&set, tokens->items[i].token);
    }
    *ret_set = set;
    return HD_OK;
}

void hd_rpc_token_set_done(struct hd_rpc_token_set *set)
{
    hd_rpc_tokens_done(&set->tokens);
    free(set->hashes);
    explicit_bzero(set, sizeof *set);
}

/* Compares two tokens in constant time. `expected` is padded with zeros. */
static bool is_same(const char expected[HD_RPC_TOKEN_MAX + 1], const char *given)
{
    volatile unsigned char difference = 0;
    char padded[HD_RPC_TOKEN_MAX + 1] = {0};

    strncpy(padded, given, HD_RPC_TOKEN_MAX);
    for (size_t i = 0; i < sizeof padded; i++)
        difference = (unsigned char)(difference | (unsigned char)(padded[i] ^ expected[i]));
    return difference == 0;
}

const struct hd_rpc_token *hd_rpc_tokens_find(const struct hd_rpc_tokens *tokens, const char *given)
{
    const struct hd_rpc_token *found = NULL;

    for (size_t i = 0; i < tokens->count; i++)
        if (is_same(tokens->items[i].token, given))
            found = &tokens->items[i]; /* no break: all are compared, for constant time */
    return found;
}

const struct hd_rpc_token *hd_rpc_token_set_find(const struct hd_rpc_token_set *set,
                                                 const char *given)
{
    const uint64_t hash = hash_of(set, given);

    for (size_t i = 0; i < set->tokens.count; i++)
        if (set->hashes[i] == hash && is_same(set->tokens.items[i].token, given))
            return &set->tokens.items[i];
    return NULL;
}
