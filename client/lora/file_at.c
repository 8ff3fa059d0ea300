/*
 * file_at.c - loops around pread() and pwrite().
 */
#include "client/lora/file_at.h"

#include <errno.h>
#include <unistd.h>

int file_read_at(int fd, void *bytes, uint64_t length, uint64_t offset)
{
	while (length) {
		ssize_t done = pread(fd, bytes, length, (off_t)offset);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return -EIO;
		bytes = (char *)bytes + done;
		length -= (uint64_t)done;
		offset += (uint64_t)done;
	}
	return 0;
}

int file_write_at(int fd, const void *bytes, uint64_t length, uint64_t offset)
{
	while (length) {
		ssize_t done = pwrite(fd, bytes, length, (off_t)offset);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done ? -errno : -EIO;
		bytes = (const char *)bytes + done;
		length -= (uint64_t)done;
		offset += (uint64_t)done;
	}
	return 0;
}
