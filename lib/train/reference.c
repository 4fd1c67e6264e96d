/* reference: the log-probabilities of DPO's reference model, computed once and stored beside the
 * tokens of a job.
 *
 *     all pairs --program E, with the initial weights--> log-probability of each target
 *       --each rank its rows--> JOB_DIR/tokens/reference.part.R
 *       --rank 0--> JOB_DIR/tokens/reference --mapped by all--> field `reference` of batches
 *
 * The reference is the policy before its first step (Rafailov et al. 2023, section 4): with an
 * adapter that begins at zero it is the base model. The log-probabilities are computed by the
 * programs of validation, in the same precision, with the same kernels and without dropout, so that
 * the first log-ratios are 0 and the first loss is ln 2. Later attempts read the file, whatever
 * their layout; an attempt that does not find the file computes it again from the initial weights,
 * before it loads its checkpoint.
 *
 * With a KL term (kto) a second pass computes the log-probabilities of answers behind other prompts
 * (data/sampler.c: fill_mismatched), in which each answer occurs at most once, too.
 *
 * The file: a header, then a float for each token of the training and of the validation corpus, with a
 * KL term twice, the second time of the mismatched rows; native byte order. The file is complete or
 * absent (atomic rename); the header has a hash of the floats, and a key: a hash of everything that
 * the values depend on.
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
#include "data/packing.h"
#include "train/trainer.h"
#include "train/window_pass.h"

enum {
    WAIT_NS = 20 * 1000 * 1000,
    /* waits before giving up, a minute in all: until a file written on one node becomes visible on
     * another */
    WAITS_MAX = 3000
};

struct reference_head {
    char magic[8];
    int64_t train_tokens, val_tokens;
    uint64_t key, hash; /* hash of everything the values depend on; hash of the values */
};
static const char MAGIC[8] = "HDREF01";

struct hd_reference {
    void *map;
    size_t bytes;
};

struct reference_value {
    int64_t token; /* index in the training corpus, then in the validation corpus */
    float value;
    float unused;
};

/* ---- the file ---- */

static int64_t val_tokens(const struct hd_job_data *d)
{
    return d->val_corpus ? hd_corpus_token_count(d->val_corpus) : 0;
}

/* Returns the number of floats in the file. */
static int64_t value_count(const struct hd_trainer *t)
{
    return (hd_corpus_token_count(t->data.train_corpus) + val_tokens(&t->data)) *
           (hd_job_has_kl(&t->rank_program.job) ? 2 : 1);
}

static size_t file_bytes(const struct hd_trainer *t)
{
    return sizeof(struct reference_head) + (size_t)value_count(t) * sizeof(float);
}

/* Computes the key: a hash of everything that the values depend on except the layout, and of the
 * data that decides which pairs have values. */
static enum hd_status find_key(const struct hd_trainer *t, uint64_t *ret_key)
{
    const struct hd_job *job = &t->rank_program.job;
    struct hd_text text = {0};
    struct hd_hash hash;
    enum hd_status st;

    hd_text_add(&text, "1 %s%s %s %s %s %s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64,
                hd_job_has_kl(job) ? "kl " : "", job->init_from, job->init_identity,
                job->adapter_from, job->adapter_identity, hd_job_precision_words[job->precision],
                hd_job_model_weights_words[job->model_weights], job->seed, job->context,
                t->data.sampler.window_count, hd_job_data_validation_windows(&t->data));
    if (text.failed)
        return hd_err(HD_NO_MEMORY, "no memory for the key of the reference");
    hd_hash_begin(&hash);
    hd_hash_add(&hash, text.data, text.len_bytes);
    hd_text_free(&text);
    st = hd_corpus_hash_ids(t->data.train_corpus, &hash);
    if (!st && t->data.val_corpus)
        st = hd_corpus_hash_ids(t->data.val_corpus, &hash);
    *ret_key = hd_hash_value(&hash);
    return st;
}

void hd_trainer_close_reference(struct hd_trainer *t)
{
    if (!t->reference)
        return;
    (void)munmap(t->reference->map, t->reference->bytes);
    free(t->reference);
    t->reference = NULL;
}

