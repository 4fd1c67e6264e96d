/* date: the date that chat templates read with strftime_now.
 *
 * A template that writes the date gives other tokens on another day. So a job has one date, decided
 * when it is submitted (data.date), and programs that read its checkpoints use the same date.
 *
 * Used by: model, spec, generate, worker, serve.   Uses: base.   Threads: any.
 */
#ifndef HD_CHAT_DATE_H
#define HD_CHAT_DATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { HD_CHAT_DATE_MAX = 32 }; /* bytes of a date's text, with its NUL */

/* Sets *ret_seconds to the time of a text YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS, as seconds since 1970,
 * in local time without a zone. HD_INVALID: the text has another form, or the year is not 1 to
 * 9999. */
enum hd_status hd_chat_date_read(const char *text, int64_t *ret_seconds);

/* Sets ret_text to today's date, in this machine's time zone, as YYYY-MM-DD. */
void hd_chat_date_today(char ret_text[HD_CHAT_DATE_MAX]);

#endif
