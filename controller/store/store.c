/* store: the writer thread and its two queues.
 *
 *   loop thread                         writer thread
 *   hd_store_commit, hd_store_query
 *        |  queued
 *   hand_over, before the loop waits
 *        |  todo (mutex, wake)  ------>  take all
 *                                        BEGIN, all batches, COMMIT (fsync)
 *                                        failed: ROLLBACK, queries, report, wait, retry
 *                                        queries
 *   on_wake  <------  done (mutex, async)
 *        |
 *   callbacks, in order
 *
 * Invariants:
 *   S1  A batch is reported HD_OK only after the COMMIT that contains it has returned success with
 *       synchronous=FULL.
 *   S2  Batches are committed and reported in the order in which they were queued; none is skipped
 *       while a later one is committed.
 *   S3  A failed transaction is rolled back completely and retried as a whole.
 *   S4  From the first queued item on, only the writer thread uses `db`.
 */
#include "controller/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "controller/store/store_internal.h"

enum {
    RETRY_DEFAULT_MS = 1000,
    MAKE_AFTER = 5, /* factor of retry_ms: time between two tries to restore the reserve */
    LOG_PAGES_MIN = 16,
    LOG_PAGES_MAX = 1000,
    PAGE_BYTES = 4096,
};

/* A batch or a query that waits for the writer thread, or for its callback. */
struct item {
    struct hd_batch *batch;
    struct hd_query *query;
    void (*done)(void *user, enum hd_status st);
    void *user;
    struct hd_error result;
    struct item *next;
};

struct items {
    struct item *first, *last;
};

struct hd_job_store {
    struct store_db db;
    struct hd_store_options options;
    int lock_fd;
    char cluster_id[40], jobs_share[HD_JOBS_SHARE_MAX];
    struct hd_store_epoch epoch;
    uv_thread_t thread;
    uv_async_t async;
    uv_prepare_t before_wait;    /* runs hand_over before the loop blocks, once per iteration */
    struct items queued;         /* items queued in this iteration of the loop, not passed to the
                                  * writer yet; used by the loop only */
    size_t unanswered;           /* number of items whose callbacks have not been called yet; used
                                  * by the loop only */
    struct disk_reserve reserve; /* the disk reserve; used by the writer thread, like `db` */
    int64_t log_bytes_max;       /* bytes of the write-ahead log at which it is checkpointed into
                                  * the database */
    int64_t make_due_ms;         /* time of the next try to restore the reserve (monotonic, ms);
                                  * used by the writer thread */
    uv_work_t join_work;
    void (*on_closed)(void *user);
    void *closed_user;
    /* Copies of the writer thread's state that the loop uses. */
    enum hd_store_disk_space space;
    int64_t full_ms, stuck_ms; /* wall-clock times: begin of the states other than FINE, and of
                                * STUCK */
    int64_t reserve_left;
    char trouble_shown[HD_ERR_MAX];

    /* Protected by `mutex`. */
    uv_mutex_t mutex;
    uv_cond_t wake;
    struct items todo, done;
    struct hd_error trouble; /* error of the writer's last transaction; HD_OK: none */
    int64_t left_bytes;      /* bytes left of the disk reserve */
    struct hd_error fatal;
    bool fatal_reported;
    int64_t
        asked_ms; /* time of the liveness request of hd_store_silent_ms (monotonic); 0: answered */
    bool closing;
    int64_t give_up_ms; /* while the store closes: time after which batches are not retried
                         * (monotonic, ms) */
};

/* ---- queues -----------------------------------------------------------------------------------*/

static void put(struct items *items, struct item *item)
{
    item->next = NULL;
    if (items->last)
        items->last->next = item;
    else
        items->first = item;
    items->last = item;
}

static struct items take(struct items *items)
{
    struct items all = *items;

    *items = (struct items){0};
    return all;
}

static void append(struct items *to, struct items *from)
{
    if (!from->first)
        return;
    if (to->last)
        to->last->next = from->first;
    else
        to->first = from->first;
    to->last = from->last;
    *from = (struct items){0};
}