/* Returns a number that identifies the mapped reference file and that ranks exchange; never 0. */
static int64_t identity_of(const struct hd_reference *r)
{
    struct reference_head h;

    memcpy(&h, r->map, sizeof h);
    return (int64_t)(h.hash >> 1) | 1;
}

/* Maps the reference file. HD_NOT_FOUND: it does not exist, or its size does not fit the tokens of
 * this job's data. */
static enum hd_status map_file(struct hd_trainer *t)
{
    const size_t bytes = file_bytes(t);
    struct hd_text path = {0};
    struct stat info;
    void *map = MAP_FAILED;
    int fd;

    if (hd_token_cache_add_path(&t->rank_program.job, "/reference", &path))
        return HD_NO_MEMORY;
    fd = open(path.data, O_RDONLY | O_CLOEXEC);
    hd_text_free(&path);
    if (fd >= 0 && fstat(fd, &info) == 0 && (size_t)info.st_size == bytes)
        map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0)
        (void)close(fd);
    if (map == MAP_FAILED)
        return hd_err(HD_NOT_FOUND, "there are no log-probabilities of the reference");
    t->reference = malloc(sizeof *t->reference);
    if (!t->reference) {
        (void)munmap(map, bytes);
        return hd_err(HD_NO_MEMORY, "no memory for the reference");
    }
    *t->reference = (struct hd_reference){map, bytes};
    return HD_OK;
}

static const float *values_of(const struct hd_reference *r)
{
    return (const float *)((const char *)r->map + sizeof(struct reference_head));
}

/* Sets *ret_whole to true if the reference file that rank 0 has mapped is complete and has this
 * job's key. */
static enum hd_status check_reference_file(const struct hd_trainer *t, bool *ret_whole)
{
    const size_t bytes = t->reference->bytes - sizeof(struct reference_head);
    struct reference_head h;
    uint64_t key;
    const enum hd_status st = find_key(t, &key);

    memcpy(&h, t->reference->map, sizeof h);
    *ret_whole = !st && memcmp(h.magic, MAGIC, sizeof MAGIC) == 0 && h.key == key &&
                 h.train_tokens == hd_corpus_token_count(t->data.train_corpus) &&
                 h.val_tokens == val_tokens(&t->data) &&
                 h.hash == hd_hash_bytes(values_of(t->reference), bytes);
    return st;
}

/* Makes batches take their `reference` field from the mapped file. */
static void use(struct hd_trainer *t)
{
    const float *values = values_of(t->reference);
    const int64_t train_tokens = hd_corpus_token_count(t->data.train_corpus);

    hd_corpus_set_reference(t->data.train_corpus, values);
    if (t->data.val_corpus)
        hd_corpus_set_reference(t->data.val_corpus, values + train_tokens);
    if (!hd_job_has_kl(&t->rank_program.job))
        return;
    values += train_tokens + val_tokens(&t->data);
    hd_corpus_set_mismatched_reference(t->data.train_corpus, values);
    if (t->data.val_corpus)
        hd_corpus_set_mismatched_reference(t->data.val_corpus, values + train_tokens);
}

bool hd_trainer_needs_reference(const struct hd_trainer *t)
{
    return hd_preference_has_reference(hd_rank_program_preference(&t->rank_program.job));
}

/* Maps the reference file that rank 0 has mapped, identified by `identity`. On another node that
 * file may become visible later, or an older file of its name may be visible for a while. */
static enum hd_status map_same(struct hd_trainer *t, int64_t identity)
{
    const struct timespec pause = {.tv_nsec = WAIT_NS};

    for (int i = 0; i < WAITS_MAX; i++) {
        const enum hd_status st = t->reference ? HD_OK : map_file(t);

        if (st && st != HD_NOT_FOUND)
            return st;
        if (!st && identity_of(t->reference) == identity)
            return HD_OK;
        hd_trainer_close_reference(t);
        (void)nanosleep(&pause, NULL);
    }
    return hd_err(HD_IO, "the file `reference` that rank 0 has in the job's folder `tokens` is not "
                         "visible on this node; is the folder shared by all nodes?");
}

