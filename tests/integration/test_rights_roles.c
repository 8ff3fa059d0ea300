/*
 * test_rights_roles.c - the rights to names of leadership roles that docs/rights.md states.
 *
 * Goal: a name belongs to a trust domain, and is invisible in others. Within a domain it belongs to the tenant that
 * acquired it first, whose sessions may hold the role and adopt the objects published under it. Neither a tenant nor a
 * user can use up the names of a pool.
 *
 * Method: a real gpoold with tenants `red` and `rose` of one domain and `blue` of another.
 *
 * Requirements: S9.
 */
#include "tests/integration/life.h"
#include "tests/lib/temporary.h"

#include "shm/pool_segment.h"

#include <errno.h>
#include <grp.h>
#include <sys/stat.h>

enum {
	GUARANTEED = POOL_ROLES / 2 / 3, /* half of them, for three tenants */
	USER_MOST = POOL_ROLES * 3 / 4,
};

#define POOLS \
	"group = \"\";\n" \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n"
#define APART \
	"tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; }, { name = \"blue\"; users = [ \"2\" ]; " \
	"domain = \"blue\"; },\n" \
	"            { name = \"rose\"; domain = \"red\"; } );\n"

static char config_path[64];
static struct gpool *red, *blue, *rose;

/* ---- fixture ---- */

static void start_config(const char *text)
{
	snprintf(config_path, sizeof(config_path), "%s/gpool-rights-%d.conf", temporary_folder(), (int)getpid());
	harness_config_write(config_path, text);
	start((const char *const[]){"--config", config_path, NULL});
}

static int start_apart(void **state)
{
	(void)state;
	start_config(POOLS APART);
	red = open_as(0, NULL, "red");
	blue = open_as(0, NULL, "blue");
	rose = open_as(0, NULL, "rose");
	return 0;
}

static int stop_config(void **state)
{
	int result;

	gpool_close(red);
	gpool_close(blue);
	gpool_close(rose);
	red = blue = rose = NULL;
	result = harness.pid > 0 ? stop(state) : 0;
	unlink(config_path);
	return result;
}

static void agent_restarts(void)
{
	uint64_t incarnation = atomic_load(&pool_view(admin)->header->incarnation);

	assert_int_equal(kill(process_of("gpoold-agent"), SIGKILL), 0);
	AWAIT(atomic_load(&pool_view(admin)->header->incarnation) != incarnation);
}

/* ---- roles ---- */

static int acquire(struct gpool *pool, const char *name, struct gpool_role *role)
{
	*role = (struct gpool_role)GPOOL_ROLE_INIT;
	return gpool_role_acquire(pool, name, 0, role);
}

static uint32_t holder_for(const struct gpool *pool, const char *name)
{
	uint32_t session = 0;

	assert_int_equal(gpool_role_info(pool, name, &session, NULL), 0);
	return session;
}

static int try_remove(const char *name, const char *domain)
{
	struct msg_role_remove_request request = {.pool = ""};
	struct msg_done_reply done;

	strcpy(request.name, name);
	strcpy(request.domain, domain);
	return ASK_FROM(admin, role_remove_request, &request, done_reply, &done);
}

/* ---- names ---- */

static void test_same_name_in_two_domains(void **state)
{
	struct gpool_role of_red, of_blue, other;
	struct gpool *successor = open_as(0, NULL, "red");

	(void)state;
	assert_int_equal(acquire(red, "main", &of_red), 0);
	assert_int_equal(gpool_role_info(rose, "main", NULL, NULL), 0);
	assert_int_equal(gpool_role_info(blue, "main", NULL, NULL), -ENOENT);
	assert_int_equal(acquire(blue, "main", &of_blue), 0);
	assert_int_equal(holder_for(red, "main"), gpool_session(red));
	assert_int_equal(holder_for(blue, "main"), gpool_session(blue));
	assert_int_equal(acquire(rose, "main", &other), -EACCES);
	assert_int_equal(acquire(successor, "main", &other), -ETIMEDOUT);
	/* A release and the end of a session concern the domain of the session. */
	assert_int_equal(gpool_role_release(blue, &of_blue), 0);
	assert_int_equal(holder_for(blue, "main"), 0);
	assert_int_equal(gpool_role_check(red, &of_red), 0);
	assert_int_equal(acquire(blue, "main", &of_blue), 0);
	gpool_close(red);
	red = NULL;
	AWAIT(holder_for(rose, "main") == 0);
	assert_int_equal(acquire(rose, "main", &other), -EACCES);
	assert_int_equal(acquire(successor, "main", &other), 0);
	assert_true(other.token > of_red.token);
	assert_int_equal(gpool_role_check(blue, &of_blue), 0);
	gpool_close(successor);
}

