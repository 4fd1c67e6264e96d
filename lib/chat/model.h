/* model: reads the chat template of a model and the names of its special tokens from the model's
 * files.
 *
 *   chat_template.jinja      the template (a file of any name that is no .json)
 *   tokenizer_config.json    "chat_template": a text, or a list of which "default" is taken, and
 *                            "tool_use" for a conversation with tools
 *   additional_chat_templates/tool_use.jinja    the same beside a chat_template.jinja
 *
 * Templates get the names of special tokens (bos_token, eos_token ...) as variables, as in Hugging
 * Face's transformers; tokenizer/companions.h says which files name them.
 *
 * Used by: data, worker, train.   Uses: base, tokenizer (companions).
 * Threads: immutable after hd_chat_open; several threads may render with it.
 */
#ifndef HD_CHAT_MODEL_H
#define HD_CHAT_MODEL_H

#include "chat/template.h"

enum { HD_CHAT_FILE_BYTES_MAX = 16 << 20 };

struct hd_chat;

/* Finds the template of a folder: DIR/chat_template.jinja, or else DIR/tokenizer_config.json if it
 * has one. *ret_path is "" if there is none. */
enum hd_status hd_chat_find(const char *dir, struct hd_text *ret_path);

/* Finds the separate file, beside a chat_template.jinja, with the template for conversations with
 * tools. *ret_path is "" if there is none. */
enum hd_status hd_chat_find_tool_use(const char *template_path, struct hd_text *ret_path);

/* Opens the template at `path` ("": none). dir: folder whose special tokens the template gets;
 * NULL: the folder of `path`. HD_INVALID, HD_UNSUPPORTED: the message begins with
 * "PATH:LINE:COLUMN: " for a template, "PATH: " for another file. */
enum hd_status hd_chat_open(const char *path, const char *dir, struct hd_chat **ret_chat);
void hd_chat_close(struct hd_chat *chat); /* NULL is fine */

const struct hd_template *hd_chat_template(const struct hd_chat *chat); /* NULL: no template */
/* Returns the template for a conversation: tool_use if it has tools and the model has that
 * template, else the default. */
const struct hd_template *hd_chat_template_for(const struct hd_chat *chat, bool has_tools);

/* Returns whether the text that a template renders may depend on the date. */
bool hd_chat_asks_date(const struct hd_chat *chat);
/* Sets the date (date.h) that strftime_now returns; "": none, and templates that call it fail. No
 * other thread may render at the same time. HD_INVALID: `date` is no date. */
enum hd_status hd_chat_set_date(struct hd_chat *chat, const char *date);

/* Returns the variables, the date and the path of the template; the chat owns what they point
 * to. */
struct hd_template_input hd_chat_input(const struct hd_chat *chat);
/* Returns the text of a variable such as "eos_token"; NULL: none. */
const char *hd_chat_token(const struct hd_chat *chat, const char *name);

#endif
