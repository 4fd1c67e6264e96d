#include "plan/fit.h"

#include <stdio.h>
#include <string.h>

/* What a rank takes of its device: on a GPU with its process; on a CPU device the plan alone. */
static int64_t needed(const struct hd_plan *plan, const struct hd_traits *traits)
{
    int64_t most = 0;

    for (int32_t i = 0; i < plan->class_count; i++) {
        const struct hd_plan_class *c = &plan->classes[i];
        const int64_t bytes =
            hd_traits_is_cuda(traits) ? c->device_bytes : hd_memory_total(&c->memory);

        most = bytes > most ? bytes : most;
    }
    return most;
}

/* HD_INVALID, HD_LIMIT, HD_UNSUPPORTED: the rung cannot be laid out. */
static enum hd_status measure(const struct hd_fit_asked *asked, const struct hd_layout_sizes *sizes,
                              int64_t *ret_bytes)
{
    struct hd_traits traits = *asked->traits;
    struct hd_job job = *asked->spec;
    struct hd_arena arena;
    struct hd_plan plan;
    enum hd_status st;

    job.layout = *sizes;
    if (!hd_traits_is_cuda(&traits))
        traits.threads = (int)sizes->threads;
    hd_arena_init(&arena, 0);
    st = hd_plan_build(&job, &traits, &arena, &plan);
    if (!st)
        *ret_bytes = needed(&plan, &traits);
    hd_arena_done(&arena);
    return st;
}

/* Tries one rung; true: it fits, and the search is over. */
static bool try_rung(const struct hd_fit_asked *asked, int64_t pp, int64_t zero, struct hd_fit *fit,
                     enum hd_status *st)
{
    struct hd_plan_request request = *asked->request;
    struct hd_layout_sizes sizes;
    int64_t bytes;

    request.sizes.pp = pp;
    request.sizes.zero = zero;
    if (hd_plan_size(&request, asked->devices, &sizes))
        return false;
    if (zero > 0 && asked->request->sizes.zero < 0 && sizes.dp * sizes.cp == 1)
        return false; /* ZeRO shares among replicas, and there is one */
    hd_plan_decide_device(sizes.device, asked->bf16_fast, asked->threads, &sizes);
    *st = measure(asked, &sizes, &bytes);
    if (*st == HD_NO_MEMORY)
        return true;
    if (*st) { /* such as more chunks than the model has units */
        if (!*fit->unlaid)
            (void)snprintf(fit->unlaid, sizeof fit->unlaid, "%s", hd_err_message());
        *st = HD_OK;
        return false;
    }
    fit->tried = fit->needed_bytes > 0;
    if (!fit->tried) {
        fit->first_bytes = bytes;
        fit->first_pp = pp;
        fit->first_zero = zero;
    }
    if (fit->tried && bytes >= fit->needed_bytes)
        return false; /* `sizes` stays the one that takes least */
    fit->sizes = sizes;
    fit->needed_bytes = bytes;
    fit->fits = bytes <= asked->memory_bytes;
    return fit->fits;
}

enum hd_status hd_fit_choose(const struct hd_fit_asked *asked, struct hd_fit *ret_fit)
{
    const struct hd_layout_sizes *wish = &asked->request->sizes;
    const bool any_pp = !wish->pp, any_zero = wish->zero < 0;
    struct hd_fit fit = {0};
    bool found = false;
    enum hd_status st = hd_plan_decide(asked->request, asked->devices, &fit.sizes);

    if (st)
        return st;
    hd_plan_decide_device(fit.sizes.device, asked->bf16_fast, asked->threads, &fit.sizes);
    fit.fits = !asked->memory_bytes;
    for (int64_t pp = any_pp ? 1 : wish->pp; !fit.fits && !found && pp <= asked->devices; pp *= 2) {
        for (int64_t zero = any_zero ? 0 : wish->zero; !found && zero <= 3; zero++) {
            found = try_rung(asked, pp, zero, &fit, &st);
            if (!any_zero)
                break;
        }
        if (!any_pp)
            break;
    }
    *ret_fit = fit;
    return st;
}

/* ---- the line ---- */

/* "pp 2 and zero 1" of the members that are auto. */
static void add_members(const struct hd_layout_sizes *wish, int64_t pp, int64_t zero,
                        struct hd_text *text)
{
    if (!wish->pp)
        hd_text_add(text, "pp %lld", (long long)pp);
    if (wish->zero < 0)
        hd_text_add(text, "%szero %lld", wish->pp ? "" : " and ", (long long)zero);
}

/* The keys that a user could change, nearest first. */
static void add_remedies(const struct hd_fit_asked *asked, const struct hd_fit *fit,
                         struct hd_text *text)
{
    const struct hd_layout_sizes *wish = &asked->request->sizes;
    const struct hd_layout_sizes *s = &fit->sizes;

    if (wish->zero >= 0 && wish->zero < 3 && s->dp * s->cp > 1)
        hd_text_add(text, "write parallel.zero: auto, ");
    if (wish->pp && s->dp > 1)
        hd_text_add(text, "write parallel.pp: auto, ");
    if (strncmp(s->recompute, "full", 4) != 0)
        hd_text_add(text, "keep less (parallel.recompute: full), ");
    if (s->micro_batch > 1)
        hd_text_add(text, "lower parallel.micro_batch from %lld, ", (long long)s->micro_batch);
    hd_text_add(text, "or give more devices (resources.devices) or devices with more memory");
}

void hd_fit_explain(const struct hd_fit_asked *asked, const struct hd_fit *fit,
                    struct hd_text *ret_text)
{
    char first[32], needs[32], has[32];

    hd_text_format_bytes(fit->first_bytes, first);
    hd_text_format_bytes(fit->needed_bytes, needs);
    hd_text_format_bytes(asked->memory_bytes, has);
    if (!fit->fits && !fit->needed_bytes && *fit->unlaid) {
        hd_text_add(ret_text, "there is no layout on %d device%s: %s", asked->devices,
                    asked->devices == 1 ? "" : "s", fit->unlaid);
        return;
    }
    if (!fit->fits) {
        hd_text_add(ret_text,
                    "no layout fits %d device%s: pp %lld with zero %lld, which takes least, needs "
                    "%s of a device's %s; ",
                    asked->devices, asked->devices == 1 ? "" : "s", (long long)fit->sizes.pp,
                    (long long)fit->sizes.zero, needs, has);
        add_remedies(asked, fit, ret_text);
        return;
    }
    if (!fit->tried)
        return;
    add_members(&asked->request->sizes, fit->sizes.pp, fit->sizes.zero, ret_text);
    hd_text_add(ret_text, " chosen to fit: ");
    add_members(&asked->request->sizes, fit->first_pp, fit->first_zero, ret_text);
    hd_text_add(ret_text, " would take %s of a device's %s, this takes %s", first, has, needs);
}
