/* layout_cache: the layouts of attempts.
 *
 * Placement decides how many devices a job gets, by arithmetic alone (plan.c). Finding the best
 * layout on them, and whether any fits their memory, takes from a millisecond to seconds. So the
 * core requests it (hd_core_out.asked), the job waits, and the answer comes as an event. The cache
 * keeps the answers: jobs with equal requests share one, and nothing is requested twice. An answer
 * is a function of its request, so it may be dropped and requested again. A preliminary answer, of
 * a search that was cut short, is used until a later search replaces it.
 *
 *     not known --> asked (hd_core_out.asked) --HD_CORE_PLANNED--> known
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "controller/core/schedule/schedule.h"

enum {
    LAYOUT_CACHE_MAX = 4096, /* layouts kept in the cache */
    AHEAD_MAX = 16,          /* most prefetch requests for layouts in one step */
    QUESTIONS_MAX = 1024,    /* most layout requests without an answer; a further request is made
                              * later */
    IMPROVE_MS = 60 * 1000,  /* milliseconds after which a preliminary answer is requested again,
                              * behind all requests for which jobs wait */
};

/* ---- entries ----------------------------------------------------------------------------------*/

static struct core_cached_layout *entry_of(const struct hd_core *core, const char *key)
{
    uint64_t index;

    return core_map_get(&core->cached_layout_by_key, key, &index) ? core->layout_cache[index]
                                                                  : NULL;
}

static void free_entry(struct core_cached_layout *entry)
{
    if (!entry)
        return;
    free(entry->key);
    free(entry->waiters);
    core_free_text(&entry->why);
    free(entry);
}

void core_layout_cache_done(struct hd_core *core)
{
    for (size_t i = 0; i < core->cached_layout_count; i++)
        free_entry(core->layout_cache[i]);
    free(core->layout_cache);
    core_map_done(&core->cached_layout_by_key);
}

/* Drops all layouts in the cache. Jobs in groups that wait on such a layout forget it and look the
 * cache up again. */
static void forget_known(struct hd_core *core)
{
    size_t kept = 0;

    for (size_t i = 0; i < core->group_count; i++)
        for (struct core_job *job = core->groups[i]->first; job; job = job->after)
            if (job->planning && job->planning->known)
                job->planning = NULL;
    core_map_done(&core->cached_layout_by_key);
    for (size_t i = 0; i < core->cached_layout_count; i++) {
        struct core_cached_layout *entry = core->layout_cache[i];

        if (entry->known) { /* also a layout that is being recomputed: that result is then
                             * ignored */
            free_entry(entry);
            continue;
        }
        core->no_memory |= !core_map_put(&core->cached_layout_by_key, entry->key, kept);
        core->layout_cache[kept++] = entry;
    }
    core->cached_layout_count = kept;
    core->cached_layout_known = 0;
}

static struct core_cached_layout *add_entry(struct hd_core *core, const char *key)
{
    struct core_cached_layout *entry = calloc(1, sizeof *entry);

    if (core->cached_layout_known >= LAYOUT_CACHE_MAX)
        forget_known(core);
    if (entry)
        entry->key = strdup(key);
    if (!entry || !entry->key ||
        !core_grow_array(core, &core->layout_cache, core->cached_layout_count,
                         &core->cached_layout_size, sizeof entry) ||
        !core_map_put(&core->cached_layout_by_key, key, core->cached_layout_count)) {
        core->no_memory = true;
        free_entry(entry);
        return NULL;
    }
    core->layout_cache[core->cached_layout_count++] = entry;
    return entry;
}

/* Sets the job's predicted step time and reclassifies the job, because the length of its run is
 * part of its class key. */
static void predict_price(struct hd_core *core, struct core_job *job,
                          const struct core_cached_layout *entry)
{
    job->predicted_step_s = entry->fits && !entry->failed
                                ? entry->step_s * core_price_factor(job, entry->layout.device)
                                : 0;
    if (job->group)
        core_waiting_moved(core, job);
}

