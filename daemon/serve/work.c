#include "serve/work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct cancel_request {
    struct cancel_request *next;
    uint64_t number; /* number of the item to cancel */
};

struct serve_work {
    struct serve_work_options options;
    uv_thread_t thread;
    uv_async_t async;
    bool started;
    void (*on_closed)(void *user);
    void *closed_user;
    uint64_t numbers; /* number of the newest item; used by the loop's thread */

    /* set by the model's thread before `ready`, then constant */
    struct hd_decoder *decoder;
    struct hd_language *language;
    struct hd_error load_error, chat_error;

    /* used by the model's thread */
    struct hd_generator *generator;
    struct serve_item *all;

    /* protected by `lock` */
    uv_mutex_t lock;
    uv_cond_t changed;
    struct serve_item *added, **added_end;
    struct cancel_request *cancelled;
    struct serve_event *events, **events_end;
    struct hd_error failure; /* first failure of the decoder */
    struct hd_draft_counts drafts;
    bool ready, closing;
};

/* ---- the model's thread: events ---- */

static void send_event(struct serve_work *w, struct serve_event *e)
{
    uv_mutex_lock(&w->lock);
    *w->events_end = e;
    w->events_end = &e->next;
    uv_mutex_unlock(&w->lock);
    (void)uv_async_send(&w->async);
}

static struct serve_event *new_event(struct serve_item *item)
{
    struct serve_event *e = calloc(1, sizeof *e);

    if (e) {
        e->item = item;
        e->id = -1;
        e->log_probability = NAN;
    }
    return e;
}

/* Moves into the event the part of the item's text that can be sent now. Returns false if out of
 * memory. */
static bool take_safe(struct serve_item *item, struct serve_event *e)
{
    const size_t count = item->written.safe - item->told;

    if (!count)
        return true;
    e->bytes = malloc(count);
    if (!e->bytes)
        return false;
    memcpy(e->bytes, item->written.bytes.data + item->told, count);
    e->byte_count = count;
    item->told = item->written.safe;
    return true;
}

static void forget(struct serve_work *w, struct serve_item *item)
{
    *(item->all_before ? &item->all_before->all_next : &w->all) = item->all_next;
    if (item->all_next)
        item->all_next->all_before = item->all_before;
    hd_written_free(&item->written);
}

/* Sends the last event of an item. Every item must get one, so the program aborts if it has no
 * memory for it. */
static void send_end(struct serve_work *w, struct serve_item *item, enum serve_end end,
                     enum hd_status st)
{
    struct serve_event *e;

    hd_written_end(&item->written);
    e = new_event(item);
    if (!e || !take_safe(item, e)) {
        hd_log(HD_LOG_ERROR, "no memory for the end of an answer");
        abort();
    }
    e->ended = true;
    e->end = end;
    if (end == SERVE_FAILED)
        hd_err_save(st, &e->error);
    forget(w, item);
    send_event(w, e);
}

static bool on_token(void *user, const struct hd_generated *token)
{
    struct serve_item *item = user;
    struct serve_event *e = new_event(item);
    const bool is_text = !token->of_prompt && !token->is_stop;

    if (!e ||
        (is_text &&
         hd_written_add(&item->written, hd_language_tokenizer(item->work->language), token->id)) ||
        !take_safe(item, e)) {
        free(e);
        item->no_memory = true; /* reported by the last event */
        return false;
    }
    e->id = token->id;
    e->of_prompt = token->of_prompt;
    e->is_stop = token->is_stop;
    e->log_probability = token->log_probability;
    e->top_count = token->top_count;
    memcpy(e->top, token->top, (size_t)token->top_count * sizeof e->top[0]);
    send_event(item->work, e);
    return !item->written.stopped;
}

static void on_end(void *user, enum hd_generation_end end, enum hd_status st)
{
    struct serve_item *item = user;

    if (item->no_memory) {
        st = hd_err(HD_NO_MEMORY, "no memory for an answer");
        end = HD_GENERATION_FAILED;
    }
    send_end(item->work, item,
             end == HD_GENERATION_STOP     ? SERVE_STOP
             : end == HD_GENERATION_LENGTH ? SERVE_LENGTH
                                           : SERVE_FAILED,
             st);
}

/* ---- the model's thread: items ---- */

