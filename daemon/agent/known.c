#include "daemon/agent/known.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"

enum { FILE_BYTES_MAX = 1 << 20, NUMBER_MAX = 1 << 20, NAME_MAX_BYTES = 95 };

static const char cpu_prefix[] = "cpu-";

bool agent_known_is_gpu(const struct agent_known_device *device)
{
    return !hd_text_starts(device->id, cpu_prefix);
}

const struct agent_known_device *agent_known_find(const struct agent_known *known, const char *id)
{
    for (int i = 0; i < known->count; i++)
        if (strcmp(known->list[i].id, id) == 0)
            return &known->list[i];
    return NULL;
}

const struct agent_known_device *agent_known_at(const struct agent_known *known, int number)
{
    for (int i = 0; i < known->count; i++)
        if (known->list[i].number == number)
            return &known->list[i];
    return NULL;
}

int agent_known_number(struct agent_known *known, const char *id, int place, const char *name,
                       int64_t memory_bytes)
{
    struct agent_known_device *d = (struct agent_known_device *)agent_known_find(known, id);
    int number = place;

    if (d)
        return d->number;
    for (int i = 0; agent_known_at(known, number); i++)
        number = i;
    if (known->count == AGENT_KNOWN_MAX) /* devices come and go by the hundred: the oldest goes */
        memmove(known->list, known->list + 1, (size_t)--known->count * sizeof *known->list);
    d = &known->list[known->count++];
    *d = (struct agent_known_device){.number = number, .memory_bytes = memory_bytes};
    (void)snprintf(d->id, sizeof d->id, "%s", id);
    (void)snprintf(d->name, sizeof d->name, "%s", name);
    known->changed = true;
    return number;
}

/* ---- the file ---- */

/* "NUMBER ID MEMORY NAME"; false: it is not. */
static bool take_device(char *rest, struct agent_known *known)
{
    const char *number = strsep(&rest, " "), *memory;
    char *id = strsep(&rest, " ");
    int64_t n, bytes;

    memory = strsep(&rest, " ");
    if (!rest)
        return false;
    hd_gpu_clean(id); /* both go to the controller, which takes no other text */
    hd_gpu_clean(rest);
    for (size_t end = strlen(rest) < NAME_MAX_BYTES ? strlen(rest) : NAME_MAX_BYTES;
         !hd_text_is_utf8(rest, end);)
        rest[--end] = '\0';
    if (strlen(id) >= HD_GPU_UUID_MAX || known->count == AGENT_KNOWN_MAX ||
        hd_text_to_int64(number, 0, NUMBER_MAX, &n) ||
        hd_text_to_int64(memory, 0, INT64_MAX, &bytes) || agent_known_find(known, id) ||
        agent_known_at(known, (int)n))
        return false;
    (void)agent_known_number(known, id, (int)n, rest, bytes);
    return true;
}

static enum hd_status take_lines(char *rest, struct agent_known *known)
{
    const char *line = strsep(&rest, "\n");
    bool whole = rest && hd_text_starts(line, "boot ");

    if (whole && strcmp(line + strlen("boot "), known->boot_id) != 0)
        return HD_OK;
    while (whole && *rest) {
        char *at = strsep(&rest, "\n");

        whole = rest && hd_text_starts(at, "device ") && take_device(at + strlen("device "), known);
    }
    return whole ? HD_OK : hd_err(HD_CORRUPT, "%s is not a list of devices", known->path);
}

enum hd_status agent_known_read(struct agent_known *known, const char *state_dir,
                                const char *boot_id)
{
    struct hd_text text = {0};
    enum hd_status st;

    *known = (struct agent_known){.count = 0};
    (void)snprintf(known->path, sizeof known->path, "%s/devices", state_dir);
    (void)snprintf(known->boot_id, sizeof known->boot_id, "%s", boot_id);
    st = hd_file_read(known->path, FILE_BYTES_MAX, &text);
    if (!st)
        st = take_lines(text.data ? text.data : (char[]){""}, known);
    if (st)
        known->count = 0;
    known->changed = false;
    hd_text_free(&text);
    return st == HD_NOT_FOUND ? HD_OK : st;
}

enum hd_status agent_known_write(struct agent_known *known)
{
    struct hd_text text = {0};
    enum hd_status st;

    if (!known->changed || !known->path[0])
        return HD_OK;
    hd_text_add(&text, "boot %s\n", known->boot_id);
    for (int i = 0; i < known->count; i++) {
        const struct agent_known_device *d = &known->list[i];

        hd_text_add(&text, "device %d %s %" PRId64 " %s\n", d->number, d->id, d->memory_bytes,
                    d->name);
    }
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a list of devices")
                     : hd_file_write_atomic(known->path, text.data, text.len_bytes, 0600);
    known->changed = st != HD_OK;
    hd_text_free(&text);
    return st;
}
