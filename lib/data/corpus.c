#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pieces.h"
#include "base/text.h"
#include "data/data_internal.h"
#include "data/fingerprint.h"
#include "data/token_file.h"
#include "records/kind.h"

/* A mapped file, and its size, time and inode when it was mapped. */
struct mapping {
    char *path;
    const unsigned char *bytes; /* mapped contents; NULL: empty file */
    int64_t size_bytes;
    dev_t device;
    ino_t inode;
    struct timespec modified;
};

struct token_file {
    struct mapping data, index; /* index.path NULL: no .idx file */
    struct hd_token_view view;
    int64_t first; /* index of its first token in the corpus */
    char *source;  /* text file that it was made from, for messages; NULL: none */
    bool has_gaps; /* see struct hd_corpus_file */
};

struct hd_corpus {
    int64_t token_count;
    int64_t vocab; /* vocabulary: ids must be below; INT64_MAX: not set */
    bool bounded, pairs, unpaired;
    int64_t end_of_text;               /* end-of-text id; INT64_MIN or -1: none */
    const float *reference;            /* [token_count] hd_corpus_set_reference; NULL: none */
    const float *mismatched_reference; /* [token_count] NULL: none */
    size_t file_count;
    struct token_file files[]; /* ascending by `first`; an empty file and the next one have equal
                                  `first` */
};

/* ---- opening ---- */

static enum hd_status check_size(const struct hd_corpus_file *file, const struct stat *info)
{
    if (file->size_bytes >= 0 && info->st_size != file->size_bytes)
        return hd_err(HD_INVALID,
                      "%s has %" PRId64 " bytes now, but had %" PRId64 " when the job was "
                      "submitted; restore it, or submit the job again",
                      file->path, (int64_t)info->st_size, file->size_bytes);
    return HD_OK;
}

static enum hd_status map_bytes(const struct hd_corpus_file *file, struct mapping *ret_mapping)
{
    struct stat info;
    void *bytes = NULL;
    int fd;
    enum hd_status st = hd_file_open_regular("the data file ", file->path, &fd);

    if (st)
        return st;
    if (fstat(fd, &info) < 0)
        st = hd_err(HD_IO, "cannot examine %s: %s", file->path, strerror(errno));
    else
        st = check_size(file, &info);
    if (!st)
        st = hd_fingerprint_check(file->path, file->fingerprint);
    if (!st && info.st_size > 0) {
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED)
            st = hd_err(HD_IO, "cannot map %s into memory: %s", file->path, strerror(errno));
    }
    (void)close(fd);
    if (st)
        return st;
    *ret_mapping = (struct mapping){.path = strdup(file->path),
                                    .bytes = bytes,
                                    .size_bytes = info.st_size,
                                    .device = info.st_dev,
                                    .inode = info.st_ino,
                                    .modified = info.st_mtim};
    return ret_mapping->path ? HD_OK
                             : hd_err(HD_NO_MEMORY, "no memory for the path %s", file->path);
}

static void unmap_bytes(struct mapping *m)
{
    if (m->bytes)
        (void)munmap((void *)(uintptr_t)m->bytes, (size_t)m->size_bytes);
    free(m->path);
}

/* Maps the .idx file beside a .bin; leaves *ret_index unchanged if there is none. */
static enum hd_status map_index(const struct mapping *data, struct mapping *ret_index)
{
    struct hd_text name = {0};
    enum hd_status st = hd_token_index_name(data->path, &name);
    const struct hd_corpus_file file = {.path = name.data, .size_bytes = -1};
    struct stat info;

    if (!st && (stat(file.path, &info) == 0 || errno != ENOENT))
        st = map_bytes(&file, ret_index);
    hd_text_free(&name);
    return st;
}

/* Returns the error of a failed parse or, if the file's first bytes tell its real kind, one that
 * names that kind. */
