/* document: writes the keys of a job file as a Markdown table. */
#include <string.h>

#include "spec_internal.h"

void hd_spec_document_default(const struct hd_key *key, struct hd_text *ret_text)
{
    const char *shown = key->required ? "required" : key->derived ? key->derived : key->shown;
    struct hd_text value = {0};
    struct hd_job defaults;

    hd_job_set_defaults(&defaults);
    if (!shown && key->kind == HD_KEY_REAL && !key->words)
        /* short form for users, not the 17 digits that give the exact bits */
        hd_text_add(ret_text, "%g", key->number);
    else if (!shown && key->kind != HD_KEY_FORM && !hd_job_format(key, &defaults, &value))
        shown = value.data && *value.data ? hd_job_word_in_file(key, value.data) : NULL;
    if (shown || key->kind != HD_KEY_REAL || key->words)
        hd_text_add(ret_text, "%s", shown ? shown : "-");
    hd_text_free(&value);
}

void hd_spec_document(const char *prefix, struct hd_text *ret_text)
{
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (key->hidden || strncmp(key->path, prefix, strlen(prefix)) != 0)
            continue;
        hd_text_add(ret_text, "| `%s` | ", key->path);
        hd_spec_document_default(key, ret_text);
        hd_text_add(ret_text, " | %s |\n", key->help);
    }
}
