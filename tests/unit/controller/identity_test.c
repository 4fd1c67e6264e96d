/* identity: roles, the policy file, credentials, limits. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/random.h"
#include "controller/identity/authority.h"
#include "controller/identity/identity.h"
#include "pki/pki.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

/* ---- roles ------------------------------------------------------------------------------------*/

static void no_role_of_a_person_includes_that_of_a_node(void **state)
{
    assert_true(hd_role_has(HD_ROLE_ADMIN, HD_ROLE_VIEWER));
    assert_true(hd_role_has(HD_ROLE_USER, HD_ROLE_USER));
    assert_false(hd_role_has(HD_ROLE_USER, HD_ROLE_OPERATOR));
    assert_false(hd_role_has(HD_ROLE_ADMIN, HD_ROLE_NODE));
    assert_false(hd_role_has(HD_ROLE_ADMIN, HD_ROLE_INVITED));
    assert_false(hd_role_has(HD_ROLE_NODE, HD_ROLE_VIEWER));
    assert_false(hd_role_has(HD_ROLE_NODE, HD_ROLE_INVITED));
    assert_false(hd_role_has(HD_ROLE_INVITED, HD_ROLE_NODE));
    assert_false(hd_role_has(HD_ROLE_NONE, HD_ROLE_NONE));
}

/* ---- the policy -------------------------------------------------------------------------------*/

static const char sample[] = "# who may what\n"
                             "role ann operator\n"
                             "role uid:1001 viewer   # the display in the hall\n"
                             "role-of-uids user\n"
                             "see role:viewer all\n"
                             "see bob jobs\n"
                             "limit role:user jobs_live 4\n"
                             "limit bob jobs_live 0\n"
                             "limit bob checkpoint_bytes 2T\n"
                             "keep history 30\n"
                             "keep step-lines 1000 after 7\n";

/* Every mode of a file: refused exactly if its group or others may write. 0400: it is readable. */
static void a_policy_that_others_may_change_is_refused(void **state)
{
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 16];

    temporary_dir(dir, "heddle-policy");
    (void)snprintf(path, sizeof path, "%s/policy", dir);
    assert_int_equal(hd_file_write_atomic(path, "role ann user\n", 14, 0600), HD_OK);
    for (mode_t mode = 0; mode <= 0777; mode++) {
        struct hd_policy *policy = NULL;
        enum hd_status st;

        assert_int_equal(chmod(path, mode | 0400), 0);
        st = hd_policy_read(path, NULL, &policy);
        if (st != (mode & 0022 ? HD_DENIED : HD_OK))
            fail_msg("mode %03o: %s", mode | 0400, hd_status_name(st));
        hd_policy_free(policy);
    }
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

static void a_rule_of_a_name_goes_before_that_of_its_role(void **state)
{
    const int64_t day_ms = INT64_C(86400000);
    struct hd_policy *p = NULL;

    assert_int_equal(hd_policy_parse("policy", sample, &p), HD_OK);
    assert_int_equal(hd_policy_role(p, "ann", HD_LOGIN_TOKEN_FILE), HD_ROLE_OPERATOR);
    assert_int_equal(hd_policy_role(p, "uid:1001", HD_LOGIN_SOCKET), HD_ROLE_VIEWER);
    assert_int_equal(hd_policy_role(p, "uid:1002", HD_LOGIN_SOCKET), HD_ROLE_USER);
    assert_int_equal(hd_policy_role(p, "carl", HD_LOGIN_TOKEN_FILE), HD_ROLE_USER);
    assert_int_equal(hd_policy_visibility(p, "carl", HD_ROLE_USER), HD_VISIBILITY_OWN);
    assert_int_equal(hd_policy_visibility(p, "bob", HD_ROLE_USER), HD_VISIBILITY_JOBS);
    assert_int_equal(hd_policy_visibility(p, "carl", HD_ROLE_VIEWER), HD_VISIBILITY_ALL);
    assert_int_equal(hd_policy_visibility(p, "carl", HD_ROLE_OPERATOR), HD_VISIBILITY_ALL);
    assert_int_equal(hd_policy_limit(p, "carl", HD_ROLE_USER, HD_LIMIT_JOBS_LIVE), 4);
    assert_true(hd_policy_limit(p, "bob", HD_ROLE_USER, HD_LIMIT_JOBS_LIVE) == INT64_MAX);
    assert_true(hd_policy_limit(p, "bob", HD_ROLE_USER, HD_LIMIT_CHECKPOINT_BYTES) == INT64_C(2)
                                                                                          << 40);
    assert_true(hd_policy_limit(p, "ada", HD_ROLE_ADMIN, HD_LIMIT_SUBMISSIONS) == INT64_MAX);
    assert_int_equal(hd_policy_limit(p, "eve", HD_ROLE_NONE, HD_LIMIT_QUERIES), 1000);
    assert_int_equal(hd_policy_retention(p).history_ms, 30 * day_ms);
    assert_int_equal(hd_policy_retention(p).step_lines, 1000);
    assert_int_equal(hd_policy_retention(p).step_lines_ms, 7 * day_ms);
    hd_policy_free(p);
}