/* ---- the writer thread ------------------------------------------------------------------------*/

static bool has_batch(const struct items *items)
{
    for (const struct item *i = items->first; i; i = i->next) {
        if (i->batch && i->batch->count)
            return true;
    }
    return false;
}

static enum hd_status write_all(struct hd_job_store *store, const struct items *items)
{
    const struct store_audit_head audit = store->db.audit;
    enum hd_status st;

    if (!has_batch(items))
        return HD_OK; /* nothing to write; earlier batches are durable (S2) */
    st = store_check_place(&store->db);
    if (st)
        return st;
    st = store_db_run(&store->db, STORE_BEGIN, "");
    for (const struct item *i = items->first; !st && i; i = i->next) {
        if (i->batch)
            st = store_write_batch(&store->db, i->batch);
    }
    if (!st)
        st = store_db_run(&store->db, STORE_COMMIT, "");
    if (st && !sqlite3_get_autocommit(store->db.sqlite)) {
        struct hd_error first;

        hd_err_save(st, &first);
        (void)store_db_run(&store->db, STORE_ROLLBACK, "");
        st = hd_err_restore(&first);
    }
    if (st)
        store->db.audit = audit; /* the rows of this transaction were rolled back (S3) */
    return st;
}

static void answer_queries(struct hd_job_store *store, const struct items *items)
{
    for (struct item *i = items->first; i; i = i->next) {
        enum hd_status st = i->query ? store_read_query(&store->db, i->query) : HD_OK;

        hd_err_save(st, &i->result);
    }
}

/* Reports a failed transaction to the loop and waits for retry_ms, or until an item is queued.
 * Moves newly queued items to the end of `items`. True: retry the transaction; false: give up. */
static bool after_failure(struct hd_job_store *store, const struct hd_error *error,
                          struct items *items)
{
    bool retry = error->status == HD_IO;

    uv_mutex_lock(&store->mutex);
    store->asked_ms = 0;
    if (retry)
        store->trouble = *error;
    else
        store->fatal = *error;
    if (retry && store->closing && hd_clock_now_ms() >= store->give_up_ms)
        retry = false;
    (void)uv_async_send(&store->async);
    if (retry)
        (void)uv_cond_timedwait(&store->wake, &store->mutex,
                                (uint64_t)store->options.retry_ms * 1000000);
    append(items, &store->todo);
    uv_mutex_unlock(&store->mutex);
    return retry;
}

static void give_up(struct items *items, const struct hd_error *error)
{
    for (struct item *i = items->first; i; i = i->next) {
        i->result = *error;
        i->result.status = HD_ABORTED;
    }
}

/* Answers queries from durable state while batches cannot be written. */
static void answer_queries_now(struct hd_job_store *store, struct items *items)
{
    struct items batches = {0}, queries = {0};

    while (items->first) {
        struct item *item = items->first;

        items->first = item->next;
        put(item->query ? &queries : &batches, item);
    }
    *items = batches;
    answer_queries(store, &queries);
    uv_mutex_lock(&store->mutex);
    append(&store->done, &queries);
    uv_mutex_unlock(&store->mutex);
    (void)uv_async_send(&store->async);
}

/* ---- the reserve ------------------------------------------------------------------------------*/

static bool runs_out(const struct disk_reserve *reserve)
{
    return 2 * reserve->left_bytes < reserve->whole_bytes;
}

/* Passes the disk reserve's state to the loop. */
static void report_reserve(struct hd_job_store *store)
{
    store->db.thins = runs_out(&store->reserve);
    uv_mutex_lock(&store->mutex);
    store->left_bytes = store->reserve.left_bytes;
    uv_mutex_unlock(&store->mutex);
    (void)uv_async_send(&store->async);
}

/* Frees disk space after a transaction failed for lack of it: first checkpoints and restarts the
 * write-ahead log, whose file may then suffice; later gives up a piece of the reserve. False:
 * nothing more can be freed. */