static enum hd_status name_kind(enum hd_status st, const struct mapping *d)
{
    const char *remedy = "",
               *kind = st && d->bytes
                           ? hd_data_foreign_kind(d->bytes, (size_t)d->size_bytes, d->path, &remedy)
                           : NULL;

    return kind ? hd_err(st, "is %s, and no token file; %s", kind, remedy) : st;
}

/* Parses a token file in the format that its name tells. */
static enum hd_status parse_tokens(struct token_file *f)
{
    const struct mapping *d = &f->data;
    const enum hd_data_kind kind =
        hd_data_is_tokens(d->path) ? hd_data_name_kind(d->path) : HD_DATA_TEXT;
    enum hd_status st = HD_OK;

    if (kind == HD_DATA_BIN) {
        st = map_index(d, &f->index);
        if (!st && f->index.path)
            st = hd_token_view_megatron(d->bytes, d->size_bytes, f->index.bytes,
                                        f->index.size_bytes, &f->view);
        else if (!st)
            st = name_kind(hd_token_view_llmc(d->bytes, d->size_bytes, &f->view), d);
    } else if (kind == HD_DATA_NPY) {
        st = name_kind(hd_token_view_npy(d->bytes, d->size_bytes, &f->view), d);
    } else {
        st = hd_data_check_kind(d->path, d->bytes ? d->bytes : (const unsigned char *)"",
                                d->size_bytes < HD_DATA_HEAD_BYTES ? (size_t)d->size_bytes
                                                                   : HD_DATA_HEAD_BYTES);
        f->view = hd_token_view_text(d->bytes, d->size_bytes);
        return st; /* this error message names the path already */
    }
    return st ? hd_err_prefix(st, "%s", d->path) : HD_OK;
}

static void close_file(struct token_file *f)
{
    unmap_bytes(&f->data);
    unmap_bytes(&f->index);
    free(f->source);
}

static const char *name_of(const struct token_file *f)
{
    return f->source ? f->source : f->data.path;
}

static enum hd_status open_corpus_file(struct hd_corpus *corpus, const struct hd_corpus_file *file)
{
    struct token_file *f = &corpus->files[corpus->file_count];
    enum hd_status st = map_bytes(file, &f->data);

    if (!st)
        st = parse_tokens(f);
    if (!st && file->source && !(f->source = strdup(file->source)))
        st = hd_err(HD_NO_MEMORY, "no memory for the path %s", file->source);
    f->has_gaps = file->has_gaps;
    if (!st && f->view.count > INT64_MAX / 2 - corpus->token_count)
        st = hd_err(HD_LIMIT, "%s: the data files together are too large", file->path);
    if (st) {
        close_file(f);
        *f = (struct token_file){.first = 0};
        return st;
    }
    f->first = corpus->token_count;
    corpus->token_count += f->view.count;
    corpus->file_count++;
    return HD_OK;
}

enum hd_status hd_corpus_open(const struct hd_corpus_file *files, size_t count,
                              struct hd_corpus **ret_corpus)
{
    struct hd_corpus *corpus;
    enum hd_status st = HD_OK;

    if (count == 0)
        return hd_err(HD_INVALID, "there are no data files");
    if (count > HD_CORPUS_FILES_MAX)
        return hd_err(HD_LIMIT, "%zu data files; at most %d are allowed, join some", count,
                      HD_CORPUS_FILES_MAX);
    corpus = calloc(1, sizeof *corpus + count * sizeof corpus->files[0]);
    if (!corpus)
        return hd_err(HD_NO_MEMORY, "no memory for the table of %zu data files", count);
    corpus->vocab = INT64_MAX;
    corpus->end_of_text = -1;
    for (size_t i = 0; !st && i < count; i++)
        st = open_corpus_file(corpus, &files[i]);
    if (st)
        hd_corpus_close(corpus);
    else
        *ret_corpus = corpus;
    return st;
}

void hd_corpus_close(struct hd_corpus *corpus)
{
    if (!corpus)
        return;
    for (size_t i = 0; i < corpus->file_count; i++)
        close_file(&corpus->files[i]);
    free(corpus);
}

