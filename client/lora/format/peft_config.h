/*
 * peft_config.h - adapter_config.json of a PEFT directory: what of it decides how a LoRA adapter is applied.
 *
 * An adapter that would be applied in another way than y += scale * B (A x), or not by its own files alone, is refused
 * with the reason. Keys that are not known are let be, as PEFT does it, which adds some with each version.
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

/* Expressions over modules' paths, in the order of the file: the first that fits gives the value. */
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
 * peft_config_parse() - text: [bytes]. Return: 0, and peft_config_free() is to be called; -EINVAL, with a reason;
 * -ENOMEM.
 */
int peft_config_parse(const char *text, uint64_t bytes, struct peft_config *config, struct reason *reason);
/* peft_config_size() - how long the file is: 0; -EINVAL, with a reason, if it can be none; -EIO. */
int peft_config_size(int fd, uint64_t *bytes, struct reason *reason);
/* peft_config_read() - the same, of a descriptor: also -EIO. */
int peft_config_read(int fd, struct peft_config *config, struct reason *reason);
void peft_config_free(struct peft_config *config);

/*
 * peft_config_rank() - of the module with that path, as the file says; _alpha() likewise. *value is set. Return: 0;
 * -EINVAL: an expression needs too many steps on that path. Cost: each expression is tried up to the first that fits,
 * at most PEFT_PATTERN_STEPS each.
 */
enum { PEFT_PATTERN_STEPS = 5000 };
int peft_config_rank(const struct peft_config *config, const char *path, double *value, struct reason *reason);
int peft_config_alpha(const struct peft_config *config, const char *path, double *value, struct reason *reason);

#endif
