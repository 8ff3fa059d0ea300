#include "agent/keeper/directory.h"

#include "agent/base/log.h"
#include "agent/config/config_value.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int make(const char *path, mode_t mode, uid_t uid, gid_t gid, bool *created)
{
	*created = mkdir(path, mode) == 0;
	if (!*created && errno != EEXIST)
		return -errno;
	/* Set the mode regardless of the umask. An existing directory keeps the mode that its owner chose. */
	if (*created && ((geteuid() == 0 && chown(path, uid, gid) < 0) || chmod(path, mode) < 0))
		return -errno;
	return 0;
}

/* Check that the directory belongs to this user or root and is not writable by all users. */
static int trusted(const char *path)
{
	struct stat stat;

	if (lstat(path, &stat) < 0)
		return -errno;
	if (!S_ISDIR(stat.st_mode))
		return -ENOTDIR;
	if ((stat.st_uid != geteuid() && stat.st_uid != 0) || stat.st_mode & S_IWOTH)
		return -EPERM;
	return 0;
}

static int lock_busy(struct directory *directory)
{
	char text[32] = "";
	ssize_t length = read(directory->lock_fd, text, sizeof(text) - 1);

	text[length > 0 ? length : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	log_error("another gpoold (pid %s) uses '%s'; stop it or choose another runtime_dir", text,
		directory->config->runtime_dir);
	return -EBUSY;
}

/*
 * Try to lock the pid file. Return -ESTALE if the locked file no longer has this name, because its owner has removed it
 * in the meantime.
 */
static int lock_once(struct directory *directory)
{
	struct stat mine, named;
	char text[32];
	int length;

	directory->lock_fd = open(directory->pid_file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (directory->lock_fd < 0)
		return -errno;
	while (flock(directory->lock_fd, LOCK_EX | LOCK_NB) < 0)
		if (errno != EINTR)
			return errno == EWOULDBLOCK ? lock_busy(directory) : -errno;
	if (fstat(directory->lock_fd, &mine) < 0)
		return -errno;
	if (stat(directory->pid_file, &named) < 0 || named.st_dev != mine.st_dev || named.st_ino != mine.st_ino)
		return -ESTALE;
	directory->locked = true;
	length = snprintf(text, sizeof(text), "%d\n", (int)getpid());
	if (ftruncate(directory->lock_fd, 0) < 0 || pwrite(directory->lock_fd, text, (size_t)length, 0) != length)
		return -errno;
	return 0;
}

static int lock(struct directory *directory)
{
	int error;

	do {
		error = lock_once(directory);
		if (error && !directory->locked && directory->lock_fd >= 0) {
			close(directory->lock_fd);
			directory->lock_fd = -1;
		}
	} while (error == -ESTALE);
	return error;
}

/* ---- the check ---- */

/*
 * Check that the file system of a directory creates files. That of /proc creates none, whatever its permissions. A file
 * without a name leaves no trace; where the file system does not support it, create a directory and remove it.
 */
static int creates(const char *path)
{
	char made[CONFIG_PATH_BYTES + 16];
	int fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);

	if (fd >= 0) {
		close(fd);
		return 0;
	}
	snprintf(made, sizeof(made), "%s/.gpoold-XXXXXX", path);
	if (!mkdtemp(made))
		return -errno;
	rmdir(made);
	return 0;
}

/* Check that this process can create files in the directory or, if it does not exist, create it. */
static int usable(const char *path)
{
	char above[CONFIG_PATH_BYTES];
	int error = trusted(path);

	if (error && error != -ENOENT)
		return error;
	snprintf(above, sizeof(above), "%s", path);
	if (error)
		path = dirname(above);
	return faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) < 0 ? -errno : creates(path);
}

/*
 * Check that no name in the directory is used for something else. If a socket cannot be created because of its name,
 * each start of the front would fail, and nanomsg removes a regular file with that name.
 */
static int names_check(const struct config *config, struct config_error *error)
{
	static const struct {
		const char *verb, *name, *kind;
		mode_t type;
	} names[] = {
		{"lock", "gpoold.pid", "a regular file", S_IFREG},
		{"listen at", "attach", "a socket", S_IFSOCK},
		{"use", "nn", "a directory", S_IFDIR},
		{"listen at", "nn/control", "a socket", S_IFSOCK},
		{"listen at", "nn/events", "a socket", S_IFSOCK},
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char path[CONFIG_PATH_BYTES + 16];
		struct stat stat;

		snprintf(path, sizeof(path), "%s/%s", config->runtime_dir, names[i].name);
		if (lstat(path, &stat) == 0 && (stat.st_mode & S_IFMT) != names[i].type)
			return config_fail(error, -EEXIST,
				"cannot %s '%s': it exists and is not %s; remove it or choose another runtime_dir",
				names[i].verb, path, names[i].kind);
	}
	return 0;
}

/*
 * In a child with the rights of the front: return the length of the shortest prefix of path that is not accessible, or
 * 0 if all of it that exists is. The length is limited to 255, the maximum of an exit status.
 */
static int find_barrier(char *path, uid_t uid, gid_t gid)
{
	if (setgroups(0, NULL) < 0 || setgid(gid) < 0 || setuid(uid) < 0)
		return 0; /* the front will report the error itself */
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (access(path, X_OK) < 0)
			break;
		*slash = '/';
	}
	if (access(path, W_OK | X_OK) == 0 || errno == ENOENT)
		return 0;
	return strlen(path) < 255 ? (int)strlen(path) : 255;
}

