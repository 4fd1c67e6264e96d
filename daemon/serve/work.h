/* work: the thread that runs the model: takes sequences to generate, and sends events about them.
 *
 *   the loop's thread                          the model's thread
 *   serve_work_add    --- item ------------>   hd_generator_add
 *   on_event          <-- events, uv_async --  on_token, on_end
 *   serve_work_cancel --- item ------------>   hd_generator_remove
 *
 * An item belongs to the model's thread from serve_work_add until its last event (`ended`). Every
 * item gets a last event, also after a cancellation and when the model fails; only
 * serve_work_close drops items without one.
 *
 * Used by: serve.   Uses: generate, uv.
 * Threads: as above; all functions must be called on the loop's thread.
 */
#ifndef HD_SERVE_WORK_H
#define HD_SERVE_WORK_H

#include <uv.h>

#include "generate/generator.h"
#include "generate/language.h"
#include "generate/written.h"

/* One sequence to generate. The owner sets the first members, and must not touch the item until it
 * has ended. */
struct serve_item {
    struct hd_id_list prompt;
    int64_t max_tokens;
    struct hd_sampling sampling;
    const struct hd_stops *stops;
    const char *const *stop_texts;
    int stop_text_count, top;
    bool reports_prompt, reports_odds;
    void *user;

    /* members used by the model's thread */
    struct serve_work *work;
    uint64_t number; /* identifies the item in cancellations, as its memory may be reused by then */
    struct hd_sequence *sequence;
    struct hd_written written;
    size_t told; /* number of bytes of `written` already sent in events */
    bool no_memory;
    struct serve_item *next; /* next item in the queue of new items */
    struct serve_item *all_before, *all_next;
};

enum serve_end { SERVE_STOP, SERVE_LENGTH, SERVE_CANCELLED, SERVE_FAILED };

/* One token, or the end of an item. */
struct serve_event {
    struct serve_event *next;
    struct serve_item *item;
    bool ended;
    enum serve_end end;
    struct hd_error error; /* failure, set for SERVE_FAILED */

    /* generated token; id -1: none */
    int32_t id;
    bool of_prompt, is_stop;
    double log_probability; /* log-probability of the token; NaN: not requested by the item */
    struct hd_likely top[HD_GENERATE_TOP_MAX];
    int top_count;
    /* part of the item's text that can be sent now, because no stop text or incomplete character
     * can follow from it; NULL: none */
    char *bytes;
    size_t byte_count;
};

struct serve_work_options {
    struct hd_decoder_options decoder;
    const char *template_path; /* path of the chat template; NULL: the template of the model */
    const char *date;          /* date for the chat template; "": the day of each request */
    /* Called on the loop's thread with each event, in their order. The event is freed after the
     * call. */
    void (*on_event)(void *user, const struct serve_event *event);
    void *user;
};

struct serve_work;

/* Starts the thread, and waits until it has loaded the model. The strings of the options must
 * outlive *ret_work, which may be set on failure, too; then the caller must close and free it. */
enum hd_status serve_work_new(uv_loop_t *loop, const struct serve_work_options *options,
                              struct serve_work **ret_work);
/* Ends the model's thread; items that have not ended get no event. on_closed is called when the
 * libuv handle is closed. */
void serve_work_close(struct serve_work *work, void (*on_closed)(void *user), void *user);
void serve_work_free(struct serve_work *work); /* call only after on_closed; NULL: does nothing */

/* Return the language and decoder of the loaded model, valid as long as `work`. The loop's thread
 * may use the language, and of the decoder only what does not change. */
struct hd_language *serve_work_language(struct serve_work *work);
const struct hd_decoder *serve_work_decoder(const struct serve_work *work);
/* Returns HD_OK if the model can chat, else the reason why not. */
enum hd_status serve_work_chat(const struct serve_work *work);

/* Returns the numbers of drafts so far (drafts.h). */
struct hd_draft_counts serve_work_drafts(struct serve_work *work);

/* Returns HD_OK, or why the model can no longer compute: a device or a rank has failed. */
enum hd_status serve_work_failure(struct serve_work *work);

void serve_work_add(struct serve_work *work, struct serve_item *item);
/* Cancels an item. Best effort: without memory the item runs to its own end. */
void serve_work_cancel(struct serve_work *work, struct serve_item *item);

#endif
