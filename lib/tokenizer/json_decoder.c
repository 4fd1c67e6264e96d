/* json_decoder: parses the decoder of tokenizer.json. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

enum { DEPTH_MAX = 32 };

static const char where[] = "decoder";

static enum hd_status read_decode_replace(struct hd_bpe *bpe, const struct hd_json *d,
                                          struct hd_decode_step *step)
{
    const char *content = NULL;
    enum hd_status st = hd_bpe_check_keys(d, where, "type|pattern|content");

    step->kind = HD_DECODE_REPLACE;
    if (!st)
        st = hd_json_need_string(d, "content", &content);
    if (!st)
        st = hd_bpe_read_pattern(bpe, d, where, &step->pattern);
    if (!st && !(step->content = hd_arena_strdup(&bpe->arena, content)))
        st = hd_err(HD_NO_MEMORY, "no memory for a tokenizer");
    return st;
}

static enum hd_status read_decode_strip(struct hd_bpe *bpe, const struct hd_json *d,
                                        struct hd_decode_step *step)
{
    const char *content = NULL;
    enum hd_status st = hd_bpe_check_keys(d, where, "type|content|start|stop");

    step->kind = HD_DECODE_STRIP;
    if (!st)
        st = hd_bpe_read_character(d, where, "content", &content);
    if (!st)
        st = hd_json_need_int64(d, "start", 0, INT32_MAX, &step->start);
    if (!st)
        st = hd_json_need_int64(d, "stop", 0, INT32_MAX, &step->stop);
    if (!st && !(step->content = hd_arena_strdup(&bpe->arena, content)))
        st = hd_err(HD_NO_MEMORY, "no memory for a tokenizer");
    return st;
}

/* Reads BPEDecoder, whose suffix is a literal; refuses an empty suffix. */
static enum hd_status read_suffix(struct hd_bpe *bpe, const struct hd_json *d,
                                  struct hd_decode_step *step)
{
    const char *suffix = NULL;
    enum hd_status st = hd_bpe_check_keys(d, where, "type|suffix");

    step->kind = HD_DECODE_SUFFIX;
    if (!st)
        st = hd_json_need_string(d, "suffix", &suffix);
    if (!st && !suffix[0])
        st = hd_err(HD_UNSUPPORTED, "decoder.suffix is empty; leave the BPEDecoder out");
    if (st)
        return st;
    step->pattern.literal = (const unsigned char *)hd_arena_strdup(&bpe->arena, suffix);
    step->pattern.literal_bytes = strlen(suffix);
    return step->pattern.literal ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a tokenizer");
}

/* Reads a decoder of any type but Sequence. */
static enum hd_status read_decode_step(struct hd_bpe *bpe, const struct hd_json *d,
                                       const char *type, struct hd_decode_step *step)
{
    if (strcmp(type, "Replace") == 0)
        return read_decode_replace(bpe, d, step);
    if (strcmp(type, "Strip") == 0)
        return read_decode_strip(bpe, d, step);
    if (strcmp(type, "BPEDecoder") == 0)
        return read_suffix(bpe, d, step);
    if (strcmp(type, "Metaspace") == 0) {
        step->kind = HD_DECODE_METASPACE;
        return hd_bpe_read_metaspace(bpe, d, where, &step->content, &step->prepend, &(bool){false});
    }
    if (strcmp(type, "ByteLevel") == 0) {
        step->kind = HD_DECODE_LETTERS;
        return hd_bpe_check_keys(d, where, "type|add_prefix_space|trim_offsets|use_regex");
    }
    step->kind = strcmp(type, "Fuse") == 0 ? HD_DECODE_FUSE : HD_DECODE_BYTE_FALLBACK;
    if (strcmp(type, "Fuse") != 0 && strcmp(type, "ByteFallback") != 0)
        return hd_err(HD_UNSUPPORTED,
                      "decoder.type %.64s is not supported; ByteLevel, Metaspace, Replace, "
                      "ByteFallback, Fuse, Strip, BPEDecoder and Sequence are",
                      type);
    return hd_bpe_check_keys(d, where, "type");
}

static enum hd_status read_decode_steps(struct hd_bpe *bpe, const struct hd_json *d, int depth)
{
    const struct hd_json *list = NULL;
    const char *type = NULL;
    enum hd_status st = hd_json_need_string(d, "type", &type);

    if (st)
        return hd_err_prefix(st, "%s", where);
    if (strcmp(type, "Sequence") != 0) {
        if (bpe->decode_count == HD_BPE_STEPS_MAX)
            return hd_err(HD_LIMIT, "decoder has more than %d steps", HD_BPE_STEPS_MAX);
        return read_decode_step(bpe, d, type, &bpe->decodes[bpe->decode_count++]);
    }
    st = hd_bpe_check_keys(d, where, "type|decoders");
    if (!st)
        st = hd_json_need(d, "decoders", HD_JSON_ARRAY, &list);
    for (const struct hd_json *m = st ? NULL : list->first; m && !st; m = m->next)
        st = depth < DEPTH_MAX ? read_decode_steps(bpe, m, depth + 1)
                               : hd_err(HD_LIMIT, "decoder: nested too deep");
    return st;
}

enum hd_status hd_bpe_read_decoder(const struct hd_json *root, struct hd_bpe *bpe)
{
    const struct hd_json *d = hd_bpe_member(root, "decoder");

    bpe->has_decoder = d;
    return d ? read_decode_steps(bpe, d, 0) : HD_OK;
}
