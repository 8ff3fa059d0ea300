/*
 * chart.h - areas and lines over time, as inline SVG. Colors are CSS classes: the surrounding document defines them,
 * for light and dark mode.
 */
#ifndef GPOOL_TOOLS_LIB_CHART_H
#define GPOOL_TOOLS_LIB_CHART_H

#include "tools/lib/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
	CHART_POINTS_MAX = 500, /* more cannot be distinguished at this width */
	CHART_LEFT = 64,        /* margins for numbers and names */
	CHART_RIGHT = 14,
	CHART_TOP = 20,
	CHART_BOTTOM = 30,
};

struct chart {
	FILE *out;
	double width, height;  /* of the drawing, with margins */
	double x_most, y_most; /* x is in seconds */
	double y_step;         /* distance of the horizontal lines; 0: choose a round number */
	const char *(*y_text)(char text[TEXT_BYTES], uint64_t value); /* labels of these lines; NULL: text_count() */
	/* the chart is a part of a larger drawing, at this position: */
	bool within;
	double left, top;
};

/* One curve: `count` points in order of time. */
struct chart_curve {
	const char *css_class;
	const char *title; /* tooltip */
	const double *x;
	const double *low; /* NULL: zero */
	const double *high;
	size_t count;
};

/* chart_begin() - draw the frame with its scales and names; call it before drawing curves. */
void chart_begin(const struct chart *chart, const char *label, const char *y_name);
void chart_area(const struct chart *chart, const struct chart_curve *curve);
void chart_line(const struct chart *chart, const struct chart_curve *curve);
/* chart_level() - draw a horizontal line at y, with a label. */
void chart_level(const struct chart *chart, double y, const char *word);
/* chart_event() - draw a mark at time x. */
void chart_event(const struct chart *chart, double x, const char *css_class, const char *title);
/* chart_end() - end the chart. with_time: draw the time axis's numbers and unit. */
void chart_end(const struct chart *chart, int with_time);
/* chart_x(), chart_y() - return the position of a value in the drawing. */
double chart_x(const struct chart *chart, double x);
double chart_y(const struct chart *chart, double y);

/* ---- SVG files with a title, a key and stacked panels ---- */

enum { CHART_PAGE_WIDTH = 1000, CHART_PAGE_HEAD = 74, CHART_PANEL_HEAD = 30, CHART_PANEL_GAP = 8 };

/* chart_file() - write a drawing to a file. Return: 0, or negative errno after an error message. */
int chart_file(const char *path, int (*draw)(const void *context, FILE *out), const void *context);
/*
 * chart_page_begin() - begin the drawing: the style, and a title with the file name in `path` and a text.
 *
 * @style: CSS of the drawing's own classes, in addition to the common ones
 */
void __attribute__((format(printf, 6, 7)))
chart_page_begin(FILE *out, double width, double height, const char *style, const char *path, const char *format, ...);
/* chart_page_key() - add a line or a box in the style of a class to the key at *x, and move *x past its text. */
void chart_page_key(FILE *out, double *x, bool box, const char *css_class, const char *text);
/* chart_page_panel() - print the title of the panel that begins at `top`. */
void __attribute__((format(printf, 3, 4))) chart_page_panel(FILE *out, double top, const char *format, ...);

#endif