static bool free_reserve(struct hd_job_store *store, bool *emptied)
{
    bool gave;

    if (!store->db.full)
        return false;
    gave = *emptied && disk_reserve_release(&store->reserve);
    if (gave)
        report_reserve(store);
    store_db_empty_log(&store->db, store->log_bytes_max);
    gave |= !*emptied;
    *emptied = true;
    store->db.full = false;
    return gave;
}

static int64_t make_pause_ms(const struct hd_job_store *store)
{
    return MAKE_AFTER * store->options.retry_ms;
}

/* Restores the disk reserve, if it is short and the disk has space for it. */
static void restore_reserve(struct hd_job_store *store)
{
    const int64_t now_ms = hd_clock_now_ms();

    if (!disk_reserve_is_short(&store->reserve) || now_ms < store->make_due_ms)
        return;
    store->make_due_ms = now_ms + make_pause_ms(store);
    if (disk_reserve_make(&store->reserve))
        report_reserve(store);
}

/* Writes all batches of `items` in one transaction, with retries, then answers the queries. */
static void process(struct hd_job_store *store, struct items *items)
{
    struct hd_error error;
    bool emptied = false;
    enum hd_status st;

    for (;;) {
        st = write_all(store, items);
        if (!st)
            break;
        hd_err_save(st, &error);
        if (free_reserve(store, &emptied))
            continue;
        answer_queries_now(store, items);
        if (after_failure(store, &error, items))
            continue;
        give_up(items, &error);
        return;
    }
    store_watch_log(&store->db, store->log_bytes_max);
    answer_queries(store, items);
}

static void writer_main(void *arg)
{
    struct hd_job_store *store = arg;
    bool finished = false;

    while (!finished) {
        struct items items;

        uv_mutex_lock(&store->mutex);
        store->asked_ms = 0;
        while (!store->todo.first && !store->closing) {
            if (!disk_reserve_is_short(&store->reserve))
                uv_cond_wait(&store->wake, &store->mutex);
            else if (uv_cond_timedwait(&store->wake, &store->mutex,
                                       (uint64_t)make_pause_ms(store) * 1000000))
                break;
            store->asked_ms = 0;
        }
        items = take(&store->todo);
        finished = store->closing && !items.first;
        uv_mutex_unlock(&store->mutex);

        if (items.first)
            process(store, &items);
        restore_reserve(store);

        uv_mutex_lock(&store->mutex);
        if (items.first && items.first->result.status != HD_ABORTED)
            store->trouble.status = HD_OK;
        append(&store->done, &items);
        uv_mutex_unlock(&store->mutex);
        (void)uv_async_send(&store->async);
    }
}

/* ---- callbacks on the loop --------------------------------------------------------------------*/

static void finish(struct hd_job_store *store, struct item *item)
{
    enum hd_status st = item->result.status;

    store->unanswered--;
    if (st)
        (void)hd_err_restore(&item->result);
    if (item->query)
        item->query->done(item->query, st);
    else if (item->done)
        item->done(item->user, st);
    hd_batch_free(item->batch);
    free(item);
}

/* State that the writer thread has reported, copied by the loop under the mutex. */
struct writer_report {
    struct items done;
    struct hd_error trouble, fatal;
    int64_t left_bytes;
    bool fatal_is_new;
};

