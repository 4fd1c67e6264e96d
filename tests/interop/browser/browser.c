/* browser: the dashboard in a headless Chromium, at three widths and in two schemes.
 *
 *   browser CHROMIUM URL CHECKS.js DIR JOB_LIVE JOB_LONG JOB_HUNG
 *
 * CHECKS.js defines `checks`, a list of [view, name, async function]; a function returns "" or what
 * is wrong, and may await pressKey-presses. Each check runs in each size and scheme; a line of the
 * test protocol says whether it held in all of them. Screenshots are written to DIR. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "tests/interop/browser/devtools.h"

enum { CHECKS_MAX = 100, FILE_MAX = 1 << 20 };

static const struct {
    int width, height;
    bool phone;
} sizes[] = {{390, 844, true}, {1280, 860, false}, {2560, 1300, false}};
static const char *const schemes[] = {"light", "dark"};

struct check {
    char view[16], name[96], problem[600];
};

struct run {
    struct devtools *d;
    const char *url, *dir;
    char *source; /* of CHECKS.js, with the numbers of the jobs */
    struct check checks[CHECKS_MAX];
    int count;
};

static void die(const char *what)
{
    (void)printf("not ok browser: %s\n", what);
    (void)fflush(stdout);
    exit(1);
}

static void set_size(struct run *r, int width, int height, bool phone, const char *scheme)
{
    char params[300];

    (void)snprintf(params, sizeof params,
                   "{\"width\":%d,\"height\":%d,\"deviceScaleFactor\":%d,\"mobile\":%s}", width,
                   height, phone ? 2 : 1, phone ? "true" : "false");
    (void)devtools_call(r->d, "Emulation.setDeviceMetricsOverride", params);
    (void)snprintf(params, sizeof params,
                   "{\"features\":[{\"name\":\"prefers-color-scheme\",\"value\":\"%s\"}]}", scheme);
    (void)devtools_call(r->d, "Emulation.setEmulatedMedia", params);
}

/* Loads the page anew, and the checks into it. */
static void load(struct run *r, const char *hash)
{
    const char *problem;
    char params[400];

    (void)devtools_call(r->d, "Page.navigate", "{\"url\":\"about:blank\"}");
    (void)snprintf(params, sizeof params, "{\"url\":\"%s/%s\"}", r->url, hash);
    (void)devtools_call(r->d, "Page.navigate", params);
    for (int i = 0; i < 200; i++) { /* until the document is there */
        const char *state =
            devtools_evaluate(r->d, "document.readyState + location.origin", &problem);

        if (state && strncmp(state, "complete", 8) == 0 && strstr(state, "http"))
            break;
    }
    if (!devtools_evaluate(r->d, r->source, &problem)) {
        (void)printf("# %s\n", problem);
        die("the checks cannot be loaded");
    }
    if (!devtools_evaluate(r->d, "checked.ready()", &problem)) {
        (void)printf("# %s: %s\n", hash, problem);
        die("the page has not loaded");
    }
}

static int digit_of(char c)
{
    const char *all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(all, c) : NULL;

    return at ? (int)(at - all) : -1;
}

static void write_base64(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    unsigned bits = 0;
    int have = 0;

    if (!file)
        die("cannot write a screenshot");
    for (; *text && *text != '='; text++) {
        bits = bits << 6 | (unsigned)digit_of(*text);
        have += 6;
        if (have >= 8) {
            have -= 8;
            (void)fputc((int)(bits >> have & 0xff), file);
        }
    }
    if (fclose(file))
        die("cannot write a screenshot");
}

static void take_shot(struct run *r, const char *view, int width, const char *scheme)
{
    const struct hd_json *data;
    char path[600];

    data = hd_json_member(devtools_call(r->d, "Page.captureScreenshot",
                                        "{\"format\":\"png\",\"captureBeyondViewport\":true}"),
                          "data");
    (void)snprintf(path, sizeof path, "%s/%s-%d-%s.png", r->dir, view, width, scheme);
    if (data)
        write_base64(path, data->text);
}

