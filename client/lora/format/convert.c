/*
 * convert.c - read pieces of matrices, convert their elements, and write them to tiles.
 */
#include "client/lora/format/convert.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/lora/format/file_at.h"
#include "cuda/kernels/element_rows.h"
#include "cuda/kernels/lora.h"
#include "shm/plural.h"

static_assert((int)LORA_TILE_COLUMNS == (int)ADAPTER_TILE_COLUMNS && (int)LORA_RANK_MAX == (int)ADAPTER_RANK_MAX &&
		(int)ELEMENT_F16 == (int)ADAPTER_F16 && (int)ELEMENT_BF16 == (int)ADAPTER_BF16,
	"layouts are what the kernels take");

/* ---- elements ---- */

static enum element element_of(enum safetensors_type type)
{
	return type == SAFETENSORS_F32 ? ELEMENT_F32 : type == SAFETENSORS_F16 ? ELEMENT_F16 : ELEMENT_BF16;
}

static float element_read(const void *source, uint64_t index, enum safetensors_type type)
{
	float row[ELEMENT_ROW];

	element_row_get(element_of(type), (const char *)source + index * safetensors_type_bytes(type), 1, row);
	return row[0];
}

/* Convert elements of a piece, from index `index` on. Return: false if one is not finite. */
static bool elements_convert(
	const struct convert *convert, enum safetensors_type type, uint64_t index, uint64_t count, uint16_t *to)
{
	return convert->rows->convert(element_of(type),
		(const char *)convert->source + index * safetensors_type_bytes(type), convert->layout->header->element,
		to, count);
}

/* ---- pieces ---- */

/* A piece, described as a part of its matrix in the file. */
struct part {
	const struct peft_module *module;
	const struct peft_matrix *matrix;
	uint32_t column, columns; /* first column and number of columns; a column of B is an output */
	uint64_t count;           /* number of elements */
};

static struct part part_of(const struct convert *convert, const struct convert_piece *piece)
{
	const struct peft_module *module = &convert->peft->modules[piece->module];
	struct part part = {.module = module,
		.matrix = piece->is_b ? &module->b : &module->a,
		.column = piece->tile * ADAPTER_TILE_COLUMNS};
	uint32_t left = (piece->is_b ? module->out : module->in) - part.column;

	part.columns = piece->tiles * ADAPTER_TILE_COLUMNS < left ? piece->tiles * ADAPTER_TILE_COLUMNS : left;
	part.count = (uint64_t)part.columns * module->rank;
	return part;
}

/* A is [rank][in] in the file, so a piece is a part of each row. B is [out][rank], so a piece is contiguous. */
static int part_read(const struct convert *convert, const struct convert_piece *piece, const struct part *part)
{
	const uint32_t bytes = safetensors_type_bytes(part->matrix->type), in = part->module->in;
	const uint64_t row_bytes = (uint64_t)part->columns * bytes;
	int error = 0;

	if (piece->is_b)
		return file_read_at(convert->fd, convert->source, part->count * bytes,
			part->matrix->offset + (uint64_t)part->column * part->module->rank * bytes);
	if (part->columns == in)
		return file_read_at(convert->fd, convert->source, part->count * bytes, part->matrix->offset);
	for (uint32_t k = 0; k < part->module->rank && !error; k++)
		error = file_read_at(convert->fd, (char *)convert->source + k * row_bytes, row_bytes,
			part->matrix->offset + ((uint64_t)k * in + part->column) * bytes);
	return error;
}

/* Report the first element that is not finite. */
static int weight_refuse(const struct convert *convert, const struct convert_piece *piece, const struct part *part,
	struct reason *reason)
{
	enum adapter_element element = convert->layout->header->element;
	char name[REASON_NAME_BYTES];
	uint64_t i = 0, row, column;
	uint16_t converted;
	float value;

	while (elements_convert(convert, part->matrix->type, i, 1, &converted))
		i++;
	row = piece->is_b ? part->column + i / part->module->rank : i / part->columns;
	column = piece->is_b ? i % part->module->rank : part->column + i % part->columns;
	value = element_read(convert->source, i, part->matrix->type);
	refuse_name(part->module->path, name);
	if (!isfinite(value))
		return refuse(reason, "module '%s': lora_%c[%" PRIu64 "][%" PRIu64 "] is %f", name,
			piece->is_b ? 'B' : 'A', row, column, value);
	return refuse(reason, "module '%s': lora_%c[%" PRIu64 "][%" PRIu64 "] is %g, which is out of range for %s%s",
		name, piece->is_b ? 'B' : 'A', row, column, value, element == ADAPTER_F16 ? "fp16" : "bf16",
		element == ADAPTER_F16 ? "; use bf16" : "");
}

/* Convert a piece of A, [rank][columns]. The rows of a tile are parts of its rows. */
static bool tile_of_a(const struct convert *convert, const struct part *part, uint32_t index, uint16_t *tile)
{
	uint32_t begin = index * ADAPTER_TILE_COLUMNS, left = part->columns - begin;
	uint32_t used = left < ADAPTER_TILE_COLUMNS ? left : ADAPTER_TILE_COLUMNS;
	bool finite = true;

	for (uint32_t k = 0; k < part->module->rank; k++, tile += ADAPTER_TILE_COLUMNS) {
		finite &=
			elements_convert(convert, part->matrix->type, (uint64_t)k * part->columns + begin, used, tile);
		memset(tile + used, 0, (ADAPTER_TILE_COLUMNS - used) * sizeof(*tile));
	}
	return finite;
}

