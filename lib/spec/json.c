/* JobSpec -> JSON with the keys of the job file, through the table of keys. */
#include <string.h>

#include "base/json.h"
#include "spec_internal.h"

static void add_choice(struct hd_json_writer *w, const struct spec_key *key, const char *value)
{
    hd_json_add_string(w, key->name, *value ? value : "auto");
}

static void add_auto(struct hd_json_writer *w, const struct spec_key *key, bool is_auto,
                     int64_t value)
{
    if (is_auto)
        hd_json_add_string(w, key->name, "auto");
    else
        hd_json_add_int64(w, key->name, value);
}

static void add_files(struct hd_json_writer *w, const struct spec_key *key, size_t count,
                      Heddle__V1__DataFile *const *files)
{
    hd_json_begin(w, key->name, '[');
    for (size_t i = 0; i < count; i++)
        hd_json_add_string(w, NULL, files[i]->path);
    hd_json_end(w, ']');
}

static void add_sources(struct hd_json_writer *w, const struct spec_key *key,
                        const Heddle__V1__DataSpec *d)
{
    size_t file = 0;

    if (!d->n_train_weights) {
        add_files(w, key, d->n_train, d->train);
        return;
    }
    hd_json_begin(w, key->name, '[');
    for (size_t k = 0; k < d->n_train_weights; k++) {
        hd_json_begin(w, NULL, '{');
        hd_json_begin(w, "path", '[');
        for (; file < d->n_train && d->train[file]->source <= (int32_t)k; file++)
            hd_json_add_string(w, NULL, d->train[file]->path);
        hd_json_end(w, ']');
        hd_json_add_real(w, "weight", d->train_weights[k]);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

static void add_devices(struct hd_json_writer *w, const struct spec_key *key,
                        const Heddle__V1__ResourceSpec *r)
{
    if (r->devices_min == r->devices_max) {
        hd_json_add_int64(w, key->name, r->devices_min);
        return;
    }
    hd_json_begin(w, key->name, '{');
    hd_json_add_int64(w, "min", r->devices_min);
    hd_json_add_int64(w, "max", r->devices_max);
    hd_json_end(w, '}');
}

static void add_steps(struct hd_json_writer *w, const struct spec_key *key,
                      const int64_t interval[2])
{
    if (!interval[0] && !interval[1])
        return; /* a key that is not there */
    hd_json_begin(w, key->name, '[');
    hd_json_add_int64(w, NULL, interval[0]);
    hd_json_add_int64(w, NULL, interval[1]);
    hd_json_end(w, ']');
}

static void add_section(struct hd_json_writer *w, const struct spec_section *section,
                        const ProtobufCMessage *message);

static void add_value(struct hd_json_writer *w, const struct spec_key *key,
                      const ProtobufCMessage *message)
{
    const void *member = (const char *)message + key->offset;
    const Heddle__V1__ParallelSpec *parallel = (const Heddle__V1__ParallelSpec *)message;
    const char *word;

    switch (key->kind) {
    case SPEC_TEXT:
    case SPEC_PATH:
        if (**(char *const *)member) /* an empty one is a key that is not there */
            hd_json_add_string(w, key->name, *(char *const *)member);
        break;
    case SPEC_CHOICE:
        add_choice(w, key, *(char *const *)member);
        break;
    case SPEC_INT:
        hd_json_add_int64(w, key->name, *(const int64_t *)member);
        break;
    case SPEC_INT32:
        hd_json_add_int64(w, key->name, *(const int32_t *)member);
        break;
    case SPEC_AUTO:
        add_auto(w, key, *(const int32_t *)member == 0, *(const int32_t *)member);
        break;
    case SPEC_ZERO:
        add_auto(w, key, parallel->_zero_case == HEDDLE__V1__PARALLEL_SPEC___ZERO__NOT_SET,
                 parallel->zero);
        break;
    case SPEC_SEED:
        hd_json_add_int64(w, key->name, (int64_t) * (const uint64_t *)member);
        break;
    case SPEC_AUTO_REAL:
        if (*(const double *)member == 0) {
            hd_json_add_string(w, key->name, "auto");
            break;
        }
        hd_json_add_real(w, key->name, *(const double *)member);
        break;
    case SPEC_REAL:
        hd_json_add_real(w, key->name, *(const double *)member);
        break;
    case SPEC_BOOL:
        hd_json_add_bool(w, key->name, *(const protobuf_c_boolean *)member);
        break;
    case SPEC_WORD:
        word = spec_word_name(key, *(const int *)member);
        if (word)
            hd_json_add_string(w, key->name, word);
        else /* a newer peer's: shown, not fatal */
            hd_json_add_int64(w, key->name, *(const int *)member);
        break;
    case SPEC_SWITCH:
        if (*(const int *)member == HEDDLE__V1__SWITCH__SWITCH_UNSPECIFIED)
            hd_json_add_string(w, key->name, "auto");
        else
            hd_json_add_bool(w, key->name, *(const int *)member == HEDDLE__V1__SWITCH__SWITCH_ON);
        break;
    case SPEC_FILES:
        add_files(w, key, *(const size_t *)member,
                  *(Heddle__V1__DataFile * *const *)((const char *)member + sizeof(size_t)));
        break;
    case SPEC_SOURCES:
        add_sources(w, key, (const Heddle__V1__DataSpec *)message);
        break;
    case SPEC_DEVICES:
        add_devices(w, key, (const Heddle__V1__ResourceSpec *)message);
        break;
    case SPEC_STEPS:
        add_steps(w, key, member);
        break;
    case SPEC_SECTION:
        if (!*spec_member_message((ProtobufCMessage *)message, key))
            break;
        hd_json_begin(w, key->name, '{');
        add_section(w, key->section, *spec_member_message((ProtobufCMessage *)message, key));
        hd_json_end(w, '}');
        break;
    }
}

static void add_section(struct hd_json_writer *w, const struct spec_section *section,
                        const ProtobufCMessage *message)
{
    for (size_t i = 0; i < section->key_count; i++)
        add_value(w, &section->keys[i], message);
}

void hd_spec_add_json(const struct Heddle__V1__JobSpec *spec, const char *key,
                      struct hd_json_writer *writer)
{
    hd_json_begin(writer, key, '{');
    add_section(writer, &spec_root, &spec->base);
    hd_json_end(writer, '}');
}
