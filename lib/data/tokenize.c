#include "data/tokenize.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/pieces.h"
#include "chat/conversation.h"
#include "data/data_internal.h"
#include "records/kind.h"
#include "records/source.h"

enum {
    /* bytes of a piece at least, except at the end of a file */
    PIECE_BYTES = HD_PIECE(1 << 20, 203),
    READ_BYTES = HD_PIECE(1 << 18, 61),
    SLOTS_PER_THREAD = 2,
    WAIT_MS = 100,
};

/* State of a slot, which holds one piece of an input and its ids. The caller's thread owns a slot
 * that is FREE or DONE, a worker thread any other. */
enum slot_state { FREE, READY, TAKEN, DONE };

struct tokenize_slot {
    enum slot_state state;
    const char *path;
    /* number, from 1, of the first record of the slot's piece; 0: a piece of text */
    int64_t first_line;
    const char *unit;   /* word in front of a record's number in messages: " row ", "" */
    int64_t read_bytes; /* bytes of the file that were read for the piece */
    int64_t first_byte; /* offset in its file, bytes, of the slot's piece of text */
    bool ends_document; /* whether the slot's piece is the last one of a text file */
    struct hd_text text;
    struct hd_id_list ids;
    struct hd_text counts; /* for conversations, one byte per id: whether it counts for the loss */
    int64_t targets, spelled;
    size_t *ends; /* [end_count] index in `ids` after each document's last id */
    size_t end_count, end_capacity;
    struct hd_bad_rows bad; /* records of the piece, and those that cannot be used */
    struct hd_error error;
};

struct work {
    const struct hd_tokenize *how;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when the state of a slot or `stops` changes */
    struct tokenize_slot *slots;
    int slot_count;
    int64_t taken; /* number of pieces that workers have taken, in order */
    bool stops;
    /* used by the caller's thread only */
    size_t input;              /* index of the current input file */
    struct hd_records *source; /* the current input; NULL: not open yet */
    int64_t line, byte; /* lines and bytes of the current input's text that are already in slots */
    int64_t place;      /* bytes of the current input's file that are counted in slots */
    struct hd_text ahead; /* bytes read from the current input that are not in a slot yet */
    /* number of leading bytes of `ahead` that were searched and have no end of a piece */
    size_t searched;
    bool at_end;    /* whether the end of the current input was read */
    bool has_lines; /* whether the current input has records, as lines */
    struct hd_token_writer *writer;
    struct hd_tokenize_counts counts;
    struct hd_bad_rule rule;
    struct hd_bad_rows own, *bad; /* bad records so far: the caller's, or `own` */
};

/* ---- workers ---- */

/* Records that a document ends after the first `ids` ids of the slot. */
static enum hd_status note_end(struct tokenize_slot *slot, size_t ids)
{
    if (slot->end_count == slot->end_capacity) {
        const size_t capacity = slot->end_capacity ? 2 * slot->end_capacity : 256;
        size_t *ends = realloc(slot->ends, capacity * sizeof *ends);

        if (!ends)
            return hd_err(HD_NO_MEMORY, "no memory for the ends of %zu documents", capacity);
        slot->ends = ends;
        slot->end_capacity = capacity;
    }
    slot->ends[slot->end_count++] = ids;
    return HD_OK;
}

/* Ends a document after the ids that the slot has now; adds the end-of-text id if the caller asked
 * for it. */
static enum hd_status end_document(const struct work *w, struct tokenize_slot *slot)
{
    if (w->how->end_of_text >= 0 && !w->how->conversations) {
        enum hd_status st = hd_id_list_reserve(&slot->ids, 1);

        if (st)
            return st;
        slot->ids.ids[slot->ids.count++] = (int32_t)w->how->end_of_text;
    }
    return note_end(slot, slot->ids.count);
}

/* Returns HD_UNSUPPORTED if one of the slot's ids, from index `first` on, is outside the model's
 * vocabulary: a mistake of the job, not a bad record. */
