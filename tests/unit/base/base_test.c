/* base: the promises of the bottom room. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/notify.h"
#include "base/random.h"
#include "base/status.h"
#include "base/text.h"
#include "base/uid.h"
#include "base/user.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

/* Goal: the generator is the published one. Method: the known answers of Random123 for
 * Philox4x32-10. */
static void philox_gives_the_published_answers(void **state)
{
    uint32_t r[4];

    hd_random_philox(0, 0, 0, r);
    assert_int_equal(r[0], 0x6627e8d5);
    assert_int_equal(r[1], 0xe169c58d);
    assert_int_equal(r[2], 0xbc57ac4c);
    assert_int_equal(r[3], 0x9b00dbd8);
    hd_random_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, r);
    assert_int_equal(r[0], 0x408f276d);
    assert_int_equal(r[1], 0x41c83b0e);
    assert_int_equal(r[2], 0xa20bc7c6);
    assert_int_equal(r[3], 0x6d5451fd);
}

static void permutation_visits_everything_once(void **state)
{
    static const uint64_t counts[] = {1, 2, 3, 5, 17, 64, 1000, 4097};

    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        unsigned char *seen = calloc(counts[c], 1);

        assert_non_null(seen);
        for (uint64_t i = 0; i < counts[c]; i++) {
            uint64_t p = hd_random_permute(7, counts[c], i);

            assert_true(p < counts[c]);
            assert_int_equal(seen[p]++, 0);
        }
        free(seen);
    }
}

/* Goal: weights start with the spread that was asked for. Method: moments of 100000 samples; the
 * standard error of the mean is 1/316, of the variance sqrt(2)/316; five of them are allowed. */
static void normal_numbers_have_mean_0_and_variance_1(void **state)
{
    double sum = 0, squares = 0;
    const int n = 100000;

    for (int i = 0; i < n; i++) {
        double x = hd_random_normal(hd_random_key(1, hd_random_hash("w")), (uint64_t)i);

        sum += x;
        squares += x * x;
    }
    assert_true(sum / n < 5 / 316.0 && sum / n > -5 / 316.0);
    assert_true(squares / n - 1 < 5 * 1.42 / 316 && squares / n - 1 > -5 * 1.42 / 316);
}

static void utf8_refuses_what_the_rfc_refuses(void **state)
{
    assert_true(hd_text_is_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 10));
    assert_false(hd_text_is_utf8("\xff\xfe", 2));
    assert_false(hd_text_is_utf8("\xC0\x80", 2));         /* overlong */
    assert_false(hd_text_is_utf8("\xED\xA0\x80", 3));     /* surrogate */
    assert_false(hd_text_is_utf8("\xF4\x90\x80\x80", 4)); /* above U+10FFFF */
    assert_false(hd_text_is_utf8("\xE2\x82", 2));         /* cut short */
    assert_false(hd_text_is_utf8("a\0b", 3));
}

static void an_end_is_found_at_the_end_alone(void **state)
{
    assert_true(hd_text_ends("a.npy", ".npy"));
    assert_false(hd_text_ends("a.npyx", ".npy"));
    assert_false(hd_text_ends("npy", ".npy")); /* shorter than what is looked for */
}

static void arena_keeps_its_limit_and_remembers_failure(void **state)
{
    struct hd_arena arena;

    hd_arena_init(&arena, 1000);
    assert_non_null(hd_arena_alloc(&arena, 900));
    assert_null(hd_arena_alloc(&arena, 200));
    assert_true(hd_arena_failed(&arena));
    assert_null(hd_arena_alloc(&arena, 1));
    hd_arena_done(&arena);
    assert_null(hd_arena_array(&arena, SIZE_MAX / 2, 4));
    hd_arena_done(&arena);
}