/* "an", "ann2" and "annn" are not "ann"; and there is no pattern that would make them so. */
static void names_are_compared_exactly(void **state)
{
    static const char *const others[] = {"an", "ann2", "Ann", "annn", "*", ""};
    struct hd_policy *p = NULL;

    assert_int_equal(hd_policy_parse("policy", "role ann admin\n", &p), HD_OK);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_int_equal(hd_policy_role(p, others[i], HD_LOGIN_TOKEN_FILE), HD_ROLE_USER);
    hd_policy_free(p);
    assert_int_equal(hd_policy_parse("policy", "role ann* admin\n", &p), HD_INVALID);
    assert_int_equal(hd_policy_parse("policy", "role * admin\n", &p), HD_INVALID);
}

static void a_mistake_has_its_line_and_what_to_write(void **state)
{
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"\n\nrole ann boss\n", "p:3: \"boss\" is no role: write none, viewer, user"},
        {"role-of-uids admin\n", "would be for everyone: give that role by name"},
        {"role ann user\nrole ann admin\n", "p:2: a second rule for ann; keep one of them"},
        {"role node admin\n", "p:1: \"node\" is no name"},
        {"role uid:0x10 admin\n", "p:1: \"uid:0x10\" is no name"},
        {"see role:node all\n", "p:1: role:node: the roles are viewer, user"},
        {"see ann everything\n", "write see ann own, jobs or all"},
        {"limit ann cpus 3\n", "\"cpus\" is no limit"},
        {"limit ann watches -1\n", "p:1: "},
        {"keep history 0\n", "p:1: days: "},
        {"user ann root\n", "p:1: jobs never run as root"},
        {"user ann uid:0\n", "p:1: jobs never run as root"},
        {"user-of-uids root\n", "p:1: jobs never run as root"},
        {"user ann same\n", "same is for user-of-uids and user-of-others"},
        {"user ann -x\n", "\"-x\" is no name of a system user"},
        {"user ann ann\nuser ann bob\n", "p:2: a second rule for ann"},
        {"user-of-others bob\nuser-of-others ann\n", "a second user-of-others"},
        {"grant ann all\n", "p:1: this is no rule; write role NAME ROLE"},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct hd_policy *p = NULL;

        assert_int_equal(hd_policy_parse("p", wrong[i].text, &p), HD_INVALID);
        if (!strstr(hd_err_message(), wrong[i].words))
            fail_msg("%s: %s", wrong[i].text, hd_err_message());
    }
}

static void runs_as(const struct hd_policy *p, const char *owner, const char *expected)
{
    char user[HD_USER_BYTES_MAX + 1];
    const enum hd_status st = hd_policy_user(p, owner, user);

    if (!expected) {
        assert_int_equal(st, HD_DENIED);
        assert_non_null(strstr(hd_err_message(), owner)); /* says whose, and what to write */
        assert_non_null(strstr(hd_err_message(), "an admin adds the line \"user "));
    } else {
        assert_int_equal(st, HD_OK);
        assert_string_equal(user, expected);
    }
}

