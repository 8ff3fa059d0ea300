/*
 * standard_files.h - replacements for closed standard files. Otherwise a socket that the program opens would receive
 * its output, because open() and socket() return the lowest free descriptor.
 */
#ifndef GPOOL_SHM_STANDARD_FILES_H
#define GPOOL_SHM_STANDARD_FILES_H

#include <fcntl.h>
#include <unistd.h>

/*
 * Open /dev/null as each closed standard file, such that its use fails with EBADF as before: standard input without
 * read access, both outputs without write access. Call it at the start of main(). Child processes inherit the files.
 */
static inline void standard_files_open(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
			return;
}

#endif
