#include "tools/demo/progress.h"

#include "shm/monotonic.h"
#include "shm/plural.h"
#include "tools/lib/text.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TERMINAL_US = 250 * 1000, PLAIN_US = 2000 * 1000 };

void progress_init(struct progress *progress)
{
	memset(progress, 0, sizeof *progress);
	progress->terminal = isatty(2);
}

static void count_finished(const struct board *board, uint64_t *finished, uint64_t *tokens)
{
	*finished = *tokens = 0;
	for (uint32_t i = 0; i < board->header->request_count; i++)
		if (atomic_load_explicit(&board->marks[i].state, memory_order_relaxed) >= BOARD_DONE) {
			++*finished;
			*tokens += (uint64_t)board->requests[i].context_tokens + board->requests[i].generated_tokens;
		}
}

static int columns(void)
{
	struct winsize size;

	return ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

void progress_show(
	struct progress *progress, const struct plan *plan, const struct run *run, const struct board *board, bool last)
{
	uint64_t now_us = monotonic_us(), finished, tokens, waits = 0, lost = 0;
	const struct run_sample *sample = run->sample_count ? &run->samples[run->sample_count - 1] : NULL;
	char line[512], number[TEXT_BYTES];
	int length;

	if (plan->quiet || (!last && now_us < progress->next_us))
		return;
	progress->next_us = now_us + (progress->terminal ? TERMINAL_US : PLAIN_US);
	count_finished(board, &finished, &tokens);
	length = snprintf(line, sizeof line, "%-6s %5.1f s  %llu/%u request%s  %s tokens",
		run->split ? "split" : "shared", (double)board_now_us(board) / 1e6, (unsigned long long)finished,
		board->header->request_count, plural(board->header->request_count), text_rate(number, (double)tokens));
	for (int i = 0; i < BOARD_ENGINES; i++) {
		const struct board_engine *engine = &board->header->engines[i];

		waits += atomic_load_explicit(&engine->waits, memory_order_relaxed);
		lost += atomic_load_explicit(&engine->prefix_losses, memory_order_relaxed);
		if (sample && (size_t)length < sizeof line)
			length += snprintf(line + length, sizeof line - (size_t)length, "  %s %u needed, %u offered",
				engine->name, sample->engines[i].needed_pages, sample->engines[i].offered_pages);
	}
	if ((size_t)length < sizeof line)
		snprintf(line + length, sizeof line - (size_t)length, "  waits %llu  evicted %llu  kills %u",
			(unsigned long long)waits, (unsigned long long)lost, run->kill_count);
	if (progress->terminal)
		fprintf(stderr, "\r\033[K%.*s", columns() - 1, line);
	else
		fprintf(stderr, "%s\n", line);
	fflush(stderr);
	progress->open = progress->terminal;
}

void progress_end(struct progress *progress)
{
	if (progress->open)
		fputc('\n', stderr);
	progress->open = false;
}
