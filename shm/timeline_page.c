#include "shm/timeline_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* With these seals, the page cannot shrink while readers have it mapped, and only its creator can write to it. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL };

static int page_make(int fd, uint32_t session, struct timeline_page **page)
{
	struct timeline_page *made;
	int error;

	if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)timeline_page_bytes()) < 0)
		return -errno;
	made = mmap(NULL, timeline_page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (made == MAP_FAILED)
		return -errno;
	made->magic = TIMELINE_PAGE_MAGIC;
	made->layout_version = POOL_LAYOUT_VERSION;
	made->session = session;
	if (getrandom(&made->key, sizeof(made->key), 0) != sizeof(made->key))
		error = -EIO;
	else
		error = fcntl(fd, F_ADD_SEALS, SEALS) < 0 ? -errno : 0;
	if (error)
		munmap(made, timeline_page_bytes());
	else
		*page = made;
	return error;
}

int timeline_page_create(uint32_t session, struct timeline_page **page, int *fd)
{
	int error, made = memfd_create("gpool-timeline", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (made < 0)
		return -errno;
	error = page_make(made, session, page);
	if (error)
		close(made);
	else
		*fd = made;
	return error;
}

int timeline_page_verify(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat stat;

	if (seals < 0 || (seals & SEALS) != SEALS)
		return -EPERM;
	if (fstat(fd, &stat) < 0)
		return -errno;
	return S_ISREG(stat.st_mode) && (size_t)stat.st_size == timeline_page_bytes() ? 0 : -EBADMSG;
}

int timeline_page_open(int fd, const struct timeline_page **page)
{
	const struct timeline_page *mapped;
	int error = timeline_page_verify(fd);

	if (error)
		return error;
	mapped = mmap(NULL, timeline_page_bytes(), PROT_READ, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		return -errno;
	if (mapped->magic != TIMELINE_PAGE_MAGIC || mapped->layout_version != POOL_LAYOUT_VERSION) {
		timeline_page_close(mapped);
		return -EPROTO;
	}
	*page = mapped;
	return 0;
}

void timeline_page_close(const struct timeline_page *page)
{
	if (page)
		munmap((void *)(uintptr_t)page, timeline_page_bytes());
}
