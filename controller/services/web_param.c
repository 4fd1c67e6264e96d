/* web_param: parameters of HTTP requests; calls nothing of this folder. */
#include <string.h>

#include "base/text.h"
#include "controller/services/web.h"

enum hd_status web_check_params(const struct hd_http_request *request, const char *known)
{
    for (size_t i = 0; i < hd_http_param_count(request); i++) {
        const char *name = hd_http_param_name(request, i), *at = known;
        const size_t length = strlen(name);

        while ((at = strstr(at, name)) != NULL) {
            if ((at == known || at[-1] == ' ') && (!at[length] || at[length] == ' '))
                break;
            at += length;
        }
        if (!at)
            return hd_err(HD_INVALID, "the parameter %.60s is not known here%s%s", name,
                          *known ? "; these are: " : "", known);
    }
    return HD_OK;
}

enum hd_status web_number(const struct hd_http_request *request, const char *name, int64_t min,
                          int64_t max, int64_t otherwise, int64_t *ret_value)
{
    const char *text = hd_http_param(request, name);
    enum hd_status st;

    *ret_value = otherwise;
    if (!text)
        return HD_OK;
    st = hd_text_to_int64(text, min, max, ret_value);
    return st ? hd_err_prefix(st, "%s", name) : HD_OK;
}
