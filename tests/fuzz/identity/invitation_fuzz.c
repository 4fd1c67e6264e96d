/* Lines of invitations at random: what is accepted is written again as the same line; what is
 * refused has a message without the line's secret. */
#include <stdlib.h>
#include <string.h>

#include "pki/pki.h"
#include "tests/fuzz/driver.h"

#define HASH   "27c9554f7faf16a25c014a9564bc9e5de2baf75fff0c9acbd8d01d79cf1bdc61"
#define SECRET "90f8450c2d87577f66006059d971dd2d805a4304831fd6d1d953f2af608a56b6"

static const char *const seeds[] = {
    "heddle-invite/1/n1/127.0.0.1:7433/" HASH "/" SECRET,
    "heddle-invite/1/rack-2.n17/[fd00::2%eth0]:1/" HASH "/" SECRET "\n",
    "heddle-invite/2/n1/head.example:65535/" HASH "/" SECRET "\r\n",
};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    char *line = malloc(size_bytes + 1);
    struct hd_pki_invitation invitation;
    struct hd_text again = {0};

    require(line != NULL);
    memcpy(line, bytes, size_bytes);
    line[size_bytes] = '\0';
    if (hd_pki_invitation_read(line, &invitation)) {
        require(!strstr(hd_err_message(), SECRET));
    } else {
        require(hd_pki_is_node_name(invitation.node) != hd_pki_is_node_pattern(invitation.node));
        hd_pki_invitation_write(&invitation, &again);
        require(strncmp(line, again.data, again.len_bytes) == 0);
        require(strspn(line + again.len_bytes, "\r\n") == strlen(line + again.len_bytes));
        hd_text_free(&again);
    }
    free(line);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    return fuzz_text_seed(seeds, sizeof seeds / sizeof seeds[0], index, ret_bytes, max_bytes);
}
