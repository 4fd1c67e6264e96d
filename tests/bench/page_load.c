/* page_load: from the start of a navigation to live data in the dashboard, beside waiting jobs.
 *
 *   page_load [JOBS [ROUNDS]]        1,000 jobs, 7 rounds
 *
 * A controller with 100 nodes and so many live jobs (made by scrape --fill), and a headless
 * Chromium that loads the page anew in each round. The page itself says when its first data was
 * shown. The median counts, the bar is a second. Exit code 1: it is missed; 2: Chromium is not
 * installed. Run it on a quiet machine. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/interop/browser/devtools.h"
#include "tests/sorted.h"
#include "tests/temporary.h"

enum { ROUNDS_MAX = 100, LOOKS = 1000, LOOK_US = 10000, BAR_MS = 1000 };

static void stop(const char *what)
{
    (void)fprintf(stderr, "page_load: %s\n", what);
    exit(2);
}

static pid_t start_controller(const char *dir, const char *log)
{
    const pid_t pid = fork();
    char state[TEMPORARY_BYTES + 8], listen[TEMPORARY_BYTES + 16];

    if (pid)
        return pid;
    (void)snprintf(state, sizeof state, "%s/state", dir);
    (void)snprintf(listen, sizeof listen, "unix:%s/c", dir);
    if (!freopen(log, "w", stderr))
        _exit(127);
    execl(HEDDLE_BENCH_BIN "/heddle-controller", "heddle-controller", "--state-dir", state,
          "--listen", listen, "--http", "127.0.0.1:0", "--ephemeral", (char *)NULL);
    _exit(127);
}

/* "http://127.0.0.1:PORT", once the log has it. */
static void find_url(const char *log, char ret_url[100])
{
    for (int i = 0; i < LOOKS; i++) {
        struct hd_text text = {0};
        const char *at = hd_file_read(log, 1 << 20, &text) == HD_OK && text.data
                             ? strstr(text.data, "http://")
                             : NULL;
        const bool found = at && strchr(at, '\n');

        if (found)
            (void)snprintf(ret_url, 100, "%.*s", (int)(strcspn(at + 7, "/") + 7), at);
        hd_text_free(&text);
        if (found)
            return;
        (void)usleep(LOOK_US);
    }
    stop("the controller does not start");
}

static double load_once(struct devtools *d, const char *url)
{
    const char *problem, *said;
    char params[200];

    (void)devtools_call(d, "Page.navigate", "{\"url\":\"about:blank\"}");
    (void)snprintf(params, sizeof params, "{\"url\":\"%s/\"}", url);
    (void)devtools_call(d, "Page.navigate", params);
    for (int i = 0; i < LOOKS; i++) {
        said = devtools_evaluate(
            d, "(document.querySelector('#view') || {dataset: {}}).dataset.liveMs || ''", &problem);
        if (said && *said)
            return strtod(said, NULL);
        (void)usleep(LOOK_US);
    }
    stop("the page shows no data");
    return 0;
}

int main(int argc, char **argv)
{
    const int jobs = argc > 1 ? atoi(argv[1]) : 1000, rounds = argc > 2 ? atoi(argv[2]) : 7;
    char dir[TEMPORARY_BYTES], log[TEMPORARY_BYTES + 8], url[100], command[400];
    double times[ROUNDS_MAX];
    struct devtools *d;
    pid_t pid;

    if (jobs < 1 || rounds < 1 || rounds > ROUNDS_MAX)
        return 2;
    if (system("command -v chromium >/dev/null") != 0)
        stop("Chromium is not installed");
    temporary_dir(dir, "heddle-page");
    (void)snprintf(log, sizeof log, "%s/log", dir);
    (void)snprintf(command, sizeof command, "%s --fill %s/state 100 %d",
                   HEDDLE_BENCH_BIN "/../bench/scrape", dir, jobs);
    if (system(command) != 0)
        stop("cannot make a store");
    pid = start_controller(dir, log);
    find_url(log, url);
    d = devtools_open("chromium", dir, url);
    for (int r = 0; r < rounds; r++)
        times[r] = load_once(d, url);
    sort_doubles(times, (size_t)rounds);
    (void)printf("live data after %.0f ms (%.0f to %.0f), beside %d jobs; at most %d\n",
                 times[rounds / 2], times[0], times[rounds - 1], jobs, BAR_MS);
    devtools_close(d);
    (void)kill(pid, SIGTERM);
    (void)waitpid(pid, NULL, 0);
    (void)hd_file_remove_tree(dir);
    return times[rounds / 2] > BAR_MS;
}
