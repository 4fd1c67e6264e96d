/* room: how many devices a job could have at most, on all nodes and on one, by what is free and
 * what is kept for others. Where that is too few, no place is looked for.
 *
 * In a busy cluster hundreds of jobs wait, each for another number of devices or with another
 * length, and a pass looks at each of them. What is open to one differs only by the reservations
 * that it may use: those that it ends before, its own, and those that it may borrow. There are at
 * most CORE_RESERVERS_MAX reservations and a few nodes kept for failed jobs, so that most jobs of a
 * pass see one of a few sets. The sums of such a set are made once, and are remembered until some
 * node has changed (core->changes).
 *
 * Where memory is asked for, or nodes are avoided, nothing is said: the search looks at each node.
 */
#include "controller/core/core_internal.h"

/* Devices are lent for so long at least: a start and a stop take minutes. */
enum { BORROW_MIN_MS = 5 * 60 * 1000 };

/* ---- what is kept for whom --------------------------------------------------------------------*/

size_t core_keeper_of(struct hd_core *core, const struct core_reservation *reserved)
{
    struct core_keeper *keepers = core->keepers;
    size_t k = core->keeper_count;

    while (k > 0 && (keepers[k - 1].by != reserved->by || keepers[k - 1].kind != reserved->kind ||
                     keepers[k - 1].start_mono_ms != reserved->start_mono_ms))
        k--; /* it is the newest, as a rule */
    if (k)
        return k;
    if (core->keeper_count == CORE_KEEPERS_MAX)
        return 0;
    keepers[core->keeper_count] = (struct core_keeper){
        .by = reserved->by, .kind = reserved->kind, .start_mono_ms = reserved->start_mono_ms};
    return ++core->keeper_count;
}

/* It is kept for an older job that is known not to need it soon: that one can make this one stop at
 * a checkpoint. */
static bool may_borrow(const struct hd_core *core, const struct core_view *view, uint64_t by,
                       int64_t start_mono_ms)
{
    return view->borrows && by < view->job->rec.job && start_mono_ms != INT64_MAX &&
           start_mono_ms - core->now.mono_ms >= BORROW_MIN_MS;
}

bool core_may_use_kept(const struct hd_core *core, const struct core_view *view,
                       enum hd_device_kind kind, const struct core_keeper *keeper)
{
    if (view->job && core_is_kept_for(view->job, keeper->by))
        return true;
    if (view->reserves)
        return false;
    return keeper->kind != kind ||
           (view->length_ms && keeper->start_mono_ms != INT64_MAX &&
            core->now.mono_ms + view->length_ms <= keeper->start_mono_ms) ||
           may_borrow(core, view, keeper->by, keeper->start_mono_ms);
}

/* ---- sums -------------------------------------------------------------------------------------*/

/* The bits of the keepers whose devices are open to the view. */
static uint64_t open_to(const struct hd_core *core, const struct core_view *view,
                        enum hd_device_kind kind)
{
    uint64_t open = 0;

    for (size_t k = 0; k < core->keeper_count; k++)
        if (core_may_use_kept(core, view, kind, &core->keepers[k]))
            open |= (uint64_t)1 << k;
    return open;
}

static int32_t open_on(const struct hd_core *core, const struct core_room *room, size_t i)
{
    const uint8_t marks = core->marks[i];
    const int32_t free = core->free_of[room->kind][i];
    const int32_t spare = room->reserves ? 0 : core->kept_of[i].spare;

    if (!(marks & CORE_MARK_USABLE) || ((marks & CORE_MARK_SPARE) && !room->spares))
        return 0;
    if (!(marks & CORE_MARK_RESERVED) ||
        (room->open & ((uint64_t)1 << (core->kept_of[i].keeper - 1))))
        return free;
    return free < spare ? free : spare;
}

static void sum_up(const struct hd_core *core, struct core_room *room)
{
    for (size_t i = core_next_free(core, room->kind, 0); i < core->node_count;
         i = core_next_free(core, room->kind, i + 1)) {
        const int32_t open = open_on(core, room, i);

        room->devices += open;
        room->total += open - open % room->unit;
        room->largest = open > room->largest ? open : room->largest;
    }
}

bool core_room(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind,
               struct core_room *ret_room)
{
    const bool asks = view->avoids || view->needs->memory_min > core->least_memory[kind];
    struct core_room room = {.kind = kind,
                             .unit = hd_plan_unit(&view->needs->wish),
                             .spares = view->spares,
                             .reserves = view->reserves};

    if (asks || !core_free_by_node(core, kind) || core->keepers_lack)
        return false;
    room.changes = core->changes;
    room.open = open_to(core, view, kind);
    for (size_t k = 0; k < CORE_ROOMS; k++) {
        const struct core_room *known = &core->rooms[k];

        if (known->changes == room.changes && known->open == room.open &&
            known->kind == room.kind && known->unit == room.unit && known->spares == room.spares &&
            known->reserves == room.reserves) {
            *ret_room = *known;
            return true;
        }
    }
    sum_up(core, &room);
    core->rooms[core->next_room++ % CORE_ROOMS] = room;
    *ret_room = room;
    return true;
}

bool core_lacks_room(struct hd_core *core, const struct core_view *view, enum hd_device_kind kind)
{
    const int32_t need = view->needs->devices_min;
    struct core_room room;

    if (core->free_devices[kind] < need)
        return true; /* not even in sum */
    return !core->scratch.thorough && !core->scratch.lent && core_room(core, view, kind, &room) &&
           room.total < need && room.largest < need;
}
