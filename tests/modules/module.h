/*
 * module.h - modules for tests of the keeper: each file here becomes a shared object that a gpoold can load.
 */
#ifndef GPOOL_TESTS_MODULE_H
#define GPOOL_TESTS_MODULE_H

#include "agent/base/module.h"

#define EXPORTED __attribute__((visibility("default")))
extern const struct module gpool_module;

#endif
