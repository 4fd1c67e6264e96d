/* sp_file: reads a tokenizer.model, a ModelProto of Protocol Buffers, from bytes that may be
 * hostile. Only the few fields that encode texts are kept; all others are skipped. */
#include <string.h>

#include "tokenizer/sentencepiece.h"

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

/* Part of the file; `begin` is that of the whole file, for messages. */
struct proto_reader {
    const unsigned char *begin, *at, *end;
};

struct proto_field {
    uint32_t number;
    enum wire wire;
    uint64_t value; /* WIRE_VARINT; bits of WIRE_FIXED32 */
    const unsigned char *bytes;
    size_t len_bytes;
};

struct sp_reading {
    struct hd_sp_file *file;
    struct hd_arena *arena;
};

static enum hd_status torn(const struct proto_reader *r, const char *what)
{
    return hd_err(HD_INVALID, "byte %zu: %s; the file is damaged, or is no SentencePiece model",
                  (size_t)(r->at - r->begin), what);
}

static enum hd_status read_varint(struct proto_reader *r, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        if (r->at == r->end)
            return torn(r, "a number is cut off");
        value |= (uint64_t)(*r->at & 0x7F) << shift;
        if (!(*r->at++ & 0x80)) {
            *ret_value = value;
            return HD_OK;
        }
    }
    return torn(r, "a number of more than 64 bits");
}

/* Reads the next field; sets *ret_more to false at the end. */
static enum hd_status next_field(struct proto_reader *r, struct proto_field *f, bool *ret_more)
{
    uint64_t tag = 0, len = 0;
    enum hd_status st;

    *ret_more = r->at < r->end;
    if (!*ret_more)
        return HD_OK;
    st = read_varint(r, &tag);
    if (st)
        return st;
    if (!(tag >> 3) || tag >> 3 > UINT32_MAX)
        return torn(r, "a field without a number");
    *f = (struct proto_field){.number = (uint32_t)(tag >> 3), .wire = (enum wire)(tag & 7)};
    switch (f->wire) {
    case WIRE_VARINT:
        return read_varint(r, &f->value);
    case WIRE_BYTES:
        st = read_varint(r, &len);
        break;
    case WIRE_FIXED64:
        len = 8;
        break;
    case WIRE_FIXED32:
        len = 4;
        break;
    default:
        return torn(r, "a field of an unknown form");
    }
    if (st)
        return st;
    if (len > (uint64_t)(r->end - r->at))
        return torn(r, "a field is longer than the rest");
    f->bytes = r->at;
    f->len_bytes = (size_t)len;
    r->at += len;
    for (int i = 3; f->wire == WIRE_FIXED32 && i >= 0; i--)
        f->value = f->value << 8 | f->bytes[i];
    return HD_OK;
}

static struct proto_reader inner(const struct proto_reader *outer, const struct proto_field *f)
{
    return (struct proto_reader){outer->begin, f->bytes, f->bytes + f->len_bytes};
}

/* Checks that a field that is known has the form it must have. */
static enum hd_status need_wire(const struct proto_reader *r, const struct proto_field *f,
                                enum wire wire)
{
    return f->wire == wire ? HD_OK : torn(r, "a field of the wrong form");
}

static enum hd_status take_text(struct sp_reading *s, const struct proto_field *f,
                                const char **ret_text)
{
    char *copy;

    if (f->len_bytes > HD_SP_PIECE_BYTES_MAX)
        return hd_err(HD_LIMIT, "a piece of %zu bytes; at most %d", f->len_bytes,
                      HD_SP_PIECE_BYTES_MAX);
    if (memchr(f->bytes, 0, f->len_bytes) || !hd_text_is_utf8((const char *)f->bytes, f->len_bytes))
        return hd_err(HD_INVALID, "piece %d is not UTF-8", (int)s->file->count);
    copy = hd_arena_alloc(s->arena, f->len_bytes + 1);
    if (!copy)
        return hd_err(HD_NO_MEMORY, "no memory for a SentencePiece model");
    memcpy(copy, f->bytes, f->len_bytes);
    copy[f->len_bytes] = '\0';
    *ret_text = copy;
    return HD_OK;
}

/* ---- pieces ---- */

static enum hd_status put_piece(struct sp_reading *s, const struct hd_sp_piece *piece)
{
    struct hd_sp_file *file = s->file;
    struct hd_sp_piece *pieces;
    int capacity = file->capacity;

    if (!piece->text || !*piece->text)
        return hd_err(HD_INVALID, "piece %d is empty", (int)file->count);
    if (!(piece->score >= -1e30F && piece->score <= 1e30F))
        return hd_err(HD_INVALID, "piece %d, '%.64s': its score is no number", (int)file->count,
                      piece->text);
    if (file->count == HD_SP_PIECES_MAX)
        return hd_err(HD_LIMIT, "more than %d pieces", HD_SP_PIECES_MAX);
    pieces = hd_arena_grow(s->arena, file->pieces, file->count, &capacity, sizeof *pieces);
    if (!pieces)
        return hd_err(HD_NO_MEMORY, "no memory for a SentencePiece model");
    file->pieces = pieces;
    file->capacity = capacity;
    file->pieces[file->count++] = *piece;
    return HD_OK;
}

static enum hd_status read_piece(struct sp_reading *s, struct proto_reader r)
{
    struct hd_sp_piece piece = {.type = HD_SP_NORMAL};
    struct proto_field f;
    bool more = true;
    enum hd_status st = HD_OK;

