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

/* Sets *ret_path to the file with the chat template of a folder: DIR/chat_template.jinja, or else
 * DIR/tokenizer_config.json if it has one; to "" if there is no template. */
enum hd_status hd_chat_find(const char *dir, struct hd_text *ret_path);

/* Sets *ret_path to the separate file, beside a chat_template.jinja, with the template for
 * conversations with tools; to "" if there is no such file. */
enum hd_status hd_chat_find_tool_use(const char *template_path, struct hd_text *ret_path);

/* Opens the chat template in the file `path` ("": no template). dir: folder whose special tokens
 * the template gets; NULL: the folder of `path`. HD_INVALID, HD_UNSUPPORTED: the message begins
 * with "PATH:LINE:COLUMN: " for a template, "PATH: " for another file. */
enum hd_status hd_chat_open(const char *path, const char *dir, struct hd_chat **ret_chat);
void hd_chat_close(struct hd_chat *chat); /* NULL is fine */

/* returns the default template; NULL: there is none */
const struct hd_template *hd_chat_template(const struct hd_chat *chat);
/* Returns the template for a conversation: tool_use if it has tools and the model has that
 * template, else the default. */
const struct hd_template *hd_chat_template_for(const struct hd_chat *chat, bool has_tools);

/* Returns whether the text that a template renders may depend on the date. */
bool hd_chat_asks_date(const struct hd_chat *chat);
/* Sets the date (date.h) that strftime_now returns in templates; "": none, and templates that call
 * strftime_now fail. No other thread may render with `chat` at the same time. HD_INVALID: `date` is
 * no date. */
enum hd_status hd_chat_set_date(struct hd_chat *chat, const char *date);

/* Returns the input of a rendering: variables, date, and path of the template, which all belong to
 * `chat`. */
struct hd_template_input hd_chat_input(const struct hd_chat *chat);
/* Returns the text of the special token with a name such as "eos_token"; NULL: there is none. */
const char *hd_chat_token(const struct hd_chat *chat, const char *name);

#endif
