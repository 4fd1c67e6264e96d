#include "flags/flags.h"

#include <string.h>
#include <unistd.h>

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

static struct hd_flag *find(struct hd_flag *flags, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(flags[i].name, name) == 0)
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
    else
        st = hd_text_to_int64(value, f->min, f->max, &number);
    if (!st && f->kind == HD_IS_INT)
        *f->small = (int)number;
    if (!st && f->kind == HD_IS_INT64)
        *f->number = number;
    return st ? hd_err_prefix(st, "%s", f->name) : HD_OK;
}

enum hd_status hd_flags_read(int argc, char **argv, struct hd_flag *flags, int count)
{
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < argc; i++) {
        struct hd_flag *f = find(flags, count, argv[i]);

        if (!f)
            return hd_err(HD_INVALID, "unknown argument '%s'", argv[i]);
        if (f->given)
            return hd_err(HD_INVALID, "%s is given twice", f->name);
        f->given = true;
        if (f->kind == HD_IS_SWITCH)
            *f->on = true;
        else if (i + 1 == argc)
            return hd_err(HD_INVALID, "%s needs a value", f->name);
        else
            st = store(f, argv[++i]);
    }
    for (int i = 0; !st && i < count; i++)
        if (flags[i].required && !flags[i].given)
            return hd_err(HD_INVALID, "%s is missing", flags[i].name);
    return st;
}