static enum hd_status check_mapping(const struct mapping *m)
{
    struct stat info;

    if (!m->path)
        return HD_OK;
    if (stat(m->path, &info) < 0)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot examine the data file %s: %s",
                      m->path, strerror(errno));
    if (info.st_size != m->size_bytes || info.st_dev != m->device || info.st_ino != m->inode ||
        info.st_mtim.tv_sec != m->modified.tv_sec || info.st_mtim.tv_nsec != m->modified.tv_nsec)
        return hd_err(HD_INVALID,
                      "%s was changed while it was in use; put changed text under a new name "
                      "and submit a new job",
                      m->path);
    return HD_OK;
}

enum hd_status hd_corpus_check(const struct hd_corpus *corpus)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < corpus->file_count; i++) {
        st = check_mapping(&corpus->files[i].data);
        if (!st)
            st = check_mapping(&corpus->files[i].index);
    }
    return st;
}

/* ---- reading ---- */

int64_t hd_corpus_token_count(const struct hd_corpus *corpus)
{
    return corpus->token_count;
}

int64_t hd_corpus_byte_count(const struct hd_corpus *corpus)
{
    int64_t bytes = 0;

    for (size_t i = 0; i < corpus->file_count; i++)
        bytes += corpus->files[i].data.size_bytes + corpus->files[i].index.size_bytes;
    return bytes;
}

int64_t hd_corpus_document_count(const struct hd_corpus *corpus)
{
    int64_t documents = 0;

    for (size_t i = 0; i < corpus->file_count; i++) {
        if (!corpus->files[i].view.documents)
            return -1;
        documents += corpus->files[i].view.document_count;
    }
    return documents;
}

size_t hd_corpus_file_count(const struct hd_corpus *corpus)
{
    return corpus->file_count;
}

const char *hd_corpus_kind(const struct hd_corpus *corpus)
{
    const char *kind = corpus->files[0].view.kind;

    for (size_t i = 1; i < corpus->file_count; i++)
        if (strcmp(corpus->files[i].view.kind, kind) != 0)
            return "mixed";
    return kind;
}

bool hd_corpus_has_text(const struct hd_corpus *corpus)
{
    for (size_t i = 0; i < corpus->file_count; i++)
        if (strcmp(corpus->files[i].view.kind, "text") == 0)
            return true;
    return false;
}

/* Returns the file that contains token `place`: the last one that begins at or before it. */
static const struct token_file *file_at(const struct hd_corpus *corpus, int64_t place)
{
    size_t lo = 0, hi = corpus->file_count; /* the file is in [lo, hi) */

    assert(place >= 0 && place < corpus->token_count);
    while (hi - lo > 1) {
        size_t middle = lo + (hi - lo) / 2;

        if (corpus->files[middle].first <= place)
            lo = middle;
        else
            hi = middle;
    }
    return &corpus->files[lo];
}

/* Returns HD_INVALID with a message on the first id of the range outside the vocabulary. */
static enum hd_status bad_id(const struct hd_corpus *corpus, const struct token_file *f,
                             int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count; i++) {
        const int64_t id = hd_token_at(&f->view, i);

        if (id < 0 || id >= corpus->vocab)
            return hd_err(HD_INVALID,
                          "%s: token %" PRId64 " is %" PRId64
                          ", but model.vocab allows 0 to %" PRId64
                          "; it was made by another tokenizer, or model.vocab is too small",
                          name_of(f), i, id, corpus->vocab - 1);
    }
    return hd_err(HD_INVALID, "%s was changed while it was in use", f->data.path);
}

