/* undescribed.c - a module from before modules described their layout: the table ends with `device`. */
#define MODULE_BYTES offsetof(struct module, layout)
#include "tests/modules/dying.c"
