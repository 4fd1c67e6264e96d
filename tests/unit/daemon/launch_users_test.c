/* users: as whom heddle-launcher starts jobs. By users that every Linux has: root, daemon (uid 1),
 * nobody. */
#include <pwd.h>
#include <string.h>

#include "daemon/launcher/users.h"
#include "tests/program/test.h"

enum { NO_ONE = 4000000 };

static void is_refused(const char *list, uid_t own, const char *word, enum hd_status expected,
                       const char *words)
{
    const struct launch_users users = {.own = own, .list = list};
    struct launch_user found;

    assert_int_equal(users_find(&users, word, &found), expected);
    if (!strstr(hd_err_message(), words))
        fail_msg("%s of %s: %s", word, list, hd_err_message());
}

static void root_and_system_users_are_refused_by_name(void **state)
{
    is_refused("all", NO_ONE, "root", HD_DENIED, "root is root");
    is_refused("all,root", NO_ONE, "root", HD_DENIED, "root is root");
    is_refused("all", NO_ONE, "uid:0", HD_DENIED, "root is root");
    is_refused("all", NO_ONE, "daemon", HD_DENIED, "daemon (uid 1) is a system user");
    is_refused("all", NO_ONE, "uid:1", HD_DENIED, "daemon (uid 1) is a system user");
    is_refused("all", NO_ONE, "nobody", HD_DENIED, "(uid 65534) is a system user");
    is_refused("daemon", 1, "daemon", HD_DENIED, "daemon is heddled's own user");
    is_refused("all", NO_ONE, "no-such-user", HD_NOT_FOUND, "has no user no-such-user; make it");
}

static void a_system_user_that_is_listed_by_name_may(void **state)
{
    const struct launch_users users = {.own = NO_ONE, .list = "ann,daemon,@lab"};
    const struct passwd *entry = getpwnam("daemon");
    struct launch_user found = {0};

    assert_non_null(entry);
    assert_int_equal(users_find(&users, "daemon", &found), HD_OK);
    assert_int_equal(found.uid, 1);
    assert_int_equal(found.gid, entry->pw_gid);
    is_refused("daemonx,dae,@daemon", NO_ONE, "daemon", HD_DENIED, "is a system user");
    is_refused("", NO_ONE, "daemon", HD_DENIED, "is a system user");
}

static void a_list_is_names_and_groups(void **state)
{
    assert_int_equal(users_check_list("all"), HD_OK);
    assert_int_equal(users_check_list("ann,@lab,svc-1"), HD_OK);
    assert_int_equal(users_check_list("ann,root"), HD_INVALID);
    assert_int_equal(users_check_list("ann,uid:1001"), HD_INVALID);
    assert_int_equal(users_check_list("ann,,bob"), HD_INVALID);
    assert_int_equal(users_check_list("ann bob"), HD_INVALID);
}

RUN_CASES()
