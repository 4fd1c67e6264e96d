#include "daemon/launcher/request.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "base/user.h"
#include "daemon/isolation/environment.h"

/* ---- reading ----------------------------------------------------------------------------------*/

static bool is_plain(const char *value)
{
    for (; *value; value++)
        if ((unsigned char)*value < ' ' || *value == 0x7f)
            return false;
    return true;
}

static bool is_gpu(const char *value)
{
    const char *number = value + strlen("/dev/nvidia");

    return strcmp(value, "all") == 0 ||
           (hd_text_starts(value, "/dev/nvidia") && *number && strlen(number) <= 3 &&
            strspn(number, "0123456789") == strlen(number));
}

static const char *const deeds[] = {[REQUEST_START] = "start",
                                    [REQUEST_FIND] = "find",
                                    [REQUEST_KILL] = "kill",
                                    [REQUEST_ABOUT] = "about"};

static enum hd_status take_deed(const char *value, struct launch_request *r)
{
    for (size_t i = 0; i < sizeof deeds / sizeof deeds[0]; i++)
        if (strcmp(value, deeds[i]) == 0) {
            r->deed = (enum request_deed)i;
            return HD_OK;
        }
    return hd_err(HD_INVALID, "the launcher cannot %.32s; install one version of Heddle", value);
}

static enum hd_status take_line(const char *key, const char *value, struct launch_request *r)
{
    if (!is_plain(value))
        return hd_err(HD_INVALID, "a control character in the value of %s", key);
    if (strcmp(key, "job") == 0)
        return hd_text_to_int64(value, 1, INT64_MAX, &r->job);
    if (strcmp(key, "attempt") == 0)
        return hd_text_to_int64(value, 1, INT32_MAX, &r->attempt);
    if (strcmp(key, "do") == 0)
        return take_deed(value, r);
    if (strcmp(key, "user") == 0) {
        if (r->user)
            return hd_err(HD_INVALID, "a second user");
        r->user = value;
        return hd_user_check(value);
    }
    if (strcmp(key, "signal") == 0) {
        r->signal = value;
        return strcmp(value, "KILL") == 0 || strcmp(value, "CONT") == 0 || strcmp(value, "0") == 0
                   ? HD_OK
                   : hd_err(HD_INVALID, "%.32s is no signal that is sent", value);
    }
    if (strcmp(key, "umask") == 0) {
        if (!*value || strlen(value) > 4 || strspn(value, "01234567") != strlen(value))
            return hd_err(HD_INVALID, "%s is no umask", value);
        r->umask = value;
        return HD_OK;
    }
    if (strcmp(key, "env") == 0) {
        if (r->env_count == REQUEST_ENV_MAX || !strchr(value, '=') ||
            !hd_environment_may_travel(value))
            return hd_err(HD_INVALID, "the variable %.64s is not handed on", value);
        r->env[r->env_count++] = value;
        return HD_OK;
    }
    if (strcmp(key, "gpu") == 0) {
        if (r->gpu_count == REQUEST_GPUS_MAX || !is_gpu(value))
            return hd_err(HD_INVALID, "%.64s is no GPU", value);
        r->gpus[r->gpu_count++] = value;
        return HD_OK;
    }
    if (strcmp(key, "arg") != 0)
        return hd_err(HD_INVALID, "unknown line %.32s", key);
    if (r->arg_count == REQUEST_ARGS_MAX)
        return hd_err(HD_INVALID, "more than %d arguments", REQUEST_ARGS_MAX);
    r->args[r->arg_count++] = value;
    return HD_OK;
}

/* Checks that all lines needed for the request's kind are present. */
static enum hd_status check(const struct launch_request *r)
{
    if ((r->deed == REQUEST_START || r->deed == REQUEST_KILL) && (!r->job || !r->attempt))
        return hd_err(HD_INVALID, "job, attempt or arguments are missing");
    if (r->deed == REQUEST_START && !r->arg_count)
        return hd_err(HD_INVALID, "job, attempt or arguments are missing");
    if (r->deed == REQUEST_FIND && !r->user)
        return hd_err(HD_INVALID, "the user is missing");
    if (r->deed == REQUEST_KILL && !r->signal)
        return hd_err(HD_INVALID, "the signal is missing");
    return HD_OK;
}

enum hd_status request_read(char *bytes, size_t count, struct launch_request *ret_request)
{
    static const char first[] = "heddle-launch 1\n";
    struct launch_request r = {.umask = "027"};
    enum hd_status st = HD_OK;
    char *line = bytes;

    if (strlen(bytes) != count)
        return hd_err(HD_INVALID, "a NUL in the request");
    if (!hd_text_starts(bytes, first))
        return hd_err(HD_UNSUPPORTED,
                      "the request is not of form 1; install one version of Heddle");
    for (line += sizeof first - 1; !st && *line;) {
        char *end = strchr(line, '\n'), *blank;

        if (!end)
            return hd_err(HD_INVALID, "the last line has no end");
        *end = '\0';
        blank = strchr(line, ' ');
        if (!blank)
            return hd_err(HD_INVALID, "the line %.32s has no value", line);
        *blank = '\0';
        st = take_line(line, blank + 1, &r);
        line = end + 1;
    }
    if (!st)
        st = check(&r);
    if (!st)
        *ret_request = r;
    return st;
}

/* ---- requests ---------------------------------------------------------------------------------*/