/* Opens the reference file of an earlier attempt, on all ranks or on none; sets *ret_found. */
static enum hd_status open_file(struct hd_trainer *t, bool *ret_found)
{
    int64_t identity = 0; /* 0: no file */
    bool whole = false;
    enum hd_status st = HD_OK;

    *ret_found = false;
    if (t->rank_program.rank == 0) {
        st = map_file(t);
        if (!st)
            st = check_reference_file(t, &whole);
        st = st == HD_NOT_FOUND ? HD_OK : st;
        identity = whole ? identity_of(t->reference) : 0;
        if (!whole)
            hd_trainer_close_reference(t);
    }
    if (!st)
        st = hd_trainer_agree(t, identity, &identity);
    *ret_found = !st && identity;
    return *ret_found ? map_same(t, identity) : st;
}

/* ---- computing the file ---- */

/* One run of the eval programs over a list of windows. */
struct reference_pass {
    struct hd_window_pass all;
    const struct hd_reference_watch *watch;
    int64_t done, total; /* windows */
    int64_t first_token; /* index in the file of the corpus's first token */
    /* file for this rank's results; NULL: another rank with equal results writes them */
    FILE *part;
    /* [context], for each row of a window the index in the file of its target; -1: none */
    int64_t *token;
    int32_t *ids; /* [context] tokens of a mismatched window */
};

static void place_answer(const struct reference_pass *p, int64_t first, int64_t count, int64_t at)
{
    for (int64_t j = 0; j < count; j++)
        p->token[at + j] = j + 1 < count ? p->first_token + first + j + 1 : -1;
}

/* Lists the tokens of a mismatched window. */
static enum hd_status place_mismatched(const struct reference_pass *p, int64_t window)
{
    const struct hd_validation *v = p->all.windows.windows;
    const struct hd_data_batch row = {
        .tokens = p->ids, .target_places = p->token, .mismatched = true};
    const enum hd_status st = hd_validation_fill(v, window, 1, &row);

    for (int64_t j = 0; !st && j < v->context; j++)
        p->token[j] += p->token[j] >= 0 ? p->first_token : 0;
    return st;
}

/* Lists the tokens whose log-probabilities the rows of a window compute. */
static enum hd_status place_window(struct hd_trainer *t, void *user, int64_t window)
{
    const struct reference_pass *p = user;
    const struct hd_validation *v = p->all.windows.windows;
    const struct hd_packed *packed;
    int64_t at = 0, n;

    (void)t;
    if (p->all.windows.mismatched)
        return place_mismatched(p, window);
    n = hd_packing_window(v->packing, window, &packed);
    for (int64_t i = 0; i < n; at += packed[i++].count) {
        place_answer(p, packed[i].first, packed[i].chosen, at);
        place_answer(p, packed[i].first + packed[i].chosen, packed[i].count - packed[i].chosen,
                     at + packed[i].chosen);
    }
    for (; at < v->context; at++)
        p->token[at] = -1;
    return HD_OK;
}

/* Writes the log-probability of a row to this rank's part of the reference file. */
static enum hd_status write_value(void *user, int64_t window, int64_t position, const float *logp)
{
    const struct reference_pass *p = user;
    const struct reference_value one = {.token = p->token[position], .value = *logp};

    (void)window;
    if (one.token >= 0 && fwrite(&one, sizeof one, 1, p->part) != 1)
        return hd_err(hd_file_write_status(errno),
                      "cannot write the log-probabilities of the reference: %s", strerror(errno));
    return HD_OK;
}

static enum hd_status tell_reference(void *user, int64_t done)
{
    const struct reference_pass *p = user;

    if (p->watch->alive && !p->watch->alive(p->watch->context, p->done + done, p->total))
        return hd_err(HD_ABORTED, "stopped computing the log-probabilities of the reference");
    return HD_OK;
}

static enum hd_status run_pass(struct hd_trainer *t, struct reference_pass *p)
{
    const int64_t count = p->all.windows.windows->window_count;
    const enum hd_status st = hd_window_pass_run(t, &p->all, 0, count);

