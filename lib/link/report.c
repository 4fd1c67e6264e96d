#include "link/report.h"

#include <math.h>
#include <string.h>

#include "link/link.h"

enum { METRICS_OF_PROTOCOL_3 = 16, METRICS_MAX = 1000 };

#define NAME_TABLE(function, enum_type, list, count)                           \
    const char *function(enum_type value)                                      \
    {                                                                          \
        static const char *const names[] = {list(NAME_OF)};                    \
        return (unsigned)value < (unsigned)(count) ? names[value] : "unknown"; \
    }
#define NAME_OF(code, name) name,

NAME_TABLE(hd_link_phase_name, enum hd_link_phase, HD_LINK_PHASES, HD_LINK_PHASE_COUNT)
NAME_TABLE(hd_link_level_name, enum hd_link_level, HD_LINK_LEVELS, HD_LINK_LEVEL_COUNT)
NAME_TABLE(hd_link_cause_name, enum hd_link_cause, HD_LINK_CAUSES, HD_LINK_CAUSE_COUNT)

const char *hd_link_kind_name(enum hd_link_kind kind)
{
    static const char *const names[] = {"none",
#define R(kind, member, name, fields) name,
                                        HD_LINK_REPORTS(R)
#undef R
    };

    return (unsigned)kind < HD_LINK_KIND_COUNT ? names[kind] : "unknown";
}

#define PACK_INT(name)        hd_pack_int(pack, value->name);
#define PACK_REAL(name)       hd_pack_real(pack, value->name);
#define PACK_LATER(name)      pack_later(pack, value->name);
#define PACK_LATER_WORD(name) pack_later_word(pack, value->name);
#define PACK_WORD(name)       hd_pack_text(pack, value->name);
#define PACK_TEXT(name)       hd_pack_text(pack, value->name);
#define PACK_PATH(name)       hd_pack_text(pack, value->name);

#define PACK_METRICS(name) pack_metrics(pack, &value->name);
#define PACK_LOADS(name)   pack_loads(pack, value->name, value->name##_count);

#define UNPACK_INT(name)        ret_value->name = hd_unpack_int(unpack);
#define UNPACK_REAL(name)       ret_value->name = hd_unpack_real(unpack);
#define UNPACK_LATER(name)      ret_value->name = unpack_later(unpack);
#define UNPACK_LATER_WORD(name) unpack_later_word(unpack, ret_value->name, sizeof ret_value->name);
#define UNPACK_WORD(name)       hd_unpack_text(unpack, ret_value->name, sizeof ret_value->name);
#define UNPACK_TEXT(name)       hd_unpack_text(unpack, ret_value->name, sizeof ret_value->name);
#define UNPACK_PATH(name)       hd_unpack_text(unpack, ret_value->name, sizeof ret_value->name);
#define UNPACK_METRICS(name)    unpack_metrics(unpack, &ret_value->name);
#define UNPACK_LOADS(name)      ret_value->name##_count = unpack_loads(unpack, ret_value->name);

static void pack_later(struct hd_pack *pack, double value)
{
    if (!isnan(value))
        hd_pack_real(pack, value);
}

static double unpack_later(struct hd_unpack *unpack)
{
    const bool is_there = unpack->at_bytes < unpack->len_bytes;
    const double value = is_there ? hd_unpack_real(unpack) : NAN;

    if (is_there && isnan(value))
        unpack->failed = true;
    return value;
}

static void pack_later_word(struct hd_pack *pack, const char *word)
{
    if (*word)
        hd_pack_text(pack, word);
}

static void unpack_later_word(struct hd_unpack *unpack, char *ret_word, size_t size_bytes)
{
    ret_word[0] = '\0';
    if (unpack->at_bytes < unpack->len_bytes)
        hd_unpack_text(unpack, ret_word, size_bytes);
}

/* Packs the metrics, each with its id (metrics.h), because a rank's build may be older or newer
 * than heddled's, which can be upgraded while its ranks run. The number of metrics comes first:
 * read as a double it would be below 1e-320, which distinguishes it from the loss that protocol 3
 * has there. */
static void pack_metrics(struct hd_pack *pack, const struct hd_step_metrics *metrics)
{
    uint8_t packed[HD_METRICS_BYTES_MAX];

    hd_pack_int(pack, HD_METRIC_COUNT);
    hd_pack_bytes(pack, packed, hd_metrics_pack(metrics, packed));
}

/* Unpacks the metrics of protocol 3, which are the values of metrics 1 to 16. loss: the bits of the
 * first value, the loss. */
static void unpack_metrics_3(struct hd_unpack *unpack, int64_t loss,
                             struct hd_step_metrics *ret_metrics)
{
    double value;

    memcpy(&value, &loss, sizeof value);
    for (int id = 1; id <= METRICS_OF_PROTOCOL_3; id++) {
        if (id > 1)
            value = hd_unpack_real(unpack);
        if (!hd_metric_set(ret_metrics, hd_metric_find(id), value))
            unpack->failed = true;
    }
}

