#include "metrics/tensorboard.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

enum {
    FRAME_BYTES = 16, /* bytes of length and checksums of a record */
    /* a sample's text is longer than all scalars */
    EVENT_BYTES_MAX = 256 + HD_TENSORBOARD_SAMPLE_MAX + HD_TENSORBOARD_TAG_MAX,
    /* bytes of a session's event: besides the texts, a hyper-parameter has at most 32 bytes */
    SESSION_BYTES_MAX =
        256 + HD_TENSORBOARD_HPARAMS_MAX * (HD_TENSORBOARD_TAG_MAX + HD_TENSORBOARD_TEXT_MAX + 32),
    BEGIN_BYTES_MAX = 256 /* bytes of the first two records of a file */
};

/* Field numbers of event.proto and summary.proto, and wire types. */
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_NUMBER = 2, SESSION_STATUS = 1, SESSION_START = 1 };
/* Field numbers of summary.proto and tensor.proto, for values of plug-ins. */
enum {
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    METADATA_PLUGIN = 1,
    PLUGIN_NAME = 1,
    PLUGIN_CONTENT = 2
};
enum { TYPE_FLOAT = 1, TYPE_STRING = 7, SHAPE_DIM = 2, DIM_SIZE = 1 };
enum { TENSOR_TYPE = 1, TENSOR_SHAPE = 2, TENSOR_FLOATS = 5, TENSOR_STRING = 8 };
/* Field numbers of plugin_data.proto of the plug-in hparams, and of struct.proto. */
enum { HPARAMS_VERSION = 1, HPARAMS_START = 3, HPARAMS_END = 4, START_HPARAMS = 1, START_TIME = 5 };
enum { END_STATUS = 1, END_TIME = 2, STATUS_SUCCESS = 1, MAP_KEY = 1, MAP_VALUE = 2 };
enum { STRUCT_NUMBER = 2, STRUCT_TEXT = 3, STRUCT_BOOL = 4 };
enum { WIRE_VARINT = 0, WIRE_DOUBLE = 1, WIRE_BYTES = 2, WIRE_FLOAT = 5 };

struct hd_tensorboard {
    char dir[PATH_MAX], path[PATH_MAX];
    int64_t start_step; /* first step of this attempt; 0: a new run, whose validation before the
                           first step is step 0 */
    int fd;             /* -1: not open yet */
    off_t size_bytes;   /* bytes of the whole records in the file */
    bool torn;          /* a partial record may follow the whole ones */
    size_t used;
    uint8_t buffer[BEGIN_BYTES_MAX + EVENT_BYTES_MAX + SESSION_BYTES_MAX + FRAME_BYTES];
};

/* ---- protobuf ---- */

static void put(struct hd_tensorboard *b, const void *bytes, size_t size_bytes)
{
    assert(b->used + size_bytes <= sizeof b->buffer);
    memcpy(b->buffer + b->used, bytes, size_bytes);
    b->used += size_bytes;
}

static void put_le(struct hd_tensorboard *b, uint64_t value, int bytes)
{
    uint8_t out[8];

    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
    put(b, out, (size_t)bytes);
}

static void put_varint(struct hd_tensorboard *b, uint64_t value)
{
    uint8_t out[10];
    size_t n = 0;

    do {
        out[n] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
        n++;
    } while (value);
    put(b, out, n);
}

static void put_tag(struct hd_tensorboard *b, int field, int wire)
{
    put_varint(b, (uint64_t)(field << 3 | wire));
}

static void put_bytes(struct hd_tensorboard *b, int field, const void *bytes, size_t size_bytes)
{
    put_tag(b, field, WIRE_BYTES);
    put_varint(b, size_bytes);
    put(b, bytes, size_bytes);
}

static void put_double(struct hd_tensorboard *b, int field, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    put_tag(b, field, WIRE_DOUBLE);
    put_le(b, bits, 8);
}

/* Makes what was put since b->used was `at` a message, the value of `field`. */
static void wrap(struct hd_tensorboard *b, size_t at, int field)
{
    const size_t size_bytes = b->used - at;
    uint8_t head[16];
    size_t head_bytes;

    put_tag(b, field, WIRE_BYTES);
    put_varint(b, size_bytes);
    head_bytes = b->used - at - size_bytes;
    memcpy(head, b->buffer + at + size_bytes, head_bytes);
    memmove(b->buffer + at + head_bytes, b->buffer + at, size_bytes);
    memcpy(b->buffer + at, head, head_bytes);
}

