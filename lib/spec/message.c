/* message: converts struct hd_job to and from JobSpec.
 *
 * A key that has a typed field in job.proto is sent in that field; the field's path is the stored
 * except for those in `renamed`. Every other key is sent as a KeyValue {path, value in text form},
 * so that a new key needs no change of job.proto. A pair is left out if its value is both the key's
 * default and the value of builds before the key (hd_key.old_default), which never changes: then
 * JobSpec.sparse says that an absent key has that value. Builds that do not know `sparse` read their own
 * default there, which is the same as long as no default is changed back to the old one. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heddle/v1/job.pb-c.h"
#include "spec_internal.h"

/* Typed fields whose path differs from the key's. */
static const struct {
    const char *key, *field;
} renamed[] = {
    {"model.from", "model.from_dir"},
    {"data.split", "data.val_split"},
    {"train.lr.warmup", "train.lr.warmup_steps"},
    {"train.profile.first", "train.profile.first_step"},
    {"train.profile.last", "train.profile.last_step"},
    {"resources.devices.min", "resources.devices_min"},
    {"resources.devices.max", "resources.devices_max"},
};

static const char *field_path(const struct hd_key *key)
{
    const char *path = hd_job_stored_path(key);

    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++)
        if (strcmp(renamed[i].key, path) == 0)
            return renamed[i].field;
    return path;
}

/* Returns whether a message JobSpec has the key: false for keys of kind HD_KEY_FORM, and for keys
 * that the controller sets for each attempt. */
static bool is_sent(const struct hd_key *key)
{
    return key->kind != HD_KEY_FORM && strncmp(key->path, "attempt.", 8) != 0;
}

static ProtobufCMessage *new_message(struct hd_arena *arena,
                                     const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *made = hd_arena_alloc(arena, descriptor->sizeof_message);

    if (made)
        descriptor->message_init(made);
    return made;
}

/* ---- map from keys to fields ---- */

/* Nested messages of JobSpec, and the protobuf field of each key. They are looked up by name once
 * per process, because a controller reads and writes every key of thousands of jobs. A nested
 * message comes after the one that contains it. */
enum { GROUPS_MAX = 64 };
struct map {
    struct {
        /* field of this nested message in the message that contains it; NULL: the message is
         * JobSpec itself */
        const ProtobufCFieldDescriptor *field;
        const ProtobufCMessageDescriptor *descriptor;
        size_t holder;
    } groups[GROUPS_MAX];
    size_t group_count;
    struct {
        /* field of the key in its group's message; NULL: the key is sent as a KeyValue */
        const ProtobufCFieldDescriptor *field;
        size_t group;
        bool is_sent;
        bool has_auto; /* auto is one of the key's words */
        /* of a pair: the text of the default, and of the value of builds before the key; NULL: the text
         * reads as another value */
        const char *texts[2];
    } keys[HD_JOB_KEYS_MAX];
    size_t typed[HD_JOB_KEYS_MAX],
        typed_count; /* indices in keys[] of the keys that have a field */
    /* keys that a message has even if the job has the default: that is not what absence means */
    struct hd_key_set always;
    /* the job that a message without pairs and with empty groups means, by the message's member
     * `sparse`: 0 or 1 */
    struct hd_job no_pairs[2];
    struct hd_arena arena; /* memory of the texts; never freed */
};

static const ProtobufCFieldDescriptor *find_member(const ProtobufCMessageDescriptor *descriptor,
                                                   const char *name, size_t len)
{
    for (unsigned i = 0; i < descriptor->n_fields; i++)
        if (strncmp(descriptor->fields[i].name, name, len) == 0 && !descriptor->fields[i].name[len])
            return &descriptor->fields[i];
    return NULL;
}

static size_t find_group(struct map *map, size_t holder, const ProtobufCFieldDescriptor *field)
{
    for (size_t i = 1; i < map->group_count; i++)
        if (map->groups[i].field == field)
            return i;
    if (map->group_count == GROUPS_MAX)
        abort(); /* job.proto has more nested messages than GROUPS_MAX; the first test fails here */
    map->groups[map->group_count].field = field;
    map->groups[map->group_count].descriptor = field->descriptor;
    map->groups[map->group_count].holder = holder;
    return map->group_count++;
}