static enum hd_status check_rows(const struct work *w, const struct tokenize_slot *slot,
                                 size_t first)
{
    for (size_t i = first; w->how->vocab && i < slot->ids.count; i++)
        if (slot->ids.ids[i] >= w->how->vocab)
            return hd_err(HD_UNSUPPORTED,
                          "'%.64s' is token %d of the tokenizer, and the model has rows for "
                          "%" PRId64 " tokens (model.vocab); take it out of the text, or use a "
                          "model or a tokenizer in which both agree",
                          hd_tokenizer_content(w->how->tokenizer, slot->ids.ids[i]),
                          (int)slot->ids.ids[i], w->how->vocab);
    return HD_OK;
}

/* ---- messages as plain texts ---- */

static enum hd_status add_string(struct hd_encoder *encoder, const char *text,
                                 struct hd_id_list *ids)
{
    return text && *text ? hd_encoder_add(encoder, text, strlen(text), ids) : HD_OK;
}

/* Encodes the content of a message: a string, or the texts of its parts. */
static enum hd_status add_content(struct hd_encoder *encoder, const struct hd_json *content,
                                  struct hd_id_list *ids)
{
    const struct hd_json *part = content && content->kind == HD_JSON_ARRAY ? content->first : NULL;
    enum hd_status st = HD_OK;

    if (content && content->kind == HD_JSON_STRING)
        return add_string(encoder, content->text, ids);
    for (; !st && part; part = part->next) {
        const struct hd_json *text =
            part->kind == HD_JSON_OBJECT ? hd_json_member(part, "text") : NULL;

        if (text && text->kind == HD_JSON_STRING)
            st = add_string(encoder, text->text, ids);
    }
    return st;
}

static enum hd_status add_conversation(struct hd_encoder *encoder, const struct hd_conversation *c,
                                       struct hd_id_list *ids)
{
    enum hd_status st = HD_OK;

    if (!c->messages.count) {
        st = add_string(encoder, c->prompt, ids);
        return st ? st : add_string(encoder, c->answer, ids);
    }
    for (const struct hd_json *m = c->messages.first; !st && m; m = m->next)
        st = add_content(encoder, hd_json_member(m, "content"), ids);
    return st;
}

/* Encodes the messages of a conversation, or of a pair of them, each as a text of its own. */
static enum hd_status add_messages(struct hd_encoder *encoder, struct hd_arena *arena,
                                   const char *line, size_t size_bytes, const char *roles,
                                   struct hd_id_list *ids)
{
    struct hd_conversation c, pair[HD_CHAT_PAIR];
    enum hd_status st = hd_conversation_read(arena, line, size_bytes, HD_CHAT_AUTO, roles, &c),
                   other;
    struct hd_error error;

    if (!st)
        return add_conversation(encoder, &c, ids);
    hd_err_save(st, &error);
    other = hd_conversation_read_pair(arena, line, size_bytes, roles, pair);
    if (other)
        return hd_err_restore(&error);
    for (int i = 0; !other && i < HD_CHAT_PAIR; i++)
        other = add_conversation(encoder, &pair[i], ids);
    return other;
}

/* Encodes the text in one record into the slot's ids. */
static enum hd_status add_line(const struct work *w, struct hd_encoder *encoder,
                               struct tokenize_slot *slot, const char *line, size_t size_bytes)
{
    const char *text = NULL;
    const size_t first = slot->ids.count;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_jsonl_text(&arena, line, size_bytes, &text);
    if (st == HD_INVALID && w->how->takes_messages && !text)
        st = add_messages(encoder, &arena, line, size_bytes, w->how->rows.roles, &slot->ids);
    else if (!st)
        st = hd_encoder_add(encoder, text, strlen(text), &slot->ids);
    if (!st)
        st = check_rows(w, slot, first);
    if (!st)
        st = end_document(w, slot);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status add_to_tokens(const struct work *w, struct hd_conversation_encoder *encoder,
                                    struct tokenize_slot *slot, const char *line, size_t size_bytes)
{
    const size_t first = slot->counts.len_bytes, before = slot->ids.count;
    size_t second = 0;
    bool spelled = false;
    enum hd_status st;

