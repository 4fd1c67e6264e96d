#include "proto/step.h"

/* The field of StepReport with the metric's name; NULL: none. */
static const ProtobufCFieldDescriptor *field_of(int index)
{
    return protobuf_c_message_descriptor_get_field_by_name(&heddle__v1__step_report__descriptor,
                                                           hd_metrics[index].name);
}

/* Id of the last metric that is also sent when it is 0. The reader takes an absent metric for 0; these
 * are sent because builds before have always sent them. */
enum { SENT_AS_ZERO_MAX = 16 };

bool hd_step_to_message(const struct hd_step_metrics *metrics, struct hd_arena *arena,
                        Heddle__V1__StepReport *message)
{
    message->metrics = hd_arena_array(arena, HD_METRIC_COUNT, sizeof *message->metrics);
    for (int i = 0; message->metrics && i < HD_METRIC_COUNT; i++) {
        const ProtobufCFieldDescriptor *field = field_of(i);
        const double value = hd_metric_get(metrics, i);
        Heddle__V1__Metric *metric;

        if (field && field->type == PROTOBUF_C_TYPE_INT64) {
            *(int64_t *)((char *)message + field->offset) = (int64_t)value;
            continue;
        }
        if (field) {
            *(double *)((char *)message + field->offset) = value;
            continue;
        }
        if (value == 0 && hd_metrics[i].id > SENT_AS_ZERO_MAX)
            continue;
        metric = hd_arena_alloc(arena, sizeof *metric);
        if (!metric)
            return false;
        heddle__v1__metric__init(metric);
        metric->id = hd_metrics[i].id;
        metric->value = value;
        message->metrics[message->n_metrics++] = metric;
    }
    return message->metrics;
}

void hd_step_from_message(const Heddle__V1__StepReport *message,
                          struct hd_step_metrics *ret_metrics)
{
    *ret_metrics = (struct hd_step_metrics){0};
    for (int i = 0; i < HD_METRIC_COUNT; i++) {
        const ProtobufCFieldDescriptor *field = field_of(i);
        const char *from = (const char *)message + (field ? field->offset : 0);

        if (field)
            (void)hd_metric_set(ret_metrics, i,
                                field->type == PROTOBUF_C_TYPE_INT64
                                    ? (double)*(const int64_t *)from
                                    : *(const double *)from);
    }
    for (size_t k = 0; k < message->n_metrics; k++) {
        const int index = hd_metric_find(message->metrics[k]->id);

        if (index >= 0 && !field_of(index))
            (void)hd_metric_set(ret_metrics, index, message->metrics[k]->value);
    }
}
