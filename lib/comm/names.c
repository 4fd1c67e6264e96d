/* names: names of streams and engines, and the maximum world size of each engine.
 */
#include "comm/comm_internal.h"

const char *hd_comm_stream_text(enum hd_comm_stream_name name)
{
    static const char *const names[] = {
#define X(code, name) name,
        HD_COMM_STREAM_LIST(X)
#undef X
    };

    return (unsigned)name < HD_COMM_STREAM_COUNT ? names[name] : "unknown";
}

static const char *engine_name(enum hd_comm_engine_kind kind)
{
    static const char *const names[] = {
#define X(code, name, ranks_max) name,
        HD_COMM_ENGINE_LIST(X)
#undef X
    };

    return names[kind];
}

enum hd_status hd_comm_check_world(enum hd_comm_engine_kind engine, int rank, int world)
{
    static const int most[] = {
#define X(code, name, ranks_max) ranks_max,
        HD_COMM_ENGINE_LIST(X)
#undef X
    };

    if (world < 1 || world > most[engine] || rank < 0 || rank >= world)
        return hd_err(HD_INVALID,
                      "%s: rank %d of %d; use 0 <= rank < world <= %d, which is what "
                      "the engine %s connects",
                      engine_name(engine), rank, world, most[engine], engine_name(engine));
    return HD_OK;
}

const char *hd_comm_engine_name(const struct hd_comm *comm)
{
    return engine_name(comm->engine->kind);
}