/* Return the directory of the front's sockets without symbolic links. The runtime directory may not exist yet. */
static int front_path(const struct config *config, char path[PATH_MAX])
{
	char above[CONFIG_PATH_BYTES], last[CONFIG_PATH_BYTES], name[CONFIG_PATH_BYTES + 1] = "";
	const char *existing = config->runtime_dir;

	if (access(existing, F_OK) < 0) {
		snprintf(above, sizeof(above), "%s", config->runtime_dir);
		snprintf(last, sizeof(last), "%s", config->runtime_dir);
		snprintf(name, sizeof(name), "/%s", basename(last));
		existing = dirname(above);
	}
	if (!realpath(existing, path))
		return -errno;
	if (strlen(path) + strlen(name) + sizeof("/nn") > PATH_MAX)
		return -ENAMETOOLONG;
	strcat(strcat(path, name), "/nn");
	return 0;
}

/*
 * Check that the front, which runs as another user, can create its sockets. Otherwise each start of the front would
 * fail, and no request would be answered.
 */
static int front_can_listen(const struct config *config, struct config_error *error)
{
	char path[PATH_MAX];
	int status = 0, code = front_path(config, path);
	pid_t child;

	if (code)
		return config_fail(error, code, "cannot use directory '%s': %s", config->runtime_dir, strerror(-code));
	child = fork();
	if (child == 0)
		_exit(find_barrier(path, config->front_uid, config->front_gid));
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (child <= 0 || !WIFEXITED(status) || !WEXITSTATUS(status))
		return 0;
	if (WEXITSTATUS(status) == (int)strlen(path))
		return config_fail(error, -EACCES,
			"front_user '%s' has no write permission for '%s', in which it creates the control sockets; "
			"remove the directory, or run chown %s on it",
			config->front_user, path, config->front_user);
	return config_fail(error, -EACCES,
		"front_user '%s' has no search permission for '%.*s' and cannot create the control sockets in '%s/nn'; "
		"run chmod o+x on it, or choose another runtime_dir",
		config->front_user, WEXITSTATUS(status), path, config->runtime_dir);
}

static int unusable(const struct config *config, int code, struct config_error *error)
{
	struct stat stat;
	bool exists = lstat(config->runtime_dir, &stat) == 0 && S_ISDIR(stat.st_mode);

	if (exists && code == -EPERM && stat.st_mode & S_IWOTH)
		return config_fail(error, code,
			"cannot use directory '%s': its mode is %04o, so every user can write to it; run chmod o-w on "
			"it, or choose another runtime_dir",
			config->runtime_dir, (unsigned)stat.st_mode & 07777);
	if (exists && code == -ENOENT)
		return config_fail(error, code,
			"cannot use directory '%s': its file system does not support new files; choose another "
			"runtime_dir",
			config->runtime_dir);
	return config_fail(error, code,
		"cannot use directory '%s': %s; create it so that it belongs to this user and is not writable by "
		"others, "
		"or choose another runtime_dir",
		config->runtime_dir, strerror(-code));
}

int directory_check(const struct config *config, struct config_error *error)
{
	int code = usable(config->runtime_dir);

	if (code)
		return unusable(config, code, error);
	code = names_check(config, error);
	if (code || geteuid() != 0 || config->front_uid == 0)
		return code;
	return front_can_listen(config, error);
}

/* ---- open and close ---- */

int directory_open(struct directory *directory, const struct config *config)
{
	gid_t gid = config->group[0] ? config->group_id : getegid();
	struct config_error why;
	bool front_created;
	int error;

	memset(directory, 0, sizeof(*directory));
	directory->config = config;
	directory->lock_fd = -1;
	snprintf(directory->attach, sizeof(directory->attach), "%s/attach", config->runtime_dir);
	snprintf(directory->front, sizeof(directory->front), "%s/nn", config->runtime_dir);
	snprintf(directory->pid_file, sizeof(directory->pid_file), "%s/gpoold.pid", config->runtime_dir);
	snprintf(directory->control_url, sizeof(directory->control_url), "ipc://%s/control", directory->front);
	snprintf(directory->events_url, sizeof(directory->events_url), "ipc://%s/events", directory->front);
	error = directory_check(config, &why);
	/*
	 * Other users, such as the front's, can pass through the directory but not list it. The sockets in it have
	 * their own modes.
	 */
	if (!error) {
		error = make(config->runtime_dir, 0751, geteuid(), gid, &directory->created);
		if (!error)
			error = trusted(config->runtime_dir);
		if (error)
			unusable(config, error, &why);
	}
	if (error) {
		log_error("%s", why.text);
		return error;
	}
	error = lock(directory);
	if (error == -EBUSY)
		return error;
	if (error) {
		log_error("cannot lock '%s': %s", directory->pid_file, strerror(-error));
		return error;
	}
	/* setgid: files of the front get the pool's group, although the front is not a member of it */
	error = make(directory->front, 02750, config->front_uid, gid, &front_created);
	if (error) {
		log_error("cannot create '%s': %s", directory->front, strerror(-error));
		return error;
	}
	return 0;
}

void directory_close(struct directory *directory)
{
	char path[192];

	if (directory->listening) {
		snprintf(path, sizeof(path), "%s/control", directory->front);
		unlink(path);
		snprintf(path, sizeof(path), "%s/events", directory->front);
		unlink(path);
		unlink(directory->attach);
	}
	if (directory->locked) {
		rmdir(directory->front);
		unlink(directory->pid_file);
	}
	if (directory->lock_fd >= 0)
		close(directory->lock_fd);
	/* This fails if the directory is not empty, because another process uses it. */
	if (directory->created)
		rmdir(directory->config->runtime_dir);
}