static void place_key(struct map *map, size_t index)
{
    const char *at = field_path(&hd_job_keys[index]);
    size_t group = 0, len;
    const ProtobufCFieldDescriptor *field;

    for (; at[len = strcspn(at, ".")]; at += len + 1) {
        field = find_member(map->groups[group].descriptor, at, len);
        if (!field || field->type != PROTOBUF_C_TYPE_MESSAGE ||
            field->label == PROTOBUF_C_LABEL_REPEATED) /* data.val.sets is no member of data.val */
            return;
        group = find_group(map, group, field);
    }
    map->keys[index].field = find_member(map->groups[group].descriptor, at, len);
    map->keys[index].group = group;
}

static const struct map *map_of_keys(void);

/* Sets, for each group of keys, the nested message in `spec`; NULL: absent. With an arena, creates
 * the absent messages in it. */
static void find_holders(const struct map *map, ProtobufCMessage *spec, struct hd_arena *arena,
                         ProtobufCMessage *ret_holders[GROUPS_MAX])
{
    ret_holders[0] = spec;
    for (size_t i = 1; i < map->group_count; i++) {
        ProtobufCMessage *holder = ret_holders[map->groups[i].holder], **member;

        ret_holders[i] = NULL;
        if (!holder)
            continue;
        member = (ProtobufCMessage **)((char *)holder + map->groups[i].field->offset);
        if (!*member && arena)
            *member = new_message(arena, map->groups[i].descriptor);
        ret_holders[i] = *member;
    }
}

/* ---- enums ---- */

/* Sets ret_word to the word of a protobuf enum number: the name of the value in lower case, without
 * the common prefix. False: unknown number. */
static bool word_of_enum(const ProtobufCFieldDescriptor *field, int number,
                         char ret_word[HD_JOB_WORD_MAX])
{
    const ProtobufCEnumDescriptor *e = field->descriptor;
    const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(e, number);
    const char *none = protobuf_c_enum_descriptor_get_value(e, 0)->name;
    const size_t prefix = strlen(none) - strlen("UNSPECIFIED");
    size_t i = 0;

    if (!value)
        return false;
    for (const char *p = value->name + prefix; *p && i + 1 < HD_JOB_WORD_MAX; p++)
        ret_word[i++] = *p >= 'A' && *p <= 'Z' ? (char)(*p - 'A' + 'a') : *p;
    ret_word[i] = '\0';
    return true;
}

static bool enum_of_word(const ProtobufCFieldDescriptor *field, const char *word, int *ret_number)
{
    const ProtobufCEnumDescriptor *e = field->descriptor;
    char candidate[HD_JOB_WORD_MAX];

    for (unsigned i = 0; i < e->n_values; i++) {
        *ret_number = e->values[i].value;
        if (*ret_number && word_of_enum(field, *ret_number, candidate) &&
            strcmp(candidate, word) == 0)
            return true;
    }
    *ret_number = 0; /* enum number 0 means auto or that the key is absent */
    return strcmp(word, "auto") == 0 || !*word;
}

static bool is_switch(const ProtobufCFieldDescriptor *field)
{
    return field->descriptor == &heddle__v1__switch__descriptor;
}

/* ---- from a message ---- */

static enum hd_status take_enum(const struct hd_key *key, const ProtobufCFieldDescriptor *field,
                                int number, struct hd_job *job)
{
    char word[HD_JOB_WORD_MAX] = "";

    if (number && !word_of_enum(field, number, word))
        return hd_err(HD_INVALID, "%s: %d is not a value that this build knows", key->path, number);
    if (is_switch(field)) {
        *(int64_t *)hd_job_member(key, job) = number == HEDDLE__V1__SWITCH__SWITCH_ON    ? 1
                                              : number == HEDDLE__V1__SWITCH__SWITCH_OFF ? 0
                                                                                         : -1;
        return HD_OK;
    }
    if (number)
        return hd_job_parse(key, word, job);
    if (key->text && strcmp(key->text, "auto") == 0)
        hd_job_set_default(key, job);
    return HD_OK;
}