static void atomic_write_replaces_whole_files(void **state)
{
    char dir[] = "/tmp/heddle-base-XXXXXX", path[64];
    struct hd_text text = {0};
    int a, b;

    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/x/y", dir);
    assert_int_equal(hd_file_make_dirs(path, 0700), HD_OK);
    (void)snprintf(path, sizeof path, "%s/x/y/f", dir);
    assert_int_equal(hd_file_write_atomic(path, "one", 3, 0600), HD_OK);
    assert_int_equal(hd_file_write_atomic(path, "two!", 4, 0600), HD_OK);
    assert_int_equal(hd_file_read(path, 100, &text), HD_OK);
    assert_string_equal(text.data, "two!");
    hd_text_clear(&text);
    assert_int_equal(hd_file_read(path, 3, &text), HD_LIMIT);
    assert_int_equal(hd_file_lock(path, &a), HD_OK);
    assert_int_equal(hd_file_lock(path, &b), HD_CONFLICT);
    close(a);
    hd_text_free(&text);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    assert_false(hd_file_exists(dir));
}

/* The kernel is asked twice, with some bytes between that others may take or give meanwhile. */
static void room_is_what_the_file_system_has(void **state)
{
    struct statvfs fs;

    assert_int_equal(statvfs("/tmp", &fs), 0);
    assert_int_equal(hd_file_check_space("/tmp", (int64_t)(fs.f_bavail * fs.f_frsize / 2)), HD_OK);
    assert_int_equal(
        hd_file_check_space("/tmp", (int64_t)(fs.f_bfree * fs.f_frsize) + (INT64_C(1) << 40)),
        HD_STORAGE);
    assert_non_null(strstr(hd_err_message(), "no space: "));
    assert_non_null(strstr(hd_err_message(), " free in /tmp"));
    assert_int_equal(hd_file_check_space("/tmp/not/there/yet", 1), HD_OK);
    assert_int_equal(hd_file_check_space("/tmp/not/there/yet", INT64_C(1) << 60), HD_STORAGE);
    assert_int_equal(hd_file_check_space("nothing", 1), HD_OK); /* in the working directory */
}

/* In a child: what is 100 KiB does not fit a limit of 64 KiB. */
static void a_limit_on_file_sizes_is_told_and_kills_nobody(void **state)
{
    static const char zeros[100 * 1024];
    const struct rlimit small = {64 * 1024, 64 * 1024};
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 8];
    int status;
    pid_t child;

    temporary_dir(dir, "heddle-limit");
    (void)snprintf(path, sizeof path, "%s/f", dir);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        hd_file_ignore_size_signal();
        _exit(setrlimit(RLIMIT_FSIZE, &small) == 0 &&
                      hd_file_write_atomic(path, zeros, sizeof zeros, 0600) == HD_STORAGE &&
                      strstr(hd_err_message(), "LimitFSIZE=")
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

/* Goal: an error that may pass without a change of the job is told from one that will not. */
static void errors_that_pass_are_told_apart(void **state)
{
    static const int passing[] = {ENOSPC, EDQUOT, EFBIG, EROFS, EIO, ESTALE};
    static const int lasting[] = {EACCES, EPERM, ENOENT, ENOTDIR, ELOOP};

    for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++)
        assert_int_equal(hd_file_write_status(passing[i]), HD_STORAGE);
    for (size_t i = 0; i < sizeof lasting / sizeof lasting[0]; i++)
        assert_int_equal(hd_file_write_status(lasting[i]), HD_IO);
}

/* Goal: a folder below another is made where its path says. Method: a link, a dangling link and a
 * file in the way, at each place. */
/* Not to be tried again; of a file that the user's rights would let it read, a lock of the process
 * is the reason. */
static void who_may_not_read_a_file_is_told_what_helps(void **state)
{
    char uid[32];

    (void)snprintf(uid, sizeof uid, "uid %u", (unsigned)geteuid());
    assert_int_equal(hd_file_cannot_open("the data file ", "/no/such", EACCES), HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "the data file /no/such: permission denied for "));
    assert_non_null(strstr(hd_err_message(), uid));
    assert_non_null(strstr(hd_err_message(), "let that user read the file"));
    assert_int_equal(hd_file_cannot_open("", "/proc/self/stat", EACCES), HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "the sandbox of this rank denies it"));
    assert_int_equal(hd_file_cannot_open("", "/no/such", ENOENT), HD_NOT_FOUND);
    assert_int_equal(hd_file_cannot_open("", "/no/such", EIO), HD_IO);
}

