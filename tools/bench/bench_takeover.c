/*
 * bench_takeover.c - the time during which a leadership role has no active holder.
 *
 * The time begins when the holder is killed or releases the role. One figure ends when the standby has the role;
 * another ends when the standby has opened the object that the holder published. Holder and standby are separate
 * processes; both use the same clock.
 */
#include "tools/bench/bench.h"

#include "shm/pool_segment.h"
#include "tools/lib/dependent.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POOL_PAGES = 40960, OBJECT_PAGES = 64, PATIENCE_MS = 60000, LOOK_MS = 1 };
#define ROLE "takeover"
#define OBJECT "kv"

/* A message between the processes: a time, or negative errno. */
struct word {
	int64_t value;
};

static int say(int to, int64_t value)
{
	struct word word = {value};

	return write(to, &word, sizeof(word)) == sizeof(word) ? 0 : -EPIPE;
}

static int hear(int from, int64_t *value)
{
	struct pollfd look = {.fd = from, .events = POLLIN};
	struct word word;

	if (poll(&look, 1, PATIENCE_MS) != 1)
		return -ETIMEDOUT;
	if (read(from, &word, sizeof(word)) != sizeof(word))
		return -EPIPE;
	*value = word.value;
	return word.value < 0 ? (int)word.value : 0;
}

/* Publish the object that the next holder adopts. */
static int publish(struct gpool *pool, const struct gpool_role *role)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;
	int error;

	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.role = ROLE;
	options.role_token = role->token;
	error = gpool_object_create(pool, OBJECT, &options, &object);
	if (!error)
		error = gpool_object_alloc(object, OBJECT_PAGES, NULL, &index);
	return error ? error : gpool_object_publish(object, &version);
}

static int adopt(struct gpool *pool, const struct gpool_role *role)
{
	struct gpool_object_open_options options = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object *object;

	options.flags = GPOOL_OBJECT_ADOPT;
	options.role = ROLE;
	options.role_token = role->token;
	return gpool_object_open(pool, OBJECT, &options, &object);
}

/*
 * Acquire the role and allocate every page, and report that. On request, release the role and report the time of the
 * release.
 */
static _Noreturn void hold(const struct bench *bench, int orders, int say_to)
{
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct gpool *pool;
	int64_t go;
	uint64_t begin;
	int error;

	error = daemon_open(bench, 0, &pool);
	if (!error)
		error = gpool_role_acquire(pool, ROLE, PATIENCE_MS, &role);
	if (!error)
		error = publish(pool, &role);
	for (unsigned i = OBJECT_PAGES; i < POOL_PAGES && !error; i++) {
		struct gpool_block block;

		error = gpool_alloc(pool, 1, NULL, &block);
	}
	if (say(say_to, error) || hear(orders, &go))
		_exit(1);
	begin = monotonic_ns();
	error = gpool_role_release(pool, &role);
	say(say_to, error ? error : (int64_t)begin);
	for (;;)
		pause();
}

static _Noreturn void stand_by(const struct bench *bench, int say_to, int by_force)
{
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct gpool *pool;
	int error;

	error = daemon_open(bench, 0, &pool);
	if (!error)
		error = gpool_role_acquire(pool, ROLE, PATIENCE_MS, &role);
	say(say_to, error ? error : (int64_t)monotonic_ns());
	if (by_force) {
		error = adopt(pool, &role);
		say(say_to, error ? error : (int64_t)monotonic_ns());
	}
	for (;;)
		pause();
}

struct scene {
	pid_t holder, standby;
	int orders[2], of_holder[2], of_standby[2];
};

static pid_t start(const struct bench *bench, struct scene *scene, int is_holder, int by_force)
{
	pid_t pid = dependent_fork(SIGKILL);

	if (pid)
		return pid;
	if (is_holder)
		hold(bench, scene->orders[0], scene->of_holder[1]);
	stand_by(bench, scene->of_standby[1], by_force);
}

static int await_standby(const struct bench *bench)
{
	const struct pool_segment *view = pool_view(bench->control);

	for (int tries = 0; tries < PATIENCE_MS / LOOK_MS; tries++) {
		for (uint32_t i = 0; i < POOL_ROLES; i++)
			if (atomic_load(&view->roles[i].waiters))
				return 0;
		poll(NULL, 0, LOOK_MS);
	}
	return -ETIMEDOUT;
}

static int scene_play(struct bench *bench, struct scene *scene, int by_force)
{
	int64_t begin, held, adopted = 0;
	int error;

	scene->holder = start(bench, scene, 1, by_force);
	if (scene->holder < 0)
		return -errno;
	error = hear(scene->of_holder[0], &begin);
	if (error)
		return error;
	scene->standby = start(bench, scene, 0, by_force);
	if (scene->standby < 0)
		return -errno;
	error = await_standby(bench);
	if (error)
		return error;
	if (by_force) {
		begin = (int64_t)monotonic_ns();
		kill(scene->holder, SIGKILL);
	} else {
		error = say(scene->orders[1], 0);
		if (!error)
			error = hear(scene->of_holder[0], &begin);
	}
	if (!error)
		error = hear(scene->of_standby[0], &held);
	if (!error && by_force)
		error = hear(scene->of_standby[0], &adopted);
	if (error)
		return error;
	if (!by_force) {
		bench_sample(bench, FIGURE_handover, (double)(held - begin) / 1e3);
		return 0;
	}
	bench_sample(bench, FIGURE_takeover, (double)(held - begin) / 1e6);
	bench_sample(bench, FIGURE_takeover_object, (double)(adopted - begin) / 1e6);
	return 0;
}

static void process_end(pid_t pid)
{
	if (pid <= 0)
		return;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static int sample(struct bench *bench, int by_force)
{
	struct scene scene = {.holder = 0};
	int *const pipes[] = {scene.orders, scene.of_holder, scene.of_standby};
	int count = 0, error = 0;

	for (; count < 3 && !error; count++)
		error = pipe(pipes[count]) < 0 ? -errno : 0;
	if (error)
		count--;
	else
		error = scene_play(bench, &scene, by_force);
	process_end(scene.holder);
	process_end(scene.standby);
	while (count-- > 0) {
		close(pipes[count][0]);
		close(pipes[count][1]);
	}
	/* The object outlives both processes. It does not exist if it was never published. */
	if (!error) {
		error = gpool_object_delete(bench->control, OBJECT, 0);
		error = error == -ENOENT ? 0 : error;
	}
	return error ? error : daemon_wait_free(bench, NULL);
}

int bench_takeover(struct bench *bench)
{
	int error;

	error = daemon_start(bench, POOL_PAGES, NULL);
	if (error)
		return error;
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		error = sample(bench, 1);
		if (!error)
			error = sample(bench, 0);
	}
	if (error)
		bench_complain(bench, error, "a call failed");
	daemon_stop(bench);
	return error;
}
