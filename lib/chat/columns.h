/* columns: members of records under the several names that data sets have for them.
 *
 * Used by: conversation.   Uses: base. */
#ifndef HD_CHAT_COLUMNS_H
#define HD_CHAT_COLUMNS_H

#include <stdbool.h>

#include "base/json.h"

/* A record with one question and its answer. */
struct chat_turn {
    const char *prompt, *answer;
    const char *input, *system; /* NULL: none, or empty */
};

/* Returns whether a record has members with a question and an answer, under any names. */
bool chat_columns_have_turn(const struct hd_json *root);
/* Reads the question and the answer. HD_INVALID: one is missing, no text, or could be one of
 * several members. */
enum hd_status chat_columns_read_turn(const struct hd_json *root, struct chat_turn *ret_turn);
/* Reads a question alone, with its input and system. *ret_found false: there is no question. */
enum hd_status chat_columns_read_prompt(const struct hd_json *root, struct chat_turn *ret_turn,
                                        bool *ret_found);
/* Refuses a record of no known form: the message has its members and what to write. */
enum hd_status chat_columns_unknown(const struct hd_json *root);

/* Returns the role of a speaker: the one that `roles`, the text of data.roles or NULL, gives its
 * name; else the usual one, such as "user" for "Human", where the case of letters does not matter.
 * NULL: the name is of no known speaker. */
const char *chat_columns_role(const char *roles, const char *name);
/* Returns whether a speaker's turns are tool calls, as of the name function_call, to which
 * data.roles gives no role. */
bool chat_columns_is_call(const char *roles, const char *name);
/* Refuses a message of an unknown speaker: the error has the speakers of the list of messages and
 * what to write. key: "role" or "from". */
enum hd_status chat_columns_refuse_role(const struct hd_json *messages, const char *key,
                                        const char *name);
/* Returns a message's member with the name of its speaker; NULL: it has none. */
const struct hd_json *chat_columns_first_role(const struct hd_json *message);
/* Sets *ret_weighs to whether a message may count for the loss: its weight or train. */
enum hd_status chat_columns_weight(const struct hd_json *message, bool *ret_weighs);
/* Refuses a message with a picture or the like among the parts of its content. */
enum hd_status chat_columns_check_content(const struct hd_json *message);
/* Refuses a record that has pictures, films or sounds. */
enum hd_status chat_columns_refuse_media(const struct hd_json *root);
/* Refuses a record whose answer is rated: a label, as for KTO. */
enum hd_status chat_columns_refuse_rated(const struct hd_json *root);
/* Sets *ret_tools to the list of a record's tools, which may also be written as text; NULL: none.
 * wraps: a tool without a type, as ShareGPT's sets have them, becomes the function of one. */
enum hd_status chat_columns_tools(struct hd_arena *arena, const struct hd_json *root, bool wraps,
                                  const struct hd_json **ret_tools);
/* Turns an object of lists of equal length, {"role": [a, b], "content": [c, d]}, into a list of
 * objects, [{"role": a, "content": c}, ..]. Sets *ret_list to any other value as it is. */
enum hd_status chat_columns_unzip(struct hd_arena *arena, const struct hd_json *value,
                                  const struct hd_json **ret_list);

#endif
