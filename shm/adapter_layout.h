/*
 * adapter_layout.h - layout of the weights of a LoRA adapter in its pages. It is part of the metadata of the adapter's
 * named object and of the cold file.
 *
 *   header | layers struct adapter_layer[layers] | modules struct adapter_module[modules] |
 *   runs struct adapter_run[runs] | targets struct adapter_target[targets] | names
 *
 * Pages are counted from 0 within the adapter. A matrix of rank r and n columns (A: r x in; B transposed: r x out)
 * consists of tiles of 128 columns, each with r rows of 256 bytes. A run consists of adjacent tiles within one page.
 * The first run of a matrix has head_tiles tiles and each further run has run_tiles; only the last run may have fewer.
 * The kernels expect this form (cuda/kernels/lora.h).
 *
 * Apart from the positions of runs, a layout has exactly one encoding. Modules are sorted by layer and target, and
 * targets by name. The runs of the matrices are stored in the order of the modules, A before B. Names are stored
 * without gaps. A reader must treat every field as untrusted until adapter_layout_check() has accepted the layout.
 */
#ifndef GPOOL_SHM_ADAPTER_LAYOUT_H
#define GPOOL_SHM_ADAPTER_LAYOUT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define ADAPTER_LAYOUT_MAGIC UINT64_C(0x74756f79616c3167) /* "g1layout" */

enum {
	ADAPTER_LAYOUT_VERSION = 1,
	ADAPTER_LAYOUT_BYTES_MAX = 16 << 20, /* enough for 65,536 modules and their names */
	ADAPTER_TILE_COLUMNS = 128,
	ADAPTER_ROW_BYTES = ADAPTER_TILE_COLUMNS * 2,
	ADAPTER_RANK_MAX = 128,
	ADAPTER_FEATURES_MAX = 1 << 20,
	ADAPTER_LAYERS_MAX = 4096,
	ADAPTER_NO_LAYER = ADAPTER_LAYERS_MAX, /* for modules outside of all layers; sorted last */
	ADAPTER_MODULES_MAX = 65536,
	ADAPTER_TARGET_BYTES_MAX = 1023,
	ADAPTER_PAGE_BYTES_MIN = 512 << 10,
	ADAPTER_PAGE_BYTES_MAX = 4 << 20, /* a page size must also be a power of two */
};
/*
 * Limit of the size of all pages, twice the size of an adapter of rank 128 for all linear layers of a model with 400
 * billion parameters.
 */
#define ADAPTER_BYTES_MAX (UINT64_C(16) << 30)

enum adapter_element { ADAPTER_F16, ADAPTER_BF16, ADAPTER_ELEMENTS };

struct adapter_layout_header {
	uint64_t magic;
	uint32_t version, header_bytes;
	uint32_t bytes;   /* size of the whole layout */
	uint32_t element; /* enum adapter_element */
	uint32_t page_bytes;
	uint32_t pages;
	/* end of the last tile in the last page; all bytes outside of tiles are zero */
	uint32_t last_bytes;
	uint32_t layers, modules, runs, targets, names_bytes;
};
static_assert(sizeof(struct adapter_layout_header) == 56, "shared layout");

struct adapter_layer {
	uint32_t layer;   /* layer number, or ADAPTER_NO_LAYER */
	uint32_t modules; /* number of modules; they follow the modules of the previous layer */
	/* the layer is usable when pages 0 to pages - 1 are loaded; never less than the value of the previous layer */
	uint32_t pages;
	uint32_t reserved;
};
static_assert(sizeof(struct adapter_layer) == 16, "shared layout");

struct adapter_matrix {
	uint32_t first; /* index of its first run */
	uint32_t head_tiles, run_tiles;
	uint32_t reserved;
};

struct adapter_module {
	uint32_t layer, target; /* number of the layer, index of the target */
	uint32_t rank, in, out;
	float scale;
	struct adapter_matrix a, b;
};
static_assert(sizeof(struct adapter_module) == 56, "shared layout");

struct adapter_run {
	uint32_t page;
	uint32_t offset; /* offset of the first tile in bytes; a multiple of ADAPTER_ROW_BYTES */
};

/* The name of a module without its layer number, such as "model.layers.*.self_attn.q_proj". Layers share targets. */
struct adapter_target {
	uint32_t offset; /* in names; a NUL follows it */
	uint32_t bytes;  /* without the NUL; contains no NUL */
};

struct adapter_layout {
	const struct adapter_layout_header *header;
	const struct adapter_layer *layers;
	const struct adapter_module *modules;
	const struct adapter_run *runs;
	const struct adapter_target *targets;
	const char *names;
};

/* adapter_layout_bytes() - return the size in bytes of a layout with the counts in `header`: less than 2^39. */
uint64_t adapter_layout_bytes(const struct adapter_layout_header *header);
/* adapter_layout_at() - return the parts of the layout at `base`. The counts in its header are not checked. */
struct adapter_layout adapter_layout_at(const void *base);

/*
 * adapter_layout_check() - check that [base, base + bytes) is a valid layout: all counts are consistent, tiles are
 * within pages and do not overlap, names are sorted. `base` must be aligned to 8 bytes. *layout receives the parts.
 * Return: 0, -EBADMSG, -EPROTO (another version), -ENOMEM.
 * Threads: any.
 * Cost: one bit of memory for each 256 bytes of pages, at most 8 MiB.
 */
int adapter_layout_check(const void *base, size_t bytes, struct adapter_layout *layout);

/* ---- one matrix ---- */

static inline uint32_t adapter_tiles(uint32_t columns)
{
	return (columns + ADAPTER_TILE_COLUMNS - 1) / ADAPTER_TILE_COLUMNS;
}

static inline uint32_t adapter_tile_bytes(uint32_t rank)
{
	return rank * ADAPTER_ROW_BYTES;
}

/*
 * adapter_matrix_runs() - return the number of runs of a matrix with this number of tiles. head_tiles must be at least
 * 1. run_tiles must be at least 1 if the matrix has more than head_tiles tiles.
 */
static inline uint32_t adapter_matrix_runs(const struct adapter_matrix *matrix, uint32_t tiles)
{
	return tiles > matrix->head_tiles ? 1 + (tiles - matrix->head_tiles + matrix->run_tiles - 1) / matrix->run_tiles
					  : 1;
}

/*
 * adapter_run_begin() - return the first tile of a run, counted from 0.
 * adapter_run_tiles() - return its number of tiles.
 */
static inline uint32_t adapter_run_begin(const struct adapter_matrix *matrix, uint32_t run)
{
	return run ? matrix->head_tiles + (run - 1) * matrix->run_tiles : 0;
}

static inline uint32_t adapter_run_tiles(const struct adapter_matrix *matrix, uint32_t tiles, uint32_t run)
{
	uint32_t most = run ? matrix->run_tiles : matrix->head_tiles, left = tiles - adapter_run_begin(matrix, run);

	return left < most ? left : most;
}

#endif