    if (w->how->conversations->form == HD_CHAT_PREFERENCE ||
        w->how->conversations->form == HD_CHAT_UNPAIRED) {
        st = hd_conversation_encode_pair(encoder, line, size_bytes, &slot->ids, &slot->counts,
                                         &second, &spelled);
        st = st ? st : note_end(slot, second);
    } else {
        st = hd_conversation_encode(encoder, line, size_bytes, &slot->ids, &slot->counts, &spelled);
    }
    for (size_t i = first; !st && i < slot->counts.len_bytes; i++)
        slot->targets += slot->counts.data[i];
    slot->spelled += spelled;
    if (!st)
        st = check_rows(w, slot, before);
    return st ? st : end_document(w, slot);
}

static enum hd_status tokenize_piece(const struct work *w, struct hd_encoder *encoder,
                                     struct tokenize_slot *slot)
{
    const char *text = slot->text.data ? slot->text.data : "";
    enum hd_status st = hd_encoder_add(encoder, text, slot->text.len_bytes, &slot->ids);

    if (!st && check_rows(w, slot, 0))
        st = HD_INVALID;
    if (st && slot->first_byte)
        return hd_err_prefix(st, "%s, after its first %" PRId64 " bytes", slot->path,
                             slot->first_byte);
    if (st)
        return hd_err_prefix(st, "%s", slot->path);
    return slot->ends_document ? end_document(w, slot) : HD_OK;
}

/* Counts of a slot before a record is added, to remove the record if it is bad. */
struct slot_mark {
    size_t ids, counts, ends;
    int64_t targets, spelled;
};

static struct slot_mark mark_of(const struct tokenize_slot *s)
{
    return (struct slot_mark){s->ids.count, s->counts.len_bytes, s->end_count, s->targets,
                              s->spelled};
}

static void go_back(struct tokenize_slot *s, struct slot_mark m)
{
    s->ids.count = m.ids;
    s->counts.len_bytes = m.counts;
    s->end_count = m.ends;
    s->targets = m.targets;
    s->spelled = m.spelled;
}

static enum hd_status add_record(const struct work *w, struct hd_encoder *encoder,
                                 struct hd_conversation_encoder *conversations,
                                 struct tokenize_slot *slot, const char *line, size_t bytes)
{
    const struct slot_mark before = mark_of(slot);
    enum hd_status st = hd_records_check_row(line, bytes);

    if (!st)
        st = conversations ? add_to_tokens(w, conversations, slot, line, bytes)
                           : add_line(w, encoder, slot, line, bytes);
    if (st)
        go_back(slot, before);
    return st;
}

static enum hd_status tokenize_lines(const struct work *w, struct hd_encoder *encoder,
                                     struct hd_conversation_encoder *conversations,
                                     struct tokenize_slot *slot)
{
    const char *p = slot->text.data ? slot->text.data : "", *end = p + slot->text.len_bytes;
    int64_t line = slot->first_line;

    for (; p < end; line++) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const size_t n = (size_t)((newline ? newline : end) - p);
        enum hd_status st = HD_OK;

        if (!hd_jsonl_is_blank(p, n) && (!w->how->every || (line - 1) % w->how->every == 0)) {
            slot->bad.records++;
            st = add_record(w, encoder, conversations, slot, p, n);
        }
        if (st)
            st = hd_err_prefix(st, "%s:%s%" PRId64, slot->path, slot->unit, line);
        if (st == HD_INVALID && w->bad)
            hd_bad_rows_add(&slot->bad);
        else if (st)
            return st == HD_UNSUPPORTED ? HD_INVALID : st;
        p += n + 1;
    }
    return HD_OK;
}

