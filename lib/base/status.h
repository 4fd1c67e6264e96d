/* status: error codes, and one error message per thread.
 *
 * A status is one of a few codes, chosen by what the caller should do about it. hd_err() also
 * stores a message for the calling thread: what failed, on what, and how to fix it. The outermost
 * layer of the program prints the message once. A library returns a status; it never logs and never
 * exits. Assertions are for programming errors only; files, network and users cause a status.
 *
 *     if (fd < 0)
 *         return hd_err(HD_IO, "cannot open %s: %s", path, strerror(errno));
 *
 * Used by: everything.   Uses: libc.
 * Threads: the message is thread-local; hd_err_save and hd_err_restore carry it to another thread.
 */
#ifndef HD_BASE_STATUS_H
#define HD_BASE_STATUS_H

/* The codes: code, stable name (part of the API: in JSON and logs), meaning to the caller. */
#define HD_STATUS_LIST(X)                                                                \
    X(OK, "ok", "success")                                                               \
    X(INVALID, "invalid", "the input is wrong; the same call will fail again")           \
    X(NOT_FOUND, "not_found", "what was named does not exist")                           \
    X(EXISTS, "exists", "what was to be created exists already")                         \
    X(DENIED, "denied", "the caller may not do this")                                    \
    X(UNSUPPORTED, "unsupported", "a valid request that this build cannot do")           \
    X(IO, "io", "a file, disk or socket failed")                                         \
    X(CORRUPT, "corrupt", "stored or received bytes are not what they should be")        \
    X(LIMIT, "limit", "a stated limit would be exceeded")                                \
    X(NO_MEMORY, "no_memory", "memory is used up, or a reservation is too small")        \
    X(UNAVAILABLE, "unavailable", "a peer cannot be reached; a later retry may succeed") \
    X(TIMEOUT, "timeout", "a deadline passed")                                           \
    X(ABORTED, "aborted", "stopped because something else failed or asked to stop")      \
    X(CONFLICT, "conflict", "the state does not allow it now")                           \
    X(INTERNAL, "internal", "a bug in Heddle")                                           \
    X(STORAGE, "storage", "a file system takes no writes for now; a later retry may succeed")

enum hd_status {
#define X(code, name, meaning) HD_##code,
    HD_STATUS_LIST(X)
#undef X
        HD_STATUS_COUNT
};

enum {
    HD_ERR_MAX = 1024
}; /* bytes of a message including its NUL; longer messages are
                               truncated */

/* Returns the stable name of a code ("io"); unknown codes give "unknown". */
const char *hd_status_name(enum hd_status st);

/* Stores the message of a failure for this thread and returns st. st must not be HD_OK. The
 * arguments may point into the old message. */
enum hd_status hd_err(enum hd_status st, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " before this thread's message and returns st. Use it in a caller that knows the
 * file or the job. */
enum hd_status hd_err_prefix(enum hd_status st, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns this thread's latest message, "" if none. Valid until the next hd_err of this thread. */
const char *hd_err_message(void);

/* A failure as a value, to pass to another thread or to preserve over calls that may fail. */
struct hd_error {
    enum hd_status status;
    char message[HD_ERR_MAX];
};
void hd_err_save(enum hd_status st, struct hd_error *ret_error);
enum hd_status hd_err_restore(const struct hd_error *error);

/* Returns a thread's message buffer. A plug-in links its own copy of this file, with its own
 * messages. The program that loads it passes hd_err_place, and the plug-in calls hd_err_share with
 * it before anything else; from then on both use the same message per thread. */
typedef char *hd_err_place_fn(void);
char *hd_err_place(void); /* buffer of the calling thread, HD_ERR_MAX bytes */
void hd_err_share(hd_err_place_fn *place);

#endif
