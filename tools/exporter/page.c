/* page.c - the file page.html, as bytes. */
#include "tools/exporter/live.h"

#include <stdlib.h>
#include <string.h>

__asm__(".pushsection .rodata\n"
	".global exporter_page\n"
	".global exporter_page_end\n"
	"exporter_page:\n"
	".incbin \"tools/exporter/page.html\"\n"
	"exporter_page_end:\n"
	".byte 0\n"
	".popsection\n");
extern const char exporter_page[], exporter_page_end[];

void live_page(void *context, const struct http_request *request, struct http_answer *answer)
{
	(void)context, (void)request;
	answer->bytes = (size_t)(exporter_page_end - exporter_page);
	answer->body = malloc(answer->bytes);
	if (!answer->body) {
		http_text(answer, 503, "out of memory\n");
		return;
	}
	memcpy(answer->body, exporter_page, answer->bytes);
	answer->type = "text/html; charset=utf-8";
}
