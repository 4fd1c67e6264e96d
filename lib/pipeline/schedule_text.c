/* schedule_text: writes and reads schedules as text, and draws them over time. */
#include <stdio.h>
#include <string.h>

#include "pipeline/pipeline_internal.h"

void hd_schedule_write(const struct hd_schedule *schedule, struct hd_text *ret_text)
{
    for (int32_t s = 0; s < schedule->pipeline.stages; s++) {
        hd_text_add(ret_text, "%d:", (int)s);
        for (int32_t i = 0; i < schedule->stages[s].count; i++) {
            const struct hd_schedule_entry *e = &schedule->stages[s].entries[i];

            hd_text_add(ret_text, " %s%d.%d", hd_call_name(e->call), (int)e->chunk,
                        (int)e->micro_batch);
        }
        hd_text_add(ret_text, "\n");
    }
}

/* ---- reading ---- */

enum { WORD_MAX = 32 };

struct reader {
    const char *at;
    int32_t line, word; /* position in the text, counted from 1 */
    const char *begin;  /* start of the current word */
    size_t length;
    struct hd_schedule schedule;
    int32_t *lines; /* [stages] number of the line that has the stage's programs; 0: not read yet */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Makes the next word of the line the current one. Returns false at the end of the line, or at a
 * comment. */
static bool next_word(struct reader *r)
{
    while (is_blank(*r->at))
        r->at++;
    if (*r->at == '\0' || *r->at == '\n' || *r->at == '#')
        return false;
    r->begin = r->at;
    while (*r->at != '\0' && *r->at != '\n' && *r->at != '#' && !is_blank(*r->at))
        r->at++;
    r->length = (size_t)(r->at - r->begin);
    r->word++;
    return true;
}

/* Advances to the beginning of the next line. Returns false if there is none. */
static bool next_line(struct reader *r)
{
    while (*r->at != '\0' && *r->at != '\n')
        r->at++;
    if (*r->at == '\0')
        return false;
    r->at++;
    r->line++;
    r->word = 0;
    return true;
}

/* Formats the current word for a message: non-ASCII bytes are replaced, and a long word is
 * truncated. */
static const char *quote(const struct reader *r, char ret_text[WORD_MAX])
{
    size_t n = 0;

    for (; n < r->length && n < WORD_MAX - 4; n++)
        ret_text[n] = (char)(r->begin[n] > ' ' && r->begin[n] < 127 ? r->begin[n] : '?');
    (void)snprintf(ret_text + n, WORD_MAX - n, "%s", n < r->length ? "..." : "");
    return ret_text;
}

/* Parses decimal digits. Returns false if there are no digits, or if the number is larger than any
 * stage, chunk or micro-batch of a step can be. */
static bool read_number(const char **at, const char *end, int32_t *ret_number)
{
    const char *c = *at;
    int32_t n = 0;

    if (c == end || *c < '0' || *c > '9')
        return false;
    for (; c < end && *c >= '0' && *c <= '9'; c++) {
        if (n > 99999999)
            return false;
        n = n * 10 + (*c - '0');
    }
    *at = c;
    *ret_number = n;
    return true;
}

static enum hd_status parse_stage(const struct reader *r, int32_t *ret_stage)
{
    const char *c = r->begin, *end = r->begin + r->length;
    char word[WORD_MAX];

    if (!read_number(&c, end, ret_stage) || c + 1 != end || *c != ':')
        return hd_err(HD_INVALID,
                      "line %d, word %d: \"%s\" is not a pipeline stage; a line begins like \"0:\"",
                      (int)r->line, (int)r->word, quote(r, word));
    return HD_OK;
}

static enum hd_status read_stage(struct reader *r, int32_t *ret_stage)
{
    enum hd_status st = parse_stage(r, ret_stage);

    if (st)
        return st;
    if (*ret_stage >= r->schedule.pipeline.stages)
        return hd_err(HD_INVALID, "line %d, word %d: there is no stage %d; the last one is %d",
                      (int)r->line, (int)r->word, (int)*ret_stage,
                      (int)r->schedule.pipeline.stages - 1);
    if (r->lines[*ret_stage])
        return hd_err(HD_INVALID, "line %d, word %d: stage %d has line %d already", (int)r->line,
                      (int)r->word, (int)*ret_stage, (int)r->lines[*ret_stage]);
    return HD_OK;
}

static enum hd_status read_entry(struct reader *r, struct hd_schedule_entry *ret_entry)
{
    const char *c = r->begin + 1, *end = r->begin + r->length;
    char word[WORD_MAX];

