/* foreign: the kinds of files that are not plain text, by their first bytes and names. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "records_internal.h"

#define MAGIC(text) .magic_bytes = sizeof(text) - 1, .magic = (text)
#define TABLE                                                                         \
    "write its text as .jsonl, an object with \"text\" a line, such as with pandas: " \
    "to_json(NAME, orient='records', lines=True)"
#define NO_TEXT "it has no text to train on; name files of text"
#define UNPACK  "unpack it, and name the files in it"
#define TOKENS  "write its tokens as .npy, or its text as .jsonl"
#define UTF32   "write it in UTF-8: iconv -f UTF-32 -t UTF-8 FILE > NEW.txt"
#define UTF16   "write it in UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW.txt"
#define PICKLE                                                                                \
    "reading one runs the code in it, so it is not read; where you trust it, write its text " \
    "as .jsonl, or its tokens as .npy"
#define WEIGHTS "it has weights, not data; model.from names a folder of weights"

static const struct records_foreign FOREIGN[] = {
    /* read */
    {.kind = "a gzip file", .names = " .gz .gzip ", .packing = HD_DATA_GZIP, MAGIC("\x1f\x8b")},
    {.kind = "a Zstandard file",
     .names = " .zst .zstd ",
     .packing = HD_DATA_ZSTD,
     MAGIC("\x28\xb5\x2f\xfd")},
    {.kind = "a Parquet file", .names = " .parquet .pq ", .reads = HD_DATA_PARQUET, MAGIC("PAR1")},
    {.kind = "an Arrow file", .names = " .arrow .ipc ", .reads = HD_DATA_ARROW, MAGIC("ARROW1")},
    {.kind = "an Arrow file", .names = "", .reads = HD_DATA_ARROW, MAGIC("\xff\xff\xff\xff")},
    /* compressed otherwise */
    {.kind = "an xz file",
     .names = " .xz ",
     .remedy = "xz -dc FILE | zstd > FILE.zst",
     MAGIC("\xfd"
           "7zXZ")},
    {.kind = "a bzip2 file",
     .names = " .bz2 ",
     .remedy = "bzip2 -dc FILE | zstd > FILE.zst",
     .at = 4,
     MAGIC("1AY&SY")},
    {.kind = "an LZ4 file",
     .names = " .lz4 ",
     .remedy = "lz4 -dc FILE | zstd > FILE.zst",
     MAGIC("\x04\x22\x4d\x18")},
    {.kind = "a file of compress",
     .names = " .z ",
     .remedy = "zcat FILE | zstd > FILE.zst",
     MAGIC("\x1f\x9d")},
    {.kind = "an lzip file",
     .names = " .lz ",
     .remedy = "lzip -dc FILE | zstd > FILE.zst",
     MAGIC("LZIP\x01")},
    {.kind = "a framed Snappy file",
     .names = " .sz ",
     .remedy = "unpack it: snzip -d",
     MAGIC("\xff\x06\x00\x00sNaPpY")},
    /* archives */
    {.kind = "a NumPy archive", .names = " .npz ", .remedy = "write its array as .npy: numpy.save"},
    {.kind = "a file of PyTorch", .names = " .pt .pth ", .remedy = TOKENS},
    {.kind = "a ZIP archive",
     .names = " .zip .docx .xlsx .epub .jar ",
     .remedy = UNPACK ": unzip",
     MAGIC("PK\x03\x04")},
    {.kind = "an empty ZIP archive", .names = "", .remedy = UNPACK, MAGIC("PK\x05\x06")},
    {.kind = "a ZIP archive", .names = "", .remedy = UNPACK ": unzip", MAGIC("PK\x07\x08")},
    {.kind = "a 7z archive",
     .names = " .7z ",
     .remedy = UNPACK ": 7z x",
     MAGIC("7z\xbc\xaf\x27\x1c")},
    {.kind = "a RAR archive",
     .names = " .rar ",
     .remedy = UNPACK ": unrar x",
     MAGIC("Rar!\x1a\x07")},
    {.kind = "a tar archive",
     .names = " .tar .tgz .tbz .txz ",
     .remedy = UNPACK ": tar -xf",
     .at = 257,
     MAGIC("ustar")},
    {.kind = "an ar archive", .names = " .deb .a ", .remedy = UNPACK, MAGIC("!<arch>\n")},
    {.kind = "a web archive",
     .names = " .warc ",
     .remedy = "extract the text of its pages as .jsonl, such as with trafilatura",
     MAGIC("WARC/1.")},
    /* tables */
    {.kind = "an encrypted Parquet file",
     .names = "",
     .remedy = "write it without encryption",
     MAGIC("PARE")},
    {.kind = "a Feather file of version 1",
     .names = " .feather ",
     .remedy = "write it as Parquet: pyarrow.feather.read_table, pyarrow.parquet.write_table",
     MAGIC("FEA1")},
    {.kind = "an ORC file",
     .names = " .orc ",
     .remedy = "write it as Parquet: pyarrow.orc.read_table, pyarrow.parquet.write_table",
     MAGIC("ORC\x0a")},
    {.kind = "an Avro file", .names = " .avro ", .remedy = TABLE, MAGIC("Obj\x01")},
    {.kind = "an HDF5 file", .names = " .h5 .hdf5 ", .remedy = TOKENS, MAGIC("\x89HDF\r\n\x1a\n")},
    {.kind = "an SQLite database",
     .names = " .db .sqlite .sqlite3 ",
     .remedy = TABLE,
     MAGIC("SQLite format 3")},
    {.kind = "a DuckDB database",
     .names = " .duckdb ",
     .remedy = "write its table as Parquet: COPY TABLE TO 'NAME.parquet'"},
    {.kind = "a dump of PostgreSQL", .names = "", .remedy = TABLE, MAGIC("PGDMP")},
    {.kind = "a TFRecord file", .names = " .tfrecord .tfrecords ", .remedy = TABLE},
    {.kind = "a pickle of Python", .names = " .pkl .pickle ", .remedy = PICKLE},
    /* tokens and weights */
    {.kind = "a NumPy array",
     .names = "",
     .remedy = "name it .npy",
     .reads = HD_DATA_NPY,
     MAGIC("\x93NUMPY")},
    {.kind = "an index of Megatron",
     .names = " .idx ",
     .remedy = "name its .bin instead",
     MAGIC("MMIDIDX\x00\x00")},
    {.kind = "a token file of llm.c",
     .reads = HD_DATA_BIN,
     .names = "",
     .remedy = "name it .bin",
     MAGIC("\x88\xd8\x34\x01")},
    {.kind = "a token file of llm.c",
     .reads = HD_DATA_BIN,
     .names = "",
     .remedy = "name it .bin",
     MAGIC("\xa1\xd9\x34\x01")},
    {.kind = "a GGUF model", .names = " .gguf ", .remedy = WEIGHTS, MAGIC("GGUF")},
    {.kind = "a safetensors file of weights",
     .names = " .safetensors ",
     .remedy = WEIGHTS,
     .at = 8,
     MAGIC("{\"")},
    /* documents, pictures, sounds, programs */
    {.kind = "a PDF",
     .names = " .pdf ",
     .remedy = "write its text as .txt: pdftotext",
     MAGIC("%PDF-")},
    {.kind = "a document of Office",
     .names = " .doc .xls .ppt ",
     .remedy = "write its text as .txt",
     MAGIC("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")},
    {.kind = "a document in RTF",
     .names = " .rtf ",
     .remedy = "write its text as .txt",
     MAGIC("{\\rtf")},
    {.kind = "a picture", .names = " .png ", .remedy = NO_TEXT, MAGIC("\x89PNG\r\n")},
    {.kind = "a picture", .names = " .jpg .jpeg ", .remedy = NO_TEXT, MAGIC("\xff\xd8\xff")},
    {.kind = "a picture", .names = " .gif ", .remedy = NO_TEXT, MAGIC("GIF8")},
    {.kind = "a picture", .names = " .tif .tiff ", .remedy = NO_TEXT, MAGIC("II*\x00")},
    {.kind = "a picture", .names = "", .remedy = NO_TEXT, MAGIC("MM\x00*")},
    {.kind = "a picture or sound",
     .names = " .webp .wav .avi ",
     .remedy = NO_TEXT,
     .at = 8,
     MAGIC("WEBP")},
    {.kind = "a sound", .names = "", .remedy = NO_TEXT, .at = 8, MAGIC("WAVEfmt")},
    {.kind = "a film", .names = "", .remedy = NO_TEXT, .at = 8, MAGIC("AVI LIST")},
    {.kind = "a sound", .names = " .aif .aiff ", .remedy = NO_TEXT},
    {.kind = "a sound", .names = " .mp3 ", .remedy = NO_TEXT, MAGIC("ID3")},
    {.kind = "a sound", .names = "", .remedy = NO_TEXT, MAGIC("\xff\xfb")},
    {.kind = "a sound", .names = "", .remedy = NO_TEXT, MAGIC("\xff\xf3")},
    {.kind = "a sound", .names = " .flac ", .remedy = NO_TEXT, MAGIC("fLaC")},
    {.kind = "a sound", .names = " .mid ", .remedy = NO_TEXT, MAGIC("MThd")},
    {.kind = "a sound or film", .names = " .ogg .opus ", .remedy = NO_TEXT, MAGIC("OggS")},
    {.kind = "a film", .names = " .mp4 .mov .m4a ", .remedy = NO_TEXT, .at = 4, MAGIC("ftyp")},
    {.kind = "a film", .names = " .mkv .webm ", .remedy = NO_TEXT, MAGIC("\x1a\x45\xdf\xa3")},
    {.kind = "a program",
     .names = "",
     .remedy = NO_TEXT,
     MAGIC("\x7f"
           "ELF")},
    {.kind = "a program",
     .names = " .wasm ",
     .remedy = NO_TEXT,
     MAGIC("\x00"
           "asm")},
    /* pointers to files elsewhere */
    {.kind = "a pointer of Git LFS, not the file itself",
     .names = "",
     .remedy = "fetch the file: git lfs pull",
     MAGIC("version https://git-lfs.github.com/spec/")},
    {.kind = "a pointer of git-annex, not the file itself",
     .names = "",
     .remedy = "fetch the file: git annex get",
     MAGIC("/annex/objects/")},
    {.kind = "a pointer of DVC, not the file itself",
     .names = " .dvc ",
     .remedy = "fetch the file: dvc pull, and name it without .dvc"},
    /* text in another encoding; UTF-32 begins like UTF-16 */
    {.kind = "text in UTF-32", .names = "", .remedy = UTF32, MAGIC("\xff\xfe\x00\x00")},
    {.kind = "text in UTF-32", .names = "", .remedy = UTF32, MAGIC("\x00\x00\xfe\xff")},
    {.kind = "text in UTF-16", .names = "", .remedy = UTF16, MAGIC("\xff\xfe")},
    {.kind = "text in UTF-16", .names = "", .remedy = UTF16, MAGIC("\xfe\xff")},
};

