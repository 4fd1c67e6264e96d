#include "daemon/devices/numbers.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

enum { FILE_BYTES_MAX = 1 << 20 };

static const char cpu_prefix[] = "cpu-";

bool hd_numbered_is_gpu(const struct hd_numbered *device)
{
    return !hd_text_starts(device->id, cpu_prefix);
}

struct hd_numbered *hd_numbers_find(struct hd_numbers *numbers, const char *id)
{
    for (int i = 0; i < numbers->count; i++)
        if (strcmp(numbers->list[i].id, id) == 0)
            return &numbers->list[i];
    return NULL;
}

static bool is_taken(const struct hd_numbers *numbers, int number)
{
    for (int i = 0; i < numbers->count; i++)
        if (numbers->list[i].number == number)
            return true;
    return false;
}

/* Returns whether a line of the file can hold the id. */
static bool is_storable(const char *id)
{
    return *id && !strpbrk(id, " \t\r\n") && strlen(id) < HD_GPU_UUID_MAX;
}

struct hd_numbered *hd_numbers_give(struct hd_numbers *numbers, const char *id, int wanted)
{
    struct hd_numbered *d = hd_numbers_find(numbers, id);

    if (d || numbers->count == HD_NUMBERS_MAX || !is_storable(id))
        return d;
    for (int lowest = 0; is_taken(numbers, wanted); lowest++)
        wanted = lowest;
    d = &numbers->list[numbers->count++];
    *d = (struct hd_numbered){.number = wanted, .fault_at = -1};
    (void)snprintf(d->id, sizeof d->id, "%s", id);
    numbers->changed = true;
    return d;
}

/* ---- the file ---- */

/* Parses the file after it was read. Text after an id is ignored: older builds wrote memory and
 * name there. */
static enum hd_status read_lines(char *rest, struct hd_numbers *numbers)
{
    const char *line = strsep(&rest, "\n");
    char id[HD_GPU_UUID_MAX];
    int number;

    if (hd_text_starts(line, "boot ") && strcmp(line + strlen("boot "), numbers->boot_id) != 0)
        return HD_OK;
    if (!hd_text_starts(line, "boot ") || !rest)
        return hd_err(HD_CORRUPT, "%s is not a list of devices", numbers->path);
    while ((line = strsep(&rest, "\n")) && rest) {
        if (sscanf(line, "device %d %47s", &number, id) != 2 || number < 0 ||
            is_taken(numbers, number) || hd_numbers_find(numbers, id) ||
            !hd_numbers_give(numbers, id, number))
            return hd_err(HD_CORRUPT, "%s: \"%.100s\" is not a device", numbers->path, line);
    }
    return *line ? hd_err(HD_CORRUPT, "%s: its last line is cut off", numbers->path) : HD_OK;
}

enum hd_status hd_numbers_read(struct hd_numbers *numbers, const char *state_dir,
                               const char *boot_id)
{
    struct hd_text text = {0};
    enum hd_status st;

    numbers->count = 0;
    (void)snprintf(numbers->path, sizeof numbers->path, "%s/devices", state_dir);
    (void)snprintf(numbers->boot_id, sizeof numbers->boot_id, "%s", boot_id);
    st = hd_file_read(numbers->path, FILE_BYTES_MAX, &text);
    if (!st)
        st = read_lines(text.data ? text.data : (char[]){""}, numbers);
    if (st)
        numbers->count = 0;
    numbers->changed = false;
    hd_text_free(&text);
    return st == HD_NOT_FOUND ? HD_OK : st;
}

enum hd_status hd_numbers_write(struct hd_numbers *numbers)
{
    struct hd_text text = {0};
    enum hd_status st;

    if (!numbers->changed || !numbers->path[0])
        return HD_OK;
    hd_text_add(&text, "boot %s\n", numbers->boot_id);
    for (int i = 0; i < numbers->count; i++)
        hd_text_add(&text, "device %d %s\n", numbers->list[i].number, numbers->list[i].id);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a list of devices")
                     : hd_file_write_atomic(numbers->path, text.data, text.len_bytes, 0600);
    numbers->changed = st != HD_OK;
    hd_text_free(&text);
    return st;
}
