#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/data_internal.h"

struct mapped_file {
    char *path;
    const unsigned char *bytes; /* NULL when empty */
    int64_t first;              /* corpus token of byte 0 */
    int64_t size_bytes;
    dev_t device;
    ino_t inode;
    struct timespec modified;
};

struct hd_corpus {
    int64_t token_count;
    size_t file_count;
    struct mapped_file files[]; /* rising `first`; empty files are not kept */
};

/* ---- opening ---- */

static enum hd_status check_kind_and_size(const struct hd_corpus_file *file,
                                          const struct stat *info)
{
    if (!S_ISREG(info->st_mode))
        return hd_err(HD_INVALID, "%s is not a regular file; data files must be", file->path);
    if (file->size_bytes >= 0 && info->st_size != file->size_bytes)
        return hd_err(HD_INVALID,
                      "%s has %" PRId64 " bytes now, but had %" PRId64 " when the job was "
                      "submitted; restore it, or submit the job again",
                      file->path, (int64_t)info->st_size, file->size_bytes);
    return HD_OK;
}

static enum hd_status map_file(struct hd_corpus *corpus, const struct hd_corpus_file *file)
{
    struct mapped_file *slot = &corpus->files[corpus->file_count];
    enum hd_status st;
    struct stat info;
    void *bytes;
    int fd;

    fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not hang on a named pipe */
    if (fd < 0)
        return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open the data file %s: %s",
                      file->path, strerror(errno));
    if (fstat(fd, &info) < 0) {
        st = hd_err(HD_IO, "cannot examine %s: %s", file->path, strerror(errno));
        goto out;
    }
    st = check_kind_and_size(file, &info);
    if (st || info.st_size == 0)
        goto out;
    if (info.st_size > INT64_MAX / 2 - corpus->token_count) {
        st = hd_err(HD_LIMIT, "%s: the data files together are too large", file->path);
        goto out;
    }
    bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        st = hd_err(HD_IO, "cannot map %s into memory: %s", file->path, strerror(errno));
        goto out;
    }
    *slot = (struct mapped_file){.path = strdup(file->path),
                                 .bytes = bytes,
                                 .first = corpus->token_count,
                                 .size_bytes = info.st_size,
                                 .device = info.st_dev,
                                 .inode = info.st_ino,
                                 .modified = info.st_mtim};
    corpus->file_count++;
    corpus->token_count += info.st_size;
    if (!slot->path)
        st = hd_err(HD_NO_MEMORY, "no memory to remember %s", file->path);

out:
    (void)close(fd);
    return st;
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
    for (size_t i = 0; !st && i < count; i++)
        st = map_file(corpus, &files[i]);
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
    for (size_t i = 0; i < corpus->file_count; i++) {
        (void)munmap((void *)(uintptr_t)corpus->files[i].bytes,
                     (size_t)corpus->files[i].size_bytes);
        free(corpus->files[i].path);
    }
    free(corpus);
}

enum hd_status hd_corpus_check(const struct hd_corpus *corpus)
{
    for (size_t i = 0; i < corpus->file_count; i++) {
        const struct mapped_file *file = &corpus->files[i];
        struct stat info;

        if (stat(file->path, &info) < 0)
            return hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO,
                          "cannot examine the data file %s: %s", file->path, strerror(errno));
        if (info.st_size != file->size_bytes || info.st_dev != file->device ||
            info.st_ino != file->inode || info.st_mtim.tv_sec != file->modified.tv_sec ||
            info.st_mtim.tv_nsec != file->modified.tv_nsec)
            return hd_err(HD_INVALID,
                          "%s was changed while it was in use; put changed text under a new name "
                          "and submit a new job",
                          file->path);
    }
    return HD_OK;
}

/* ---- reading ---- */

int64_t hd_corpus_token_count(const struct hd_corpus *corpus)
{
    return corpus->token_count;
}

const unsigned char *hd_corpus_span(const struct hd_corpus *corpus, int64_t first, int64_t count,
                                    int64_t *ret_count)
{
    size_t lo = 0, hi = corpus->file_count; /* the file lies in [lo, hi) */
    const struct mapped_file *file;
    int64_t left;

    assert(first >= 0 && count > 0 && count <= corpus->token_count - first);
    while (hi - lo > 1) {
        size_t middle = lo + (hi - lo) / 2;

        if (corpus->files[middle].first <= first)
            lo = middle;
        else
            hi = middle;
    }
    file = &corpus->files[lo];
    left = file->first + file->size_bytes - first;
    *ret_count = count < left ? count : left;
    return file->bytes + (first - file->first);
}

void hd_corpus_read(const struct hd_corpus *corpus, int64_t first, int64_t count,
                    int32_t *ret_tokens)
{
    while (count > 0) {
        int64_t n;
        const unsigned char *bytes = hd_corpus_span(corpus, first, count, &n);

        for (int64_t i = 0; i < n; i++)
            ret_tokens[i] = bytes[i];
        ret_tokens += n;
        first += n;
        count -= n;
    }
}

/* ---- ranges ---- */

struct hd_data_range hd_corpus_all(const struct hd_corpus *corpus)
{
    return (struct hd_data_range){.corpus = corpus, .first = 0, .count = corpus->token_count};
}

enum hd_status hd_corpus_split(const struct hd_corpus *corpus, double fraction, int64_t context,
                               struct hd_data_range *ret_train, struct hd_data_range *ret_val)
{
    const int64_t total = corpus->token_count;
    int64_t cut;

    if (!(fraction > 0 && fraction < 1))
        return hd_err(HD_INVALID, "data.split is %g; it must lie between 0 and 1, both excluded",
                      fraction);
    if (context < 1 || context > HD_DATA_CONTEXT_MAX)
        return hd_err(HD_INVALID, "a context of %" PRId64 " tokens; it must be 1 to %d", context,
                      HD_DATA_CONTEXT_MAX);
    cut = (int64_t)((double)total * (1 - fraction)) / context * context;
    if (hd_data_window_count(cut, context) < 1 || hd_data_window_count(total - cut, context) < 1) {
        /* enough for sure: val >= fraction * total, train > (1 - fraction) * total - context */
        const double for_val = (double)(context + 1) / fraction;
        const double for_train = (double)(2 * context + 1) / (1 - fraction);
        const double enough = for_val > for_train ? for_val : for_train;

        return hd_err(HD_INVALID,
                      "data.split %g cuts the %" PRId64 " bytes of text into %" PRId64
                      " for training and %" PRId64 " for validation; each needs at least "
                      "%" PRId64 " (the context and one more): %.0f bytes of text are enough, or "
                      "lower model.context",
                      fraction, total, cut, total - cut, context + 1, enough + 1);
    }
    *ret_train = (struct hd_data_range){.corpus = corpus, .first = 0, .count = cut};
    *ret_val = (struct hd_data_range){.corpus = corpus, .first = cut, .count = total - cut};
    return HD_OK;
}
