#include "data/kind.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

/* A kind of file that is refused. The first row whose magic or name matches decides. */
struct foreign {
    const char *kind;   /* name of the kind, with its article */
    const char *names;  /* file name endings, with a blank before and after each; "": none */
    const char *remedy; /* advice to the user */
    size_t at;          /* offset of the magic, bytes */
    size_t magic_bytes; /* bytes of the magic; 0: only the name tells the kind */
    const char *magic;
};

#define MAGIC(text) sizeof(text) - 1, text
#define TABLE                                                                         \
    "write its text as .jsonl, an object with \"text\" a line, such as with pandas: " \
    "to_json(NAME, orient='records', lines=True)"
#define NO_TEXT "it has no text to train on; name files of text"
#define UNPACK  "unpack it, and name the files in it"

static const struct foreign FOREIGN[] = {
    {"a gzip file", " .gz .tgz ", "unpack it: gzip -dk", 0, MAGIC("\x1f\x8b")},
    {"a Zstandard file", " .zst .zstd ", "unpack it: zstd -d", 0, MAGIC("\x28\xb5\x2f\xfd")},
    {"an xz file", " .xz ", "unpack it: xz -dk", 0,
     MAGIC("\xfd"
           "7zXZ")},
    {"a bzip2 file", " .bz2 ", "unpack it: bzip2 -dk", 4, MAGIC("1AY&SY")},
    {"an LZ4 file", " .lz4 ", "unpack it: lz4 -d", 0, MAGIC("\x04\x22\x4d\x18")},
    {"a NumPy archive", " .npz ", "write its array as .npy", 0, 0, ""},
    {"a file of PyTorch", " .pt .pth ", "write its tokens as .npy, or its text as .jsonl", 0, 0,
     ""},
    {"a ZIP archive", " .zip .docx .xlsx .epub .jar ", UNPACK, 0, MAGIC("PK\x03\x04")},
    {"a 7z archive", " .7z ", UNPACK, 0, MAGIC("7z\xbc\xaf\x27\x1c")},
    {"a RAR archive", " .rar ", UNPACK, 0, MAGIC("Rar!\x1a\x07")},
    {"a tar archive", " .tar ", UNPACK, 257, MAGIC("ustar")},
    {"a Parquet file", " .parquet ", TABLE, 0, MAGIC("PAR1")},
    {"an Arrow file", " .arrow .feather ", TABLE, 0, MAGIC("ARROW1")},
    {"an Arrow file", "", TABLE, 0, MAGIC("\xff\xff\xff\xff")},
    {"a Feather file", "", TABLE, 0, MAGIC("FEA1")},
    {"an ORC file", " .orc ", TABLE, 0, MAGIC("ORC\x0a")},
    {"an Avro file", " .avro ", TABLE, 0, MAGIC("Obj\x01")},
    {"an HDF5 file", " .h5 .hdf5 ", "write its tokens as .npy, or its text as .jsonl", 0,
     MAGIC("\x89HDF\r\n\x1a\n")},
    {"an SQLite database", " .db .sqlite .sqlite3 ", TABLE, 0, MAGIC("SQLite format 3")},
    {"a TFRecord file", " .tfrecord .tfrecords ", TABLE, 0, 0, ""},
    {"a table", " .csv .tsv ", TABLE "; to train on the table as it is, name it .txt", 0, 0, ""},
    {"a pickle of Python", " .pkl .pickle ", "write its text as .jsonl, or its tokens as .npy", 0,
     0, ""},
    {"a NumPy array", "", "name it .npy", 0, MAGIC("\x93NUMPY")},
    {"a GGUF model", " .gguf ", NO_TEXT, 0, MAGIC("GGUF")},
    {"a file of weights", " .safetensors ", NO_TEXT, 8, MAGIC("{\"")},
    {"a PDF", " .pdf ", "write its text as .txt", 0, MAGIC("%PDF-")},
    {"a picture", " .png ", NO_TEXT, 0, MAGIC("\x89PNG\r\n")},
    {"a picture", " .jpg .jpeg ", NO_TEXT, 0, MAGIC("\xff\xd8\xff")},
    {"a picture", " .gif ", NO_TEXT, 0, MAGIC("GIF8")},
    {"a picture or sound", " .webp .wav .avi ", NO_TEXT, 8, MAGIC("WEBP")},
    {"a sound", "", NO_TEXT, 8, MAGIC("WAVEfmt")},
    {"a sound", " .mp3 ", NO_TEXT, 0, MAGIC("ID3")},
    {"a sound", " .flac ", NO_TEXT, 0, MAGIC("fLaC")},
    {"a sound or film", " .ogg .opus ", NO_TEXT, 0, MAGIC("OggS")},
    {"a film", " .mp4 .mov .m4a ", NO_TEXT, 4, MAGIC("ftyp")},
    {"a program", "", NO_TEXT, 0,
     MAGIC("\x7f"
           "ELF")},
    {"a pointer of Git LFS, not the file itself", "", "fetch the file: git lfs pull", 0,
     MAGIC("version https://git-lfs.github.com/spec/")},
    {"a pointer of git-annex, not the file itself", "", "fetch the file: git annex get", 0,
     MAGIC("/annex/objects/")},
    {"text in UTF-32", "", "write it in UTF-8: iconv -f UTF-32 -t UTF-8", 0,
     MAGIC("\xff\xfe\x00\x00")},
    {"text in UTF-32", "", "write it in UTF-8: iconv -f UTF-32 -t UTF-8", 0,
     MAGIC("\x00\x00\xfe\xff")},
    {"text in UTF-16", "", "write it in UTF-8: iconv -f UTF-16 -t UTF-8", 0, MAGIC("\xff\xfe")},
    {"text in UTF-16", "", "write it in UTF-8: iconv -f UTF-16 -t UTF-8", 0, MAGIC("\xfe\xff")},
};