/* A folder in the way is told with its owner; a file that cannot be made, with its folder's. */
static void a_denied_path_is_told_with_whose_it_is(void **state)
{
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 16], expected[128], why[HD_FILE_WHY_MAX];

    temporary_dir(dir, "heddle-denied");
    (void)snprintf(path, sizeof path, "%s/absent", dir);
    assert_int_equal(chmod(dir, 0500), 0);
    (void)snprintf(expected, sizeof expected, "%s belongs to uid %u (mode 0500)", dir,
                   (unsigned)geteuid());
    errno = EINTR;
    assert_non_null(strstr(hd_file_explain(EACCES, dir, why), expected));
    assert_non_null(strstr(hd_file_explain(EPERM, path, why), expected));
    assert_int_equal(errno, EINTR);
    assert_string_equal(hd_file_explain(ENOSPC, path, why), strerror(ENOSPC));
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

static void folders_below_another_are_made_through_no_link(void **state)
{
    static const char *const paths[] = {"7/a/b", "8/a", "9/a", "5/link/a"};
    char base[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 16], other[TEMPORARY_BYTES + 16];

    temporary_dir(base, "base_test");
    assert_int_equal(hd_file_make_dirs_below(base, "5/deep/er", 0750), HD_OK);
    assert_int_equal(hd_file_make_dirs_below(base, "5/deep/er", 0750), HD_OK);
    (void)snprintf(path, sizeof path, "%s/5/deep/er", base);
    assert_true(hd_file_exists(path));
    (void)snprintf(other, sizeof other, "%s/other", base);
    assert_int_equal(hd_file_make_dirs(other, 0755), HD_OK);
    (void)snprintf(path, sizeof path, "%s/7", base);
    assert_int_equal(symlink(other, path), 0);
    (void)snprintf(path, sizeof path, "%s/8", base);
    assert_int_equal(symlink("nowhere", path), 0);
    (void)snprintf(path, sizeof path, "%s/9", base);
    assert_int_equal(hd_file_write_atomic(path, "x", 1, 0644), HD_OK);
    (void)snprintf(path, sizeof path, "%s/5/link", base);
    assert_int_equal(symlink(other, path), 0);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        assert_int_equal(hd_file_make_dirs_below(base, paths[i], 0750), HD_CONFLICT);
        assert_non_null(strstr(hd_err_message(), "exists and is a link or a file"));
    }
    (void)snprintf(path, sizeof path, "%s/5/link exists", base); /* which part it is */
    assert_non_null(strstr(hd_err_message(), path));
    assert_int_equal(rmdir(other), 0); /* nothing was made in it */
    assert_int_equal(hd_file_remove_tree(base), HD_OK);
}

/* Method: a pipe, of which one part is there at once, and the other when the first has been read.
 */
static void a_stream_is_read_to_its_end(void **state)
{
    struct hd_text text = {0};
    char path[64];
    int ends[2];
    pid_t writer;

    assert_int_equal(pipe(ends), 0);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    writer = fork();
    assert_true(writer >= 0);
    if (writer == 0) {
        int unread = 1;

        if (write(ends[1], "sesame", 6) != 6)
            _exit(1);
        while (unread && !ioctl(ends[0], FIONREAD, &unread))
            (void)sched_yield();
        _exit(write(ends[1], " open", 5) != 5);
    }
    assert_int_equal(close(ends[1]), 0);
    assert_int_equal(hd_file_read_stream(path, 100, HD_FILE_PATIENCE_MS, &text), HD_OK);
    assert_string_equal(text.data, "sesame open");
    assert_int_equal(waitpid(writer, NULL, 0), writer);
    assert_int_equal(close(ends[0]), 0);
    hd_text_free(&text);
    assert_int_equal(hd_file_read_stream("/dev/null", 100, HD_FILE_PATIENCE_MS, &text), HD_OK);
    assert_string_equal(text.data, "");
    hd_text_free(&text);
}

