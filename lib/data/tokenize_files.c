#include "data/tokenize_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer.h"

enum {
    JOB_BYTES = 1 << 20, /* of lines that one thread takes at once */
    SLOTS_PER_THREAD = 2,
    LLMC_HEAD_BYTES = 1024,
    NPY_HEAD_BYTES = 128,
    LLMC_MAGIC_16 = 20240520,
    LLMC_VERSION_16 = 1,
    LLMC_MAGIC_32 = 20240801,
    LLMC_VERSION_32 = 7,
    WAIT_MS = 100,
};

/* A piece of work. It belongs to the caller's thread while FREE or DONE, to a worker in between. */
enum slot_state { FREE, READY, TAKEN, DONE };

struct slot {
    enum slot_state state;
    const char *path;
    int64_t first_line; /* of the text in the file, from 1; 0: the text is one document */
    struct hd_text text;
    struct hd_id_list ids;
    int64_t documents;
    struct hd_error error;
};

struct work {
    const struct hd_tokenize_job *how;
    struct hd_tokenizer *tokenizer;
    int32_t end_of_text;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* any slot's state, or `stops` */
    struct slot *slots;
    int slot_count;
    int64_t taken; /* pieces that workers took so far: they take them in order */
    bool stops;
    /* the caller's thread alone */
    size_t input; /* being read */
    FILE *lines;  /* of a .jsonl; NULL: the next input is to be opened */
    int64_t line;
    int fd;
    int id_bytes;
    struct hd_tokenize_counts counts;
};

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

/* ---- workers ---- */

static enum hd_status add_document(struct work *w, struct hd_encoder *encoder, struct slot *slot,
                                   const char *text, size_t size_bytes)
{
    enum hd_status st = hd_encoder_add(encoder, text, size_bytes, &slot->ids);

    if (!st && w->end_of_text >= 0) {
        if (slot->ids.count == slot->ids.room)
            st = hd_id_list_reserve(&slot->ids, 1);
        if (!st)
            slot->ids.ids[slot->ids.count++] = w->end_of_text;
    }
    slot->documents += !st;
    return st;
}

/* One line of .jsonl: its text is a document. */
static enum hd_status add_line(struct work *w, struct hd_encoder *encoder, struct slot *slot,
                               const char *line, size_t size_bytes)
{
    const struct hd_json_limits limits = {.values_max = 1 << 20, .depth_max = 64};
    const char *key = w->how->key ? w->how->key : "text", *text = NULL;
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse(&arena, line, size_bytes, &limits, &root);
    if (!st)
        st = hd_json_need_string(root, key, &text);
    if (!st)
        st = add_document(w, encoder, slot, text, strlen(text));
    hd_arena_done(&arena);
    return st;
}

static enum hd_status tokenize_slot(struct work *w, struct hd_encoder *encoder, struct slot *slot)
{
    const char *p = slot->text.data ? slot->text.data : "", *end = p + slot->text.len_bytes;
    int64_t line = slot->first_line;
    enum hd_status st = HD_OK;

    if (!slot->first_line) {
        st = add_document(w, encoder, slot, p, slot->text.len_bytes);
        return st ? hd_err_prefix(st, "%s", slot->path) : HD_OK;
    }
    for (; !st && p < end; line++) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const size_t n = (size_t)((newline ? newline : end) - p);

        if (n && strspn(p, " \t\r") < n) { /* blank lines are no documents */
            st = add_line(w, encoder, slot, p, n);
            if (st)
                return hd_err_prefix(st, "%s:%" PRId64, slot->path, line);
        }
        p += n + 1;
    }
    return HD_OK;
}

static void *run_worker(void *context)
{
    struct work *w = context;
    struct hd_encoder *encoder = NULL;
    enum hd_status made = hd_encoder_new(w->tokenizer, &encoder);
    struct slot *slot;

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
        st = made ? made : tokenize_slot(w, encoder, slot);
        hd_err_save(st, &slot->error);
        (void)pthread_mutex_lock(&w->lock);
        slot->state = DONE;
        (void)pthread_cond_broadcast(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->lock);
    hd_encoder_free(encoder);
    return NULL;
}

/* ---- reading ---- */

static enum hd_status read_lines(struct work *w, struct slot *slot)
{
    const char *path = w->how->inputs[w->input];
    char *line = NULL;
    size_t room = 0;
    ssize_t n = 0;

