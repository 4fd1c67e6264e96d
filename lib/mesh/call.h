/* call: names of the programs that ranks run. lib/program compiles them, lib/pipeline schedules
 * them.
 *
 * Used by: program, pipeline, model, train, plan.   Uses: nothing.   Threads: any; no state. */
#ifndef HD_MESH_CALL_H
#define HD_MESH_CALL_H

/* The programs. F forward, B backward and W weight gradients of training; E forward only
 * (evaluation); D decode; S start of a step (also run once before D, after its weights are loaded);
 * U update; P publish: with parallel.offload the host updates the weights, and P gathers the
 * weights that U would gather. */
#define HD_CALL_LIST(X) X(F) X(B) X(W) X(E) X(D) X(S) X(U) X(P)
enum hd_call {
#define X(name) HD_CALL_##name,
    HD_CALL_LIST(X)
#undef X
        HD_CALL_COUNT
};

static inline const char *hd_call_name(enum hd_call call)
{
    static const char *const names[] = {
#define X(name) #name,
        HD_CALL_LIST(X)
#undef X
    };
    return names[call];
}

#endif
