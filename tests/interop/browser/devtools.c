#include "tests/interop/browser/devtools.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { ANSWER_MS = 60000, MESSAGE_MAX = 64 << 20 };

struct devtools {
    pid_t pid;
    int to, from;
    struct hd_text in; /* received, from `taken` on not yet used */
    size_t taken;
    long last_id;
    char session[80], origin[200];
    struct devtools_seen seen;
    struct hd_arena arena; /* of the newest message */
};

static void die(const char *what)
{
    (void)printf("not ok browser: %s\n", what);
    (void)fflush(stdout);
    exit(1);
}

/* ---- the process ------------------------------------------------------------------------------*/

static pid_t start(const char *chromium, const char *dir, int in, int out)
{
    char profile[512];
    const pid_t pid = fork();

    if (pid)
        return pid;
    (void)snprintf(profile, sizeof profile, "--user-data-dir=%s/profile", dir);
    (void)setenv("HOME", dir, 1);
    /* away from 3 and 4 first, so that neither overwrites the other */
    in = fcntl(in, F_DUPFD, 10);
    out = fcntl(out, F_DUPFD, 10);
    if (in < 0 || out < 0 || dup2(in, 3) < 0 || dup2(out, 4) < 0)
        _exit(126);
    (void)close(in);
    (void)close(out);
    (void)!freopen("/dev/null", "w", stderr);
    (void)!freopen("/dev/null", "w", stdout);
    execlp(chromium, chromium, "--headless=new", "--remote-debugging-pipe", "--no-sandbox",
           "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
           "--disable-background-networking", "--disable-component-update", "--disable-sync",
           "--disable-dev-shm-usage", "--lang=en", profile, "about:blank", (char *)NULL);
    _exit(127);
}

/* ---- messages ---------------------------------------------------------------------------------*/

static void send_text(struct devtools *d, const struct hd_text *text)
{
    const size_t count = text->len_bytes + 1; /* with the NUL */
    size_t sent = 0;

    if (text->failed)
        die("no memory for a message");
    while (sent < count) {
        const ssize_t n = write(d->to, text->data + sent, count - sent);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            die("Chromium has closed its pipe");
        sent += (size_t)n;
    }
}

static long send_command(struct devtools *d, const char *method, const char *params)
{
    struct hd_text text = {0};

    hd_text_add(&text, "{\"id\":%ld,\"method\":\"%s\",\"params\":%s", ++d->last_id, method, params);
    if (*d->session)
        hd_text_add(&text, ",\"sessionId\":\"%s\"", d->session);
    hd_text_add(&text, "}");
    send_text(d, &text);
    hd_text_free(&text);
    return d->last_id;
}

/* The next message, parsed. */
static const struct hd_json *receive(struct devtools *d, int64_t deadline_ms)
{
    static const struct hd_json_limits limits = {.values_max = 1000000, .depth_max = 100};
    const struct hd_json *message = NULL;
    const char *end;
    static char piece[1 << 16];

    while ((end = d->in.len_bytes > d->taken
                      ? memchr(d->in.data + d->taken, '\0', d->in.len_bytes - d->taken)
                      : NULL) == NULL) {
        struct pollfd p = {.fd = d->from, .events = POLLIN};
        const int64_t left_ms = deadline_ms - hd_clock_now_ms();
        ssize_t n;

        if (left_ms <= 0 || poll(&p, 1, (int)left_ms) <= 0)
            die("Chromium did not answer in time");
        n = read(d->from, piece, sizeof piece);
        if (n <= 0)
            die("Chromium has ended");
        hd_text_add_bytes(&d->in, piece, (size_t)n);
        if (d->in.failed || d->in.len_bytes > MESSAGE_MAX)
            die("a message is too large");
    }
    hd_arena_done(&d->arena);
    hd_arena_init(&d->arena, 0);
    if (hd_json_parse(&d->arena, d->in.data + d->taken, (size_t)(end - (d->in.data + d->taken)),
                      &limits, &message))
        die(hd_err_message());
    d->taken = (size_t)(end - d->in.data) + 1;
    if (d->taken == d->in.len_bytes) {
        hd_text_clear(&d->in);
        d->taken = 0;
    }
    return message;
}

static const char *text_of(const struct hd_json *object, const char *key)
{
    const struct hd_json *member = object ? hd_json_member(object, key) : NULL;

    return member && member->kind == HD_JSON_STRING ? member->text : "";
}

/* ---- events -----------------------------------------------------------------------------------*/

static void count_error(struct devtools *d, const char *text)
{
    d->seen.errors++;
    (void)snprintf(d->seen.error, sizeof d->seen.error, "%s", text);
}

/* "j" or "Enter": as a person presses it. */
static void press(struct devtools *d, const char *key)
{
    static const struct {
        const char *key;
        int code;
    } named[] = {{"Enter", 13},      {"Escape", 27},    {"Tab", 9},   {"ArrowLeft", 37},
                 {"ArrowRight", 39}, {"ArrowDown", 40}, {"Home", 36}, {"End", 35}};
    char params[300];
    int code = 0;

    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (strcmp(key, named[i].key) == 0)
            code = named[i].code;
    for (int up = 0; up < 2; up++) {
        if (code)
            (void)snprintf(params, sizeof params,
                           "{\"type\":\"%s\",\"key\":\"%s\",\"code\":\"%s\","
                           "\"windowsVirtualKeyCode\":%d%s}",
                           up ? "keyUp" : "keyDown", key, key, code,
                           code == 13 && !up ? ",\"text\":\"\\r\"" : "");
        else
            (void)snprintf(params, sizeof params, "{\"type\":\"%s\",\"key\":\"%s\"%s%s%s}",
                           up ? "keyUp" : "keyDown", key, up ? "" : ",\"text\":\"", up ? "" : key,
                           up ? "" : "\"");
        (void)send_command(d, "Input.dispatchKeyEvent", params);
    }
}

