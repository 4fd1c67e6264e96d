/* Goal: a line tells by what NCCL connects the ranks, and NCCL's warnings are not lost. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/nccl_log.h"
#include "tests/program/test.h"

/* A rank of two nodes: three channels to peers of its node, two through adapters, of which the number
 * does not matter, and lines of other kinds. */
static const char two_nodes[] =
    "a:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    "a:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    "a:1:2 [0] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct\n"
    "a:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 0[0] [receive] via NET/IB/0/GDRDMA\n"
    "a:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA\n"
    "a:1:2 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
    "a:1:2 [0] NCCL INFO Connected all rings";

static void transports_are_counted_without_the_numbers_of_adapters(void **state)
{
    struct hd_text transports = {0}, warnings = {0};

    (void)state;
    hd_comm_nccl_log_read(two_nodes, &transports, &warnings);
    assert_string_equal(transports.data, "P2P/CUMEM 2, SHM/direct/direct 1, NET/IB/GDRDMA 2");
    assert_string_equal(warnings.data,
                        "Call to ibv_reg_mr failed with error Cannot allocate memory");
    hd_text_free(&transports);
    hd_text_free(&warnings);
}

static void hostile_lines_do_no_harm(void **state)
{
    static const char *const logs[] = {"",
                                       "\n\n\n",
                                       "NCCL INFO Channel ",
                                       "NCCL INFO Channel x via ",
                                       "NCCL INFO Channel x via ////0/1/2//",
                                       "via NCCL INFO Channel ",
                                       "NCCL WARN "};
    static char many[1 << 16];
    struct hd_text transports = {0}, warnings = {0};
    int used = 0;

    (void)state;
    for (size_t i = 0; i < sizeof logs / sizeof logs[0]; i++)
        hd_comm_nccl_log_read(logs[i], &transports, &warnings);
    for (int i = 0; i < 100; i++) /* more transports than there are, and a name of 200 letters */
        used += snprintf(many + used, sizeof many - (size_t)used,
                         "NCCL INFO Channel 0 : via T%c%0200d/x\n", 'a' + i % 26, i);
    hd_comm_nccl_log_read(many, &transports, &warnings);
    hd_text_free(&transports);
    hd_text_free(&warnings);
}

/* NCCL opens the file that the variable names, as here. */
static void the_log_is_memory_that_nccl_writes(void **state)
{
    struct hd_text transports = {0}, warnings = {0};
    FILE *file;
    int fd;

    (void)state;
    assert_int_equal(unsetenv("NCCL_DEBUG"), 0);
    assert_int_equal(unsetenv("NCCL_DEBUG_FILE"), 0);
    fd = hd_comm_nccl_log_open();
    assert_true(fd >= 0);
    assert_string_equal(getenv("NCCL_DEBUG"), "INFO");
    file = fopen(getenv("NCCL_DEBUG_FILE"), "w");
    assert_non_null(file);
    assert_true(fputs(two_nodes, file) >= 0);
    assert_int_equal(fclose(file), 0);
    hd_comm_nccl_log_take(fd, &transports, &warnings);
    assert_non_null(transports.data);
    assert_int_equal(close(fd), 0);
    assert_int_equal(hd_comm_nccl_log_open(), -1); /* the user's log now, as far as it can tell */
    hd_comm_nccl_log_take(-1, &transports, &warnings);
    hd_text_free(&transports);
    hd_text_free(&warnings);
}

RUN_CASES()
