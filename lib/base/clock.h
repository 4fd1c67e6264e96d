/* clock: monotonic time for durations and deadlines, wall time for people, and their formatting.
 *
 * Used by: everything.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_CLOCK_H
#define HD_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { HD_CLOCK_TEXT_MAX = 32 };

int64_t hd_clock_now_ns(void); /* CLOCK_MONOTONIC; comparable only within one boot of one machine */
int64_t hd_clock_now_ms(void); /* hd_clock_now_ns in milliseconds */
int64_t hd_clock_wall_ms(void); /* milliseconds since 1970-01-01T00:00:00Z */

/* A wall clock for decisions that cannot be undone, such as deleting old history. When the
 * machine's clock is set ahead, this clock continues from its old time until the machine's clock
 * has kept its new time for HD_CLOCK_HOLD_MS. When the machine's clock is set back, this clock
 * follows at once, because an earlier time makes fewer records old enough to delete. */
struct hd_clock_settled {
    int64_t wall_ms, mono_ms; /* this clock's wall time, and the monotonic time, at the last call of
                                 hd_clock_settle */
    int64_t ahead_mono_ms;    /* monotonic time since which the machine's clock is ahead; 0: it is
                                 not ahead */
};
enum { HD_CLOCK_HOLD_MS = 3600 * 1000, HD_CLOCK_LEAP_MS = 86400 * 1000 };
/* Starts the clock at the wall and monotonic times of the machine. known_ms: this clock's last wall
 * time in an earlier process; 0: unknown. If the machine's clock is more than HD_CLOCK_LEAP_MS
 * later, it counts as set ahead. */
void hd_clock_settled_begin(struct hd_clock_settled *clock, int64_t known_ms, int64_t wall_ms,
                            int64_t mono_ms);
/* Returns this clock's time. Must be called every few seconds, with the machine's wall and
 * monotonic clocks. */
int64_t hd_clock_settle(struct hd_clock_settled *clock, int64_t wall_ms, int64_t mono_ms);

/* Writes a wall time (hd_clock_wall_ms) as RFC 3339 in UTC with milliseconds:
 * 2026-03-01T12:00:00.123Z. */
void hd_clock_format_utc(int64_t wall_ms, char ret_text[HD_CLOCK_TEXT_MAX]);

/* Formats a duration for people: "850ms", "3.2s", "4m05s", "2h10m", "3d04h". */
void hd_clock_format_span(int64_t span_ms, char ret_text[HD_CLOCK_TEXT_MAX]);

/* Parses a duration: "30s", "90m", "12h", "2d", "1h30m", from the largest unit to the smallest.
 * HD_INVALID: the text is not a duration, or not within min_ms and max_ms. */
enum hd_status hd_clock_read_span(const char *text, int64_t min_ms, int64_t max_ms,
                                  int64_t *ret_span_ms);

#endif
