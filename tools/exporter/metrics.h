/* metrics.h - printing a sample in the Prometheus text format 0.0.4, and the documentation of the metrics. */
#ifndef GPOOL_TOOLS_EXPORTER_METRICS_H
#define GPOOL_TOOLS_EXPORTER_METRICS_H

#include "tools/exporter/sampler.h"

#include <stdio.h>

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* metrics_print() - print all metrics; if the agent has not answered, only the exporter's own. */
void metrics_print(FILE *to, const struct sample *sample);

/* metrics_document() - print docs/metrics.md. */
void metrics_document(FILE *to);

#endif
