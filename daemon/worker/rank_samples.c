/* rank_samples: writes texts behind the prompts of validate.samples, and reports them.
 *
 * A sample is an event of the job, whose message is `step 20, prompt 1 of 4: "Once upon" -> " a
 * time" (length)`: prompt and text are quoted as in JSON, then comes why the text ends. A long text
 * is several events; those behind the first begin `step 20, prompt 1 of 4, part 2: "..."`, and all
 * but the last end with (more). heddle samples reads them (controller/cli/cmd_samples.c). */
#include <string.h>

#include "base/json.h"
#include "worker/rank_internal.h"

enum {
    PROMPT_BYTES = 160, /* of a prompt that are shown */
    PART_BYTES = 560,   /* of a text in one event, quoted; a prompt takes at most twice its bytes */
    PARTS_MAX = 32,
};

/* Returns the length of the longest beginning of `bytes` bytes of UTF-8 that is quoted in at most
 * `most` bytes and has whole characters. */
static size_t fitting(const char *text, size_t bytes, size_t most)
{
    size_t at = 0, quoted = 0;

    while (at < bytes) {
        size_t n = 1, cost;

        while (at + n < bytes && ((unsigned char)text[at + n] & 0xc0) == 0x80)
            n++;
        cost = (unsigned char)text[at] < 0x20 || text[at] == 0x7f ? 6
               : text[at] == '"' || text[at] == '\\'              ? 2
                                                                  : n;
        if (quoted + cost > most)
            break;
        quoted += cost;
        at += n;
    }
    return at;
}

/* Appends `bytes` bytes of a text, quoted as in JSON. */
static void add_quoted_part(struct hd_text *out, const char *text, size_t bytes)
{
    struct hd_json_writer w = {.out = out};
    struct hd_text part = {0};

    hd_text_add_bytes(&part, text, bytes);
    hd_json_add_string(&w, NULL, part.data ? part.data : "");
    hd_text_free(&part);
}

static const char *end_word(const struct hd_sample_text *s)
{
    return s->not_finite ? "not finite" : s->stopped ? "stop" : "length";
}

void rank_say_sample(struct rank *r, int64_t step, int64_t index, int64_t count, const char *prompt,
                     const char *text, const char *end)
{
    const size_t prompt_bytes = strlen(prompt), shown = fitting(prompt, prompt_bytes, PROMPT_BYTES);
    size_t left = strlen(text);
    struct hd_text line = {0};

    rank_show_sample(r, index, prompt, text);
    for (int part = 1; part <= PARTS_MAX; part++) {
        const size_t bytes = fitting(text, left, PART_BYTES);

        hd_text_clear(&line);
        hd_text_add(&line, "step %lld, prompt %lld of %lld", (long long)step, (long long)index + 1,
                    (long long)count);
        if (part > 1)
            hd_text_add(&line, ", part %d", part);
        hd_text_add(&line, ": ");
        if (part == 1) {
            add_quoted_part(&line, prompt, shown);
            hd_text_add(&line, "%s -> ", shown < prompt_bytes ? "..." : "");
        }
        add_quoted_part(&line, text, bytes);
        text += bytes;
        left -= bytes;
        hd_text_add(&line, " (%s)", left ? "more" : end);
        if (!line.failed)
            rank_say(r, HD_LINK_LEVEL_SAMPLE, line.data);
        if (!left)
            break;
    }
    hd_text_free(&line);
}

enum hd_status rank_decode(const struct rank *r, struct hd_job_tokenizer *opened,
                           const int32_t *ids, int64_t count, struct hd_text *out)
{
    const struct hd_tokenizer *tokenizer;
    struct hd_utf8_printer printer = {.pending_count = 0};
    struct hd_text bytes = {0};
    enum hd_status st = hd_job_tokenizer_need(opened, &r->job, &tokenizer);

    for (int64_t i = 0; !st && i < count; i++)
        st = hd_tokenizer_decode_next(tokenizer, ids[i], &bytes);
    hd_utf8_printer_add(&printer, bytes.data ? bytes.data : "", bytes.len_bytes, out);
    hd_utf8_printer_end(&printer, out);
    hd_text_add(out, "%s", "");
    if (!st && (bytes.failed || out->failed))
        st = hd_err(HD_NO_MEMORY, "no memory for a text of the model");
    hd_text_free(&bytes);
    return st;
}

/* Reports all samples, on rank 0. A failure is a warning: the samples are no part of training. */
static void report_samples(struct rank *r)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < hd_trainer_sample_count(r->trainer); i++) {
        const struct hd_sample_text s = hd_trainer_sample(r->trainer, i);

        hd_text_clear(&text);
        st = rank_decode(r, &r->tokenizer, s.ids, s.count, &text);
        if (st)
            break;
        rank_say_sample(r, hd_trainer_steps_done(r->trainer), i,
                        hd_trainer_sample_count(r->trainer), s.prompt, text.data, end_word(&s));
    }
    if (st)
        rank_say(r, HD_LINK_LEVEL_WARN, hd_err_message());
    hd_text_free(&text);
}

bool rank_samples_are_due(const struct rank *r, int64_t step)
{
    const int64_t every = r->job.samples_every > 0 ? r->job.samples_every : r->job.validate_every;

    return hd_trainer_sample_count(r->trainer) > 0 && every > 0 && step % every == 0;
}

enum hd_status rank_write_samples(struct rank *r)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    enum hd_status st;

    if (!hd_trainer_sample_count(r->trainer) || (r->sampled && r->sampled_step == step))
        return HD_OK;
    rank_say_alive(r);
    st = hd_trainer_write_samples(r->trainer, rank_say_alive, r);
    if (st)
        return st;
    r->sampled = true;
    r->sampled_step = step;
    if (r->rank == 0)
        report_samples(r);
    return HD_OK;
}
