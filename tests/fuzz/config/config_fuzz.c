/* Configuration files at random: what is accepted has only values that are texts of known keys, and
 * what is refused has a message that names the file. */
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "tests/fuzz/driver.h"

static const char *const seeds[] = {
    "state_dir: /var/lib/heddle\nlisten: 10.0.0.1:7070\nquiet: true\n",
    "# comment\n\"listen\": 'unix:/run/x'\n",
    "{state_dir: /x, quiet: false}\n",
    "listen: |\n  two\n  lines\n",
    "- a\n- b\n",
    "listen: &a x\nstate_dir: *a\n",
};

static const char *const usages[] = {"", NULL};
static const struct hd_setting settings[] = {
    {1, "state-dir", 0, "DIR", HD_SETTING_FILE | HD_SETTING_PATH, NULL, "a folder"},
    {2, "listen", 0, "ADDR", HD_SETTING_FILE | HD_SETTING_LIVE, NULL, "an address"},
    {3, "quiet", 'q', NULL, HD_SETTING_FILE, NULL, "a switch"},
    {4, "doctor", 0, NULL, 0, NULL, "no key"},
};
static const struct hd_program_table program = {
    .name = "p", .usages = usages, .settings = settings, .setting_count = 4, .config_path = "/p"};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    struct hd_config config;
    struct hd_text out = {0};
    enum hd_status st = hd_config_read_text(&config, &program, "f", bytes, size_bytes);

    if (st) {
        require(st == HD_INVALID && strncmp(hd_err_message(), "f:", 2) == 0);
    } else {
        const char *dir = hd_config_get(&config, 1), *quiet = hd_config_get(&config, 3);

        require(!dir || dir[0] == '/');
        require(!quiet || strcmp(quiet, "true") == 0 || strcmp(quiet, "false") == 0);
        require(!hd_config_get(&config, 4));
        hd_config_show(&config, true, &out);
        require(!out.failed && hd_text_is_utf8(out.data, out.len_bytes));
    }
    hd_text_free(&out);
    hd_config_done(&config);
    return 0;
}

size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    return fuzz_text_seed(seeds, sizeof seeds / sizeof seeds[0], index, ret_bytes, max_bytes);
}
