#include "flags/flags.h"

#include <string.h>

#include "base/text.h"

static struct hd_flag *find(struct hd_flag *flags, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(flags[i].name, name) == 0)
            return &flags[i];
    return NULL;
}

enum hd_status hd_flags_read(int argc, char **argv, struct hd_flag *flags, int count)
{
    for (int i = 0; i < argc; i++) {
        struct hd_flag *f = find(flags, count, argv[i]);

        if (!f)
            return hd_err(HD_INVALID, "unknown argument '%s'", argv[i]);
        if (f->value)
            return hd_err(HD_INVALID, "%s is given twice", f->name);
        if (f->is_switch) {
            f->value = "1";
            continue;
        }
        if (i + 1 == argc)
            return hd_err(HD_INVALID, "%s needs a value", f->name);
        f->value = argv[++i];
    }
    for (int i = 0; i < count; i++)
        if (flags[i].required && !flags[i].value)
            return hd_err(HD_INVALID, "%s is missing", flags[i].name);
    return HD_OK;
}

enum hd_status hd_flag_int(const struct hd_flag *flag, int64_t min, int64_t max, int64_t otherwise,
                           int64_t *ret_value)
{
    enum hd_status st;

    *ret_value = otherwise;
    st = flag->value ? hd_text_to_int64(flag->value, min, max, ret_value) : HD_OK;
    return st ? hd_err_prefix(st, "%s", flag->name) : HD_OK;
}

enum hd_status hd_flag_real(const struct hd_flag *flag, double min, double max, double otherwise,
                            double *ret_value)
{
    enum hd_status st;

    *ret_value = otherwise;
    st = flag->value ? hd_text_to_double(flag->value, min, max, ret_value) : HD_OK;
    return st ? hd_err_prefix(st, "%s", flag->name) : HD_OK;
}
