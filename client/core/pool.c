/* pool.c - see pool.h; client/open.c attaches and detaches. */
#include "client/core/pool.h"

#include "client/core/last_error.h"
#include "shm/doorbell.h"
#include "shm/plural.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void pool_log(const struct gpool *pool, enum pool_log_level level, const char *format, ...)
{
	char text[512];
	va_list arguments;

	if (!pool->log)
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	pool->log(pool->log_context, (int)level, text);
}

bool pool_gone(const struct gpool *pool)
{
	struct pollfd connection = {.fd = pool->socket};

	if (atomic_load_explicit(&pool->session.header->closed, memory_order_acquire))
		return true;
	return poll(&connection, 1, 0) > 0 && connection.revents & (POLLHUP | POLLERR);
}

void pool_pages_freed(struct gpool *pool)
{
	idle_run(pool, IDLE_FREED);
	doorbell_ring(pool->doorbell);
}

int options_read(void *to, size_t known, const void *from)
{
	uint32_t size;

	memcpy(&size, from, sizeof(size));
	if (size < sizeof(size))
		return fail_size(size);
	for (size_t i = known; i < size; i++)
		if (((const unsigned char *)from)[i])
			return fail(-E2BIG,
				"the options have %u byte%s, of which byte %zu is not zero, but this library knows "
				"only the first %zu byte%s",
				size, plural(size), i, known, plural(known));
	memset(to, 0, known);
	memcpy(to, from, size < known ? size : known);
	return 0;
}

void struct_answer(void *to, uint32_t size, const void *filled, size_t known)
{
	if (size > known)
		memset((char *)to + known, 0, size - known);
	memcpy(to, filled, size < known ? size : known);
}
