#include "tools/lib/interrupt.h"

volatile sig_atomic_t interrupted;
static void (*call_also)(void);

static void interrupt(int number)
{
	interrupted = number;
	if (call_also)
		call_also();
}

void interrupts_catch(void (*also)(void))
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESETHAND}, before;

	call_also = also;
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (signals[i] != SIGHUP || (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN))
			sigaction(signals[i], &action, NULL);
}
