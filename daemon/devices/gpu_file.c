#include "daemon/devices/gpu_file.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"

enum { INFORMATION_MAX = 16 << 10 };

/* Copies the word behind `key` in lines such as "GPU UUID: \t GPU-8c1f..". */
static void value_of(const char *text, const char *key, char *ret_word, size_t size)
{
    const char *at = strstr(text, key);

    at = at ? at + strlen(key) : "";
    at += strspn(at, " \t");
    (void)snprintf(ret_word, size, "%.*s", (int)strcspn(at, " \t\n"), at);
}

enum hd_status hd_gpu_device_file(const char *proc, const char *uuid,
                                  char ret_file[HD_GPU_FILE_MAX])
{
    enum hd_status st = hd_err(HD_NOT_FOUND, "the driver names no device file of GPU %.60s", uuid);
    char folder[PATH_MAX], path[PATH_MAX + 300], word[80];
    const struct dirent *entry;
    int64_t minor;
    DIR *gpus;

    (void)snprintf(folder, sizeof folder, "%.3000s/driver/nvidia/gpus", proc);
    gpus = opendir(folder);
    while (st == HD_NOT_FOUND && gpus && (entry = readdir(gpus))) {
        struct hd_text text = {0};

        (void)snprintf(path, sizeof path, "%s/%s/information", folder, entry->d_name);
        if (entry->d_name[0] != '.' && hd_file_read(path, INFORMATION_MAX, &text) == HD_OK) {
            value_of(text.data, "GPU UUID:", word, sizeof word);
            if (strcmp(word, uuid) == 0) {
                value_of(text.data, "Device Minor:", word, sizeof word);
                st = hd_text_to_int64(word, 0, 999, &minor);
            }
        }
        hd_text_free(&text);
    }
    if (gpus)
        (void)closedir(gpus);
    if (!st)
        (void)snprintf(ret_file, HD_GPU_FILE_MAX, "/dev/nvidia%d", (int)minor);
    return st;
}
