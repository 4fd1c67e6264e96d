#include "records/kind.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "records_internal.h"

enum {
    SAMPLE_BYTES = 64 << 10, /* bytes read at each place of a text to see whether it is UTF-8 */
    SAMPLES = 16             /* places of a large text */
};

/* ---- by name ---- */

static bool ends_in(const char *path, size_t n, const char *ending)
{
    const size_t m = strlen(ending);

    return n >= m && strncasecmp(path + n - m, ending, m) == 0;
}

/* Returns the length of a name without the ending of a compression. */
static size_t inner_length(const char *path)
{
    static const char *const endings[] = {".gz", ".gzip", ".zst", ".zstd"};
    const size_t n = strlen(path);

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_in(path, n, endings[i]))
            return n - strlen(endings[i]);
    return n;
}

enum hd_data_kind hd_data_name_kind(const char *path)
{
    static const struct {
        const char *ending;
        enum hd_data_kind kind;
    } names[] = {{".jsonl", HD_DATA_LINES},     {".ndjson", HD_DATA_LINES},
                 {".jsonlines", HD_DATA_LINES}, {".csv", HD_DATA_CSV},
                 {".tsv", HD_DATA_TSV},         {".parquet", HD_DATA_PARQUET},
                 {".pq", HD_DATA_PARQUET},      {".arrow", HD_DATA_ARROW},
                 {".npy", HD_DATA_NPY},         {".bin", HD_DATA_BIN}};
    const size_t n = inner_length(path);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ends_in(path, n, names[i].ending))
            return names[i].kind;
    return HD_DATA_TEXT;
}

bool hd_data_is_tokens(const char *path)
{
    const size_t n = strlen(path);

    return ends_in(path, n, ".npy") || ends_in(path, n, ".bin");
}

const char *hd_data_kind_name(enum hd_data_kind kind)
{
    static const char *const names[] = {
        [HD_DATA_TEXT] = "text",   [HD_DATA_LINES] = "jsonl", [HD_DATA_JSON] = "json",
        [HD_DATA_CSV] = "csv",     [HD_DATA_TSV] = "tsv",     [HD_DATA_PARQUET] = "parquet",
        [HD_DATA_ARROW] = "arrow", [HD_DATA_NPY] = "npy",     [HD_DATA_BIN] = "bin"};

    return names[kind];
}

/* ---- by the first bytes ---- */

/* Returns whether the line is a whole JSON object, or is longer than the bytes given. */
static bool is_object_in_line(const char *text, size_t bytes, bool is_cut)
{
    const char *end = memchr(text, '\n', bytes);
    size_t last = end ? (size_t)(end - text) : bytes;

    if (!end && is_cut)
        return true;
    while (last > 0 && strchr(" \t\r\n", text[last - 1]))
        last--;
    return last && text[last - 1] == '}';
}

/* Returns whether the rest of the line is blank, as after the "{" of an object that spans several
 * lines. */
static bool is_bare(const char *text, size_t bytes)
{
    size_t at = 0;

    while (at < bytes && (text[at] == ' ' || text[at] == '\r'))
        at++;
    return at < bytes && text[at] == '\n';
}

/* Returns the encoding of UTF-16 text without a byte order mark, told by NUL in every other byte,
 * as in Latin script; NULL: none found. */
static const char *wide_encoding(const char *head, size_t bytes)
{
    size_t nul[2] = {0, 0};
    const size_t n = bytes < 256 ? bytes : 256;

    for (size_t i = 0; i < n; i++)
        nul[i & 1] += head[i] == '\0';
    if (n >= 4 && nul[0] > n / 3 && !nul[1])
        return "UTF-16BE";
    return n >= 4 && nul[1] > n / 3 && !nul[0] ? "UTF-16LE" : NULL;
}

static bool begins_with(const char *text, size_t bytes, const char *words)
{
    return bytes >= strlen(words) && strncasecmp(text, words, strlen(words)) == 0;
}

static bool is_html(const char *path, const char *head, size_t bytes)
{
    const size_t at = records_count_blanks(head, bytes);

    return !records_is_named(path, " .html .htm .xhtml .php .vue .svg ") &&
           (begins_with(head + at, bytes - at, "<!doctype html") ||
            begins_with(head + at, bytes - at, "<html"));
}

/* Sets *kind, that of the name, to how the JSON in a file lies. */
static enum hd_status look_at_json(const char *path, const char *head, size_t bytes,
                                   enum hd_data_kind *kind)
{
    const bool is_json = ends_in(path, inner_length(path), ".json");
    const size_t mark = bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    const size_t at = mark + records_count_blanks(head + mark, bytes - mark);

