#include "daemon/attempt/spool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "daemon/attempt/attempt.h"

enum { CHECK_EVERY_MS = 1000, READ_BYTES = 2 * HD_FRAME_BYTES_MAX };

static enum hd_status spool_path(char ret_path[PATH_MAX], const char *run_dir)
{
    return snprintf(ret_path, PATH_MAX, "%s/" HD_ATTEMPT_SPOOL_DIR, run_dir) < PATH_MAX - 32
               ? HD_OK
               : hd_err(HD_INVALID, "the path %s is too long", run_dir);
}

static void segment_path(char ret_path[PATH_MAX], const char *dir, int64_t segment)
{
    (void)snprintf(ret_path, PATH_MAX, "%s/%08" PRId64, dir, segment);
}

/* Numbers of the oldest and the newest segment, and their count; an absent directory has none. */
struct spool_extent {
    int64_t oldest, newest, count;
};

static struct spool_extent check(const char *dir)
{
    struct spool_extent extent = {0};
    DIR *d = opendir(dir);
    const struct dirent *entry;
    int64_t n;

    while (d && (entry = readdir(d))) {
        if (hd_text_to_int64(entry->d_name, 1, INT64_MAX, &n))
            continue; /* "." and ".." */
        if (!extent.count || n < extent.oldest)
            extent.oldest = n;
        if (n > extent.newest)
            extent.newest = n;
        extent.count++;
    }
    if (d)
        (void)closedir(d);
    return extent;
}

/* ---- writing ---- */

struct hd_spool_writer {
    char dir[PATH_MAX];
    struct hd_spool_limits limits;
    int fd; /* open file of the newest segment; -1: none yet */
    int64_t segment, size_bytes;
    int64_t checked_ms; /* time at which the directory was last read; 0: never */
    bool full;
    uint8_t frame[HD_FRAME_BYTES_MAX];
};

enum hd_status hd_spool_writer_open(const char *run_dir, const struct hd_spool_limits *limits,
                                    struct hd_spool_writer **ret_writer)
{
    struct hd_spool_writer *w = calloc(1, sizeof *w);
    enum hd_status st;

    if (!w)
        return hd_err(HD_NO_MEMORY, "no memory for the spool");
    w->fd = -1;
    w->limits = *limits;
    if (!w->limits.segment_bytes)
        w->limits.segment_bytes = HD_SPOOL_SEGMENT_BYTES;
    if (!w->limits.segments_max)
        w->limits.segments_max = HD_SPOOL_SEGMENTS_MAX;
    st = spool_path(w->dir, run_dir);
    if (!st)
        st = hd_file_make_dirs(w->dir, HD_ATTEMPT_DIR_MODE);
    if (st) {
        free(w);
        return st;
    }
    w->segment = check(w->dir).newest;
    *ret_writer = w;
    return HD_OK;
}

void hd_spool_writer_close(struct hd_spool_writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0)
        (void)close(writer->fd);
    free(writer);
}

bool hd_spool_is_full(struct hd_spool_writer *writer)
{
    const int64_t now_ms = hd_clock_now_ms();

    if (!writer->checked_ms || now_ms - writer->checked_ms >= CHECK_EVERY_MS) {
        writer->full = check(writer->dir).count >= writer->limits.segments_max;
        writer->checked_ms = now_ms;
    }
    return writer->full;
}

static enum hd_status next_segment(struct hd_spool_writer *w)
{
    char path[PATH_MAX];
    enum hd_status st;
    int fd;

    segment_path(path, w->dir, w->segment + 1);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, HD_ATTEMPT_FILE_MODE);
    if (fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot create %s: %s", path, strerror(errno));
    st = hd_file_sync_dir(w->dir);
    if (!st && w->fd >= 0 && fdatasync(w->fd) < 0) /* a durable report covers older segments too */
        st = hd_err(hd_file_write_status(errno), "cannot flush the spool in %s: %s", w->dir,
                    strerror(errno));
    if (st) {
        (void)close(fd);
        (void)unlink(path);
        return st;
    }
    if (w->fd >= 0)
        (void)close(w->fd);
    w->fd = fd;
    w->segment++;
    w->size_bytes = 0;
    w->checked_ms = 0;
    return HD_OK;
}

enum hd_status hd_spool_append(struct hd_spool_writer *writer, const struct hd_link_report *report,
                               bool durable)
{
    const size_t n = hd_link_report_encode(report, writer->frame, sizeof writer->frame);
    enum hd_status st = HD_OK;

    if (writer->fd < 0 || writer->size_bytes + (int64_t)n > writer->limits.segment_bytes)
        st = next_segment(writer);
    if (!st)
        st = hd_file_write_all(writer->fd, writer->frame, n);
    if (!st && durable && fdatasync(writer->fd) < 0)
        st = hd_err(hd_file_write_status(errno), "cannot flush: %s", strerror(errno));
    if (st) {
        /* a partial frame would hide the reports after it: it is cut off, or a new segment is
         * begun */
        if (writer->fd >= 0 && ftruncate(writer->fd, writer->size_bytes) < 0) {
            (void)close(writer->fd);
            writer->fd = -1;
        }
        return hd_err_prefix(st, "the spool in %s", writer->dir);
    }
    writer->size_bytes += (int64_t)n;
    return HD_OK;
}

