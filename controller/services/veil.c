#include "controller/services/veil.h"

#include <ctype.h>
#include <string.h>

#include "controller/core/core.h"

bool veil_shows(const struct veil *veil, uint64_t job)
{
    return !veil->reader || hd_core_job_is_of(veil->core, job, veil->reader);
}

/* Parses the digits that begin at `at`. Returns their end; `at` itself if there are no digits. Sets
 * *ret_number; a number too large for 64 bits becomes 0, which no job has. */
static const char *read_number(const char *at, uint64_t *ret_number)
{
    uint64_t number = 0;
    bool fits = true;

    for (; isdigit((unsigned char)*at); at++) {
        fits = fits && number <= (UINT64_MAX - 9) / 10;
        number = fits ? 10 * number + (uint64_t)(*at - '0') : 0;
    }
    *ret_number = number;
    return at;
}

bool veil_hides_subject(const struct veil *veil, const char *text)
{
    uint64_t job;

    if (!hd_text_starts(text, "job ") || !isdigit((unsigned char)text[4]))
        return false;
    (void)read_number(text + 4, &job);
    return !veil_shows(veil, job);
}

/* Returns the length of the separator between two numbers of a list, such as ", "; 0: the list ends
 * here. */
static size_t separator(const char *at)
{
    const size_t length = hd_text_starts(at, ", ") ? 2 : hd_text_starts(at, " and ") ? 5 : 0;

    return length && isdigit((unsigned char)at[length]) ? length : 0;
}

/* Appends the job's number that `at` points at (behind "job "), or "another job" if the reader may
 * not see that job. Returns the end of the number. */
static const char *add_one(const struct veil *veil, const char *at, struct hd_text *out)
{
    uint64_t job;
    const char *end = read_number(at, &job);

    if (veil_shows(veil, job))
        hd_text_add(out, "job %.*s", (int)(end - at), at);
    else
        hd_text_add(out, "another job");
    return end;
}

/* Appends those numbers of the list at `at` (behind "jobs ") that the reader may see, and "others"
 * if some are hidden. Returns the end of the list. */
static const char *add_several(const struct veil *veil, const char *at, struct hd_text *out)
{
    struct hd_text shown = {0};
    bool others = false;

    for (;;) {
        uint64_t job;
        const char *end = read_number(at, &job);

        if (veil_shows(veil, job))
            hd_text_add(&shown, "%s%.*s", shown.len_bytes ? ", " : "", (int)(end - at), at);
        else
            others = true;
        at = end;
        if (!separator(at))
            break;
        at += separator(at);
    }
    if (shown.len_bytes)
        hd_text_add(out, "jobs %s%s", shown.data, others ? " and others" : "");
    else
        hd_text_add(out, "other jobs");
    out->failed |= shown.failed;
    hd_text_free(&shown);
    return at;
}

/* Returns whether a word begins at `at`. */
static bool begins_word(const char *text, const char *at)
{
    return at == text || !(isalnum((unsigned char)at[-1]) || strchr("._-/", at[-1]));
}

/* Returns the length of what precedes a job's number in a path: "JOBS_DIR/", or "attempts/" of a
 * node's record of an attempt; 0: no such part of a path begins at `at`. */
static size_t job_path(const struct veil *veil, const char *text, const char *at)
{
    static const char records[] = "attempts/";
    const size_t length = strlen(veil->jobs_dir);

    if (at != text && at[-1] == '/' && hd_text_starts(at, records) &&
        isdigit((unsigned char)at[strlen(records)]))
        return strlen(records);
    return length && hd_text_starts(at, veil->jobs_dir) && at[length] == '/' &&
                   isdigit((unsigned char)at[length + 1])
               ? length + 1
               : 0;
}

static void rewrite(const struct veil *veil, const char *text, struct hd_text *out)
{
    const char *at = text;

    hd_text_add(out, "%s", "");
    while (*at) {
        const size_t path = job_path(veil, text, at);
        uint64_t job;

        if (path) {
            const char *end = read_number(at + path, &job);

            hd_text_add_bytes(out, at, path);
            if (veil_shows(veil, job))
                hd_text_add_bytes(out, at + path, (size_t)(end - at) - path);
            else
                hd_text_add(out, "(another job)");
            at = end;
        } else if (begins_word(text, at) && hd_text_starts(at, "job ") &&
                   isdigit((unsigned char)at[4])) {
            at = add_one(veil, at + 4, out);
        } else if (begins_word(text, at) && hd_text_starts(at, "jobs ") &&
                   isdigit((unsigned char)at[5])) {
            at = add_several(veil, at + 5, out);
        } else {
            hd_text_add_bytes(out, at++, 1);
        }
    }
}

void veil_text(const struct veil *veil, struct hd_text *text)
{
    struct hd_text out = {0};

    if (!veil->reader || !text->data || text->failed)
        return;
    rewrite(veil, text->data, &out);
    hd_text_free(text);
    *text = out;
}

const char *veil_copy(const struct veil *veil, struct hd_arena *arena, const char *text)
{
    struct hd_text out = {0};
    const char *copy;

    if (!text || !veil->reader || !*text)
        return text ? text : "";
    rewrite(veil, text, &out);
    copy = out.data && !out.failed ? hd_arena_strdup(arena, out.data) : NULL;
    hd_text_free(&out);
    return copy ? copy : "";
}