    p->done += count;
    return st;
}

/* Computes the log-probabilities of all sources of the training data, then of the validation
 * windows. */
static enum hd_status run_all(struct hd_trainer *t, struct reference_pass *pass)
{
    const struct hd_job_data *d = &t->data;
    const int64_t train_tokens = hd_corpus_token_count(d->train_corpus);
    const int64_t before = pass->all.windows.mismatched ? train_tokens + val_tokens(d) : 0;
    enum hd_status st = HD_OK;

    pass->first_token = before;
    for (int64_t k = 0; !st && k < d->sampler.mixture.count; k++) {
        struct hd_validation v;

        st = hd_validation_init_packed(&v, d->sampler.sources[k].range, d->packings[k], 0);
        pass->all.windows.windows = &v;
        if (!st)
            st = run_pass(t, pass);
    }
    for (int64_t k = 0; !st && k < d->validation_count; k++) {
        pass->all.windows.windows = &d->validations[k];
        pass->first_token = before + (d->val_corpus ? train_tokens : 0);
        st = run_pass(t, pass);
    }
    return st;
}

/* Computes all values of the file, and writes this rank's to `part`. */
static enum hd_status run_passes(struct hd_trainer *t, FILE *part,
                                 const struct hd_reference_watch *watch)
{
    const struct hd_job *job = &t->rank_program.job;
    const int passes = hd_job_has_kl(job) ? 2 : 1;
    struct reference_pass p = {
        .all = {.columns = 1,
                .prepare = place_window,
                .take = write_value,
                .before = tell_reference,
                .user = &p},
        .watch = watch,
        .total = passes * (t->data.sampler.window_count + hd_job_data_validation_windows(&t->data)),
        .part = part,
        .token = calloc((size_t)job->context, sizeof *p.token),
        .ids = calloc((size_t)job->context, sizeof *p.ids)};
    enum hd_status st =
        p.token && p.ids ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for the reference");

    for (int k = 0; !st && k < passes; k++) {
        p.all.windows.mismatched = k > 0;
        st = run_all(t, &p);
    }
    free(p.token);
    free(p.ids);
    return st;
}

static enum hd_status add_part_path(const struct hd_trainer *t, int rank, struct hd_text *ret_path)
{
    char suffix[48];

    (void)snprintf(suffix, sizeof suffix, "/reference.part.%d", rank);
    return hd_token_cache_add_path(&t->rank_program.job, suffix, ret_path);
}

/* Computes this rank's log-probabilities and writes them to its part of the reference file. */
static enum hd_status make_part(struct hd_trainer *t, const struct hd_reference_watch *watch)
{
    struct hd_text path = {0}, folder = {0};
    FILE *part = NULL;
    enum hd_status st = add_part_path(t, t->rank_program.rank, &path);

    if (!st)
        st = hd_token_cache_add_path(&t->rank_program.job, "", &folder);
    if (!st && hd_window_pass_takes(&t->rank_program, t->rank_program.coord)) {
        st = hd_file_make_dirs(folder.data, HD_FILE_JOB_DIR_MODE);
        part = st ? NULL : fopen(path.data, "we");
        if (!st && !part)
            st = hd_err(hd_file_write_status(errno), "cannot create %s: %s", path.data,
                        strerror(errno));
    }
    if (!st)
        st = hd_trainer_reset_sums(t);
    if (!st)
        st = run_passes(t, part, watch);
    if (!st)
        st = hd_trainer_read_sums(t);
    if (part && fclose(part) && !st)
        st = hd_err(hd_file_write_status(errno), "cannot write %s: %s", path.data, strerror(errno));
    hd_text_free(&path);
    hd_text_free(&folder);
    return st;
}

/* Copies the log-probabilities in a rank's part to `values`, and removes the part. */
static enum hd_status take_part(const char *path, float *values, int64_t count)
{
    FILE *part = fopen(path, "re");
    enum hd_status st = HD_OK;
    struct reference_value one;