static void *run_worker(void *context)
{
    struct work *w = context;
    struct hd_conversation_encoder *conversations = NULL;
    struct hd_encoder *encoder = NULL;
    enum hd_status made = w->how->conversations
                              ? hd_conversation_encoder_new(w->how->conversations, &conversations)
                              : hd_encoder_new(w->how->tokenizer, &encoder);
    struct tokenize_slot *slot;

    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        enum hd_status st;

        slot = &w->slots[w->taken % w->slot_count];
        if (w->stops)
            break;
        if (slot->state != READY) {
            (void)pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        slot->state = TAKEN;
        w->taken++;
        (void)pthread_mutex_unlock(&w->lock);
        if (made)
            st = made;
        else if (slot->first_line)
            st = tokenize_lines(w, encoder, conversations, slot);
        else
            st = tokenize_piece(w, encoder, slot);
        hd_err_save(st, &slot->error);
        (void)pthread_mutex_lock(&w->lock);
        slot->state = DONE;
        (void)pthread_cond_broadcast(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->lock);
    hd_encoder_free(encoder);
    hd_conversation_encoder_free(conversations);
    return NULL;
}

static enum hd_status report_progress(struct work *w)
{
    if (w->how->progress && !w->how->progress(w->how->context, &w->counts))
        return w->how->out ? hd_err(HD_ABORTED, "interrupted; %s is unchanged", w->how->out)
                           : hd_err(HD_ABORTED, "interrupted");
    return HD_OK;
}

/* ---- reading ---- */

static enum hd_status open_input(struct work *w)
{
    const char *path = w->how->inputs[w->input];
    const enum hd_status st = hd_records_open(path, w->how->rows.columns, &w->source);

    if (st)
        return st;
    w->line = w->byte = 0;
    w->place = 0;
    w->at_end = false;
    w->has_lines = hd_records_are_rows(w->source);
    return HD_OK;
}

/* Returns whether a run without output has read how->read_max bytes of the input. */
static bool has_enough(const struct work *w)
{
    return !w->how->out && w->how->read_max && w->byte >= w->how->read_max;
}

static void close_input(struct work *w)
{
    hd_records_close(w->source);
    w->ahead.len_bytes = w->searched = 0;
    w->source = NULL;
    w->input++;
}

/* Appends the next bytes of the current input to `ahead`. */
static enum hd_status read_more(struct work *w, char *buffer)
{
    const char *path = w->how->inputs[w->input];
    size_t n;
    const enum hd_status st = hd_records_read(w->source, buffer, READ_BYTES, &n);

    if (st)
        return st;
    w->at_end = n < READ_BYTES;
    hd_text_add_bytes(&w->ahead, buffer, n);
    return w->ahead.failed ? hd_err(HD_NO_MEMORY, "no memory for a part of %s", path) : HD_OK;
}

/* Returns the size of the piece at the start of `ahead`; 0: more bytes must be read. A piece ends
 * at the first line end (records) or allowed cut (text) after PIECE_BYTES, or at the end of the
 * file. */
static size_t piece_end(struct work *w, bool has_lines)
{
    const struct hd_text *ahead = &w->ahead;
    size_t from = w->searched > PIECE_BYTES ? w->searched : PIECE_BYTES, at;

    if (w->at_end && ahead->len_bytes <= PIECE_BYTES)
        return ahead->len_bytes;
    if (ahead->len_bytes <= PIECE_BYTES)
        return 0;
    if (has_lines) {
        const char *newline = memchr(ahead->data + from, '\n', ahead->len_bytes - from);

        at = newline ? (size_t)(newline - ahead->data) + 1 : 0;
    } else {
        at = hd_tokenizer_cut(w->how->tokenizer, ahead->data, ahead->len_bytes, from);
    }
    w->searched = ahead->len_bytes;
    return !at && w->at_end ? ahead->len_bytes : at;
}

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t lines = 0;

    for (const char *end = text + bytes; text < end; lines++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));

        text = newline ? newline + 1 : end;
    }
    return lines;
}