/* Sets a key of kind WORD, NAME or PATH from a message. An empty text means auto if auto is the
 * key's default. */
static enum hd_status take_text(const struct hd_key *key, const char *text, struct hd_job *job)
{
    const bool is_auto = !*text && key->text && strcmp(key->text, "auto") == 0;
    enum hd_status st;

    if (key->kind == HD_KEY_INT && !*text)
        text = "auto";
    else if (!*text && !is_auto)
        return HD_OK;
    st = hd_job_parse(key, is_auto ? "auto" : text, job);
    return st ? hd_err_prefix(st, "%s", key->path) : HD_OK;
}

static enum hd_status take_field(const struct hd_key *key, const ProtobufCFieldDescriptor *field,
                                 const ProtobufCMessage *holder, struct hd_job *job)
{
    const void *from = (const char *)holder + field->offset;
    void *to = hd_job_member(key, job);
    const bool in_oneof = field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;

    if (in_oneof &&
        *(const uint32_t *)((const char *)holder + field->quantifier_offset) != field->id) {
        *(int64_t *)to = (int64_t)key->number;
        return HD_OK;
    }
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
        *(int64_t *)to = *(const int32_t *)from;
        return HD_OK;
    case PROTOBUF_C_TYPE_INT64:
        *(int64_t *)to = *(const int64_t *)from;
        return HD_OK;
    case PROTOBUF_C_TYPE_UINT64:
        *(int64_t *)to =
            *(const uint64_t *)from > INT64_MAX ? -1 : (int64_t) * (const uint64_t *)from;
        return HD_OK;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)to = *(const double *)from;
        return HD_OK;
    /* a field of Plan; the key is INT because in a spec it may be auto */
    case PROTOBUF_C_TYPE_BOOL:
        if (key->kind == HD_KEY_INT)
            *(int64_t *)to = *(const protobuf_c_boolean *)from != 0;
        else
            *(bool *)to = *(const protobuf_c_boolean *)from != 0;
        return HD_OK;
    case PROTOBUF_C_TYPE_ENUM:
        return take_enum(key, field, *(const int *)from, job);
    case PROTOBUF_C_TYPE_STRING:
        return take_text(key, *(char *const *)from, job);
    default:
        return hd_err(HD_INTERNAL, "%s: a type of field without a reader", key->path);
    }
}

/* Returns whether the member of a message is as in an empty one. */
static bool is_empty(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *holder)
{
    const char *member = (const char *)holder + field->offset;
    uint64_t wide;

    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return !*(const uint32_t *)((const char *)holder + field->quantifier_offset);
    if (field->type == PROTOBUF_C_TYPE_STRING)
        return !**(char *const *)member;
    if (field->type != PROTOBUF_C_TYPE_INT64 && field->type != PROTOBUF_C_TYPE_UINT64 &&
        field->type != PROTOBUF_C_TYPE_DOUBLE)
        return !*(const uint32_t *)member;
    memcpy(&wide, member, sizeof wide); /* -0.0 is not empty */
    return !wide;
}

/* Sets the job's keys that the message's pairs name. */
static enum hd_status take_pairs(Heddle__V1__KeyValue *const *pairs, size_t count,
                                 struct hd_job *job)
{
    const struct map *map = map_of_keys();

    for (size_t i = 0; i < count; i++) {
        const Heddle__V1__KeyValue *pair = pairs[i];
        const struct hd_key *key = hd_job_find_stored_key(pair->path);
        const size_t index = key ? (size_t)(key - hd_job_keys) : 0;
        char quoted[SPEC_QUOTE_MAX];
        const char *const *texts;
        enum hd_status st = HD_OK;

        if (!key || !map->keys[index].is_sent)
            return hd_err(HD_INVALID,
                          "%s: this build knows no such key; a newer client sent it: remove the "
                          "key, or upgrade",
                          spec_quote(pair->path, quoted));
        texts = map->keys[index].texts;
        if (texts[0] && strcmp(pair->value, texts[0]) == 0)
            hd_job_set_default(key, job);
        else if (texts[1] && strcmp(pair->value, texts[1]) == 0)
            hd_job_set_old_default(key, job);
        else
            st = hd_job_parse(key, pair->value, job);
        if (st)
            return hd_err_prefix(st, "%s", key->path);
    }
    return HD_OK;
}

