#include "tools/lib/interrupt.h"

#include <stdbool.h>
#include <stddef.h>

volatile sig_atomic_t interrupted;
static void (*call_also)(void);

static void interrupt(int number)
{
	interrupted = number;
	if (call_also)
		call_also();
}

static void catch (int number, int flags, bool even_if_ignored)
{
	struct sigaction action = {.sa_handler = interrupt, .sa_flags = flags}, before;

	if (even_if_ignored || (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN))
		sigaction(number, &action, NULL);
}

void interrupts_catch(void (*also)(void))
{
	call_also = also;
	catch (SIGINT, SA_RESETHAND, true);
	catch (SIGQUIT, SA_RESETHAND, true);
	/* Programs such as timeout(1) send these to the process and to its group, so twice. */
	catch (SIGTERM, 0, true);
	catch (SIGALRM, 0, true);
	catch (SIGHUP, 0, false);
	/* Each further write to a closed pipe raises this signal again, also during the cleanup. */
	catch (SIGPIPE, 0, false);
}
