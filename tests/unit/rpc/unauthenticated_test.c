/* strangers: who makes room for whom, and how often an address may come in. */
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "rpc/unauthenticated.h"
#include "tests/program/test.h"

enum { MANY = 4000 };

static const struct hd_unauth_limits small = {.connections = 8,
                                              .connections_of_address = 3,
                                              .known = 8,
                                              .known_of_address = 3,
                                              .unauthenticated = 6,
                                              .unauthenticated_of_address = 3,
                                              .inside = 4,
                                              .inside_of_address = 2};

static struct sockaddr_storage from(int host)
{
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(0x0a000000u + (uint32_t)host)};
    struct sockaddr_storage at = {0};

    memcpy(&at, &in, sizeof in);
    return at;
}

static struct sockaddr_storage from6(const char *text)
{
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    struct sockaddr_storage at = {0};

    assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
    memcpy(&at, &in6, sizeof in6);
    return at;
}

/* Arrives, and closes the victim as an owner does. The victim, or NULL; a refusal fails. */
static struct hd_unauth_connection *arrive(struct hd_unauth_table *t,
                                           struct hd_unauth_connection *s, int host, int64_t now_ms)
{
    const struct sockaddr_storage at = from(host);
    struct hd_unauth_connection *victim;

    assert_true(hd_unauth_arrive(t, s, &at, now_ms, &victim));
    if (victim)
        hd_unauth_leave(t, victim, now_ms);
    return victim;
}

static bool is_refused(struct hd_unauth_table *t, int host, int64_t now_ms)
{
    const struct sockaddr_storage at = from(host);
    struct hd_unauth_connection s, *victim;

    if (!hd_unauth_arrive(t, &s, &at, now_ms, &victim))
        return victim == NULL;
    if (victim)
        hd_unauth_leave(t, victim, now_ms);
    hd_unauth_leave(t, &s, now_ms);
    return false;
}

static void leave_all(struct hd_unauth_table *t, struct hd_unauth_connection *s, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hd_unauth_leave(t, &s[i], 0);
    hd_unauth_free(t);
}

static void an_address_makes_room_for_itself(void **state)
{
    struct hd_unauth_table *t = hd_unauth_new(&small);
    struct hd_unauth_connection s[5];

    assert_null(arrive(t, &s[0], 9, 0));
    for (int i = 1; i < 4; i++)
        assert_null(arrive(t, &s[i], 1, i));
    assert_ptr_equal(arrive(t, &s[4], 1, 4), &s[1]); /* its own oldest, not the oldest of all */
    hd_unauth_leave(t, &s[0], 4);
    leave_all(t, s + 2, 3);
}

/* strangers = 6: three of address 1, two of 2, one of 3. */
static void the_address_with_the_most_makes_room(void **state)
{
    static const int hosts[6] = {3, 2, 1, 1, 2, 1};
    struct hd_unauth_table *t = hd_unauth_new(&small);
    struct hd_unauth_connection s[7];

    for (int i = 0; i < 6; i++)
        assert_null(arrive(t, &s[i], hosts[i], i));
    assert_ptr_equal(arrive(t, &s[6], 4, 6), &s[2]);
    for (int i = 0; i < 7; i++)
        if (i != 2)
            hd_unauth_leave(t, &s[i], 7);
    hd_unauth_free(t);
}

/* Goal: a crowd of clients that come at once does not push itself out. */
static void where_all_have_one_the_oldest_has_a_grace(void **state)
{
    struct hd_unauth_table *t = hd_unauth_new(&small);
    struct hd_unauth_connection s[7];

    for (int i = 0; i < 6; i++)
        assert_null(arrive(t, &s[i], i, 0));
    assert_true(is_refused(t, 7, HD_UNAUTH_GRACE_MS - 1));
    assert_ptr_equal(arrive(t, &s[6], 7, HD_UNAUTH_GRACE_MS), &s[0]);
    leave_all(t, s + 1, 6);
}

