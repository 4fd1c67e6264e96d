/* graph: what a stream captures, and its replays.
 *
 * A captured launch keeps its arguments as they were, addresses and numbers alike, and runs with them at
 * every replay; a captured copy reads host memory when it runs, not when it was captured. A stream
 * captures in order, so that a graph is a list. Refused, as CUDA does, and the capture is then lost: a
 * wait for a stream that captures, and calls of the capturing thread that would wait for the device or
 * change its memory. Refused here alone: events and NCCL in a capture.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/cudasim/internal.h"

struct node {
    struct node *next;
    void (*run)(void *);
    void (*done)(void *); /* NULL: nothing to free */
    void *context;
};

struct hd_sim_captured {
    atomic_int references; /* the capture or its graph, executable graphs, replays under way */
    bool is_lost;
    struct node *first, **last;
};

/* A graph, or an executable one. It is not freed when it is destroyed, so that its handle is
 * recognised. */
enum { GRAPH_MAGIC = 0x67726168, EXEC_MAGIC = 0x65786563 };
struct handle {
    unsigned magic; /* 0: destroyed */
    struct handle *next;
    struct hd_sim_captured *what;
};

static _Atomic(struct handle *) handles;
static atomic_size_t replays;
static _Thread_local struct hd_sim_captured *mine; /* what this thread captures; NULL: nothing */

static void let_go(struct hd_sim_captured *c)
{
    if (atomic_fetch_sub(&c->references, 1) > 1)
        return;
    for (struct node *n = c->first, *next; n; n = next) {
        next = n->next;
        if (n->done)
            n->done(n->context);
        free(n);
    }
    free(c);
}

static struct handle *handle_new(unsigned magic, struct hd_sim_captured *what)
{
    struct handle *h = malloc(sizeof *h);

    if (!h)
        return NULL;
    *h = (struct handle){magic, atomic_load(&handles), what};
    while (!atomic_compare_exchange_weak(&handles, &h->next, h))
        ;
    return h;
}

static struct handle *check(void *graph, unsigned magic, const char *call)
{
    struct handle *h = atomic_load(&handles);

    while (h && h != graph)
        h = h->next;
    if (!h || h->magic != magic) {
        fprintf(stderr, "cudasim: %s: graph %p was destroyed or never created\n", call, graph);
        abort();
    }
    return h;
}

cudaError_t hd_sim_refuse_in_capture(struct hd_sim_captured *of_stream)
{
    struct hd_sim_captured *c = of_stream ? of_stream : mine;

    if (c)
        c->is_lost = true;
    return c ? hd_sim_set_error(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t hd_sim_capture(struct hd_sim_captured *c, void (*run)(void *), void (*done)(void *),
                           void *context)
{
    struct node *n = malloc(sizeof *n);

    if (!n) {
        c->is_lost = true;
        if (done)
            done(context);
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    }
    *n = (struct node){NULL, run, done, context};
    *c->last = n;
    c->last = &n->next;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    struct hd_sim_captured **of_stream = hd_sim_captured_by(stream, __func__);

    if (mode != cudaStreamCaptureModeThreadLocal)
        return hd_sim_set_error(cudaErrorNotSupported);
    if (!of_stream || *of_stream || mine)
        return hd_sim_set_error(cudaErrorStreamCaptureUnsupported);
    mine = malloc(sizeof *mine);
    if (!mine)
        return hd_sim_set_error(cudaErrorMemoryAllocation);
    *mine = (struct hd_sim_captured){.references = 1, .last = &mine->first};
    *of_stream = mine;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
{
    struct hd_sim_captured **of_stream = hd_sim_captured_by(stream, __func__);
    struct hd_sim_captured *c = of_stream ? *of_stream : NULL;

    if (!c || !pGraph)
        return hd_sim_set_error(cudaErrorStreamCaptureUnmatched);
    if (c != mine)
        return hd_sim_set_error(cudaErrorStreamCaptureWrongThread);
    *of_stream = mine = NULL;
    *pGraph = NULL;
    if (c->is_lost) {
        let_go(c);
        return hd_sim_set_error(cudaErrorStreamCaptureInvalidated);
    }
    *pGraph = (cudaGraph_t)handle_new(GRAPH_MAGIC, c);
    if (!*pGraph)
        let_go(c);
    return hd_sim_set_error(*pGraph ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                          unsigned long long flags)
{
    struct hd_sim_captured *c = check(graph, GRAPH_MAGIC, __func__)->what;
    cudaError_t error = hd_sim_refuse_in_capture(NULL);

    if (error || !pGraphExec || flags)
        return error ? error : hd_sim_set_error(cudaErrorInvalidValue);
    *pGraphExec = (cudaGraphExec_t)handle_new(EXEC_MAGIC, c);
    if (*pGraphExec)
        atomic_fetch_add(&c->references, 1);
    return hd_sim_set_error(*pGraphExec ? cudaSuccess : cudaErrorMemoryAllocation);
}

static void replay(void *context)
{
    const struct hd_sim_captured *c = context;

    for (const struct node *n = c->first; n; n = n->next) {
        n->run(n->context);
        atomic_fetch_add(&replays, 1);
    }
}

size_t hd_cudasim_replays(void)
{
    return atomic_load(&replays);
}

static void replay_ended(void *context)
{
    let_go(context);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    struct hd_sim_captured *c = check(graphExec, EXEC_MAGIC, __func__)->what;

    atomic_fetch_add(&c->references, 1);
    return hd_sim_enqueue(stream, replay, replay_ended, c);
}

static cudaError_t destroy(void *graph, unsigned magic, const char *call)
{
    struct handle *h = check(graph, magic, call);

    h->magic = 0;
    let_go(h->what);
    h->what = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
{
    return destroy(graphExec, EXEC_MAGIC, __func__);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return destroy(graph, GRAPH_MAGIC, __func__);
}

size_t hd_sim_graph_leaks(void)
{
    size_t count = 0;

    for (const struct handle *h = atomic_load(&handles); h; h = h->next)
        if (h->magic) {
            fprintf(stderr, "cudasim: graph %p was not destroyed\n", (const void *)h);
            count++;
        }
    return count;
}
