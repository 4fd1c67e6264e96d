/* Requests to heddle-launcher at random: what is accepted has what its deed needs, a user whose
 * name systemd and the shell take for nothing else and who is not root, arguments without control
 * characters, and no variable by which a program loads code. */
#include <stdlib.h>
#include <string.h>

#include "daemon/launcher/request.h"
#include "tests/fuzz/driver.h"

static const char *const seeds[] = {
    "heddle-launch 1\njob 7\nattempt 2\numask 027\nenv NCCL_DEBUG=WARN\narg --job\narg /j/7/job\n",
    "heddle-launch 1\njob 1\nattempt 1\nenv TZ=UTC\nenv HEDDLE_LOG=debug\narg a\n",
    "heddle-launch 2\njob 1\n",
    "heddle-launch 1\nuser ann\njob 7\nattempt 2\narg a\n",
    "heddle-launch 1\ndo find\nuser uid:1001\n",
    "heddle-launch 1\ndo find\nuser root\n",
    "heddle-launch 1\ndo find\nuser uid:0\n",
    "heddle-launch 1\ndo find\nuser 0\n",
    "heddle-launch 1\ndo kill\njob 7\nattempt 2\nsignal KILL\n",
    "heddle-launch 1\ndo about\n",
};

static void check_user(const char *user)
{
    require(strcmp(user, "root") != 0 && strcmp(user, "uid:0") != 0);
    require(user[0] && user[0] != '-' && strlen(user) <= 64 && !strpbrk(user, "/%$ \t\"'\\;&|,"));
    require(strspn(user, "0123456789") !=
            strlen(user)); /* or it would be an uid that was not checked */
}

static void check(const struct launch_request *r)
{
    const bool about_job = r->deed == REQUEST_START || r->deed == REQUEST_KILL;

    require(!about_job || (r->job > 0 && r->attempt > 0));
    require(r->deed != REQUEST_START || (r->arg_count > 0 && r->arg_count <= REQUEST_ARGS_MAX));
    require(r->deed != REQUEST_FIND || r->user);
    require(r->deed != REQUEST_KILL || r->signal);
    if (r->user)
        check_user(r->user);
    require(strspn(r->umask, "01234567") == strlen(r->umask));
    for (int i = 0; i < r->arg_count; i++)
        for (const char *c = r->args[i]; *c; c++)
            require((unsigned char)*c >= ' ');
    for (int i = 0; i < r->env_count; i++)
        require(strchr(r->env[i], '=') && strncmp(r->env[i], "LD_", 3) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    struct launch_request r;
    char *text = malloc(size_bytes + 1);

    require(text != NULL);
    memcpy(text, bytes, size_bytes);
    text[size_bytes] = '\0';
    if (request_read(text, size_bytes, &r)) {
        require(strlen(hd_err_message()) > 2);
    } else {
        check(&r);
    }
    free(text);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    return fuzz_text_seed(seeds, sizeof seeds / sizeof seeds[0], index, ret_bytes, max_bytes);
}
