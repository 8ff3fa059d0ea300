#include "tools/lib/chart.h"

#include "tools/lib/cli.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { LEFT = CHART_LEFT, RIGHT = CHART_RIGHT, TOP = CHART_TOP, BOTTOM = CHART_BOTTOM };

/* Print untrusted text, such as a file name, escaped for SVG. */
static void chart_escape(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '&')
			fputs("&amp;", out);
		else if (*text == '<')
			fputs("&lt;", out);
		else if ((unsigned char)*text < ' ')
			fputc('?', out);
		else
			fputc(*text, out);
	}
}

double chart_x(const struct chart *chart, double x)
{
	return LEFT + (chart->width - LEFT - RIGHT) * (chart->x_most > 0 ? x / chart->x_most : 0);
}

double chart_y(const struct chart *chart, double y)
{
	return chart->height - BOTTOM - (chart->height - TOP - BOTTOM) * (chart->y_most > 0 ? y / chart->y_most : 0);
}

/* Return 1, 2 or 5 times a power of ten, about 1/`parts` of `most`. */
static double round_step(double most, int parts)
{
	double raw = most > 0 ? most / parts : 1, power = pow(10, floor(log10(raw))), rest = raw / power;

	return power * (rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 5 ? 5 : 10);
}

void chart_begin(const struct chart *chart, const char *label, const char *y_name)
{
	const char *(*y_text)(char text[TEXT_BYTES], uint64_t value) = chart->y_text ? chart->y_text : text_count;
	double step = chart->y_step > 0 ? chart->y_step : round_step(chart->y_most, 4);
	char number[TEXT_BYTES];

	fprintf(chart->out, "<svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\"",
		chart->width, chart->height, label);
	if (chart->within)
		fprintf(chart->out, " x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"", chart->left, chart->top,
			chart->width, chart->height);
	fputs(">\n", chart->out);
	for (double y = 0; y <= chart->y_most * 1.0001; y += step) {
		fprintf(chart->out, "<line class=\"grid\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT,
			chart->width - RIGHT, chart_y(chart, y), chart_y(chart, y));
		fprintf(chart->out, "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
			LEFT - 8, chart_y(chart, y) + 4, y_text(number, (uint64_t)(y + 0.5)));
	}
	fprintf(chart->out, "<text class=\"name\" x=\"%d\" y=\"12\">%s</text>\n", LEFT, y_name);
}

void chart_area(const struct chart *chart, const struct chart_curve *curve)
{
	if (curve->count == 0)
		return;
	fprintf(chart->out, "<path class=\"area %s\" data-points=\"%zu\" d=\"M", curve->css_class, curve->count);
	for (size_t i = 0; i < curve->count; i++)
		fprintf(chart->out, "%s%.1f %.1f", i ? "L" : "", chart_x(chart, curve->x[i]),
			chart_y(chart, curve->high[i]));
	for (size_t i = curve->count; i-- > 0;)
		fprintf(chart->out, "L%.1f %.1f", chart_x(chart, curve->x[i]),
			chart_y(chart, curve->low ? curve->low[i] : 0));
	fprintf(chart->out, "Z\"><title>%s</title></path>\n", curve->title);
}

void chart_line(const struct chart *chart, const struct chart_curve *curve)
{
	if (curve->count == 0)
		return;
	fprintf(chart->out, "<path class=\"line %s\" data-points=\"%zu\" d=\"M", curve->css_class, curve->count);
	for (size_t i = 0; i < curve->count; i++)
		fprintf(chart->out, "%s%.1f %.1f", i ? "L" : "", chart_x(chart, curve->x[i]),
			chart_y(chart, curve->high[i]));
	fprintf(chart->out, "\"><title>%s</title></path>\n", curve->title);
}

void chart_level(const struct chart *chart, double y, const char *word)
{
	fprintf(chart->out, "<line class=\"level\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT,
		chart->width - RIGHT, chart_y(chart, y), chart_y(chart, y));
	fprintf(chart->out, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
		chart->width - RIGHT, chart_y(chart, y) - 5, word);
}