    if ((!is_json && *kind != HD_DATA_LINES) || at == bytes)
        return HD_OK;
    if (head[at] == '[' ||
        (head[at] == '{' && !is_json && is_bare(head + at + 1, bytes - at - 1)) ||
        (head[at] == '{' && is_json &&
         (records_find_wrapped(head + at, bytes - at) ||
          !is_object_in_line(head + at, bytes - at, bytes == HD_DATA_HEAD_BYTES))))
        *kind = HD_DATA_JSON;
    else if (head[at] == '{')
        *kind = HD_DATA_LINES;
    else if (is_json)
        return hd_err(HD_INVALID,
                      "%s: is no file of JSON objects, in an array or one in each line; mend it, "
                      "or, to train on it as text, name it .txt",
                      path);
    return HD_OK;
}

/* Refuses a name of a kind whose magic the file lacks, such as a .gz that was unpacked in
 * transfer. */
static enum hd_status check_name(const char *path, size_t bytes)
{
    const struct records_foreign *f = records_by_name(path);

    if (!f)
        return HD_OK;
    if (f->magic_bytes && !bytes)
        return hd_err(HD_INVALID,
                      "%s: is empty, and its name promises %s; fetch or write it again, or remove "
                      "it",
                      path, f->kind);
    if (f->magic_bytes)
        return hd_err(HD_INVALID,
                      "%s: is named as %s and does not begin like one; name it by what it holds, "
                      ".jsonl or .txt",
                      path, f->kind);
    return hd_err(HD_INVALID, "%s: is %s, which is not read; %s", path, f->kind, f->remedy);
}

/* Refuses bytes that have no magic and are no text. */
static enum hd_status check_encoding(const char *path, const char *head, size_t bytes)
{
    if (wide_encoding(head, bytes))
        return hd_err(HD_INVALID,
                      "%s: is text in UTF-16, which is not read; write it in UTF-8: iconv -f "
                      "%s -t UTF-8",
                      path, wide_encoding(head, bytes));
    if (is_html(path, head, bytes))
        return hd_err(HD_INVALID,
                      "%s: is a page of HTML, perhaps a server's error page instead of the data; "
                      "fetch the data again, or, to train on the page, name it .html",
                      path);
    return HD_OK;
}

/* Finds the kind of the bytes of a file, or of those that a compressed file holds. `inside`: the
 * kind of the compressed file, for messages; NULL: none. */
static enum hd_status classify(const char *path, const char *head, size_t bytes, const char *inside,
                               struct hd_data_facts *f)
{
    const struct records_foreign *m = records_by_magic(head, bytes);
    enum hd_status st;

    f->kind = hd_data_name_kind(path);
    if (inside && m)
        return hd_err(HD_INVALID, "%s: is %s in %s, which is not read; unpack it%s%s", path,
                      m->kind, inside, m->remedy ? ", then: " : "", m->remedy ? m->remedy : "");
    if (inside && f->kind >= HD_DATA_PARQUET)
        return hd_err(
            HD_INVALID,
            "%s: is named as a .%s in %s, which is not read; unpack it, or name it by what "
            "it holds, as .jsonl.gz or .txt.gz",
            path, hd_data_kind_name(f->kind), inside);
    if (m && m->remedy)
        return hd_err(HD_INVALID, "%s: is %s, which is not read; %s", path, m->kind, m->remedy);
    if (m) {
        f->packing = m->packing;
        f->kind = m->packing ? f->kind : m->reads;
        return HD_OK;
    }
    st = check_encoding(path, head, bytes);
    if (!st && !inside)
        st = check_name(path, bytes);
    return st ? st : look_at_json(path, head, bytes, &f->kind);
}

static enum hd_status check_nul(const char *path, const char *head, size_t bytes)
{
    const char *nul = memchr(head, '\0', bytes);
    size_t line = 1;

    if (!nul)
        return HD_OK;
    for (const char *at = head; at < nul; at++)
        line += *at == '\n';
    return hd_err(HD_INVALID,
                  "%s:%zu: has a NUL byte (byte %zu of the file), so it is damaged or not text; "
                  "mend it (tr -d '\\000' removes such bytes), or name files of text (.txt), lines "
                  "(.jsonl), tables (.parquet, .csv) or tokens (.npy, .bin)",
                  path, line, (size_t)(nul - head));
}

/* Finds the kind of an open file: of the bytes that it holds if it is compressed. */
static enum hd_status classify_stream(const char *path, struct records_stream *s,
                                      struct hd_data_facts *f)
{
    char head[HD_DATA_HEAD_BYTES];
    size_t bytes;
    enum hd_status st = records_stream_read(s, head, sizeof head, &bytes);

    if (!st)
        st = classify(path, head, bytes, NULL, f);
    if (!st && f->packing) {
        const char *inside = f->packing == HD_DATA_GZIP ? "a gzip file" : "a Zstandard file";

        st = records_stream_restart(s, f->packing);
        if (!st)
            st = records_stream_read(s, head, sizeof head, &bytes);
        if (!st)
            st = classify(path, head, bytes, inside, f);
    }
    return !st && f->kind < HD_DATA_PARQUET ? check_nul(path, head, bytes) : st;
}

