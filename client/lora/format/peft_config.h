/*
 * peft_config.h - adapter_config.json of a PEFT directory: the keys that affect the result of a LoRA adapter.
 *
 * An adapter is refused, with a reason, if it is not applied as y += scale * B (A x), or if it needs other files.
 * Unknown keys are ignored, as PEFT does, because each version of PEFT adds some.
 */
#ifndef GPOOL_CLIENT_LORA_PEFT_CONFIG_H
#define GPOOL_CLIENT_LORA_PEFT_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "client/lora/format/reason.h"

enum {
	PEFT_CONFIG_BYTES_MAX = 1 << 20,
	PEFT_PATTERNS_MAX = 1024,
	PEFT_PATTERN_BYTES_MAX = 1023,
};

/*
 * Values for modules by expressions over their paths, in the order of the file. The first expression that matches
 * applies.
 */
struct peft_patterns {
	struct peft_pattern *patterns; /* [count] */
	uint32_t count;
};

struct peft_config {
	double rank, alpha;
	bool rslora; /* the scale is alpha / sqrt(rank), not alpha / rank */
	struct peft_patterns ranks, alphas;
};

/*
 * peft_config_parse() - read a configuration. text: [bytes]. Return: 0, and peft_config_free() must be called;
 * -EINVAL, with a reason; -ENOMEM.
 */
int peft_config_parse(const char *text, uint64_t bytes, struct peft_config *config, struct reason *reason);
/* peft_config_size() - get and check the size of the file. Return: 0; -EINVAL, with a reason; -EIO. */
int peft_config_size(int fd, uint64_t *bytes, struct reason *reason);
/* peft_config_read() - read a configuration from a file. Return: as peft_config_parse(), or -EIO. */
int peft_config_read(int fd, struct peft_config *config, struct reason *reason);
void peft_config_free(struct peft_config *config);

/*
 * peft_config_rank(), peft_config_alpha() - get the rank or alpha that the configuration has for the module with this
 * path. Return: 0; -EINVAL: an expression needs too many steps for this path. Cost: expressions are tried up to the
 * first that matches, with at most PEFT_PATTERN_STEPS steps each.
 */
enum { PEFT_PATTERN_STEPS = 5000 };
int peft_config_rank(const struct peft_config *config, const char *path, double *value, struct reason *reason);
int peft_config_alpha(const struct peft_config *config, const char *path, double *value, struct reason *reason);

#endif
