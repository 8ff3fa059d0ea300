/* amounts.c - parse durations and amounts of pages on the command line. */
#include "shm/plural.h"
#include "tools/poolctl/poolctl.h"

#include <inttypes.h>
#include <string.h>

static bool duration_parse(const char *text, uint64_t *ns)
{
	static const struct {
		const char *name;
		uint64_t ns;
	} units[] = {
		{"ms", 1000000}, {"s", 1000000000}, {"m", 60000000000}, {"h", 3600000000000}, {"d", 86400000000000}};
	size_t length = strspn(text, "0123456789");
	char digits[8] = "";
	uint64_t number;

	if (length >= sizeof(digits))
		return false;
	memcpy(digits, text, length);
	if (!number_parse(digits, 1, 9999999, &number))
		return false;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (!strcmp(text + length, units[i].name)) {
			*ns = number * units[i].ns;
			return true;
		}
	}
	return false;
}

bool command_since(const struct command *command, uint64_t *since_ns)
{
	const char *text = command->values[OPTION_SINCE];

	*since_ns = 0;
	if (!text || duration_parse(text, since_ns))
		return true;
	complain_usage(command->verb,
		"--since '%s' is not a duration: write a number followed by ms, s, m, h or d, such as 5m", text);
	return false;
}

static bool unit_parse(const char *text, uint64_t *factor)
{
	static const struct {
		const char *name;
		uint64_t factor;
	} units[] = {
		{"KiB", UINT64_C(1) << 10},
		{"MiB", UINT64_C(1) << 20},
		{"GiB", UINT64_C(1) << 30},
		{"TiB", UINT64_C(1) << 40},
	};

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (!strcmp(text, units[i].name)) {
			*factor = units[i].factor;
			return true;
		}
	}
	return false;
}

bool pages_parse(const char *what, const char *text, uint64_t page_bytes, uint32_t page_count, uint32_t *pages)
{
	char digits[24] = "";
	size_t length = strspn(text, "0123456789");
	const char *unit = text + length + strspn(text + length, " ");
	uint64_t number, factor;

	if (length < sizeof(digits))
		memcpy(digits, text, length);
	if (!number_parse(digits, 0, UINT64_C(1) << 40, &number))
		goto refuse;
	if (!strcmp(unit, "%") && number <= 100)
		number = (number * page_count + 99) / 100;
	else if (unit_parse(unit, &factor) && number <= (UINT64_C(1) << 62) / factor)
		number = (number * factor + page_bytes - 1) / page_bytes;
	else if (*unit && strcmp(unit, "pages"))
		goto refuse;
	if (number > page_count) {
		complain("%s '%s' exceeds the size of the pool, %" PRIu32 " page%s", what, text, page_count,
			plural(page_count));
		return false;
	}
	*pages = (uint32_t)number;
	return true;
refuse:
	complain("%s '%s' is not a number of pages: write a number (64), a size (128MiB) or a percentage of the pool "
		 "(10%%)",
		what, text);
	return false;
}