    switch (*r->begin) {
    case 'F':
        ret_entry->call = HD_CALL_F;
        break;
    case 'B':
        ret_entry->call = HD_CALL_B;
        break;
    case 'W':
        ret_entry->call = HD_CALL_W;
        r->schedule.split = true;
        break;
    default:
        goto wrong;
    }
    if (!read_number(&c, end, &ret_entry->chunk) || c == end || *c++ != '.' ||
        !read_number(&c, end, &ret_entry->micro_batch) || c != end)
        goto wrong;
    return HD_OK;
wrong:
    return hd_err(HD_INVALID,
                  "line %d, word %d: \"%s\" is not a program; write F, B or W, the chunk, a point "
                  "and the micro-batch, like \"F0.1\"",
                  (int)r->line, (int)r->word, quote(r, word));
}

/* Reads the programs of a stage. Refuses a line with more programs than a stage can have, because
 * one of them would be a duplicate. */
static enum hd_status read_line(struct reader *r, struct hd_arena *arena)
{
    const struct hd_pipeline *p = &r->schedule.pipeline;
    const int32_t most = p->chunks / p->stages * r->schedule.micro_batches * PROGRAM_ROWS;
    struct hd_stage_schedule *stage;
    int32_t s = 0;
    int room = 0;
    enum hd_status st;

    if (!next_word(r))
        return HD_OK;
    st = read_stage(r, &s);
    if (st)
        return st;
    r->lines[s] = r->line;
    stage = &r->schedule.stages[s];
    while (next_word(r)) {
        struct hd_schedule_entry *entries;

        if (stage->count == most)
            return hd_err(HD_INVALID,
                          "line %d, word %d: %d chunks with %d micro-batches have no more programs "
                          "than the words before",
                          (int)r->line, (int)r->word, (int)(p->chunks / p->stages),
                          (int)r->schedule.micro_batches);
        entries = hd_arena_grow(arena, stage->entries, stage->count, &room, sizeof *entries);
        if (!entries)
            return hd_err(HD_NO_MEMORY, "no memory for a schedule");
        stage->entries = entries;
        st = read_entry(r, &entries[stage->count]);
        if (st)
            return st;
        stage->count++;
    }
    return HD_OK;
}

/* The largest stage, chunk or micro-batch number in the text of a schedule, and its position. */
struct largest {
    int32_t number, line, word; /* largest number found (-1: none yet), and its line and word,
                                   counted from 1 */
};

static void measure(const struct reader *r, int32_t number, struct largest *largest)
{
    if (number > largest->number)
        *largest = (struct largest){number, r->line, r->word};
}

struct measures {
    struct largest stage, chunk, micro_batch;
    struct largest first; /* largest chunk number on stage 0 */
    int32_t lines;        /* number of lines that begin with a stage */
    int64_t programs;
};

static enum hd_status measure_line(struct reader *r, struct measures *m)
{
    struct hd_schedule_entry entry;
    int32_t stage = 0;
    enum hd_status st;

    if (!next_word(r))
        return HD_OK;
    st = parse_stage(r, &stage);
    if (st)
        return st;
    m->lines++;
    measure(r, stage, &m->stage);
    while (!st && next_word(r)) {
        st = read_entry(r, &entry);
        if (st)
            return st;
        m->programs++;
        measure(r, entry.chunk, &m->chunk);
        measure(r, entry.micro_batch, &m->micro_batch);
        if (!stage)
            measure(r, entry.chunk, &m->first);
    }
    return st;
}

/* Refuses stage, chunk and micro-batch numbers that are too large for the length of the text: they
 * would make hd_schedule_read allocate memory for programs that the text lacks. */
static enum hd_status check_measures(const struct measures *m, int32_t stages, int32_t chunks)
{
    const struct largest *c = &m->chunk, *b = &m->micro_batch;

    if (stages > m->lines)
        return hd_err(HD_INVALID,
                      "line %d, word %d: stage %d is the last, so %d lines are needed, and there "
                      "are %d; stages are counted from 0",
                      (int)m->stage.line, (int)m->stage.word, (int)m->stage.number, (int)stages,
                      (int)m->lines);
    if (chunks < stages || chunks % stages)
        return hd_err(HD_INVALID,
                      "line %d, word %d: chunk %d is the last of %d, and %d stages have equally "
                      "many; chunks are counted from 0",
                      (int)c->line, (int)c->word, (int)c->number, (int)chunks, (int)stages);
    if ((int64_t)chunks * (b->number + 1) <= m->programs)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%d chunks (line %d, word %d) with %d micro-batches (line %d, word %d) have at "
                  "least %lld programs, and there are %lld; numbers are counted from 0",
                  (int)chunks, (int)c->line, (int)c->word, (int)b->number + 1, (int)b->line,
                  (int)b->word, 2 * (long long)chunks * (b->number + 1), (long long)m->programs);
}

enum hd_status hd_schedule_measure(const char *text, struct hd_pipeline *ret_pipeline,
                                   int32_t *ret_micro_batches)
{
    struct reader r = {.at = text, .line = 1};
    struct measures m = {
        .stage.number = -1, .chunk.number = -1, .micro_batch.number = -1, .first.number = -1};
    int32_t stages, chunks;
    enum hd_status st;

    do
        st = measure_line(&r, &m);
    while (!st && next_line(&r));
    if (st)
        return st;
    if (!m.programs)
        return hd_err(HD_INVALID, "line %d: the text ends without a program", (int)r.line);
    stages = m.stage.number + 1;
    chunks = m.chunk.number + 1;
    st = check_measures(&m, stages, chunks);
    if (st)
        return st;
    *ret_pipeline = (struct hd_pipeline){
        stages, chunks, stages > 1 && chunks == 2 * stages && m.first.number == m.chunk.number};
    *ret_micro_batches = m.micro_batch.number + 1;
    return HD_OK;
}