enum hd_status hd_corpus_read(const struct hd_corpus *corpus, int64_t first, int64_t count,
                              int32_t *ret_tokens)
{
    assert(first >= 0 && count >= 0 && count <= corpus->token_count - first);
    while (count > 0) {
        const struct token_file *f = file_at(corpus, first);
        const int64_t left = f->first + f->view.count - first, n = count < left ? count : left;

        if (hd_token_read(&f->view, first - f->first, n, ret_tokens) >= corpus->vocab)
            return bad_id(corpus, f, first - f->first, n);
        ret_tokens += n;
        first += n;
        count -= n;
    }
    return HD_OK;
}

enum hd_status hd_corpus_hash_ids(const struct hd_corpus *corpus, struct hd_hash *hash)
{
    enum { PIECE = HD_PIECE(1 << 16, 61) };
    int32_t *ids = malloc(PIECE * sizeof *ids);
    enum hd_status st = ids ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to read tokens");

    for (int64_t at = 0; !st && at < corpus->token_count; at += PIECE) {
        const int64_t n = corpus->token_count - at < PIECE ? corpus->token_count - at : PIECE;

        st = hd_corpus_read(corpus, at, n, ids);
        hd_hash_add(hash, ids, (size_t)n * sizeof *ids);
    }
    free(ids);
    return st;
}

void hd_corpus_read_counts(const struct hd_corpus *corpus, int64_t first, int64_t count,
                           bool *ret_counts)
{
    assert(first >= 0 && count >= 0 && count <= corpus->token_count - first);
    while (count > 0) {
        const struct token_file *f = file_at(corpus, first);
        const int64_t left = f->first + f->view.count - first, n = count < left ? count : left;

        for (int64_t i = 0; i < n; i++)
            *ret_counts++ = hd_token_counts(&f->view, first - f->first + i);
        first += n;
        count -= n;
    }
}

/* ---- vocabulary and bounds ---- */

enum { LOOK_TOKENS = 4096, LOOKS_PER_FILE = 256 };

/* Checks that ids are in the vocabulary: all ids of a small file, or samples spread over a larger
 * one, which is enough to detect a wrong tokenizer; hd_corpus_read checks every id again. */
static enum hd_status check_ids(const struct hd_corpus *corpus, const struct token_file *f)
{
    int32_t ids[LOOK_TOKENS];
    const int64_t looks = (f->view.count + LOOK_TOKENS - 1) / LOOK_TOKENS;
    const int64_t stride = looks > LOOKS_PER_FILE ? looks / LOOKS_PER_FILE : 1;

    for (int64_t i = 0; i < looks; i += stride) {
        const int64_t first = i * LOOK_TOKENS, left = f->view.count - first;
        const int64_t n = left < LOOK_TOKENS ? left : LOOK_TOKENS;

        if (hd_token_read(&f->view, first, n, ids) >= corpus->vocab)
            return bad_id(corpus, f, first, n);
    }
    return HD_OK;
}

enum hd_status hd_corpus_set_vocab(struct hd_corpus *corpus, int64_t vocab)
{
    enum hd_status st = HD_OK;

    corpus->vocab = vocab;
    for (size_t i = 0; !st && i < corpus->file_count; i++)
        st = check_ids(corpus, &corpus->files[i]);
    return st;
}

void hd_corpus_set_bounds(struct hd_corpus *corpus, int64_t end_of_text)
{
    corpus->bounded = true;
    /* INT64_MIN: a value that no id has */
    corpus->end_of_text = end_of_text < 0 ? INT64_MIN : end_of_text;
}

bool hd_corpus_is_bounded(const struct hd_corpus *corpus)
{
    return corpus->bounded;
}

/* Returns the index of the first token after `place` that begins a document by file or Megatron's
 * index. */
static int64_t next_start(const struct hd_corpus *corpus, int64_t place)
{
    const struct token_file *f = file_at(corpus, place);

    return f->first + hd_token_next_document(&f->view, place - f->first);
}

bool hd_corpus_ends_by_token(const struct hd_corpus *corpus)
{
    return corpus->bounded && corpus->end_of_text >= 0;
}

