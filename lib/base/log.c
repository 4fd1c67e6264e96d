#include "base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

enum { MESSAGE_MAX_BYTES = 2048, LINE_MAX_BYTES = 2 * MESSAGE_MAX_BYTES + 256, ESCAPE_BYTES = 6 };

static const char *const level_names[] = {"error", "warn", "info", "debug"};
/* prefixes with the priorities of syslog(3), by hd_log_level */
static const char *const journal_levels[] = {"<3>", "<4>", "<6>", "<7>"};

/* Settings, written by hd_log_init and hd_log_set_json before threads start; only read afterwards.
 */
static char program_name[32] = "heddle";
static enum hd_log_level most_detailed = HD_LOG_INFO;
static bool to_journal, as_json;

/* Returns whether standard error is the journal: systemd puts that stream's device and inode in the
 * environment, and a child may have another standard error. */
static bool is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat info;

    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &info) == 0 && (unsigned long long)info.st_dev == device &&
           (unsigned long long)info.st_ino == inode;
}

void hd_log_init(const char *program, enum hd_log_level level)
{
    const char *env = getenv("HEDDLE_LOG");

    (void)snprintf(program_name, sizeof program_name, "%s", program);
    most_detailed = level;
    for (int i = 0; env && i <= HD_LOG_DEBUG; i++)
        if (strcmp(env, level_names[i]) == 0)
            most_detailed = (enum hd_log_level)i;
    to_journal = is_journal();
}

void hd_log_set_json(bool json)
{
    as_json = json;
}

enum hd_status hd_log_read_format(const char *word, bool *ret_json)
{
    *ret_json = strcmp(word, "json") == 0;
    return *ret_json || strcmp(word, "text") == 0
               ? HD_OK
               : hd_err(HD_INVALID, "%s: use text or json", word);
}

/* Writes the inside of a JSON string: as much of `text` as fits in `capacity` bytes. A character
 * that is not harmless on a terminal (hd_text_character) becomes an escape or, if it is not a
 * control character, '?'. Returns the bytes written. */
static size_t escape(char *to, size_t capacity, const char *text)
{
    size_t at = 0;
    bool harmless;

    for (size_t left = strlen(text), n; left && at + ESCAPE_BYTES < capacity;
         text += n, left -= n) {
        n = hd_text_character(text, left, &harmless);
        if (*text == '"' || *text == '\\') {
            at += (size_t)snprintf(to + at, capacity - at, "\\%c", *text);
        } else if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            at += (size_t)snprintf(to + at, capacity - at, "\\u%04x", (unsigned char)*text);
        } else if (harmless) {
            memcpy(to + at, text, n);
            at += n;
        } else {
            to[at++] = '?';
        }
    }
    return at;
}

static size_t format_json(char line[LINE_MAX_BYTES], enum hd_log_level level, const char *time,
                          const char *message)
{
    size_t n = (size_t)snprintf(
        line, LINE_MAX_BYTES,
        "%s{\"time\":\"%s\",\"level\":\"%s\",\"program\":\"%s\",\"message\":\"",
        to_journal ? journal_levels[level] : "", time, level_names[level], program_name);

    n += escape(line + n, LINE_MAX_BYTES - n - sizeof "\"}\n", message);
    memcpy(line + n, "\"}\n", 3);
    return n + 3;
}

/* Replaces, in place, characters of an untrusted text that would begin a new line or control a
 * terminal. */
static void clean(char *text)
{
    char *to = text;
    bool harmless;

    for (size_t left = strlen(text), n; left; text += n, left -= n) {
        n = hd_text_character(text, left, &harmless);
        if (harmless || *text == '\t') {
            memmove(to, text, n);
            to += n;
        } else {
            *to++ = '?';
        }
    }
    *to = '\0';
}

static size_t format_text(char line[LINE_MAX_BYTES], enum hd_log_level level, const char *time,
                          char *message)
{
    clean(message);
    if (to_journal)
        return (size_t)snprintf(line, LINE_MAX_BYTES, "%s%s\n", journal_levels[level], message);
    return (size_t)snprintf(line, LINE_MAX_BYTES, "%s %-5s %s: %s\n", time, level_names[level],
                            program_name, message);
}

void hd_log(enum hd_log_level level, const char *fmt, ...)
{
    char message[MESSAGE_MAX_BYTES], line[LINE_MAX_BYTES], time[HD_CLOCK_TEXT_MAX];
    va_list ap;
    size_t n;

    if (level > most_detailed)
        return;
    hd_clock_format_utc(hd_clock_wall_ms(), time);
    va_start(ap, fmt);
    if (vsnprintf(message, sizeof message, fmt, ap) < 0)
        message[0] = '\0';
    va_end(ap);
    n = as_json ? format_json(line, level, time, message) : format_text(line, level, time, message);
    if (write(STDERR_FILENO, line, n) < 0)
        return; /* standard error is not writable, so the line is lost */
}
