/* Jobs as messages and as JSON: the words of the file, and all that it said. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "heddle/v1/job.pb-c.h"
#include "spec/spec_internal.h"

/* ---- through the network ---- */

/* Goal: a message gets the verdict of the file, in its words. Method: the same wrong number in
 * both. */
static void a_message_is_judged_in_the_words_of_the_file(void **state)
{
    struct hd_job *spec = read_good(NULL), *none = NULL;
    char *yaml = with_line(6, "  heads: 3");
    char message[HD_ERR_MAX];

    assert_int_equal(read_bytes(yaml, strlen(yaml), NULL, &none), HD_INVALID);
    (void)snprintf(message, sizeof message, "%s", hd_err_message());
    assert_int_equal(hd_spec_check(spec), HD_OK);
    spec->heads = 3;
    spec->kv_heads = 3;
    spec->head_width = 64 / 3;
    assert_int_equal(hd_spec_check(spec), HD_INVALID);
    assert_string_equal(message + strlen("job.yaml:6: "), hd_err_message());
    free(yaml);
}

/* Goal: a client that sends half a message is told, one that leaves out what has a default is
 * served. Method: an empty message; a good one with members set back to zero. */
static void a_message_with_holes_is_completed_or_refused(void **state)
{
    Heddle__V1__JobSpec empty = HEDDLE__V1__JOB_SPEC__INIT;
    Heddle__V1__JobSpec *whole = hd_spec_to_message(read_good(NULL), &jobs);
    struct hd_job job;

    assert_int_equal(hd_spec_from_message(&empty, &jobs, &job), HD_OK);
    assert_int_equal(hd_spec_check(&job), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "name: is missing"));
    whole->model->kv_heads = 0;
    whole->resources->devices_max = 0;
    whole->data->order = HEDDLE__V1__DATA_ORDER__DATA_ORDER_UNSPECIFIED;
    assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
    assert_string_equal(job.val[0].fingerprint, read_good(NULL)->val[0].fingerprint);
    assert_int_equal(job.kv_heads, 8);
    assert_int_equal(job.devices_max, 2);
    assert_int_equal(job.order, HD_JOB_ORDER_SHUFFLED);
    assert_int_equal(job.precision, HD_JOB_PRECISION_AUTO);
    assert_true(job.zero == -1 && job.sequence == -1 && job.end_of_text == -2);
    assert_int_equal(hd_spec_check(&job), HD_OK);
    whole->train->seed = (uint64_t)INT64_MAX + 1;
    assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
    assert_int_equal(hd_spec_check(&job), HD_INVALID);
    whole->train->seed = INT64_MAX;
    assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
    assert_int_equal(hd_spec_check(&job), HD_OK);
    whole->train->precision = 77; /* of a newer client */
    assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_INVALID);
    assert_string_equal(hd_err_message(),
                        "train.precision: 77 is not a value that this build knows");
}

/* Goal: what a rank could not open, or could print on somebody's terminal, is refused where a job
 * is submitted. Method: a good message with one path or the name in another form. */