static void a_known_connection_never_makes_room(void **state)
{
    struct hd_unauth_table *t = hd_unauth_new(&small);
    struct hd_unauth_connection s[8];

    for (int i = 0; i < 3; i++) {
        assert_null(arrive(t, &s[i], 1, 0));
        hd_unauth_prove(t, &s[i]);
        hd_unauth_prove(t, &s[i]); /* a second call with a token changes nothing */
    }
    assert_true(is_refused(t, 1, 1000000)); /* three of three, all known */
    for (int i = 3; i < 8; i++) {
        assert_null(arrive(t, &s[i], i, 0));
        hd_unauth_prove(t, &s[i]);
    }
    assert_true(is_refused(t, 9, 1000000)); /* eight of eight */
    hd_unauth_leave(t, &s[7], 0);
    assert_false(is_refused(t, 9, 1000000));
    leave_all(t, s, 7);
}

/* Strangers beside the known ones: two of an address may be known, and three more come. */
static void the_known_are_bounded_by_themselves(void **state)
{
    static const struct hd_unauth_limits apart = {.connections = 20,
                                                  .connections_of_address = 10,
                                                  .known = 3,
                                                  .known_of_address = 2,
                                                  .unauthenticated = 6,
                                                  .unauthenticated_of_address = 3,
                                                  .inside = 6,
                                                  .inside_of_address = 3};
    struct hd_unauth_table *t = hd_unauth_new(&apart);
    struct hd_unauth_connection s[6];

    for (int i = 0; i < 3; i++)
        assert_null(arrive(t, &s[i], 1, 0));
    for (int i = 0; i < 2; i++) {
        assert_true(hd_unauth_may_prove(t, &s[i]));
        hd_unauth_prove(t, &s[i]);
    }
    assert_false(hd_unauth_may_prove(t, &s[2]));
    assert_true(hd_unauth_may_prove(t, &s[1])); /* it is */
    assert_true(is_refused(t, 1, 0));
    assert_null(arrive(t, &s[3], 2, 0));
    hd_unauth_prove(t, &s[3]);
    assert_true(is_refused(t, 2, 0)); /* three of three */
    hd_unauth_leave(t, &s[0], 0);
    assert_null(arrive(t, &s[4], 1, 0));
    assert_true(hd_unauth_may_prove(t, &s[4]));
    leave_all(t, s + 1, 4);
}

static void a_known_one_leaves_its_place_among_strangers(void **state)
{
    struct hd_unauth_table *t = hd_unauth_new(&small);
    struct hd_unauth_connection s[8], *victim;

    for (int i = 0; i < 8; i++) { /* 8 connections, of which 2 are known: 6 strangers */
        assert_null(arrive(t, &s[i], i / 2, 0));
        if (i < 2) {
            assert_true(hd_unauth_enter(t, &s[i], 0, &victim));
            hd_unauth_prove(t, &s[i]);
        }
    }
    for (int i = 2; i < 6; i++) /* four inside: those of the known are free again */
        assert_true(hd_unauth_enter(t, &s[i], 0, &victim) && !victim);
    leave_all(t, s, 8);
}

static void inside_makes_room_like_outside(void **state)
{
    struct hd_unauth_table *t = hd_unauth_new(&small);
    struct hd_unauth_connection s[6], *victim;

    for (int i = 0; i < 3; i++)
        assert_null(arrive(t, &s[i], 1, 0));
    for (int i = 3; i < 6; i++)
        assert_null(arrive(t, &s[i], i, 0));
    assert_true(hd_unauth_enter(t, &s[1], 0, &victim) && !victim);
    assert_true(hd_unauth_enter(t, &s[2], 0, &victim) && !victim);
    assert_true(hd_unauth_enter(t, &s[0], 0, &victim)); /* the third of two of its address */
    assert_ptr_equal(victim, &s[1]);
    hd_unauth_leave(t, &s[1], 0);
    assert_true(hd_unauth_enter(t, &s[3], 0, &victim) && !victim);
    assert_true(hd_unauth_enter(t, &s[4], 0, &victim) && !victim);
    assert_true(hd_unauth_enter(t, &s[5], 0, &victim)); /* the fifth of four: 1 has two */
    assert_ptr_equal(victim, &s[0]);
    for (int i = 0; i < 6; i++)
        if (i != 1)
            hd_unauth_leave(t, &s[i], 0);
    hd_unauth_free(t);
}

/* In a crowd a client that is inside may be about to show its token: connections that only arrive
 * do not push it out. Inside, the one that entered first goes, not the one that waited for longest.
 */
