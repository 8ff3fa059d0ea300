/*
 * internal.h - mark the functions of libgpool that libgpool_lora calls beside the public ones.
 *
 * The name of such a function in the object files begins with gpool_internal_, so that it cannot collide with a name of
 * a program. client/libgpool.map exports these names under a separate version, which contains the version of the
 * library: a libgpool_lora of another version is refused when it is loaded. Keep their number small; at most 20.
 */
#ifndef GPOOL_CLIENT_INTERNAL_H
#define GPOOL_CLIENT_INTERNAL_H

/* GPOOL_INTERNAL(name) - mark a function or a variable; follows its declaration, before other attributes. */
#define GPOOL_INTERNAL(name) __asm__("gpool_internal_" #name) __attribute__((visibility("default")))

#endif
