/* base/tree.h: what a deletion may reach. Mounts are made in a mount namespace of this process. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "base/tree.h"
#include "tests/program/test.h"

static char dir[] = "/tmp/heddle-tree-XXXXXX"; /* of one test, empty at its start */
static char text[8192];

static const char *in(const char *name)
{
    (void)snprintf(text, sizeof text, "%s/%s", dir, name);
    return text;
}

static void make_file(const char *name)
{
    char path[sizeof text];

    (void)snprintf(path, sizeof path, "%s", in(name));
    *strrchr(path, '/') = '\0';
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    assert_int_equal(hd_file_write_atomic(in(name), "x", 1, 0644), HD_OK);
}

static bool is_there(const char *name)
{
    struct stat info;

    return lstat(in(name), &info) == 0;
}

static int make_dir(void **state)
{
    memcpy(strrchr(dir, '-'), "-XXXXXX", 8);
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)umount2(in("t/a/share"), MNT_DETACH); /* of a test that failed */
    (void)umount2(in("t"), MNT_DETACH);
    return hd_file_remove_tree(dir) ? -1 : 0;
}

static enum hd_status remove_named(const char *name, struct hd_tree_left *left)
{
    char path[sizeof text];

    (void)snprintf(path, sizeof path, "%s", in(name));
    return hd_tree_remove(path, NULL, left);
}

static void all_that_is_below_goes_and_what_is_absent_is_gone(void **state)
{
    struct hd_tree_left left;

    make_file("t/a/b/file");
    make_file("t/.hidden");
    assert_int_equal(mkdir(in("t/empty"), 0700), 0);
    assert_int_equal(remove_named("t", &left), HD_OK);
    assert_int_equal(left.count, 0);
    assert_false(is_there("t"));
    assert_int_equal(remove_named("t", NULL), HD_OK);
    make_file("alone");
    assert_int_equal(remove_named("alone", NULL), HD_OK);
    assert_false(is_there("alone"));
}

/* A link below the folder, a link to nothing, and a link in the place of the folder. */
static void a_link_goes_and_what_it_leads_to_stays(void **state)
{
    char target[64];

    make_file("kept/file");
    make_file("t/file");
    (void)snprintf(target, sizeof target, "%s/kept", dir);
    assert_int_equal(symlink(target, in("t/link")), 0);
    assert_int_equal(symlink("nowhere", in("t/dangling")), 0);
    assert_int_equal(symlink(target, in("top")), 0);
    assert_int_equal(remove_named("t", NULL), HD_OK);
    assert_int_equal(remove_named("top", NULL), HD_OK);
    assert_false(is_there("t"));
    assert_false(is_there("top"));
    assert_true(is_there("kept/file"));
}

/* Only below: the folder that is asked for may have them itself. */
static void a_folder_with_a_mark_is_anothers(void **state)
{
    static const char *const marks[] = {".mark", ".other-mark", NULL};
    struct hd_tree_left left;
    char path[sizeof text];

    make_file("t/.mark");
    make_file("t/a/mine");
    make_file("t/a/theirs/.other-mark");
    make_file("t/a/theirs/file");
    (void)snprintf(path, sizeof path, "%s", in("t"));
    assert_int_equal(hd_tree_remove(path, marks, &left), HD_CONFLICT);
    assert_int_equal(left.count, 1);
    assert_int_equal(left.why, HD_TREE_MARKED);
    assert_string_equal(left.path, in("t/a/theirs"));
    assert_true(is_there("t/a/theirs/file"));
    assert_false(is_there("t/a/mine"));
    assert_int_equal(hd_tree_remove(path, NULL, &left), HD_OK);
    assert_false(is_there("t"));
}

/* ---- mounts ---- */

