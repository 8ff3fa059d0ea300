/* interrupt.h - SIGINT, SIGTERM, SIGQUIT, SIGALRM, SIGHUP and SIGPIPE as a flag. */
#ifndef GPOOL_TOOLS_LIB_INTERRUPT_H
#define GPOOL_TOOLS_LIB_INTERRUPT_H

#include <signal.h>

extern volatile sig_atomic_t interrupted; /* the signal; 0: none yet */

/*
 * interrupts_catch() - set `interrupted` at these signals from now on. A second SIGINT or SIGQUIT, such as a second
 * Ctrl-C, ends the process at once. If SIGHUP (nohup) or SIGPIPE is ignored, it stays ignored.
 *
 * @also: called at the signal; may be NULL
 */
void interrupts_catch(void (*also)(void));

#endif
