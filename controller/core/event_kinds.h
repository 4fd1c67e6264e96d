/* event_kinds: every kind of event in the history of a job or of the cluster. The words are stable:
 * programs compare them (Event.kind). docs/api.md has the same table, and a test compares both.
 *
 * X(enumerator, word, subject, meaning); the subject is JOB, CLUSTER, or REPORT for a kind that a
 * daemon or a rank reports of a job.
 *
 * Used by: core, services.   Uses: nothing.
 */
#ifndef HEDDLE_CORE_EVENT_KINDS_H
#define HEDDLE_CORE_EVENT_KINDS_H

/* clang-format off */
#define HD_EVENT_KIND_LIST(X) \
    X(SUBMITTED, "submitted", JOB, "a user submitted the job") \
    X(START_EXPECTED, "start_expected", JOB, "the waiting job has an expected start") \
    X(START_MOVED, "start_moved", JOB, "the expected start changed, and why") \
    X(WEIGHED, "weighed", JOB, "the job starts on a slower placement, because a faster one is free too late") \
    X(LAYOUT, "layout", JOB, "why the attempt has this layout") \
    X(NO_FIT, "no_fit", JOB, "the attempt needed more memory than planned, or ended for lack of it") \
    X(STARTING, "starting", JOB, "an attempt starts: its nodes, devices and layout") \
    X(RUNNING, "running", JOB, "all ranks of the attempt are up") \
    X(STEP_TIME, "step_time", JOB, "a step takes at least twice, or at most half, the predicted time") \
    X(BORROWING, "borrowing", JOB, "the attempt runs on devices that are reserved for older jobs") \
    X(PROBLEM, "problem", JOB, "a node reports a problem of the attempt, which goes on") \
    X(PREEMPTING, "preempting", JOB, "other attempts stop at a checkpoint to free devices for the job") \
    X(PREEMPTED, "preempted", JOB, "the attempt stops at a checkpoint to free devices, or to leave a node") \
    X(GATHERING, "gathering", JOB, "other jobs move so that the job's devices are near one another") \
    X(MOVING, "moving", JOB, "the attempt stops at a checkpoint and goes on on other devices") \
    X(GROWING, "growing", JOB, "the attempt stops at a checkpoint and goes on with more devices") \
    X(CANCEL, "cancel", JOB, "a user asked for the job to be cancelled") \
    X(REQUEUE, "requeue", JOB, "a user asked for the job to be queued again") \
    X(CHECKPOINT_ASKED, "checkpoint_asked", JOB, "a user asked for a checkpoint") \
    X(HELD, "held", JOB, "a user holds the job: no attempt starts") \
    X(RELEASED, "released", JOB, "a user released the job") \
    X(TIME_LIMIT, "time_limit", JOB, "the job has run for its time_limit and stops at a checkpoint") \
    X(KILLED, "killed", JOB, "the attempt did not stop in time and is killed") \
    X(ATTEMPT_STOPPED, "attempt_stopped", JOB, "the attempt stopped as requested") \
    X(ATTEMPT_FAILED, "attempt_failed", JOB, "the attempt failed: the rank, the node and the cause") \
    X(ATTEMPT_BACK, "attempt_back", JOB, "the node of an attempt that counted as lost answers again; the attempt goes on") \
    X(ATTEMPT_UNKNOWN, "attempt_unknown", JOB, "after a restore: a node runs an attempt that began after the backup; it is ended") \
    X(ATTEMPT_REFUSED, "attempt_refused", JOB, "a node runs an attempt that this controller did not start; it is ended") \
    X(ENDED, "ended", JOB, "the attempt has ended on all its nodes") \
    X(RESUMED, "resumed", JOB, "a user resumed the ended job") \
    X(CHECKPOINT_DAMAGED, "checkpoint_damaged", JOB, "a checkpoint is damaged; the next attempt starts from an older one") \
    X(CHECKPOINT_MISSING, "checkpoint_missing", JOB, "checkpoints are not on the disk; the next attempt starts from another one, or the job waits") \
    X(CHECKPOINT_BACK, "checkpoint_back", JOB, "a missing checkpoint is on the disk again") \
    X(CHECKPOINT_REMOVED, "checkpoint_removed", JOB, "a user removed a checkpoint") \
    X(CHECKPOINT_COPIED, "checkpoint_copied", JOB, "a checkpoint was copied to checkpoint.copy_to; after the end of the job an event of the cluster") \
    X(CHECKPOINTS_FOUND, "checkpoints_found", JOB, "checkpoints that no report named were found on the disk") \
    X(SEARCH_FAILED, "search_failed", JOB, "the checkpoints on the disk could not be listed") \
    X(FILES_LEFT, "files_left", JOB, "a node left files of the removed job: why, and what to do") \
    X(SUCCEEDED, "succeeded", JOB, "the job has succeeded") \
    X(FAILED, "failed", JOB, "the job has failed") \
    X(CANCELLED, "cancelled", JOB, "the job was cancelled") \
    X(HANG, "hang", REPORT, "ranks have made no progress for longer than usual: which one, and since when") \
    X(STRAGGLER, "straggler", REPORT, "a rank is slower than the ranks that do the same work") \
    X(GUARD, "guard", REPORT, "a step was out of bounds (loss or gradient norm), and what was done") \
    X(SAMPLE, "sample", REPORT, "a text that the model wrote behind a prompt of validate.samples") \
    X(WARNING, "warning", REPORT, "a warning of a rank or of its supervisor") \
    X(ERROR, "error", REPORT, "an error of a rank or of its supervisor") \
    X(NOTE, "note", REPORT, "a remark of a rank or of its supervisor") \
    X(REPORTS_LEFT_OUT, "reports_left_out", REPORT, "reports of steps were left out: the disk or the spool was full") \
    X(JOINED, "joined", CLUSTER, "a node joined") \
    X(RETURNED, "returned", CLUSTER, "a lost node is back") \
    X(REBOOTED, "rebooted", CLUSTER, "a node's machine was restarted") \
    X(RENAMED, "renamed", CLUSTER, "a node has a new name") \
    X(RENAME_WAITS, "rename_waits", CLUSTER, "a node will have a new name when its jobs have ended") \
    X(READY, "ready", CLUSTER, "a node takes jobs") \
    X(REACHABLE, "reachable", CLUSTER, "a silent node answers again") \
    X(UNREACHABLE, "unreachable", CLUSTER, "a node is silent; its ranks may still be training") \
    X(LOST, "lost", CLUSTER, "a node is lost; its attempts have ended") \
    X(RETIRED, "retired", CLUSTER, "a lost node's name was taken by another machine") \
    X(REMOVED, "removed", CLUSTER, "an operator removed a node") \
    X(DRAIN, "drain", CLUSTER, "an operator drained a node") \
    X(UNDRAIN, "undrain", CLUSTER, "an operator ended the drain of a node") \
    X(DRAINING, "draining", CLUSTER, "a drained node still runs jobs") \
    X(DRAINED, "drained", CLUSTER, "a drained node runs no job") \
    X(NODE_LEAVES, "node_leaves", CLUSTER, "a node's daemon ends for good; its jobs stop at a checkpoint") \
    X(NODE_FULL, "node_full", CLUSTER, "a node takes no new jobs: its disk is nearly full") \
    X(NODE_HAS_ROOM, "node_has_room", CLUSTER, "a node's disk has enough free space again") \
    X(JOBS_DIR_LOST, "jobs_dir_lost", CLUSTER, "a node does not see the cluster's jobs directory") \
    X(JOBS_DIR_BACK, "jobs_dir_back", CLUSTER, "a node sees the cluster's jobs directory again") \
    X(COPY_REFUSED, "copy_refused", CLUSTER, "a second node with a known node's identity was refused") \
    X(NODE_UNKNOWN, "node_unknown", CLUSTER, "a node that this database does not know was refused") \
    X(CERTIFICATE_ADOPTED, "certificate_adopted", CLUSTER, "after a restore: a node's newer certificate was taken") \
    X(DEVICE_OFFERED, "device_offered", CLUSTER, "a node offers a device again") \
    X(DEVICE_WITHDRAWN, "device_withdrawn", CLUSTER, "a node withdrew a device, and why") \
    X(DEVICE_SLOW, "device_slow", CLUSTER, "a probe measured a device that is slower than its equals") \
    X(PROBE, "probe", CLUSTER, "an operator asked for a probe of a node") \
    X(PROBED, "probed", CLUSTER, "a node has measured its devices") \
    X(PROBE_FAILED, "probe_failed", CLUSTER, "a probe has no result, and why") \
    X(QUEUE_SET, "queue_set", CLUSTER, "an admin made or changed a queue") \
    X(QUEUE_REMOVED, "queue_removed", CLUSTER, "an admin removed a queue") \
    X(JOB_REMOVED, "job_removed", CLUSTER, "a user removed an ended job") \
    X(JOB_UNKNOWN, "job_unknown", CLUSTER, "a node runs a job that this database does not know; it is ended") \
    X(JOBS_NEAR_LIMIT, "jobs_near_limit", CLUSTER, "the number of jobs is near the limit of the controller") \
    X(CLOCK_SET, "clock_set", CLUSTER, "the clock of the controller's machine jumped") \
    X(CONTROLLER_AWAY, "controller_away", CLUSTER, "the controller was stopped for a while; nodes get more time before they count as lost")
/* clang-format on */

enum hd_event_kind {
#define X(name, word, subject, meaning) HD_EVENT_##name,
    HD_EVENT_KIND_LIST(X)
#undef X
        HD_EVENT_KIND_COUNT
};

/* Returns the stable word of a kind of event. */
const char *hd_event_kind_name(enum hd_event_kind kind);

#endif