    slot->first_line = w->line + 1;
    while (slot->text.len_bytes < JOB_BYTES && (n = getline(&line, &room, w->lines)) > 0) {
        hd_text_add_bytes(&slot->text, line, (size_t)n);
        w->line++;
    }
    free(line);
    if (ferror(w->lines))
        return hd_err(HD_IO, "cannot read %s: %s", path, strerror(errno));
    if (n < 0) {
        (void)fclose(w->lines);
        w->lines = NULL;
        w->input++;
    }
    return slot->text.failed ? hd_err(HD_NO_MEMORY, "no memory for a part of %s", path) : HD_OK;
}

/* The next piece of work; *ret_filled false when there is none. */
static enum hd_status fill(struct work *w, struct slot *slot, bool *ret_filled)
{
    const char *path;
    enum hd_status st;

    *ret_filled = w->input < w->how->input_count;
    if (!*ret_filled)
        return HD_OK;
    path = w->how->inputs[w->input];
    hd_text_clear(&slot->text);
    slot->ids.count = 0;
    slot->documents = 0;
    slot->path = path;
    if (!ends_with(path, ".jsonl")) {
        slot->first_line = 0;
        st = hd_file_read(path, INT32_MAX, &slot->text);
        w->input++;
        return st;
    }
    if (!w->lines) {
        w->lines = fopen(path, "re");
        w->line = 0;
        if (!w->lines)
            return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open %s: %s", path,
                          strerror(errno));
    }
    return read_lines(w, slot);
}

/* ---- writing ---- */

static enum hd_status write_ids(struct work *w, struct slot *slot)
{
    const size_t count = slot->ids.count;
    uint16_t *narrow = (uint16_t *)slot->ids.ids; /* in place: each is read before it is covered */
    enum hd_status st;

    if (w->id_bytes == 2)
        for (size_t i = 0; i < count; i++) {
            const uint16_t id = (uint16_t)slot->ids.ids[i];

            memcpy((char *)narrow + 2 * i, &id, sizeof id);
        }
    st = hd_file_write_all(w->fd, slot->ids.ids, count * (size_t)w->id_bytes);
    if (st)
        return hd_err_prefix(st, "%s", w->how->out);
    w->counts.tokens += (int64_t)count;
    w->counts.documents += slot->documents;
    w->counts.read_bytes += (int64_t)slot->text.len_bytes;
    return HD_OK;
}

static enum hd_status write_head(struct work *w)
{
    char head[LLMC_HEAD_BYTES] = {0};
    size_t size_bytes = NPY_HEAD_BYTES;

    if (ends_with(w->how->out, ".bin")) {
        const int32_t numbers[3] = {w->id_bytes == 2 ? LLMC_MAGIC_16 : LLMC_MAGIC_32,
                                    w->id_bytes == 2 ? LLMC_VERSION_16 : LLMC_VERSION_32,
                                    (int32_t)w->counts.tokens};

        if (w->counts.tokens > INT32_MAX)
            return hd_err(HD_LIMIT, "%s: llm.c's format counts at most %d tokens; write a .npy",
                          w->how->out, INT32_MAX);
        memcpy(head, numbers, sizeof numbers);
        size_bytes = LLMC_HEAD_BYTES;
    } else {
        int n;

        memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10); /* version 1.0, 118 bytes follow */
        n = snprintf(head + 10, sizeof head - 10,
                     "{'descr': '<u%d', 'fortran_order': False, 'shape': (%" PRId64 ",), }",
                     w->id_bytes, w->counts.tokens);
        memset(head + 10 + n, ' ', NPY_HEAD_BYTES - 11 - (size_t)n);
        head[NPY_HEAD_BYTES - 1] = '\n';
    }
    if (lseek(w->fd, 0, SEEK_SET) < 0)
        return hd_err(HD_IO, "cannot seek in %s: %s", w->how->out, strerror(errno));
    return hd_file_write_all(w->fd, head, size_bytes);
}

/* ---- the caller's loop ---- */

static void hand_over(struct work *w, struct slot *slot, enum slot_state state)
{
    (void)pthread_mutex_lock(&w->lock);
    slot->state = state;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static enum hd_status tell(struct work *w)
{
    if (w->how->progress && !w->how->progress(w->how->context, &w->counts))
        return hd_err(HD_ABORTED, "interrupted; %s is as it was", w->how->out);
    return HD_OK;
}

static enum hd_status await(struct work *w, const struct slot *slot)
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
        st = tell(w);
    }
    return st;
}

/* Fills slots in turn, and writes what comes out of them in the same turn. */
static enum hd_status run(struct work *w)
{
    int64_t filled = 0, written = 0;
    bool more = true;
    enum hd_status st = HD_OK;