static void report_trouble(struct hd_job_store *store, const struct writer_report *report)
{
    const enum hd_store_disk_space before = store->space;
    char message[HD_ERR_MAX] = "", since[HD_CLOCK_TEXT_MAX], needed[32];

    hd_text_format_bytes(disk_reserve_needs(store->reserve.whole_bytes, report->left_bytes),
                         needed);
    store->reserve_left = report->left_bytes;
    store->space = report->trouble.status                            ? HD_STORE_STUCK
                   : report->left_bytes < store->reserve.whole_bytes ? HD_STORE_RESERVE
                                                                     : HD_STORE_FINE;
    if (before == HD_STORE_FINE)
        store->full_ms = hd_clock_wall_ms();
    if (before != HD_STORE_STUCK)
        store->stuck_ms = hd_clock_wall_ms();
    if (store->space != HD_STORE_FINE)
        hd_clock_format_utc(store->space == HD_STORE_STUCK ? store->stuck_ms : store->full_ms,
                            since);
    if (store->space == HD_STORE_STUCK)
        (void)snprintf(message, sizeof message,
                       "the controller cannot write its state since %s: %.*s", since,
                       HD_ERR_MAX - 128, report->trouble.message);
    else if (store->space == HD_STORE_RESERVE)
        (void)snprintf(
            message, sizeof message,
            "the disk of the controller's state directory %.512s is full since %s: only "
            "requests that end work or free space are accepted, %lld KiB of the reserve are left "
            "for them; free at least %s there, the controller then recovers by itself",
            store->options.dir, since, (long long)report->left_bytes / 1024, needed);
    if (strcmp(message, store->trouble_shown) == 0)
        return;
    (void)snprintf(store->trouble_shown, sizeof store->trouble_shown, "%s", message);
    if (store->options.on_trouble)
        store->options.on_trouble(store->options.user, *message ? message : NULL);
}

static void on_wake(uv_async_t *async)
{
    struct hd_job_store *store = async->data;
    struct writer_report report;

    uv_mutex_lock(&store->mutex);
    report.done = take(&store->done);
    report.trouble = store->trouble;
    report.left_bytes = store->left_bytes;
    report.fatal = store->fatal;
    report.fatal_is_new = store->fatal.status && !store->fatal_reported;
    store->fatal_reported |= report.fatal_is_new;
    uv_mutex_unlock(&store->mutex);

    report_trouble(store, &report);
    while (report.done.first) {
        struct item *item = report.done.first;

        report.done.first = item->next;
        finish(store, item);
    }
    if (report.fatal_is_new && store->options.on_fatal)
        store->options.on_fatal(store->options.user, &report.fatal);
}

/* Passes all items that one iteration of the loop has queued to the writer at once. Passed one by
 * one, the first would be committed alone, and a commit costs as much as a dozen submissions. */
static void hand_over(struct hd_job_store *store)
{
    if (!store->queued.first)
        return;
    uv_mutex_lock(&store->mutex);
    append(&store->todo, &store->queued);
    uv_cond_signal(&store->wake);
    uv_mutex_unlock(&store->mutex);
}

static void on_before_wait(uv_prepare_t *prepare)
{
    hand_over(prepare->data);
}

/* Allocates an item for a batch or query. NULL: out of memory; the batch is lost, so on_fatal ends
 * the program, and after its restart everything that was reported done exists. */
static struct item *new_item(struct hd_job_store *store)
{
    struct item *item = calloc(1, sizeof *item);

    if (item)
        return item;
    uv_mutex_lock(&store->mutex);
    hd_err_save(hd_err(HD_NO_MEMORY, "out of memory for the controller's state"), &store->fatal);
    uv_mutex_unlock(&store->mutex);
    (void)uv_async_send(&store->async);
    return NULL;
}

void hd_store_commit(struct hd_job_store *store, struct hd_batch *batch,
                     void (*done)(void *user, enum hd_status st), void *user)
{
    struct item *item = new_item(store);

    if (!item) {
        hd_batch_free(batch);
        return;
    }
    item->batch = batch;
    item->done = done;
    item->user = user;
    store->unanswered++;
    put(&store->queued, item);
}

void hd_store_query(struct hd_job_store *store, struct hd_query *query)
{
    struct item *item = new_item(store);

    if (!item)
        return; /* on_fatal follows and ends the program */
    if (query->owner)
        query->owner = hd_arena_strdup(&query->arena, query->owner);
    if (query->name)
        query->name = hd_arena_strdup(&query->arena, query->name);
    if (query->text)
        query->text = hd_arena_strdup(&query->arena, query->text);
    if (query->only_of)
        query->only_of = hd_arena_strdup(&query->arena, query->only_of);
    item->query = query;
    store->unanswered++;
    put(&store->queued, item);
}

size_t hd_store_queued(const struct hd_job_store *store)
{
    return store->unanswered;
}

