/*
 * internal.h - marks what libgpool_lora calls in libgpool beside the public headers.
 *
 * The name of such a function in the object files begins with gpool_internal_, so that it cannot collide with a name of
 * a program. client/libgpool.map exports these names under a version of their own, which contains the version of the
 * library: a libgpool_lora of another version is refused when it is loaded. Keep them few; at most 20.
 */
#ifndef GPOOL_CLIENT_INTERNAL_H
#define GPOOL_CLIENT_INTERNAL_H

/* GPOOL_INTERNAL(name) - mark a function or a variable; follows its declaration, before other attributes. */
#define GPOOL_INTERNAL(name) __asm__("gpool_internal_" #name) __attribute__((visibility("default")))

#endif
