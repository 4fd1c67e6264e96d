#include "data/survey.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/pieces.h"
#include "base/text.h"
#include "data/data_internal.h"
#include "data/tokenize.h"
#include "records/kind.h"

enum { CHUNK = HD_PIECE(1 << 16, 61), BEGINNING = 1 << 20 };
/* most tokens of one file that the survey scans, which takes seconds */
#define TOKENS_SCANNED_MAX (INT64_C(1) << 31)

/* ---- token files ---- */

/* Reads all ids of a token file, which must be in the vocabulary, and counts its documents:
 * end-of-text ids, and an unfinished document at the end of the file. */
static enum hd_status scan_ids(const struct hd_corpus *corpus, int64_t end_of_text,
                               int64_t *ret_documents)
{
    const int64_t count = hd_corpus_token_count(corpus);
    int32_t *ids = malloc(CHUNK * sizeof *ids), last = -1;
    enum hd_status st = ids ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to count tokens");
    int64_t documents = 0;

    for (int64_t at = 0; !st && at < count; at += CHUNK) {
        const int64_t n = count - at < CHUNK ? count - at : CHUNK;

        st = hd_corpus_read(corpus, at, n, ids);
        for (int64_t i = 0; !st && i < n; i++)
            documents += ids[i] == end_of_text;
        last = st ? last : ids[n - 1];
    }
    free(ids);
    *ret_documents = documents + (count && last != end_of_text);
    return st;
}

static enum hd_status look_at_tokens(const struct hd_corpus *corpus, int64_t end_of_text,
                                     struct hd_survey *one)
{
    int64_t documents;
    enum hd_status st;

    one->tokens = hd_corpus_token_count(corpus);
    one->documents = hd_corpus_document_count(corpus);
    if (one->tokens > TOKENS_SCANNED_MAX)
        return HD_OK;
    st = scan_ids(corpus, end_of_text, &documents);
    if (one->documents < 0 && end_of_text >= 0)
        one->documents = documents;
    one->checked = one->bytes;
    return st;
}

/* ---- text ---- */

/* Returns how many bytes at the end of a buffer of text belong to a character that continues in the
 * next buffer. */
static size_t unfinished(const char *text, size_t bytes)
{
    for (size_t n = 1; n <= 3 && n <= bytes; n++) {
        const unsigned char c = (unsigned char)text[bytes - n];

        if ((c & 0xC0) == 0x80)
            continue;
        return c >= 0xC0 && n < (c < 0xE0 ? 2u : c < 0xF0 ? 3u : 4u) ? n : 0;
    }
    return 0;
}

/* Checks that bytes [0, read_max) of a text are UTF-8. NUL is allowed: tokenizers accept it. */
static enum hd_status check_utf8(const struct hd_corpus *corpus, const char *path, int64_t read_max)
{
    int32_t *ids = malloc(CHUNK * sizeof *ids);
    char *text = malloc(CHUNK);
    enum hd_status st = ids && text ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to check text");
    size_t n = 0;

    for (int64_t at = 0; !st && at < read_max; at += (int64_t)n) {
        const bool is_last = read_max - at <= CHUNK;

        n = is_last ? (size_t)(read_max - at) : CHUNK;
        st = hd_corpus_read(corpus, at, (int64_t)n, ids);
        for (size_t i = 0; !st && i < n; i++)
            text[i] = (char)(ids[i] ? ids[i] : ' ');
        if (!st && (!is_last || read_max < hd_corpus_token_count(corpus))) {
            const size_t rest = unfinished(text, n);

            n -= rest < n ? rest : 0;
        }
        if (!st && !hd_text_is_utf8(text, n)) {
            const size_t bad = hd_text_find_not_utf8(text, n);

            st = hd_err(HD_INVALID, "%s: byte %" PRId64 " (0x%02X) is not UTF-8%s", path,
                        at + (int64_t)bad, (unsigned char)text[bad],
                        hd_text_explain_not_utf8(text, n, bad));
        }
        if (is_last)
            break;
    }
    free(ids);
    free(text);
    return st;
}

