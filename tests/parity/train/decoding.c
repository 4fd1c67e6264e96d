#include "decoding.h"

#include "harness.h"
#include "tests/program/test.h"

struct decoding decoding_open_as(const char *dir, struct hd_decoder_options options)
{
    struct decoding d = {0};

    options.dirs.dir = dir;
    options.backend = harness_backend();
    options.threads = 1;
    must(hd_decoder_open(&options, &d.decoder));
    return d;
}

struct decoding decoding_open(const char *dir)
{
    return decoding_open_as(dir, (struct hd_decoder_options){.tp = 1});
}

void decoding_close(struct decoding *d)
{
    hd_decoder_close(d->decoder);
    d->decoder = NULL;
}

const float *decoding_prompt(struct decoding *d, const int32_t *tokens, int64_t count)
{
    const int64_t most = hd_decoder_rows_max(d->decoder, 1);
    const float *logits = NULL;

    d->filled = 0;
    while (d->filled < count) {
        const int64_t left = count - d->filled;
        const struct hd_decoder_rows rows = {
            .filled = d->filled, .tokens = tokens + d->filled, .count = left < most ? left : most};

        must(hd_decoder_run(d->decoder, &rows, 1));
        must(hd_decoder_logits(d->decoder, 0, rows.count - 1, &logits));
        d->filled += rows.count;
    }
    return logits;
}

const float *decoding_next(struct decoding *d, int32_t token)
{
    const struct hd_decoder_rows rows = {.filled = d->filled, .tokens = &token, .count = 1};
    const float *logits = NULL;

    must(hd_decoder_run(d->decoder, &rows, 1));
    must(hd_decoder_logits(d->decoder, 0, 0, &logits));
    d->filled++;
    return logits;
}
