/*
 * output_end.h - whether all that a program printed has been written.
 */
#ifndef GPOOL_TOOLS_LIB_OUTPUT_END_H
#define GPOOL_TOOLS_LIB_OUTPUT_END_H

/*
 * output_end() - flush standard output at the end of a program; complain when anything printed there is lost (closed,
 * full).
 * Return: `status`, or 1 where that is 0 and output is lost.
 */
int output_end(const char *program, int status);

#endif