/* Tokenizes the file as a rank does, without writing ids, and sets *ret_documents to the number of
 * its documents. If the file exceeds r->encode_left, uses the tokenizer "bytes", which still checks
 * the lines. read_max: bytes to read, at least; 0: the whole file. */
static enum hd_status count_documents(const char *path, struct hd_survey_rules *r,
                                      int64_t size_bytes, int64_t read_max, struct hd_bad_rows *bad,
                                      int64_t *ret_documents)
{
    struct hd_tokenize_counts counts = {.documents = 0};
    struct hd_tokenizer *bytes = NULL;
    struct hd_tokenize how = {.tokenizer = r->tokenizer,
                              .end_of_text = r->end_of_text,
                              .inputs = &path,
                              .input_count = 1,
                              .threads = r->threads,
                              .rows = r->rows,
                              .bad = bad,
                              .read_max = read_max};
    enum hd_status st = HD_OK;

    if (r->encode_left < size_bytes) {
        st = hd_tokenizer_open("bytes", &bytes);
        how.tokenizer = bytes;
    }
    r->encode_left -= r->encode_left < size_bytes ? r->encode_left : size_bytes;
    if (!st)
        st = hd_tokenize_run(&how, &counts);
    hd_tokenizer_close(bytes);
    *ret_documents = counts.documents;
    return st;
}

static enum hd_status look_at_text(const struct hd_corpus *corpus, const char *path,
                                   struct hd_survey_rules *r, struct hd_survey *one)
{
    const bool is_bytes = strcmp(hd_tokenizer_name(r->tokenizer), "bytes") == 0;

    one->checked = r->read_left < one->bytes ? BEGINNING : one->bytes;
    if (one->checked > one->bytes)
        one->checked = one->bytes;
    if (is_bytes) { /* every byte is a token */
        one->checked = one->bytes;
        return HD_OK;
    }
    r->read_left -= r->read_left < one->bytes ? r->read_left : one->bytes;
    if (one->checked == one->bytes && one->bytes <= r->encode_left)
        return count_documents(path, r, one->bytes, 0, NULL, &one->documents);
    return check_utf8(corpus, path, one->checked);
}

/* Checks a compressed text as a rank does; of one that is too large, only the beginning. */
static enum hd_status look_at_packed(const char *path, struct hd_survey_rules *r,
                                     struct hd_survey *one)
{
    const bool whole = one->bytes <= r->read_left;

    one->tokens = -1;
    one->checked = whole || one->bytes < BEGINNING ? one->bytes : BEGINNING;
    r->read_left -= whole ? one->bytes : r->read_left;
    if (!r->tokenizer)
        return HD_OK;
    return count_documents(path, r, one->bytes, whole ? 0 : BEGINNING, NULL, &one->documents);
}

/* ---- records ---- */

static bool skips_bad(const struct hd_survey_rules *r)
{
    struct hd_bad_rule rule;

    return !hd_bad_rule_read(r->rows.bad_rows, &rule) && rule.skips;
}

/* Checks the form of a file's records: of each, of a sample if the file is large, or at its
 * beginning. */
static enum hd_status check_form(const char *path, struct hd_survey_rules *r,
                                 enum hd_chat_form form, bool whole, struct hd_bad_rows *bad,
                                 struct hd_survey *one)
{
    const bool is_small = one->bytes <= r->encode_left;
    const struct hd_jsonl_sample sample = {
        .bytes = whole ? INT64_MAX : BEGINNING,
        .every = is_small || !whole ? 1 : 1 + one->bytes / HD_SURVEY_SAMPLE_BYTES};

    r->encode_left -= is_small ? one->bytes : r->encode_left;
    one->every = sample.every;
    return hd_jsonl_check(path, &r->rows, form, sample, bad, &one->documents);
}

/* Takes over the bad records of a file. Fails if they are an error of a job that leaves such out;
 * if it does not, the caller of the survey judges all files together. */
static enum hd_status take_bad(const char *path, struct hd_survey_rules *r,
                               const struct hd_bad_rows *bad, struct hd_survey *one)
{
    struct hd_bad_rule rule;
    enum hd_status st = hd_bad_rule_read(r->rows.bad_rows, &rule);

    if (!st && rule.skips)
        st = hd_bad_rows_judge(bad, &rule, path);
    one->left_out = bad->count;
    if (r->bad)
        hd_bad_rows_join(r->bad, bad);
    return st;
}