/* Moves the first bytes of `ahead` to the slot. */
static enum hd_status take_piece(struct work *w, struct tokenize_slot *slot, size_t bytes,
                                 bool has_lines)
{
    const size_t rest = w->ahead.len_bytes - bytes;

    hd_text_add_bytes(&slot->text, w->ahead.data ? w->ahead.data : "", bytes);
    if (slot->text.failed)
        return hd_err(HD_NO_MEMORY, "no memory for a part of %s", slot->path);
    if (rest)
        memmove(w->ahead.data, w->ahead.data + bytes, rest);
    w->ahead.len_bytes = rest;
    w->searched = 0;
    slot->first_line = has_lines ? w->line + 1 : 0;
    slot->unit = hd_records_unit(w->source);
    slot->read_bytes = hd_records_place(w->source) - w->place;
    w->place += slot->read_bytes;
    slot->first_byte = w->byte;
    slot->ends_document = !has_lines && w->at_end && !rest;
    w->byte += (int64_t)bytes;
    if (has_lines)
        w->line += count_lines(slot->text.data ? slot->text.data : "", bytes);
    return HD_OK;
}

static enum hd_status refuse_length(const struct work *w, const char *path, bool has_lines)
{
    if (has_lines)
        return hd_err(HD_INVALID,
                      "%s:%s%" PRId64 ": a record of more than " HD_JSONL_LINE_TEXT
                      "; is the end of a line or a quote missing?",
                      path, hd_records_unit(w->source), w->line + 1);
    return hd_err(HD_INVALID,
                  "%s: %d bytes have no place where a text may be cut for this tokenizer; split it "
                  "into several files",
                  path, HD_TOKENIZE_PIECE_BYTES_MAX);
}

/* Reads until `ahead` has a whole piece, and moves it to the slot. */
static enum hd_status fill_from_file(struct work *w, struct tokenize_slot *slot)
{
    const bool has_lines = w->has_lines;
    const size_t max =
        has_lines ? HD_JSONL_LINE_BYTES_MAX : HD_TOKENIZE_PIECE_BYTES_MAX - READ_BYTES;
    char *buffer = malloc(READ_BYTES);
    enum hd_status st = buffer ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to read %s", slot->path);
    size_t end = 0;

    while (!st && !(end = piece_end(w, has_lines)) && !w->at_end) {
        st = read_more(w, buffer);
        if (!st && w->ahead.len_bytes > max)
            st = refuse_length(w, slot->path, has_lines);
        if (!st)
            st = report_progress(w);
    }
    free(buffer);
    if (!st)
        st = take_piece(w, slot, end, has_lines);
    if (!st && ((w->at_end && !w->ahead.len_bytes) || has_enough(w)))
        close_input(w);
    return st;
}

/* Fills the slot with the next piece of the inputs; sets *ret_filled to false if all inputs have
 * been read. */
static enum hd_status fill(struct work *w, struct tokenize_slot *slot, bool *ret_filled)
{
    enum hd_status st = HD_OK;

    *ret_filled = w->input < w->how->input_count;
    if (!*ret_filled)
        return HD_OK;
    hd_text_clear(&slot->text);
    slot->ids.count = 0;
    hd_text_clear(&slot->counts);
    slot->targets = slot->spelled = 0;
    slot->end_count = 0;
    hd_bad_rows_free(&slot->bad);
    slot->path = w->how->inputs[w->input];
    if (!w->source)
        st = open_input(w);
    return st ? st : fill_from_file(w, slot);
}

/* ---- writing ---- */

static enum hd_status write_document(struct work *w, const struct tokenize_slot *slot, size_t first,
                                     size_t end)
{
    enum hd_status st;

    if (w->how->conversations)
        return hd_token_writer_add_document(w->writer, slot->ids.ids + first,
                                            slot->counts.data + first, (int64_t)(end - first));
    st = hd_token_writer_add(w->writer, slot->ids.ids + first, (int64_t)(end - first));
    return st ? st : hd_token_writer_end_document(w->writer);
}

/* Returns the name of the input, or of the first, for a message on all. */
static const char *name_inputs(const struct work *w, char ret_name[HD_ERR_MAX / 2])
{
    (void)snprintf(ret_name, HD_ERR_MAX / 2, "%.400s%s", w->how->inputs[0],
                   w->how->input_count > 1 ? " and the other files" : "");
    return ret_name;
}