static void jobs_run_as_the_user_of_their_owner_and_never_as_root(void **state)
{
    struct hd_policy *p = NULL;

    assert_int_equal(hd_policy_parse("policy", "role ann user\n", &p), HD_OK);
    runs_as(p, "ann", ""); /* no rule for users: heddled's own */
    runs_as(p, "uid:0", "");
    hd_policy_free(p);
    assert_int_equal(hd_policy_parse("policy",
                                     "user ann ann2\nuser cert:bob own\nuser uid:1000 carl\n"
                                     "user-of-uids same\n",
                                     &p),
                     HD_OK);
    runs_as(p, "ann", "ann2");
    runs_as(p, "cert:bob", "");
    runs_as(p, "uid:1000", "carl");
    runs_as(p, "uid:1001", "uid:1001");
    runs_as(p, "uid:0", NULL); /* the same would be root */
    runs_as(p, "an", NULL);
    runs_as(p, "token", NULL);
    hd_policy_free(p);
    assert_int_equal(hd_policy_parse("policy", "user-of-others same\n", &p), HD_OK);
    runs_as(p, "ann", "ann");
    runs_as(p, "cert:bob", "bob");
    runs_as(p, "uid:1001", "uid:1001");
    runs_as(p, "root", NULL);
    runs_as(p, "cert:root", NULL);
    runs_as(p, "token", NULL); /* of which several people may know the token */
    hd_policy_free(p);
}

/* ---- credentials ------------------------------------------------------------------------------*/

static struct hd_credential_record token_of(const char *secret, const char *name, int64_t expires)
{
    struct hd_credential_record made = {
        .kind = HD_CREDENTIAL_KIND_TOKEN, .name = name, .role = "user", .expires_ms = expires};

    hd_pki_hash(secret, strlen(secret), made.hash);
    return made;
}

static void credentials_are_found_until_they_expire_or_end(void **state)
{
    struct hd_credentials *all = hd_credentials_new();
    struct hd_credential_record made;
    struct hd_identity who;
    char secret[32];

    for (int i = 0; i < 1000; i++) {
        (void)snprintf(secret, sizeof secret, "secret-number-%d", i);
        made = token_of(secret, "ann", 1000 + i);
        assert_int_equal(hd_credentials_add(all, &made), HD_OK);
        assert_int_equal(made.id, i + 1);
    }
    assert_int_equal(hd_identity_of_token(all, "secret-number-7", 1006, &who), HD_OK);
    assert_string_equal(who.name, "ann");
    assert_int_equal(who.role, HD_ROLE_USER);
    assert_int_equal(who.credential, 8);
    assert_int_equal(hd_identity_of_token(all, "secret-number-7", 1007, &who), HD_DENIED);
    assert_int_equal(hd_identity_of_token(all, "secret-number-", 0, &who), HD_DENIED);
    for (uint64_t id = 1; id <= 1000; id += 2) /* the numbers 0, 2, 4 .. */
        hd_credentials_end(all, id);
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(secret, sizeof secret, "secret-number-%d", i);
        assert_int_equal(hd_identity_of_token(all, secret, 0, &who), i % 2 ? HD_OK : HD_DENIED);
    }
    hd_credentials_restored(all, 5000); /* ids are never used twice */
    made = token_of("another-secret", "bob", 1000);
    assert_int_equal(hd_credentials_add(all, &made), HD_OK);
    assert_int_equal(made.id, 5001);
    hd_credentials_free(all);
}

/* Names of certificates stay of their kind for a year after the certificates expire, ended or not;
 * of tokens and invitations nothing stays. */
