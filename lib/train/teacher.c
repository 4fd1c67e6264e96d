/* teacher: the likeliest next tokens under a teacher model, stored for each token of the training data.
 *
 *     a job with train.distill.write: all windows of data.train --program E, with the teacher's
 *       weights--> records of each target --each rank its rows--> JOB_DIR/tokens/teacher.unfinished
 *       --rename--> JOB_DIR/tokens/teacher
 *     a job with train.distill.teacher: mapped --> fields TEACHER_IDS, TEACHER_LOGQ of batches
 *
 * Teacher and student are two jobs, so that each has a layout, precision and plan of its own, and one
 * file serves many students. A record belongs to a token of the data, by its index in the training
 * corpus: whatever order, batch or layout reads the token, it gets that record. The teacher saw the
 * token behind the tokens of its own window (its model.context).
 *
 * The file: a head, then a record (teacher_record.h) for each token of the training corpus: of the token
 * itself, as the target of the token before.
 *
 * Invariants:
 *  1. The file `teacher` is complete: it gets that name after all ranks have flushed their records.
 *  2. In `teacher.unfinished` the first `windows_done` windows, in the order of the pass, are durable:
 *     all ranks flush, then rank 0 writes the number. A window's number depends on no layout, so
 *     another attempt with another layout goes on from there.
 *  3. The key is a hash of the training corpus's token ids: a file of other data or of another
 *     tokenizer is refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/math.h"
#include "data/packing.h"
#include "job/frozen_model.h"
#include "train/teacher_record.h"
#include "train/trainer.h"
#include "train/window_pass.h"

enum {
    PAUSE_NS = 20 * 1000 * 1000,
    PAUSES_MAX = 3000 /* a minute in all, until a file of rank 0 becomes visible on another node */
};

struct teacher_head {
    char magic[8];
    uint64_t key;
    int64_t tokens, vocab, top_k;
    double temperature;
    int64_t windows_done;
    int64_t complete; /* 1: the file is complete */
};
static const char MAGIC_OF_TEACHER[8] = "HDTCH01";

/* Computes invariant 3's key. */
static enum hd_status find_data_key(const struct hd_trainer *t, uint64_t *ret_key)
{
    struct hd_hash hash;
    enum hd_status st;

    hd_hash_begin(&hash);
    st = hd_corpus_hash_ids(t->data.train_corpus, &hash);
    *ret_key = hd_hash_value(&hash);
    return st;
}

static struct teacher_head new_head(const struct hd_trainer *t, uint64_t key)
{
    struct teacher_head h = {.key = key,
                             .tokens = hd_corpus_token_count(t->data.train_corpus),
                             .vocab = hd_job_distill_vocab(&t->rank_program.job),
                             .top_k = t->rank_program.job.distill_top_k,
                             .temperature = t->rank_program.job.distill_temperature};

    memcpy(h.magic, MAGIC_OF_TEACHER, sizeof h.magic);
    return h;
}

static int64_t size_of(const struct teacher_head *h)
{
    return HD_TEACHER_HEAD_BYTES + h->tokens * hd_teacher_record_bytes(h->vocab, h->top_k);
}

/* ---- reading ---- */

void hd_trainer_close_teacher(struct hd_trainer *t)
{
    if (!t->teacher)
        return;
    (void)munmap(t->teacher->map, t->teacher->bytes);
    free(t->teacher);
    t->teacher = NULL;
}

