/* audit: ListAudit. */
#include <stdlib.h>

#include "controller/services/control.h"
#include "heddle/v1/identity.pb-c.h"

static Heddle__V1__AuditRow *convert_entry(struct hd_arena *arena, const struct hd_audit_row *row)
{
    Heddle__V1__AuditRow *m = hd_arena_alloc(arena, sizeof *m);

    if (!m)
        return NULL;
    heddle__v1__audit_row__init(m);
    m->sequence = row->seq;
    m->time_unix_ms = row->record.time_ms;
    m->who = convert_text(row->record.who);
    m->role = convert_text(row->record.role);
    m->method = convert_text(row->record.method);
    m->object = convert_text(row->record.object);
    m->source = convert_text(row->record.source);
    m->result = convert_text(row->record.result);
    m->hash.data = (uint8_t *)(uintptr_t)row->hash;
    m->hash.len = sizeof row->hash;
    return m;
}

static void on_rows(struct hd_query *query, enum hd_status st)
{
    struct hd_rpc_call *call = query->user;
    Heddle__V1__ListAuditResponse response = HEDDLE__V1__LIST_AUDIT_RESPONSE__INIT;

    response.rows = hd_arena_array(&query->arena, query->audit_count + 1, sizeof *response.rows);
    for (size_t i = 0; !st && response.rows && i < query->audit_count; i++) {
        response.rows[i] = convert_entry(&query->arena, &query->audit[i]);
        response.n_rows += response.rows[i] != NULL;
    }
    response.more = query->more;
    if (!st && hd_arena_failed(&query->arena))
        st = hd_err(HD_NO_MEMORY, "out of memory for a reply");
    if (st)
        hd_rpc_call_fail(call, st);
    else
        (void)hd_rpc_call_reply(call, &response.base);
    hd_rpc_call_unref(call);
    hd_query_free(query);
}

void audit_list(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListAuditRequest *m = (const void *)message;
    const struct controller *c = hd_rpc_call_user(call);
    struct hd_query *query = hd_query_new(HD_QUERY_AUDIT);

    if (!query) {
        hd_rpc_call_fail(call, hd_err(HD_NO_MEMORY, "out of memory for a reply"));
        return;
    }
    query->after = m->after_sequence;
    query->limit = control_page_size(m->limit);
    query->done = on_rows;
    query->user = hd_rpc_call_ref(call);
    hd_store_query(c->store, query);
}