static void a_name_stays_of_a_node_or_of_a_person(void **state)
{
    const int64_t day_ms = INT64_C(86400000), year_ms = 365 * day_ms;
    const enum hd_credential_kind node = HD_CREDENTIAL_KIND_NODE;
    const enum hd_credential_kind person = HD_CREDENTIAL_KIND_PERSON;
    struct hd_credentials *all = hd_credentials_new();
    struct hd_credential_record made = token_of("a", "n1", day_ms);

    made.kind = node;
    assert_int_equal(hd_credentials_add(all, &made), HD_OK);
    made = token_of("b", "ann", day_ms);
    made.kind = person;
    assert_int_equal(hd_credentials_add(all, &made), HD_OK);
    for (int ended = 0; ended < 2; ended++) {
        assert_true(hd_credentials_knows(all, person, "ann"));
        assert_false(hd_credentials_knows(all, node, "ann"));
        assert_true(hd_credentials_knows(all, node, "n1") == !ended);
        assert_false(hd_credentials_knows(all, person, "n1"));
        hd_credentials_keep_ended(all, &made);
        hd_credentials_end(all, made.id);
        hd_credentials_end(all, 1);
    }
    /* of other kinds nothing is kept */
    made = token_of("c", "bob", day_ms);
    hd_credentials_keep_ended(all, &made);
    assert_false(hd_credentials_knows(all, HD_CREDENTIAL_KIND_TOKEN, "bob"));
    /* a person's revocation is none of a node of that name */
    assert_false(hd_credentials_was_ended(all, token_of("x", "", 0).hash, "ann", 0));
    for (int when = 0; when < 2; when++) { /* a year after it expired it is dropped for others */
        hd_credentials_settle(all, when ? day_ms + year_ms : day_ms + year_ms - 1);
        made = token_of("d", "eve", INT64_MAX);
        made.kind = person;
        for (int i = 0; i < 100; i++)
            hd_credentials_keep_ended(all, &made);
        assert_true(hd_credentials_knows(all, person, "ann") == !when);
    }
    hd_credentials_free(all);
}

/* ---- limits -----------------------------------------------------------------------------------*/

/* 4 a second: 4 at once, the fifth not; 250 ms later one more. */
/* A clock that is ahead for a moment, and many new tokens: those that seem to have expired are
 * still known when the clock is right again. */
static void a_clock_that_is_ahead_forgets_no_token(void **state)
{
    const int64_t day_ms = INT64_C(86400000), now_ms = 1000 * day_ms;
    struct hd_credentials *all = hd_credentials_new();
    struct hd_credential_record made = {.kind = HD_CREDENTIAL_KIND_TOKEN,
                                        .name = "ann",
                                        .role = "user",
                                        .made_by = "root",
                                        .ended_by = "",
                                        .made_ms = now_ms,
                                        .expires_ms = now_ms + 7 * day_ms};

    hd_credentials_settle(all, now_ms);
    assert_int_equal(hd_credentials_add(all, &made), HD_OK); /* its hash is zeros */
    for (int i = 1; i <= 100; i++) {
        memset(made.hash, i, sizeof made.hash);
        made.made_ms = now_ms + 25 * day_ms; /* the clock is ahead; the settled one is not */
        made.expires_ms = made.made_ms + day_ms;
        assert_int_equal(hd_credentials_add(all, &made), HD_OK);
    }
    memset(made.hash, 0, sizeof made.hash);
    assert_non_null(hd_credentials_find(all, made.hash, now_ms + day_ms));
    hd_credentials_settle(all, now_ms + 100 * day_ms); /* it was not a mistake */
    made.made_ms = now_ms + 100 * day_ms;
    for (int i = 101; i <= 200; i++) {
        memset(made.hash, i, sizeof made.hash);
        made.expires_ms = made.made_ms + day_ms;
        assert_int_equal(hd_credentials_add(all, &made), HD_OK);
    }
    memset(made.hash, 0, sizeof made.hash);
    assert_null(hd_credentials_find(all, made.hash, now_ms + day_ms));
    hd_credentials_free(all);
}