/* Compares a complete file's head with the one that the job needs. */
static enum hd_status compare_heads(const struct teacher_head *has,
                                    const struct teacher_head *needs, const char *path)
{
    if (has->top_k != needs->top_k)
        return hd_err(HD_INVALID,
                      "train.distill.top_k: the teacher's file %s has %" PRId64
                      " ids of each token; set %" PRId64,
                      path, has->top_k, has->top_k);
    if (has->temperature != needs->temperature)
        return hd_err(HD_INVALID,
                      "train.distill.temperature: the teacher's file %s is of temperature %g; set "
                      "%g, or let the teacher write another file",
                      path, has->temperature, has->temperature);
    if (has->vocab != needs->vocab)
        return hd_err(HD_INVALID,
                      "train.distill.vocab: the teacher's file %s is of %" PRId64
                      " token ids, and this job has %" PRId64
                      "; both models need one tokenizer, and both jobs one number",
                      path, has->vocab, needs->vocab);
    if (has->tokens == needs->tokens && has->key != needs->key)
        return hd_err(HD_INVALID,
                      "train.distill.teacher: %s is of other data: both jobs have %" PRId64
                      " tokens of data.train, but not the same ones; give both jobs the same "
                      "data.train, data.tokenizer and rules of data",
                      path, has->tokens);
    if (has->tokens != needs->tokens)
        return hd_err(HD_INVALID,
                      "train.distill.teacher: %s is of other data: its job had %" PRId64
                      " tokens of data.train, and this one has %" PRId64
                      "; give both jobs the same data.train, data.tokenizer and rules of data",
                      path, has->tokens, needs->tokens);
    return HD_OK;
}

/* Maps the complete file at `path`. */
static enum hd_status map_teacher(struct hd_trainer *t, const char *path, uint64_t key)
{
    const struct teacher_head needs = new_head(t, key);
    struct teacher_head has = {.complete = 0};
    struct stat info = {0};
    void *map = MAP_FAILED;
    enum hd_status st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO,
                      "train.distill.teacher: cannot open %s: %s; it is made by a job with "
                      "train.distill.write: true. A model folder or checkpoint must be there when "
                      "the job is made; put it there, and resume with --set "
                      "train.distill.teacher=FOLDER, or submit a new job",
                      path, strerror(errno));
    st = hd_file_pread_all(fd, &has, sizeof has, 0);
    if (st || fstat(fd, &info) < 0 || memcmp(has.magic, MAGIC_OF_TEACHER, sizeof has.magic) != 0 ||
        !has.complete)
        st = hd_err(HD_INVALID,
                    "train.distill.teacher: %s is no file of a teacher, or not a complete one; it "
                    "is made by a job with train.distill.write: true",
                    path);
    if (!st)
        st = compare_heads(&has, &needs, path);
    if (!st && info.st_size != size_of(&has))
        st = hd_err(HD_INVALID,
                    "train.distill.teacher: %s has %lld bytes and needs %" PRId64
                    "; copy it again, or let the teacher write another file",
                    path, (long long)info.st_size, size_of(&has));
    if (!st)
        map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (!st && map == MAP_FAILED)
        st = hd_err(HD_IO, "cannot map %s: %s", path, strerror(errno));
    (void)close(fd);
    if (st)
        return st;
    t->teacher = malloc(sizeof *t->teacher);
    if (!t->teacher) {
        (void)munmap(map, (size_t)info.st_size);
        return hd_err(HD_NO_MEMORY, "no memory for the teacher's file");
    }
    *t->teacher = (struct hd_teacher){map, (size_t)info.st_size, has.tokens, has.vocab};
    return HD_OK;
}

/* Gives all ranks the key of the data, which rank 0 computes. */
static enum hd_status share_key(struct hd_trainer *t, uint64_t *ret_key)
{
    int64_t half = 0, other = 0;
    uint64_t key = 0;
    enum hd_status st = t->rank_program.rank == 0 ? find_data_key(t, &key) : HD_OK;

    if (!st)
        st = hd_trainer_agree(t, (int64_t)(key >> 32), &half);
    if (!st)
        st = hd_trainer_agree(t, (int64_t)(key & UINT32_MAX), &other);
    *ret_key = (uint64_t)half << 32 | (uint64_t)other;
    return st;
}

enum hd_status hd_trainer_open_teacher(struct hd_trainer *t)
{
    const struct hd_job *job = &t->rank_program.job;
    struct hd_text path = {0};
    uint64_t key = 0;
    enum hd_status st;

    if (hd_job_has_frozen_model(job))
        return hd_trainer_load_frozen(t);
    if (!hd_job_has_teacher(job))
        return HD_OK;
    st = hd_job_teacher_file(job, &path);
    hd_comm_set_deadline(t->open.comm, t->save_deadline_ms);
    if (!st)
        st = share_key(t, &key);
    hd_comm_set_deadline(t->open.comm, t->step_deadline_ms);
    if (!st)
        st = map_teacher(t, path.data, key);
    hd_text_free(&path);
    return st;
}