/* Goal: a folder that another user writes neither holds nor misleads who reads and removes it. */
static void what_is_no_regular_file_is_not_waited_for(void **state)
{
    char dir[] = "/tmp/heddle-file-XXXXXX", path[64], kept[64];
    struct hd_text text = {0};
    int fd;

    assert_non_null(mkdtemp(dir));
    (void)snprintf(kept, sizeof kept, "%s.kept", dir);
    assert_int_equal(hd_file_make_dirs(kept, 0700), HD_OK);
    (void)snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(hd_file_read(path, 100, &text), HD_INVALID);
    assert_int_equal(hd_file_open_regular("", path, &fd), HD_INVALID);
    assert_int_equal(hd_file_open_regular("", dir, &fd), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "is a folder, not a file"));
    assert_int_equal(hd_file_open_regular("the file ", "/nowhere/a", &fd), HD_NOT_FOUND);
    assert_non_null(strstr(hd_err_message(), "cannot open the file /nowhere/a"));
    assert_int_equal(hd_file_check_regular(path), HD_INVALID);
    assert_int_equal(hd_file_check_regular(dir), HD_INVALID);
    assert_int_equal(hd_file_check_regular("/dev/null"), HD_INVALID);
    assert_int_equal(hd_file_check_regular("/proc/version"), HD_OK);
    assert_int_equal(hd_file_read_stream(path, 100, 1, &text), HD_INVALID); /* no one writes */
    assert_int_equal(hd_file_read(dir, 100, &text), HD_INVALID);
    assert_int_equal(hd_file_read("/dev/zero", 100, &text), HD_INVALID);
    assert_int_equal(hd_file_write_atomic(path, "x", 1, 0600), HD_INVALID);
    (void)snprintf(path, sizeof path, "%s/file.part.%d", dir, (int)getpid());
    assert_int_equal(mkfifo(path, 0600), 0); /* where hd_file_write_atomic writes first */
    (void)snprintf(path, sizeof path, "%s/file", dir);
    assert_int_equal(hd_file_write_atomic(path, "x", 1, 0600), HD_IO);
    (void)snprintf(path, sizeof path, "%s/link", dir);
    assert_int_equal(symlink(kept, path), 0);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    assert_false(hd_file_exists(dir));
    assert_true(hd_file_exists(kept)); /* a link goes, and what it names stays */
    assert_int_equal(symlink(kept, dir), 0);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    assert_true(hd_file_exists(kept));
    assert_int_equal(hd_file_remove_tree(kept), HD_OK);
    hd_text_free(&text);
}

/* Goal: what is not meant as a umask is not taken for one. Method: the umask before and after. */
static void a_umask_is_three_octal_digits(void **state)
{
    static const char *const wrong[] = {"", "9", "027x", "-1", "0777", "100", "rwx", " 22"};
    const mode_t before = umask(0077);

    assert_int_equal(hd_file_set_umask(NULL), HD_OK); /* more than the default stays */
    assert_int_equal(umask(0022), 0077);
    assert_int_equal(hd_file_set_umask(NULL), HD_OK);
    assert_int_equal(umask(0077), 0027);
    assert_int_equal(hd_file_set_umask("022"), HD_OK); /* whoever says it means it */
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(hd_file_set_umask(wrong[i]), HD_INVALID);
    assert_int_equal(umask(before), 0022);
}

/* ---- systemd ---- */

static void expect_datagram(int fd, const char *text)
{
    char datagram[1024];
    const ssize_t n = recv(fd, datagram, sizeof datagram - 1, MSG_DONTWAIT);

    assert_true(n >= 0);
    datagram[n] = '\0';
    assert_string_equal(datagram, text);
}

/* Goal: systemd reads what sd_notify(3) says. Method: a socket in its place. */
static void systemd_is_told_in_its_own_words(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[TEMPORARY_BYTES], datagram[1024];
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ssize_t n;

    temporary_dir(folder, "base_test");
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", folder);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    hd_notify_ready(); /* to no one */
    assert_int_equal(setenv("NOTIFY_SOCKET", address.sun_path, 1), 0);
    hd_notify_ready();
    expect_datagram(fd, "READY=1");
    hd_notify_status("3 jobs\nMAINPID=1\033[2J");
    expect_datagram(fd, "STATUS=3 jobs MAINPID=1 [2J"); /* one line: no message of its own */
    hd_notify_reloading();
    n = recv(fd, datagram, sizeof datagram - 1, MSG_DONTWAIT);
    assert_true(n > 0);
    datagram[n] = '\0';
    assert_int_equal(strncmp(datagram, "RELOADING=1\nMONOTONIC_USEC=", 27), 0);
    assert_true(strtoll(datagram + 27, NULL, 10) / 1000 <= hd_clock_now_ms());
    hd_notify_stopping();
    expect_datagram(fd, "STOPPING=1");
    assert_int_equal(recv(fd, datagram, sizeof datagram, MSG_DONTWAIT), -1);
    assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
    (void)close(fd);
    assert_int_equal(hd_file_remove_tree(folder), HD_OK);
}