static enum hd_status take_files(Heddle__V1__DataFile *const *files, size_t count,
                                 struct hd_arena *arena, struct hd_job_file **ret_files,
                                 int64_t *ret_count)
{
    *ret_files = hd_arena_array(arena, count ? count : 1, sizeof **ret_files);
    if (!*ret_files)
        return hd_err(HD_NO_MEMORY, "no memory for %zu data files", count);
    for (size_t i = 0; i < count; i++)
        (*ret_files)[i] = (struct hd_job_file){
            .path = hd_arena_strdup(arena, files[i]->path),
            .size_bytes = files[i]->size_bytes,
            .source = files[i]->source,
            .fingerprint =
                *files[i]->fingerprint ? hd_arena_strdup(arena, files[i]->fingerprint) : NULL};
    *ret_count = (int64_t)count;
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory for %zu data files", count)
                                  : HD_OK;
}

static enum hd_status take_order(const Heddle__V1__ParallelSpec *parallel, struct hd_arena *arena,
                                 struct hd_job *job)
{
    if (!parallel || !*parallel->schedule_order)
        return HD_OK;
    job->schedule_order = hd_arena_strdup(arena, parallel->schedule_order);
    return job->schedule_order ? HD_OK
                               : hd_err(HD_NO_MEMORY, "no memory for an order of pipeline stages");
}

static enum hd_status take_lists(const Heddle__V1__DataSpec *data, struct hd_arena *arena,
                                 struct hd_job *job)
{
    enum hd_status st;

    if (!data)
        return HD_OK;
    st = take_files(data->train, data->n_train, arena, &job->train, &job->train_count);
    if (!st)
        st = take_files(data->val, data->n_val, arena, &job->val, &job->val_count);
    if (st || !data->n_train_weights)
        return st;
    if (data->n_train_weights % (size_t)hd_job_weights_each(job))
        return hd_err(HD_INVALID, "data.stages: %zu weights for %lld stages", data->n_train_weights,
                      (long long)hd_job_stage_count(job));
    job->weights = hd_arena_array(arena, data->n_train_weights, sizeof *job->weights);
    if (!job->weights)
        return hd_err(HD_NO_MEMORY, "no memory for the weights of a mixture");
    memcpy(job->weights, data->train_weights, data->n_train_weights * sizeof *job->weights);
    job->weight_count = (int64_t)data->n_train_weights / hd_job_weights_each(job);
    return HD_OK;
}

enum hd_status hd_spec_from_message(const struct Heddle__V1__JobSpec *message,
                                    struct hd_arena *arena, struct hd_job *ret_job)
{
    const struct map *map = map_of_keys();
    ProtobufCMessage *holders[GROUPS_MAX];
    enum hd_status st = HD_OK;

    find_holders(map, (ProtobufCMessage *)(uintptr_t)&message->base, NULL, holders);
    *ret_job = hd_job_copy(&map->no_pairs[message->sparse != 0], arena);
    for (size_t k = 0; k < map->typed_count && !st; k++) {
        const size_t i = map->typed[k];
        const ProtobufCMessage *holder = holders[map->keys[i].group];

        if (holder && !is_empty(map->keys[i].field, holder))
            st = take_field(&hd_job_keys[i], map->keys[i].field, holder, ret_job);
        else if (!holder && map->keys[i].has_auto)
            hd_job_set_default(&hd_job_keys[i], ret_job);
        else if (!holder)
            hd_job_set_constant(&hd_job_keys[i], 0, NULL, ret_job);
    }
    if (*message->file_text && strlen(message->file_text) <= HD_JOB_FILE_TEXT_MAX)
        ret_job->file_text = hd_arena_strdup(arena, message->file_text);
    if (!st)
        st = take_order(message->parallel, arena, ret_job);
    if (!st)
        st = take_pairs(message->keys, message->n_keys, ret_job);
    if (!st) /* the number of stages is in a pair */
        st = take_lists(message->data, arena, ret_job);
    if (!st)
        spec_fill_zero(ret_job);
    return st;
}