static enum hd_status connect_to(const char *path, int timeout_ms, int *ret_fd)
{
    const struct timeval limit = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof address.sun_path)
        return hd_err(HD_INVALID, "the path of the launcher's socket is too long: %s", path);
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return hd_err(HD_IO, "cannot make a socket: %s", strerror(errno));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        const int error = errno;

        (void)close(fd);
        return hd_err(error == EACCES || error == EPERM ? HD_DENIED : HD_UNAVAILABLE,
                      "heddle-launcher does not answer at %s: %s; start heddle-launcher.socket",
                      path, strerror(error));
    }
    *ret_fd = fd;
    return HD_OK;
}

static void add_start(struct hd_text *text, const char *user, unsigned umask_bits,
                      const char *const *gpus, char *const *args, char *const *env)
{
    if (user)
        hd_text_add(text, "user %s\n", user);
    hd_text_add(text, "umask %03o\n", umask_bits);
    for (; *gpus; gpus++)
        hd_text_add(text, "gpu %s\n", *gpus);
    for (; *env; env++)
        if (hd_environment_may_travel(*env) && is_plain(*env) &&
            /* heddled's own folder, which that user cannot open */
            !(user && hd_text_starts(*env, "CUDA_CACHE_PATH=")))
            hd_text_add(text, "env %s\n", *env);
    for (; *args; args++)
        hd_text_add(text, "arg %s\n", *args);
}

/* Reads the reply. ret_words: the text after "ok", may be "". */
static enum hd_status read_answer(int fd, char ret_words[REQUEST_ANSWER_MAX])
{
    char answer[REQUEST_ANSWER_MAX];
    size_t count = 0;
    ssize_t n;

    while (count < sizeof answer - 1 &&
           ((n = read(fd, answer + count, sizeof answer - 1 - count)) > 0 ||
            (n < 0 && errno == EINTR)))
        count += n > 0 ? (size_t)n : 0;
    answer[count] = '\0';
    if (strchr(answer, '\n') == NULL) /* incomplete reply */
        return hd_err(HD_IO, "heddle-launcher did not answer in time; see its log");
    answer[strcspn(answer, "\n")] = '\0';
    if (hd_text_starts(answer, "ok")) {
        (void)snprintf(ret_words, REQUEST_ANSWER_MAX, "%s", answer + 2 + (answer[2] == ' '));
        return HD_OK;
    }
    if (hd_text_starts(answer, "refused "))
        return hd_err(HD_DENIED, "heddle-launcher: %s", answer + strlen("refused "));
    return hd_err(HD_IO, "heddle-launcher: %s",
                  hd_text_starts(answer, "error ") ? answer + strlen("error ") : answer);
}

/* Sends the request, frees it, and reads the reply. */
static enum hd_status ask(const char *path, struct hd_text *text, int timeout_ms,
                          char ret_words[REQUEST_ANSWER_MAX])
{
    int fd = -1;
    enum hd_status st;

    if (text->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a request to heddle-launcher");
    else if (text->len_bytes > REQUEST_BYTES_MAX)
        st = hd_err(HD_LIMIT, "the environment of heddled is too large to hand on");
    else
        st = connect_to(path, timeout_ms, &fd);
    if (!st)
        st = hd_file_write_all(fd, text->data, text->len_bytes);
    if (!st) {
        (void)shutdown(fd, SHUT_WR);
        st = read_answer(fd, ret_words);
    }
    if (fd >= 0)
        (void)close(fd);
    hd_text_free(text);
    return st;
}

enum hd_status request_start(const char *path, int64_t job, int64_t attempt, const char *user,
                             unsigned umask_bits, const char *const *gpus, char *const *args,
                             char *const *env, int timeout_ms)
{
    char words[REQUEST_ANSWER_MAX];
    struct hd_text text = {0};

    hd_text_add(&text, "heddle-launch 1\njob %" PRId64 "\nattempt %" PRId64 "\n", job, attempt);
    add_start(&text, user, umask_bits, gpus, args, env);
    return ask(path, &text, timeout_ms, words);
}

enum hd_status request_find(const char *path, const char *user, int timeout_ms, uid_t *ret_uid)
{
    char words[REQUEST_ANSWER_MAX];
    struct hd_text text = {0};
    int64_t uid = 0;
    enum hd_status st;

    hd_text_add(&text, "heddle-launch 1\ndo find\nuser %s\n", user);
    st = ask(path, &text, timeout_ms, words);
    if (!st && hd_text_to_int64(words, 1, UINT32_MAX - 1, &uid))
        st = hd_err(HD_IO, "heddle-launcher: \"%.64s\" is no uid", words);
    if (!st)
        *ret_uid = (uid_t)uid;
    return st;
}

enum hd_status request_kill(const char *path, int64_t job, int64_t attempt, const char *signal,
                            int timeout_ms, bool *ret_gone)
{
    char words[REQUEST_ANSWER_MAX];
    struct hd_text text = {0};
    enum hd_status st;

    hd_text_add(&text,
                "heddle-launch 1\ndo kill\njob %" PRId64 "\nattempt %" PRId64 "\nsignal %s\n", job,
                attempt, signal);
    st = ask(path, &text, timeout_ms, words);
    if (!st)
        *ret_gone = strcmp(words, "gone") == 0;
    return st;
}

enum hd_status request_about(const char *path, int timeout_ms, char *ret_whom, size_t size)
{
    char words[REQUEST_ANSWER_MAX];
    struct hd_text text = {0};
    enum hd_status st;

    hd_text_add(&text, "heddle-launch 1\ndo about\n");
    st = ask(path, &text, timeout_ms, words);
    if (!st)
        (void)snprintf(ret_whom, size, "%s", words);
    return st;
}