static void begin_item(struct serve_work *w, struct serve_item *item)
{
    const struct hd_generation what = {.prompt = item->prompt.ids,
                                       .prompt_count = (int64_t)item->prompt.count,
                                       .max_tokens = item->max_tokens,
                                       .sampling = item->sampling,
                                       .stops = item->stops,
                                       .reports_prompt = item->reports_prompt,
                                       .reports_odds = item->reports_odds,
                                       .top = item->top,
                                       .on_token = on_token,
                                       .on_end = on_end,
                                       .user = item};
    enum hd_status st;

    item->work = w;
    item->written =
        (struct hd_written){.stops = item->stop_texts, .stop_count = item->stop_text_count};
    item->all_before = NULL;
    item->all_next = w->all;
    if (w->all)
        w->all->all_before = item;
    w->all = item;
    st = hd_generator_add(w->generator, &what, &item->sequence);
    if (st)
        send_end(w, item, SERVE_FAILED, st);
}

/* Cancels an item, unless it has already ended. */
static void cancel_item(struct serve_work *w, uint64_t number)
{
    for (struct serve_item *item = w->all; item; item = item->all_next)
        if (item->number == number) {
            hd_generator_remove(w->generator, item->sequence);
            send_end(w, item, SERVE_CANCELLED, HD_OK);
            return;
        }
}

/* Takes new items and cancellations from the loop's thread; `idle`: waits until there are some.
 * Returns false when the thread must end. */
static bool take_requests(struct serve_work *w, bool idle)
{
    struct serve_item *added;
    struct cancel_request *cancelled;
    bool closing;

    uv_mutex_lock(&w->lock);
    while (idle && !w->added && !w->cancelled && !w->closing)
        uv_cond_wait(&w->changed, &w->lock);
    added = w->added;
    cancelled = w->cancelled;
    closing = w->closing;
    w->added = NULL;
    w->cancelled = NULL;
    w->added_end = &w->added;
    uv_mutex_unlock(&w->lock);
    for (struct serve_item *next; added; added = next) {
        next = added->next;
        begin_item(w, added);
    }
    for (struct cancel_request *next; cancelled; cancelled = next) {
        next = cancelled->next;
        cancel_item(w, cancelled->number);
        free(cancelled);
    }
    return !closing;
}

/* Ends all items with a failure of the decoder, such as of a device. Later items may run into the
 * same failure, and then report it. */
static void fail_all(struct serve_work *w, enum hd_status st)
{
    struct hd_error error;

    hd_err_save(st, &error);
    hd_log(HD_LOG_ERROR, "%s", error.message);
    uv_mutex_lock(&w->lock);
    if (!w->failure.status)
        w->failure = error;
    uv_mutex_unlock(&w->lock);
    while (w->all) {
        struct serve_item *item = w->all;

        hd_generator_remove(w->generator, item->sequence);
        send_end(w, item, SERVE_FAILED, hd_err_restore(&error));
    }
}

/* Logs each contradiction between the model's files as one warning. */
static void log_notes(const struct hd_language *language)
{
    for (const char *line = hd_language_special(language)->notes; *line;) {
        const size_t len = strcspn(line, "\n");

        hd_log(HD_LOG_WARN, "%.*s", (int)len, line);
        line += len + (line[len] == '\n');
    }
}

static enum hd_status load(struct serve_work *w)
{
    enum hd_status st = hd_decoder_open(&w->options.decoder, &w->decoder);

    if (!st)
        st = hd_language_open(w->decoder, w->options.decoder.dirs.dir, &w->language);
    if (!st)
        log_notes(w->language);
    if (!st)
        st = hd_generator_new(w->decoder, hd_tokenizer_vocab(hd_language_tokenizer(w->language)),
                              &w->generator);
    if (st)
        return st;
    st = hd_language_open_chat(w->language, w->options.template_path, w->options.date);
    if (st)
        hd_err_save(st, &w->chat_error);
    /* a chat template or date that the user gave must work */
    return st && (w->options.template_path || *w->options.date) ? st : HD_OK;
}

/* Lets the loop's thread read how many drafts were kept. */
static void publish_drafts(struct serve_work *w)
{
    if (!w->options.decoder.drafts)
        return;
    uv_mutex_lock(&w->lock);
    w->drafts = hd_generator_drafts(w->generator);
    uv_mutex_unlock(&w->lock);
}

static void run(void *user)
{
    struct serve_work *w = user;
    bool idle = true;
    enum hd_status st = load(w);

    if (st)
        hd_err_save(st, &w->load_error);
    uv_mutex_lock(&w->lock);
    w->ready = true;
    uv_cond_broadcast(&w->changed);
    uv_mutex_unlock(&w->lock);
    while (!st && take_requests(w, idle)) {
        bool busy = false;
        const enum hd_status failed = hd_generator_step(w->generator, &busy);

        if (failed)
            fail_all(w, failed);
        publish_drafts(w);
        idle = !busy;
    }
    hd_generator_free(w->generator);
    for (struct serve_item *item = w->all; item; item = item->all_next)
        hd_written_free(&item->written);
}