/* ---- writing ---- */

/* One run of the eval programs over the windows of a source. */
struct teacher_pass {
    struct hd_window_pass all;
    int fd; /* the unfinished file, which all ranks have open */
    struct teacher_head *head;
    const struct hd_reference_watch *watch;
    int64_t before, total;  /* windows of earlier sources, of all */
    int64_t *places;        /* [context] */
    int32_t *ids, *targets; /* [context] */
    char *bytes;            /* [record_bytes] */
};

static enum hd_status write_at(int fd, const void *data, int64_t size_bytes, int64_t at)
{
    const char *from = data;

    while (size_bytes > 0) {
        const ssize_t n = pwrite(fd, from, (size_t)size_bytes, at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return hd_err(hd_file_write_status(errno), "cannot write the teacher's file: %s",
                          strerror(errno));
        from += n;
        at += n;
        size_bytes -= n;
    }
    return HD_OK;
}

/* Writes the record of the target at `place`. record: [k, 2] {log q, id}. */
static enum hd_status write_record(const struct teacher_pass *p, int64_t place, const float *record)
{
    const int64_t k = p->head->top_k, id_size = hd_teacher_id_bytes(p->head->vocab),
                  bytes = hd_teacher_record_bytes(p->head->vocab, k);

    for (int64_t j = 0; j < k; j++) {
        const uint32_t id = (uint32_t)((int32_t)record[2 * j + 1] + 1);
        const uint16_t narrow = (uint16_t)id, logq = hd_f32_to_f16(record[2 * j]);

        /* log q is not above 0, and of logits that are all NaN the record has no first id */
        if ((j == 0 && id == 0) || (id > 0 && !(record[2 * j] <= 0.01f)))
            return hd_err(HD_CORRUPT, "the teacher's log-probabilities are not finite; are its "
                                      "weights those of a trained model?");
        if (id_size == 2)
            memcpy(p->bytes + j * 2, &narrow, sizeof narrow);
        else
            memcpy(p->bytes + j * 4, &id, sizeof id);
        memcpy(p->bytes + k * id_size + j * 2, &logq, sizeof logq);
    }
    return write_at(p->fd, p->bytes, bytes, HD_TEACHER_HEAD_BYTES + place * bytes);
}

static enum hd_status read_window(struct hd_trainer *t, void *user, int64_t window)
{
    const struct teacher_pass *p = user;
    const struct hd_data_batch sample = {
        .tokens = p->ids, .targets = p->targets, .target_places = p->places};

    (void)t;
    return hd_validation_fill(p->all.windows.windows, window, 1, &sample);
}

static enum hd_status keep_record(void *user, int64_t window, int64_t position, const float *record)
{
    const struct teacher_pass *p = user;
    const int64_t place = p->places[position];

    (void)window;
    return place >= 0 ? write_record(p, place, record) : HD_OK;
}

static enum hd_status tell_teacher(void *user, int64_t done)
{
    const struct teacher_pass *p = user;

    if (p->watch->alive && !p->watch->alive(p->watch->context, p->before + done, p->total))
        return hd_err(HD_ABORTED, "stopped writing the teacher's file");
    return HD_OK;
}

/* Makes all records so far durable; rank 0 then stores the number of windows (invariant 2). */
static enum hd_status flush(struct hd_trainer *t, void *user, int64_t done)
{
    const struct teacher_pass *p = user;
    int64_t too_many = 0;
    enum hd_status st = hd_trainer_read_sums(t);