/* The hash of no registry says who it is; the signature does, and only of a client's. */
static void a_certificate_is_known_by_its_authority(void **state)
{
    const int64_t day_ms = INT64_C(86400000), now_ms = 20000 * day_ms;
    struct hd_text certs[2] = {0}, keys[2] = {0}, request = {0}, key = {0}, cert = {0},
                   server = {0};
    struct hd_pki_authority *mine = NULL, *other = NULL;
    struct hd_pki_terms terms = {
        .name = "n1", .use = HD_PKI_CLIENT, .from_ms = now_ms, .to_ms = now_ms + 30 * day_ms};
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 16];

    for (int i = 0; i < 2; i++)
        assert_int_equal(hd_pki_make_authority("heddle-authority", now_ms, &certs[i], &keys[i]),
                         HD_OK);
    assert_int_equal(hd_pki_authority_open(certs[0].data, keys[0].data, &mine), HD_OK);
    assert_int_equal(hd_pki_authority_open(certs[1].data, keys[1].data, &other), HD_OK);
    assert_int_equal(hd_pki_make_request("n1", &request, &key), HD_OK);
    assert_int_equal(hd_pki_sign(mine, request.data, &terms, &cert), HD_OK);
    assert_int_equal(hd_pki_check_client(mine, cert.data), HD_OK);
    assert_int_equal(hd_pki_check_client(other, cert.data), HD_DENIED);
    assert_int_equal(hd_pki_check_client(mine, certs[0].data),
                     HD_DENIED); /* the authority itself */
    terms.use = HD_PKI_SERVER;
    assert_int_equal(hd_pki_sign(mine, request.data, &terms, &server), HD_OK);
    assert_int_equal(hd_pki_check_client(mine, server.data), HD_DENIED);
    assert_int_equal(hd_pki_check_client(mine, "no certificate"), HD_INVALID);

    temporary_dir(dir, "heddle-dates"); /* what --check-config and a reload look at */
    (void)snprintf(path, sizeof path, "%s/cert.pem", dir);
    assert_int_equal(hd_file_write_atomic(path, cert.data, cert.len_bytes, 0600), HD_OK);
    assert_int_equal(hd_pki_check_dates(path, now_ms), HD_OK);
    assert_int_equal(hd_pki_check_dates(path, now_ms + 31 * day_ms), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "has expired"));
    assert_int_equal(hd_pki_check_dates(path, now_ms - day_ms), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "not valid before"));
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    for (int i = 0; i < 2; i++) {
        hd_text_free(&certs[i]);
        hd_text_free(&keys[i]);
    }
    hd_text_free(&request);
    hd_text_free(&key);
    hd_text_free(&cert);
    hd_text_free(&server);
    hd_pki_authority_free(mine);
    hd_pki_authority_free(other);
}

static void a_rate_lets_so_many_through(void **state)
{
    struct hd_usages *usages = hd_usages_new();

    for (int i = 0; i < 4; i++)
        assert_int_equal(hd_usages_take(usages, "ann", HD_LIMIT_QUERIES, 4, 1000), HD_OK);
    assert_int_equal(hd_usages_take(usages, "ann", HD_LIMIT_QUERIES, 4, 1000), HD_LIMIT);
    assert_string_equal(hd_err_message(), "queries_per_s: ann uses 4 of 4 queries in a second (see "
                                          "heddle limits)");
    assert_int_equal(hd_usages_take(usages, "bob", HD_LIMIT_QUERIES, 4, 1000), HD_OK);
    assert_int_equal(hd_usages_take(usages, "ann", HD_LIMIT_SUBMISSIONS, 4, 1000), HD_OK);
    assert_int_equal(hd_usages_rate(usages, "ann", HD_LIMIT_QUERIES, 4, 1000), 4);
    assert_int_equal(hd_usages_take(usages, "ann", HD_LIMIT_QUERIES, 4, 1250), HD_OK);
    assert_int_equal(hd_usages_take(usages, "ann", HD_LIMIT_QUERIES, 4, 1250), HD_LIMIT);
    hd_usages_free(usages);
}