/* ---- the loop's thread ---- */

static void free_event(struct serve_event *e)
{
    free(e->bytes);
    free(e);
}

static void on_wake(uv_async_t *async)
{
    struct serve_work *w = async->data;
    struct serve_event *events;

    uv_mutex_lock(&w->lock);
    events = w->events;
    w->events = NULL;
    w->events_end = &w->events;
    uv_mutex_unlock(&w->lock);
    for (struct serve_event *next; events; events = next) {
        next = events->next;
        w->options.on_event(w->options.user, events);
        free_event(events);
    }
}

static void on_async_closed(uv_handle_t *handle)
{
    struct serve_work *w = handle->data;

    if (w->on_closed)
        w->on_closed(w->closed_user);
}

enum hd_status serve_work_new(uv_loop_t *loop, const struct serve_work_options *options,
                              struct serve_work **ret_work)
{
    struct serve_work *w = calloc(1, sizeof *w);

    if (!w)
        return hd_err(HD_NO_MEMORY, "no memory to serve a model");
    w->options = *options;
    w->added_end = &w->added;
    w->events_end = &w->events;
    if (uv_mutex_init(&w->lock) || uv_cond_init(&w->changed) ||
        uv_async_init(loop, &w->async, on_wake)) {
        free(w);
        return hd_err(HD_LIMIT, "no lock or file descriptor to serve a model");
    }
    w->async.data = w;
    uv_unref((uv_handle_t *)&w->async); /* the listener keeps the loop alive */
    *ret_work = w; /* from here on the caller must close `w`, also after a failure */
    if (uv_thread_create(&w->thread, run, w))
        return hd_err(HD_LIMIT, "no thread for a model");
    w->started = true;
    uv_mutex_lock(&w->lock);
    while (!w->ready)
        uv_cond_wait(&w->changed, &w->lock);
    uv_mutex_unlock(&w->lock);
    return w->load_error.status ? hd_err_restore(&w->load_error) : HD_OK;
}

void serve_work_close(struct serve_work *w, void (*on_closed)(void *user), void *user)
{
    w->on_closed = on_closed;
    w->closed_user = user;
    uv_mutex_lock(&w->lock);
    w->closing = true;
    uv_cond_broadcast(&w->changed);
    uv_mutex_unlock(&w->lock);
    if (w->started)
        (void)uv_thread_join(&w->thread);
    uv_close((uv_handle_t *)&w->async, on_async_closed);
}

void serve_work_free(struct serve_work *w)
{
    if (!w)
        return;
    for (struct cancel_request *o = w->cancelled, *next; o; o = next) {
        next = o->next;
        free(o);
    }
    for (struct serve_event *e = w->events, *next; e; e = next) {
        next = e->next;
        free_event(e);
    }
    hd_language_close(w->language);
    hd_decoder_close(w->decoder);
    uv_cond_destroy(&w->changed);
    uv_mutex_destroy(&w->lock);
    free(w);
}

struct hd_language *serve_work_language(struct serve_work *w)
{
    return w->language;
}

const struct hd_decoder *serve_work_decoder(const struct serve_work *w)
{
    return w->decoder;
}

enum hd_status serve_work_chat(const struct serve_work *w)
{
    return w->chat_error.status ? hd_err_restore(&w->chat_error) : HD_OK;
}

struct hd_draft_counts serve_work_drafts(struct serve_work *w)
{
    struct hd_draft_counts counts;

    uv_mutex_lock(&w->lock);
    counts = w->drafts;
    uv_mutex_unlock(&w->lock);
    return counts;
}

enum hd_status serve_work_failure(struct serve_work *w)
{
    enum hd_status st;

    uv_mutex_lock(&w->lock);
    st = w->failure.status ? hd_err_restore(&w->failure) : HD_OK;
    uv_mutex_unlock(&w->lock);
    return st;
}

void serve_work_add(struct serve_work *w, struct serve_item *item)
{
    item->next = NULL;
    item->number = ++w->numbers;
    uv_mutex_lock(&w->lock);
    *w->added_end = item;
    w->added_end = &item->next;
    uv_cond_signal(&w->changed);
    uv_mutex_unlock(&w->lock);
}

void serve_work_cancel(struct serve_work *w, struct serve_item *item)
{
    struct cancel_request *request = malloc(sizeof *request);

    if (!request)
        return;
    request->number = item->number;
    uv_mutex_lock(&w->lock);
    request->next = w->cancelled;
    w->cancelled = request;
    uv_cond_signal(&w->changed);
    uv_mutex_unlock(&w->lock);
}
