/* config_internal: shared by the files of lib/config. */
#ifndef HD_CONFIG_CONFIG_INTERNAL_H
#define HD_CONFIG_CONFIG_INTERNAL_H

#include "config/config.h"

/* Keeps the error message of `st` as a mistake of this line. Returns HD_OK; a failure that is no
 * mistake of the user (HD_NO_MEMORY) is returned as it is. */
enum hd_status config_keep(struct hd_config *config, int line, enum hd_status st);

#endif