/* Adds the bad records of a slot to those so far; fails as soon as they are an error whatever
 * follows. */
static enum hd_status count_bad(struct work *w, const struct tokenize_slot *slot)
{
    struct hd_bad_rows *bad = w->bad;
    char name[HD_ERR_MAX / 2];

    if (!bad)
        return HD_OK;
    hd_bad_rows_join(bad, &slot->bad);
    w->counts.left_out += slot->bad.count;
    if (bad->reasons.failed)
        return hd_err(HD_NO_MEMORY, "no memory for the records that cannot be used");
    if (w->rule.skips ? w->rule.count_max >= 0 && bad->count > w->rule.count_max
                      : bad->count >= HD_BAD_ROWS_SHOWN)
        return hd_bad_rows_judge(bad, &w->rule, name_inputs(w, name));
    return HD_OK;
}

static enum hd_status write_ids(struct work *w, struct tokenize_slot *slot)
{
    enum hd_status st =
        w->how->take ? w->how->take(w->how->context, slot->ids.ids, slot->ids.count) : HD_OK;
    size_t at = 0;

    w->counts.tokens += (int64_t)slot->ids.count;
    for (size_t d = 0; w->writer && !st && d < slot->end_count; d++) {
        st = write_document(w, slot, at, slot->ends[d]);
        at = slot->ends[d];
    }
    if (w->writer && !st && at < slot->ids.count)
        st = hd_token_writer_add(w->writer, slot->ids.ids + at, (int64_t)(slot->ids.count - at));
    w->counts.targets =
        w->how->conversations ? w->counts.targets + slot->targets : w->counts.tokens;
    w->counts.spelled += slot->spelled;
    w->counts.documents += (int64_t)slot->end_count;
    w->counts.read_bytes += slot->read_bytes;
    w->counts.text_bytes += (int64_t)slot->text.len_bytes;
    return st ? st : count_bad(w, slot);
}

/* ---- the caller's loop ---- */

