/* mistakes: keeps the mistakes in settings, so that users learn of all of them at a time. */
#include <string.h>

#include "base/log.h"
#include "config/config_internal.h"

enum hd_status config_keep(struct hd_config *config, int line, enum hd_status st)
{
    struct hd_config_mistake *items = config->mistakes;
    size_t at = config->mistake_count;
    const char *text;

    if (!st || st == HD_NO_MEMORY)
        return st;
    while (at && items[at - 1].line > line)
        at--;
    if (config->mistake_count == HD_CONFIG_MISTAKES_MAX)
        config->mistakes_left_out++;
    if (at == HD_CONFIG_MISTAKES_MAX)
        return HD_OK;
    text = hd_arena_strdup(&config->arena, hd_err_message());
    if (!text)
        return hd_err(HD_NO_MEMORY, "no memory for the mistakes of the configuration");
    if (config->mistake_count < HD_CONFIG_MISTAKES_MAX)
        config->mistake_count++;
    memmove(&items[at + 1], &items[at], (config->mistake_count - at - 1) * sizeof *items);
    items[at] = (struct hd_config_mistake){.line = line, .text = text};
    return HD_OK;
}

enum hd_status hd_config_verdict(const struct hd_config *config)
{
    return config->mistake_count ? hd_err(HD_INVALID, "%s", config->mistakes[0].text) : HD_OK;
}

void hd_config_log_mistakes(const struct hd_config *config, const char *prefix)
{
    for (size_t i = 0; i < config->mistake_count; i++)
        hd_log(HD_LOG_ERROR, "%s%s", prefix, config->mistakes[i].text);
    if (config->mistakes_left_out)
        hd_log(HD_LOG_ERROR, "%sand %zu more", prefix, config->mistakes_left_out);
    if (!config->mistake_count)
        hd_log(HD_LOG_ERROR, "%s%s", prefix, hd_err_message());
}