/* ---- to a message ---- */

/* Returns the text form of a key; it lives in the arena. */
static char *text_of(const struct hd_key *key, const struct hd_job *job, struct hd_arena *arena)
{
    struct hd_text text = {0};
    char *copy;

    (void)hd_job_format(key, job, &text);
    copy = hd_arena_strdup(arena, text.data ? text.data : "");
    hd_text_free(&text);
    return copy;
}

static void put_enum(const struct hd_key *key, const ProtobufCFieldDescriptor *field,
                     const struct hd_job *job, int *ret_number)
{
    const void *member = hd_job_const_member(key, job);

    if (is_switch(field))
        *ret_number = *(const int64_t *)member < 0    ? HEDDLE__V1__SWITCH__SWITCH_UNSPECIFIED
                      : *(const int64_t *)member == 0 ? HEDDLE__V1__SWITCH__SWITCH_OFF
                                                      : HEDDLE__V1__SWITCH__SWITCH_ON;
    else
        (void)enum_of_word(field, hd_job_text(key, job), ret_number);
}

static void put_field(const struct hd_key *key, const ProtobufCFieldDescriptor *field,
                      ProtobufCMessage *holder, const struct hd_job *job, struct hd_arena *arena)
{
    const void *from = hd_job_const_member(key, job);
    void *to = (char *)holder + field->offset;
    char *text;

    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
        if (*(const int64_t *)from == (int64_t)key->number)
            return; /* a field that is absent in the message means auto */
        *(uint32_t *)((char *)holder + field->quantifier_offset) = field->id;
    }
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
        *(int32_t *)to = (int32_t) * (const int64_t *)from;
        break;
    case PROTOBUF_C_TYPE_INT64:
        *(int64_t *)to = *(const int64_t *)from;
        break;
    case PROTOBUF_C_TYPE_UINT64:
        *(uint64_t *)to = (uint64_t) * (const int64_t *)from;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)to = *(const double *)from;
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)to =
            key->kind == HD_KEY_INT ? *(const int64_t *)from > 0 : *(const bool *)from;
        break;
    case PROTOBUF_C_TYPE_ENUM:
        put_enum(key, field, job, to);
        break;
    case PROTOBUF_C_TYPE_STRING:
        text = text_of(key, job, arena);
        if (text && *text && strcmp(text, "auto") != 0)
            *(char **)to = text;
        break;
    default:
        break;
    }
}

static void put_files(const struct hd_job_file *files, int64_t count, struct hd_arena *arena,
                      Heddle__V1__DataFile ***ret_files, size_t *ret_count)
{
    *ret_files = hd_arena_array(arena, (size_t)count + 1, sizeof **ret_files);
    for (int64_t i = 0; *ret_files && i < count; i++) {
        Heddle__V1__DataFile *file =
            (Heddle__V1__DataFile *)new_message(arena, &heddle__v1__data_file__descriptor);

        if (!file)
            return;
        file->path = hd_arena_strdup(arena, files[i].path);
        file->size_bytes = files[i].size_bytes;
        file->source = (int32_t)files[i].source;
        file->fingerprint =
            hd_arena_strdup(arena, files[i].fingerprint ? files[i].fingerprint : "");
        (*ret_files)[(*ret_count)++] = file;
    }
}

/* Adds the pair of a key to a message's `keys`. */
static void add_pair(const struct hd_key *key, const struct hd_job *job, struct hd_arena *arena,
                     Heddle__V1__KeyValue **keys, size_t *count)
{
    const struct map *map = map_of_keys();
    const char *const *texts = map->keys[key - hd_job_keys].texts, *text = NULL;
    Heddle__V1__KeyValue *pair =
        (Heddle__V1__KeyValue *)new_message(arena, &heddle__v1__key_value__descriptor);

    if (!pair)
        return;
    /* never freed: the message lives in the arena */
    pair->path = (char *)(uintptr_t)hd_job_stored_path(key);
    for (int old = 0; old < 2 && !text; old++)
        if (texts[old] && hd_job_members_equal(key, job, &map->no_pairs[old]))
            text = texts[old];
    pair->value = text ? (char *)(uintptr_t)text : text_of(key, job, arena);
    keys[(*count)++] = pair;
}