    while (!st && more) {
        st = next_field(&r, &f, &more);
        if (st || !more)
            continue;
        if (f.number == 1) {
            st = need_wire(&r, &f, WIRE_BYTES);
            st = st ? st : take_text(s, &f, &piece.text);
        } else if (f.number == 2) {
            const uint32_t bits = (uint32_t)f.value;

            st = need_wire(&r, &f, WIRE_FIXED32);
            memcpy(&piece.score, &bits, sizeof bits);
        } else if (f.number == 3) {
            st = need_wire(&r, &f, WIRE_VARINT);
            if (!st && (f.value < HD_SP_NORMAL || f.value > HD_SP_BYTE))
                st = hd_err(HD_INVALID, "piece %d has an unknown type", (int)s->file->count);
            piece.type = (enum hd_sp_type)f.value;
        }
    }
    return st ? st : put_piece(s, &piece);
}

/* ---- settings ---- */

static enum hd_status read_trainer_spec(struct sp_reading *s, struct proto_reader r)
{
    struct hd_sp_file *file = s->file;
    struct proto_field f;
    bool more = true;
    enum hd_status st = HD_OK;

    while (!st && more) {
        st = next_field(&r, &f, &more);
        if (st || !more)
            continue;
        if (f.number == 3 || f.number == 24 || f.number == 35)
            st = need_wire(&r, &f, WIRE_VARINT);
        else if (f.number >= 45 && f.number <= 48)
            st = need_wire(&r, &f, WIRE_BYTES);
        if (st)
            continue;
        if (f.number == 3)
            file->kind = f.value <= INT32_MAX ? (int64_t)f.value : 0;
        else if (f.number == 24)
            file->space_is_suffix = f.value != 0;
        else if (f.number == 35)
            file->falls_back = f.value != 0;
        else if (f.number >= 45 && f.number <= 48 && f.len_bytes)
            st = take_text(s, &f,
                           f.number == 45   ? &file->unk
                           : f.number == 46 ? &file->bos
                           : f.number == 47 ? &file->eos
                                            : &file->pad);
    }
    return st;
}

static enum hd_status read_normalizer_spec(struct sp_reading *s, struct proto_reader r)
{
    struct hd_sp_file *file = s->file;
    struct proto_field f;
    bool more = true;
    enum hd_status st = HD_OK;

    while (!st && more) {
        st = next_field(&r, &f, &more);
        if (st || !more)
            continue;
        if (f.number == 2)
            st = need_wire(&r, &f, WIRE_BYTES);
        else if (f.number >= 3 && f.number <= 5)
            st = need_wire(&r, &f, WIRE_VARINT);
        if (f.number == 2) {
            file->charsmap = f.len_bytes ? f.bytes : NULL;
            file->charsmap_bytes = f.len_bytes;
        } else if (f.number == 3) {
            file->adds_prefix = f.value != 0;
        } else if (f.number == 4) {
            file->removes_spaces = f.value != 0;
        } else if (f.number == 5) {
            file->escapes_spaces = f.value != 0;
        }
    }
    return st;
}

static enum hd_status read_denormalizer_spec(struct sp_reading *s, struct proto_reader r)
{
    struct proto_field f;
    bool more = true;
    enum hd_status st = HD_OK;

    while (!st && more) {
        st = next_field(&r, &f, &more);
        if (!st && more && f.number == 2 && f.len_bytes)
            s->file->has_denormalizer = true;
    }
    return st;
}

/* ---- the file ---- */

enum hd_status hd_sp_file_read(const void *bytes, size_t size_bytes, struct hd_arena *arena,
                               struct hd_sp_file *ret_file)
{
    struct sp_reading s = {ret_file, arena};
    struct proto_reader r = {bytes, bytes, (const unsigned char *)bytes + size_bytes};
    struct proto_field f;
    bool more = true;
    enum hd_status st = HD_OK;

    *ret_file = (struct hd_sp_file){.kind = HD_SP_UNIGRAM,
                                    .unk = "<unk>",
                                    .bos = "<s>",
                                    .eos = "</s>",
                                    .pad = "<pad>",
                                    .adds_prefix = true,
                                    .removes_spaces = true,
                                    .escapes_spaces = true};
    while (!st && more) {
        st = next_field(&r, &f, &more);
        if (st || !more)
            continue;
        if (f.number <= 3 || f.number == 5)
            st = need_wire(&r, &f, WIRE_BYTES);
        if (st)
            continue;
        if (f.number == 1)
            st = read_piece(&s, inner(&r, &f));
        else if (f.number == 2)
            st = read_trainer_spec(&s, inner(&r, &f));
        else if (f.number == 3)
            st = read_normalizer_spec(&s, inner(&r, &f));
        else if (f.number == 5)
            st = read_denormalizer_spec(&s, inner(&r, &f));
    }
    if (!st && !ret_file->count)
        st = hd_err(HD_INVALID, "it has no pieces; the file is damaged, or is no SentencePiece "
                                "model");
    return st;
}

int32_t hd_sp_find_control(const struct hd_sp_file *file, const char *text)
{
    for (int32_t id = 0; id < file->count; id++)
        if (file->pieces[id].type == HD_SP_CONTROL && strcmp(file->pieces[id].text, text) == 0)
            return id;
    return -1;
}
