/* probe: results of nodes' probes, stored as calibration text for the planner and as figures for
 * users. The core has the rates of single devices, and puts the whole result into the database.
 *
 * A calibration is about 60 KB of text per node with CPU devices. It is parsed on arrival, so that
 * a stored one is complete. */
#include <search.h> /* tsearch: a balanced tree */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/services/internal.h"
#include "plan/calibration_report.h"

/* The probe result of one node. */
struct kept {
    char uuid[HD_CTL_NAME_BYTES_MAX + 1];
    char *text;    /* text of the node's calibration; NULL: none */
    void *figures; /* packed NodeProbe message without its times and problem */
    size_t figures_bytes;
};

/* ---- the tree ---------------------------------------------------------------------------------*/

static int compare_probes(const void *a, const void *b)
{
    return strcmp(((const struct kept *)a)->uuid, ((const struct kept *)b)->uuid);
}

static struct kept *find_probe(const struct controller *c, const char *uuid)
{
    struct kept key;
    void *found;

    (void)snprintf(key.uuid, sizeof key.uuid, "%s", uuid);
    found = tfind(&key, &c->probes, compare_probes);
    return found ? *(struct kept **)found : NULL;
}

static struct kept *add(struct controller *c, const char *uuid)
{
    struct kept *kept = calloc(1, sizeof *kept);

    if (!kept)
        return NULL;
    (void)snprintf(kept->uuid, sizeof kept->uuid, "%s", uuid);
    if (tsearch(kept, &c->probes, compare_probes))
        return kept;
    free(kept);
    return NULL;
}

static void empty(struct kept *kept)
{
    free(kept->text);
    free(kept->figures);
    kept->text = NULL;
    kept->figures = NULL;
    kept->figures_bytes = 0;
}

static void free_kept(void *item)
{
    empty(item);
    free(item);
}

void probe_free_all(struct controller *c)
{
    tdestroy(c->probes, free_kept);
    c->probes = NULL;
}

/* ---- figures ----------------------------------------------------------------------------------*/

static void add_devices(struct hd_arena *arena, const struct hd_calibration *cal,
                        Heddle__V1__NodeProbe *m)
{
    m->devices = hd_arena_array(arena, (size_t)cal->each_count + 1, sizeof *m->devices);
    m->pairs = hd_arena_array(arena, (size_t)cal->pair_count + 1, sizeof *m->pairs);
    for (int i = 0; m->devices && i < cal->each_count; i++) {
        Heddle__V1__DeviceFigures *d = hd_arena_alloc(arena, sizeof *d);

        if (!d)
            return;
        heddle__v1__device_figures__init(d);
        d->device = i; /* index among the measured devices; add_figures sets the real one */
        d->single_flops = cal->each[i].single_flops;
        d->half_flops = cal->each[i].half_flops;
        d->memory_bytes_per_s = cal->each[i].memory_bytes_per_s;
        m->devices[m->n_devices++] = d;
    }
    for (int i = 0; m->pairs && i < cal->pair_count; i++) {
        Heddle__V1__DevicePair *p = hd_arena_alloc(arena, sizeof *p);

        if (!p)
            return;
        heddle__v1__device_pair__init(p);
        p->a = (int32_t)cal->pairs[i].a;
        p->b = (int32_t)cal->pairs[i].b;
        p->latency_s = cal->pairs[i].latency_s;
        p->bytes_per_s = cal->pairs[i].bytes_per_s;
        m->pairs[m->n_pairs++] = p;
    }
}

static void add_products(struct hd_arena *arena, const struct hd_calibration *cal,
                         Heddle__V1__NodeProbe *m)
{
    struct hd_calibration_report_product products[HD_CALIBRATION_REPORT_PRODUCTS_MAX];
    const int count = hd_calibration_report_products(cal, products);

    m->products = hd_arena_array(arena, HD_CALIBRATION_REPORT_PRODUCTS_MAX, sizeof *m->products);
    for (int i = 0; m->products && i < count; i++) {
        Heddle__V1__ProductFigures *p = hd_arena_alloc(arena, sizeof *p);

        if (!p)
            return;
        heddle__v1__product_figures__init(p);
        p->precision = convert_text(products[i].precision);
        p->shape = convert_text(products[i].shape);
        p->flops = products[i].flops;
        m->products[m->n_products++] = p;
    }
}

static void add_collectives(struct hd_arena *arena, const struct hd_calibration *cal,
                            Heddle__V1__NodeProbe *m)
{
    m->collectives = hd_arena_array(arena, (size_t)cal->curve_count + 1, sizeof *m->collectives);
    for (int i = 0; m->collectives && i < cal->curve_count; i++) {
        Heddle__V1__CollectiveFigures *f = hd_arena_alloc(arena, sizeof *f);

        if (!f)
            return;
        heddle__v1__collective_figures__init(f);
        f->kind = convert_text(hd_comm_kind_name(cal->curves[i].kind));
        f->members = cal->curves[i].members;
        hd_calibration_report_curve(&cal->curves[i], &f->alpha_s, &f->bytes_per_s);
        m->collectives[m->n_collectives++] = f;
    }
}

