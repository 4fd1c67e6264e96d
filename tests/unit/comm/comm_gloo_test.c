/* comm: what the engine gloo adds to the cases of all engines: listeners and who may come in, sums
 * of
 * odd and large sizes beside the engine shm's, a killed peer. Everything on the loopback. */
#include <arpa/inet.h>
#include <endian.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pieces.h"
#include "base/random.h"
#include "comm/gloo_internal.h"
#include "comm/gloo_listener.h"
#include "ranks.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

static const int32_t everybody[] = {0, 1, 2, 3};

/* ---- hashes and proofs ---- */

static void assert_hex(const uint8_t *bytes, const char *hex)
{
    char text[2 * HD_GLOO_HASH_BYTES + 1];

    for (int i = 0; i < HD_GLOO_HASH_BYTES; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    assert_string_equal(text, hex);
}

static void hashes_and_proofs_are_those_of_the_standards(void **state)
{
    uint8_t hash[HD_GLOO_HASH_BYTES], key[HD_GLOO_HASH_BYTES] = {0};

    /* FIPS 180-4, its examples of one block and of two */
    hd_gloo_hash("abc", 3, hash);
    assert_hex(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hd_gloo_hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hash);
    assert_hex(hash, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    /* RFC 4231, test case 1: a key of twenty 0x0b, which HMAC pads with zeros as is done here */
    memset(key, 0x0b, 20);
    hd_gloo_proof(key, "Hi There", 8, hash);
    assert_hex(hash, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

/* ---- meeting ---- */

enum { WORLD = 3 };

struct meeting {
    struct hd_gloo_listener *doors[WORLD];
    struct hd_gloo_endpoint endpoints[WORLD];
};

static void open_listeners(struct meeting *m)
{
    for (int r = 0; r < WORLD; r++) {
        char node[16];

        (void)snprintf(node, sizeof node, "node-%d", r);
        assert_int_equal(hd_gloo_listener_open("127.0.0.1", node, &m->doors[r]), HD_OK);
        m->endpoints[r] = *hd_gloo_listener_endpoint(m->doors[r]);
    }
}

static void close_listeners(struct meeting *m)
{
    for (int r = 0; r < WORLD; r++)
        hd_gloo_listener_close(m->doors[r]);
}

struct visitor { /* a rank that only comes in and meets the others once */
    pthread_t thread;
    struct meeting *m;
    struct hd_gloo_endpoint endpoints[WORLD]; /* as it knows them */
    int rank;
    int64_t deadline_ms;
    enum hd_status status;
    char message[HD_ERR_MAX];
};

static void *come_in(void *arg)
{
    struct visitor *self = arg;
    struct hd_comm_group *group;
    struct hd_comm *comm;

    self->status = hd_comm_open_gloo(self->m->doors[self->rank], self->endpoints, self->rank, WORLD,
                                     self->deadline_ms, &comm);
    if (!self->status) {
        self->status = hd_comm_open_group(comm, "world", everybody, WORLD, &group);
        if (!self->status)
            self->status = hd_comm_barrier(group, hd_comm_get_stream(comm, HD_COMM_STREAM_REDUCE));
        if (!self->status)
            self->status = hd_comm_wait_all(comm);
        hd_comm_free(comm);
    }
    (void)snprintf(self->message, sizeof self->message, "%s", self->status ? hd_err_message() : "");
    return NULL;
}

static void start(struct visitor *visitor, struct meeting *m, int rank, int64_t deadline_ms)
{
    *visitor = (struct visitor){.m = m, .rank = rank, .deadline_ms = deadline_ms};
    memcpy(visitor->endpoints, m->endpoints, sizeof visitor->endpoints);
}

static void run_visitors(struct visitor *visitors, int count)
{
    for (int v = 0; v < count; v++)
        assert_int_equal(pthread_create(&visitors[v].thread, NULL, come_in, &visitors[v]), 0);
    for (int v = 0; v < count; v++)
        assert_int_equal(pthread_join(visitors[v].thread, NULL), 0);
}

static void assert_contains(const char *message, const char *text)
{
    if (!strstr(message, text))
        print_error("\"%s\" is not in \"%s\"\n", text, message);
    assert_non_null(strstr(message, text));
}

static int knock(const struct hd_gloo_endpoint *endpoint)
{
    const struct timeval patience = {.tv_sec = 60};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct gloo_address place;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(gloo_endpoint_read(endpoint, 0, &place), HD_OK);
    at.sin_port = htons(place.port);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    return fd;
}

/* ---- strangers ---- */

enum { CROWD = 100, GARBAGE = 20 }; /* more than a listener keeps, less than its backlog */

/* A hello as rank 1's, by someone who does not know the endpoint infos. */
static int pose_as_rank_1(const struct meeting *m)
{
    const struct gloo_hello hello = {.magic = {'h', 'd', '-', 'g', 'l', 'o', 'o', '1'},
                                     .caller = htole32(1),
                                     .host = htole32(0),
                                     .world = htole32(WORLD)};
    const int fd = knock(&m->endpoints[0]);

    assert_int_equal(send(fd, &hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    return fd;
}

/* It is answered (so far anybody is), then its proof is asked for: any bytes but the right ones. */
static void *prove_nothing(void *arg)
{
    const int fd = *(const int *)arg;
    uint8_t proof[HD_GLOO_HASH_BYTES] = {1}, more;
    struct gloo_answer answer;
    ssize_t n = recv(fd, &answer, sizeof answer, MSG_WAITALL);

    /* pushed out by the crowd (nothing is heard), or turned away after the proof: never welcomed */
    if (n == (ssize_t)sizeof answer) {
        (void)send(fd, proof, sizeof proof, MSG_NOSIGNAL);
        n = recv(fd, &more, 1, 0);
    }
    return n > 0 ? arg : NULL;
}

static void strangers_are_turned_away_and_stop_nobody(void **state)
{
    uint8_t noise[200];
    int crowd[CROWD], garbage[GARBAGE], poser;
    struct visitor visitors[WORLD];
    struct meeting m;
    pthread_t thread;
    void *welcomed;

    open_listeners(&m);
    for (int i = 0; i < CROWD; i++)
        crowd[i] = knock(&m.endpoints[0]); /* and say nothing */
    for (int i = 0; i < GARBAGE; i++) {
        for (size_t b = 0; b < sizeof noise; b++)
            noise[b] = (uint8_t)hd_random_u64(7, (uint64_t)i * sizeof noise + b);
        garbage[i] = knock(&m.endpoints[i % WORLD]);
        assert_int_equal(send(garbage[i], noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
    }
    poser = pose_as_rank_1(&m);
    assert_int_equal(pthread_create(&thread, NULL, prove_nothing, &poser), 0);
    for (int r = 0; r < WORLD; r++)
        start(&visitors[r], &m, r, 60000);
    run_visitors(visitors, WORLD);
    close_listeners(&m);
    assert_int_equal(pthread_join(thread, &welcomed), 0);
    assert_null(welcomed);
    for (int r = 0; r < WORLD; r++) {
        if (visitors[r].status)
            print_error("rank %d: %s\n", r, visitors[r].message);
        assert_int_equal(visitors[r].status, HD_OK);
    }
    for (int i = 0; i < CROWD; i++)
        (void)close(crowd[i]);
    for (int i = 0; i < GARBAGE; i++)
        (void)close(garbage[i]);
    (void)close(poser);
}

/* Goal: a rank that does not hold all the endpoint infos is a stranger. Method: rank 2 has one bit
 * of rank
 * 1's nonce wrong; its hello is right in every way, and nothing but its proofs shows it. */
static void a_rank_with_a_wrong_endpoint_is_not_let_in(void **state)
{
    struct visitor visitors[WORLD];
    struct meeting m;

    open_listeners(&m);
    for (int r = 0; r < WORLD; r++)
        start(&visitors[r], &m, r, 4000);
    visitors[2].endpoints[1].bytes[20] ^= 1;
    run_visitors(visitors, WORLD);
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(visitors[r].status, HD_TIMEOUT);
    assert_contains(visitors[0].message, "rank 2 (node node-2, 127.0.0.1 port ");
    assert_contains(visitors[0].message, "it has not connected");
    assert_contains(visitors[2].message, "is not connected to 2 of 3 ranks");
    assert_contains(visitors[2].message, "it does not prove that it holds the cards");
    close_listeners(&m);
}

/* Goal: the host checks the caller's proof too. Method: answer as a caller that forwards what it
 * hears; the same proof sent back must not pass for the caller's own. */
static void *reflect(void *arg)
{
    const int fd = *(const int *)arg;
    struct gloo_answer answer;
    uint8_t more;

    if (recv(fd, &answer, sizeof answer, MSG_WAITALL) != (ssize_t)sizeof answer)
        return arg;
    (void)send(fd, answer.proof, sizeof answer.proof, MSG_NOSIGNAL);
    return recv(fd, &more, 1, 0) > 0 ? arg : NULL;
}

static void a_proof_sent_back_is_not_a_proof(void **state)
{
    struct visitor host;
    struct meeting m;
    pthread_t thread;
    void *failed;
    int poser;

    open_listeners(&m);
    poser = pose_as_rank_1(&m);
    start(&host, &m, 0, 4000);
    assert_int_equal(pthread_create(&thread, NULL, reflect, &poser), 0);
    run_visitors(&host, 1);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    assert_int_equal(host.status, HD_TIMEOUT);
    assert_contains(host.message, "rank 1 (node node-1");
    (void)close(poser);
    close_listeners(&m);
}

static void note_awaited(void *of, int rank)
{
    int *waited_for = of; /* the last rank that was awaited, and what was told last */

    if (rank >= 0)
        waited_for[0] = rank;
    waited_for[1] = rank;
}

/* Rank 2 never comes. */
static void a_listener_tells_whom_it_awaits(void **state)
{
    struct visitor visitors[2];
    int waited_for[2][2] = {{0, 0}, {0, 0}};
    struct meeting m;

    open_listeners(&m);
    for (int r = 0; r < 2; r++) {
        start(&visitors[r], &m, r, 300);
        hd_gloo_listener_report(m.doors[r], note_awaited, waited_for[r]);
    }
    run_visitors(visitors, 2);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(visitors[r].status, HD_TIMEOUT);
        assert_int_equal(waited_for[r][0], 2);
        assert_int_equal(waited_for[r][1], -1);
    }
    close_listeners(&m);
}

static void endpoints_that_cannot_be_are_refused(void **state)
{
    struct hd_gloo_endpoint endpoints[WORLD];
    struct hd_comm *comm;
    struct meeting m;

    open_listeners(&m);
    assert_int_equal(hd_comm_open_gloo(m.doors[1], m.endpoints, 0, WORLD, 1000, &comm), HD_INVALID);
    assert_contains(hd_err_message(),
                    "the endpoint info of rank 0 is not that of its own listener");
    memcpy(endpoints, m.endpoints, sizeof endpoints);
    endpoints[2] = endpoints[1];
    assert_int_equal(hd_comm_open_gloo(m.doors[0], endpoints, 0, WORLD, 1000, &comm), HD_INVALID);
    assert_contains(hd_err_message(), "ranks 1 and 2 have the same endpoint info");
    for (uint64_t n = 0; n < 1000; n++) { /* any bytes, the first of them right in every second */
        for (size_t b = n % 2 ? 8 : 0; b < sizeof endpoints[2]; b++)
            endpoints[2].bytes[b] = (uint8_t)hd_random_u64(n, b);
        assert_int_not_equal(hd_comm_open_gloo(m.doors[0], endpoints, 0, WORLD, 1, &comm), HD_OK);
        memcpy(endpoints, m.endpoints, sizeof endpoints);
    }
    assert_int_equal(hd_comm_open_gloo(m.doors[0], m.endpoints, 3, WORLD, 1000, &comm), HD_INVALID);
    assert_int_equal(
        hd_comm_open_gloo(m.doors[0], m.endpoints, 0, HD_COMM_GLOO_RANKS_MAX + 1, 1000, &comm),
        HD_INVALID);
    close_listeners(&m);
}

static void a_listener_needs_a_numeric_address(void **state)
{
    struct hd_gloo_listener *listener;

    assert_true(hd_gloo_built_in());
    assert_int_equal(hd_gloo_listener_open("node-a.example", "node-a", &listener), HD_INVALID);
    assert_contains(hd_err_message(), "\"node-a.example\" is not a numeric address");
}

/* ---- bytes ---- */

/* A stage of each of four streams holds two chunks per other rank, at most 4 MiB. What
 * else a peer takes is the same for each but for the counts of all_to_all_v: room for 4 bytes per
 * rank of the world, or of 256, in each of its heads, of which there are 10 that come, 48 that go
 * and 40 in its inbox, and one in each of four streams. To a page, and the rounding of counts to 8
 * bytes. */
static void memory_is_heads_and_stages(void **state)
{
    const int64_t stage_2 = 4 * 2 * GLOO_CHUNK_MAX, stage_4 = 3 * stage_2, stage_all = 16 << 20;
    const int64_t page = 4096;
    const int64_t heads = 10 + 48 + 40 + 4, world = HD_COMM_GLOO_RANKS_MAX;
    const int64_t two = (int64_t)hd_gloo_memory_bytes(2) - stage_2;
    const int64_t four = (int64_t)hd_gloo_memory_bytes(4) - stage_4;
    const int64_t all = (int64_t)hd_gloo_memory_bytes((int)world) - stage_all;
    /* of w peers with heads of (a + 4 w) bytes: w (b + 4 heads w) */
    const int64_t peer = (four - two - 4 * heads * (4 * 4 - 2 * 2)) / 2;

    assert_true(peer > 0 && peer < 64 << 10);
    assert_true(llabs(all - two - (world - 2) * peer - 4 * heads * (world * 256 - 4)) <=
                world * page);
    assert_true(all < INT64_C(640) << 20); /* of the host, in a world of 4,096 */
}

/* ---- the same bits as shm and as one rank alone ---- */

struct sums {
    int64_t count;
    enum hd_dtype dtype;
};

static float input(int rank, int64_t i) /* magnitudes that round differently in another order */
{
    const uint64_t dice = hd_random_u64((uint64_t)rank + 1, (uint64_t)i);

    return ((float)(dice & 0xffff) - 32768.0f) * (dice & 1 << 20 ? 1.0f : 9.7656e-4f);
}

static void put(void *to, int64_t i, enum hd_dtype dtype, float value)
{
    if (dtype == HD_F32)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = hd_f32_to_bf16(value);
}

static float get(const void *from, int64_t i, enum hd_dtype dtype)
{
    return dtype == HD_F32 ? ((const float *)from)[i] : hd_bf16_to_f32(((const uint16_t *)from)[i]);
}

/* numbers: 0 an all_reduce apart, 1 one in place, 2 a reduce_scatter (its own part), 3 all parts
 * gathered again */
static void sum_and_gather(struct rank *self)
{
    const struct sums *sums = self->arg;
    const size_t bytes = (size_t)sums->count * hd_dtype_size(sums->dtype);
    const size_t room = (bytes + 63) / 64 * 64;
    char *a = self->base, *b = a + (size_t)self->world * room;
    struct hd_comm_stream *s = hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE);
    struct hd_comm_group *g;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, self->world, &g));
    for (int64_t i = 0; i < sums->count * self->world; i++)
        put(a, i, sums->dtype, input(self->rank, i));
    CHECK_OK(self,
             hd_comm_launch(g, s, HD_COMM_ALL_REDUCE,
                            HD_COLLECTIVE(a, b, sums->count, sums->dtype, .reduce = HD_COMM_SUM)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    self->report->numbers[0] = hash_bytes(1, b, bytes);
    CHECK_OK(self, hd_comm_launch(g, s, HD_COMM_REDUCE_SCATTER,
                                  HD_COLLECTIVE(a, b, sums->count, sums->dtype,
                                                .reduce = HD_COMM_SUM, .keep_fp32 = false)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    self->report->numbers[2] = hash_bytes(1, b, bytes);
    memcpy(a, b, bytes);
    CHECK_OK(self, hd_comm_launch(g, s, HD_COMM_ALL_GATHER,
                                  HD_COLLECTIVE(a, b, sums->count, sums->dtype)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    self->report->numbers[3] = hash_bytes(1, b, bytes * (size_t)self->world);
    for (int64_t i = 0; i < sums->count; i++)
        put(a, i, sums->dtype, input(self->rank, i));
    CHECK_OK(self,
             hd_comm_launch(g, s, HD_COMM_ALL_REDUCE,
                            HD_COLLECTIVE(a, a, sums->count, sums->dtype, .reduce = HD_COMM_SUM)));
    CHECK_OK(self, hd_comm_wait_all(self->comm));
    self->report->numbers[1] = hash_bytes(1, a, bytes);
}

/* The hash of elements [begin, begin + count) added by one rank, left to right. */
static uint64_t hash_alone(const struct sums *sums, int world, int64_t begin, int64_t count)
{
    const size_t bytes = (size_t)count * hd_dtype_size(sums->dtype);
    char *all = malloc(bytes);
    uint64_t hash;

    assert_non_null(all);
    for (int64_t i = 0; i < count; i++) {
        float sum = 0.0f;

        for (int r = 0; r < world; r++) {
            float x;

            put(&x, 0, sums->dtype, input(r, begin + i)); /* as it is stored */
            x = get(&x, 0, sums->dtype);
            sum = r == 0 ? x : sum + x;
        }
        put(all, i, sums->dtype, sum);
    }
    hash = hash_bytes(1, all, bytes);
    free(all);
    return hash;
}

static void check_sums(int world, int64_t count, enum hd_dtype dtype)
{
    const struct sums sums = {count, dtype};
    const struct ranks ranks = {.world = world,
                                .deadline_ms = 60000,
                                .registered_bytes = (size_t)(2 * world) * ((size_t)count * 4 + 64),
                                .body = sum_and_gather,
                                .arg = &sums};
    struct report *by_gloo = ranks_run_on(ENGINE_GLOO, &ranks, false);
    struct report *by_shm = ranks_run_on(ENGINE_SHM, &ranks, false);
    const uint64_t alone = hash_alone(&sums, world, 0, count);
    const uint64_t all = hash_alone(&sums, world, 0, count * world);

    for (int r = 0; r < world; r++) {
        assert_true(by_gloo[r].numbers[0] == alone);
        assert_true(by_gloo[r].numbers[1] == alone);
        assert_true(by_gloo[r].numbers[2] == hash_alone(&sums, world, r * count, count));
        assert_true(by_gloo[r].numbers[3] == all);
        for (int n = 0; n < 4; n++)
            assert_true(by_shm[r].numbers[n] == by_gloo[r].numbers[n]);
    }
    ranks_free(by_gloo);
    ranks_free(by_shm);
}

static void sums_have_the_bits_of_shm_and_of_one_rank_alone(void **state)
{
    static const int64_t odd[] = {1, 15, 16, 17, 1023, 65537};

    for (size_t c = 0; c < sizeof odd / sizeof odd[0]; c++) {
        check_sums(2, odd[c], HD_F32);
        check_sums(3, odd[c], HD_BF16);
    }
    /* shares of several chunks (GLOO_CHUNK_MAX), more than a stage holds and a flow has under way */
    check_sums(2, HD_PIECE(1400003, 28003), HD_F32);
    check_sums(4, HD_PIECE(1000001, 20001), HD_F32);
}

/* ---- a killed process ---- */

enum { VICTIM = 1, SUMMED = 400000 };

static void sum_until_failure(struct rank *self)
{
    struct hd_comm_group *g;
    enum hd_status st = HD_OK;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, self->world, &g));
    while (!st) {
        st = hd_comm_launch(
            g, hd_comm_get_stream(self->comm, HD_COMM_STREAM_REDUCE), HD_COMM_ALL_REDUCE,
            HD_COLLECTIVE(self->base, self->base, SUMMED, HD_F32, .reduce = HD_COMM_SUM));
        if (!st)
            st = hd_comm_wait_all(self->comm);
        atomic_store(&self->report->mark, 1);
    }
    self->report->status = st;
    self->report->took_ms = hd_clock_now_ms() - (int64_t)self->report->numbers[0];
    (void)snprintf(self->report->message, HD_ERR_MAX, "%s", hd_err_message());
    CHECK(self, hd_comm_poll(self->comm) == st); /* it sticks */
    CHECK(self, strcmp(hd_err_message(), self->report->message) == 0);
}

static void kill_the_victim(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports)
{
    int how;

    for (int r = 0; r < 3; r++) {
        while (!atomic_load(&reports[r].mark))
            (void)usleep(500);
    }
    (void)usleep(20000); /* somewhere in the middle of the sums */
    for (int r = 0; r < 3; r++)
        reports[r].numbers[0] = (uint64_t)hd_clock_now_ms();
    assert_int_equal(kill(pids[VICTIM], SIGKILL), 0);
    assert_int_equal(waitpid(pids[VICTIM], &how, 0), pids[VICTIM]);
}

/* Nobody tells the survivors: they see the connection end, long before the deadline. */
static void survivors_of_a_killed_process_name_it_at_once(void **state)
{
    const struct ranks ranks = {.world = 3,
                                .as = AS_PROCESSES,
                                .registered_bytes = SUMMED * 4,
                                .deadline_ms = 600000,
                                .body = sum_until_failure,
                                .parent = kill_the_victim};

    int within = 0;

    for (int n = 0; n < 5; n++) { /* at different moments of the sum */
        struct report *reports = ranks_run_on(ENGINE_GLOO, &ranks, true);

        for (int r = 0; r < 3; r++) {
            if (r == VICTIM)
                continue;
            assert_true(reports[r].finished);
            assert_int_equal(reports[r].status, HD_ABORTED);
            assert_true(reports[r].took_ms < 60000);
            assert_contains(
                reports[r].message,
                "rank 1 died first: its connection closed without an abort message (node here)");
            if (strstr(reports[r].message, "of group world"))
                within++;
            else /* heard between two sums: then it waits for nothing */
                assert_tells(reports[r].message, "rank 1 died first", "node here",
                             "killed or crashed");
        }
        ranks_free(reports);
    }
    assert_true(within > 0);
}

/* ---- an abort of another thread ---- */

static void *abort_soon(void *comm)
{
    hd_comm_abort(comm, "a watcher saw the disk fill up");
    return NULL;
}

static void one_is_aborted_by_its_watcher(struct rank *self)
{
    struct hd_comm_group *g;
    pthread_t thread;
    enum hd_status st;

    CHECK_OK(self, hd_comm_open_group(self->comm, "world", everybody, self->world, &g));
    if (self->rank == 2) {
        CHECK(self, pthread_create(&thread, NULL, abort_soon, self->comm) == 0);
        CHECK(self, pthread_join(thread, NULL) == 0);
    }
    st = hd_comm_barrier(g, hd_comm_get_stream(self->comm, HD_COMM_STREAM_GATHER));
    if (!st)
        st = hd_comm_wait_all(self->comm);
    CHECK(self, st == HD_ABORTED);
    CHECK(self, strstr(hd_err_message(), "rank 2 failed first: a watcher saw the disk fill up"));
}

static void any_thread_may_abort(void **state)
{
    const struct ranks ranks = {
        .world = 3, .deadline_ms = 60000, .body = one_is_aborted_by_its_watcher};

    ranks_free(ranks_run_on(ENGINE_GLOO, &ranks, false));
}

RUN_CASES()
