/* work: the thread that has the model: takes sequences to generate, and says what becomes of them.
 *
 *   the loop's thread                          the model's thread
 *   serve_work_add    --- item ------------>   hd_generator_add
 *   on_event          <-- events, uv_async --  on_token, on_end
 *   serve_work_cancel --- item ------------>   hd_generator_remove
 *
 * An item belongs to the model's thread from serve_work_add until its last event (`ended`), which
 * always comes: also behind a cancel, and when the model fails.
 *
 * Used by: serve.   Uses: generate, uv.   Threads: as above; all functions are the loop's.
 */
#ifndef HD_SERVE_WORK_H
#define HD_SERVE_WORK_H

#include <uv.h>

#include "generate/generator.h"
#include "generate/language.h"
#include "generate/written.h"

/* One sequence. The owner sets the first part and leaves the item alone until it has ended. */
struct serve_item {
    struct hd_id_list prompt;
    int64_t max_tokens;
    struct hd_sampling sampling;
    const struct hd_stops *stops;
    const char *const *stop_texts;
    int stop_text_count, top;
    bool reports_prompt, reports_odds;
    void *user;

    /* of the model's thread */
    struct serve_work *work;
    uint64_t number; /* for cancel: the item's address may be another one's by then */
    struct hd_sequence *sequence;
    struct hd_written written;
    size_t told; /* bytes of `written` that were in events */
    bool no_memory;
    struct serve_item *next; /* of those that are added */
    struct serve_item *all_before, *all_next;
};

enum serve_end { SERVE_STOP, SERVE_LENGTH, SERVE_CANCELLED, SERVE_FAILED };

/* A token, or the end. */
struct serve_event {
    struct serve_event *next;
    struct serve_item *item;
    bool ended;
    enum serve_end end;
    struct hd_error error; /* of SERVE_FAILED */

    /* a token: id -1: none */
    int32_t id;
    bool of_prompt, is_stop;
    double log_probability; /* NaN: not asked for */
    struct hd_likely top[HD_GENERATE_TOP_MAX];
    int top_count;
    char *bytes; /* text that has become safe to send; NULL: none */
    size_t byte_count;
};

struct serve_work_options {
    struct hd_decoder_options decoder;
    const char *template_path; /* of the chat; NULL: the model's */
    const char *date;          /* that its template gets; "": the day of each request */
    /* On the loop's thread, in order. The event is freed behind the call. */
    void (*on_event)(void *user, const struct serve_event *event);
    void *user;
};

struct serve_work;

/* Starts the thread, which loads the model; returns when it is loaded. The strings of the options
 * outlive the work. */
enum hd_status serve_work_new(uv_loop_t *loop, const struct serve_work_options *options,
                              struct serve_work **ret_work);
/* Ends the thread; items that have not ended get no event. on_closed: when the handle is closed. */
void serve_work_close(struct serve_work *work, void (*on_closed)(void *user), void *user);
void serve_work_free(struct serve_work *work); /* behind on_closed; NULL is fine */

/* Of the model that is loaded; the loop may use the language as long as the work lives, and the
 * decoder for what does not change. */
struct hd_language *serve_work_language(struct serve_work *work);
const struct hd_decoder *serve_work_decoder(const struct serve_work *work);
/* Why there is no chat; HD_OK: there is one. */
enum hd_status serve_work_chat(const struct serve_work *work);

/* HD_OK, or why the model computes no more: a device or a rank has failed. */
enum hd_status serve_work_failure(struct serve_work *work);

void serve_work_add(struct serve_work *work, struct serve_item *item);
/* Best effort: without memory the item ends by itself. */
void serve_work_cancel(struct serve_work *work, struct serve_item *item);

#endif
