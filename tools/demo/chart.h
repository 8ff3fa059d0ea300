/*
 * chart.h - areas and lines over time, as inline SVG. Colours are classes, so that the page's style decides, in light and in
 * dark.
 */
#ifndef GPOOL_DEMO_CHART_H
#define GPOOL_DEMO_CHART_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CHART_POINTS_MAX = 500 }; /* more than that nobody sees at this width */

struct chart {
	FILE *out;
	double width, height; /* of the drawing with its margins */
	double x_most, y_most;
	double y_step; /* between the lines across; 0: a round number is chosen */
};

/* One curve: `count` points in order of time. */
struct chart_curve {
	const char *css_class;
	const char *title; /* shown when the pointer rests on it */
	const double *x;
	const double *low; /* NULL: zero */
	const double *high;
	size_t count;
};

/* chart_begin() - the frame, its scales and names; what is drawn next lies on top. The page's class `scroll` is for narrow
 * screens. */
void chart_begin(const struct chart *chart, const char *label, const char *y_name);
void chart_area(const struct chart *chart, const struct chart_curve *curve);
void chart_line(const struct chart *chart, const struct chart_curve *curve);
/* chart_level() - a line across at y, with a word on it. */
void chart_level(const struct chart *chart, double y, const char *word);
/* chart_event() - a mark at a moment. */
void chart_event(const struct chart *chart, double x, const char *css_class, const char *title);
/* chart_end() - with_time: numbers and name of the time axis. */
void chart_end(const struct chart *chart, int with_time);

#endif