/* ---- opening and closing ----------------------------------------------------------------------*/

static enum hd_status start_thread(struct hd_job_store *store, uv_loop_t *loop)
{
    int code = uv_mutex_init(&store->mutex);

    if (code == 0)
        code = uv_cond_init(&store->wake);
    if (code == 0)
        code = uv_async_init(loop, &store->async, on_wake);
    if (code)
        return hd_err(HD_INTERNAL, "cannot create the writer's queue: %s", uv_strerror(code));
    store->async.data = store->before_wait.data = store;
    (void)uv_prepare_init(loop, &store->before_wait);
    (void)uv_prepare_start(&store->before_wait, on_before_wait);
    uv_unref((uv_handle_t *)&store->before_wait);
    code = uv_thread_create(&store->thread, writer_main, store);
    if (code) {
        uv_close((uv_handle_t *)&store->before_wait, NULL);
        uv_close((uv_handle_t *)&store->async, NULL);
        return hd_err(HD_INTERNAL, "cannot start the writer thread: %s", uv_strerror(code));
    }
    return HD_OK;
}

/* Opens the database and raises its epoch. On failure nothing is left open. */
static enum hd_status open_epoch(struct hd_job_store *store)
{
    const struct hd_store_options *o = &store->options;
    struct hd_error error;
    enum hd_status st = store_db_open(&store->db, o->dir, o->vfs);

    if (st)
        return st;
    st = store_begin_epoch(&store->db, o->dir, !o->vfs, o->take_over, &store->epoch);
    if (!st)
        return HD_OK;
    hd_err_save(st, &error);
    store_db_close(&store->db);
    return hd_err_restore(&error);
}

/* Opens the reserve, then the database: on a full disk the database cannot be opened without space
 * from the reserve. */
static enum hd_status open_database(struct hd_job_store *store)
{
    const struct hd_store_options *o = &store->options;
    struct disk_reserve *reserve = &store->reserve;
    int64_t log_bytes = disk_reserve_size(o->dir, (int64_t)LOG_PAGES_MAX * PAGE_BYTES);
    struct hd_error error;
    enum hd_status st;

    disk_reserve_open(reserve, o->dir, o->vfs, disk_reserve_size(o->dir, o->reserve_bytes));
    do {
        st = open_epoch(store);
    } while (st == HD_IO && disk_reserve_release(reserve));
    if (reserve->whole_bytes && reserve->whole_bytes < log_bytes)
        log_bytes = reserve->whole_bytes;
    if (log_bytes < LOG_PAGES_MIN * PAGE_BYTES)
        log_bytes = LOG_PAGES_MIN * PAGE_BYTES;
    store->log_bytes_max = log_bytes;
    if (!st)
        st = store_db_bound_log(&store->db, log_bytes / PAGE_BYTES);
    if (!st)
        (void)disk_reserve_make(reserve);
    store->left_bytes = store->reserve_left = reserve->left_bytes;
    store->db.thins = runs_out(reserve);
    store->db.opened = !st;
    if (!st)
        return HD_OK;
    hd_err_save(st, &error);
    disk_reserve_close(reserve);
    return hd_err_restore(&error);
}

enum hd_status hd_store_open(uv_loop_t *loop, const struct hd_store_options *options,
                             struct hd_job_store **ret_store)
{
    struct hd_job_store *store = calloc(1, sizeof *store);
    char lock[HD_CTL_PATH_BYTES_MAX];
    enum hd_status st;