void chart_event(const struct chart *chart, double x, const char *css_class, const char *title)
{
	double at = chart_x(chart, x), bottom = chart->height - BOTTOM;

	fprintf(chart->out, "<g class=\"event %s\"><line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.1f\"/>", css_class,
		at, at, TOP, bottom);
	fprintf(chart->out, "<path d=\"M%.1f %.1fl5 8h-10z\"/><title>%s</title></g>\n", at, bottom, title);
}

/* Print seconds with a unit, and with enough digits to distinguish ticks `step` apart. */
static const char *tick_text(char text[TEXT_BYTES], double seconds, double step)
{
	static const char *const units[] = {"s", "ms", "us", "ns"};
	int unit = 0;

	for (; unit < 3 && step < 0.0999; unit++) {
		seconds *= 1000;
		step *= 1000;
	}
	snprintf(text, TEXT_BYTES, "%.*f %s", step < 0.999 ? 1 : 0, seconds, units[unit]);
	return text;
}

void chart_end(const struct chart *chart, int with_time)
{
	double step = round_step(chart->x_most, 8), bottom = chart->height - BOTTOM;
	char text[TEXT_BYTES];

	fprintf(chart->out, "<line class=\"axis\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT,
		chart->width - RIGHT, bottom, bottom);
	for (double x = 0; with_time && x <= chart->x_most * 1.0001; x += step)
		fprintf(chart->out, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
			chart_x(chart, x), bottom + 22, tick_text(text, x, step));
	fprintf(chart->out, "</svg>\n");
}

/* ---- SVG files ---- */

static const char page_style[] =
	"text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#5c6068}\n"
	".title{font-size:17px;font-weight:600;fill:#1c1d20}.panel{font-size:14px;font-weight:600;fill:#1c1d20}\n"
	".page{fill:#fcfcfb}.grid{stroke:#dcdcd6;stroke-width:1}.axis{stroke:#5c6068;stroke-width:1}\n"
	".line{fill:none;stroke-width:2}\n"
	"@media(prefers-color-scheme:dark){text{fill:#a3a7ae}.title,.panel{fill:#e8e8e4}\n"
	".page{fill:#17181b}.grid{stroke:#34363b}.axis{stroke:#a3a7ae}}\n";

int chart_file(const char *path, int (*draw)(const void *context, FILE *out), const void *context)
{
	FILE *out = fopen(path, "we");
	int error = out ? draw(context, out) : -errno;

	if (out)
		fputs("</svg>\n", out);
	if (out && (fclose(out) != 0 || error))
		error = error ? error : -errno;
	if (error)
		complain("cannot draw '%s': %s", path, strerror(-error));
	return error;
}

void chart_page_begin(
	FILE *out, double width, double height, const char *style, const char *path, const char *format, ...)
{
	const char *slash = strrchr(path, '/');
	va_list arguments;

	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
		"role=\"img\">\n<style>%s%s</style>\n"
		"<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n<text class=\"title\" x=\"%d\" y=\"28\">",
		width, height, width, height, page_style, style, LEFT);
	chart_escape(out, slash ? slash + 1 : path);
	va_start(arguments, format);
	vfprintf(out, format, arguments);
	va_end(arguments);
	fputs("</text>\n", out);
}

void chart_page_key(FILE *out, double *x, bool box, const char *css_class, const char *text)
{
	double width = box ? 14 : 24;

	if (box)
		fprintf(out, "<rect class=\"%s\" x=\"%.0f\" y=\"46\" width=\"14\" height=\"14\" rx=\"3\"/>", css_class,
			*x);
	else
		fprintf(out, "<line class=\"line %s\" x1=\"%.0f\" x2=\"%.0f\" y1=\"53\" y2=\"53\"/>", css_class, *x,
			*x + width);
	fprintf(out, "<text x=\"%.0f\" y=\"57\">%s</text>\n", *x + width + 6, text);
	*x += width + 36 + 6.8 * (double)strlen(text);
}

void chart_page_panel(FILE *out, double top, const char *format, ...)
{
	va_list arguments;

	fprintf(out, "<text class=\"panel\" x=\"%d\" y=\"%.0f\">", LEFT, top + 18);
	va_start(arguments, format);
	vfprintf(out, format, arguments);
	va_end(arguments);
	fputs("</text>\n", out);
}