enum hd_status hd_schedule_read(const char *text, const struct hd_pipeline *pipeline,
                                int32_t micro_batches, struct hd_arena *arena,
                                struct hd_schedule *ret_schedule)
{
    struct reader r = {
        .at = text, .line = 1, .schedule = {.pipeline = *pipeline, .micro_batches = micro_batches}};
    struct hd_arena scratch;
    struct schedule_walk walk;
    enum hd_status st;

    hd_arena_init(&scratch, 0);
    st = pipeline_check(pipeline, micro_batches);
    if (st)
        goto end;
    r.schedule.stages = hd_arena_array(arena, (size_t)pipeline->stages, sizeof *r.schedule.stages);
    r.lines = hd_arena_array(&scratch, (size_t)pipeline->stages, sizeof *r.lines);
    if (!r.schedule.stages || !r.lines) {
        st = hd_err(HD_NO_MEMORY, "no memory for a schedule");
        goto end;
    }
    do
        st = read_line(&r, arena);
    while (!st && next_line(&r));
    for (int32_t s = 0; s < pipeline->stages && !st; s++)
        if (!r.lines[s])
            st = hd_err(HD_INVALID, "line %d: the text ends without a line for stage %d",
                        (int)r.line, (int)s);
    if (!st)
        st = schedule_walk_run(&r.schedule, NULL, r.lines, &scratch, &walk);
    if (!st)
        *ret_schedule = r.schedule;
end:
    hd_arena_done(&scratch);
    return st;
}

/* ---- drawing ---- */

/* Draws the line of one stage: a cell for each unit of time. */
static void draw_stage(const struct hd_schedule *schedule, const struct schedule_walk *walk,
                       int32_t stage, int32_t total, struct hd_text *text)
{
    const bool chunks = schedule->pipeline.chunks > schedule->pipeline.stages;
    const struct hd_stage_schedule *s = &schedule->stages[stage];
    char cell[32];
    int width, stages_width;
    int32_t time = 0;

    stages_width = snprintf(NULL, 0, "%d", (int)schedule->pipeline.stages - 1);
    width = chunks ? snprintf(NULL, 0, "F%d.%d", (int)schedule->pipeline.chunks - 1,
                              (int)schedule->micro_batches - 1)
                   : snprintf(NULL, 0, "F%d", (int)schedule->micro_batches - 1);
    hd_text_add(text, "%*d ", stages_width, (int)stage);
    for (int32_t i = 0; i < s->count; i++) {
        const struct hd_schedule_entry *e = &s->entries[i];
        const int64_t id = program_id(schedule, e->chunk, e->micro_batch);
        const int row = program_row(e->call);

        for (; time < (int32_t)walk->start[row][id]; time++)
            hd_text_add(text, " %-*s", width, ".");
        if (chunks)
            (void)snprintf(cell, sizeof cell, "%s%d.%d", hd_call_name(e->call), (int)e->chunk,
                           (int)e->micro_batch);
        else
            (void)snprintf(cell, sizeof cell, "%s%d", hd_call_name(e->call), (int)e->micro_batch);
        hd_text_add(text, " %-*s", width, cell);
        for (time++; time < (int32_t)walk->end[row][id]; time++)
            hd_text_add(text, " %-*s", width, "-");
    }
    for (; time < total; time++)
        hd_text_add(text, " %-*s", width, ".");
    while (text->len_bytes && text->data[text->len_bytes - 1] == ' ')
        text->data[--text->len_bytes] = '\0';
    hd_text_add(text, "\n");
}

void hd_schedule_draw(const struct hd_schedule *schedule, struct hd_text *ret_text)
{
    struct hd_arena scratch;
    struct schedule_walk walk;
    int32_t total = 0;

    hd_arena_init(&scratch, 0);
    if (schedule_walk_run(schedule, NULL, NULL, &scratch, &walk)) {
        hd_text_add(ret_text, "%s\n", hd_err_message());
        goto end;
    }
    for (int32_t s = 0; s < schedule->pipeline.stages; s++) {
        const struct hd_schedule_entry *e =
            &schedule->stages[s].entries[schedule->stages[s].count - 1];
        const int32_t end =
            (int32_t)walk.end[program_row(e->call)][program_id(schedule, e->chunk, e->micro_batch)];

        total = end > total ? end : total;
    }
    for (int32_t s = 0; s < schedule->pipeline.stages; s++)
        draw_stage(schedule, &walk, s, total, ret_text);
end:
    hd_arena_done(&scratch);
}