enum hd_status core_planned(struct hd_core *core, const struct hd_core_event *event)
{
    const struct hd_core_answer *answer = &event->planned;
    struct core_cached_layout *entry = entry_of(core, answer->key);

    if (!entry || (entry->known && !entry->improves))
        return HD_OK; /* an answer to a layout request from before a restart */
    core->cached_layout_known += !entry->known;
    entry->known = true;
    entry->improves = false;
    entry->failed = answer->failed;
    entry->fits = answer->fits;
    entry->layout = answer->layout;
    entry->step_s = answer->step_s;
    entry->memory_bytes = answer->memory_bytes;
    entry->preliminary = answer->preliminary;
    entry->known_mono_ms = core->now.mono_ms;
    core_set_text(core, &entry->why, answer->why ? answer->why : "");
    /* A prefetched answer only changes predicted lengths; no job becomes startable by it. */
    core_due_if(core, CORE_DUE_TICK, entry->ahead);
    core_due_if(core, CORE_DUE_PASS, !entry->ahead);
    for (size_t i = 0; i < entry->waiter_count; i++) {
        struct core_job *job = core_find_job(core, entry->waiters[i]);

        if (job && !job->ended && core_active(job))
            core_jobs_add(core, &core->resize_candidates, job);
        else if (job && !job->ended)
            predict_price(core, job, entry);
    }
    entry->waiter_count = 0;
    return HD_OK;
}

/* Registers a job to be notified when this layout request is answered. */
static void add_waiter(struct hd_core *core, struct core_cached_layout *entry, uint64_t job)
{
    if (core_grow_array(core, &entry->waiters, entry->waiter_count, &entry->waiter_size,
                        sizeof *entry->waiters))
        entry->waiters[entry->waiter_count++] = job;
}

/* ---- requests ---------------------------------------------------------------------------------*/

static int32_t next_device(const struct core_forecast *forecast, const struct hd_job_needs *needs,
                           const struct core_placement *placement, const struct core_node *node,
                           enum hd_device_kind kind, int32_t from)
{
    if (!placement->idle)
        return core_free_device(forecast, needs, node, kind, from);
    for (int32_t d = from; d < node->rec.device_count; d++)
        if (node->rec.devices[d].kind == kind && core_device_works(node, d) &&
            core_device_suits(needs, node, d))
            return d;
    return -1;
}

/* Sets in *asked the properties (least memory, fewest threads, bf16) of all devices that an attempt
 * would hold. False: the memory of one is unknown. */
static bool fold_devices(const struct core_forecast *forecast, const struct hd_job_needs *needs,
                         const struct core_placement *placement, enum hd_device_kind kind,
                         struct hd_core_asked *asked)
{
    asked->threads = INT32_MAX;
    asked->bf16 = true;
    for (size_t m = 0; m < placement->member_count; m++) {
        const struct core_node *node = placement->members[m].node;
        int32_t left = placement->members[m].count;

        for (int32_t d = node->alike ? 0 : next_device(forecast, needs, placement, node, kind, 0);
             d >= 0 && left > 0;
             d = next_device(forecast, needs, placement, node, kind, d + 1), left--) {
            const struct hd_device_record *device = &node->rec.devices[d];

            asked->bf16 = asked->bf16 && (device->precisions & (1u << HD_PRECISION_BF16));
            asked->threads = device->threads < asked->threads ? device->threads : asked->threads;
            if (device->memory_bytes <= 0)
                return false;
            if (!asked->memory_bytes || asked->memory_bytes > device->memory_bytes) {
                asked->memory_bytes = device->memory_bytes;
                asked->device_name = device->name ? device->name : "";
                asked->traits = node->facts.traits ? node->facts.traits : "";
            }
            if (node->alike)
                break; /* the remaining devices are equal */
        }
    }
    return asked->memory_bytes > 0;
}

/* Returns the node whose probe gives the speed of the placement's devices; NULL: none does. CPU
 * devices of one node were measured together; nothing was measured across nodes. GPU kernels take
 * the same time on every node of a job, because its GPUs are of one model. */