static void take_event(struct devtools *d, const struct hd_json *message)
{
    const char *method = text_of(message, "method");
    const struct hd_json *params = hd_json_member(message, "params");

    if (strcmp(method, "Runtime.bindingCalled") == 0) {
        press(d, text_of(params, "payload"));
    } else if (strcmp(method, "Runtime.exceptionThrown") == 0) {
        const struct hd_json *details = hd_json_member(params, "exceptionDetails");
        const struct hd_json *thrown = details ? hd_json_member(details, "exception") : NULL;

        count_error(d, thrown ? text_of(thrown, "description") : text_of(details, "text"));
    } else if (strcmp(method, "Log.entryAdded") == 0) {
        const struct hd_json *entry = hd_json_member(params, "entry");

        if (strcmp(text_of(entry, "level"), "error") == 0)
            count_error(d, text_of(entry, "text"));
    } else if (strcmp(method, "Runtime.consoleAPICalled") == 0 &&
               strcmp(text_of(params, "type"), "error") == 0) {
        count_error(d, "console.error");
    } else if (strcmp(method, "Network.requestWillBeSent") == 0) {
        const char *url = text_of(hd_json_member(params, "request"), "url");

        if (strncmp(url, d->origin, strlen(d->origin)) != 0) {
            d->seen.foreign++;
            (void)snprintf(d->seen.foreign_url, sizeof d->seen.foreign_url, "%s", url);
        }
    }
}

/* ---- commands ---------------------------------------------------------------------------------*/

const struct hd_json *devtools_call(struct devtools *d, const char *method, const char *params)
{
    const int64_t deadline_ms = hd_clock_now_ms() + ANSWER_MS;
    const long id = send_command(d, method, params);

    for (;;) {
        const struct hd_json *message = receive(d, deadline_ms), *member, *error;
        int64_t number;

        member = hd_json_member(message, "id");
        if (!member) {
            take_event(d, message);
            continue;
        }
        if (hd_json_to_int64(member, 0, INT64_MAX, &number) || number != id)
            continue; /* of a key press */
        error = hd_json_member(message, "error");
        if (error) {
            (void)printf("# %s: %s\n", method, text_of(error, "message"));
            die("a command failed");
        }
        member = hd_json_member(message, "result");
        return member ? member : message;
    }
}

const char *devtools_evaluate(struct devtools *d, const char *expression, const char **ret_problem)
{
    struct hd_text params = {0};
    struct hd_json_writer w = {.out = &params};
    const struct hd_json *result, *value, *details;

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "expression", expression);
    hd_json_add_bool(&w, "awaitPromise", true);
    hd_json_add_bool(&w, "returnByValue", true);
    hd_json_end(&w, '}');
    result = devtools_call(d, "Runtime.evaluate", params.data);
    hd_text_free(&params);
    details = hd_json_member(result, "exceptionDetails");
    *ret_problem = "it gave no string";
    if (details) {
        const struct hd_json *thrown = hd_json_member(details, "exception");

        *ret_problem = thrown ? text_of(thrown, "description") : text_of(details, "text");
        return NULL;
    }
    value = hd_json_member(hd_json_member(result, "result"), "value");
    return value && value->kind == HD_JSON_STRING ? value->text : NULL;
}

const struct devtools_seen *devtools_look(const struct devtools *d)
{
    return &d->seen;
}

struct devtools *devtools_open(const char *chromium, const char *dir, const char *origin)
{
    struct devtools *d = calloc(1, sizeof *d);
    const struct hd_json *result;
    int in[2], out[2];
    char params[200], target[80];

    if (!d || pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
        die("no pipe");
    (void)signal(SIGPIPE, SIG_IGN);
    hd_arena_init(&d->arena, 0);
    (void)snprintf(d->origin, sizeof d->origin, "%s", origin);
    d->pid = start(chromium, dir, in[0], out[1]);
    if (d->pid < 0)
        die("cannot start Chromium");
    (void)close(in[0]);
    (void)close(out[1]);
    d->to = in[1];
    d->from = out[0];
    result = devtools_call(d, "Target.createTarget", "{\"url\":\"about:blank\"}");
    (void)snprintf(target, sizeof target, "%s", text_of(result, "targetId"));
    (void)snprintf(params, sizeof params, "{\"targetId\":\"%s\",\"flatten\":true}", target);
    result = devtools_call(d, "Target.attachToTarget", params);
    (void)snprintf(d->session, sizeof d->session, "%s", text_of(result, "sessionId"));
    (void)devtools_call(d, "Page.enable", "{}");
    (void)devtools_call(d, "Runtime.enable", "{}");
    (void)devtools_call(d, "Log.enable", "{}");
    (void)devtools_call(d, "Network.enable", "{}");
    (void)devtools_call(d, "Runtime.addBinding", "{\"name\":\"pressKey\"}");
    return d;
}

void devtools_close(struct devtools *d)
{
    d->session[0] = '\0';
    (void)send_command(d, "Browser.close", "{}");
    for (int i = 0; i < 100 && d->pid; i++) {
        if (waitpid(d->pid, NULL, WNOHANG) == d->pid)
            d->pid = 0;
        else
            (void)usleep(50000);
    }
    if (d->pid) {
        (void)kill(d->pid, SIGKILL);
        (void)waitpid(d->pid, NULL, 0);
    }
    (void)close(d->to);
    (void)close(d->from);
    hd_text_free(&d->in);
    hd_arena_done(&d->arena);
    free(d);
}
