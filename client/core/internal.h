/*
 * internal.h - mark the functions of libgpool that libgpool_lora calls in addition to the public ones.
 *
 * In the object files, the name of such a function begins with gpool_internal_, so that it cannot collide with a name
 * of a program. client/libgpool.map exports these names with a separate symbol version, which contains the version of
 * the library. The dynamic linker therefore rejects a libgpool_lora of another version. Keep the number of such
 * functions small: at most 20.
 */
#ifndef GPOOL_CLIENT_INTERNAL_H
#define GPOOL_CLIENT_INTERNAL_H

/* GPOOL_INTERNAL(name) - mark a function or a variable. Place it after the declarator, before other attributes. */
#define GPOOL_INTERNAL(name) __asm__("gpool_internal_" #name) __attribute__((visibility("default")))

#endif