static const struct core_node *measured_node(const struct core_placement *placement,
                                             enum hd_device_kind kind)
{
    const size_t count =
        kind == HD_DEVICE_KIND_CUDA || placement->member_count == 1 ? placement->member_count : 0;

    for (size_t m = 0; m < count; m++) {
        const struct core_node *node = placement->members[m].node;

        if (node->probe.measured_ms && hd_probed_kind(&node->rec) == kind)
            return node;
    }
    return NULL;
}

/* Returns the greatest common divisor of the device counts of the placement's nodes: ranks in
 * groups of this size share a node. */
static int32_t together_on(const struct core_placement *placement)
{
    int32_t common = 0;

    for (size_t m = 0; m < placement->member_count; m++)
        for (int32_t rest = placement->members[m].count, swap; rest; rest = swap) {
            swap = common % rest;
            common = rest;
        }
    return common;
}

/* Returns whether the job file leaves a size open that the layout search would choose. */
static bool leaves_sizes_open(const struct hd_plan_request *wish)
{
    const struct hd_layout_sizes *s = &wish->sizes;

    return !s->tp || !s->pp || !s->cp || (wish->experts && !s->ep) || !s->micro_batch ||
           s->zero < 0 || strcmp(s->recompute, "auto") == 0 ||
           (s->pp != 1 && strcmp(s->schedule, "auto") == 0);
}

/* Returns the layout of the newest attempt that had as many devices of this kind; NULL: there was
 * none. */
static const struct hd_layout_sizes *layout_before(const struct core_layout_client *client,
                                                   const struct core_placement *placement)
{
    const struct core_job *job = client->before;

    for (int32_t i = job ? job->rec.attempt_count : 0; i > 0; i--) {
        const struct core_attempt *attempt = job->attempts[i - 1];

        if (attempt && attempt->rec.plan.rank_count == placement->device_count &&
            attempt->rec.plan.layout.device == placement->plan.layout.device)
            return &attempt->rec.plan.layout;
    }
    return NULL;
}

/* Fixes the sizes of the request to those of an earlier attempt's layout, except precision and
 * threads, which follow from the devices. False: there is no earlier one, the job file no longer
 * allows it, or this placement separates ranks that must share a node. */
static bool keep_layout(const struct core_layout_client *client,
                        const struct core_placement *placement, struct hd_core_asked *asked)
{
    const struct hd_layout_sizes *before = layout_before(client, placement);
    struct hd_plan_request kept = asked->wish;
    struct hd_layout_sizes sizes;

    if (!before || !hd_plan_allows(&asked->wish, before))
        return false;
    kept.sizes = *before;
    kept.sizes.precision = asked->wish.sizes.precision;
    kept.sizes.threads = asked->wish.sizes.threads;
    if (hd_plan_size(&kept, asked->devices, &sizes) || asked->together % hd_plan_unit(&kept))
        return false;
    asked->wish = kept;
    return true;
}

/* Returns a hash of the sizes that a job file gives or leaves open. It takes the place of their text in
 * keys, which a pass forms thousands of. */
static uint64_t hash_sizes(const struct hd_layout_sizes *sizes)
{
    struct hd_job job; /* only the layout is read */
    struct hd_hash hash;

    job.layout = *sizes;
    hd_hash_begin(&hash);
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (hd_job_key_is_of_layout(key))
            hd_hash_add(&hash,
                        hd_job_key_is_text(key) ? hd_job_text(key, &job)
                                                : hd_job_const_member(key, &job),
                        hd_job_member_bytes(key, &job) + hd_job_key_is_text(key));
    }
    return hd_hash_value(&hash);
}

/* Returns whether the sizes have no word that this build does not know. */
static bool is_known(struct hd_core *core, const struct hd_layout_sizes *sizes)
{
    struct hd_text text = {0};
    const bool known = !hd_layout_write(sizes, &text);

    core->no_memory |= text.failed;
    hd_text_free(&text);
    return known;
}

/* Fills a layout request and its key with everything that the answer depends on. keep: request only
 * whether an earlier attempt's layout fits. False: no request is needed or possible. */