    if (!part)
        return hd_err(HD_IO, "cannot open %s: %s", path, strerror(errno));
    while (!st && fread(&one, sizeof one, 1, part) == 1)
        if (one.token >= 0 && one.token < count)
            values[one.token] = one.value;
        else
            st = hd_err(HD_CORRUPT, "%s has a token that the data does not have", path);
    if (!st && ferror(part))
        st = hd_err(HD_IO, "cannot read %s: %s", path, strerror(errno));
    (void)fclose(part);
    /* best effort: a part that is left is removed by the next attempt (token_cache.c) */
    (void)unlink(path);
    return st;
}

static enum hd_status write_file(struct hd_trainer *t, char *bytes)
{
    const size_t size = file_bytes(t);
    float *values = (float *)(bytes + sizeof(struct reference_head));
    struct reference_head h = {.train_tokens = hd_corpus_token_count(t->data.train_corpus),
                               .val_tokens = val_tokens(&t->data)};
    struct hd_text path = {0};
    enum hd_status st = HD_OK;

    for (int r = 0; !st && r < t->rank_program.mesh.world; r++) {
        if (!hd_window_pass_takes(&t->rank_program, hd_mesh_coord_of(&t->rank_program.mesh, r)))
            continue;
        st = add_part_path(t, r, &path);
        if (!st)
            st = take_part(path.data, values, value_count(t));
        hd_text_clear(&path);
    }
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.hash = hd_hash_bytes(values, size - sizeof h);
    if (!st)
        st = find_key(t, &h.key);
    memcpy(bytes, &h, sizeof h);
    if (!st)
        st = hd_token_cache_add_path(&t->rank_program.job, "/reference", &path);
    if (!st)
        st = hd_file_write_atomic(path.data, bytes, size, 0644);
    hd_text_free(&path);
    return st;
}

/* Merges the parts of all ranks into the reference file; only rank 0 calls it. */
static enum hd_status merge(struct hd_trainer *t)
{
    char *bytes = calloc(1, file_bytes(t));
    const enum hd_status st =
        bytes ? write_file(t, bytes) : hd_err(HD_NO_MEMORY, "no memory for the reference");

    free(bytes);
    return st;
}

/* Computes the reference file by a forward pass over all preference pairs. */
static enum hd_status make_file(struct hd_trainer *t, const struct hd_reference_watch *watch)
{
    int64_t identity = 0, too_many_rows = 0;
    enum hd_status st;

    hd_corpus_set_reference(t->data.train_corpus, NULL);
    st = make_part(t, watch);
    if (!st)
        /* the call returns when all ranks have written their parts */
        st = hd_trainer_agree(t, t->block.too_many_rows, &too_many_rows);
    if (!st && too_many_rows) /* the log-probabilities are not those of the model */
        st = hd_trainer_refuse_rows();
    if (!st && t->rank_program.rank == 0) {
        st = merge(t);
        if (!st)
            st = map_file(t);
        identity = st ? 0 : identity_of(t->reference);
    }
    if (!st)
        st = hd_trainer_agree(t, identity, &identity);
    return st ? st : map_same(t, identity);
}

enum hd_status hd_trainer_prepare_reference(struct hd_trainer *t,
                                            const struct hd_reference_watch *watch, bool *ret_made)
{
    bool found = true;
    enum hd_status st = HD_OK;

    *ret_made = false;
    if (!hd_trainer_needs_reference(t))
        return HD_OK;
    hd_comm_set_deadline(t->open.comm, t->save_deadline_ms); /* disks are slower than steps */
    st = open_file(t, &found);
    if (!st && !found)
        st = hd_trainer_init(t); /* the reference needs the initial weights, not a checkpoint's */
    hd_comm_set_deadline(t->open.comm,
                         t->save_deadline_ms); /* hd_trainer_init sets that of steps */
    if (!st && !found)
        st = make_file(t, watch);
    hd_comm_set_deadline(t->open.comm, t->step_deadline_ms);
    if (st)
        return hd_err_prefix(st, "the reference of train.objective: %s",
                             hd_job_objective_words[t->rank_program.job.objective]);
    use(t);
    *ret_made = !found;
    return HD_OK;
}
