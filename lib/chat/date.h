/* date: the day that chat templates get by strftime_now.
 *
 * A template that writes the day makes other tokens tomorrow. So a job has one date, decided when
 * it is submitted (data.date), and programs that read its checkpoints use the same one.
 *
 * Used by: model, spec, generate, worker, serve.   Uses: base.   Threads: any.
 */
#ifndef HD_CHAT_DATE_H
#define HD_CHAT_DATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { HD_CHAT_DATE_MAX = 32 }; /* bytes of its text, NUL included */

/* Reads YYYY-MM-DD, or YYYY-MM-DDTHH:MM:SS, as seconds since 1970 without a time zone: the clock of
 * the place where it was written. HD_INVALID: it is no such date, or not of the years 1 to 9999. */
enum hd_status hd_chat_date_read(const char *text, int64_t *ret_seconds);

/* Writes today's date, in this machine's time zone, as YYYY-MM-DD. */
void hd_chat_date_today(char ret_text[HD_CHAT_DATE_MAX]);

#endif
