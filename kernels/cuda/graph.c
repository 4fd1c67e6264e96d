/* graph: launches of a stream, captured once and enqueued as one afterwards (CUDA graphs).
 *
 * A launch costs the host some microseconds; small kernels take less, so that the device waits. A graph
 * is one launch. Capturing copies the arguments of each kernel: what changes from one launch to the next
 * must be in device memory. Never run on a GPU; HEDDLE_CUDA_GRAPHS=on asks for it.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

struct hd_graph {
    struct hd_graph *next;
    cudaGraphExec_t handle;
};

enum hd_status hd_cuda_read_graphs(bool *ret_takes_graphs)
{
    const char *wish = getenv(HD_GRAPHS_ENV);

    *ret_takes_graphs = wish && !strcmp(wish, "on");
    if (!wish || !*wish || *ret_takes_graphs || !strcmp(wish, "off"))
        return HD_OK;
    return hd_err(HD_INVALID, HD_GRAPHS_ENV " is \"%s\"; it takes on or off", wish);
}

bool hd_cuda_takes_graphs(const struct hd_backend *cuda)
{
    return cuda->takes_graphs;
}

enum hd_status hd_cuda_capture_begin(struct hd_stream *stream)
{
    struct hd_cuda_stream *s = (struct hd_cuda_stream *)stream;
    const enum hd_status st = hd_cuda_use(s->cuda->device);

    /* the mode forbids unsafe calls to this thread alone: others may watch events of collectives */
    return st ? st
              : hd_cuda_check(cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal),
                              "cannot capture launches; set " HD_GRAPHS_ENV "=off");
}

enum hd_status hd_cuda_capture_end(struct hd_stream *stream, struct hd_graph **ret_graph)
{
    struct hd_cuda_stream *s = (struct hd_cuda_stream *)stream;
    struct hd_graph *made = calloc(1, sizeof *made);
    cudaGraph_t captured = NULL;
    enum hd_status st = hd_cuda_check(cudaStreamEndCapture(s->handle, &captured),
                                      "cannot capture launches; set " HD_GRAPHS_ENV "=off");

    if (!st && !made)
        st = hd_err(HD_NO_MEMORY, "no memory for a graph of launches");
    if (!st)
        st = hd_cuda_check(cudaGraphInstantiateWithFlags(&made->handle, captured, 0),
                           "cannot make a graph of launches; set " HD_GRAPHS_ENV "=off");
    if (captured)
        (void)cudaGraphDestroy(captured);
    if (st) {
        free(made);
        return st;
    }
    made->next = s->graphs;
    s->graphs = made;
    *ret_graph = made;
    return HD_OK;
}

enum hd_status hd_cuda_graph_launch(struct hd_stream *stream, struct hd_graph *graph)
{
    struct hd_cuda_stream *s = (struct hd_cuda_stream *)stream;
    const enum hd_status st = hd_cuda_use(s->cuda->device);

    return st ? st
              : hd_cuda_check(cudaGraphLaunch(graph->handle, s->handle), "cannot launch a graph");
}

void hd_cuda_graphs_free(struct hd_cuda_stream *s)
{
    for (struct hd_graph *g = s->graphs, *next; g; g = next) {
        next = g->next;
        (void)cudaGraphExecDestroy(g->handle);
        free(g);
    }
    s->graphs = NULL;
}
