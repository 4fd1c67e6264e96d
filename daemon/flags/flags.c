#include "flags/flags.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

int hd_flags_threads(int max)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);

    return processors < 1 ? 1 : processors < max ? (int)processors : max;
}

int hd_flags_count(int argc, char **argv)
{
    int count = 0;

    while (count < argc && strcmp(argv[count], "--") != 0)
        count++;
    return count;
}

static bool is_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

int hd_flags_answer(int argc, char **argv, const char *usage, const char *name, const char *version)
{
    struct hd_text text = {0};
    enum hd_status st;

    if (argc < 2 || (!is_help(argv[1]) && strcmp(argv[1], "--version") != 0))
        return 0;
    if (is_help(argv[1]))
        return hd_file_print(usage) ? -1 : 1;
    hd_text_add(&text, "%s %s\n", name, version);
    st = text.failed ? HD_NO_MEMORY : hd_file_print(text.data);
    hd_text_free(&text);
    return st ? -1 : 1;
}

/* Returns the flag that an argument begins with; *ret_value: its value behind "=", NULL: none. */
static struct hd_flag *find(struct hd_flag *flags, int count, const char *argument,
                            const char **ret_value)
{
    const size_t len = strcspn(argument, "=");

    *ret_value = argument[len] ? argument + len + 1 : NULL;
    for (int i = 0; i < count; i++)
        if (strlen(flags[i].name) == len && memcmp(flags[i].name, argument, len) == 0)
            return &flags[i];
    return NULL;
}

static enum hd_status store(const struct hd_flag *f, const char *value)
{
    int64_t number = 0;
    enum hd_status st = HD_OK;

    if (f->kind == HD_IS_TEXT)
        *f->text = value;
    else if (f->kind == HD_IS_REAL)
        st = hd_text_to_double(value, f->least, f->most, f->real);
    else if (f->kind == HD_IS_BYTES)
        st = hd_text_to_bytes(value, f->min, f->number);
    else if (f->kind == HD_IS_READ)
        st = f->read(value, f->into);
    else
        st = hd_text_to_int64(value, f->min, f->max, &number);
    if (!st && f->kind == HD_IS_INT)
        *f->small = (int)number;
    if (!st && f->kind == HD_IS_INT64)
        *f->number = number;
    return st ? hd_err_prefix(st, "%s", f->name) : HD_OK;
}

enum hd_status hd_flags_read(int argc, char **argv, struct hd_flag *flags, int count, bool repeats)
{
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < argc; i++) {
        const char *value;
        struct hd_flag *f = find(flags, count, argv[i], &value);

        if (!f || (value && f->kind == HD_IS_SWITCH))
            return hd_err(HD_INVALID, "unknown argument '%s'; see --help", argv[i]);
        if (f->given && !repeats)
            return hd_err(HD_INVALID, "%s is given twice", f->name);
        f->given = true;
        if (f->kind == HD_IS_SWITCH)
            *f->on = true;
        else if (!value && i + 1 == argc)
            return hd_err(HD_INVALID, "%s needs a value", f->name);
        else
            st = store(f, value ? value : argv[++i]);
    }
    for (int i = 0; !st && i < count; i++)
        if (flags[i].required && !flags[i].given)
            return hd_err(HD_INVALID, "%s is missing; see --help", flags[i].name);
    return st;
}
