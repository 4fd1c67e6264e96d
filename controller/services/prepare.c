/* prepare: copies and checks job specs that come with a call. */
#include <stdlib.h>

#include "controller/services/control.h"
#include "spec/spec.h"

void control_free_prepared(struct prepared *prepared)
{
    if (!prepared)
        return;
    hd_arena_done(&prepared->arena);
    free(prepared->bytes);
    free(prepared);
}

static enum hd_status pack(struct prepared *prepared)
{
    const Heddle__V1__JobSpec *message = hd_spec_to_message(&prepared->job, &prepared->arena);

    prepared->count = message ? heddle__v1__job_spec__get_packed_size(message) : 0;
    _Static_assert((int)HD_SPEC_MESSAGE_BYTES_MAX == (int)HD_CTL_SPEC_BYTES_MAX, "one limit");
    if (hd_spec_check_bytes(&prepared->job, prepared->count))
        return HD_LIMIT;
    prepared->bytes = message ? malloc(prepared->count + 1) : NULL;
    if (!prepared->bytes)
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    (void)heddle__v1__job_spec__pack(message, prepared->bytes);
    return HD_OK;
}

enum hd_status control_prepare(const Heddle__V1__JobSpec *given, struct prepared **ret_prepared)
{
    /* not cleared, because it is large and hd_spec_from_message clears the job */
    struct prepared *prepared = malloc(sizeof *prepared);
    uint64_t after[HD_JOB_AFTER_MAX];
    enum hd_status st = HD_OK;
    int count;

    *ret_prepared = NULL;
    if (!prepared)
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    prepared->bytes = NULL;
    prepared->count = 0;
    hd_arena_init(&prepared->arena, 0);
    if (!given)
        st = hd_err(HD_INVALID, "spec is missing");
    if (!st)
        st = hd_spec_from_message(given, &prepared->arena, &prepared->job);
    if (!st)
        st = hd_spec_check(&prepared->job);
    if (!st && hd_after_read(prepared->job.after, after, &count))
        st = hd_err(HD_INVALID, "after: %s is a name of a job; name it by its number",
                    prepared->job.after);
    if (!st)
        st = pack(prepared);
    if (st)
        control_free_prepared(prepared);
    else
        *ret_prepared = prepared;
    /* clients expect INVALID_ARGUMENT for features that are not built */
    return st == HD_UNSUPPORTED ? hd_err(HD_INVALID, "%s", hd_err_message()) : st;
}