static void one_that_is_inside_of_a_crowd_is_spared(void **state)
{
    static const struct hd_unauth_limits limits = {.connections = 8,
                                                   .connections_of_address = 5,
                                                   .known = 8,
                                                   .known_of_address = 5,
                                                   .unauthenticated = 8,
                                                   .unauthenticated_of_address = 5,
                                                   .inside = 4,
                                                   .inside_of_address = 2};
    struct hd_unauth_table *t = hd_unauth_new(&limits);
    struct hd_unauth_connection s[6], *victim;

    for (int i = 0; i < 5; i++)
        assert_null(arrive(t, &s[i], 1, i));
    assert_true(hd_unauth_enter(t, &s[1], 10, &victim) && !victim);
    assert_true(hd_unauth_enter(t, &s[0], 11, &victim) && !victim);
    assert_ptr_equal(arrive(t, &s[5], 1, 20), &s[2]);    /* three of five are outside */
    assert_true(hd_unauth_enter(t, &s[3], 21, &victim)); /* the third of two */
    assert_ptr_equal(victim, &s[1]);
    hd_unauth_leave(t, victim, 21);
    hd_unauth_leave(t, &s[5], 22);
    hd_unauth_leave(t, &s[4], 32);
    hd_unauth_leave(t, &s[3], 32);
    hd_unauth_leave(t, &s[0], 32);
    hd_unauth_free(t);
}

/* Entries of one address within span_ms, when it always has another stranger. */
static int count_entries(struct hd_unauth_table *t, int host, int64_t begin_ms, int64_t span_ms)
{
    const struct sockaddr_storage at = from(host);
    struct hd_unauth_connection s, *victim;
    int count = 0;

    for (int64_t now_ms = begin_ms; now_ms < begin_ms + span_ms; now_ms++) {
        for (;;) {
            bool entered;

            assert_true(hd_unauth_arrive(t, &s, &at, now_ms, &victim) && !victim);
            entered = hd_unauth_enter(t, &s, now_ms, &victim);
            assert_null(victim);
            hd_unauth_leave(t, &s, now_ms);
            if (!entered)
                break;
            count++;
        }
    }
    return count;
}

static void break_once(struct hd_unauth_table *t, int host, int64_t now_ms)
{
    const struct sockaddr_storage at = from(host);
    struct hd_unauth_connection s, *victim;

    assert_true(hd_unauth_arrive(t, &s, &at, now_ms, &victim));
    hd_unauth_break(&s, now_ms);
    hd_unauth_leave(t, &s, now_ms);
}

/* Each break doubles the interval, to 40 ms; another address is not touched; time takes it back. */
static void breaks_make_an_address_wait(void **state)
{
    static const int64_t intervals_ms[] = {5, 10, 20, 40, 40};
    struct hd_unauth_table *t = hd_unauth_new(&small);
    const struct sockaddr_storage one = from(1), two = from(2);
    int64_t now_ms = 0;

    for (size_t i = 0; i < 5; i++) {
        const int64_t interval_ms = intervals_ms[i];
        int count;

        assert_int_equal(hd_unauth_interval_ms(t, &one, now_ms), interval_ms);
        count = count_entries(t, 1, now_ms, 1000);
        /* those of a second, and those of 200 ms in advance */
        assert_in_range(count, 1000 / interval_ms, 1200 / interval_ms + 2);
        now_ms += 2000;
        break_once(t, 1, now_ms);
        assert_int_equal(hd_unauth_interval_ms(t, &two, now_ms), 5);
    }
    for (int level = 3; level > 0; level--) {
        assert_int_equal(hd_unauth_interval_ms(t, &one, now_ms), 5 << level);
        now_ms += HD_UNAUTH_LEVEL_MS;
    }
    assert_int_equal(hd_unauth_interval_ms(t, &one, now_ms), 5); /* never for good */
    hd_unauth_free(t);
}