static void test_names_outlive_an_agent(void **state)
{
	struct gpool_role of_red, of_blue, other;

	(void)state;
	assert_int_equal(acquire(red, "main", &of_red), 0);
	assert_int_equal(acquire(blue, "main", &of_blue), 0);
	agent_restarts();
	assert_int_equal(acquire(rose, "main", &other), -EACCES);
	assert_int_equal(gpool_role_check(red, &of_red), 0);
	assert_int_equal(gpool_role_release(red, &of_red), 0);
	assert_int_equal(gpool_role_check(blue, &of_blue), 0);
	assert_int_equal(acquire(red, "main", &of_red), 0);
	assert_int_equal(holder_for(blue, "main"), gpool_session(blue));
}

/* For an admin, a name that exists in several domains is ambiguous. */
static void test_admin_removes_in_any_domain(void **state)
{
	struct gpool_role of_red, of_blue;

	(void)state;
	assert_int_equal(acquire(red, "main", &of_red), 0);
	assert_int_equal(acquire(blue, "main", &of_blue), 0);
	assert_int_equal(gpool_role_release(blue, &of_blue), 0);
	assert_int_equal(try_remove("main", ""), -EINVAL);
	assert_non_null(strstr(error_text, "several trust domains have a role 'main'"));
	assert_int_equal(try_remove("main", "green"), -ENXIO);
	assert_int_equal(try_remove("main", "red"), -EBUSY);
	assert_int_equal(try_remove("main", "blue"), 0);
	assert_int_equal(gpool_role_info(blue, "main", NULL, NULL), -ENOENT);
	assert_int_equal(gpool_role_check(red, &of_red), 0);
	assert_int_equal(gpool_role_release(red, &of_red), 0);
	assert_int_equal(try_remove("main", ""), 0);
	assert_int_equal(try_remove("main", ""), -ENXIO);
}

static void test_tools_see_domains(void **state)
{
	static struct msg_roles_reply reply;
	struct msg_roles_request request = {.pool = ""};
	struct gpool_role role;

	(void)state;
	assert_int_equal(acquire(red, "main", &role), 0);
	assert_int_equal(acquire(blue, "main", &role), 0);
	ASK(roles_request, &request, roles_reply, &reply);
	assert_int_equal(reply.roles_count, 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_string_equal(reply.roles[i].name, "main");
		assert_string_equal(reply.roles[i].domain_name, reply.roles[i].tenant);
		assert_true(reply.roles[i].domain > 0);
	}
	assert_int_not_equal(reply.roles[0].domain, reply.roles[1].domain);
}

/* ---- objects ---- */

static int publish(struct gpool *pool, const struct gpool_role *role, struct gpool_object **object)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	uint64_t version;
	uint32_t index;

	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.role = "main";
	options.role_token = role->token;
	assert_int_equal(gpool_object_create(pool, "state", &options, object), 0);
	assert_int_equal(gpool_object_alloc(*object, 1, NULL, &index), 0);
	return gpool_object_publish(*object, &version);
}

static int adopt(struct gpool *pool, const struct gpool_role *role)
{
	struct gpool_object_open_options options = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object *object;

	options.flags = GPOOL_OBJECT_ADOPT;
	options.role = "main";
	options.role_token = role->token;
	return gpool_object_open(pool, "state", &options, &object);
}

/* The role of the own domain is checked, although another domain acquired the name first. */
static void test_objects_use_the_role_of_their_domain(void **state)
{
	struct gpool_role of_red, of_blue;
	struct gpool_object *object;

	(void)state;
	assert_int_equal(acquire(red, "main", &of_red), 0);
	assert_int_equal(acquire(blue, "main", &of_blue), 0);
	assert_int_equal(publish(blue, &of_blue, &object), 0);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(adopt(red, &of_red), -ENOENT);
	assert_int_equal(adopt(blue, &of_blue), 0);
	assert_int_equal(publish(red, &of_red, &object), 0);
}