/* Writes time and step, with which every event begins. */
static void put_when(struct hd_tensorboard *b, int64_t step)
{
    double seconds = (double)hd_clock_wall_ms() * 1e-3;
    uint64_t bits;

    memcpy(&bits, &seconds, sizeof bits);
    put_tag(b, EVENT_TIME, WIRE_DOUBLE);
    put_le(b, bits, 8);
    put_tag(b, EVENT_STEP, WIRE_VARINT);
    put_varint(b, (uint64_t)step);
}

/* Returns the bytes of a Summary.Value: tag and number. */
static size_t value_bytes(const struct hd_scalar *s)
{
    return 2 + strlen(s->tag) + 5; /* the length of a tag fits one byte */
}

static void put_summary(struct hd_tensorboard *b, const struct hd_scalar *scalars, size_t count)
{
    size_t size_bytes = 0;

    for (size_t i = 0; i < count; i++) {
        assert(strlen(scalars[i].tag) <= HD_TENSORBOARD_TAG_MAX);
        size_bytes += 2 + value_bytes(&scalars[i]);
    }
    put_tag(b, EVENT_SUMMARY, WIRE_BYTES);
    put_varint(b, size_bytes);
    for (size_t i = 0; i < count; i++) {
        const float value = (float)scalars[i].value;
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        put_tag(b, SUMMARY_VALUE, WIRE_BYTES);
        put_varint(b, value_bytes(&scalars[i]));
        put_bytes(b, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        put_tag(b, VALUE_NUMBER, WIRE_FLOAT);
        put_le(b, bits, 4);
    }
}

/* Returns how many bytes of a text are written, at most `most`: only whole characters, because
 * TensorBoard refuses texts that are not UTF-8. */
static size_t cut_text(const char *text, size_t most)
{
    size_t bytes = strnlen(text, most + 1);

    if (bytes > most)
        for (bytes = most; bytes && ((unsigned char)text[bytes] & 0xc0) == 0x80;)
            bytes--;
    return bytes;
}

/* ---- sessions ---- */

static void put_hparam(struct hd_tensorboard *b, const struct hd_hparam *hparam)
{
    const size_t entry = b->used;
    size_t value;

    assert(strlen(hparam->key) <= HD_TENSORBOARD_TAG_MAX);
    put_bytes(b, MAP_KEY, hparam->key, strlen(hparam->key));
    value = b->used;
    if (hparam->text) {
        put_bytes(b, STRUCT_TEXT, hparam->text, cut_text(hparam->text, HD_TENSORBOARD_TEXT_MAX));
    } else if (hparam->is_bool) {
        put_tag(b, STRUCT_BOOL, WIRE_VARINT);
        put_varint(b, hparam->number != 0);
    } else {
        put_double(b, STRUCT_NUMBER, hparam->number);
    }
    wrap(b, value, MAP_VALUE);
    wrap(b, entry, START_HPARAMS);
}

/* Makes what was put since `at`, a message of the plug-in, the summary of an event: its field in the
 * plug-in's data, in the metadata of a value with an empty tensor. */
static void wrap_session(struct hd_tensorboard *b, size_t at, int field, const char *tag)
{
    static const char plugin[] = "hparams";
    const uint8_t zero[4] = {0};
    size_t name;

    wrap(b, at, field);
    put_tag(b, HPARAMS_VERSION, WIRE_VARINT);
    put_varint(b, 0);
    wrap(b, at, PLUGIN_CONTENT);
    put_bytes(b, PLUGIN_NAME, plugin, sizeof plugin - 1);
    wrap(b, at, METADATA_PLUGIN);
    wrap(b, at, VALUE_METADATA);
    put_bytes(b, VALUE_TAG, tag, strlen(tag));
    name = b->used;
    put_tag(b, TENSOR_TYPE, WIRE_VARINT);
    put_varint(b, TYPE_FLOAT);
    put_bytes(b, TENSOR_SHAPE, "", 0);
    put_bytes(b, TENSOR_FLOATS, zero, sizeof zero);
    wrap(b, name, VALUE_TENSOR);
    wrap(b, at, SUMMARY_VALUE);
    wrap(b, at, EVENT_SUMMARY);
}

/* Writes the summary of a text: {tag, metadata {plugin "text"}, tensor {type, shape [1], string}}. */
static void put_text(struct hd_tensorboard *b, const char *tag, const char *text, size_t bytes)
{
    static const uint8_t shape[] = {SHAPE_DIM << 3 | WIRE_BYTES, 2, DIM_SIZE << 3 | WIRE_VARINT, 1};
    static const char plugin[] = "text";
    const size_t value = b->used;
    size_t at;

    assert(strlen(tag) <= HD_TENSORBOARD_TAG_MAX);
    put_bytes(b, VALUE_TAG, tag, strlen(tag));
    at = b->used;
    put_bytes(b, PLUGIN_NAME, plugin, sizeof plugin - 1);
    wrap(b, at, METADATA_PLUGIN);
    wrap(b, at, VALUE_METADATA);
    at = b->used;
    put_tag(b, TENSOR_TYPE, WIRE_VARINT);
    put_varint(b, TYPE_STRING);
    put_bytes(b, TENSOR_SHAPE, shape, sizeof shape);
    put_bytes(b, TENSOR_STRING, text, bytes);
    wrap(b, at, VALUE_TENSOR);
    wrap(b, value, SUMMARY_VALUE);
    wrap(b, value, EVENT_SUMMARY);
}

/* ---- records ---- */

/* Returns the CRC-32C (Castagnoli), computed four bits at a time: fast enough for short records. */
static uint32_t crc32c(const uint8_t *bytes, size_t size_bytes)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    uint32_t crc = ~UINT32_C(0);

    for (size_t i = 0; i < size_bytes; i++) {
        crc ^= bytes[i];
        crc = (crc >> 4) ^ table[crc & 15];
        crc = (crc >> 4) ^ table[crc & 15];
    }
    return ~crc;
}

