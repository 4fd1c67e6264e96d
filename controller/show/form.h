/* form: members of a message of the protocol as JSON, by a text that names them.
 *
 *     show_members(w, &event->base, "sequence time=time_unix_ms@ kind job? node? rank- message");
 *
 * A form is a list of members, separated by blanks: NAME, or NAME=FIELD where the field of the message
 * has another name, and behind it at most one mark. Without a mark it is the field's text, number,
 * truth value or word (show_word), null if it is absent, or an array of them.
 *
 *     ?          null if it is empty, 0 or absent
 *     !          left out then
 *     ~          a number that is null if it is not above 0, written like a real one
 *     @          a time (Unix, ms); 0: null
 *     -          null if it is negative
 *     /FIELD     null unless FIELD of the message is above 0
 *     |FIELD     true if either field is not 0
 *     (FORM)     the members of the message in it, or of each of its messages; null if there is none
 *     !(FORM)    likewise, left out if there is none
 *     [FIELD]    of each of its messages this field
 *     {FORM}     an object of members of the same message
 *
 * The form "*" has all members of the message under their names.
 *
 * A name that the message does not have is a mistake of the programmer.
 *
 * Used by: show, cli.   Uses: base, proto.   Threads: any.
 */
#ifndef HD_CONTROLLER_FORM_H
#define HD_CONTROLLER_FORM_H

#include "base/json.h"
#include "heddle/v1/job.pb-c.h"

void show_members(struct hd_json_writer *writer, const ProtobufCMessage *message, const char *form);
/* Adds an object with these members to the array that is open in the writer. */
void show_item(struct hd_json_writer *writer, const ProtobufCMessage *message, const char *form);

void show_time(struct hd_json_writer *writer, const char *key, int64_t unix_ms); /* 0: null */

/* A field of a message, found by its name. */
struct show_field {
    const ProtobufCFieldDescriptor *field;
    const void *at; /* the value; NULL: absent, as one of a oneof that has another value */
    size_t count;   /* members of a list */
};
struct show_field show_find(const ProtobufCMessage *message, const char *name);
/* Returns a number, truth value or enum, of a list its count; of a text or message 1 if it is not
 * empty, else 0. */
double show_number(const struct show_field *field);

/* Writes the word of an enum value: its name in the .proto file, without the name of the enum and in
 * lower case; "unknown(7)" for a value of a newer build. Returns ret_word. */
enum { SHOW_WORD_MAX = 24 };
const char *show_word(const ProtobufCEnumDescriptor *descriptor, int value,
                      char ret_word[SHOW_WORD_MAX]);

#endif