static bool form_question(struct hd_core *core, const struct core_layout_client *client,
                          const struct core_placement *placement, bool keep,
                          struct hd_core_asked *asked, struct hd_text *key)
{
    const struct hd_job_needs *needs = client->needs;
    const enum hd_device_kind kind = hd_device_kind_of(placement->plan.layout.device);
    const struct core_node *measured = measured_node(placement, kind);

    asked->probe_uuid = measured ? measured->rec.uuid : "";
    asked->wish = core_plan_request_on(needs, kind);
    asked->devices = placement->device_count;
    asked->together = together_on(placement);
    asked->tier = placement->tier;
    if (!core->config.asks_layouts || !leaves_sizes_open(&asked->wish) ||
        !(needs->shape || client->job) || (keep && !layout_before(client, placement)) ||
        !fold_devices(client->forecast ? client->forecast : &core->present, needs, placement, kind,
                      asked))
        return false;
    if (keep && !keep_layout(client, placement, asked))
        return false;
    hd_text_add(key, "%016" PRIx64 " %" PRIu64 " %016" PRIx64 " %d %d %d %s %s %lld %d %d",
                needs->shape, needs->shape ? 0 : client->job, hash_sizes(&asked->wish.sizes),
                asked->devices, asked->together, asked->tier, asked->device_name, asked->traits,
                (long long)asked->memory_bytes, asked->threads, asked->bf16);
    if (measured)
        hd_text_add(key, " %s %lld", asked->probe_uuid, (long long)measured->probe.measured_ms);
    core->no_memory |= key->failed;
    return !core->no_memory && (entry_of(core, key->data) || is_known(core, &asked->wish.sizes));
}

bool core_asks_no_more(const struct hd_core *core)
{
    return core->cached_layout_count - core->cached_layout_known >= QUESTIONS_MAX;
}

/* Returns the cache entry of a layout request; if it is new, issues the request. NULL: it is new
 * and cannot be issued now (too many are unanswered, or no step runs), or no memory. */
static struct core_cached_layout *consult(struct hd_core *core, const char *key,
                                          struct hd_core_asked *asked)
{
    struct core_cached_layout *entry = entry_of(core, key);
    struct hd_core_out *out = core->out;
    const bool hurries = entry && !entry->known && entry->ahead && !asked->ahead;
    const bool improves = entry && entry->known && entry->preliminary && !entry->improves &&
                          core->now.mono_ms - entry->known_mono_ms >= IMPROVE_MS;

    if (!out || (entry && !hurries && !improves) || (!entry && core_asks_no_more(core)))
        return entry;
    entry = entry ? entry : add_entry(core, key);
    if (entry && improves) /* the old answer is used until the new one comes */
        entry->improves = asked->ahead = true;
    else if (entry)
        entry->ahead = asked->ahead;
    if (!entry ||
        !core_grow_array(core, &out->asked, out->asked_count, &out->asked_size, sizeof *asked))
        return NULL;
    asked->key = entry->key;
    out->asked[out->asked_count++] = *asked;
    return entry;
}

/* Takes over the answer. job: multiplies the predicted step time by what its attempts have shown;
 * NULL: not submitted. */
static enum core_layout take(const struct core_cached_layout *entry, const struct core_job *job,
                             struct core_placement *placement, struct hd_text *why)
{
    double factor;

    if (!entry || !entry->known)
        return CORE_LAYOUT_LATER;
    if (entry->failed)
        return CORE_LAYOUT_FITS;
    hd_text_add(why, "%s", entry->why ? entry->why : "");
    if (!entry->fits)
        return CORE_LAYOUT_INFEASIBLE;
    factor = core_price_factor(job, entry->layout.device);
    placement->plan.layout = entry->layout;
    placement->plan.step_s = entry->step_s * factor;
    placement->plan.step_factor = factor;
    if (factor != 1 && entry->step_s > 0)
        hd_text_add(why,
                    "%ssteps before took %.3g times what was predicted, so %.3g s are expected",
                    why->len_bytes ? "; " : "", factor, placement->plan.step_s);
    placement->plan.memory_bytes = entry->memory_bytes;
    return CORE_LAYOUT_FITS;
}

