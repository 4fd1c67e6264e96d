/* control: the table of the calls of the service Control.
 *
 * A call that changes something becomes a core event; its reply is sent after the commit.
 */
#include "controller/services/control.h"
#include "base/clock.h"

static void get_server_info(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    Heddle__V1__GetServerInfoResponse response = HEDDLE__V1__GET_SERVER_INFO_RESPONSE__INIT;
    struct controller *c = hd_rpc_call_user(call);

    (void)message;
    response.protocol_min = HEDDLE__V1__PROTOCOL__PROTOCOL_MIN;
    response.protocol_max = HEDDLE__V1__PROTOCOL__PROTOCOL_MAX;
    response.build = convert_text(c->options.build);
    response.jobs_dir = c->jobs_dir;
    response.time_unix_ms = hd_clock_wall_ms();
    response.owner = convert_text(control_caller(call));
    (void)hd_rpc_call_reply(call, &response.base);
}

#define UNARY(name, request_type, response_type, function)                                        \
    {                                                                                             \
        .path = "/heddle.v1.Control/" name, .kind = HD_RPC_UNARY,                                 \
        .request = &heddle__v1__##request_type##__descriptor,                                     \
        .response = &heddle__v1__##response_type##__descriptor, .handler = {.on_open = function}, \
    }

enum hd_status control_register(struct controller *c)
{
    struct hd_rpc_method methods[] = {
        UNARY("SubmitJob", submit_job_request, submit_job_response, control_submit_job),
        UNARY("ValidateJob", validate_job_request, validate_job_response, control_validate_job),
        UNARY("GetJob", get_job_request, get_job_response, control_get_job),
        UNARY("ListJobs", list_jobs_request, list_jobs_response, control_list_jobs),
        UNARY("CancelJob", cancel_job_request, cancel_job_response, control_cancel_job),
        UNARY("ResumeJob", resume_job_request, resume_job_response, control_resume_job),
        UNARY("RequeueJob", requeue_job_request, requeue_job_response, control_requeue_job),
        UNARY("CheckpointJob", checkpoint_job_request, checkpoint_job_response,
              control_checkpoint_job),
        UNARY("HoldJob", hold_job_request, hold_job_response, control_hold_job),
        UNARY("ReleaseJob", release_job_request, release_job_response, control_release_job),
        UNARY("ExplainJob", explain_job_request, explain_job_response, control_explain_job),
        UNARY("PlanJob", plan_job_request, plan_job_response, control_plan_job),
        UNARY("ListQueues", list_queues_request, list_queues_response, control_list_queues),
        UNARY("SetQueue", set_queue_request, set_queue_response, control_set_queue),
        UNARY("RemoveQueue", remove_queue_request, remove_queue_response, control_remove_queue),
        UNARY("RemoveJob", remove_job_request, remove_job_response, control_remove_job),
        UNARY("ListEvents", list_events_request, list_events_response, control_list_events),
        UNARY("ListNodes", list_nodes_request, list_nodes_response, control_list_nodes),
        UNARY("GetTopology", get_topology_request, get_topology_response, topology_open),
        UNARY("ProbeNode", probe_node_request, probe_node_response, control_probe_node),
        UNARY("DrainNode", drain_node_request, drain_node_response, control_drain_node),
        UNARY("UndrainNode", undrain_node_request, undrain_node_response, control_undrain_node),
        UNARY("RemoveNode", remove_node_request, remove_node_response, control_remove_node),
        UNARY("ListCheckpoints", list_checkpoints_request, list_checkpoints_response,
              control_list_checkpoints),
        UNARY("GetServerInfo", get_server_info_request, get_server_info_response, get_server_info),
        {
            .path = "/heddle.v1.Control/WatchJob",
            .kind = HD_RPC_SERVER_STREAM,
            .request = &heddle__v1__watch_job_request__descriptor,
            .response = &heddle__v1__watch_job_response__descriptor,
            .handler = {.on_open = watch_open, .on_drain = watch_drain, .on_done = watch_done},
        },
        {
            .path = "/heddle.v1.Control/ReadLog",
            .kind = HD_RPC_SERVER_STREAM,
            .request = &heddle__v1__read_log_request__descriptor,
            .response = &heddle__v1__read_log_response__descriptor,
            .handler = {.on_open = read_log_open,
                        .on_drain = read_log_drain,
                        .on_done = read_log_done},
        },
    };
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < sizeof methods / sizeof methods[0]; i++) {
        st = guard_add_method(c, &methods[i]);
    }
    return st;
}
