/* spool: the reports of an attempt, on disk until the controller has acknowledged them.
 *
 * A directory of numbered segments, each a sequence of frames (link/frame.h). The supervisor
 * appends and starts a new segment every SEGMENT_BYTES; heddled reads from the oldest segment on
 * and removes a segment when every report in it was acknowledged and a newer one exists. Neither
 * needs the other to be alive, and each begins at the oldest segment after a restart: a report may
 * be sent twice, but is never lost. A segment ends at a frame that a crash has cut off.
 *
 * The spool is bounded: while `segments_max` segments wait, the writer drops step reports
 * (hd_spool_is_full), all but the newest one, and nothing else.
 *
 * Used by: supervisor (writes), agent (reads).   Uses: base, link.   Threads: one per object.
 */
#ifndef HD_DAEMON_ATTEMPT_SPOOL_H
#define HD_DAEMON_ATTEMPT_SPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "link/report.h"

enum {
    HD_SPOOL_SEGMENT_BYTES = 1 << 20,
    HD_SPOOL_SEGMENTS_MAX = 64, /* most segments, together 64 MiB: about 270,000 step reports */
};

struct hd_spool_writer;

struct hd_spool_limits {
    /* bytes of a segment, and number of segments; 0: the values above */
    int64_t segment_bytes, segments_max;
};

/* Opens RUN_DIR/spool for appending; creates it if it does not exist. */
enum hd_status hd_spool_writer_open(const char *run_dir, const struct hd_spool_limits *limits,
                                    struct hd_spool_writer **ret_writer);
void hd_spool_writer_close(struct hd_spool_writer *writer); /* NULL is ignored */

/* Returns true if the spool has segments_max segments, so that step reports should be dropped.
 * Reads the directory about once a second. */
bool hd_spool_is_full(struct hd_spool_writer *writer);

/* Appends a report to the spool. durable: this report and all before it are on disk when HD_OK is
 * returned. After a failure the spool is unchanged, and the call may be retried. */
enum hd_status hd_spool_append(struct hd_spool_writer *writer, const struct hd_link_report *report,
                               bool durable);

struct hd_spool_reader;

/* Position of a report in the spool: its segment and the offset there. */
struct hd_spool_position {
    int64_t segment, offset_bytes;
};

/* Opens a reader of the spool at its oldest segment. The spool need not exist yet. */
enum hd_status hd_spool_reader_open(const char *run_dir, struct hd_spool_reader **ret_reader);
void hd_spool_reader_close(struct hd_spool_reader *reader); /* NULL is ignored */

/* Reads the next report of the spool. HD_UNAVAILABLE: no report is there yet. HD_CORRUPT: the rest
 * of a segment cannot be read; the next call reads the segment after it. */
enum hd_status hd_spool_read(struct hd_spool_reader *reader, struct hd_link_report *ret_report);
struct hd_spool_position hd_spool_get_pos(const struct hd_spool_reader *reader);
void hd_spool_seek(struct hd_spool_reader *reader, struct hd_spool_position position);

/* Removes the segments before number `segment`; the controller has acknowledged every report in
 * them. */
void hd_spool_remove_before(const char *run_dir, int64_t segment);

#endif
