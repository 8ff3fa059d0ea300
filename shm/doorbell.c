#include "shm/doorbell.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int doorbell_create(void)
{
	int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	return doorbell < 0 ? -errno : doorbell;
}

void doorbell_ring(int doorbell)
{
	uint64_t one = 1;

	while (write(doorbell, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

int futex_wait(const _Atomic uint32_t *word, uint32_t value, int64_t timeout_ns)
{
	struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};

	if (syscall(SYS_futex, word, FUTEX_WAIT, value, timeout_ns < 0 ? NULL : &timeout, NULL, 0) == 0)
		return 0;
	return errno == ETIMEDOUT ? -ETIMEDOUT : 0;
}

void futex_wake(const _Atomic uint32_t *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}
