#include "client/lora/format/file_at.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR: return "a directory";
	case S_IFIFO: return "a pipe";
	case S_IFSOCK: return "a socket";
	default: return "a device";
	}
}

int file_size(int fd, const char *name, uint64_t *bytes, struct reason *reason)
{
	struct stat status;

	if (fstat(fd, &status)) {
		refuse(reason, "cannot read %s: %s", name, strerror(errno));
		return -EIO;
	}
	if (!S_ISREG(status.st_mode))
		return refuse(reason, "%s is %s, not a regular file", name, kind_of(status.st_mode));
	*bytes = (uint64_t)status.st_size;
	return *bytes ? 0 : refuse(reason, "%s is empty", name);
}

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

bool file_is_sealed(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && seals & F_SEAL_WRITE && seals & F_SEAL_SHRINK && seals & F_SEAL_GROW;
}
