/* sp_model: a SentencePiece model as a tokenizer: its pieces are the tokens, its normalizer is the
 * only step, and sp_words.c encodes the rest. */
#include <float.h>
#include <string.h>

#include "tokenizer/sentencepiece.h"

static const size_t sp_arena_bytes_max = (size_t)2 << 30;

/* ---- what is not supported ---- */

/* Classes of transformers that give pieces other ids than the model, or encode texts another way. */
static const char *const shifted_classes[] = {
    "XLMRobertaTokenizer",  "CamembertTokenizer", "MBartTokenizer",    "MBart50Tokenizer",
    "BarthezTokenizer",     "NllbTokenizer",      "M2M100Tokenizer",   "XGLMTokenizer",
    "PegasusTokenizer",     "DebertaV2Tokenizer", "XLNetTokenizer",    "LayoutXLMTokenizer",
    "SeamlessM4TTokenizer", "MarianTokenizer",    "PLBartTokenizer",   "Speech2TextTokenizer",
    "BigBirdTokenizer",     "RemBertTokenizer",   "ReformerTokenizer", "FNetTokenizer",
    "AlbertTokenizer",
};

static enum hd_status check_class(const struct hd_companions *c)
{
    const char *class = c ? c->asked_class : "";
    const size_t n = strlen(class) - (hd_text_ends(class, "Fast") ? strlen("Fast") : 0);

    for (size_t i = 0; i < sizeof shifted_classes / sizeof shifted_classes[0]; i++)
        if (strlen(shifted_classes[i]) == n && strncmp(shifted_classes[i], class, n) == 0)
            return hd_err(HD_UNSUPPORTED,
                          "%s of transformers gives the pieces of a tokenizer.model other ids; "
                          "make a tokenizer.json of the folder with transformers: "
                          "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
                          class);
    return HD_OK;
}

static enum hd_status check_supported(const struct hd_sp_file *file, const struct hd_companions *c)
{
    if (file->kind != HD_SP_UNIGRAM && file->kind != HD_SP_BPE)
        return hd_err(HD_UNSUPPORTED,
                      "trainer_spec.model_type is %s; only unigram and bpe are supported",
                      file->kind == 3   ? "word"
                      : file->kind == 4 ? "char"
                                        : "unknown");
    if (file->has_denormalizer)
        return hd_err(HD_UNSUPPORTED, "denormalizer_spec has rules; they are not supported");
    if (c && c->asks_prefix_space && c->wants_prefix_space != file->adds_prefix)
        return hd_err(HD_UNSUPPORTED,
                      "add_prefix_space of tokenizer_config.json is %s, and add_dummy_prefix of "
                      "the model is %s; make the two agree",
                      c->wants_prefix_space ? "true" : "false",
                      file->adds_prefix ? "true" : "false");
    return check_class(c);
}

/* ---- pieces ---- */

/* Returns whether words can have the piece: texts that spell another one are ordinary texts. */
static bool occurs(const struct hd_sp_piece *p)
{
    return p->type == HD_SP_NORMAL || p->type == HD_SP_USER_DEFINED || p->type == HD_SP_UNUSED;
}

static enum hd_status take_pieces(const struct hd_sp_file *file, struct hd_bpe *bpe)
{
    bool bytes[256] = {false};
    enum hd_status st = hd_bpe_reach(bpe, file->count - 1);

    bpe->unknown = -1;
    for (int32_t id = 0; !st && id < file->count; id++) {
        const struct hd_sp_piece *p = &file->pieces[id];
        const int byte = hd_vocabulary_byte(p->text);

        bpe->texts[id] = (struct hd_token_text){
            .content = p->text,
            .shown = p->text,
            .bytes = (const unsigned char *)p->text,
            .len_bytes = occurs(p) ? (uint32_t)strlen(p->text) : 0,
        };
        if (p->type == HD_SP_BYTE && (byte < 0 || !file->falls_back))
            st = hd_err(HD_INVALID, "piece %d, '%.64s', is no byte of a model with byte_fallback",
                        (int)id, p->text);
        else if (p->type == HD_SP_BYTE)
            bytes[byte] = true;
        else if (p->type == HD_SP_UNKNOWN && bpe->unknown >= 0)
            st =
                hd_err(HD_INVALID, "pieces %d and %d are both unknown", (int)bpe->unknown, (int)id);
        else if (p->type == HD_SP_UNKNOWN)
            bpe->unknown = id;
    }
    if (!st && bpe->unknown < 0)
        st = hd_err(HD_INVALID, "no piece is unknown");
    for (int b = 0; !st && file->falls_back && b < 256; b++)
        if (!bytes[b])
            st = hd_err(HD_INVALID, "it has byte_fallback, and no piece <0x%02X>", (unsigned)b);
    return st;
}

/* Checks that no two pieces have the same text. */
static enum hd_status check_distinct(const struct hd_bpe *bpe, int32_t count)
{
    for (int32_t id = 0; id < count; id++) {
        const struct hd_token_text *t = &bpe->texts[id];
        const int32_t first = t->len_bytes ? hd_bpe_word(bpe, t->bytes, t->len_bytes) : id;

        if (first != id)
            return hd_err(HD_INVALID, "pieces %d and %d are both '%.64s'", (int)first, (int)id,
                          t->content);
    }
    return HD_OK;
}

static enum hd_status take_scores(const struct hd_sp_file *file, struct hd_bpe *bpe,
                                  struct hd_sp *sp)
{
    float *scores = hd_arena_array(&bpe->arena, (size_t)file->count, sizeof *scores);
    unsigned char *types = hd_arena_alloc(&bpe->arena, (size_t)file->count);
    enum hd_status st = HD_OK;