    if (!st && hd_window_pass_takes(&t->rank_program, t->rank_program.coord) &&
        fdatasync(p->fd) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot flush the teacher's file: %s",
                    strerror(errno));
    if (!st) /* returns when all ranks have flushed */
        st = hd_trainer_agree(t, t->block.too_many_rows, &too_many);
    if (!st && too_many)
        st = hd_trainer_refuse_rows();
    p->head->windows_done = p->before + done;
    if (st || t->rank_program.rank > 0)
        return st;
    st = write_at(p->fd, p->head, sizeof *p->head, 0);
    if (!st && fdatasync(p->fd) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot flush the teacher's file: %s",
                    strerror(errno));
    return st;
}

/* Initialises the windows of a source of the training data. */
static enum hd_status open_source(const struct hd_job_data *d, int64_t k, int64_t context,
                                  struct hd_validation *ret_windows)
{
    return d->packings[k]
               ? hd_validation_init_packed(ret_windows, d->sampler.sources[k].range, d->packings[k],
                                           0)
               : hd_validation_init(ret_windows, d->sampler.sources[k].range, context, 0);
}

/* Runs the programs over one source, whose windows are those from p->before on in the pass. */
static enum hd_status write_source(struct hd_trainer *t, struct teacher_pass *p)
{
    const int64_t count = p->all.windows.windows->window_count;
    const int64_t skipped = hd_max(p->head->windows_done - p->before, 0);

    return skipped >= count ? HD_OK : hd_window_pass_run(t, &p->all, skipped, count);
}

static enum hd_status write_sources(struct hd_trainer *t, int fd, struct teacher_head *head,
                                    const struct hd_reference_watch *watch)
{
    const struct hd_job *job = &t->rank_program.job;
    const size_t S = (size_t)job->context;
    struct teacher_pass p = {.all = {.columns = 2 * job->distill_top_k,
                                     .prepare = read_window,
                                     .take = keep_record,
                                     .before = tell_teacher,
                                     .after = flush,
                                     .user = &p},
                             .fd = fd,
                             .head = head,
                             .watch = watch,
                             .total = t->data.sampler.window_count,
                             .places = calloc(S, sizeof *p.places),
                             .ids = calloc(S, sizeof *p.ids),
                             .targets = calloc(S, sizeof *p.targets),
                             .bytes = calloc((size_t)job->distill_top_k, 8)};
    enum hd_status st = p.places && p.ids && p.targets && p.bytes
                            ? hd_trainer_reset_sums(t)
                            : hd_err(HD_NO_MEMORY, "no memory for the teacher's records");

    for (int64_t s = 0; !st && s < t->data.sampler.mixture.count; s++) {
        struct hd_validation windows;

        st = open_source(&t->data, s, job->context, &windows);
        p.all.windows.windows = &windows;
        if (!st)
            st = write_source(t, &p);
        p.before += st ? 0 : windows.window_count;
    }
    free(p.places);
    free(p.ids);
    free(p.targets);
    free(p.bytes);
    return st;
}

/* Opens the unfinished file on rank 0: that of an earlier attempt if it is of the same data and
 * settings, else a new one. */
static enum hd_status open_unfinished(const char *path, struct teacher_head *head, int *ret_fd)
{
    struct teacher_head has = {.complete = 0};
    enum hd_status st = HD_OK;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);

    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot create %s: %s", path, strerror(errno));
    if (pread(fd, &has, sizeof has, 0) == (ssize_t)sizeof has &&
        memcmp(has.magic, head->magic, sizeof has.magic) == 0 && has.key == head->key &&
        has.tokens == head->tokens && has.vocab == head->vocab && has.top_k == head->top_k &&
        has.temperature == head->temperature) {
        head->windows_done = has.windows_done;
    } else if (ftruncate(fd, 0) < 0 || ftruncate(fd, size_of(head)) < 0) {
        st = hd_err(hd_file_write_status(errno), "cannot size %s: %s", path, strerror(errno));
    } else {
        st = write_at(fd, head, sizeof *head, 0);
    }
    if (st) {
        (void)close(fd);
        return st;
    }
    *ret_fd = fd;
    return HD_OK;
}

/* Opens the file that rank 0 has opened; on another node it may become visible later. */
static enum hd_status open_same(const char *path, const struct teacher_head *head, int *ret_fd)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};

    for (int i = 0; i < PAUSES_MAX; i++) {
        struct teacher_head has = {.key = 0};
        const int fd = open(path, O_RDWR | O_CLOEXEC);

        if (fd >= 0 && pread(fd, &has, sizeof has, 0) == (ssize_t)sizeof has &&
            has.key == head->key && has.top_k == head->top_k) {
            *ret_fd = fd;
            return HD_OK;
        }
        if (fd >= 0)
            (void)close(fd);
        (void)nanosleep(&pause, NULL);
    }
    return hd_err(HD_IO,
                  "%s, which rank 0 has opened, is not visible on this node; is the job's "
                  "folder shared by all nodes?",
                  path);
}

