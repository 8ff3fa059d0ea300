/* doctor.c - check this machine and print advice. */
#include "tools/poolctl/doctor.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/view.h"

#include "proto/codec.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	enum color color;
} verdicts[DOCTOR_VERDICTS] = {
	[DOCTOR_OK] = {"ok", COLOR_GREEN},
	[DOCTOR_INFO] = {"info", COLOR_NONE},
	[DOCTOR_WARN] = {"warn", COLOR_YELLOW},
	[DOCTOR_FAIL] = {"fail", COLOR_RED},
};

void doctor_add(struct doctor *doctor, enum doctor_verdict verdict, const char *thing, const char *format, ...)
{
	struct doctor_line *line;
	char text[sizeof(line->found)];
	va_list arguments;

	doctor->lines = list_grow(doctor->lines, doctor->count, &doctor->capacity, sizeof(*doctor->lines));
	line = &doctor->lines[doctor->count++];
	memset(line, 0, sizeof(*line));
	line->verdict = verdict;
	line->thing = thing;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	/* sanitize paths, device names and file contents, which are untrusted */
	msg_text_copy(line->found, sizeof(line->found), text);
}

void doctor_advise(struct doctor *doctor, const char *format, ...)
{
	struct doctor_line *line = &doctor->lines[doctor->count - 1];
	char text[sizeof(line->advice)];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	msg_text_copy(line->advice, sizeof(line->advice), text);
}

bool doctor_read(const char *path, char *text, size_t size)
{
	FILE *file = fopen(path, "re");
	bool read;

	if (!file)
		return false;
	read = fgets(text, (int)size, file) != NULL;
	fclose(file);
	if (read)
		text[strcspn(text, "\n")] = '\0';
	return read;
}

static void doctor_table(const struct command *command, const struct doctor *doctor)
{
	struct table *table = table_create(" |CHECK|RESULT");

	for (uint32_t i = 0; i < doctor->count; i++) {
		const struct doctor_line *line = &doctor->lines[i];

		table_cell_color(table, verdicts[line->verdict].color, "%s", verdicts[line->verdict].name);
		table_cell(table, "%s", line->thing);
		table_cell(table, "%s", line->found);
		if (!line->advice[0])
			continue;
		/* on a separate line: advice is long, and the table stays narrow */
		table_cell(table, "%s", "");
		table_cell(table, "%s", "");
		table_cell_color(table, COLOR_BOLD, "-> %s", line->advice);
	}
	table_print(command, table);
	table_destroy(table);
}

static void doctor_json(const struct command *command, const struct doctor *doctor, const uint32_t *counts)
{
	cJSON *document = json_document("doctor"), *list;

	for (int i = 0; i < DOCTOR_VERDICTS; i++)
		json_number(document, verdicts[i].name, counts[i]);
	list = json_array(document, "lines");
	for (uint32_t i = 0; i < doctor->count; i++) {
		cJSON *to = json_item(list);

		json_text(to, "verdict", verdicts[doctor->lines[i].verdict].name);
		json_text(to, "thing", doctor->lines[i].thing);
		json_text(to, "found", doctor->lines[i].found);
		if (doctor->lines[i].advice[0])
			json_text(to, "advice", doctor->lines[i].advice);
	}
	json_print(command, document, false);
}

int doctor_run(const struct command *command)
{
	struct doctor doctor = {.lines = NULL};
	uint32_t counts[DOCTOR_VERDICTS] = {0};

	if (command->pool)
		return complain_usage(command->verb, "'doctor' checks the whole machine and does not take --pool");
	doctor_agent(&doctor, command);
	doctor_gpu(&doctor);
	doctor_kernel(&doctor);
	doctor_limits(&doctor);
	for (uint32_t i = 0; i < doctor.count; i++)
		counts[doctor.lines[i].verdict]++;
	if (command->json) {
		doctor_json(command, &doctor, counts);
	} else {
		doctor_table(command, &doctor);
		print(command, "%u ok, %u info, %u warn, %u fail\n", counts[DOCTOR_OK], counts[DOCTOR_INFO],
			counts[DOCTOR_WARN], counts[DOCTOR_FAIL]);
	}
	free(doctor.lines);
	return counts[DOCTOR_FAIL] ? CODE_FOUND : CODE_OK;
}
