#include "base/status.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char own_message[HD_ERR_MAX];

/* Function that returns the program's message buffer; set once, while a plug-in is loaded; NULL:
 * use own_message. */
static hd_err_place_fn *shared_place;

char *hd_err_place(void)
{
    return shared_place ? shared_place() : own_message;
}

void hd_err_share(hd_err_place_fn *place)
{
    shared_place = place;
}

const char *hd_status_name(enum hd_status st)
{
    static const char *const names[] = {
#define X(code, name, meaning) name,
        HD_STATUS_LIST(X)
#undef X
    };

    return (unsigned)st < HD_STATUS_COUNT ? names[st] : "unknown";
}

enum hd_status hd_err(enum hd_status st, const char *fmt, ...)
{
    char text[HD_ERR_MAX]; /* a copy, because the arguments may point into the old message */
    va_list ap;

    assert(st != HD_OK);
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(hd_err_place(), text, sizeof text);
    return st;
}

enum hd_status hd_err_prefix(enum hd_status st, const char *fmt, ...)
{
    char text[HD_ERR_MAX];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof text)
        (void)snprintf(text + n, sizeof text - (size_t)n, ": %s", hd_err_place());
    memcpy(hd_err_place(), text, sizeof text);
    return st;
}

const char *hd_err_message(void)
{
    return hd_err_place();
}

void hd_err_save(enum hd_status st, struct hd_error *ret_error)
{
    ret_error->status = st;
    memcpy(ret_error->message, hd_err_place(), sizeof ret_error->message);
}

enum hd_status hd_err_restore(const struct hd_error *error)
{
    memcpy(hd_err_place(), error->message, sizeof error->message);
    return error->status;
}