bool records_is_named(const char *path, const char *names)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    const size_t n = dot ? strlen(dot) : 0;

    for (const char *at = names; n && *at; at++)
        if (strncasecmp(at, dot, n) == 0 && at[n] == ' ')
            return true;
    return false;
}

/* Returns whether a magic of letters and digits at the beginning, such as PARE, is only the beginning
 * of a word of text: in the formats that have such a magic, one of the next four bytes is no
 * printable character. */
static bool is_word(const struct records_foreign *f, const char *head, size_t bytes)
{
    const size_t end = f->magic_bytes + 4 < bytes ? f->magic_bytes + 4 : bytes;

    if (f->at || f->magic_bytes == bytes)
        return false;
    for (size_t i = 0; i < f->magic_bytes; i++)
        if (!isalnum((unsigned char)f->magic[i]))
            return false;
    for (size_t i = f->magic_bytes; i < end; i++)
        if (!isprint((unsigned char)head[i]) && !(head[i] && strchr("\t\r\n", head[i])))
            return false;
    return true;
}

static bool has_magic(const struct records_foreign *f, const char *head, size_t bytes)
{
    return f->magic_bytes && bytes >= f->at + f->magic_bytes &&
           memcmp(head + f->at, f->magic, f->magic_bytes) == 0 && !is_word(f, head, bytes) &&
           (f->at != 8 || f->magic[0] != '{' || !head[7]); /* safetensors: a length of 8 bytes */
}

const struct records_foreign *records_by_magic(const char *head, size_t bytes)
{
    static const struct records_foreign pickle = {.kind = "a pickle of Python", .remedy = PICKLE};
    static const struct records_foreign skippable = {.kind = "a Zstandard file",
                                                     .packing = HD_DATA_ZSTD};

    for (size_t i = 0; i < sizeof FOREIGN / sizeof FOREIGN[0]; i++)
        if (has_magic(&FOREIGN[i], head, bytes))
            return &FOREIGN[i];
    if (bytes >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5)
        return &pickle;
    if (bytes >= 4 && (head[0] & 0xF0) == 0x50 && memcmp(head + 1, "\x2a\x4d\x18", 3) == 0)
        return &skippable;
    return NULL;
}

const struct records_foreign *records_by_name(const char *path)
{
    for (size_t i = 0; i < sizeof FOREIGN / sizeof FOREIGN[0]; i++)
        if (records_is_named(path, FOREIGN[i].names))
            return &FOREIGN[i];
    return NULL;
}
