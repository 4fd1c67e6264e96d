#include "letters.h"

void letters_write(const char *added, const char *post, const struct hd_json *words,
                   struct hd_text *ret_json)
{
    int behind = 0, id = 256;

    hd_text_add(ret_json,
                "{\"added_tokens\":%s,\"normalizer\":null,\"post_processor\":%s,"
                "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],"
                "\"vocab\":{",
                added, post);
    for (int b = 0; b < 256; b++) {
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

        hd_text_add(ret_json, "%s\"\\u%04x\":%d", b ? "," : "", itself ? b : 256 + behind++, b);
    }
    for (const struct hd_json *w = words ? words->first : NULL; w; w = w->next)
        hd_text_add(ret_json, ",\"%s\":%d", w->text, id++);
    hd_text_add(ret_json, "}}}");
}