/* ---- the map, made of the functions above ---- */

static struct map the_map;

/* Keeps the text of a pair of the job, unless it reads as another value. */
static const char *constant_text(const struct hd_key *key, const struct hd_job *job,
                                 struct hd_arena *arena)
{
    const char *text = text_of(key, job, arena);
    struct hd_job read = hd_job_copy(job, arena);

    return text && !hd_job_parse(key, text, &read) && hd_job_members_equal(key, job, &read) ? text
                                                                                            : NULL;
}

static void make_pair(size_t i)
{
    const struct hd_key *key = &hd_job_keys[i];

    hd_job_set_default(key, &the_map.no_pairs[0]);
    hd_job_set_old_default(key, &the_map.no_pairs[1]);
    if (!hd_job_is_default(key, &the_map.no_pairs[1]))
        hd_key_set_add(&the_map.always, key);
    for (int old = 0; old < 2; old++)
        the_map.keys[i].texts[old] = constant_text(key, &the_map.no_pairs[old], &the_map.arena);
}

static void make_typed(size_t i, const struct hd_job *defaults)
{
    const ProtobufCFieldDescriptor *field = the_map.keys[i].field;
    ProtobufCMessage *empty =
        new_message(&the_map.arena, the_map.groups[the_map.keys[i].group].descriptor);

    the_map.typed[the_map.typed_count++] = i;
    for (int sparse = 0; empty && sparse < 2; sparse++)
        (void)take_field(&hd_job_keys[i], field, empty, &the_map.no_pairs[sparse]);
    if (empty)
        put_field(&hd_job_keys[i], field, empty, defaults, &the_map.arena);
    if (!empty || !is_empty(field, empty))
        hd_key_set_add(&the_map.always, &hd_job_keys[i]);
}

static void make_map(void)
{
    struct hd_job defaults;

    hd_job_set_defaults(&defaults);
    hd_arena_init(&the_map.arena, 0);
    the_map.groups[0].descriptor = &heddle__v1__job_spec__descriptor;
    the_map.group_count = 1;
    for (int sparse = 0; sparse < 2; sparse++) {
        hd_job_init(&the_map.no_pairs[sparse], NULL);
        hd_job_set_default(hd_job_find_key("attempt.base_hash"), &the_map.no_pairs[sparse]);
    }
    for (size_t i = 0; i < hd_job_key_count; i++) {
        the_map.keys[i].is_sent = is_sent(&hd_job_keys[i]);
        the_map.keys[i].has_auto = hd_job_keys[i].words && strstr(hd_job_keys[i].words, "auto");
        place_key(&the_map, i);
        if (the_map.keys[i].is_sent && the_map.keys[i].field)
            make_typed(i, &defaults);
        else if (the_map.keys[i].is_sent)
            make_pair(i);
    }
}

static const struct map *map_of_keys(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, make_map);
    return &the_map;
}

struct Heddle__V1__JobSpec *hd_spec_to_message(const struct hd_job *job, struct hd_arena *arena)
{
    Heddle__V1__JobSpec *m =
        (Heddle__V1__JobSpec *)new_message(arena, &heddle__v1__job_spec__descriptor);
    const struct map *map = map_of_keys();
    struct hd_key_set keys = map->always;
    ProtobufCMessage *holders[GROUPS_MAX];

