#include "plan/fit.h"

#include <stdio.h>
#include <string.h>

/* Sets *ret_bytes to the device bytes that one layout needs. HD_INVALID, HD_LIMIT, HD_UNSUPPORTED:
 * it cannot be built. */
static enum hd_status measure_layout(const struct hd_fit_asked *asked,
                                     const struct hd_layout_sizes *sizes, int64_t *ret_bytes)
{
    struct hd_arena arena;
    struct hd_plan plan;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_plan_build_layout(asked->spec, sizes, asked->traits, NULL, &arena, &plan);
    if (!st)
        *ret_bytes = hd_plan_class_bytes(hd_plan_fullest(&plan, -1));
    hd_arena_done(&arena);
    return st;
}

/* Tries one layout; true: no other layout need be tried, as it fits, or the host's memory ran out
 * (*st). axes: its tp, cp, pp and sequence. */
static bool try_level(const struct hd_fit_asked *asked, const struct hd_layout_sizes *axes,
                      int64_t zero, struct hd_fit *fit, enum hd_status *st)
{
    struct hd_plan_request request = *asked->request;
    struct hd_layout_sizes sizes;
    int64_t bytes;

    request.sizes.tp = axes->tp;
    request.sizes.cp = axes->cp;
    request.sizes.pp = axes->pp;
    request.sizes.sequence = axes->sequence;
    request.sizes.zero = zero;
    if (hd_plan_size(&request, asked->devices, &sizes))
        return false;
    if (zero > 0 && asked->request->sizes.zero < 0 && sizes.dp * sizes.cp == 1)
        return false; /* there is one replica, so ZeRO has nothing to shard */
    hd_plan_decide_device(sizes.device, asked->bf16_fast, asked->threads, &sizes);
    *st = measure_layout(asked, &sizes, &bytes);
    if (*st == HD_NO_MEMORY)
        return true;
    if (*st) { /* the layout cannot be built, as with more chunks than the model has units */
        if (!*fit->unlaid)
            (void)snprintf(fit->unlaid, sizeof fit->unlaid, "%s", hd_err_message());
        *st = HD_OK;
        return false;
    }
    fit->tried = fit->needed_bytes > 0;
    if (!fit->tried) {
        fit->first_bytes = bytes;
        fit->first_pp = sizes.pp;
        fit->first_zero = zero;
    }
    if (fit->tried && bytes >= fit->needed_bytes)
        return false; /* fit->sizes stays the layout that needs least memory so far */
    fit->sizes = sizes;
    fit->needed_bytes = bytes;
    fit->fits = bytes <= asked->memory_bytes;
    return fit->fits;
}

/* Tries every ZeRO stage that the request allows with these axes, the smallest first; true as
 * try_level. */
static bool try_levels(const struct hd_fit_asked *asked, const struct hd_layout_sizes *axes,
                       struct hd_fit *fit, enum hd_status *st)
{
    const bool any_zero = asked->request->sizes.zero < 0;
    bool found = false;

    for (int64_t zero = any_zero ? 0 : asked->request->sizes.zero; !found && zero <= 3; zero++) {
        found = try_level(asked, axes, zero, fit, st);
        if (!any_zero)
            break;
    }
    return found;
}

enum hd_status hd_fit_choose(const struct hd_fit_asked *asked, struct hd_fit *ret_fit)
{
    struct hd_layout_sizes axes = asked->request->sizes;
    const bool any_pp = !axes.pp;
    struct hd_fit fit = {0};
    bool found = false;
    enum hd_status st = hd_plan_decide(asked->request, asked->devices, &fit.sizes);

    if (st)
        return st;
    hd_plan_decide_device(fit.sizes.device, asked->bf16_fast, asked->threads, &fit.sizes);
    fit.fits = !asked->memory_bytes;
    if (fit.fits) {
        *ret_fit = fit;
        return HD_OK;
    }
    if (!any_pp)
        found = try_levels(asked, &axes, &fit, &st);
    for (int64_t pp = 1; any_pp && !found && pp <= asked->devices; pp++) {
        axes.pp = pp;
        if (asked->devices % pp == 0)
            found = try_levels(asked, &axes, &fit, &st);
    }
    /* No value of pp alone gives a layout on this number of devices: tp or cp must be more than 1,
     * too. */
    if (!found && !fit.needed_bytes && !*fit.unlaid) {
        axes = fit.sizes;
        (void)try_levels(asked, &axes, &fit, &st);
    }
    *ret_fit = fit;
    return st;
}