enum core_layout core_choose_layout(struct hd_core *core, const struct core_layout_client *client,
                                    struct core_placement *placement, int64_t *ret_memory_bytes,
                                    const struct core_cached_layout **ret_entry,
                                    struct hd_text *ret_why)
{
    enum core_layout layout = CORE_LAYOUT_FITS;
    struct hd_text key = {0}, why = {0};
    bool taken = false;

    *ret_memory_bytes = 0;
    *ret_entry = NULL;
    for (int keep = 1; !taken && keep >= 0; keep--) {
        struct hd_core_asked asked = {.spec = client->spec, .spec_bytes = client->spec_bytes};

        hd_text_clear(&key);
        hd_text_clear(&why);
        if (!form_question(core, client, placement, keep, &asked, &key))
            continue;
        *ret_memory_bytes = asked.memory_bytes;
        *ret_entry = consult(core, key.data, &asked);
        layout = take(*ret_entry, client->before, placement, &why);
        taken = layout != CORE_LAYOUT_INFEASIBLE && !(*ret_entry && (*ret_entry)->failed);
    }
    hd_text_add(ret_why, "%s", why.len_bytes ? why.data : "");
    core->no_memory |= why.failed;
    hd_text_free(&key);
    hd_text_free(&why);
    return layout;
}

enum core_layout core_ask_for(struct hd_core *core, const struct core_layout_client *client,
                              struct core_placement *placement, struct hd_text *ret_why)
{
    const struct core_cached_layout *entry;
    enum core_layout layout;
    int64_t memory_bytes;

    layout = core_choose_layout(core, client, placement, &memory_bytes, &entry, ret_why);
    if (layout == CORE_LAYOUT_LATER && entry)
        add_waiter(core, (struct core_cached_layout *)(uintptr_t)entry, client->job);
    return layout;
}

/* ---- prefetch requests ------------------------------------------------------------------------*/

/* Requests a layout for the best possible placement on the job's fewest devices, for the first
 * device kind that has one. False: too many requests are unanswered. */
static bool ask_early(struct hd_core *core, struct core_job *job)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t kind_count = core_kinds(&job->needs, kinds);
    const struct core_layout_client client = core_layout_client_of(job, &job->needs);
    struct hd_core_asked asked = {
        .spec = job->rec.spec, .spec_bytes = job->rec.spec_bytes, .ahead = true};
    struct core_placement placement = {0};
    struct core_cached_layout *entry = NULL;
    struct hd_text key = {0};
    bool is_question = false;

    for (size_t k = 0; k < kind_count && !placement.device_count; k++)
        placement = core_best_placement(core, &job->needs, kinds[k],
                                        core_devices_needed(&job->needs, kinds[k]));
    for (int keep = 1; placement.device_count && !is_question && keep >= 0; keep--)
        is_question = form_question(core, &client, &placement, keep, &asked, &key);
    if (is_question)
        entry = consult(core, key.data, &asked);
    free(placement.members);
    hd_text_free(&key);
    if (is_question && !entry)
        return false;
    job->price_predicted =
        placement.device_count > 0; /* without a placement, core_predict_prices_again tries again
                                     * when nodes have changed */
    if (entry && entry->known)
        predict_price(core, job, entry);
    else if (entry)
        add_waiter(core, entry, job->rec.job);
    return true;
}

void core_predict_prices_again(struct hd_core *core)
{
    if (!core->config.asks_layouts)
        return;
    for (size_t i = 0; i < core->group_count; i++)
        for (struct core_job *job = core->groups[i]->first; job; job = job->after)
            if (!job->price_predicted)
                core_jobs_add(core, &core->price_unpredicted, job);
}

void core_predict_prices(struct hd_core *core)
{
    for (int asked = 0; core->price_unpredicted.count && asked < AHEAD_MAX; asked++) {
        struct core_job *job = core->price_unpredicted.items[0];

        if (!ask_early(core, job))
            return;
        core_jobs_remove(&core->price_unpredicted, job);
    }
}