static void numbers_are_read_whole_or_not_at_all(void **state)
{
    int64_t i = 0;
    double d = 0;

    assert_int_equal(hd_text_to_int64("42", 0, 100, &i), HD_OK);
    assert_int_equal(i, 42);
    assert_int_equal(hd_text_to_int64("42x", 0, 100, &i), HD_INVALID);
    assert_int_equal(hd_text_to_int64("", 0, 100, &i), HD_INVALID);
    assert_int_equal(hd_text_to_int64("101", 0, 100, &i), HD_INVALID);
    assert_int_equal(hd_text_to_bytes("512M", 1, &i), HD_OK);
    assert_int_equal(i, 512LL << 20);
    assert_int_equal(hd_text_to_bytes("512MiB", 1, &i), HD_OK);
    assert_int_equal(i, (int64_t)512 << 20);
    assert_int_equal(hd_text_to_bytes("512iB", 1, &i), HD_INVALID);
    assert_int_equal(hd_text_to_bytes("512MB", 1, &i), HD_INVALID); /* of 1000 or of 1024? */
    assert_int_equal(hd_text_to_bytes("iB", 1, &i), HD_INVALID);
    assert_int_equal(hd_text_to_bytes("3", 1, &i), HD_OK);
    assert_int_equal(i, 3);
    assert_int_equal(hd_text_to_bytes("2T", 1, &i), HD_OK);
    assert_int_equal(i, 2LL << 40);
    assert_int_equal(hd_text_to_bytes("1K", 1025, &i), HD_INVALID);
    assert_int_equal(hd_text_to_bytes("9000000T", 1, &i), HD_INVALID); /* 2^63 and more */
    assert_int_equal(hd_text_to_bytes("G", 1, &i), HD_INVALID);
    assert_int_equal(hd_text_to_bytes("", 1, &i), HD_INVALID);
    assert_int_equal(hd_text_to_bytes("1.5G", 1, &i), HD_INVALID);
    assert_int_equal(hd_text_to_double("1e-3", 0, 1, &d), HD_OK);
    assert_int_equal(hd_text_to_double("nan", 0, 1, &d), HD_INVALID);
}

/* A second later; the machine's clock is `ahead_ms` of the monotonic one. */
static int64_t settle_next(struct hd_clock_settled *clock, int64_t ahead_ms, int64_t *mono_ms)
{
    *mono_ms += 1000;
    return hd_clock_settle(clock, *mono_ms + ahead_ms, *mono_ms);
}

/* Jumps of the machine's clock, and what the settled one shows then. */
static void a_settled_clock_is_not_ahead_by_mistake(void **state)
{
    enum { HOUR = 3600 * 1000, SECOND = 1000 };
    const int64_t day = 24 * (int64_t)HOUR, start = 20000 * day;
    static const struct {
        int64_t jump_ms, stays_ms; /* of the machine's clock, and for how long */
        bool follows;              /* while it lasts, at its end */
    } jumps[] = {
        {SECOND, 10 * SECOND, true},                          /* it is adjusted */
        {INT64_C(25) * 24 * HOUR, 20 * SECOND, false},        /* ahead for a moment */
        {INT64_C(25) * 24 * HOUR, HOUR - 60 * SECOND, false}, /* for less than an hour */
        {INT64_C(25) * 24 * HOUR, HOUR + 60 * SECOND, true},  /* it was right to go ahead */
        {INT64_C(-25) * 24 * HOUR, 20 * SECOND, true},        /* back: less is old then */
    };

    for (size_t i = 0; i < sizeof jumps / sizeof jumps[0]; i++) {
        struct hd_clock_settled clock;
        int64_t mono = 5 * SECOND, shown = 0;
        const int64_t real = start - mono; /* the right time is real + mono */

        hd_clock_settled_begin(&clock, 0, real + mono, mono);
        for (int k = 0; k < 100; k++)
            shown = settle_next(&clock, real, &mono);
        assert_true(shown == real + mono);
        for (int64_t until = mono + jumps[i].stays_ms; mono < until;)
            shown = settle_next(&clock, real + jumps[i].jump_ms, &mono);
        assert_true(shown == real + mono + (jumps[i].follows ? jumps[i].jump_ms : 0));
        shown = settle_next(&clock, real, &mono); /* it is right again */
        assert_true(shown <= real + mono);
        for (int k = 0; k < 3700; k++)
            shown = settle_next(&clock, real, &mono);
        assert_true(shown == real + mono);
    }
}