/* Gives the finished file its name; only rank 0 calls it. */
static enum hd_status publish_teacher(const char *unfinished, const char *path, const char *folder,
                                      int fd, struct teacher_head *head)
{
    enum hd_status st;

    head->complete = 1;
    st = write_at(fd, head, sizeof *head, 0);
    if (!st && fsync(fd) < 0)
        st =
            hd_err(hd_file_write_status(errno), "cannot flush %s: %s", unfinished, strerror(errno));
    if (!st && rename(unfinished, path) < 0)
        st = hd_err(HD_IO, "cannot rename %s to %s: %s", unfinished, path, strerror(errno));
    return st ? st : hd_file_sync_dir(folder);
}

static enum hd_status write_all(struct hd_trainer *t, const struct hd_reference_watch *watch,
                                const char *folder, const char *unfinished, const char *path,
                                struct teacher_head *head)
{
    const bool first = t->rank_program.rank == 0;
    int fd = -1;
    int64_t agreed = 0;
    enum hd_status st = HD_OK;

    if (first)
        st = hd_file_make_dirs(folder, HD_FILE_JOB_DIR_MODE);
    if (!st && first)
        st = open_unfinished(unfinished, head, &fd);
    if (!st)
        st = hd_trainer_agree(t, head->windows_done, &head->windows_done);
    if (!st && !first)
        st = open_same(unfinished, head, &fd);
    if (!st)
        st = write_sources(t, fd, head, watch);
    if (!st && first)
        st = publish_teacher(unfinished, path, folder, fd, head);
    if (fd >= 0)
        (void)close(fd);
    return st ? st : hd_trainer_agree(t, 0, &agreed);
}

/* Returns whether rank 0 has a complete file of this job's data and settings. */
static bool is_written(const char *path, const struct teacher_head *needs)
{
    struct teacher_head has = {.complete = 0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool is = fd >= 0 && !hd_file_pread_all(fd, &has, sizeof has, 0) && has.complete &&
              has.key == needs->key && has.tokens == needs->tokens && has.vocab == needs->vocab &&
              has.top_k == needs->top_k && has.temperature == needs->temperature;

    if (fd >= 0)
        (void)close(fd);
    return is;
}

enum hd_status hd_trainer_write_teacher(struct hd_trainer *t,
                                        const struct hd_reference_watch *watch,
                                        struct hd_text *ret_said)
{
    struct hd_text folder = {0}, unfinished = {0}, path = {0};
    struct teacher_head head = {.key = 0};
    char size[32];
    int64_t there = 0;
    uint64_t key = 0;
    enum hd_status st = hd_token_cache_add_path(&t->rank_program.job, "", &folder);

    if (!st)
        st = hd_token_cache_add_path(&t->rank_program.job, "/teacher.unfinished", &unfinished);
    if (!st)
        st = hd_token_cache_add_path(&t->rank_program.job, "/teacher", &path);
    hd_comm_set_deadline(t->open.comm, t->save_deadline_ms); /* disks are slower than steps */
    if (!st)
        st = share_key(t, &key);
    head = new_head(t, key);
    if (!st)
        st = hd_trainer_agree(t, t->rank_program.rank == 0 && is_written(path.data, &head), &there);
    if (!st && !there)
        st = write_all(t, watch, folder.data, unfinished.data, path.data, &head);
    hd_comm_set_deadline(t->open.comm, t->step_deadline_ms);
    hd_text_format_bytes(size_of(&head), size);
    if (!st)
        hd_text_add(ret_said,
                    "wrote the %" PRId64 " likeliest next tokens of each of %" PRId64
                    " tokens, %s, to %s: the student's train.distill.teacher",
                    head.top_k, head.tokens, size, path.data);
    hd_text_free(&folder);
    hd_text_free(&unfinished);
    hd_text_free(&path);
    return st;
}
