/* int8_form.c - make and expand forms in int8, and measure their loss. */
#include "client/lora/format/int8_form.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/element_rows.h"

enum { COLUMNS = ADAPTER_TILE_COLUMNS };
static_assert((int)COLUMNS == (int)ELEMENT_ROW, "a row of a tile is what the references take at a time");

void int8_form_make(const void *image, uint32_t rows, enum adapter_element element, void *form)
{
	int8_t *codes = form;

	element_rows_quantise(element, image, rows, codes, (uint16_t *)(void *)(codes + (size_t)rows * COLUMNS));
}

void int8_form_expand_some(
	const void *form, uint32_t rows, uint32_t first, uint32_t count, enum adapter_element element, void *image)
{
	const int8_t *codes = form;
	const uint16_t *scales = (const uint16_t *)(const void *)(codes + (size_t)rows * COLUMNS);

	element_rows_dequantise(element, codes + (size_t)first * COLUMNS, scales + first, count,
		(uint16_t *)image + (size_t)first * COLUMNS);
}

void int8_form_expand(const void *form, uint32_t rows, enum adapter_element element, void *image)
{
	int8_form_expand_some(form, rows, 0, rows, element, image);
}

/* ---- the loss ---- */

/*
 * INPUTS is the number of random vectors x that are processed at a time. The variance of the result depends on the rank
 * times the number of vectors, so low ranks need more vectors; with a product of 128, the result is within a tenth of
 * the limit. A single x is not sufficient: with rank 1, its output may be close to zero, which makes the relative error
 * large.
 */
enum { INPUTS = 8, RANK_ENOUGH = 16 };

static uint32_t batches_of(uint32_t rank)
{
	return rank < RANK_ENOUGH ? RANK_ENOUGH / rank : 1;
}

/* Inline a function, so that it is compiled for the instruction set of its caller. */
#define EACH __attribute__((always_inline)) static inline

/* A sum for each input, so that the compiler can vectorize without changing the order of additions. */
typedef float lanes __attribute__((vector_size(INPUTS * sizeof(float)), aligned(16)));

struct measure {
	const struct convert *convert;
	uint16_t *tiles, *expanded; /* one page each */
	void *form;
	/*
	 * For the module that is being measured: A x from the original and from the form, [batch * rank + k], and the
	 * sums of squares for A and for B.
	 */
	lanes sums[ADAPTER_RANK_MAX], form_sums[ADAPTER_RANK_MAX];
	double squares[2], errors[2];
	double output_squares, output_errors;
};

/* Return a random value from -1 to 1, which is the same for a column in all modules. */
EACH float input_of(uint32_t column, uint32_t input)
{
	uint64_t bits = ((uint64_t)input << 32 | column) * UINT64_C(0x9e3779b97f4a7c15);

	bits = (bits ^ bits >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
	return (float)(int32_t)(bits >> 32) * 0x1p-31f;
}

/* Two sums are used, because each addition must wait for the previous addition to the same sum. */
EACH void products_add(lanes *sums, const float *row, const lanes *x)
{
	lanes even = *sums, odd = {0};

	for (uint32_t i = 0; i < COLUMNS; i += 2) {
		even += row[i] * x[i];
		odd += row[i + 1] * x[i + 1];
	}
	*sums = even + odd;
}

EACH void outputs_add(lanes *y, const float *row, const lanes *sums)
{
	for (uint32_t i = 0; i < COLUMNS; i++)
		y[i] += row[i] * *sums;
}

EACH double lanes_sum(const lanes *values)
{
	double sum = 0;

	for (uint32_t i = 0; i < INPUTS; i++)
		sum += (*values)[i];
	return sum;
}

EACH void squares_add(struct measure *measure, uint32_t is_b, const float *row, const float *form_row)
{
	lanes squares = {0}, errors = {0}, value, form;

	for (uint32_t i = 0; i < COLUMNS; i += INPUTS) {
		memcpy(&value, row + i, sizeof(value));
		memcpy(&form, form_row + i, sizeof(form));
		squares += value * value;
		errors += (form - value) * (form - value);
	}
	measure->squares[is_b] += lanes_sum(&squares);
	measure->errors[is_b] += lanes_sum(&errors);
}

/* Add the products of a tile of A to A x. */
EACH void tile_of_a(struct measure *measure, const uint16_t *tile, const uint16_t *form_tile, uint32_t rank,
	uint32_t column, uint32_t batch)
{
	const struct element_rows *rows = element_rows();
	enum adapter_element element = measure->convert->layout->header->element;
	float row[COLUMNS], form_row[COLUMNS];
	lanes x[COLUMNS];

	for (uint32_t i = 0; i < COLUMNS; i++)
		for (uint32_t input = 0; input < INPUTS; input++)
			x[i][input] = input_of(column + i, batch * INPUTS + input);
	for (uint32_t k = 0; k < rank; k++) {
		rows->get(element, tile + k * COLUMNS, row);
		rows->get(element, form_tile + k * COLUMNS, form_row);
		if (batch == 0)
			squares_add(measure, 0, row, form_row);
		products_add(&measure->sums[batch * rank + k], row, x);
		products_add(&measure->form_sums[batch * rank + k], form_row, x);
	}
}

/* Compute the outputs of a tile of B, and their errors. */
EACH void tile_of_b(
	struct measure *measure, const uint16_t *tile, const uint16_t *form_tile, uint32_t rank, uint32_t batch)
{
	enum adapter_element element = measure->convert->layout->header->element;
	const struct element_rows *rows = element_rows();
	float row[COLUMNS], form_row[COLUMNS];
	lanes y[COLUMNS], form_y[COLUMNS];

	memset(y, 0, sizeof(y));
	memset(form_y, 0, sizeof(form_y));
	for (uint32_t k = 0; k < rank; k++) {
		rows->get(element, tile + k * COLUMNS, row);
		rows->get(element, form_tile + k * COLUMNS, form_row);
		if (batch == 0)
			squares_add(measure, 1, row, form_row);
		outputs_add(y, row, &measure->sums[batch * rank + k]);
		outputs_add(form_y, form_row, &measure->form_sums[batch * rank + k]);
	}
	for (uint32_t i = 0; i < COLUMNS; i++)
		for (uint32_t input = 0; input < INPUTS; input++) {
			double difference = (double)form_y[i][input] - y[i][input];

			measure->output_squares += (double)y[i][input] * y[i][input];
			measure->output_errors += difference * difference;
		}
}

EACH void tiles_measure_plain(struct measure *measure, uint32_t rank, uint32_t is_b, uint32_t first, uint32_t tiles)
{
	for (uint32_t i = 0; i < tiles; i++) {
		const uint16_t *tile = measure->tiles + (size_t)i * rank * COLUMNS;
		const uint16_t *form_tile = measure->expanded + (size_t)i * rank * COLUMNS;

		for (uint32_t batch = 0; batch < batches_of(rank); batch++) {
			if (is_b)
				tile_of_b(measure, tile, form_tile, rank, batch);
			else
				tile_of_a(measure, tile, form_tile, rank, (first + i) * COLUMNS, batch);
		}
	}
}

#ifdef __x86_64__
/* Do the same as tiles_measure_plain() with AVX2: one vector has eight inputs. The sums are identical. */
__attribute__((target("avx2"))) static void tiles_measure_avx2(
	struct measure *measure, uint32_t rank, uint32_t is_b, uint32_t first, uint32_t tiles)
{
	tiles_measure_plain(measure, rank, is_b, first, tiles);
}
#endif

static void tiles_measure(struct measure *measure, uint32_t rank, uint32_t is_b, uint32_t first, uint32_t tiles)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		tiles_measure_avx2(measure, rank, is_b, first, tiles);
		return;
	}