/* A controller that starts while the clock is ahead knows what it was when it ran last. */
static void a_settled_clock_begins_where_it_ended(void **state)
{
    const int64_t day = 86400 * 1000, known = 20000 * day;
    struct hd_clock_settled clock;

    hd_clock_settled_begin(&clock, known, known + 25 * day, 7000);
    assert_true(hd_clock_settle(&clock, known + 25 * day + 1000, 8000) == known + 1000);
    hd_clock_settled_begin(&clock, known, known + day / 2, 7000); /* it was stopped for a while */
    assert_true(hd_clock_settle(&clock, known + day / 2 + 1000, 8000) == known + day / 2 + 1000);
    hd_clock_settled_begin(&clock, known, known - 25 * day, 7000);
    assert_true(hd_clock_settle(&clock, known - 25 * day + 1000, 8000) == known - 25 * day + 1000);
}

static void spans_and_times_read_like_a_person_says_them(void **state)
{
    char text[HD_CLOCK_TEXT_MAX];

    hd_clock_format_span(245000, text);
    assert_string_equal(text, "4m05s");
    hd_clock_format_utc(1700000000123, text); /* date -u -d @1700000000 */
    assert_string_equal(text, "2023-11-14T22:13:20.123Z");
}

static void a_duration_is_read_from_its_largest_unit_to_its_smallest(void **state)
{
    static const char *const wrong[] = {"",     "90",     "m",     "1.5h",        "-1h", "30m1h",
                                        "1h1h", "1h 30m", "1hour", "9999999999s", "0s",  "2d"};
    int64_t ms = 0;

    assert_int_equal(hd_clock_read_span("1h30m", 1000, 86400000, &ms), HD_OK);
    assert_int_equal(ms, 5400000);
    assert_int_equal(hd_clock_read_span("1d", 1000, 86400000, &ms), HD_OK);
    assert_int_equal(ms, 86400000);
    assert_int_equal(hd_clock_read_span("90s", 1000, 86400000, &ms), HD_OK);
    assert_int_equal(ms, 90000);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (hd_clock_read_span(wrong[i], 1000, 86400000, &ms) != HD_INVALID)
            fail_msg("'%s' was read as %lld ms", wrong[i], (long long)ms);
}

static bool divides_all(const void *about, int64_t number)
{
    return *(const int64_t *)about % number == 0;
}

/* Goal: who reads "use 1, 2 or 4" may take it for all that there is. */
static void a_list_says_whether_it_is_whole(void **state)
{
    const int64_t few = 12, many = 4096;
    char list[HD_TEXT_LIST_MAX];

    hd_text_list_near(divides_all, &few, few, 5, list);
    assert_string_equal(list, "1, 2, 3, 4, 6 or 12");
    hd_text_list_near(divides_all, &many, many, 3, list);
    assert_string_equal(list, "1, 2, 4, 8, 16, 32, 64 or 128, among others");
    hd_text_list_near(divides_all, &many, many, 4096, list);
    assert_string_equal(list, "32, 64, 128, 256, 512, 1024, 2048 or 4096, among others");
    hd_text_list_near(divides_all, &many, 0, 1, list);
    assert_string_equal(list, "");
}

