/* clock: monotonic time for durations and deadlines, wall time for people, and their formatting.
 *
 * Used by: everything.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_CLOCK_H
#define HD_BASE_CLOCK_H

#include <stdint.h>

#include "base/status.h"

enum { HD_CLOCK_TEXT_MAX = 32 };

int64_t hd_clock_now_ns(void);  /* CLOCK_MONOTONIC; comparable only on this machine, since boot */
int64_t hd_clock_now_ms(void);  /* the same in milliseconds */
int64_t hd_clock_wall_ms(void); /* milliseconds since 1970-01-01T00:00:00Z */

/* RFC 3339 in UTC with milliseconds: 2026-03-01T12:00:00.123Z. */
void hd_clock_format_utc(int64_t wall_ms, char ret_text[HD_CLOCK_TEXT_MAX]);

/* A duration for people: "850ms", "3.2s", "4m05s", "2h10m", "3d04h". */
void hd_clock_format_span(int64_t span_ms, char ret_text[HD_CLOCK_TEXT_MAX]);

/* A duration as people write it: "30s", "90m", "12h", "2d", "1h30m", from the largest unit to the
 * smallest. HD_INVALID: it is none, or not within min_ms and max_ms. */
enum hd_status hd_clock_read_span(const char *text, int64_t min_ms, int64_t max_ms,
                                  int64_t *ret_span_ms);

#endif