struct hd_document_walk hd_document_walk_run(const struct hd_corpus *corpus, int64_t first)
{
    return (struct hd_document_walk){corpus, first,
                                     corpus->bounded ? next_start(corpus, first) : INT64_MAX};
}

bool hd_document_walk_ends(struct hd_document_walk *w, int32_t token)
{
    const bool bound = ++w->place == w->next;

    if (bound && w->place < w->corpus->token_count)
        w->next = next_start(w->corpus, w->place);
    return bound || (w->corpus->bounded && token == w->corpus->end_of_text);
}

/* ---- conversations ---- */

static const struct token_file *last_file(struct hd_data_range range)
{
    return file_at(range.corpus, range.first + range.count - 1);
}

enum hd_status hd_data_range_form(struct hd_data_range range, bool *ret_conversations)
{
    const struct token_file *f, *first, *end;

    *ret_conversations = false;
    if (range.count <= 0)
        return HD_OK;
    first = file_at(range.corpus, range.first);
    end = last_file(range) + 1;
    *ret_conversations = first->view.counts;
    for (f = first; f < end; f++)
        if (f->view.count && !f->view.counts != !first->view.counts)
            return hd_err(HD_INVALID,
                          "%s holds %s, and %s %s; conversations and text are two sources of a "
                          "mixture: [{path: A, weight: 1}, {path: B, weight: 1}]",
                          name_of(first), first->view.counts ? "conversations" : "text", name_of(f),
                          f->view.counts ? "conversations" : "text");
    return HD_OK;
}

void hd_corpus_set_pairs(struct hd_corpus *corpus)
{
    corpus->pairs = true;
}

void hd_corpus_set_unpaired(struct hd_corpus *corpus)
{
    corpus->unpaired = true;
}

void hd_corpus_set_mismatched_reference(struct hd_corpus *corpus, const float *values)
{
    corpus->mismatched_reference = values;
}

const float *hd_corpus_mismatched_reference(const struct hd_corpus *corpus)
{
    return corpus->mismatched_reference;
}

void hd_corpus_set_reference(struct hd_corpus *corpus, const float *values)
{
    corpus->reference = values;
}

const float *hd_corpus_reference(const struct hd_corpus *corpus)
{
    return corpus->reference;
}

void hd_data_range_each(struct hd_data_range range, hd_conversation_fn *each, void *context)
{
    const int64_t range_end = range.first + range.count, step = range.corpus->pairs ? 2 : 1;
    const struct token_file *f = file_at(range.corpus, range.first), *end = last_file(range) + 1;

    for (; f < end; f++)
        for (int64_t d = 0; d + step <= f->view.document_count; d += step) {
            const int64_t first = f->first + hd_token_document_start(&f->view, d);
            const int64_t second = f->first + hd_token_document_start(&f->view, d + 1);
            const int64_t next = f->first + hd_token_document_start(&f->view, d + step);

            if (first >= range.first && next <= range_end && next > first)
                each(context, (struct hd_conversation_place){
                                  .first = first,
                                  .count = next - first,
                                  .chosen = range.corpus->pairs ? second - first : 0,
                                  .unpaired = range.corpus->unpaired,
                                  .path = name_of(f),
                                  .has_gaps = f->has_gaps,
                                  .file = (int64_t)(f - range.corpus->files),
                                  .document = d / step});
        }
}

/* ---- ranges ---- */

struct hd_data_range hd_corpus_all(const struct hd_corpus *corpus)
{
    return (struct hd_data_range){.corpus = corpus, .first = 0, .count = corpus->token_count};
}

struct hd_data_range hd_corpus_files(const struct hd_corpus *corpus, size_t first_file,
                                     size_t count)
{
    const size_t end_file = first_file + count;
    int64_t first, end;

    assert(count > 0 && end_file <= corpus->file_count);
    first = corpus->files[first_file].first;
    end = end_file == corpus->file_count ? corpus->token_count : corpus->files[end_file].first;
    return (struct hd_data_range){.corpus = corpus, .first = first, .count = end - first};
}