/* ---- the explanation ---- */

/* Appends "pp 2 and zero 1": those of the two members that are auto. */
static void add_members(const struct hd_layout_sizes *requested, int64_t pp, int64_t zero,
                        struct hd_text *text)
{
    if (!requested->pp)
        hd_text_add(text, "pp %lld", (long long)pp);
    if (requested->zero < 0)
        hd_text_add(text, "%szero %lld", requested->pp ? "" : " and ", (long long)zero);
}

/* Appends the keys that a user could change, the least intrusive first. */
static void add_remedies(const struct hd_fit_asked *asked, const struct hd_fit *fit,
                         struct hd_text *text)
{
    const struct hd_layout_sizes *requested = &asked->request->sizes;
    const struct hd_layout_sizes *s = &fit->sizes;

    if (requested->zero >= 0 && requested->zero < 3 && s->dp * s->cp > 1)
        hd_text_add(text, "write parallel.zero: auto, ");
    if (requested->pp && s->dp > 1)
        hd_text_add(text, "write parallel.pp: auto, ");
    if (strncmp(s->recompute, "full", 4) != 0)
        hd_text_add(text, "keep less (parallel.recompute: full), ");
    if (s->micro_batch > 1)
        hd_text_add(text, "lower parallel.micro_batch from %lld, ", (long long)s->micro_batch);
    hd_text_add(text, "or give more devices (resources.devices) or devices with more memory");
}

/* Appends why axes that are auto are more than 1 although no other layout was tried before. */
static void add_forced(const struct hd_fit_asked *asked, const struct hd_fit *fit,
                       struct hd_text *text)
{
    const struct hd_layout_sizes *requested = &asked->request->sizes, *s = &fit->sizes;
    struct hd_plan_request plain = *asked->request;
    const char *sign = "";

    plain.searched = false;
    plain.sizes.pp = requested->pp ? requested->pp : 1;
    if (!hd_plan_check(&plain, asked->devices, asked->devices))
        return;
    if (!requested->tp && s->tp > 1) {
        hd_text_add(text, "tp %lld", (long long)s->tp);
        sign = ", ";
    }
    if (!requested->cp && s->cp > 1) {
        hd_text_add(text, "%scp %lld", sign, (long long)s->cp);
        sign = ", ";
    }
    if (!requested->pp && s->pp > 1)
        hd_text_add(text, "%spp %lld", sign, (long long)s->pp);
    hd_text_add(text, " chosen, as data parallelism alone is not possible: %s", hd_err_message());
}

void hd_fit_explain(const struct hd_fit_asked *asked, const struct hd_fit *fit,
                    struct hd_text *ret_text)
{
    char first[32], needs[32], has[32];

    hd_text_format_bytes(fit->first_bytes, first);
    hd_text_format_bytes(fit->needed_bytes, needs);
    hd_text_format_bytes(asked->memory_bytes, has);
    if (!fit->fits && !fit->needed_bytes) {
        hd_text_add(ret_text, "there is no layout on %d device%s: %s", asked->devices,
                    asked->devices == 1 ? "" : "s", fit->unlaid);
        return;
    }
    if (!fit->fits) {
        hd_text_add(ret_text, "no layout fits %d device%s: ", asked->devices,
                    asked->devices == 1 ? "" : "s");
        if (fit->sizes.tp > 1)
            hd_text_add(ret_text, "tp %lld, ", (long long)fit->sizes.tp);
        if (fit->sizes.cp > 1)
            hd_text_add(ret_text, "cp %lld, ", (long long)fit->sizes.cp);
        hd_text_add(ret_text,
                    "pp %lld with zero %lld, which takes least, needs %s of a device's %s; ",
                    (long long)fit->sizes.pp, (long long)fit->sizes.zero, needs, has);
        add_remedies(asked, fit, ret_text);
        return;
    }
    if (!fit->tried) {
        add_forced(asked, fit, ret_text);
        return;
    }
    add_members(&asked->request->sizes, fit->sizes.pp, fit->sizes.zero, ret_text);
    hd_text_add(ret_text, " chosen to fit: ");
    add_members(&asked->request->sizes, fit->first_pp, fit->first_zero, ret_text);
    hd_text_add(ret_text, " would take %s of a device's %s, this takes %s", first, has, needs);
}
