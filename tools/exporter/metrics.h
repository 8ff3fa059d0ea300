/*
 * metrics.h - a sample in the text format 0.0.4 of Prometheus, and the documentation of the metrics.
 */
#ifndef GPOOL_TOOLS_EXPORTER_METRICS_H
#define GPOOL_TOOLS_EXPORTER_METRICS_H

#include "tools/exporter/sampler.h"

#include <stdio.h>

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* metrics_print() - print all of metrics.def; without an answer of the agent only the exporter's own metrics. */
void metrics_print(FILE *to, const struct sample *sample);

/* metrics_document() - print docs/metrics.md. */
void metrics_document(FILE *to);

#endif