/* Checks the records of a file as a rank does: encodes records of text; checks the form of
 * conversations. */
static enum hd_status look_at_lines(const char *path, enum hd_data_kind kind,
                                    struct hd_survey_rules *r, struct hd_survey *one)
{
    const bool whole = one->bytes <= r->read_left;
    struct hd_bad_rows bad = {.count = 0}, *notes = r->bad ? &bad : NULL;
    enum hd_chat_form form = r->form;
    enum hd_status st = hd_jsonl_look(path, &r->rows, form, &form);

    one->tokens = -1;
    one->kind = st || form == HD_CHAT_TEXT ? hd_data_kind_name(kind) : hd_chat_form_name(form);
    one->checked = whole || one->bytes < BEGINNING ? one->bytes : BEGINNING;
    r->read_left -= whole ? one->bytes : r->read_left;
    if (st)
        return st;
    if (form != HD_CHAT_TEXT || !r->tokenizer || !whole || one->bytes > r->encode_left)
        st = check_form(path, r, form, whole, notes, one);
    else
        st = count_documents(path, r, one->bytes, 0, notes, &one->documents);
    /* bad records are an error, and the caller tells those of all files together */
    if (st == HD_INVALID && bad.count && !skips_bad(r))
        st = HD_OK;
    if (!st && notes)
        st = take_bad(path, r, &bad, one);
    hd_bad_rows_free(&bad);
    return st;
}

/* ---- all ---- */

static enum hd_status look_at(const struct hd_corpus_file *file, struct hd_survey_rules *r,
                              struct hd_survey *one)
{
    const bool is_bytes = r->tokenizer && strcmp(hd_tokenizer_name(r->tokenizer), "bytes") == 0;
    struct hd_corpus *corpus = NULL;
    struct hd_data_facts facts;
    enum hd_status st = hd_corpus_open(file, 1, &corpus);

    if (st)
        return st;
    st = hd_data_look(file->path, &facts);
    *one = (struct hd_survey){.kind = hd_corpus_kind(corpus),
                              .files = 1,
                              .bytes = hd_corpus_byte_count(corpus),
                              .documents = 1,
                              .every = 1,
                              .tokens = is_bytes ? hd_corpus_token_count(corpus) : -1};
    if (!st && !hd_corpus_has_text(corpus)) {
        st = hd_corpus_set_vocab(corpus, r->vocab);
        if (!st)
            st = look_at_tokens(corpus, r->end_of_text, one);
    } else if (!st && hd_data_kind_has_records(facts.kind)) {
        st = look_at_lines(file->path, facts.kind, r, one);
    } else if (!st && facts.packing) {
        st = look_at_packed(file->path, r, one);
    } else if (!st && r->tokenizer) {
        st = look_at_text(corpus, file->path, r, one);
    }
    hd_corpus_close(corpus);
    return st;
}

static int64_t add_known(int64_t a, int64_t b)
{
    return a < 0 || b < 0 ? -1 : a + b;
}

enum hd_status hd_survey_run(const struct hd_corpus_file *files, size_t count,
                             struct hd_survey_rules *rules, struct hd_survey *ret_survey)
{
    struct hd_survey all = {.every = 1}, one;

    for (size_t i = 0; i < count; i++) {
        enum hd_status st = look_at(&files[i], rules, &one);

        if (st)
            return st;
        all.kind = !all.kind || strcmp(all.kind, one.kind) == 0 ? one.kind : "mixed";
        all.files++;
        all.bytes += one.bytes;
        all.checked += one.checked;
        all.left_out += one.left_out;
        all.every = one.every > all.every ? one.every : all.every;
        if (rules->bad && rules->bad->count >= HD_BAD_ROWS_SHOWN && !skips_bad(rules))
            break;
        all.documents = add_known(all.documents, one.documents);
        all.tokens = add_known(all.tokens, one.tokens);
    }
    *ret_survey = all;
    return HD_OK;
}