/* 3,000 jobs of three owners go from queued to running to their end, in an order that makes slots
 * of the table free in the midst of others. */
static void live_jobs_are_counted_by_owner(void **state)
{
    static const char *const owners[] = {"ann", "bob", "carl"};
    struct hd_usages *usages = hd_usages_new();
    struct hd_job_record job = {.state = HD_JOB_STATE_QUEUED};

    for (uint64_t i = 1; i <= 3000; i++) {
        job.job = i;
        job.owner = owners[i % 3];
        hd_usages_see_job(usages, &job);
    }
    assert_int_equal(hd_usages_jobs(usages, "ann", true), 1000);
    job.state = HD_JOB_STATE_RUNNING;
    for (uint64_t i = 3; i <= 3000; i += 3) { /* ann's */
        job.job = i;
        job.owner = "ann";
        hd_usages_see_job(usages, &job);
        hd_usages_see_job(usages, &job); /* the same again changes nothing */
    }
    assert_int_equal(hd_usages_jobs(usages, "ann", true), 0);
    assert_int_equal(hd_usages_jobs(usages, "ann", false), 1000);
    job.state = HD_JOB_STATE_FAILED;
    for (uint64_t i = 3000; i >= 1; i -= 2) { /* half of everybody's */
        job.job = i;
        job.owner = owners[i % 3];
        hd_usages_see_job(usages, &job);
        hd_usages_see_job(usages, &job);
        if (i == 2)
            break;
    }
    assert_int_equal(hd_usages_jobs(usages, "ann", false), 500);
    assert_int_equal(hd_usages_jobs(usages, "bob", true), 500);
    assert_int_equal(hd_usages_jobs(usages, "carl", false), 500);
    assert_int_equal(hd_usages_jobs(usages, "dora", false), 0);
    hd_usages_free(usages);
}

/* Jobs begin and end in random order while others live, so that a slot becomes free in the midst of
 * every run of full ones; the counts are held against plain arrays after each change of a block. At
 * the end all end, ascending, descending or at random, and none counts. */
static void jobs_that_end_in_any_order_do_not_count(void **state)
{
    enum { JOBS = 1200, OWNERS = 3, CHANGES = 6000 };
    static const char *const owners[OWNERS] = {"ann", "bob", "carl"};

    for (uint64_t order = 0; order < 6; order++) {
        struct hd_usages *usages = hd_usages_new();
        enum hd_job_state states[JOBS + 1];
        int64_t live[OWNERS] = {0}, queued[OWNERS] = {0};

        for (int i = 0; i <= JOBS; i++)
            states[i] = HD_JOB_STATE_FAILED;
        for (uint64_t n = 0; n < CHANGES + JOBS; n++) {
            static const enum hd_job_state next[] = {HD_JOB_STATE_QUEUED, HD_JOB_STATE_RUNNING,
                                                     HD_JOB_STATE_FAILED};
            const uint64_t bits = hd_random_key(order, n), at = n - CHANGES;
            uint64_t job = 1 + bits % JOBS;
            enum hd_job_state to = next[(bits >> 32) % 3];
            struct hd_job_record record;

            if (n >= CHANGES) { /* the end of all; 7 and 1,200 have no common divisor */
                job = 1 + (order % 3 == 0 ? at : order % 3 == 1 ? JOBS - 1 - at : at * 7 % JOBS);
                to = HD_JOB_STATE_SUCCEEDED;
            }
            live[job % OWNERS] +=
                (to <= HD_JOB_STATE_STOPPING) - (states[job] <= HD_JOB_STATE_STOPPING);
            queued[job % OWNERS] +=
                (to == HD_JOB_STATE_QUEUED) - (states[job] == HD_JOB_STATE_QUEUED);
            states[job] = to;
            record = (struct hd_job_record){.job = job, .owner = owners[job % OWNERS], .state = to};
            hd_usages_see_job(usages, &record);
            for (int o = 0; n % 64 == 0 && o < OWNERS; o++) {
                assert_int_equal(hd_usages_jobs(usages, owners[o], false), live[o]);
                assert_int_equal(hd_usages_jobs(usages, owners[o], true), queued[o]);
            }
        }
        for (int o = 0; o < OWNERS; o++)
            assert_int_equal(hd_usages_jobs(usages, owners[o], false), 0);
        hd_usages_free(usages);
    }
}

