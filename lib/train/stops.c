#include "train/stops.h"

bool hd_stops_has(const struct hd_stops *stops, int32_t id)
{
    for (int i = 0; i < stops->count; i++)
        if (stops->ids[i] == id)
            return true;
    return false;
}

void hd_stops_add(struct hd_stops *stops, int32_t id)
{
    if (id >= 0 && stops->count < HD_STOPS_MAX && !hd_stops_has(stops, id))
        stops->ids[stops->count++] = id;
}

enum hd_status hd_stops_add_chat(struct hd_conversation_encoder *encoder,
                                 const struct hd_chat *chat, const struct hd_tokenizer *tokenizer,
                                 struct hd_stops *stops)
{
    const char *eos = hd_chat_token(chat, "eos_token");
    int32_t end = -1;

    if (eos)
        hd_stops_add(stops, hd_tokenizer_find(tokenizer, eos));
    if (!hd_conversation_find_end(encoder, &end)) /* without a stop token if the template refuses
                                                     the sample conversation by which it is found */
        hd_stops_add(stops, end);
    return HD_OK;
}
