/* recompute: parses the text of parallel.recompute. */
#include <stdlib.h>
#include <string.h>

#include "job/job.h"

bool hd_recompute_read(const char *text, int64_t *ret_units)
{
    const size_t full = strlen("full");
    char *end;

    *ret_units = 0;
    if (strcmp(text, "none") == 0 || strcmp(text, "selective") == 0)
        return true;
    if (strncmp(text, "full", full) != 0)
        return false;
    *ret_units = 1;
    if (!text[full])
        return true;
    if (text[full] != ':' || text[full + 1] < '1' || text[full + 1] > '9')
        return false;
    *ret_units = strtoll(text + full + 1, &end, 10);
    return !*end && *ret_units <= HD_RECOMPUTE_UNITS_MAX;
}
