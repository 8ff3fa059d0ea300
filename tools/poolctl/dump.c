/* dump.c - a snapshot of the shared tables, for --offline FILE. */
#include "shm/plural.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/pieces.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

static void dump_print(const struct command *command, const char *path, const struct pieces *pieces)
{
	uint32_t pools = 0;
	struct stat stat;
	cJSON *document;

	for (uint32_t i = 0; i < pieces->count; i++)
		pools += pieces->list[i].kind == PIECE_POOL;
	if (lstat(path, &stat) < 0)
		stat.st_size = 0;
	if (command->json) {
		document = json_document("dump");
		json_text(document, "file", path);
		json_number(document, "pools", pools);
		json_number(document, "sessions", pieces->count - pools);
		json_number(document, "bytes", (uint64_t)stat.st_size);
		json_number(document, "time_ms", pieces->time_ms);
		json_print(command, document, false);
		return;
	}
	print(command, "'%s': %" PRIu32 " pool%s, %" PRIu32 " session%s%s, %s\n", path, pools, plural(pools),
		pieces->count - pools, plural(pieces->count - pools),
		pieces->count == pools && !pieces->keeper ? " (only root can dump sessions)" : "",
		bytes_text((uint64_t)stat.st_size).text);
}

int dump_run(const struct command *command)
{
	const char *path = command->arguments[0];
	struct pieces pieces = {.list = NULL};
	int code;

	code = pieces_gather(command, &pieces);
	if (!code)
		code = snapshot_write(path, &pieces);
	if (!code)
		dump_print(command, path, &pieces);
	pieces_close(&pieces);
	return code;
}
