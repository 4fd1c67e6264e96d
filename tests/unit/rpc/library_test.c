/* rpc: which gRPC is named, and told to be weak. */
#include <stdlib.h>
#include <string.h>

#include "rpc/rpc.h"
#include "tests/program/test.h"

/* Debian 12 has core 29.0.0, which is 1.51.1. CVE-2023-33953 was corrected in 1.57, and in later
 * patch releases of 1.53 to 1.56, which the core's number does not tell apart. */
static void a_weak_grpc_is_named(void **state)
{
    static const struct {
        const char *core, *name, *weak; /* weak: how the note begins; NULL: none */
    } cases[] = {
        {"29.0.0", "gRPC 1.51 (core 29.0.0)", "it has CVE-2023-33953"},
        {"17.0.0", "gRPC with core 17.0.0", "it has CVE-2023-33953"},
        {"30.2.0", "gRPC 1.52 or 1.53 (core 30.2.0)", "it may have CVE-2023-33953"},
        {"33.0.0", "gRPC 1.56 (core 33.0.0)", "it may have CVE-2023-33953"},
        {"34.0.0", "gRPC 1.57 (core 34.0.0)", NULL},
        {"43.0.0", "gRPC with core 43.0.0", NULL},
    };
    char name[HD_RPC_LIBRARY_MAX];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *weakness = hd_rpc_library_weakness(cases[i].core);

        hd_rpc_library_name(cases[i].core, name);
        assert_string_equal(name, cases[i].name);
        assert_int_equal(weakness != NULL, cases[i].weak != NULL);
        assert_true(!weakness || strncmp(weakness, cases[i].weak, strlen(cases[i].weak)) == 0);
    }
    hd_rpc_library_name(NULL, name); /* the one that runs */
    assert_non_null(strstr(name, "core "));
}

RUN_CASES()