/* A tenant that acquires a name after its removal does not get the objects of the former tenant. */
static void test_a_removed_name_gives_no_right_to_objects(void **state)
{
	struct gpool_role role;
	struct gpool_object *object;

	(void)state;
	assert_int_equal(acquire(red, "main", &role), 0);
	assert_int_equal(publish(red, &role, &object), 0);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_role_release(red, &role), 0);
	assert_int_equal(try_remove("main", ""), 0);
	assert_int_equal(acquire(rose, "main", &role), 0);
	assert_int_equal(adopt(rose, &role), -EPERM);
	assert_non_null(strstr(gpool_last_error(-EPERM), "belongs to tenant 'red'"));
	assert_int_equal(gpool_role_release(rose, &role), 0);
	assert_int_equal(try_remove("main", ""), 0);
	assert_int_equal(acquire(red, "main", &role), 0);
	assert_int_equal(adopt(red, &role), 0);
}

/* ---- shares ---- */

/*
 * Acquire unused names until a refusal, whose text contains `limit`. Return the number of acquired names, or UINT32_MAX
 * after another error. A child of the test calls this too, so it contains no assertion.
 */
static uint32_t acquired(struct gpool *pool, const char *prefix, const char *limit)
{
	struct gpool_role role;
	char name[32];
	int error = 0;

	for (uint32_t i = 0;; i++) {
		snprintf(name, sizeof(name), "%s%u", prefix, i);
		error = acquire(pool, name, &role);
		if (!error)
			continue;
		if (error == -ENOSPC && strstr(gpool_last_error(error), limit))
			return i;
		print_message("role '%s': %d, %s\n", name, error, gpool_last_error(error));
		return UINT32_MAX;
	}
}

static void test_a_tenant_leaves_others_their_names(void **state)
{
	struct gpool *engine;
	struct gpool_role role;

	(void)state;
	assert_int_equal(acquired(red, "a", "limits.tenant_sessions"), POOL_ROLES - 2 * GUARANTEED);
	/* The names stay after the session, and after the agent. Another session of the tenant acquires them. */
	gpool_close(red);
	agent_restarts();
	red = open_as(0, NULL, "red");
	engine = open_as(0, NULL, "red");
	assert_int_equal(acquired(red, "b", "limits.tenant_sessions"), 0);
	AWAIT(holder_for(engine, "a0") == 0);
	assert_int_equal(acquire(engine, "a0", &role), 0);
	assert_int_equal(acquired(blue, "c", "limits.tenant_sessions"), GUARANTEED);
	assert_int_equal(acquired(rose, "d", "64 roles, the limit"), GUARANTEED);
	gpool_close(engine);
}

static int acquire_as(uid_t user)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool;

	if (setgroups(0, NULL) || setgid(user) || setuid(user) || gpool_open(&options, &pool))
		return 1;
	return acquired(pool, "a", "limits.user_sessions") == USER_MOST ? 0 : 2;
}

static void test_a_user_leaves_others_names(void **state)
{
	char path[160];
	int status = -1;
	pid_t pid;

	(void)state;
	if (geteuid() != 0) {
		puts("needs root, to be another user");
		skip();
	}
	start_config(POOLS);
	snprintf(path, sizeof(path), "%s/attach", harness.directory);
	assert_int_equal(chmod(path, 0666), 0);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(acquire_as(65534));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	red = open_worker();
	assert_int_equal(acquired(red, "b", "64 roles, the limit"), POOL_ROLES - USER_MOST);
}

int main(int argc, char **argv)
{
#define APART_TEST(name) cmocka_unit_test_setup_teardown(test_##name, start_apart, stop_config)
	const struct CMUnitTest tests[] = {
		APART_TEST(same_name_in_two_domains),
		APART_TEST(names_outlive_an_agent),
		APART_TEST(admin_removes_in_any_domain),
		APART_TEST(tools_see_domains),
		APART_TEST(objects_use_the_role_of_their_domain),
		APART_TEST(a_removed_name_gives_no_right_to_objects),
		APART_TEST(a_tenant_leaves_others_their_names),
		cmocka_unit_test_teardown(test_a_user_leaves_others_names, stop_config),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
