/*
 * undescribed.c - a module of a version in which modules did not describe their layout: the table ends with `device`.
 */
#define MODULE_BYTES offsetof(struct module, layout)
#include "tests/modules/dying.c"