static void paths_and_names_that_no_client_makes_are_refused(void **state)
{
    static const struct {
        const char *path, *message;
    } paths[] = {
        {"corpus/a.txt", "data.train[0]: 'corpus/a.txt' is not an absolute path; give one that "
                         "begins with / and is the same on every node"},
        {"/corpus/a\nb.txt", "data.train[0]: '/corpus/a?b.txt' holds a control character (a line "
                             "break, an escape ...); rename the file"},
        {"/corpus/\033[2J.txt", "data.train[0]: '/corpus/?[2J.txt' holds a control character (a "
                                "line break, an escape ...); rename the file"},
        {"/corpus/\xc2\x9b"
         "2J.txt", /* CSI as one character, U+009B */
         "data.train[0]: '/corpus/?2J.txt' holds a control character (a line break, an escape "
         "...); rename the file"},
        {"", "data.train[0]: '' is not an absolute path; give one that begins with / and is the "
             "same on every node"},
    };
    static const char *const names[] = {".", "..", "-rf", ".hidden"};
    /* that would end a line of the job's text, or its word; without places, or with too many */
    static const char *const forms[] = {"4:00000000000000ff\nname x", "4:00000000000000ff /x",
                                        "4:00000000000000f",          "00000000000000ff",
                                        "0:00000000000000ff",         "65537:00000000000000ff"};
    Heddle__V1__JobSpec *whole = hd_spec_to_message(read_good(NULL), &jobs);
    struct hd_job job;

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        char *before = whole->data->train[0]->path;

        whole->data->train[0]->path = (char *)(uintptr_t)paths[i].path;
        assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
        assert_int_equal(hd_spec_check(&job), HD_INVALID);
        assert_string_equal(hd_err_message(), paths[i].message);
        whole->data->train[0]->path = before;
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        whole->data->train[0]->fingerprint = (char *)(uintptr_t)forms[i];
        assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
        assert_int_equal(hd_spec_check(&job), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), "data.train[0]: the fingerprint '"));
    }
    whole->data->train[0]->fingerprint = (char *)(uintptr_t) "";
    whole->train->init_from = (char *)(uintptr_t) "/weights\033c";
    assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
    assert_int_equal(hd_spec_check(&job), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "train.init_from: '/weights?c' holds a control"));
    whole->train->init_from = (char *)(uintptr_t) "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        whole->name = (char *)(uintptr_t)names[i];
        assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
        assert_int_equal(hd_spec_check(&job), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), "begin with a letter, a digit or '_'"));
    }
    whole->name = (char *)(uintptr_t) "_a.b-c";
    assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
    assert_int_equal(hd_spec_check(&job), HD_OK);
}

/* Goal: nothing is lost on the way to the controller. Method: values that are no defaults, in every
 * kind of key; JSON before and after. The keys without a field of their own are among them. */
static void a_message_says_all_that_the_file_said(void **state)
{
    struct hd_job *first = read_good(
        "parallel={tp: 2, zero: 0, sequence: false, cp_exchange: ring, expert_rows: auto}");
    struct hd_text a = {0}, b = {0};
    struct hd_json_writer writer_a = {.out = &a}, writer_b = {.out = &b};
    Heddle__V1__JobSpec *message;
    struct hd_job second;

    first->threads = 3; /* resources.threads */
    first->end_of_text = 10;
    message = hd_spec_to_message(first, &jobs);
    assert_string_equal(message->data->end_of_text, "10");
    assert_int_equal(message->parallel->sequence, HEDDLE__V1__SWITCH__SWITCH_OFF);
    assert_int_equal(message->parallel->_zero_case, HEDDLE__V1__PARALLEL_SPEC___ZERO_ZERO);
    assert_int_equal(hd_spec_from_message(message, &jobs, &second), HD_OK);
    assert_int_equal(second.threads, 3);
    hd_spec_add_json(first, NULL, &writer_a);
    hd_spec_add_json(&second, NULL, &writer_b);
    assert_string_equal(a.data, b.data);
    message->keys[0]->path = (char *)(uintptr_t) "train.tomorrow";
    assert_int_equal(hd_spec_from_message(message, &jobs, &second), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "'train.tomorrow': this build knows no such key"));
    hd_text_free(&a);
    hd_text_free(&b);
}

/* Goal: what a message leaves out keeps its meaning when a default changes, and a message has no pair
 * that it could leave out. Method: data.format, whose default is another one since version 10, absent
 * from a sparse message and from one of a client that sends every pair that it knows. */