/* "VIEW NAME\n" of each check. */
static void read_checks(struct run *r)
{
    const char *problem, *list = devtools_evaluate(r->d, "checked.list()", &problem);

    if (!list)
        die(problem);
    while (*list && r->count < CHECKS_MAX) {
        struct check *check = &r->checks[r->count];
        int used = 0;

        if (sscanf(list, "%15s %95s\n%n", check->view, check->name, &used) != 2)
            die("the list of checks cannot be read");
        r->count++;
        list += used;
    }
}

static void run_check(struct run *r, struct check *check, int width, const char *scheme)
{
    const char *problem = NULL, *said;
    char expression[200];

    (void)snprintf(expression, sizeof expression, "checked.run('%s')", check->name);
    said = devtools_evaluate(r->d, expression, &problem);
    if (said && !*said)
        return;
    if (!*check->problem)
        (void)snprintf(check->problem, sizeof check->problem, "%d px, %s: %s", width, scheme,
                       said ? said : problem);
}

static void run_view(struct run *r, const char *view, const char *hash, int width,
                     const char *scheme)
{
    load(r, hash);
    if (!r->count)
        read_checks(r);
    take_shot(r, view, width, scheme);
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->checks[i].view, view) == 0)
            run_check(r, &r->checks[i], width, scheme);
}

static void report(const struct run *r, int *failures)
{
    const struct devtools_seen *seen = devtools_look(r->d);

    for (int i = 0; i < r->count; i++) {
        const struct check *c = &r->checks[i];

        if (*c->problem)
            (void)printf("not ok %s: %s\n", c->name, c->problem);
        else
            (void)printf("ok %s\n", c->name);
        *failures += *c->problem != '\0';
    }
    if (seen->errors)
        (void)printf("not ok the_console_shows_no_error: %d, the last: %s\n", seen->errors,
                     seen->error);
    else
        (void)printf("ok the_console_shows_no_error\n");
    if (seen->foreign)
        (void)printf("not ok nothing_is_asked_of_elsewhere: %d requests, the last: %s\n",
                     seen->foreign, seen->foreign_url);
    else
        (void)printf("ok nothing_is_asked_of_elsewhere\n");
    *failures += (seen->errors > 0) + (seen->foreign > 0);
}

int main(int argc, char **argv)
{
    static struct run r;
    struct hd_text source = {0}, full = {0};
    char hash[64];
    int failures = 0;

    if (argc != 8 || hd_file_read(argv[3], FILE_MAX, &source))
        die("usage: browser CHROMIUM URL CHECKS.js DIR JOB_LIVE JOB_LONG JOB_HUNG");
    hd_text_add(&full, "const jobs = {live: %s, long: %s, hung: %s};\n%s", argv[5], argv[6],
                argv[7], source.data);
    r.url = argv[2];
    r.dir = argv[4];
    r.source = full.data;
    r.d = devtools_open(argv[1], argv[4], argv[2]);
    for (size_t s = 0; s < 2; s++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            set_size(&r, sizes[i].width, sizes[i].height, sizes[i].phone, schemes[s]);
            run_view(&r, "jobs", "#/", sizes[i].width, schemes[s]);
            (void)snprintf(hash, sizeof hash, "#/jobs/%s", argv[5]);
            run_view(&r, "live", hash, sizes[i].width, schemes[s]);
            (void)snprintf(hash, sizeof hash, "#/jobs/%s", argv[6]);
            run_view(&r, "long", hash, sizes[i].width, schemes[s]);
            (void)snprintf(hash, sizeof hash, "#/jobs/%s", argv[7]);
            run_view(&r, "hung", hash, sizes[i].width, schemes[s]);
            (void)snprintf(hash, sizeof hash, "#/compare/%s,%s,%s", argv[6], argv[5], argv[7]);
            run_view(&r, "compare", hash, sizes[i].width, schemes[s]);
            run_view(&r, "nodes", "#/nodes", sizes[i].width, schemes[s]);
            run_view(&r, "events", "#/events", sizes[i].width, schemes[s]);
        }
    report(&r, &failures);
    devtools_close(r.d);
    hd_text_free(&source);
    hd_text_free(&full);
    return failures ? 1 : 0;
}