    if (!store)
        return hd_err(HD_NO_MEMORY, "no memory for the store");
    store->options = *options;
    if (!store->options.retry_ms)
        store->options.retry_ms = RETRY_DEFAULT_MS;
    (void)snprintf(lock, sizeof lock, "%s/lock", options->dir);
    st = hd_file_lock(lock, &store->lock_fd);
    if (st == HD_CONFLICT)
        (void)hd_err(st, "another controller uses the state directory %s", options->dir);
    if (st)
        goto fail;
    st = open_database(store);
    if (st)
        goto fail_locked;
    (void)snprintf(store->cluster_id, sizeof store->cluster_id, "%s", store->db.cluster_id);
    (void)snprintf(store->jobs_share, sizeof store->jobs_share, "%s", store->db.jobs_share);
    st = start_thread(store, loop);
    if (st)
        goto fail_open;
    (void)uv_async_send(
        &store->async); /* reports a short reserve before the first request is served */
    *ret_store = store;
    return HD_OK;

fail_open:
    store_db_close(&store->db);
    disk_reserve_close(&store->reserve);
fail_locked:
    (void)close(store->lock_fd);
fail:
    free(store);
    return st;
}

enum hd_status hd_store_load(struct hd_job_store *store, const struct hd_store_loader *loader)
{
    return store_read_all(&store->db, loader);
}

static void free_store(uv_handle_t *handle)
{
    struct hd_job_store *store = handle->data;

    uv_cond_destroy(&store->wake);
    uv_mutex_destroy(&store->mutex);
    if (store->on_closed)
        store->on_closed(store->closed_user);
    free(store);
}

static void join(uv_work_t *work)
{
    struct hd_job_store *store = work->data;

    (void)uv_thread_join(&store->thread);
    store_db_close(&store->db);
    disk_reserve_close(&store->reserve);
    (void)close(store->lock_fd);
}

static void close_async(uv_handle_t *before_wait)
{
    struct hd_job_store *store = before_wait->data;

    uv_close((uv_handle_t *)&store->async, free_store);
}

static void joined(uv_work_t *work, int status)
{
    struct hd_job_store *store = work->data;

    (void)status;
    on_wake(&store->async); /* runs the last callbacks */
    uv_close((uv_handle_t *)&store->before_wait, close_async);
}

void hd_store_close(struct hd_job_store *store, int64_t timeout_ms, void (*on_closed)(void *user),
                    void *user)
{
    store->on_closed = on_closed;
    store->closed_user = user;
    hand_over(store);
    uv_mutex_lock(&store->mutex);
    store->closing = true;
    store->give_up_ms = hd_clock_now_ms() + timeout_ms;
    uv_cond_signal(&store->wake);
    uv_mutex_unlock(&store->mutex);
    store->join_work.data = store;
    if (uv_queue_work(store->async.loop, &store->join_work, join, joined) != 0) {
        join(&store->join_work); /* the thread pool is unavailable: block the loop */
        joined(&store->join_work, 0);
    }
}

struct hd_query *hd_query_new(enum hd_query_kind kind)
{
    struct hd_query *query = calloc(1, sizeof *query);

    if (!query)
        return NULL;
    query->kind = kind;
    query->limit = 100;
    hd_arena_init(&query->arena, 0);
    return query;
}

void hd_query_free(struct hd_query *query)
{
    if (!query)
        return;
    hd_arena_done(&query->arena);
    free(query);
}

const char *hd_store_cluster_id(const struct hd_job_store *store)
{
    return store->cluster_id;
}

const struct hd_store_epoch *hd_store_own_epoch(const struct hd_job_store *store)
{
    return &store->epoch;
}

const char *hd_store_jobs_share(const struct hd_job_store *store)
{
    return store->jobs_share;
}

int64_t hd_store_silent_ms(struct hd_job_store *store)
{
    const int64_t now = hd_clock_now_ms();
    int64_t silent = 0;

    uv_mutex_lock(&store->mutex);
    if (store->asked_ms)
        silent = now - store->asked_ms;
    else
        store->asked_ms = now;
    uv_cond_signal(&store->wake); /* the writer thread answers as soon as it waits for work */
    uv_mutex_unlock(&store->mutex);
    return silent;
}

enum hd_store_disk_space hd_store_disk_state(const struct hd_job_store *store)
{
    return store->space;
}

int64_t hd_store_reserve_left(const struct hd_job_store *store)
{
    return store->reserve_left;
}

const char *hd_store_trouble(const struct hd_job_store *store)
{
    return *store->trouble_shown ? store->trouble_shown : NULL;
}