static void an_absent_pair_has_the_value_from_before_its_key(void **state)
{
    const struct hd_job *first = read_good(NULL);
    Heddle__V1__JobSpec *whole = hd_spec_to_message(first, &jobs);
    struct hd_job old = *first, job;

    for (size_t i = 0; i < whole->n_keys; i++) {
        const struct hd_key *key = hd_job_find_stored_key(whole->keys[i]->path);

        hd_job_set_old_default(key, &old);
        if (hd_job_is_default(key, first) && hd_job_members_equal(key, first, &old))
            fail_msg("%s need not be sent", key->path);
    }
    whole->n_keys = 0;
    assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
    assert_int_equal(job.data_format, HD_JOB_DATA_FORMAT_TEXT);
    whole->sparse = false;
    assert_int_equal(hd_spec_from_message(whole, &jobs, &job), HD_OK);
    assert_int_equal(job.data_format, HD_JOB_DATA_FORMAT_AUTO);
}

/* Goal: a client of an older version is understood: what it does not know has the value of this build's
 * job file. Method: a message without the pairs that came after a version, which does not say sparse. Only
 * grpo, which came with them, has limits of a ratio. */
static void a_client_of_before_need_not_know_later_keys(void **state)
{
    const struct hd_job *first = read_good(NULL);

    for (int version = 10; version <= HD_JOB_VERSION; version++) {
        Heddle__V1__JobSpec *message = hd_spec_to_message(first, &jobs);
        struct hd_job job;
        size_t kept = 0;

        for (size_t i = 0; i < message->n_keys; i++)
            if (hd_job_find_stored_key(message->keys[i]->path)->since <= version)
                message->keys[kept++] = message->keys[i];
        assert_true(version > 12 || kept < message->n_keys);
        message->n_keys = kept;
        message->sparse = false;
        assert_int_equal(hd_spec_from_message(message, &jobs, &job), HD_OK);
        assert_int_equal(hd_spec_check(&job), HD_OK);
        for (size_t i = 0; i < hd_job_key_count; i++)
            if (!hd_job_members_equal(&hd_job_keys[i], first, &job) &&
                strncmp(hd_job_keys[i].path, "train.policy.clip_", 18) != 0)
                fail_msg("%s from a client of version %d", hd_job_keys[i].path, version);
    }
}

/* Goal: one job is stored as one message, however it was written: a repeated request is compared by its
 * bytes, and `heddle show` reads fields of the message. Method: what a command sends, with each kind of
 * other writing; the job's own message has the bytes of the first. */
static void a_job_is_kept_in_one_writing(void **state)
{
    Heddle__V1__JobSpec *sent = hd_spec_to_message(read_good(NULL), &jobs), *message;
    const size_t count = heddle__v1__job_spec__get_packed_size(sent);
    uint8_t *bytes = malloc(count), *again = malloc(count);
    const Heddle__V1__JobSpec *kept = NULL;
    struct hd_job job;

    (void)heddle__v1__job_spec__pack(sent, bytes);
    for (int writing = 0; writing < 6; writing++) {
        Heddle__V1__KeyValue extra = HEDDLE__V1__KEY_VALUE__INIT, **pairs, **own;
        const size_t own_count = sent->n_keys;
        char steps[32], *schedule;

        message = heddle__v1__job_spec__unpack(NULL, count, bytes);
        own = message->keys;
        schedule = message->parallel->schedule;
        pairs = calloc(own_count + 1, sizeof *pairs);
        memcpy(pairs, own, own_count * sizeof *pairs);
        pairs[own_count] = &extra;
        message->keys = pairs;
        message->n_keys += writing > 0 && writing < 5;
        if (writing == 1) { /* a key as a field and as a pair, with different values */
            extra.path = "train.steps";
            (void)snprintf(steps, sizeof steps, "%lld", (long long)message->train->steps++);
            extra.value = steps;
        } else if (writing == 2) { /* a key twice */
            extra.path = own[0]->path;
            extra.value = own[0]->value;
        } else if (writing == 3) { /* a default that need not be said */
            extra.path = "checkpoint.best";
            extra.value = "0";
        } else if (writing == 4) { /* another order */
            extra = *own[0];
            pairs[0] = pairs[--message->n_keys - 1];
            pairs[message->n_keys - 1] = &extra;
        }
        if (writing == 5) /* a word for an absent text */
            message->parallel->schedule = "auto";
        assert_int_equal(hd_spec_from_message(message, &jobs, &job), HD_OK);
        kept = hd_spec_to_message(&job, &jobs);
        assert_int_equal(heddle__v1__job_spec__get_packed_size(kept), count);
        (void)heddle__v1__job_spec__pack(kept, again);
        assert_memory_equal(again, bytes, count);
        message->keys = own;
        message->n_keys = own_count;
        message->parallel->schedule = schedule;
        heddle__v1__job_spec__free_unpacked(message, NULL);
        free(pairs);
    }
    free(again);
    free(bytes);
}