/* Stores a node's parsed calibration with its text and figures. */
static enum hd_status keep_probe(struct controller *c, const char *uuid, const char *text,
                                 const struct hd_calibration *cal, struct hd_arena *arena)
{
    Heddle__V1__NodeProbe m = HEDDLE__V1__NODE_PROBE__INIT;
    struct kept *kept = find_probe(c, uuid);

    m.engine = convert_text(cal->engine);
    m.checkpoint_bytes_per_s = cal->checkpoint_bytes_per_s;
    add_devices(arena, cal, &m);
    add_products(arena, cal, &m);
    add_collectives(arena, cal, &m);
    if (!kept)
        kept = add(c, uuid);
    if (!kept || hd_arena_failed(arena))
        return hd_err(HD_NO_MEMORY, "no memory for a node's probe result");
    empty(kept);
    kept->text = strdup(text);
    kept->figures = malloc(heddle__v1__node_probe__get_packed_size(&m) + 1);
    if (!kept->text || !kept->figures) {
        empty(kept);
        return hd_err(HD_NO_MEMORY, "no memory for a node's probe result");
    }
    kept->figures_bytes = heddle__v1__node_probe__pack(&m, kept->figures);
    return HD_OK;
}

/* ---- receiving and restoring results ----------------------------------------------------------*/

/* Parses a calibration text, which ends with NUL, and sets the record's date and devices.
 * HD_CONFLICT: another build measured it. */
static enum hd_status read_calibration(const char *text, size_t bytes, struct hd_arena *arena,
                                       struct hd_calibration *cal, struct hd_probe_record *record)
{
    char build[HD_CALIBRATION_WORD_MAX];
    enum hd_status st = strlen(text) == bytes ? hd_calibration_read(text, bytes, arena, cal)
                                              : hd_err(HD_INVALID, "it is no text");

    hd_calibration_build(build);
    if (!st && strcmp(cal->build, build) != 0)
        st = hd_err(HD_CONFLICT,
                    "another build of Heddle has measured it (%s, the controller is %s); upgrade "
                    "the older one, then the node measures anew",
                    cal->build, build);
    if (!st && cal->made_unix_s > INT64_MAX / 1000)
        st = hd_err(HD_INVALID, "made_unix_s is too large");
    if (!st)
        record->devices =
            hd_arena_array(arena, (size_t)cal->each_count + 1, sizeof *record->devices);
    if (!st && !record->devices)
        st = hd_err(HD_NO_MEMORY, "no memory for a node's probe result");
    if (st)
        return st;
    record->measured_ms = cal->made_unix_s * 1000 > 0 ? cal->made_unix_s * 1000 : 1;
    record->device_count = cal->each_count;
    for (int i = 0; i < cal->each_count; i++)
        record->devices[i] =
            (struct hd_device_figures){.single_flops = cal->each[i].single_flops,
                                       .half_flops = cal->each[i].half_flops,
                                       .memory_bytes_per_s = cal->each[i].memory_bytes_per_s};
    return HD_OK;
}

static char *copy_text(struct hd_arena *arena, const void *bytes, size_t count)
{
    char *text = hd_arena_alloc(arena, count + 1);

    if (text && count)
        memcpy(text, bytes, count);
    return text;
}

static const char *cut(struct hd_arena *arena, const char *text)
{
    return hd_arena_printf(arena, "%.*s", (int)hd_record_fit(text, HD_CTL_MESSAGE_BYTES_MAX), text);
}

/* Returns the record's problem for a calibration that cannot be used (hd_err_message). A `problem`
 * says that the newest probe failed, so that this calibration is an older one.
 */
static const char *refuse_probe(struct hd_arena *arena, const char *problem)
{
    const char *text = hd_arena_printf(arena, "%s%s calibration is of no use: %s", problem,
                                       *problem ? "; and its older" : "its", hd_err_message());

    return text ? cut(arena, text) : NULL;
}

enum hd_status probe_take(struct controller *c, const char *uuid, uint64_t stream,
                          const Heddle__V1__ProbeReport *m)
{
    struct hd_core_event event = {
        .kind = HD_CORE_PROBED,
        .probed = {.stream = stream,
                   .request = m->request,
                   .record = {.node_uuid = uuid,
                              .ended_ms = m->ended_unix_ms > 0 ? m->ended_unix_ms : 0,
                              .calibration = m->calibration.data,
                              .calibration_bytes = m->calibration.len}}};
    struct hd_probe_record *record = &event.probed.record;
    struct hd_calibration cal;
    struct hd_arena arena;
    struct kept *kept = find_probe(c, uuid);
    enum hd_status st = HD_OK;
    char *text;

    hd_arena_init(&arena, 0);
    text = copy_text(&arena, m->calibration.data, m->calibration.len);
    record->problem = cut(&arena, m->problem);
    record->measured_on = cut(&arena, m->measured_on);
    if (hd_arena_failed(&arena))
        st = hd_err(HD_NO_MEMORY, "no memory for a node's probe result");
    if (!st && m->calibration.len &&
        read_calibration(text, m->calibration.len, &arena, &cal, record)) {
        record->problem = refuse_probe(&arena, record->problem);
        record->calibration_bytes = 0;
    }
    if (!st)
        st = transaction_step(c, &event);
    if (!st && kept)
        empty(kept);
    if (!st && record->calibration_bytes)
        st = keep_probe(c, uuid, text, &cal, &arena);
    hd_arena_done(&arena);
    return st;
}

