#include <stdio.h>
#include <string.h>
#include <wchar.h>

#include "controller/cli/cli.h"

/* "JOB_STATE_RUNNING" -> "running": the names of the .proto file are the words of the API. */
static const char *enum_word(const ProtobufCEnumDescriptor *descriptor, int value, size_t prefix,
                             char ret_word[CLI_WORD_MAX])
{
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(descriptor, value);
    size_t n = 0;

    if (!found) { /* a newer peer's */
        (void)snprintf(ret_word, CLI_WORD_MAX, "unknown(%d)", value);
        return ret_word;
    }
    for (const char *p = found->name + prefix; *p && n + 1 < CLI_WORD_MAX; p++)
        ret_word[n++] = (char)(*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    ret_word[n] = '\0';
    return ret_word;
}

const char *cli_job_state(Heddle__V1__JobState state, char ret_word[CLI_WORD_MAX])
{
    return enum_word(&heddle__v1__job_state__descriptor, (int)state, strlen("JOB_STATE_"),
                     ret_word);
}

const char *cli_attempt_state(Heddle__V1__AttemptState state, char ret_word[CLI_WORD_MAX])
{
    return enum_word(&heddle__v1__attempt_state__descriptor, (int)state, strlen("ATTEMPT_STATE_"),
                     ret_word);
}

const char *cli_node_state(Heddle__V1__NodeState state, char ret_word[CLI_WORD_MAX])
{
    return enum_word(&heddle__v1__node_state__descriptor, (int)state, strlen("NODE_STATE_"),
                     ret_word);
}

const char *cli_end_cause(Heddle__V1__EndCause cause, char ret_word[CLI_WORD_MAX])
{
    return enum_word(&heddle__v1__end_cause__descriptor, (int)cause, strlen("END_CAUSE_"),
                     ret_word);
}

const char *cli_device_kind(Heddle__V1__DeviceKind kind, char ret_word[CLI_WORD_MAX])
{
    return enum_word(&heddle__v1__device_kind__descriptor, (int)kind, strlen("DEVICE_KIND_"),
                     ret_word);
}

const char *cli_precision(Heddle__V1__Precision precision, char ret_word[CLI_WORD_MAX])
{
    return enum_word(&heddle__v1__precision__descriptor, (int)precision, strlen("PRECISION_"),
                     ret_word);
}

void cli_add_layout(const struct hd_plan_sizes *sizes, struct hd_text *out)
{
    hd_text_add(out, "tp %d x cp %d x dp %d x pp %d", sizes->tp, sizes->cp, sizes->dp, sizes->pp);
    if (sizes->ep > 1)
        hd_text_add(out, ", ep %d", sizes->ep);
    if (sizes->sequence)
        hd_text_add(out, ", sequence parallel");
    if (sizes->cp > 1)
        hd_text_add(out, ", cp exchange %s", hd_plan_exchange_name(sizes->cp_exchange));
}

bool cli_job_ended(Heddle__V1__JobState state)
{
    return state == HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED ||
           state == HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED ||
           state == HEDDLE__V1__JOB_STATE__JOB_STATE_CANCELLED;
}

void cli_format_count(double count, char ret_text[32])
{
    static const char units[] = " kMGTP";
    int unit = 0;

    while (count >= 999.5 && units[unit + 1]) {
        count /= 1000;
        unit++;
    }
    if (unit)
        (void)snprintf(ret_text, 32, count < 99.95 ? "%.1f%c" : "%.0f%c", count, units[unit]);
    else
        (void)snprintf(ret_text, 32, count < 9.95 && count > 0 ? "%.1f" : "%.0f", count);
}

void cli_add_clean(struct hd_text *out, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;

    for (const unsigned char *begin = p;; p++) {
        bool c1 = p[0] == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0; /* U+0080..9F: controls too */

        if (*p >= 0x20 && *p != 0x7f && !c1)
            continue;
        hd_text_add_bytes(out, begin, (size_t)(p - begin));
        if (!*p)
            return;
        hd_text_add_bytes(out, "?", 1);
        p += c1;
        begin = p + 1;
    }
}

/* The code point at p (well-formed UTF-8, as all that is printed was checked), and its length. */
static wchar_t decode(const unsigned char *p, int *ret_bytes)
{
    int n = p[0] < 0x80 ? 1 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    wchar_t c = n == 1 ? p[0] : p[0] & (0x7F >> n);

    for (int i = 1; i < n && (p[i] & 0xC0) == 0x80; i++)
        c = (c << 6) | (p[i] & 0x3F);
    for (*ret_bytes = 1; *ret_bytes < n && (p[*ret_bytes] & 0xC0) == 0x80;)
        (*ret_bytes)++;
    return c;
}

int cli_text_width(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    int width = 0, n;

    for (; *p; p += n) {
        int w = wcwidth(decode(p, &n)); /* -1 where the locale does not know */

        width += w < 0 ? 1 : w;
    }
    return width;
}