enum hd_status records_classify(const char *path, struct hd_data_facts *ret_file,
                                struct records_stream **ret_stream)
{
    struct hd_data_facts f = {.packing = HD_DATA_UNPACKED};
    struct records_stream *s = NULL;
    enum hd_status st = records_stream_open(path, &s);

    if (!st)
        st = classify_stream(path, s, &f);
    if (!st && ret_stream)
        st = records_stream_restart(s, f.packing);
    if (!st)
        *ret_file = f;
    if (!st && ret_stream)
        *ret_stream = s;
    else
        records_stream_close(s);
    return st;
}

enum hd_status hd_data_look(const char *path, struct hd_data_facts *ret_facts)
{
    if (!hd_data_is_tokens(path))
        return records_classify(path, ret_facts, NULL);
    *ret_facts = (struct hd_data_facts){.kind = hd_data_name_kind(path)};
    return HD_OK;
}

enum hd_data_kind hd_data_kind_of(const char *path)
{
    struct hd_data_facts facts;

    return hd_data_look(path, &facts) ? hd_data_name_kind(path) : facts.kind;
}

bool hd_data_kind_has_records(enum hd_data_kind kind)
{
    return kind >= HD_DATA_LINES && kind <= HD_DATA_ARROW;
}

bool hd_data_has_records(const char *path)
{
    return hd_data_kind_has_records(hd_data_kind_of(path));
}

bool hd_data_is_plain(const char *path)
{
    struct hd_data_facts facts;

    if (hd_data_look(path, &facts))
        return hd_data_name_kind(path) == HD_DATA_TEXT;
    return facts.kind == HD_DATA_TEXT && !facts.packing;
}

const char *hd_data_foreign_kind(const void *head, size_t bytes, const char *path,
                                 const char **ret_remedy)
{
    const enum hd_data_kind named = hd_data_name_kind(path);
    const struct records_foreign *f = records_by_magic(head, bytes);

    if (!f || f->reads == named)
        return NULL;
    *ret_remedy = f->remedy ? f->remedy : f->packing ? "unpack it" : "name it by what it is";
    if (named == HD_DATA_NPY && strcmp(f->kind, "a ZIP archive") == 0)
        *ret_remedy = "np.savez writes such an archive of arrays: write one array with np.save";
    return f->kind;
}

enum hd_status hd_data_check_kind(const char *path, const void *head, size_t bytes)
{
    struct hd_data_facts f = {.packing = HD_DATA_UNPACKED};

    return hd_data_is_tokens(path) ? HD_OK : classify(path, head, bytes, NULL, &f);
}

/* ---- text ---- */

/* Returns the number of bytes that belong to no character of UTF-8; a character that is cut at an
 * end of the bytes counts for nothing. NUL is a character. */
static size_t count_not_utf8(const char *text, size_t bytes)
{
    size_t at = 0, bad = 0;

    while (at < bytes && at < 3 && (text[at] & 0xC0) == 0x80)
        at++;
    while (at < bytes) {
        at += hd_text_find_not_utf8(text + at, bytes - at);
        if (at >= bytes || (bytes - at < 4 && (unsigned char)text[at] >= 0xC2))
            break;
        bad += text[at++] != '\0';
    }
    return bad;
}

enum hd_status hd_data_check_text(const char *path, struct hd_data_facts *ret_facts)
{
    char bytes[SAMPLE_BYTES];
    struct records_stream *s = NULL;
    struct stat info;
    size_t n = 0, bad = 0, all = 0;
    enum hd_status st;

    if (hd_data_is_tokens(path))
        return hd_data_look(path, ret_facts);
    st = records_classify(path, ret_facts, &s);
    if (st || ret_facts->kind != HD_DATA_TEXT) {
        records_stream_close(s);
        return st;
    }
    if (stat(path, &info) < 0)
        st = hd_file_cannot_open("", path, errno);
    for (int i = 0; !st && i < SAMPLES; i++) {
        if (!ret_facts->packing && info.st_size > (off_t)SAMPLES * SAMPLE_BYTES)
            st = records_stream_seek(s, info.st_size / SAMPLES * i);
        if (!st)
            st = records_stream_read(s, bytes, sizeof bytes, &n);
        if (st || !n)
            break;
        all += n;
        bad += count_not_utf8(bytes, n);
    }
    records_stream_close(s);
    if (st || bad <= all / 100)
        return st;
    return hd_err(HD_INVALID,
                  "%s: %.1f%% of its bytes are not UTF-8, so it is text in another encoding, or no "
                  "text; write it in UTF-8 (iconv -f ENCODING -t UTF-8), or, to train on its bytes "
                  "whatever they are, write data.tokenizer: bytes",
                  path, 100.0 * (double)bad / (double)all);
}