/* Goal: a word that a file may say is not lost on the way. Method: each word of each key that has
 * some, through a message. */
static void every_word_of_a_key_is_sent(void **state)
{
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (strncmp(key->path, "attempt.", 8) == 0 || key->kind != HD_KEY_WORD)
            continue;
        for (unsigned v = 1; key->texts[v]; v++) {
            struct hd_job *job = read_good(NULL), back;

            *(unsigned *)hd_job_member(key, job) = v;
            assert_int_equal(hd_spec_from_message(hd_spec_to_message(job, &jobs), &jobs, &back),
                             HD_OK);
            if (strcmp(hd_job_text(key, &back), key->texts[v]) != 0)
                fail_msg("%s: %s arrives as '%s'", key->path, key->texts[v],
                         hd_job_text(key, &back));
        }
    }
}

/* ---- JSON ---- */

/* Goal: what `show -o json` prints is a job file. Method: print, read, print again. */
static void the_json_form_reads_back_to_itself(void **state)
{
    struct hd_job *first = read_good("train={steps: 100, global_batch: 8, profile: {steps: 9}, "
                                     "lr: {peak: 3e-4, min: 1e-5, decay: linear}}");
    struct hd_job *second = NULL;
    struct hd_text a = {0}, b = {0};
    struct hd_json_writer writer_a = {.out = &a}, writer_b = {.out = &b};

    hd_spec_add_json(first, NULL, &writer_a);
    if (read_bytes(a.data, a.len_bytes, NULL, &second))
        fail_msg("%s", hd_err_message());
    hd_spec_add_json(second, NULL, &writer_b);
    assert_string_equal(a.data, b.data);
    assert_non_null(strstr(a.data, "\"peak\":0.0003,"));
    assert_non_null(strstr(a.data, "\"profile\":{\"steps\":[9,9]}"));
    assert_non_null(strstr(a.data, "\"parallel\":{\"tp\":\"auto\","));
    hd_text_free(&a);
    hd_text_free(&b);
}

/* Goal: prompts in their short and in their long form are one job, in a message and in JSON, whatever
 * characters they have. Method: a list and a file, there and back. */
static void prompts_of_samples_keep_their_characters(void **state)
{
    static const char *const forms[] = {
        "validate.samples=[\"a\\tb\\\\n\\n\", c, '']",
        "validate.samples={prompts: [\"a\\tb\\\\n\\n\", c, ''], tokens: 64}",
        "validate.samples=short.txt", "validate.samples={prompts: short.txt}"};

    for (int i = 0; i < 4; i++) {
        struct hd_job *first = read_good(forms[i]), *again = NULL, back;
        struct hd_text a = {0}, b = {0};
        struct hd_json_writer writer_a = {.out = &a}, writer_b = {.out = &b};

        assert_int_equal(hd_spec_from_message(hd_spec_to_message(first, &jobs), &jobs, &back),
                         HD_OK);
        hd_spec_add_json(&back, NULL, &writer_a);
        if (read_bytes(a.data, a.len_bytes, NULL, &again))
            fail_msg("%s", hd_err_message());
        hd_spec_add_json(again, NULL, &writer_b);
        assert_string_equal(a.data, b.data);
        assert_string_equal(first->samples, again->samples);
        if (i < 2)
            assert_string_equal(first->samples, "text\ta\\tb\\\\n\\n\tc\t");
        else
            assert_non_null(strstr(a.data, "/short.txt\",\"every\":0,"));
        hd_text_free(&a);
        hd_text_free(&b);
    }
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
