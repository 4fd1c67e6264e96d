/* audit: ListAudit. */
#include "controller/services/control.h"
#include "heddle/v1/identity.pb-c.h"

static Heddle__V1__AuditRow *convert_entry(struct hd_arena *arena, const struct hd_audit_row *row)
{
    Heddle__V1__AuditRow *m = answer_message(arena, &heddle__v1__audit_row__descriptor);

    if (!m)
        return NULL;
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

static ProtobufCMessage *fill_rows(struct controller *c, const struct hd_rpc_call *call,
                                   struct hd_query *query)
{
    Heddle__V1__ListAuditResponse *response =
        answer_message(&query->arena, &heddle__v1__list_audit_response__descriptor);

    (void)c;
    (void)call;
    if (!response)
        return NULL;
    response->rows = hd_arena_array(&query->arena, query->audit_count + 1, sizeof *response->rows);
    for (size_t i = 0; response->rows && i < query->audit_count; i++) {
        response->rows[i] = convert_entry(&query->arena, &query->audit[i]);
        response->n_rows += response->rows[i] != NULL;
    }
    response->more = query->more;
    return &response->base;
}

void audit_list(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__ListAuditRequest *m = (const void *)message;
    struct hd_query *query = hd_query_new(HD_QUERY_AUDIT);

    if (query) {
        query->after = m->after_sequence;
        query->limit = control_page_size(m->limit);
    }
    answer_list(call, query, fill_rows);
}
