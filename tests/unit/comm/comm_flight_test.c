/* comm: the flight record while others look at it. One thread launches as fast as it can, this one
 * reads and says of old launches that they have run. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm_internal.h"
#include "tests/program/test.h"

enum { LAUNCHES = 3000000, GROUPS = 2, TOLD_PER_READ = 100 };

static struct hd_comm_flight flight;
static _Atomic bool is_over;

/* Launch n: sum n of n bytes, of group "even" or "odd", its root a rank of that group. */
static void *launch_many(void *unused)
{
    static int32_t ranks[GROUPS] = {2, 3};
    static struct hd_comm_group groups[GROUPS] = {
        {.name = "even", .size = 1, .members = &ranks[0]},
        {.name = "odd", .size = 1, .members = &ranks[1]},
    };
    static const struct hd_comm_stream streams[GROUPS] = {
        {.name = HD_COMM_STREAM_REDUCE},
        {.name = HD_COMM_STREAM_GATHER},
    };

    for (uint64_t n = 1; n <= LAUNCHES; n++) {
        const struct hd_comm_op op = {.kind = n % 2 ? HD_COMM_BROADCAST : HD_COMM_ALL_REDUCE,
                                      .group = &groups[n % 2],
                                      .count = (int64_t)n,
                                      .dtype = HD_U8,
                                      .launch = n,
                                      .seq = n};

        hd_comm_flight_launch(&flight, &op, &streams[n % 2]);
    }
    atomic_store(&is_over, true);
    return unused;
}

static bool is_whole(const struct hd_flight_record *r)
{
    const bool odd = r->launch % 2;

    return r->seq == r->launch && r->bytes == r->launch && r->peer == 2 + odd &&
           strcmp(r->group, odd ? "odd" : "even") == 0 &&
           strcmp(r->kind, odd ? "broadcast" : "all_reduce") == 0 &&
           strcmp(r->stream, odd ? "gather" : "reduce") == 0;
}

/* Whether the launches of this lap are said to have run just before their place is taken: those of
 * every other lap around the record. */
static bool is_lap_that_runs(uint64_t launch)
{
    return launch / HD_FLIGHT_MAX % 2 == 0;
}

static void say_that_one_has_run(void)
{
    const uint64_t newest = atomic_load(&flight.newest);

    if (newest >= HD_FLIGHT_MAX && is_lap_that_runs(newest - HD_FLIGHT_MAX + 1))
        hd_comm_flight_ended(&flight, newest - HD_FLIGHT_MAX + 1);
}

static void a_record_is_of_one_launch_whoever_writes_meanwhile(void **state)
{
    struct hd_flight_record records[HD_FLIGHT_MAX];
    pthread_t writer;
    int torn = 0, taken_for_another = 0, read = 0;

    assert_int_equal(pthread_create(&writer, NULL, launch_many, NULL), 0);
    while (!atomic_load(&is_over)) {
        int count;

        for (int n = 0; n < TOLD_PER_READ; n++)
            say_that_one_has_run();
        count = hd_comm_flight_read(&flight, records);
        for (int i = 0; i < count; i++) {
            torn += !is_whole(&records[i]);
            taken_for_another +=
                records[i].state == HD_FLIGHT_COMPLETE && !is_lap_that_runs(records[i].launch);
        }
        read += count;
    }
    assert_int_equal(pthread_join(writer, NULL), 0);
    assert_int_equal(torn, 0);
    assert_int_equal(taken_for_another, 0);
    read += hd_comm_flight_read(&flight, records);
    assert_true(read >= HD_FLIGHT_MAX);
    assert_int_equal(records[HD_FLIGHT_MAX - 1].launch, LAUNCHES);
}

RUN_CASES()