/* A user of jobs may be: one spelling of a number, no option of a program, never root. */
static void words_that_name_no_user_of_jobs_are_refused(void **state)
{
    static const struct {
        const char *word;
        enum hd_status st;
    } words[] = {
        {"ann", HD_OK},         {"svc-1.x_y@lab", HD_OK},
        {"uid:1001", HD_OK},    {"uid:4294967294", HD_OK},
        {"root", HD_DENIED},    {"uid:0", HD_DENIED},
        {"uid:00", HD_INVALID}, {"uid:01", HD_INVALID},
        {"uid:-1", HD_INVALID}, {"uid:+1", HD_INVALID},
        {"uid:", HD_INVALID},   {"uid:4294967295", HD_INVALID},
        {"uid:1 ", HD_INVALID}, {"0", HD_INVALID},
        {"1001", HD_INVALID},   {"", HD_INVALID},
        {"-u", HD_INVALID},     {".x", HD_INVALID},
        {"a b", HD_INVALID},    {"a:b", HD_INVALID},
        {"../x", HD_INVALID},
    };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (hd_user_check(words[i].word) != words[i].st)
            fail_msg("\"%s\"", words[i].word);
}

/* Reads a file as the user of this process. */
static enum hd_status read_owned(const char *path, const char *dir)
{
    struct hd_text text = {0};
    mode_t mode;
    enum hd_status st = hd_user_read_file(path, 100, 1000, dir, &mode, &text);

    hd_text_free(&text);
    return st;
}

/* Returns what read_owned tells a process of `uid` of a file in `folder`, which that user need not be able to reach;
 * with_dir: the file belongs to the folder as a state directory. */
static enum hd_status check_owner_as(uid_t uid, const char *folder, const char *file, bool with_dir)
{
    const pid_t pid = fork();
    int status = 0;

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(chdir(folder) || setresuid(uid, uid, uid)
                  ? 255
                  : (int)read_owned(file, with_dir ? "." : NULL));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 255);
    return (enum hd_status)WEXITSTATUS(status);
}

static void a_file_of_rules_belongs_to_root_or_to_its_reader(void **state)
{
    enum { ANN = 12345, BOB = 12346 };
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 16];

    if (geteuid() != 0) {
        print_message("skip: only root gives files to others\n");
        skip();
    }
    temporary_dir(dir, "heddle-owner");
    (void)snprintf(path, sizeof path, "%s/file", dir);
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(hd_file_write_atomic(path, "x", 1, 0644), HD_OK);
    assert_int_equal(check_owner_as(ANN, dir, "file", true), HD_OK); /* root's */
    assert_int_equal(chown(path, ANN, -1), 0);
    assert_int_equal(check_owner_as(ANN, dir, "file", true), HD_OK);
    assert_int_equal(check_owner_as(BOB, dir, "file", true), HD_DENIED);
    assert_int_equal(check_owner_as(BOB, dir, "file", false), HD_DENIED);
    assert_int_equal(read_owned(path, NULL), HD_OK); /* root shows ann's token */
    assert_int_equal(read_owned(path, dir), HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "belongs to user 12345"));
    assert_non_null(strstr(hd_err_message(), "chown root"));
    assert_int_equal(chown(dir, ANN, -1), 0); /* who can change the database as well */
    assert_int_equal(read_owned(path, dir), HD_OK);
    assert_int_equal(check_owner_as(BOB, dir, "file", true), HD_DENIED);
    assert_int_equal(check_owner_as(BOB, dir, "/dev/null", true), HD_OK);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

static void a_user_is_named_by_a_number(void **state)
{
    char name[HD_UID_NAME_MAX];

    assert_true(hd_uid_name(0, name));
    assert_string_equal(name, "root");
    assert_false(hd_uid_name(4123456789, name)); /* no machine gives this number to a user */
    assert_string_equal(name, "4123456789");
}

/* Maps as Linux shows them: of a machine, of a container with 65,536 users, of one user. */
static void a_map_of_users_is_whole_or_not(void **state)
{
    assert_true(hd_user_map_is_whole("         0          0 4294967295\n"));
    assert_false(hd_user_map_is_whole("         0     100000      65536\n"));
    assert_false(hd_user_map_is_whole("      1000       1000          1\n"));
    assert_false(hd_user_map_is_whole(""));
}

RUN_CASES()