#endif
	tiles_measure_plain(measure, rank, is_b, first, tiles);
}

static int matrix_measure(struct measure *measure, uint32_t index, uint32_t is_b, struct reason *reason)
{
	const struct adapter_layout_header *header = measure->convert->layout->header;
	const struct adapter_module *module = &measure->convert->layout->modules[index];
	uint32_t tiles = adapter_tiles(is_b ? module->out : module->in);
	uint32_t most = header->page_bytes / adapter_tile_bytes(module->rank);
	struct convert_piece piece = {.module = index, .is_b = is_b};

	for (; piece.tile < tiles; piece.tile += piece.tiles) {
		int error;

		piece.tiles = tiles - piece.tile < most ? tiles - piece.tile : most;
		error = convert_tiles(measure->convert, &piece, measure->tiles, reason);
		if (error)
			return error;
		int8_form_make(measure->tiles, piece.tiles * module->rank, header->element, measure->form);
		int8_form_expand(measure->form, piece.tiles * module->rank, header->element, measure->expanded);
		tiles_measure(measure, module->rank, is_b, piece.tile, piece.tiles);
	}
	return 0;
}

/* Return the square root of errors / squares; 0 for 0 / 0. */
static double ratio(double errors, double squares)
{
	double quotient = errors == 0 ? 0 : sqrt(errors / squares);

	return isnan(quotient) ? INFINITY : quotient;
}

static int module_measure(struct measure *measure, uint32_t index, struct int8_loss *loss, struct reason *reason)
{
	double a, b;
	int error;

	memset(measure->sums, 0, sizeof(measure->sums));
	memset(measure->form_sums, 0, sizeof(measure->form_sums));
	memset(measure->squares, 0, sizeof(measure->squares));
	memset(measure->errors, 0, sizeof(measure->errors));
	measure->output_squares = measure->output_errors = 0;
	error = matrix_measure(measure, index, 0, reason);
	if (!error)
		error = matrix_measure(measure, index, 1, reason);
	if (error)
		return error;
	a = ratio(measure->errors[0], measure->squares[0]);
	b = ratio(measure->errors[1], measure->squares[1]);
	*loss = (struct int8_loss){
		index, (float)ratio(measure->output_errors, measure->output_squares), (float)(a + b + a * b)};
	return 0;
}

int int8_loss_measure(const struct convert *convert, struct int8_loss *loss, struct reason *reason)
{
	const struct adapter_layout_header *header = convert->layout->header;
	struct measure *measure = calloc(1, sizeof(*measure));
	struct int8_loss worst = {0}, one;
	int error = -ENOMEM;

	if (!measure)
		return -ENOMEM;
	measure->convert = convert;
	measure->tiles = malloc(header->page_bytes);
	measure->expanded = malloc(header->page_bytes);
	measure->form = malloc(int8_form_bytes(header->page_bytes / ADAPTER_ROW_BYTES));
	if (measure->tiles && measure->expanded && measure->form)
		error = 0;
	for (uint32_t i = 0; i < header->modules && !error; i++) {
		error = module_measure(measure, i, &one, reason);
		if (!error && one.output >= worst.output)
			worst = one;
	}
	free(measure->tiles);
	free(measure->expanded);
	free(measure->form);
	free(measure);
	if (!error)
		*loss = worst;
	return error;
}