/* ---- by name ---- */

static bool ends(const char *path, const char *ending)
{
    const size_t n = strlen(path), m = strlen(ending);

    return n >= m && strcasecmp(path + n - m, ending) == 0;
}

/* Returns whether the file's name ends in one of `names`, the endings in a row of the table. */
static bool is_named(const char *path, const char *names)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    const size_t n = dot ? strlen(dot) : 0;

    for (const char *at = names; n && *at; at++)
        if (strncasecmp(at, dot, n) == 0 && at[n] == ' ')
            return true;
    return false;
}

/* ---- by the first bytes ---- */

static size_t count_blanks(const char *text, size_t bytes)
{
    size_t at = 0;

    while (at < bytes && strchr(" \t\r\n", text[at]) && text[at])
        at++;
    return at;
}

/* Returns whether the first non-blank line of a file is a whole JSON object, or is longer than the
 * bytes given. */
static bool has_object_in_line(const char *text, size_t bytes)
{
    const size_t begin = count_blanks(text, bytes);
    const char *end = memchr(text + begin, '\n', bytes - begin);
    size_t last = end ? (size_t)(end - text) : bytes;

    if (begin == bytes || text[begin] != '{')
        return false;
    if (!end && bytes == HD_DATA_HEAD_BYTES)
        return true;
    while (last > begin && strchr(" \t\r\n", text[last - 1]))
        last--;
    return text[last - 1] == '}';
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

static bool has_magic(const struct foreign *f, const char *head, size_t bytes)
{
    return f->magic_bytes && bytes >= f->at + f->magic_bytes &&
           memcmp(head + f->at, f->magic, f->magic_bytes) == 0;
}

static const struct foreign *by_magic(const char *head, size_t bytes)
{
    static const struct foreign pickle = {.kind = "a pickle of Python",
                                          .remedy = "write its text as .jsonl, or its tokens as "
                                                    ".npy"};

    for (size_t i = 0; i < sizeof FOREIGN / sizeof FOREIGN[0]; i++)
        if (has_magic(&FOREIGN[i], head, bytes))
            return &FOREIGN[i];
    if (bytes >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5)
        return &pickle;
    return NULL;
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
    const size_t at = count_blanks(head, bytes);

    return !is_named(path, " .html .htm .xhtml .php .vue .svg ") &&
           (begins_with(head + at, bytes - at, "<!doctype html") ||
            begins_with(head + at, bytes - at, "<html"));
}

/* ---- lines ---- */

static enum hd_status check_lines(const char *path, const char *head, size_t bytes)
{
    const size_t at = count_blanks(head, bytes);

    if (bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0)
        return hd_err(HD_INVALID,
                      "%s: begins with a byte order mark, which no line of JSON has; remove it: "
                      "sed -i '1s/^\\xef\\xbb\\xbf//' FILE",
                      path);
    if (at < bytes && head[at] == '[')
        return hd_err(HD_INVALID,
                      "%s: is a JSON array; write each of its objects in a line of a .jsonl: jq -c "
                      "'.[]'",
                      path);
    if (at < bytes && head[at] == '{' && is_bare(head + at + 1, bytes - at - 1))
        return hd_err(HD_INVALID,
                      "%s: its first object does not end in its line; write each object in one "
                      "line: jq -c .",
                      path);
    return HD_OK;
}

/* Refuses a .json file that does not have one object per line. */
static enum hd_status check_json(const char *path, const char *head, size_t bytes)
{
    enum hd_status st = check_lines(path, head, bytes);

    if (st || !bytes)
        return st;
    return hd_err(HD_INVALID,
                  "%s: is no file of JSON objects, one in each line; write a .jsonl, or, to train "
                  "on it as text, name it .txt",
                  path);
}

/* ---- */

static enum hd_data_kind kind_by_name(const char *path)
{
    if (ends(path, ".jsonl") || ends(path, ".ndjson") || ends(path, ".jsonlines"))
        return HD_DATA_LINES;
    return ends(path, ".npy") ? HD_DATA_NPY : ends(path, ".bin") ? HD_DATA_BIN : HD_DATA_TEXT;
}

static enum hd_status read_head(const char *path, char head[HD_DATA_HEAD_BYTES], size_t *ret_bytes)
{
    size_t have = 0;
    ssize_t n = 1;
    int fd;
    enum hd_status st = hd_file_open_regular("the data file ", path, &fd);

    *ret_bytes = 0;
    if (st)
        return st;
    while (have < HD_DATA_HEAD_BYTES && n > 0) {
        n = pread(fd, head + have, HD_DATA_HEAD_BYTES - have, (off_t)have);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            have += (size_t)n;
    }
    (void)close(fd);
    if (n < 0)
        return hd_err(HD_IO, "cannot read %s: %s", path, strerror(errno));
    *ret_bytes = have;
    return HD_OK;
}

enum hd_data_kind hd_data_kind_of(const char *path)
{
    char head[HD_DATA_HEAD_BYTES];
    size_t bytes;

    if (!ends(path, ".json") || read_head(path, head, &bytes))
        return kind_by_name(path);
    return has_object_in_line(head, bytes) ? HD_DATA_LINES : HD_DATA_TEXT;
}

bool hd_data_is_lines(const char *path)
{
    return hd_data_kind_of(path) == HD_DATA_LINES;
}

bool hd_data_is_tokens(const char *path)
{
    const enum hd_data_kind kind = kind_by_name(path);

    return kind == HD_DATA_NPY || kind == HD_DATA_BIN;
}

const char *hd_data_foreign_kind(const void *head, size_t bytes, const char *path,
                                 const char **ret_remedy)
{
    const bool is_npy = kind_by_name(path) == HD_DATA_NPY;
    const struct foreign *f = by_magic(head, bytes);

    if (!f || (is_npy && strcmp(f->kind, "a NumPy array") == 0))
        return NULL;
    *ret_remedy = f->remedy;
    if (is_npy && strcmp(f->kind, "a ZIP archive") == 0)
        *ret_remedy = "np.savez writes such an archive of arrays: write one array with np.save";
    return f->kind;
}

/* Refuses a name of a kind whose magic the file lacks, such as a .gz that was unpacked in
 * transfer. */
static enum hd_status check_name(const char *path)
{
    for (size_t i = 0; i < sizeof FOREIGN / sizeof FOREIGN[0]; i++) {
        const struct foreign *f = &FOREIGN[i];

        if (!is_named(path, f->names))
            continue;
        if (f->magic_bytes)
            return hd_err(HD_INVALID,
                          "%s: is named as %s and does not begin like one; name it by what it "
                          "holds, .jsonl or .txt",
                          path, f->kind);
        return hd_err(HD_INVALID, "%s: is %s, which is not read; %s", path, f->kind, f->remedy);
    }
    return HD_OK;
}

enum hd_status hd_data_check_kind(const char *path, const void *head, size_t bytes)
{
    const enum hd_data_kind named = kind_by_name(path);
    const struct foreign *f;
    enum hd_status st;

    if (named == HD_DATA_NPY || named == HD_DATA_BIN)
        return HD_OK;
    f = by_magic(head, bytes);
    if (f)
        return hd_err(HD_INVALID, "%s: is %s, which is not read; %s", path, f->kind, f->remedy);
    st = check_name(path);
    if (st)
        return st;
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
    if (named == HD_DATA_LINES)
        return check_lines(path, head, bytes);
    if (ends(path, ".json") && !has_object_in_line(head, bytes))
        return check_json(path, head, bytes);
    return HD_OK;
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
                  "(.jsonl) or tokens (.npy, .bin)",
                  path, line, (size_t)(nul - head));
}

enum hd_status hd_data_look(const char *path)
{
    char head[HD_DATA_HEAD_BYTES];
    size_t bytes;
    enum hd_status st;

    if (hd_data_is_tokens(path))
        return HD_OK;
    st = read_head(path, head, &bytes);
    if (!st)
        st = hd_data_check_kind(path, head, bytes);
    return st ? st : check_nul(path, head, bytes);
}