enum hd_status hd_data_split(int64_t total, double fraction, int64_t context, int64_t *ret_cut)
{
    int64_t cut;

    if (!(fraction > 0 && fraction < 1))
        return hd_err(HD_INVALID,
                      "data.val_split is %g; it must lie between 0 and 1, both excluded", fraction);
    if (context < 1 || context > HD_DATA_CONTEXT_MAX)
        return hd_err(HD_INVALID, "a context of %" PRId64 " tokens; it must be 1 to %d", context,
                      HD_DATA_CONTEXT_MAX);
    cut = (int64_t)((double)total * (1 - fraction)) / context * context;
    if (hd_data_window_count(cut, context) < 1 || hd_data_window_count(total - cut, context) < 1) {
        /* sufficient, because val >= fraction * total and train > (1 - fraction) * total -
         * context */
        const double for_val = (double)(context + 1) / fraction;
        const double for_train = (double)(2 * context + 1) / (1 - fraction);
        const double enough = for_val > for_train ? for_val : for_train;
        /* fraction of the tokens that validation needs, plus a tenth, so that it may be printed
         * with two digits */
        const double share = 1.1 * (double)(context + 1) / (double)total;

        if (total - cut < context + 1 && (double)total * (1 - 1.1 * share) > 2 * (double)context)
            return hd_err(HD_INVALID,
                          "data.val_split %g leaves %" PRId64 " of the %" PRId64
                          " tokens for validation, which needs at least %" PRId64
                          " (the context and one more); raise data.val_split to %.2g, or lower "
                          "model.context",
                          fraction, total - cut, total, context + 1, share);
        return hd_err(HD_INVALID,
                      "data.val_split %g splits the %" PRId64 " tokens into %" PRId64
                      " for training and %" PRId64 " for validation; each needs at least "
                      "%" PRId64 " (the context and one more): %.0f tokens are enough, or "
                      "lower model.context",
                      fraction, total, cut, total - cut, context + 1, enough + 1);
    }
    *ret_cut = cut;
    return HD_OK;
}

struct boundary {
    int64_t at, cut; /* cut: end of the first conversation or pair that ends at or after `at` */
};

static void find_boundary(void *context, struct hd_conversation_place place)
{
    struct boundary *b = context;

    if (place.first + place.count >= b->at && place.first + place.count < b->cut)
        b->cut = place.first + place.count;
}

/* Finds a boundary between conversations; the conversation or pair across the exact fraction goes
 * to training. */
static enum hd_status split_conversations(const struct hd_corpus *corpus, double fraction,
                                          int64_t *ret_cut)
{
    const int64_t total = corpus->token_count;
    struct boundary b = {.at = (int64_t)((double)total * (1 - fraction)), .cut = total};

    if (b.at > 0 && b.at < total)
        hd_data_range_each(hd_corpus_all(corpus), find_boundary, &b);
    *ret_cut = b.cut;
    if (*ret_cut < total)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "data.val_split %g leaves no whole conversation for validation; give more "
                  "conversations, a larger share, or data.val",
                  fraction);
}

enum hd_status hd_corpus_split(const struct hd_corpus *corpus, double fraction, int64_t context,
                               struct hd_data_range *ret_train, struct hd_data_range *ret_val)
{
    const int64_t total = corpus->token_count;
    bool conversations = false;
    int64_t cut = 0;
    enum hd_status st = hd_data_range_form(hd_corpus_all(corpus), &conversations);

    if (!st)
        st = conversations && fraction > 0 && fraction < 1
                 ? split_conversations(corpus, fraction, &cut)
                 : hd_data_split(total, fraction, context, &cut);
    if (st)
        return st;
    *ret_train = (struct hd_data_range){.corpus = corpus, .first = 0, .count = cut};
    *ret_val = (struct hd_data_range){.corpus = corpus, .first = cut, .count = total - cut};
    return HD_OK;
}
