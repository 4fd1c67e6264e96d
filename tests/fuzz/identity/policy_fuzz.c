/* Policy files at random: what is accepted gives each name a role that exists, and no one but a
 * name that the file has becomes operator or admin; what is refused has a message with a line. */
#include <stdlib.h>
#include <string.h>

#include "controller/identity/identity.h"
#include "tests/fuzz/driver.h"

static const char *const seeds[] = {
    "# who\nrole ann operator\nrole uid:1001 viewer\nrole cert:carl admin\nrole token user\n"
    "role-of-uids viewer\nrole-of-tokens none\n",
    "see role:viewer all\nsee bob jobs\nsee uid:0 own # root\n"
    "limit role:user submissions_per_s 5\nlimit bob checkpoint_bytes 2T\nlimit ann watches 0\n",
    "keep history 30\nkeep history-jobs 100000\nkeep step-lines 1000 after 7\n"
    "limit role:admin queries_per_s 10\nlimit bob jobs_queued 7\nlimit bob jobs_live 9\n",
};

static void check(const struct hd_policy *p)
{
    static const char *const unnamed[] = {"nobody-here", "uid:4294967290", "cert:nobody-here"};

    for (size_t i = 0; i < sizeof unnamed / sizeof unnamed[0]; i++) {
        for (int way = 0; way < 2; way++) {
            const enum hd_role role = hd_policy_role(p, unnamed[i], (enum hd_login)way);

            require(role == HD_ROLE_NONE || role == HD_ROLE_VIEWER || role == HD_ROLE_USER);
        }
        for (int limit = 0; limit < HD_LIMIT_COUNT; limit++)
            require(hd_policy_limit(p, unnamed[i], HD_ROLE_USER, (enum hd_limit)limit) > 0);
        require(hd_policy_visibility(p, unnamed[i], HD_ROLE_ADMIN) == HD_VISIBILITY_ALL);
    }
    require(hd_policy_retention(p).history_ms >= 0 && hd_policy_retention(p).step_lines >= 0);
    require(!hd_policy_retention(p).step_lines == !hd_policy_retention(p).step_lines_ms);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    char *text = malloc(size_bytes + 1);
    struct hd_policy *policy = NULL;

    require(text != NULL);
    memcpy(text, bytes, size_bytes);
    text[size_bytes] = '\0';
    if (hd_policy_parse("p", text, &policy)) {
        require(strncmp(hd_err_message(), "p:", 2) == 0);
    } else {
        check(policy);
        hd_policy_free(policy);
    }
    free(text);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    return fuzz_text_seed(seeds, sizeof seeds / sizeof seeds[0], index, ret_bytes, max_bytes);
}
