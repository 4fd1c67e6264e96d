/* devtools: a headless Chromium, driven through its DevTools pipe.
 *
 * Chromium reads commands from descriptor 3 and writes answers and events to 4, each a JSON text
 * with a NUL behind it (--remote-debugging-pipe). No port, no library: only this process can speak
 * to it. A failure ends the program with a line of the test protocol.
 *
 * Used by: browser.c.   Uses: base.   Threads: one.
 */
#ifndef HD_TESTS_DEVTOOLS_H
#define HD_TESTS_DEVTOOLS_H

#include <stdbool.h>

#include "base/json.h"

struct devtools;

/* Starts the program with a profile in `dir`, and opens one page. origin: requests to elsewhere are
 * counted. */
struct devtools *devtools_open(const char *chromium, const char *dir, const char *origin);
void devtools_close(struct devtools *d);

/* One command for the page: params is JSON, "{}" for none. Returns the result; it is valid until
 * the next command. Key presses that the page asks for (see browser.c) are made meanwhile. */
const struct hd_json *devtools_call(struct devtools *d, const char *method, const char *params);

/* The string that an expression gives, awaited. NULL: it failed; then *ret_problem says why. */
const char *devtools_evaluate(struct devtools *d, const char *expression, const char **ret_problem);

/* Since devtools_open: errors on the console with the newest one, and requests to elsewhere. */
struct devtools_seen {
    int errors, foreign;
    char error[512], foreign_url[512];
};
const struct devtools_seen *devtools_look(const struct devtools *d);

#endif
