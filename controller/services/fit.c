/* fit: what the core asks for an attempt that is about to start: a layout that fits its devices.
 * The answer follows from the question alone (hd_core_config.fit). */
#include "plan/fit.h"

#include <string.h>

#include "base/log.h"
#include "controller/services/internal.h"

/* The traits of the device. CPU devices: what their heddled says, if it is of the same build as
 * this controller; a GPU: those of its kind. False: not known, so nothing can be laid out. */
static bool find_traits(const struct hd_core_fit *asked, struct hd_traits *ret_traits)
{
    const struct hd_gpu_kind *kind;

    if (strcmp(asked->wish->sizes.device, "cpu") == 0)
        return hd_traits_read(asked->traits, ret_traits) == HD_OK;
    kind = hd_gpu_kind_of_name(asked->device_name);
    if (!kind)
        return false;
    hd_gpu_kind_traits(kind, ret_traits);
    ret_traits->memory_bytes = asked->memory_bytes;
    return true;
}

static enum hd_status choose(const struct hd_core_fit *asked, struct hd_arena *arena,
                             const struct hd_traits *traits, struct hd_fit *ret_fit,
                             struct hd_text *why)
{
    struct hd_job *spec = hd_arena_alloc(arena, sizeof *spec);
    const struct hd_fit_asked question = {.spec = spec,
                                          .request = asked->wish,
                                          .devices = asked->devices,
                                          .threads = asked->threads,
                                          .bf16_fast = asked->bf16,
                                          .traits = traits,
                                          .memory_bytes = asked->memory_bytes};
    enum hd_status st = spec ? convert_unpack_spec(asked->spec, asked->spec_bytes, arena, spec)
                             : hd_err(HD_NO_MEMORY, "no memory for a job");

    if (!st)
        st = hd_fit_choose(&question, ret_fit);
    if (!st)
        hd_fit_explain(&question, ret_fit, why);
    return st;
}

bool services_fit(const struct hd_core_fit *asked, struct hd_layout_sizes *sizes,
                  struct hd_text *ret_why)
{
    struct hd_traits traits;
    struct hd_arena arena;
    struct hd_fit fit;
    enum hd_status st;

    if (!find_traits(asked, &traits))
        return true;
    hd_arena_init(&arena, 0);
    st = choose(asked, &arena, &traits, &fit, ret_why);
    hd_arena_done(&arena);
    if (st) { /* the ranks will say what is wrong with it */
        hd_log(HD_LOG_WARN, "cannot choose a layout that fits: %s", hd_err_message());
        return true;
    }
    if (fit.fits)
        *sizes = fit.sizes;
    return fit.fits;
}