static void unpack_metrics(struct hd_unpack *unpack, struct hd_step_metrics *ret_metrics)
{
    const int64_t count = hd_unpack_int(unpack);
    const uint8_t *packed;
    size_t size_bytes;

    *ret_metrics = (struct hd_step_metrics){0};
    if (count < 1 || count > METRICS_MAX) {
        unpack_metrics_3(unpack, count, ret_metrics);
        return;
    }
    packed = hd_unpack_bytes(unpack, METRICS_MAX * HD_METRICS_BYTES_EACH, &size_bytes);
    if (!packed || size_bytes != (size_t)count * HD_METRICS_BYTES_EACH ||
        hd_metrics_unpack(packed, size_bytes, ret_metrics))
        unpack->failed = true;
}

static void pack_loads(struct hd_pack *pack, const int64_t *loads, int64_t count)
{
    if (count < 0 || count > HD_LINK_LOADS_MAX)
        pack->failed = true;
    hd_pack_int(pack, count);
    for (int64_t i = 0; i < count && !pack->failed; i++)
        hd_pack_int(pack, loads[i]);
}

static int64_t unpack_loads(struct hd_unpack *unpack, int64_t ret_loads[HD_LINK_LOADS_MAX])
{
    const int64_t count = hd_unpack_int(unpack);

    if (count < 0 || count > HD_LINK_LOADS_MAX) {
        unpack->failed = true;
        return 0;
    }
    for (int64_t i = 0; i < count; i++)
        ret_loads[i] = hd_unpack_int(unpack);
    return count;
}

#define X(kind, name) PACK_##kind(name)
#define R(kind, member, name, fields)                                                     \
    static void pack_##member(struct hd_pack *pack, const struct hd_link_##member *value) \
    {                                                                                     \
        fields(X)                                                                         \
    }
HD_LINK_REPORTS(R)
#undef R
#undef X

#define X(kind, name) UNPACK_##kind(name)
#define R(kind, member, name, fields)                                                         \
    static void unpack_##member(struct hd_unpack *unpack, struct hd_link_##member *ret_value) \
    {                                                                                         \
        fields(X)                                                                             \
    }
HD_LINK_REPORTS(R)
#undef R
#undef X

size_t hd_link_report_encode(const struct hd_link_report *report, uint8_t *bytes, size_t size_bytes)
{
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, size_bytes);
    hd_pack_int(&pack, report->kind);
    hd_pack_int(&pack, report->job);
    hd_pack_int(&pack, report->attempt);
    hd_pack_int(&pack, report->rank);
    hd_pack_int(&pack, report->seq);
    hd_pack_int(&pack, report->wall_ms);
    switch (report->kind) {
#define R(kind, member, name, fields)          \
    case HD_LINK_##kind:                       \
        pack_##member(&pack, &report->member); \
        break;
        HD_LINK_REPORTS(R)
#undef R
    case HD_LINK_NONE:
    case HD_LINK_KIND_COUNT:
        return 0;
    }
    return hd_pack_end(&pack, HD_LINK_MSG_REPORT);
}

/* Returns true if all enum values in a report are in range. */
static bool is_known(const struct hd_link_report *r)
{
    switch (r->kind) {
    case HD_LINK_EVENT:
        return r->event.level >= 0 && r->event.level < HD_LINK_LEVEL_COUNT &&
               (isnan(r->event.about) ||
                (r->event.about >= 0 && r->event.about < HD_LINK_RANKS_MAX));
    case HD_LINK_PROGRESS:
        return r->progress.phase >= 0 && r->progress.phase < HD_LINK_PHASE_COUNT;
    case HD_LINK_FAILURE:
        return r->failure.status > 0 && r->failure.status < HD_STATUS_COUNT;
    case HD_LINK_END:
        return r->end.cause >= 0 && r->end.cause < HD_LINK_CAUSE_COUNT;
    default:
        return true;
    }
}

enum hd_status hd_link_report_decode(const struct hd_frame *frame,
                                     struct hd_link_report *ret_report)
{
    struct hd_link_report r;
    struct hd_unpack unpack;
    int64_t kind_number;
    enum hd_status st;

    if (frame->type != HD_LINK_MSG_REPORT)
        return hd_err(HD_CORRUPT, "a message of type %d is not a report", frame->type);
    hd_unpack_begin(&unpack, frame);
    kind_number = hd_unpack_int(&unpack);
    if (kind_number <= HD_LINK_NONE || kind_number >= HD_LINK_KIND_COUNT)
        return hd_err(HD_CORRUPT, "a report of the unknown kind %lld", (long long)kind_number);
    r.kind = (enum hd_link_kind)kind_number;
    r.job = hd_unpack_int(&unpack);
    r.attempt = hd_unpack_int(&unpack);
    r.rank = hd_unpack_int(&unpack);
    r.seq = hd_unpack_int(&unpack);
    r.wall_ms = hd_unpack_int(&unpack);
    switch (r.kind) {
#define R(kind, member, name, fields)        \
    case HD_LINK_##kind:                     \
        unpack_##member(&unpack, &r.member); \
        break;
        HD_LINK_REPORTS(R)
#undef R
    case HD_LINK_NONE:
    case HD_LINK_KIND_COUNT:
        break;
    }
    st = hd_unpack_end(&unpack);
    if (st)
        return st;
    if (!is_known(&r) || r.rank < -1 || r.rank >= HD_LINK_RANKS_MAX || r.seq < 0)
        return hd_err(HD_CORRUPT, "a %s report has a number out of range",
                      hd_link_kind_name(r.kind));
    *ret_report = r;
    return HD_OK;
}