/* ---- pki --------------------------------------------------------------------------------------*/

/* SHA-256 of "abc" (FIPS 180-2, B.1). */
static void a_hash_is_sha_256(void **state)
{
    unsigned char hash[HD_PKI_HASH_BYTES], again[HD_PKI_HASH_BYTES];
    char text[HD_PKI_HASH_TEXT_MAX];

    hd_pki_hash("abc", 3, hash);
    hd_pki_format_hash(hash, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_true(hd_pki_parse_hash(text, again));
    assert_memory_equal(hash, again, sizeof hash);
    text[0] = 'B';
    assert_false(hd_pki_parse_hash(text, again));
}

/* The texts "ab", "c" and "a", "bc" have the same letters. */
static void a_chain_knows_where_texts_end(void **state)
{
    static const char *const first[] = {"ab", "c"}, *const second[] = {"a", "bc"};
    const unsigned char zeros[HD_PKI_HASH_BYTES] = {0};
    unsigned char a[HD_PKI_HASH_BYTES], b[HD_PKI_HASH_BYTES];

    hd_pki_chain(zeros, 1, 2, first, 2, a);
    hd_pki_chain(zeros, 1, 2, second, 2, b);
    assert_memory_not_equal(a, b, sizeof a);
    hd_pki_chain(zeros, 1, 2, first, 2, b);
    assert_memory_equal(a, b, sizeof a);
}

static void a_line_of_an_invitation_is_read_as_it_was_written(void **state)
{
    struct hd_pki_invitation made = {.node = "n1.rack-2", .address = "[::1]:7433"}, read;
    struct hd_text line = {0};

    memset(made.ca_hash, 0xA5, sizeof made.ca_hash);
    assert_int_equal(hd_pki_make_secret(made.secret), HD_OK);
    hd_pki_invitation_write(&made, &line);
    assert_int_equal(hd_pki_invitation_read(line.data, &read), HD_OK);
    assert_memory_equal(&made, &read, sizeof made);
    line.data[line.len_bytes - 1] = '\0'; /* a digit was not copied */
    assert_int_equal(hd_pki_invitation_read(line.data, &read), HD_INVALID);
    assert_null(strstr(hd_err_message(), made.secret)); /* a message may be shown to others */
    hd_text_free(&line);
}

/* Goal: a clock that was once 400 days ahead does not lock all nodes out when it is right again.
 * The certificate that the controller made then is valid from that day on. */
static void a_certificate_of_the_future_is_made_anew(void **state)
{
    static const char *const hosts[] = {"localhost"};
    const int64_t now_ms = INT64_C(1780000000000), day_ms = 86400000;
    struct hd_authority *authority = NULL;
    char dir[TEMPORARY_BYTES];
    bool renewed;

    temporary_dir(dir, "heddle-authority");
    assert_int_equal(hd_authority_init(dir, hosts, 1, now_ms), HD_OK);
    assert_int_equal(hd_authority_open(dir, now_ms + 400 * day_ms, &authority), HD_OK);
    assert_true(authority->from_ms == now_ms + 400 * day_ms); /* the first one has run out */
    assert_int_equal(hd_authority_renew(authority, now_ms + 400 * day_ms, &renewed), HD_OK);
    assert_false(renewed);
    hd_authority_free(authority);
    assert_int_equal(hd_authority_open(dir, now_ms, &authority), HD_OK);
    assert_true(authority->from_ms == now_ms);
    assert_true(authority->renew_ms == now_ms + 20 * day_ms); /* two thirds of 30 days */
    hd_authority_free(authority);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

RUN_CASES()
