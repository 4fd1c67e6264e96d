/* --set written into the text of a job file: the text around it stays. */
#include <string.h>

#include "fixture.h"

static enum hd_status edit(const char *text, const char *const *sets, size_t count,
                           struct hd_text *ret_text)
{
    const struct hd_spec_source source = {.name = "job.yaml",
                                          .folder = "/",
                                          .bytes = text,
                                          .size_bytes = strlen(text),
                                          .overrides = sets,
                                          .override_count = count};

    return hd_spec_write_overrides(&source, ret_text);
}

static void assert_becomes(const char *text, const char *set, const char *wanted)
{
    struct hd_text out = {0};

    if (edit(text, &set, 1, &out))
        fail_msg("%s: %s", set, hd_err_message());
    assert_string_equal(out.data, wanted);
    hd_text_free(&out);
}

static const char job[] = "# \xc3\xbc first\n"
                          "name: x          # why\n"
                          "model: {layers: 2, hidden: 64}\n"
                          "train:\n"
                          "  steps: 10      # few\n"
                          "  lr: 1e-3       # peak\n"
                          "  # of the end\n"
                          "\n"
                          "data:\n"
                          "  train:         # files\n"
                          "    - a.txt\n"
                          "    - b.txt      # second\n"
                          "  val_split: 0.1";

/* `job` with `from` replaced by `to`. */
static void assert_only_changes(const char *set, const char *from, const char *to)
{
    const char *at = strstr(job, from);
    struct hd_text wanted = {0};

    assert_non_null(at);
    hd_text_add(&wanted, "%.*s%s%s", (int)(at - job), job, to, at + strlen(from));
    assert_becomes(job, set, wanted.data);
    hd_text_free(&wanted);
}

static void a_value_is_replaced_in_its_place(void **state)
{
    assert_only_changes("train.steps=200", "steps: 10      #", "steps: 200     #");
    assert_only_changes("train.steps=1000000000", "steps: 10      #", "steps: 1000000000  #");
    assert_only_changes("model.layers=4", "layers: 2", "layers: 4");
    assert_only_changes("name=my-run", "name: x     ", "name: my-run");
    assert_only_changes("data.val_split=0.25", "val_split: 0.1", "val_split: 0.25");
    assert_only_changes("data.train=[c.txt, \"d, e.txt\"]", "- a.txt\n    - b.txt      #",
                        "[c.txt, \"d, e.txt\"]      #");
}

static void a_key_that_is_not_there_goes_behind_the_others_of_its_group(void **state)
{
    assert_only_changes("model.heads=4", "hidden: 64", "hidden: 64, heads: 4");
    assert_only_changes("train.seed=7", "1e-3       # peak\n", "1e-3       # peak\n  seed: 7\n");
    assert_only_changes("train.adapter.rank=8", "1e-3       # peak\n",
                        "1e-3       # peak\n  adapter: {rank: 8}\n");
    assert_only_changes("checkpoint.every=5", "val_split: 0.1",
                        "val_split: 0.1\ncheckpoint: {every: 5}");
    assert_becomes("name: x\nparallel: {}\n", "parallel.tp=2", "name: x\nparallel: {tp: 2}\n");
}

static void a_short_form_becomes_its_group(void **state)
{
    assert_only_changes("train.lr.warmup=3", "lr: 1e-3       #", "lr: {peak: 1e-3, warmup: 3}  #");
    assert_only_changes("train.lr.peak=2e-4", "lr: 1e-3       #", "lr: {peak: 2e-4}  #");
    assert_becomes("name: x\nparallel: auto\n", "parallel.tp=2", "name: x\nparallel: {tp: 2}\n");
}

static void later_ones_see_what_earlier_ones_wrote(void **state)
{
    static const char *const sets[] = {"train.lr.warmup=3", "train.lr.warmup=4",
                                       "checkpoint.best=true", "checkpoint.keep=1"};
    struct hd_text out = {0};

    assert_int_equal(edit(job, sets, 4, &out), HD_OK);
    assert_non_null(strstr(out.data, "lr: {peak: 1e-3, warmup: 4}  # peak\n"));
    assert_non_null(strstr(out.data, "val_split: 0.1\ncheckpoint: {best: true, keep: 1}"));
    hd_text_free(&out);
}

/* The file is not needed to be whole: only keys and values are looked at. */
static void what_no_job_file_may_say_is_refused(void **state)
{
    static const struct {
        const char *set, *tells;
    } wrong[] = {
        {"train.step=10", "train.step"}, {"trian.steps=10", "trian"},
        {"train.steps=ten", "ten"},      {"train.steps=-3", "-3"},
        {"train.steps", "KEY=VALUE"},    {"train.steps.x=1", "train.steps.x"},
        {"train.steps=", "no value"},
    };
    struct hd_text out = {0};

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (!edit(job, &wrong[i].set, 1, &out))
            fail_msg("%s: %s", wrong[i].set, out.data);
        if (!strstr(hd_err_message(), wrong[i].tells))
            fail_msg("%s: %s", wrong[i].set, hd_err_message());
        assert_int_equal(out.len_bytes, 0);
    }
    hd_text_free(&out);
}

/* Forms that editors leave: a byte order mark, ends of lines with CR, a comma in front of a bracket, a text
 * over several lines. */
static void other_ways_to_write_a_file_work(void **state)
{
    assert_becomes("\xef\xbb\xbfname: \"\xc3\xbc\"\ntrain: {steps: 1,}\n", "train.seed=7",
                   "\xef\xbb\xbfname: \"\xc3\xbc\"\ntrain: {steps: 1, seed: 7,}\n");
    assert_becomes("name: x\r\ntrain: {steps: 1}\r\n", "train.steps=7",
                   "name: x\r\ntrain: {steps: 7}\r\n");
    assert_becomes("data:\n  template: >-\n    a\n    b\n  val_split: 0.1\n", "data.template=c",
                   "data:\n  template: c\n  val_split: 0.1\n");
    assert_becomes("data:\n  template: \"a\n    b\"\n", "data.val_split=0.2",
                   "data:\n  template: \"a\n    b\"\n  val_split: 0.2\n");
    assert_becomes("{name: x}", "train.lr=1e-3", "{name: x, train: {lr: 1e-3}}");
}

/* A key under an old name: of --set it is written under the new one. In the file it cannot be changed
 * without a second name for it, which is refused. */
static void old_names_of_keys_are_known(void **state)
{
    static const char *const set = "data.val_split=0.2";
    struct hd_text out = {0};

    assert_only_changes("data.split=0.25", "val_split: 0.1", "val_split: 0.25");
    assert_int_equal(edit("data:\n  split: 0.1\n", &set, 1, &out), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "data.val_split"));
    assert_int_equal(out.len_bytes, 0);
    hd_text_free(&out);
}

RUN_CASES()
