/* config_words: reads and compares values of config.json, and formats them for messages. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/words.h"
#include "hf/config_internal.h"

const char *hd_hf_quote(const struct hd_json *v, char ret_text[HD_HF_QUOTE_MAX])
{
    static const char *const kinds[] = {"null", "false", "true", "", "", "a list", "an object"};

    if (v->kind == HD_JSON_NUMBER || v->kind == HD_JSON_STRING)
        (void)snprintf(ret_text, HD_HF_QUOTE_MAX, v->kind == HD_JSON_STRING ? "\"%.60s\"" : "%.60s",
                       v->text);
    else
        (void)snprintf(ret_text, HD_HF_QUOTE_MAX, "%s", kinds[v->kind]);
    for (char *p = ret_text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    return ret_text;
}

enum hd_status hd_hf_unsupported(const char *key, const struct hd_json *value, const char *instead)
{
    char text[HD_HF_QUOTE_MAX];

    return hd_err(HD_UNSUPPORTED, "%s: %s is not supported; %s", key, hd_hf_quote(value, text),
                  instead);
}

enum hd_status hd_hf_to_real(const struct hd_json *v, const char *key, double min, double max,
                             double *ret_value)
{
    char text[HD_HF_QUOTE_MAX];

    if (v->kind != HD_JSON_NUMBER || hd_text_to_double(v->text, min, max, ret_value))
        return hd_err(HD_INVALID, "%s: %s is not a number from %g to %g", key, hd_hf_quote(v, text),
                      min, max);
    return HD_OK;
}

void hd_hf_note(struct hd_text *notes, const char *fmt, ...)
{
    char text[HD_ERR_MAX];
    va_list args;

    if (!notes)
        return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    hd_text_add(notes, "%s%s", notes->len_bytes ? "; " : "", text);
}

bool hd_hf_same_value(const struct hd_json *a, const struct hd_json *b)
{
    const struct hd_json *x = a->first, *y = b->first;

    if (a->kind != b->kind || a->count != b->count)
        return false;
    if (a->kind == HD_JSON_NUMBER)
        return strtod(a->text, NULL) == strtod(b->text, NULL);
    if (a->kind == HD_JSON_STRING)
        return strcmp(a->text, b->text) == 0;
    for (; x; x = x->next) {
        if (a->kind == HD_JSON_OBJECT)
            y = hd_json_member(b, x->key);
        if (!y || !hd_hf_same_value(x, y))
            return false;
        y = a->kind == HD_JSON_ARRAY ? y->next : y;
    }
    return true;
}

void hd_hf_add_float(struct hd_json_writer *w, const char *key, double value)
{
    hd_json_add_real(w, key, value);
    if (!w->out->failed && !strpbrk(strrchr(w->out->data, ':'), ".en"))
        hd_text_add(w->out, ".0");
}

bool hd_hf_reads(const struct hd_family *family, const char *key)
{
    return hd_words_have(family->reads ? family->reads : "", key);
}

void hd_hf_class_names(const struct hd_family *family, struct hd_hf_classes *ret_classes)
{
    struct hd_hf_classes *c = ret_classes;

    (void)snprintf(c->head, sizeof c->head, "%s%s", family->head ? family->head : family->stem,
                   family->head ? "" : "ForCausalLM");
    (void)snprintf(c->base, sizeof c->base, "%sModel", family->stem);
    c->classifier[0] = '\0';
    if (!family->no_classifier)
        (void)snprintf(c->classifier, sizeof c->classifier, "%sForSequenceClassification",
                       family->stem);
}

bool hd_hf_has_gpt2_keys(const struct hd_family *family)
{
    return family->names == HD_NAMES_GPT2;
}

const char *hd_hf_own_key(const struct hd_family *family, const char *const names[])
{
    while (names[1] && !hd_hf_reads(family, names[0]))
        names++;
    return names[0];
}