static void a_network_of_ipv6_is_one_address(void **state)
{
    const struct sockaddr_storage a = from6("2001:db8:1:2::1"), b = from6("2001:db8:1:2:ff::2"),
                                  c = from6("2001:db8:1:3::1"), mapped = from6("::ffff:10.0.0.1"),
                                  other = from6("::ffff:10.0.0.2"), four = from(1);
    struct hd_unauth_table *t = hd_unauth_new(&small);
    struct hd_unauth_connection s[2], *victim;
    size_t count;

    assert_true(hd_unauth_arrive(t, &s[0], &a, 0, &victim));
    (void)hd_unauth_count(t, &b, &count);
    assert_int_equal(count, 1);
    (void)hd_unauth_count(t, &c, &count);
    assert_int_equal(count, 0);
    assert_true(hd_unauth_arrive(t, &s[1], &mapped, 0, &victim));
    (void)hd_unauth_count(t, &four, &count);
    assert_int_equal(count, 1);
    (void)hd_unauth_count(t, &other, &count);
    assert_int_equal(count, 0);
    leave_all(t, s, 2);
}

static void the_memory_of_addresses_is_bounded(void **state)
{
    struct hd_unauth_table *t = hd_unauth_new(&small);
    const struct sockaddr_storage first = from(1), last = from(MANY);

    for (int host = 1; host <= MANY; host++)
        break_once(t, host, host);
    assert_int_equal(hd_unauth_remembered(t), HD_UNAUTH_REMEMBERED);
    assert_int_equal(hd_unauth_interval_ms(t, &last, MANY), 10);
    assert_int_equal(hd_unauth_interval_ms(t, &first, MANY), 5); /* forgotten: the oldest */
    hd_unauth_free(t);
    t = hd_unauth_new(&small);
    for (int host = 1; host <= MANY; host++) /* who broke nothing is not remembered */
        assert_false(is_refused(t, host, host));
    assert_int_equal(hd_unauth_remembered(t), 0);
    hd_unauth_free(t);
}

/* Goal: the counts hold whatever happens. Method: 200,000 random steps; after each, counts by hand.
 */
static void counts_hold_under_random_steps(void **state)
{
    enum { PLACES = 12, STEPS = 200000 };
    struct hd_unauth_table *t = hd_unauth_new(&small);
    struct hd_unauth_connection s[PLACES], *victim;
    int host[PLACES] = {0};
    bool used[PLACES] = {false};
    int64_t now_ms = 0;

    srand(7);
    for (int step = 0; step < STEPS; step++) {
        const int i = rand() % PLACES;
        int all = 0, unauthenticated = 0, inside = 0, of_host[5] = {0};

        now_ms += rand() % 20;
        victim = NULL;
        if (!used[i]) {
            const struct sockaddr_storage at = from(host[i] = rand() % 5);

            used[i] = hd_unauth_arrive(t, &s[i], &at, now_ms, &victim);
        } else if (rand() % 4 == 0) {
            hd_unauth_leave(t, &s[i], now_ms);
            used[i] = false;
        } else if (rand() % 4 == 0) {
            hd_unauth_prove(t, &s[i]);
        } else if (s[i].stage == HD_UNAUTH_OUTSIDE) {
            (void)hd_unauth_enter(t, &s[i], now_ms, &victim);
        } else {
            hd_unauth_break(&s[i], now_ms);
        }
        if (victim) {
            assert_true(used[victim - s] && victim->stage != HD_UNAUTH_KNOWN && victim != &s[i]);
            hd_unauth_leave(t, victim, now_ms);
            used[victim - s] = false;
        }
        for (int k = 0; k < PLACES; k++) {
            all += used[k];
            unauthenticated += used[k] && s[k].stage != HD_UNAUTH_KNOWN;
            inside += used[k] && s[k].stage == HD_UNAUTH_INSIDE;
            of_host[host[k] % 5] += used[k];
        }
        assert_in_range(all, 0, small.connections);
        assert_in_range(unauthenticated, 0, small.unauthenticated);
        assert_in_range(inside, 0, small.inside);
        for (int h = 0; h < 5; h++) {
            const struct sockaddr_storage at = from(h);
            size_t count;

            assert_int_equal(hd_unauth_count(t, &at, &count), all);
            assert_int_equal(count, of_host[h]);
            assert_in_range(count, 0, small.connections_of_address);
        }
    }
    for (int k = 0; k < PLACES; k++)
        if (used[k])
            hd_unauth_leave(t, &s[k], now_ms);
    hd_unauth_free(t);
}

RUN_CASES()
