#include "kernels/cuda/choices.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

static const char first_line[] = "heddle choices 1";
static const char last_word[] = "end ";

enum { LINE_MAX_BYTES = HD_CUDA_CHOICES_DEVICE_MAX };

/* Copies the next line of the file, without its newline. Returns false at the end, for a line that
 * is too long, and for one that is not text. */
static bool next_line(const char **at, const char *end, char ret_line[LINE_MAX_BYTES])
{
    const char *newline = *at < end ? memchr(*at, '\n', (size_t)(end - *at)) : NULL;
    const size_t bytes = newline ? (size_t)(newline - *at) : 0;

    if (!newline || bytes >= LINE_MAX_BYTES)
        return false;
    for (size_t i = 0; i < bytes; i++)
        if ((*at)[i] < ' ' || (*at)[i] > '~')
            return false;
    memcpy(ret_line, *at, bytes);
    ret_line[bytes] = '\0';
    *at = newline + 1;
    return true;
}

/* Parses a line "PRODUCT OFFERED CHOSEN", which must contain nothing more. */
static bool read_choice(const char *line, struct hd_choice *ret_choice)
{
    char product[HD_HASH_TEXT_MAX], canonical[LINE_MAX_BYTES];
    int offered, chosen;

    if (sscanf(line, "%16[0-9a-f] %5d %5d", product, &offered, &chosen) != 3)
        return false;
    (void)snprintf(canonical, sizeof canonical, "%s %d %d", product, offered, chosen);
    if (strcmp(line, canonical) != 0 || !hd_hash_parse(product, &ret_choice->product) ||
        chosen < 0 || chosen >= offered)
        return false;
    ret_choice->offered = offered;
    ret_choice->chosen = chosen;
    return true;
}

enum hd_status hd_cuda_choices_parse(const char *text, size_t size_bytes, const char *device,
                                     struct hd_choice *ret_choices, int *ret_count)
{
    const char *at = text, *end = text + size_bytes;
    char line[LINE_MAX_BYTES];
    uint64_t hash;

    *ret_count = 0;
    if (!next_line(&at, end, line) || strcmp(line, first_line) != 0)
        return hd_err(HD_CORRUPT, "line 1 is not \"%s\"", first_line);
    if (!next_line(&at, end, line))
        return hd_err(HD_CORRUPT, "line 2 is missing, too long, or no text");
    if (strcmp(line, device) != 0)
        return hd_err(HD_CONFLICT, "it is for %s, and this is %s", line, device);
    for (int number = 3;; number++) {
        const size_t before_bytes = (size_t)(at - text);

        if (!next_line(&at, end, line))
            return hd_err(HD_CORRUPT, "line %d is missing, too long, or no text", number);
        if (hd_text_starts(line, last_word)) {
            if (!hd_hash_parse(line + strlen(last_word), &hash) ||
                hash != hd_hash_bytes(text, before_bytes))
                return hd_err(HD_CORRUPT, "its checksum in line %d is wrong", number);
            return at == end ? HD_OK
                             : hd_err(HD_CORRUPT, "there is text after its last line, %d", number);
        }
        if (*ret_count == HD_CUDA_CHOICES_MAX)
            return hd_err(HD_CORRUPT, "it has more than %d choices", (int)HD_CUDA_CHOICES_MAX);
        if (!read_choice(line, &ret_choices[*ret_count]))
            return hd_err(HD_CORRUPT, "line %d is no choice", number);
        ++*ret_count;
    }
}

void hd_cuda_choices_format(const struct hd_choice *choices, int count, const char *device,
                            struct hd_text *ret_text)
{
    char hash[HD_HASH_TEXT_MAX];

    hd_text_add(ret_text, "%s\n%s\n", first_line, device);
    for (int i = 0; i < count; i++) {
        hd_hash_format(choices[i].product, hash);
        hd_text_add(ret_text, "%s %d %d\n", hash, (int)choices[i].offered, (int)choices[i].chosen);
    }
    if (ret_text->failed)
        return;
    hd_hash_format(hd_hash_bytes(ret_text->data, ret_text->len_bytes), hash);
    hd_text_add(ret_text, "%s%s\n", last_word, hash);
}

const struct hd_choice *hd_cuda_choices_find(const struct hd_choice *choices, int count,
                                             uint64_t product)
{
    for (int i = 0; i < count; i++)
        if (choices[i].product == product)
            return &choices[i];
    return NULL;
}