/* ---- reading ---- */

struct hd_spool_reader {
    char dir[PATH_MAX];
    int fd; /* open file of segment at.segment; -1: not open */
    struct hd_spool_position at;
    int64_t filled_from; /* offset of have[0] in the segment, bytes */
    size_t have_bytes;
    uint8_t have[READ_BYTES];
};

enum hd_status hd_spool_reader_open(const char *run_dir, struct hd_spool_reader **ret_reader)
{
    struct hd_spool_reader *r = calloc(1, sizeof *r);
    enum hd_status st;

    if (!r)
        return hd_err(HD_NO_MEMORY, "no memory for the spool");
    r->fd = -1;
    st = spool_path(r->dir, run_dir);
    if (st) {
        free(r);
        return st;
    }
    *ret_reader = r;
    return HD_OK;
}

void hd_spool_reader_close(struct hd_spool_reader *reader)
{
    if (!reader)
        return;
    if (reader->fd >= 0)
        (void)close(reader->fd);
    free(reader);
}

struct hd_spool_position hd_spool_get_pos(const struct hd_spool_reader *reader)
{
    return reader->at;
}

void hd_spool_seek(struct hd_spool_reader *reader, struct hd_spool_position position)
{
    if (reader->fd >= 0)
        (void)close(reader->fd);
    reader->fd = -1;
    reader->at = position;
    reader->have_bytes = 0;
}

/* Opens the segment at the reading position, or the oldest one after it. */
static enum hd_status open_segment(struct hd_spool_reader *r)
{
    const struct spool_extent extent = check(r->dir);
    char path[PATH_MAX];

    if (!extent.count || r->at.segment > extent.newest)
        return hd_err(HD_UNAVAILABLE, "the spool has no segment yet");
    if (r->at.segment < extent.oldest)
        r->at = (struct hd_spool_position){extent.oldest, 0};
    segment_path(path, r->dir, r->at.segment);
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (r->fd < 0)
        return hd_err(HD_IO, "cannot open %s: %s", path, strerror(errno));
    r->have_bytes = 0;
    return HD_OK;
}

/* Fills `have` from the reading position on, with as many bytes as exist and fit. */
static enum hd_status fill(struct hd_spool_reader *r)
{
    ssize_t n;

    do
        n = pread(r->fd, r->have, sizeof r->have, r->at.offset_bytes);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return hd_err(HD_IO, "cannot read the spool in %s: %s", r->dir, strerror(errno));
    r->filled_from = r->at.offset_bytes;
    r->have_bytes = (size_t)n;
    return HD_OK;
}

static enum hd_status decode_here(struct hd_spool_reader *r, struct hd_frame *ret_frame,
                                  size_t *ret_size)
{
    const size_t used = (size_t)(r->at.offset_bytes - r->filled_from);

    if (used >= r->have_bytes)
        return hd_err(HD_UNAVAILABLE, "the spool holds no further report yet");
    return hd_frame_decode(r->have + used, r->have_bytes - used, ret_frame, ret_size);
}

static void skip_segment(struct hd_spool_reader *r)
{
    hd_spool_seek(r, (struct hd_spool_position){r->at.segment + 1, 0});
}

enum hd_status hd_spool_read(struct hd_spool_reader *reader, struct hd_link_report *ret_report)
{
    struct hd_frame frame;
    enum hd_status st;
    size_t size;

    for (;;) {
        bool is_final;

        st = reader->fd < 0 ? open_segment(reader) : HD_OK;
        if (st)
            return st;
        st = decode_here(reader, &frame, &size);
        if (st) {
            /* true: a newer segment exists; checked before reading, because the writer finishes a
             * segment before it creates the next */
            is_final = check(reader->dir).newest > reader->at.segment;
            st = fill(reader);
            if (!st)
                st = decode_here(reader, &frame, &size);
            if (st == HD_UNAVAILABLE && is_final && reader->have_bytes == 0) {
                skip_segment(reader);
                continue;
            }
            if (st == HD_CORRUPT || (st == HD_UNAVAILABLE && is_final)) {
                const struct hd_spool_position at = reader->at;

                skip_segment(reader);
                return hd_err(HD_CORRUPT,
                              "the spool %s/%08" PRId64 " cannot be read from byte %" PRId64 " on",
                              reader->dir, at.segment, at.offset_bytes);
            }
        }
        if (st)
            return st;
        reader->at.offset_bytes += (int64_t)size;
        st = hd_link_report_decode(&frame, ret_report);
        if (st)
            return hd_err_prefix(st, "the spool %s/%08" PRId64, reader->dir, reader->at.segment);
        return HD_OK;
    }
}

void hd_spool_remove_before(const char *run_dir, int64_t segment)
{
    char dir[PATH_MAX], path[PATH_MAX];
    struct spool_extent extent;

    if (spool_path(dir, run_dir))
        return;
    extent = check(dir);
    for (int64_t n = extent.oldest; n && n < segment && n < extent.newest; n++) {
        segment_path(path, dir, n);
        /* a failure is harmless: a segment that stays is sent again, and the controller ignores
         * duplicates */
        (void)unlink(path);
    }
}