    if (!scores || !types)
        return hd_bpe_no_memory();
    sp->least = FLT_MAX;
    for (int32_t id = 0; !st && id < file->count; id++) {
        const struct hd_sp_piece *p = &file->pieces[id];
        const size_t n = strlen(p->text);

        scores[id] = p->score;
        types[id] = (unsigned char)p->type;
        sp->has_unused |= p->type == HD_SP_UNUSED;
        if (p->type == HD_SP_NORMAL && p->score < sp->least)
            sp->least = p->score;
        if (p->type == HD_SP_USER_DEFINED)
            st = hd_added_insert(&bpe->arena, &sp->symbols, id, p->text, n);
        if (!st && sp->kind == HD_SP_UNIGRAM && bpe->texts[id].len_bytes && p->type != HD_SP_UNUSED)
            st = hd_added_insert(&bpe->arena, &sp->pieces, id, p->text, n);
    }
    sp->scores = scores;
    sp->types = types;
    sp->count = file->count;
    return st;
}

/* ---- the normalizer ---- */

static void set_steps(const struct hd_sp_file *file, struct hd_bpe *bpe, const struct hd_sp *sp)
{
    static const char mark[] = "\xE2\x96\x81";

    bpe->normals[bpe->normal_count++] =
        (struct hd_normal_step){.kind = HD_NORMAL_SENTENCEPIECE, .sp = sp};
    bpe->has_decoder = true;
    if (file->escapes_spaces)
        bpe->decodes[bpe->decode_count++] = (struct hd_decode_step){
            .kind = HD_DECODE_REPLACE,
            .content = " ",
            .pattern = {.literal = (const unsigned char *)mark, .literal_bytes = 3}};
    if (file->falls_back)
        bpe->decodes[bpe->decode_count++] =
            (struct hd_decode_step){.kind = HD_DECODE_BYTE_FALLBACK};
    bpe->decodes[bpe->decode_count++] = (struct hd_decode_step){.kind = HD_DECODE_FUSE};
    if (file->adds_prefix)
        bpe->decodes[bpe->decode_count++] = (struct hd_decode_step){.kind = HD_DECODE_STRIP,
                                                                    .content = " ",
                                                                    .start = !file->space_is_suffix,
                                                                    .stop = file->space_is_suffix};
}

/* ---- special tokens ---- */

/* Names the special tokens of the model, if no file beside it names any. Texts that spell them are
 * then ordinary texts. */
static enum hd_status name_tokens(const struct hd_sp_file *file, struct hd_companions *c)
{
    const struct {
        const char *name, *piece;
    } roles[] = {{"bos_token", file->bos},
                 {"eos_token", file->eos},
                 {"unk_token", file->unk},
                 {"pad_token", file->pad}};
    int capacity = 0;

    if (!c || c->name_count || c->listed_count || c->extra_count)
        return HD_OK;
    c->splits_specials = true;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        struct hd_companion_name *names;

        if (i != 2 && hd_sp_find_control(file, roles[i].piece) < 0)
            continue;
        names = hd_arena_grow(&c->arena, c->names, c->name_count, &capacity, sizeof *names);
        if (!names)
            return hd_bpe_no_memory();
        c->names = names;
        c->names[c->name_count] = (struct hd_companion_name){
            .name = roles[i].name,
            .token = {.content = hd_arena_strdup(&c->arena, roles[i].piece),
                      .flags = {.special = true},
                      .is_text = true,
                      .id = -1},
            .file = "tokenizer.model"};
        if (!c->names[c->name_count++].token.content)
            return hd_bpe_no_memory();
    }
    return HD_OK;
}

/* ---- the model ---- */

static enum hd_status build_model(const struct hd_sp_file *file, struct hd_bpe *bpe,
                                  struct hd_sp *sp)
{
    enum hd_status st;

    *sp = (struct hd_sp){.kind = (enum hd_sp_kind)file->kind,
                         .adds_prefix = file->adds_prefix,
                         .removes_spaces = file->removes_spaces,
                         .escapes_spaces = file->escapes_spaces,
                         .space_is_suffix = file->space_is_suffix};
    bpe->prefix = bpe->suffix = "";
    bpe->falls_back = file->falls_back;
    bpe->fuses_unknown = true;
    st = take_pieces(file, bpe);
    if (!st)
        st = hd_bpe_index_words(bpe, (size_t)file->count);
    if (!st)
        st = check_distinct(bpe, file->count);
    if (!st)
        st = take_scores(file, bpe, sp);
    if (!st && file->charsmap)
        st = hd_sp_take_rules(file->charsmap, file->charsmap_bytes, &bpe->arena, sp);
    if (sp->kind == HD_SP_UNIGRAM || sp->has_unused)
        bpe->parts_at_spaces = false;
    set_steps(file, bpe, sp);
    bpe->sp = sp;
    return st;
}

enum hd_status hd_sp_read(const void *bytes, size_t size_bytes, struct hd_companions *companions,
                          struct hd_bpe *bpe)
{
    struct hd_sp_file file;
    struct hd_arena arena;
    struct hd_sp *sp;
    enum hd_status st;

    hd_arena_init(&bpe->arena, sp_arena_bytes_max);
    hd_arena_init(&arena, sp_arena_bytes_max);
    sp = hd_arena_alloc(&bpe->arena, sizeof *sp);
    st = sp ? hd_sp_file_read(bytes, size_bytes, &bpe->arena, &file) : hd_bpe_no_memory();
    if (!st)
        st = check_supported(&file, companions);
    if (!st)
        st = build_model(&file, bpe, sp);
    if (!st)
        st = name_tokens(&file, companions);
    if (!st)
        st = hd_bpe_read_added(NULL, &arena, companions, bpe);
    hd_arena_done(&arena);
    return st;
}