static void set_state(struct work *w, struct tokenize_slot *slot, enum slot_state state)
{
    (void)pthread_mutex_lock(&w->lock);
    slot->state = state;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static enum hd_status await(struct work *w, const struct tokenize_slot *slot)
{
    enum hd_status st = HD_OK;
    bool is_done = false;

    while (!st && !is_done) {
        struct timespec until;

        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WAIT_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        (void)pthread_mutex_lock(&w->lock);
        if (slot->state != DONE)
            (void)pthread_cond_timedwait(&w->changed, &w->lock, &until);
        is_done = slot->state == DONE;
        (void)pthread_mutex_unlock(&w->lock);
        st = report_progress(w);
    }
    return st;
}

/* Fills the slots in turn with pieces of the inputs, and writes their ids in the same order. */
static enum hd_status run(struct work *w)
{
    int64_t filled = 0, written = 0;
    bool more = true;
    enum hd_status st = HD_OK;

    while (!st && (more || written < filled)) {
        struct tokenize_slot *oldest = &w->slots[written % w->slot_count];

        if (more && filled - written < w->slot_count) {
            struct tokenize_slot *slot = &w->slots[filled % w->slot_count];

            st = fill(w, slot, &more);
            if (!st && more) {
                filled++;
                set_state(w, slot, READY);
            }
            continue;
        }
        st = await(w, oldest);
        if (!st && oldest->error.status)
            st = hd_err_restore(&oldest->error);
        if (!st)
            st = write_ids(w, oldest);
        if (!st) {
            set_state(w, oldest, FREE);
            written++;
            st = report_progress(w);
        }
    }
    return st;
}

static enum hd_status run_with_threads(struct work *w)
{
    pthread_t threads[HD_TOKENIZE_THREADS_MAX];
    int started = 0;
    enum hd_status st = HD_OK;

    while (!st && started < w->how->threads) {
        const int rc = pthread_create(&threads[started], NULL, run_worker, w);

        if (rc)
            st = hd_err(HD_NO_MEMORY, "cannot start a thread: %s", strerror(rc));
        else
            started++;
    }
    if (!st)
        st = run(w);
    (void)pthread_mutex_lock(&w->lock);
    w->stops = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    return st;
}

static enum hd_status check_inputs(const struct hd_tokenize *how, int64_t *ret_bytes)
{
    enum hd_status st;

    *ret_bytes = 0;
    if (!how->input_count)
        return hd_err(HD_INVALID, "no input files");
    if (how->threads < 1 || how->threads > HD_TOKENIZE_THREADS_MAX)
        return hd_err(HD_INVALID, "threads: 1 to %d", HD_TOKENIZE_THREADS_MAX);
    for (size_t i = 0; i < how->input_count; i++) {
        struct hd_data_facts facts;
        struct stat info;

        if (stat(how->inputs[i], &info) < 0)
            return hd_file_cannot_open("", how->inputs[i], errno);
        if (S_ISDIR(info.st_mode))
            return hd_err(HD_INVALID, "%s is a folder; name the files in it, such as %s/*.parquet",
                          how->inputs[i], how->inputs[i]);
        if (!S_ISREG(info.st_mode))
            return hd_err(HD_INVALID, "%s is not a regular file", how->inputs[i]);
        st = hd_data_look(how->inputs[i], &facts);
        if (st)
            return st;
        if (how->conversations && !hd_data_kind_has_records(facts.kind))
            return hd_err(
                HD_INVALID,
                "%s: conversations are read from records, as of a .jsonl, .csv or .parquet",
                how->inputs[i]);
        *ret_bytes += info.st_size;
    }
    return HD_OK;
}

static enum hd_status make_slots(struct work *w)
{
    w->slot_count = SLOTS_PER_THREAD * w->how->threads;
    w->slots = calloc((size_t)w->slot_count, sizeof *w->slots);
    return w->slots ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to tokenize");
}

static void done(struct work *w)
{
    for (int i = 0; w->slots && i < w->slot_count; i++) {
        hd_text_free(&w->slots[i].text);
        hd_id_list_free(&w->slots[i].ids);
        hd_text_free(&w->slots[i].counts);
        free(w->slots[i].ends);
        hd_bad_rows_free(&w->slots[i].bad);
    }
    free(w->slots);
    hd_text_free(&w->ahead);
    hd_bad_rows_free(&w->own);
    hd_records_close(w->source);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
}

enum hd_status hd_tokenize_run(const struct hd_tokenize *how, struct hd_tokenize_counts *ret_counts)
{
    const bool is_narrow =
        hd_tokenizer_vocab(how->tokenizer) <= 1 << 16 && how->end_of_text < 1 << 16;
    struct work w = {.how = how};
    char name[HD_ERR_MAX / 2];
    enum hd_status st = hd_bad_rule_read(how->rows.bad_rows, &w.rule);

    if (!st)
        st = check_inputs(how, &w.counts.total_bytes);
    if (st)
        return st;
    w.bad = how->bad ? how->bad : w.rule.skips ? &w.own : NULL;
    (void)pthread_mutex_init(&w.lock, NULL);
    (void)pthread_cond_init(&w.changed, NULL);
    st = make_slots(&w);
    if (!st && how->out)
        st = hd_token_writer_open(how->out, how->format, is_narrow ? 2 : 4, &w.writer);
    if (!st)
        st = run_with_threads(&w);
    if (!st && w.bad)
        st = hd_bad_rows_judge(w.bad, &w.rule, name_inputs(&w, name));
    if (!st && how->needs_tokens && !w.counts.tokens)
        st = hd_err(HD_INVALID,
                    "%s%s: the text has no token, so no job could train on it; give "
                    "files with text",
                    how->inputs[0], how->input_count > 1 ? " and the other files" : "");
    if (st)
        hd_token_writer_drop(w.writer);
    else if (w.writer)
        st = hd_token_writer_finish(w.writer);
    if (!st && ret_counts)
        *ret_counts = w.counts;
    done(&w);
    return st;
}
