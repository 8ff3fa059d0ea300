/*
 * metrics.h - a sample as Prometheus reads it, text format 0.0.4; and what there is to read.
 */
#ifndef GPOOL_TOOLS_EXPORTER_METRICS_H
#define GPOOL_TOOLS_EXPORTER_METRICS_H

#include "tools/exporter/sampler.h"

#include <stdio.h>

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* metrics_print() - all of metrics.def; of a sample without an answer only what the exporter says of itself. */
void metrics_print(FILE *to, const struct sample *sample);

/* metrics_document() - tools/exporter/monitoring/METRICS.md. */
void metrics_document(FILE *to);

#endif
