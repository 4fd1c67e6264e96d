/* stages: parses and writes the text of parallel.layers_per_stage. */
#include <stdio.h>
#include <stdlib.h>

#include "job/job.h"

enum { LAYERS_MAX = 1 << 20 };

static bool read_number(const char **at, int64_t *ret_number)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    *ret_number = strtoll(*at, &end, 10);
    *at = end;
    return *ret_number <= LAYERS_MAX;
}

enum hd_status hd_stages_read(const char *text, int64_t *ret_layers, int64_t room,
                              int64_t *ret_count)
{
    const char *at = text;
    int64_t count = 0;

    do {
        int64_t layers, times = 1;

        if (count > 0)
            at++; /* skips the comma */
        if (!read_number(&at, &layers))
            return hd_err(HD_INVALID, "'%s' is no list of numbers of layers", text);
        if (*at == '*') {
            at++;
            if (!read_number(&at, &times) || times < 1)
                return hd_err(HD_INVALID, "'%s' is no list of numbers of layers", text);
        }
        for (; times > 0; times--, count++)
            if (count < room)
                ret_layers[count] = layers;
    } while (*at == ',');
    if (*at)
        return hd_err(HD_INVALID, "'%s' is no list of numbers of layers", text);
    *ret_count = count;
    return HD_OK;
}

enum hd_status hd_stages_read_chunks(const char *text, int64_t chunks, int64_t layers,
                                     int64_t *ret_layers)
{
    int64_t count, sum = 0;
    enum hd_status st = hd_stages_read(text, ret_layers, chunks, &count);

    if (st)
        return hd_err_prefix(st, "parallel.layers_per_stage");
    if (count != chunks)
        return hd_err(HD_INVALID,
                      "parallel.layers_per_stage: %lld numbers of layers; parallel.pp x "
                      "parallel.virtual_stages = %lld are needed",
                      (long long)count, (long long)chunks);
    for (int64_t c = 0; c < count; c++) {
        if (!ret_layers[c] && c > 0 && c < count - 1)
            return hd_err(
                HD_INVALID,
                "parallel.layers_per_stage: number %lld is 0; only the first, whose chunk has the "
                "embedding, and the last, whose chunk has the head, may be 0",
                (long long)c + 1);
        sum += ret_layers[c];
    }
    if (sum == layers)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "parallel.layers_per_stage: the numbers add up to %lld; model.layers is %lld",
                  (long long)sum, (long long)layers);
}

enum hd_status hd_stages_write(const int64_t *layers, int64_t count, char ret_text[HD_JOB_WORD_MAX])
{
    int used = 0;

    for (int64_t i = 0, times; i < count; i += times) {
        for (times = 1; i + times < count && layers[i + times] == layers[i]; times++)
            ;
        used += snprintf(ret_text + used, (size_t)(HD_JOB_WORD_MAX - used),
                         times > 1 ? "%s%lld*%lld" : "%s%lld", i ? "," : "", (long long)layers[i],
                         (long long)times);
        if (used >= HD_JOB_WORD_MAX)
            return hd_err(HD_LIMIT, "the numbers of layers take more than %d characters",
                          HD_JOB_WORD_MAX - 1);
    }
    return HD_OK;
}