/* Returns the masked CRC of TFRecord: a CRC over data that contains plain CRCs would be weak. */
static uint32_t masked_crc(const uint8_t *bytes, size_t size_bytes)
{
    const uint32_t crc = crc32c(bytes, size_bytes);

    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

/* Reserves the length and its checksum, which record_end fills in. */
static size_t record_begin(struct hd_tensorboard *b)
{
    const size_t at = b->used;

    put_le(b, 0, 8);
    put_le(b, 0, 4);
    return at;
}

static void record_end(struct hd_tensorboard *b, size_t at)
{
    const size_t content = at + 12, end = b->used;

    b->used = at;
    put_le(b, end - content, 8);
    put_le(b, masked_crc(b->buffer + at, 8), 4);
    b->used = end;
    put_le(b, masked_crc(b->buffer + content, end - content), 4);
}

static void put_begin(struct hd_tensorboard *b)
{
    static const char version[] = "brain.Event:2";
    const uint8_t start[] = {SESSION_STATUS << 3 | WIRE_VARINT, SESSION_START};
    size_t at = record_begin(b);

    put_when(b, 0);
    put_bytes(b, EVENT_VERSION, version, sizeof version - 1);
    record_end(b, at);
    at = record_begin(b);
    put_when(b, b->start_step);
    put_bytes(b, EVENT_SESSION, start, sizeof start);
    record_end(b, at);
}

/* ---- the file ---- */

static enum hd_status open_file(struct hd_tensorboard *b)
{
    enum hd_status st = hd_file_make_dirs(b->dir, HD_FILE_JOB_DIR_MODE);

    if (st)
        return st;
    b->fd = open(b->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (b->fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot create %s: %s", b->path,
                      strerror(errno));
    b->size_bytes = 0;
    return HD_OK;
}

static enum hd_status cut_torn(struct hd_tensorboard *b)
{
    if (b->torn &&
        (ftruncate(b->fd, b->size_bytes) < 0 || lseek(b->fd, b->size_bytes, SEEK_SET) < 0))
        return hd_err(hd_file_write_status(errno), "cannot truncate %s: %s", b->path,
                      strerror(errno));
    b->torn = false;
    return HD_OK;
}

/* Writes the whole buffer; on failure the file is truncated to its whole records. */
static enum hd_status write_buffer(struct hd_tensorboard *b)
{
    enum hd_status st = hd_file_write_all(b->fd, b->buffer, b->used);
    struct hd_error error;

    if (st)
        st = hd_err_prefix(st, "%s", b->path);
    if (!st) {
        b->size_bytes += (off_t)b->used;
        return HD_OK;
    }
    hd_err_save(st, &error);
    b->torn = true;
    (void)cut_torn(b); /* if this fails, the next call retries */
    return hd_err_restore(&error);
}

enum hd_status hd_tensorboard_open(const char *dir, int64_t attempt, int64_t steps_done,
                                   struct hd_tensorboard **ret_board)
{
    struct hd_tensorboard *b = calloc(1, sizeof *b);
    char host[64] = "";
    int len;

    if (!b)
        return hd_err(HD_NO_MEMORY, "no memory for the event file");
    (void)gethostname(host, sizeof host - 1);
    b->fd = -1;
    b->start_step = steps_done ? steps_done + 1 : 0; /* step 0: validation before the first step */
    (void)snprintf(b->dir, sizeof b->dir, "%s", dir);
    /* TensorBoard reads the files of a directory in the order of their names */
    len = snprintf(b->path, sizeof b->path, "%s/events.out.tfevents.%010lld.%s.attempt-%04lld", dir,
                   (long long)(hd_clock_wall_ms() / 1000), host, (long long)attempt);
    if (len >= (int)sizeof b->path) {
        free(b);
        return hd_err(HD_INVALID, "the path %s is too long", dir);
    }
    *ret_board = b;
    return HD_OK;
}

/* Opens the file if it is not open, and begins an event; ret_at: for record_end. */
static enum hd_status begin_event(struct hd_tensorboard *b, int64_t step, size_t *ret_at)
{
    enum hd_status st = b->fd < 0 ? open_file(b) : HD_OK;

    if (!st)
        st = cut_torn(b);
    if (st)
        return st;
    b->used = 0;
    if (!b->size_bytes)
        put_begin(b);
    *ret_at = record_begin(b);
    put_when(b, step);
    return HD_OK;
}

enum hd_status hd_tensorboard_add(struct hd_tensorboard *b, int64_t step,
                                  const struct hd_scalar *scalars, size_t count)
{
    size_t at;
    enum hd_status st = begin_event(b, step, &at);

    assert(count <= HD_TENSORBOARD_SCALARS_MAX);
    if (st)
        return st;
    put_summary(b, scalars, count);
    record_end(b, at);
    return write_buffer(b);
}

enum hd_status hd_tensorboard_begin_session(struct hd_tensorboard *b,
                                            const struct hd_hparam *hparams, size_t count)
{
    size_t record, at;
    enum hd_status st = begin_event(b, 0, &record);

    assert(count <= HD_TENSORBOARD_HPARAMS_MAX);
    if (st)
        return st;
    at = b->used;
    for (size_t i = 0; i < count; i++)
        put_hparam(b, &hparams[i]);
    put_double(b, START_TIME, (double)hd_clock_wall_ms() * 1e-3);
    wrap_session(b, at, HPARAMS_START, "_hparams_/session_start_info");
    record_end(b, record);
    return write_buffer(b);
}

enum hd_status hd_tensorboard_end_session(struct hd_tensorboard *b)
{
    size_t record, at;
    enum hd_status st = begin_event(b, b->start_step, &record);

    if (st)
        return st;
    at = b->used;
    put_tag(b, END_STATUS, WIRE_VARINT);
    put_varint(b, STATUS_SUCCESS);
    put_double(b, END_TIME, (double)hd_clock_wall_ms() * 1e-3);
    wrap_session(b, at, HPARAMS_END, "_hparams_/session_end_info");
    record_end(b, record);
    return write_buffer(b);
}

enum hd_status hd_tensorboard_add_text(struct hd_tensorboard *b, int64_t step, const char *tag,
                                       const char *text)
{
    size_t at;
    enum hd_status st = begin_event(b, step, &at);

    if (st)
        return st;
    put_text(b, tag, text, cut_text(text, HD_TENSORBOARD_SAMPLE_MAX));
    record_end(b, at);
    return write_buffer(b);
}

void hd_tensorboard_close(struct hd_tensorboard *b)
{
    if (!b)
        return;
    if (b->fd >= 0)
        (void)close(b->fd);
    free(b);
}