    while (!st && (more || written < filled)) {
        struct slot *oldest = &w->slots[written % w->slot_count];

        if (more && filled - written < w->slot_count) {
            struct slot *slot = &w->slots[filled % w->slot_count];

            st = fill(w, slot, &more);
            if (!st && more) {
                filled++;
                hand_over(w, slot, READY);
            }
            continue;
        }
        st = await(w, oldest);
        if (!st && oldest->error.status)
            st = hd_err_restore(&oldest->error);
        if (!st)
            st = write_ids(w, oldest);
        if (!st) {
            hand_over(w, oldest, FREE);
            written++;
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

/* Into `part`, then under its name. */
static enum hd_status write_file(struct work *w, const char *part)
{
    const off_t head = ends_with(w->how->out, ".bin") ? LLMC_HEAD_BYTES : NPY_HEAD_BYTES;
    const char *slash = strrchr(w->how->out, '/');
    char *dir = slash ? strndup(w->how->out, (size_t)(slash - w->how->out) + 1) : strdup(".");
    enum hd_status st = HD_OK;

    if (!dir)
        return hd_err(HD_NO_MEMORY, "no memory for a path");
    w->fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        free(dir);
        return hd_err(HD_IO, "cannot create %s: %s", part, strerror(errno));
    }
    if (lseek(w->fd, head, SEEK_SET) < 0)
        st = hd_err(HD_IO, "cannot seek in %s: %s", part, strerror(errno));
    if (!st)
        st = run_with_threads(w);
    if (!st)
        st = write_head(w);
    if (!st && fsync(w->fd) < 0)
        st = hd_err(HD_IO, "cannot flush %s: %s", part, strerror(errno));
    if (!st && rename(part, w->how->out) < 0)
        st = hd_err(HD_IO, "cannot rename %s to %s: %s", part, w->how->out, strerror(errno));
    if (!st)
        st = hd_file_sync_dir(dir);
    else
        (void)unlink(part); /* best effort: st is the news */
    (void)close(w->fd);
    free(dir);
    return st;
}

static enum hd_status check_inputs(const struct hd_tokenize_job *how, int64_t *ret_bytes)
{
    *ret_bytes = 0;
    if (!how->input_count)
        return hd_err(HD_INVALID, "no input files");
    if (!ends_with(how->out, ".npy") && !ends_with(how->out, ".bin"))
        return hd_err(HD_INVALID, "%s: the name must end in .npy or .bin", how->out);
    for (size_t i = 0; i < how->input_count; i++) {
        struct stat info;

        if (stat(how->inputs[i], &info) < 0)
            return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot read %s: %s",
                          how->inputs[i], strerror(errno));
        if (!S_ISREG(info.st_mode))
            return hd_err(HD_INVALID, "%s is no regular file", how->inputs[i]);
        *ret_bytes += info.st_size;
    }
    return HD_OK;
}

enum hd_status hd_tokenize_files(const struct hd_tokenize_job *how,
                                 struct hd_tokenize_counts *ret_counts)
{
    struct work w = {.how = how, .end_of_text = -1};
    struct hd_text part = {0};
    enum hd_status st = check_inputs(how, &w.counts.total_bytes);

    if (!st && (how->threads < 1 || how->threads > HD_TOKENIZE_THREADS_MAX))
        st = hd_err(HD_INVALID, "threads: 1 to %d", HD_TOKENIZE_THREADS_MAX);
    if (!st)
        st = hd_tokenizer_open(how->tokenizer, &w.tokenizer);
    if (st)
        return st;
    if (how->ends_documents)
        w.end_of_text = hd_tokenizer_end_of_text(w.tokenizer);
    w.id_bytes = hd_tokenizer_vocab(w.tokenizer) <= 1 << 16 ? 2 : 4;
    w.slot_count = SLOTS_PER_THREAD * how->threads;
    w.slots = calloc((size_t)w.slot_count, sizeof *w.slots);
    (void)pthread_mutex_init(&w.lock, NULL);
    (void)pthread_cond_init(&w.changed, NULL);
    hd_text_add(&part, "%s.part.%ld", how->out, (long)getpid());
    st = w.slots && !part.failed ? write_file(&w, part.data)
                                 : hd_err(HD_NO_MEMORY, "no memory to tokenize");
    if (!st)
        *ret_counts = w.counts;
    for (int i = 0; w.slots && i < w.slot_count; i++) {
        hd_text_free(&w.slots[i].text);
        hd_id_list_free(&w.slots[i].ids);
    }
    if (w.lines)
        (void)fclose(w.lines);
    free(w.slots);
    hd_text_free(&part);
    (void)pthread_cond_destroy(&w.changed);
    (void)pthread_mutex_destroy(&w.lock);
    hd_tokenizer_close(w.tokenizer);
    return st;
}