/* Restores a node's probe. A calibration that this build cannot read counts as none; the node
 * measures again, because its build changes, too. */
enum hd_status probe_load(struct controller *c, const struct hd_probe_record *stored)
{
    struct hd_probe_record record = *stored;
    struct hd_calibration cal;
    struct hd_arena arena;
    enum hd_status st = HD_OK;
    char *text;

    hd_arena_init(&arena, 0);
    record.measured_ms = 0;
    text = copy_text(&arena, stored->calibration, stored->calibration_bytes);
    if (!text)
        st = hd_err(HD_NO_MEMORY, "no memory for a node's probe result");
    if (!st && stored->calibration_bytes &&
        read_calibration(text, stored->calibration_bytes, &arena, &cal, &record)) {
        hd_log(HD_LOG_WARN, "a node's probe result is not used: %s", hd_err_message());
        record.problem =
            hd_arena_printf(&arena, "its calibration is of no use: %s", hd_err_message());
    }
    if (!st && record.measured_ms)
        st = keep_probe(c, record.node_uuid, text, &cal, &arena);
    if (!st)
        st = hd_core_restore_probe(c->core, &record);
    hd_arena_done(&arena);
    return st;
}

/* ---- for users and for the planner ------------------------------------------------------------*/

static void *alloc(void *arena, size_t size)
{
    return hd_arena_alloc(arena, size);
}

static void free_nothing(void *arena, void *memory) /* freed with the arena */
{
    (void)arena;
    (void)memory;
}

/* Copies the stored figures, and adds each device's index and why it is slow ("": it is not). */
static void add_figures(struct controller *c, struct hd_arena *arena, size_t index,
                        const struct hd_node_view *view, Heddle__V1__NodeProbe *m)
{
    const struct kept *kept = find_probe(c, view->record->uuid);
    ProtobufCAllocator in_arena = {.alloc = alloc, .free = free_nothing, .allocator_data = arena};
    Heddle__V1__NodeProbe *figures = NULL;
    size_t next = 0;

    if (kept && kept->figures)
        figures = heddle__v1__node_probe__unpack(&in_arena, kept->figures_bytes, kept->figures);
    if (!figures)
        return;
    m->engine = figures->engine;
    m->checkpoint_bytes_per_s = figures->checkpoint_bytes_per_s;
    m->devices = figures->devices;
    m->n_devices = figures->n_devices;
    m->pairs = figures->pairs;
    m->n_pairs = figures->n_pairs;
    m->products = figures->products;
    m->n_products = figures->n_products;
    m->collectives = figures->collectives;
    m->n_collectives = figures->n_collectives;
    for (int32_t d = 0; d < view->record->device_count && next < m->n_devices; d++) {
        struct hd_text why = {0};

        if (view->record->devices[d].kind != hd_probed_kind(view->record))
            continue;
        hd_core_slow_device(c->core, index, d, &why);
        m->devices[next]->device = d;
        m->devices[next++]->slow = convert_text(hd_arena_strdup(arena, why.data ? why.data : ""));
        hd_text_free(&why);
    }
}

Heddle__V1__NodeProbe *probe_show(struct controller *c, const struct veil *veil,
                                  struct hd_arena *arena, size_t index)
{
    Heddle__V1__NodeProbe *m;
    struct hd_node_view view;

    hd_core_node_at(c->core, index, &view);
    if (!view.probe_ended_ms && !view.probe_pending)
        return NULL;
    m = hd_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    heddle__v1__node_probe__init(m);
    m->pending = view.probe_pending;
    m->ended_unix_ms = view.probe_ended_ms;
    m->problem = convert_text(hd_arena_strdup(arena, veil_copy(veil, arena, view.probe_problem)));
    m->measured_unix_ms = view.probe_measured_ms;
    m->measured_on = convert_text(hd_arena_strdup(arena, view.probe_measured_on));
    if (view.probe_measured_ms)
        add_figures(c, arena, index, &view, m);
    return m;
}

const char *probe_calibration(const struct controller *c, struct hd_arena *arena, const char *uuid)
{
    const struct kept *kept = find_probe(c, uuid);

    return kept && kept->text ? hd_arena_strdup(arena, kept->text) : NULL;
}