static void enter_namespace(void)
{
    static bool is_in;

    if (!is_in && unshare(CLONE_NEWNS) == 0 &&
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        is_in = true;
    if (is_in)
        return;
    print_message("mounting takes root\n");
    skip();
}

enum kind { OTHER_FILE_SYSTEM, SAME_FILE_SYSTEM, ONE_FILE, KINDS };

/* Mounts on t/a/share, and has "file" in what is mounted. */
static void mount_share(enum kind kind)
{
    char source[sizeof text];

    make_file("t/a/mine");
    make_file("t/z/mine");
    make_file("source/file");
    (void)snprintf(source, sizeof source, "%s", in(kind == ONE_FILE ? "source/file" : "source"));
    if (kind == ONE_FILE)
        make_file("t/a/share");
    else
        assert_int_equal(mkdir(in("t/a/share"), 0755), 0);
    if (kind == OTHER_FILE_SYSTEM) {
        assert_int_equal(mount("none", in("t/a/share"), "tmpfs", 0, "size=64k"), 0);
        make_file("t/a/share/file");
    } else {
        assert_int_equal(mount(source, in("t/a/share"), NULL, MS_BIND, NULL), 0);
    }
}

static void what_is_mounted_below_stays_and_the_rest_goes(void **state)
{
    enter_namespace();
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct hd_tree_left left;

        mount_share(kind);
        assert_int_equal(remove_named("t", &left), HD_CONFLICT);
        assert_int_equal(left.count, 1);
        assert_int_equal(left.why, HD_TREE_MOUNTED);
        assert_string_equal(left.path, in("t/a/share"));
        assert_true(is_there(kind == ONE_FILE ? "t/a/share" : "t/a/share/file"));
        assert_true(is_there("source/file"));
        assert_false(is_there("t/a/mine"));
        assert_false(is_there("t/z"));
        assert_int_equal(umount(in("t/a/share")), 0);
        assert_int_equal(remove_named("t", &left), HD_OK); /* it goes on where it ended */
        assert_false(is_there("t"));
        assert_true(is_there("source/file"));
    }
}

static void a_folder_that_is_itself_a_mount_stays(void **state)
{
    char source[sizeof text];

    enter_namespace();
    for (enum kind kind = 0; kind < ONE_FILE; kind++) {
        struct hd_tree_left left;

        make_file("source/file");
        assert_int_equal(mkdir(in("t"), 0755), 0);
        (void)snprintf(source, sizeof source, "%s", in("source"));
        if (kind == OTHER_FILE_SYSTEM)
            assert_int_equal(mount("none", in("t"), "tmpfs", 0, "size=64k"), 0);
        else
            assert_int_equal(mount(source, in("t"), NULL, MS_BIND, NULL), 0);
        if (kind == OTHER_FILE_SYSTEM)
            make_file("t/file");
        assert_int_equal(remove_named("t", &left), HD_CONFLICT);
        assert_int_equal(left.why, HD_TREE_MOUNTED);
        assert_true(is_there("t/file"));
        assert_int_equal(umount(in("t")), 0);
        assert_int_equal(remove_named("t", NULL), HD_OK);
    }
}

/* A path of 40 * HD_TREE_FILES folders is closed and opened again at each level; what stays at
 * level 50 is counted once, although its folder is read anew each time. */
static void any_depth_takes_few_descriptors(void **state)
{
    enum { LEVELS = 40 * HD_TREE_FILES, STAYS_AT = 50 };
    struct rlimit before, few;
    struct hd_tree_left left;
    char path[sizeof text];
    int lowest;

    enter_namespace();
    (void)snprintf(path, sizeof path, "%s", in("t"));
    assert_int_equal(mkdir(path, 0755), 0);
    for (int i = 0; i < LEVELS; i++) {
        const size_t n = strlen(path);

        (void)snprintf(path + n, sizeof path - n, "/b");
        assert_int_equal(mkdir(path, 0755), 0);
        if (i % HD_TREE_FILES == 3) { /* beside it, before and after it in most orders */
            (void)snprintf(path + n, sizeof path - n, "/a");
            assert_int_equal(mkdir(path, 0755), 0);
            (void)snprintf(path + n, sizeof path - n, "/c");
            assert_int_equal(mkdir(path, 0755), 0);
            (void)snprintf(path + n, sizeof path - n, "/b");
        }
        if (i == STAYS_AT) {
            (void)snprintf(path + n, sizeof path - n, "/m");
            assert_int_equal(mkdir(path, 0755), 0);
            assert_int_equal(mount("none", path, "tmpfs", 0, "size=64k"), 0);
            (void)snprintf(path + n, sizeof path - n, "/b");
        }
    }
    lowest = open("/", O_RDONLY | O_CLOEXEC);
    assert_int_equal(close(lowest), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)lowest + HD_TREE_FILES;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(remove_named("t", &left), HD_CONFLICT);
    assert_int_equal(left.count, 1);
    assert_int_equal(left.why, HD_TREE_MOUNTED);
    assert_true(hd_text_ends(left.path, "/b/m"));
    assert_int_equal(umount(left.path), 0);
    assert_int_equal(remove_named("t", &left), HD_OK);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_false(is_there("t"));
}

RUN_EACH_CASE_WITH(make_dir, remove_dir)