/* Convert a piece of B, [columns][rank]. A tile is contiguous in the file, and is transposed. */
static bool tile_of_b(const struct convert *convert, const struct part *part, uint32_t index, uint16_t *tile)
{
	uint32_t begin = index * ADAPTER_TILE_COLUMNS, left = part->columns - begin, rank = part->module->rank;
	uint32_t used = left < ADAPTER_TILE_COLUMNS ? left : ADAPTER_TILE_COLUMNS;
	uint16_t elements[ADAPTER_TILE_COLUMNS * ADAPTER_RANK_MAX];
	bool finite =
		elements_convert(convert, part->matrix->type, (uint64_t)begin * rank, (uint64_t)used * rank, elements);

	convert->rows->turn(elements, used, rank, tile);
	for (uint32_t k = 0; k < rank && used < ADAPTER_TILE_COLUMNS; k++)
		memset(tile + k * ADAPTER_TILE_COLUMNS + used, 0, (ADAPTER_TILE_COLUMNS - used) * sizeof(*tile));
	return finite;
}

int convert_tiles(const struct convert *convert, const struct convert_piece *piece, void *to, struct reason *reason)
{
	struct part part = part_of(convert, piece);
	int error = part_read(convert, piece, &part);
	char name[REASON_NAME_BYTES];
	uint16_t *tile = to;
	bool finite = true;

	if (error) {
		refuse(reason, "module '%s': cannot read the weights: a disk failed, or the file is being changed",
			refuse_name(part.module->path, name));
		return error;
	}
	for (uint32_t i = 0; i < piece->tiles; i++, tile += adapter_tile_bytes(part.module->rank) / sizeof(*tile))
		finite &= piece->is_b ? tile_of_b(convert, &part, i, tile) : tile_of_a(convert, &part, i, tile);
	return finite ? 0 : weight_refuse(convert, piece, &part, reason);
}

/* ---- pages ---- */

static struct convert_piece *matrix_list(
	const struct convert *convert, uint32_t index, uint32_t is_b, struct convert_piece *pieces)
{
	const struct adapter_module *module = &convert->layout->modules[index];
	const struct adapter_matrix *matrix = is_b ? &module->b : &module->a;
	uint32_t tiles = adapter_tiles(is_b ? module->out : module->in), runs = adapter_matrix_runs(matrix, tiles);

	for (uint32_t i = 0; i < runs; i++) {
		const struct adapter_run *run = &convert->layout->runs[matrix->first + i];

		*pieces++ = (struct convert_piece){.page = run->page,
			.offset = run->offset,
			.module = index,
			.is_b = is_b,
			.tile = adapter_run_begin(matrix, i),
			.tiles = adapter_run_tiles(matrix, tiles, i)};
	}
	return pieces;
}

static int by_place(const void *a, const void *b)
{
	const struct convert_piece *x = a, *y = b;

	if (x->page != y->page)
		return x->page < y->page ? -1 : 1;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

static int size_check(const struct peft *peft, int fd, struct reason *reason)
{
	struct stat status;

	if (fstat(fd, &status))
		return -EIO;
	if ((uint64_t)status.st_size != peft->file_bytes)
		return refuse(reason, "weights: the file has %jd byte%s, but had %" PRIu64 " when its header was read",
			(intmax_t)status.st_size, plural(status.st_size), peft->file_bytes);
	return 0;
}

int convert_open(const struct peft *peft, const struct adapter_layout *layout, int fd, struct convert *convert,
	struct reason *reason)
{
	struct convert made = {
		.peft = peft, .layout = layout, .fd = fd, .piece_count = layout->header->runs, .rows = element_rows()};
	struct convert_piece *end;
	int error = size_check(peft, fd, reason);

	if (error)
		return error;
	made.pieces = calloc(made.piece_count, sizeof(*made.pieces));
	made.source = malloc(2 * (size_t)layout->header->page_bytes);
	if (!made.pieces || !made.source) {
		convert_close(&made);
		return -ENOMEM;
	}
	end = made.pieces;
	for (uint32_t i = 0; i < layout->header->modules; i++) {
		end = matrix_list(&made, i, 0, end);
		end = matrix_list(&made, i, 1, end);
	}
	qsort(made.pieces, made.piece_count, sizeof(*made.pieces), by_place);
	*convert = made;
	return 0;
}

void convert_close(struct convert *convert)
{
	free(convert->pieces);
	free(convert->source);
	*convert = (struct convert){0};
}

/* Return the index of the first piece of a page, or of the next page that has one. */
static uint32_t page_begin(const struct convert *convert, uint32_t page)
{
	uint32_t low = 0, high = convert->piece_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (convert->pieces[middle].page < page)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int convert_page(const struct convert *convert, uint32_t page, void *image, struct reason *reason)
{
	uint32_t end = 0, page_bytes = convert->layout->header->page_bytes;

	for (uint32_t i = page_begin(convert, page); i < convert->piece_count && convert->pieces[i].page == page; i++) {
		const struct convert_piece *piece = &convert->pieces[i];
		int error = convert_tiles(convert, piece, (char *)image + piece->offset, reason);

		if (error)
			return error;
		end = piece->offset + piece->tiles * adapter_tile_bytes(convert->peft->modules[piece->module].rank);
	}
	memset((char *)image + end, 0, page_bytes - end);
	return 0;
}
