/* Event files, read back by a reader of their own: other checksum code, another walk over the wire
 * format. What TensorBoard itself makes of them is for tests/interop. */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "metrics/tensorboard.h"
#include "tests/program/test.h"

static char folder[64], dir[96];

static int make_folder(void **state)
{
    const char *parent = getenv("TMPDIR");

    (void)snprintf(folder, sizeof folder, "%s/heddle-tb-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(folder))
        return -1;
    (void)snprintf(dir, sizeof dir, "%s/job/tensorboard", folder);
    return 0;
}

static int drop_folder(void **state)
{
    return hd_file_remove_tree(folder) ? -1 : 0;
}

/* ---- the reader ---- */

/* CRC-32C bit by bit: polynomial 0x1EDC6F41, here with its bits in reverse. */
static uint32_t slow_crc(const uint8_t *bytes, size_t n)
{
    uint32_t crc = 0xffffffff;

    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint32_t in = (bytes[i] >> bit & 1) ^ (crc & 1);

            crc >>= 1;
            if (in)
                crc ^= 0x82f63b78;
        }
    return ~crc;
}

static uint32_t turned(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

struct value {
    int64_t step;
    double time;
    char tag[80];
    float number;
    uint8_t metadata[16384]; /* of a plug-in's value */
    size_t metadata_bytes;
    char text[32]; /* of the text plugin; number is then that of its strings */
    uint64_t text_bytes;
};

/* Content of an event file. */
struct events {
    char version[32];
    int64_t start_step; /* -1: none */
    struct value values[256];
    int count, records;
};

static uint64_t little(const uint8_t *p, int bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static uint64_t varint(const uint8_t **p)
{
    uint64_t v = 0;

    for (int shift = 0;; shift += 7) {
        v |= (uint64_t)(**p & 0x7f) << shift;
        if (!(*(*p)++ & 0x80))
            return v;
    }
}

/* Returns the content of the field at *p, which must have this number, and sets *p behind it. */
static const uint8_t *inside(const uint8_t **p, int field, uint64_t *ret_bytes)
{
    const uint8_t *content;

    assert_int_equal(varint(p), field << 3 | 2);
    *ret_bytes = varint(p);
    content = *p;
    *p += *ret_bytes;
    return content;
}

/* A tensor {dtype 1: string (7), shape 2: {dim 2: {size 1: 1}}, string 8}. */
static void read_tensor(const uint8_t *p, const uint8_t *end, struct value *v)
{
    const uint8_t *shape, *dim, *text;
    uint64_t n;

    assert_int_equal(varint(&p), 1 << 3);
    assert_int_equal(varint(&p), 7);
    shape = inside(&p, 2, &n);
    dim = inside(&shape, 2, &n);
    assert_int_equal(varint(&dim), 1 << 3);
    v->number = (float)varint(&dim);
    text = inside(&p, 8, &n);
    (void)snprintf(v->text, sizeof v->text, "%.*s", (int)n, (const char *)text);
    v->text_bytes = n;
    assert_ptr_equal(p, end);
}

/* Metadata {plugin 1: {name 1: "text"}}. */
static void read_metadata(const uint8_t *p)
{
    uint64_t n;
    const uint8_t *plugin = inside(&p, 1, &n);
    const uint8_t *name = inside(&plugin, 1, &n);

    assert_int_equal(n, 4);
    assert_memory_equal(name, "text", 4);
}

static void read_value(const uint8_t *p, const uint8_t *end, struct value *v)
{
    while (p < end) {
        uint64_t key = varint(&p);

        if (key == (1 << 3 | 2)) { /* tag */
            uint64_t n = varint(&p);

            (void)snprintf(v->tag, sizeof v->tag, "%.*s", (int)n, (const char *)p);
            p += n;
        } else if ((key & 7) == 2) { /* metadata, or a tensor */
            uint64_t n = varint(&p);

            assert_true(key >> 3 == 8 || (key >> 3 == 9 && n <= sizeof v->metadata));
            if (key >> 3 == 8 && p[1] == 7) /* a string */
                read_tensor(p, p + n, v);
            if (key >> 3 == 9)
                memcpy(v->metadata, p, v->metadata_bytes = n);
            p += n;
        } else {
            uint32_t bits = (uint32_t)little(p, 4);

            assert_int_equal(key, 2 << 3 | 5); /* simple_value */
            memcpy(&v->number, &bits, 4);
            p += 4;
        }
    }
    assert_ptr_equal(p, end);
}

static void read_summary(const uint8_t *p, const uint8_t *end, const struct value *common,
                         struct events *e)
{
    while (p < end) {
        uint64_t key = varint(&p), n = varint(&p);

        assert_int_equal(key, 1 << 3 | 2); /* value */
        assert_in_range(e->count, 0, 255);
        e->values[e->count] = *common;
        read_value(p, p + n, &e->values[e->count++]);
        p += n;
    }
    assert_ptr_equal(p, end);
}

static void read_event(const uint8_t *p, const uint8_t *end, struct events *e)
{
    struct value common = {0};

    while (p < end) {
        uint64_t key = varint(&p), n;

        if (key == (1 << 3 | 1)) { /* wall_time */
            uint64_t bits = little(p, 8);

            memcpy(&common.time, &bits, 8);
            p += 8;
            continue;
        }
        n = varint(&p);
        if (key == (2 << 3 | 0)) { /* step */
            common.step = (int64_t)n;
            continue;
        }
        assert_true(n <= (uint64_t)(end - p));
        if (key == (3 << 3 | 2)) {
            (void)snprintf(e->version, sizeof e->version, "%.*s", (int)n, (const char *)p);
        } else if (key == (7 << 3 | 2)) {
            assert_true(n == 2 && p[0] == (1 << 3 | 0) && p[1] == 1); /* status START */
            e->start_step = common.step;
        } else {
            assert_int_equal(key, 5 << 3 | 2);
            read_summary(p, p + n, &common, e);
        }
        p += n;
    }
}

static void read_events(const char *path, struct events *e)
{
    struct hd_text bytes = {0};
    const uint8_t *p, *end;

    memset(e, 0, sizeof *e);
    e->start_step = -1;
    assert_int_equal(hd_file_read(path, 1 << 20, &bytes), HD_OK);
    p = (const uint8_t *)bytes.data;
    end = p + bytes.len_bytes;
    while (p < end) {
        uint64_t n;

        assert_true(end - p >= 16);
        n = little(p, 8);
        assert_int_equal(little(p + 8, 4), turned(slow_crc(p, 8)));
        assert_true(n <= (uint64_t)(end - p - 16));
        assert_int_equal(little(p + 12 + n, 4), turned(slow_crc(p + 12, n)));
        read_event(p + 12, p + 12 + n, e);
        e->records++;
        p += 16 + n;
    }
    hd_text_free(&bytes);
}

/* The file that TensorBoard reads last. */
static const char *last_file(void)
{
    static char path[512];
    struct dirent **list;
    int count = scandir(dir, &list, NULL, alphasort);

    assert_true(count > 2);
    (void)snprintf(path, sizeof path, "%s/%s", dir, list[count - 1]->d_name);
    for (int i = 0; i < count; i++)
        free(list[i]);
    free(list);
    return path;
}

/* ---- tests ---- */

static struct hd_tensorboard *open_board(int64_t attempt, int64_t steps_done)
{
    struct hd_tensorboard *board = NULL;

    assert_int_equal(hd_tensorboard_open(dir, attempt, steps_done, &board), HD_OK);
    return board;
}

CASE_WITH(NULL, NULL)
static void the_reader_of_this_test_knows_the_published_checksum(void **state)
{
    /* the check value of CRC-32C in the catalogues */
    assert_int_equal(slow_crc((const uint8_t *)"123456789", 9), 0xe3069283);
}

static void what_is_added_is_read_back_with_step_and_time(void **state)
{
    const int64_t steps[] = {1, 127, 128, 16384, INT64_C(1) << 40}; /* several lengths of varint */
    const double before = (double)hd_clock_wall_ms() * 1e-3;
    struct hd_tensorboard *board = open_board(1, 0);
    static struct events e;

    for (size_t i = 0; i < 5; i++) {
        const struct hd_scalar scalars[] = {{"train/loss", 5.5 - (double)i}, {"train/lr", 1e-3}};

        assert_int_equal(hd_tensorboard_add(board, steps[i], scalars, 2), HD_OK);
    }
    read_events(last_file(), &e); /* while it is open: what was added is there */
    hd_tensorboard_close(board);
    assert_string_equal(e.version, "brain.Event:2");
    assert_int_equal(e.start_step, 0);
    assert_int_equal(e.records, 2 + 5);
    assert_int_equal(e.count, 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(e.values[i].step, steps[i / 2]);
        assert_string_equal(e.values[i].tag, i % 2 ? "train/lr" : "train/loss");
        assert_true(e.values[i].number == (i % 2 ? 1e-3f : 5.5f - (float)(i / 2)));
        assert_true(e.values[i].time >= before && e.values[i].time < before + 60);
    }
}

/* Goal: TensorBoard's tab HPARAMS can read a session (one run with its keys), also one with as many
 * keys as there may be. Method: the start of a session of one key against its bytes by
 * plugin_data.proto and struct.proto; tests/interop has TensorBoard's reader. */
static void a_session_has_its_parameters_and_its_end(void **state)
{
    static const uint8_t wanted[] = {
        1 << 3 | 2, 41,                                /* plugin_data */
        2 << 3 | 2, 30,                                /* its content: HParamsPluginData */
        3 << 3 | 2, 26,                                /* session_start_info */
        1 << 3 | 2, 15,                                /* hparams: an entry of a map */
        1 << 3 | 2, 2,  'l', 'r',                      /* key */
        2 << 3 | 2, 9,                                 /* value */
        2 << 3 | 1, 0,  0,   0,   0, 0, 0, 0xe0, 0x3f, /* number_value 0.5 = 0x3fe0 << 48 */
        5 << 3 | 1};                                   /* start_time_secs, 8 bytes follow */
    struct hd_hparam one = {.key = "lr", .number = 0.5}, many[HD_TENSORBOARD_HPARAMS_MAX];
    struct hd_tensorboard *board = open_board(1, 0);
    static struct events e;
    char key[HD_TENSORBOARD_TAG_MAX + 1], text[2 * HD_TENSORBOARD_TEXT_MAX];

    memset(key, 'k', sizeof key - 1);
    memset(text, 't', sizeof text - 1);
    memcpy(text + HD_TENSORBOARD_TEXT_MAX - 1, "\xc3\xa4", 2); /* a character that the limit cuts */
    key[sizeof key - 1] = text[sizeof text - 1] = '\0';
    for (size_t i = 0; i < HD_TENSORBOARD_HPARAMS_MAX; i++)
        many[i] = (struct hd_hparam){.key = key, .text = text};
    assert_int_equal(hd_tensorboard_begin_session(board, &one, 1), HD_OK);
    assert_int_equal(hd_tensorboard_begin_session(board, many, HD_TENSORBOARD_HPARAMS_MAX), HD_OK);
    assert_int_equal(hd_tensorboard_end_session(board), HD_OK);
    hd_tensorboard_close(board);
    read_events(last_file(), &e);
    assert_int_equal(e.count, 3);
    assert_string_equal(e.values[0].tag, "_hparams_/session_start_info");
    assert_memory_equal(e.values[0].metadata, wanted, sizeof wanted);
    /* an entry: key 2 + 64, value 2 + 2 + 119, for the character of two bytes at 119 is left out, its
     * own head 3 (189 needs two bytes of length) */
    assert_in_range(e.values[1].metadata_bytes, HD_TENSORBOARD_HPARAMS_MAX * (189 + 3),
                    HD_TENSORBOARD_HPARAMS_MAX * (189 + 3) + 63);
    assert_string_equal(e.values[2].tag, "_hparams_/session_end_info");
}

static void the_largest_call_fits_and_odd_numbers_survive(void **state)
{
    struct hd_scalar scalars[HD_TENSORBOARD_SCALARS_MAX];
    char tag[HD_TENSORBOARD_TAG_MAX + 1];
    struct hd_tensorboard *board = open_board(1, 0);
    static struct events e;

    memset(tag, 't', sizeof tag);
    tag[sizeof tag - 1] = '\0';
    for (int i = 0; i < HD_TENSORBOARD_SCALARS_MAX; i++)
        scalars[i] = (struct hd_scalar){tag, i == 0 ? NAN : i == 1 ? INFINITY : -1e30};
    assert_int_equal(hd_tensorboard_add(board, 1, scalars, HD_TENSORBOARD_SCALARS_MAX), HD_OK);
    hd_tensorboard_close(board);
    read_events(last_file(), &e);
    assert_int_equal(e.count, HD_TENSORBOARD_SCALARS_MAX);
    assert_true(isnan(e.values[0].number) && isinf(e.values[1].number));
    assert_true(e.values[15].number == -1e30f);
    assert_string_equal(e.values[15].tag, tag);
}

/* Goal: a text is one string of the text plugin, and of a long one whole characters are written.
 * Method: a text of 16,383 bytes with a character of two bytes behind them, of which one would fit. */
static void a_text_is_a_string_of_the_text_plugin(void **state)
{
    static char longest[HD_TENSORBOARD_SAMPLE_MAX + 2];
    struct hd_tensorboard *board = open_board(1, 0);
    struct events e;

    memset(longest, 'x', sizeof longest);
    memcpy(longest + HD_TENSORBOARD_SAMPLE_MAX - 1, "\xc3\xa9", 3);
    assert_int_equal(hd_tensorboard_add_text(board, 20, "samples/1", "a\nb"), HD_OK);
    assert_int_equal(hd_tensorboard_add_text(board, 40, "samples/1", longest), HD_OK);
    hd_tensorboard_close(board);
    read_events(last_file(), &e);
    assert_int_equal(e.count, 2);
    assert_int_equal(e.values[0].step, 20);
    assert_string_equal(e.values[0].tag, "samples/1");
    assert_string_equal(e.values[0].text, "a\nb");
    assert_true(e.values[0].number == 1);
    read_metadata(e.values[0].metadata);
    assert_int_equal(e.values[1].text_bytes, HD_TENSORBOARD_SAMPLE_MAX - 1);
}

/* Goal: TensorBoard drops what the attempt before wrote behind its checkpoint, and reads the files
 * in the order of attempts, 10 behind 9, also when all begin within one second. */
static void a_later_attempt_says_where_it_starts_and_is_read_later(void **state)
{
    const struct hd_scalar loss = {"train/loss", 1};
    static struct events e;

    for (int64_t attempt = 1; attempt <= 10; attempt++) {
        struct hd_tensorboard *board = open_board(attempt, attempt * 20);

        assert_int_equal(hd_tensorboard_add(board, attempt * 20 + 1, &loss, 1), HD_OK);
        hd_tensorboard_close(board);
        read_events(last_file(), &e);
        assert_int_equal(e.start_step, attempt * 20 + 1); /* step 20's values are kept */
        assert_int_equal(e.values[0].step, attempt * 20 + 1);
    }
}

static void a_killed_rank_loses_nothing_that_was_added(void **state)
{
    static struct events e;
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct hd_tensorboard *board = NULL;

        if (hd_tensorboard_open(dir, 1, 0, &board))
            _exit(1);
        for (int64_t step = 1; step <= 50; step++)
            if (hd_tensorboard_add(board, step, &(struct hd_scalar){"train/loss", 2}, 1))
                _exit(1);
        (void)raise(SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    read_events(last_file(), &e);
    assert_int_equal(e.count, 50);
    assert_int_equal(e.values[49].step, 50);
}

/* Goal: a disk that is full for a while costs the numbers of that while. Method: a limit on the
 * size of files cuts a record in two; then it goes. */
static void a_full_disk_tears_no_record(void **state)
{
    struct hd_tensorboard *board = open_board(1, 0);
    const struct hd_scalar loss = {"train/loss", 3};
    struct rlimit old, small;
    struct hd_text bytes = {0};
    static struct events e;

    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(hd_tensorboard_add(board, 1, &loss, 1), HD_OK);
    assert_int_equal(hd_file_read(last_file(), 1 << 20, &bytes), HD_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = bytes.len_bytes + 30, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int64_t step = 2; step <= 5; step++) {
        assert_int_equal(hd_tensorboard_add(board, step, &loss, 1), HD_STORAGE);
        assert_non_null(strstr(hd_err_message(), "events.out.tfevents."));
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    read_events(last_file(), &e);
    assert_int_equal(e.count, 1);
    assert_int_equal(hd_tensorboard_add(board, 6, &loss, 1), HD_OK);
    hd_tensorboard_close(board);
    read_events(last_file(), &e);
    assert_int_equal(e.count, 2);
    assert_int_equal(e.values[1].step, 6);
    hd_text_free(&bytes);
}

static void a_folder_that_cannot_be_made_is_tried_again(void **state)
{
    const struct hd_scalar loss = {"train/loss", 3};
    struct hd_tensorboard *board = open_board(1, 0);
    static struct events e;
    char job[96];

    (void)snprintf(job, sizeof job, "%s/job", folder);
    assert_int_equal(hd_file_write_atomic(job, "", 0, 0644), HD_OK); /* a file in its place */
    assert_int_not_equal(hd_tensorboard_add(board, 1, &loss, 1), HD_OK);
    assert_int_equal(unlink(job), 0);
    assert_int_equal(hd_tensorboard_add(board, 2, &loss, 1), HD_OK);
    hd_tensorboard_close(board);
    read_events(last_file(), &e);
    assert_string_equal(e.version, "brain.Event:2");
    assert_int_equal(e.count, 1);
}

RUN_EACH_CASE_WITH(make_folder, drop_folder)