    if (!m)
        return NULL;
    find_holders(map, &m->base, arena, holders);
    hd_job_add_given(job, &keys);
    m->keys = hd_arena_array(arena, hd_key_set_count(&keys), sizeof *m->keys);
    for (const struct hd_key *key = NULL; m->keys && (key = hd_key_set_next(&keys, key));) {
        const size_t i = (size_t)(key - hd_job_keys);
        const ProtobufCFieldDescriptor *field = map->keys[i].field;
        ProtobufCMessage *holder = holders[map->keys[i].group];

        if (!map->keys[i].is_sent)
            continue;
        if (field && holder)
            put_field(key, field, holder, job, arena);
        else if (!field)
            add_pair(key, job, arena, m->keys, &m->n_keys);
    }
    m->sparse = true;
    if (hd_arena_failed(arena) || !m->data || !m->parallel)
        return NULL;
    if (job->file_text)
        m->file_text = (char *)(uintptr_t)job->file_text;
    if (job->schedule_order)
        m->parallel->schedule_order = (char *)(uintptr_t)job->schedule_order;
    put_files(job->train, job->train_count, arena, &m->data->train, &m->data->n_train);
    put_files(job->val, job->val_count, arena, &m->data->val, &m->data->n_val);
    m->data->train_weights = job->weights;
    m->data->n_train_weights = (size_t)(job->weight_count * hd_job_weights_each(job));
    return hd_arena_failed(arena) ? NULL : m;
}

/* ---- plans ---- */

/* Returns the typed field of Plan for a key of the layout, by the last part of the key's path. */
static const ProtobufCFieldDescriptor *plan_field(const struct hd_key *key)
{
    const char *name = strrchr(hd_job_stored_path(key), '.') + 1;

    return protobuf_c_message_descriptor_get_field_by_name(
        &heddle__v1__plan__descriptor, strcmp(name, "threads") == 0 ? "threads_per_device" : name);
}

bool hd_spec_plan_to_message(const struct hd_layout_sizes *layout, struct hd_arena *arena,
                             struct Heddle__V1__Plan *message)
{
    struct hd_job *job = hd_arena_alloc(arena, sizeof *job);

    if (!job)
        return false;
    job->layout = *layout;
    message->keys = hd_arena_array(arena, hd_job_key_count, sizeof *message->keys);
    for (size_t i = 0; message->keys && i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        const ProtobufCFieldDescriptor *field =
            hd_job_key_is_of_layout(key) ? plan_field(key) : NULL;

        if (field)
            put_field(key, field, &message->base, job, arena);
        else if (hd_job_key_is_of_layout(key))
            add_pair(key, job, arena, message->keys, &message->n_keys);
    }
    return !hd_arena_failed(arena);
}

enum hd_status hd_spec_plan_from_message(const struct Heddle__V1__Plan *message,
                                         struct hd_layout_sizes *ret_layout)
{
    struct hd_job job;
    enum hd_status st = HD_OK;

    hd_job_set_defaults(&job);
    for (size_t i = 0; i < hd_job_key_count && !st; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        const ProtobufCFieldDescriptor *field =
            hd_job_key_is_of_layout(key) ? plan_field(key) : NULL;

        if (field)
            st = take_field(key, field, &message->base, &job);
    }
    if (!st)
        st = take_pairs(message->keys, message->n_keys, &job);
    *ret_layout = job.layout;
    return st;
}

enum hd_status hd_spec_check_bytes(const struct hd_job *job, size_t message_bytes)
{
    if (message_bytes <= HD_SPEC_MESSAGE_BYTES_MAX)
        return HD_OK;
    return hd_err(HD_LIMIT,
                  "%s: the names of %lld data files make the job %zu bytes long, and a controller "
                  "takes %d: make token files of them, of any number one (heddle data tokenize "
                  "FILES --out corpus.npy), and name these; or join the files themselves",
                  hd_job_stage_count(job) ? "data.stages" : "data.train",
                  (long long)(job->train_count + job->val_count), message_bytes,
                  HD_SPEC_MESSAGE_BYTES_MAX);
}

enum hd_status hd_spec_check_size(const struct hd_job *job, struct hd_arena *arena)
{
    const Heddle__V1__JobSpec *message = hd_spec_to_message(job, arena);

    return message ? hd_spec_check_bytes(job, heddle__v1__job_spec__get_packed_size(message))
                   : hd_err(HD_NO_MEMORY, "no memory for a job");
}
