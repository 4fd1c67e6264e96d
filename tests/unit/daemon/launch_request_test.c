/* request: what heddle-launcher, which is root, takes from heddled: each line that could make it do
 * more than start a supervisor is refused. */
#include <stdio.h>
#include <string.h>

#include "daemon/launcher/request.h"
#include "tests/program/test.h"

#define START "heddle-launch 1\njob 7\nattempt 2\narg --job\n"

static enum hd_status read_text(const char *text, struct launch_request *ret_request)
{
    static char bytes[REQUEST_BYTES_MAX];

    (void)snprintf(bytes, sizeof bytes, "%s", text);
    return request_read(bytes, strlen(bytes), ret_request);
}

static void a_request_has_what_it_says(void **state)
{
    struct launch_request r;

    assert_int_equal(read_text(START "user ann\numask 077\ngpu /dev/nvidia12\ngpu all\n"
                                     "env NCCL_DEBUG=WARN\narg /srv/job\n",
                               &r),
                     HD_OK);
    assert_int_equal(r.deed, REQUEST_START);
    assert_string_equal(r.user, "ann");
    assert_string_equal(r.umask, "077");
    assert_int_equal(r.gpu_count, 2);
    assert_int_equal(r.env_count, 1);
    assert_int_equal(r.arg_count, 2);
}

static void what_goes_beyond_a_start_is_refused(void **state)
{
    static const struct {
        const char *text;
        enum hd_status st;
    } bad[] = {
        {START "user root\n", HD_DENIED},
        {START "user uid:0\n", HD_DENIED},
        {START "user uid:00\n", HD_INVALID},
        {START "user uid:+0\n", HD_INVALID},
        {START "user 0\n", HD_INVALID},
        {START "user -g\n", HD_INVALID},
        {START "user ann:lab\n", HD_INVALID},
        {START "user ann\nuser bob\n", HD_INVALID},
        {START "env LD_PRELOAD=/x.so\n", HD_INVALID},
        {START "env LD_LIBRARY_PATH=/x\n", HD_INVALID},
        {START "env PATH=/x\n", HD_INVALID},
        {START "env NCCL_DEBUG\n", HD_INVALID},
        {START "gpu /dev/sda\n", HD_INVALID},
        {START "gpu /dev/nvidia\n", HD_INVALID},
        {START "gpu /dev/nvidia0/../sda\n", HD_INVALID},
        {START "gpu /dev/nvidia1000\n", HD_INVALID},
        {START "gpu /dev/nvidiactl\n", HD_INVALID},
        {START "umask 00777\n", HD_INVALID},
        {START "umask 8\n", HD_INVALID},
        {START "umask -\n", HD_INVALID},
        {START "arg a\tb\n", HD_INVALID},
        {START "arg a\x7f\n", HD_INVALID},
        {START "run /bin/sh\n", HD_INVALID},
        {START "do exec\n", HD_INVALID},
        {START "signal TERM\ndo kill\n", HD_INVALID},
        {START "do kill\n", HD_INVALID},
        {"heddle-launch 1\ndo find\n", HD_INVALID},
        {"heddle-launch 1\njob ../7\nattempt 2\narg a\n", HD_INVALID},
        {"heddle-launch 1\njob 0\nattempt 2\narg a\n", HD_INVALID},
        {"heddle-launch 1\njob 7\nattempt -1\narg a\n", HD_INVALID},
        {"heddle-launch 1\njob 7\nattempt 2\n", HD_INVALID},
        {"heddle-launch 1\njob 7\nattempt 2\narg a", HD_INVALID},
        {"heddle-launch 2\njob 7\nattempt 2\narg a\n", HD_UNSUPPORTED},
        {"", HD_UNSUPPORTED},
    };
    struct launch_request r;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (read_text(bad[i].text, &r) != bad[i].st)
            fail_msg("it is taken: %s", bad[i].text);
}

RUN_CASES()
