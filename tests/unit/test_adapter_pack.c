/*
 * test_adapter_pack.c - positions of adapter tiles in pages.
 *
 * Goal: every tile of every matrix has one position, and none crosses a page boundary or overlaps another. The kernels'
 * struct lora_matrix can be built from the layout. Layers need pages in order. Little space is lost. A layout with one
 * wrong field is refused.
 *
 * Method: random adapters at every page size, placed by the code and checked tile by tile. Adapters of real models show
 * the lost space.
 *
 * Requirements: L4.
 */
#include "client/lora/format/pack.h"
#include "tests/unit/adapter_rig.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MODULES_MAX = 600 };

static struct reason reason;
static struct rig_module modules[MODULES_MAX];

static struct adapter_layout packed(const struct peft *peft, uint32_t page_bytes)
{
	struct adapter_layout layout, parts;

	assert_int_equal(pack_make(peft, page_bytes, pack_element(peft), &layout, &reason), 0);
	assert_int_equal(adapter_layout_check(layout.header, layout.header->bytes, &parts), 0);
	assert_memory_equal(&layout, &parts, sizeof(parts));
	return layout;
}

/* One byte for each 256 bytes of the pages: 1 for a tile. */
static void matrix_mark(const struct adapter_layout *layout, const struct adapter_matrix *matrix, uint32_t rank,
	uint32_t columns, uint32_t pages, uint8_t *rows)
{
	const uint32_t page_rows = layout->header->page_bytes / 256, tiles = (columns + 127) / 128;

	for (uint32_t tile = 0; tile < tiles; tile++) {
		/* Compute the position as lora_tile_at() does. */
		uint32_t further = tile - matrix->head_tiles;
		uint32_t run = tile < matrix->head_tiles ? 0 : 1 + further / matrix->run_tiles;
		uint32_t within = tile < matrix->head_tiles ? tile : further % matrix->run_tiles;
		const struct adapter_run *place = &layout->runs[matrix->first + run];
		uint32_t row = place->offset / 256 + within * rank;

		assert_true(place->page < pages && row + rank <= page_rows);
		for (uint32_t i = 0; i < rank; i++)
			assert_int_equal(rows[(uint64_t)place->page * page_rows + row + i]++, 0);
	}
}

static void places_hold(const struct peft *peft, const struct adapter_layout *layout)
{
	const uint64_t page_rows = layout->header->page_bytes / 256;
	uint8_t *rows = calloc(layout->header->pages, page_rows);
	uint32_t next = 0;
	uint64_t taken = 0, wanted = 0;

	for (uint32_t i = 0; i < layout->header->layers; i++)
		for (uint32_t end = next + layout->layers[i].modules; next < end; next++) {
			const struct peft_module *from = &peft->modules[next];
			const struct adapter_module *module = &layout->modules[next];

			assert_int_equal(module->layer, from->layer);
			assert_string_equal(layout->names + layout->targets[module->target].offset, from->target);
			assert_true(module->rank == from->rank && module->in == from->in && module->out == from->out);
			assert_true(module->scale == (float)from->scale);
			matrix_mark(layout, &module->a, from->rank, from->in, layout->layers[i].pages, rows);
			matrix_mark(layout, &module->b, from->rank, from->out, layout->layers[i].pages, rows);
			wanted += (uint64_t)from->rank * ((from->in + 127) / 128 + (from->out + 127) / 128);
		}
	assert_int_equal(next, peft->count);
	for (uint64_t i = 0; i < layout->header->pages * page_rows; i++)
		taken += rows[i];
	assert_int_equal(taken, wanted);
	free(rows);
}

static void test_random(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 300; round++) {
		struct adapter_layout layout, again;
		struct pack_use use;
		struct rig rig;

		rig_make(&rig, modules, rig_random_modules(modules, 43, round % 3 ? 9000 : 60000));
		layout = packed(&rig.peft, (512u << 10) << round % 4);
		places_hold(&rig.peft, &layout);
		use = pack_use_of(&layout);
		assert_int_equal(use.weights + use.columns + use.ends + use.last,
			(uint64_t)layout.header->pages * layout.header->page_bytes);
		assert_true(use.last < layout.header->page_bytes);
		again = packed(&rig.peft, layout.header->page_bytes);
		assert_int_equal(again.header->bytes, layout.header->bytes);
		assert_memory_equal(again.header, layout.header, layout.header->bytes);
		pack_free(&again);
		pack_free(&layout);
		rig_end(&rig);
	}
}

/* ---- lost space ---- */

/*
 * Create all linear layers of a model with grouped queries. The ranks are those of attention and of the other layers.
 */
static uint32_t model(
	uint32_t layers, uint32_t width, uint32_t kv, uint32_t inner, uint32_t attention_rank, uint32_t rank)
{
	const struct rig_module each[] = {
		{"q_proj", attention_rank, width, width, SAFETENSORS_BF16},
		{"k_proj", attention_rank, width, kv, SAFETENSORS_BF16},
		{"v_proj", attention_rank, width, kv, SAFETENSORS_BF16},
		{"o_proj", attention_rank, width, width, SAFETENSORS_BF16},
		{"gate_proj", rank, width, inner, SAFETENSORS_BF16},
		{"up_proj", rank, width, inner, SAFETENSORS_BF16},
		{"down_proj", rank, inner, width, SAFETENSORS_BF16},
	};
	uint32_t count = 0;

	for (uint32_t layer = 0; layer < layers; layer++)
		for (uint32_t i = 0; i < 7; i++) {
			if (!each[i].rank)
				continue;
			modules[count] = each[i];
			snprintf(modules[count++].path, sizeof(modules->path), "model.layers.%u.%.20s", layer,
				each[i].path);
		}
	return count;
}

/* For existing models, with pages of all sizes, less than 1 % is lost at the ends of pages. The figures are printed. */
static void test_loss(void **state)
{
	static const struct {
		const char *name;
		uint32_t layers, width, kv, inner, attention_rank, rank;
	} adapters[] = {
		{"8B, attention, r8", 32, 4096, 1024, 14336, 8, 0},
		{"8B, all linear, r16", 32, 4096, 1024, 14336, 16, 16},
		{"8B, all linear, r64", 32, 4096, 1024, 14336, 64, 64},
		{"8B, all linear, r128 and r8", 32, 4096, 1024, 14336, 128, 8},
		{"8B, all linear, r24 and r100", 32, 4096, 1024, 14336, 24, 100},
		{"70B, attention, r16", 80, 8192, 1024, 28672, 16, 0},
		{"0.5B, all linear, r32", 24, 896, 128, 4864, 32, 32},
	};
	uint64_t all = 0, lost_at_ends = 0, lost_last = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(adapters) / sizeof(*adapters); i++)
		for (uint32_t page_bytes = 512 << 10; page_bytes <= 4 << 20; page_bytes *= 2) {
			struct adapter_layout layout;
			struct pack_use use;
			struct rig rig;
			uint64_t pages;

			rig_make(&rig, modules,
				model(adapters[i].layers, adapters[i].width, adapters[i].kv, adapters[i].inner,
					adapters[i].attention_rank, adapters[i].rank));
			layout = packed(&rig.peft, page_bytes);
			use = pack_use_of(&layout);
			pages = (uint64_t)layout.header->pages * page_bytes;
			printf("%s: %.1f MB, %u pages of %u KiB, lost at ends %.2f %%, last page %.2f %%, layout %u "
			       "bytes\n",
				adapters[i].name, (double)use.weights / 1e6, layout.header->pages, page_bytes >> 10,
				100.0 * (double)use.ends / (double)pages, 100.0 * (double)use.last / (double)pages,
				layout.header->bytes);
			assert_int_equal(use.columns, 0);
			/* with 512 KiB pages, one adapter with odd ranks loses more */
			assert_true(use.ends * 100 < pages || page_bytes == 512 << 10);
			if (page_bytes == 2 << 20) {
				all += pages;
				lost_at_ends += use.ends;
				lost_last += use.last;
			}
			pack_free(&layout);
			rig_end(&rig);
		}
	printf("all of these in pages of 2 MiB: lost at ends %.3f %%, last pages %.3f %%\n",
		100.0 * (double)lost_at_ends / (double)all, 100.0 * (double)lost_last / (double)all);
	assert_true((lost_at_ends + lost_last) * 100 < all);
}

/*
 * The end of a page that is too short for a large tile is used for small ones. Of two free pieces, the longer one is
 * filled first, with the larger tiles.
 */
static void test_gap(void **state)
{
	/*
	 * 15 tiles of 32 KiB leave 32 KiB of 512. A tile of 112 rows leaves 4 KiB of that, which tiles of 1 row fill.
	 */
	const struct rig_module fixed[] = {
		{"h.0.a", 120, 128 * 17, 128, SAFETENSORS_F16},
		{"h.0.b", 1, 128 * 64, 128, SAFETENSORS_F16},
	};
	struct adapter_layout layout;
	struct rig rig;

	(void)state;
	rig_make(&rig, fixed, 2);
	layout = packed(&rig.peft, 512 << 10);
	places_hold(&rig.peft, &layout);
	assert_int_equal(layout.modules[0].a.head_tiles, 17); /* 17 * 120 rows of 2048: 8 remain */
	assert_int_equal(layout.modules[1].a.head_tiles, 8);
	assert_int_equal(layout.runs[layout.modules[1].a.first].page, 0);
	assert_int_equal(layout.runs[layout.modules[1].a.first].offset, 17 * 120 * 256);
	assert_int_equal(layout.modules[1].a.run_tiles, 56);
	assert_int_equal(pack_use_of(&layout).ends, 0);
	assert_int_equal(pack_element(&rig.peft), ADAPTER_F16);
	pack_free(&layout);
	rig_end(&rig);
}

static void test_too_large(void **state)
{
	struct adapter_layout layout;
	struct peft_module large = {
		.path = "a", .target = "a", .layer = 0, .rank = 128, .in = 1 << 20, .out = 1 << 20, .scale = 1};
	struct peft peft = {.count = 33, .modules = calloc(33, sizeof(large))};

	(void)state;
	for (uint32_t i = 0; i < peft.count; i++) {
		peft.modules[i] = large;
		peft.modules[i].layer = i;
	}
	assert_int_equal(pack_make(&peft, 512 << 10, ADAPTER_F16, &layout, &reason), -EINVAL);
	assert_non_null(strstr(reason.text, "; the limit is 17179869184"));
	peft.count = 32;
	assert_int_equal(pack_make(&peft, 512 << 10, ADAPTER_F16, &layout, &reason), 0);
	assert_int_equal(layout.header->pages, 32768);
	pack_free(&layout);
	free(peft.modules);
}

/* ---- invalid layouts ---- */

struct wrong {
	const char *what;
	size_t offset; /* offset of a 4-byte number */
	int32_t change;
	int result;
};

static void test_wrong(void **state)
{
	const struct rig_module fixed[] = {
		{"h.0.a", 8, 300, 5000, SAFETENSORS_F16},
		{"h.0.b", 1, 128, 128, SAFETENSORS_F16},
		{"h.3.a", 128, 4096, 4096, SAFETENSORS_F16},
	};
	struct adapter_layout layout, parts;
	uint32_t *copy;
	struct rig rig;

	(void)state;
	rig_make(&rig, fixed, 3);
	layout = packed(&rig.peft, 512 << 10);
	copy = malloc(layout.header->bytes);
	/*
	 * A change of any bit of any number is detected, except in numbers of a module that do not describe positions.
	 * A truncation is detected, too.
	 */
	for (size_t at = 0; at < layout.header->bytes; at++)
		for (int bit = 0; bit < 8; bit++) {
			int result;

			memcpy(copy, layout.header, layout.header->bytes);
			((uint8_t *)copy)[at] ^= (uint8_t)(1 << bit);
			result = adapter_layout_check(copy, layout.header->bytes, &parts);
			assert_true(result == 0 || result == -EBADMSG || result == -EPROTO);
			if (at < sizeof(*layout.header) &&
				at / 4 != offsetof(struct adapter_layout_header, element) / 4)
				assert_int_not_equal(result, 0);
		}
	for (size_t bytes = 0; bytes < layout.header->bytes; bytes++) {
		memcpy(copy, layout.header, layout.header->bytes);
		assert_int_equal(adapter_layout_check(copy, bytes, &parts), -EBADMSG);
	}
#define AT(array, index, field) ((size_t)((const char *)&layout.array[index].field - (const char *)layout.header))
	{
		const struct wrong wrongs[] = {
			{"version", offsetof(struct adapter_layout_header, version), 1, -EPROTO},
			{"last page", offsetof(struct adapter_layout_header, last_bytes), 256, -EBADMSG},
			{"more pages", offsetof(struct adapter_layout_header, pages), 1, -EBADMSG},
			{"layers' order", AT(layers, 0, layer), 3, -EBADMSG},
			{"layer's modules", AT(layers, 0, modules), 1, -EBADMSG},
			{"layer's pages", AT(layers, 1, pages), -1, -EBADMSG},
			{"no pages", AT(layers, 0, pages), -1, -EBADMSG},
			{"module's layer", AT(modules, 0, layer), 1, -EBADMSG},
			{"module's target", AT(modules, 2, target), 2, -EBADMSG},
			{"same target", AT(modules, 1, target), -1, -EBADMSG},
			{"rank 0", AT(modules, 1, rank), -1, -EBADMSG},
			{"rank 129", AT(modules, 2, rank), 1, -EBADMSG},
			{"features", AT(modules, 0, in), 1 << 20, -EBADMSG},
			{"another tile", AT(modules, 0, in), 128, -EBADMSG},
			{"first run", AT(modules, 0, b.first), 1, -EBADMSG},
			{"head", AT(modules, 0, a.head_tiles), 1, -EBADMSG},
			{"no head", AT(modules, 1, a.head_tiles), -1, -EBADMSG},
			{"runs", AT(modules, 2, a.run_tiles), 100, -EBADMSG},
			{"runs of one run", AT(modules, 1, a.run_tiles), 1, -EBADMSG},
			{"page", AT(runs, 0, page), 100, -EBADMSG},
			{"offset", AT(runs, 0, offset), 4, -EBADMSG},
			{"behind the page", AT(runs, 0, offset), 512 << 10, -EBADMSG},
			{"across the page", AT(runs, 0, offset), (512 << 10) - 256, -EBADMSG},
			{"over another", AT(runs, 1, offset), -256, -EBADMSG},
			{"name's place", AT(targets, 1, offset), 1, -EBADMSG},
			{"name's length", AT(targets, 1, bytes), -1, -EBADMSG},
		};

		for (size_t i = 0; i < sizeof(wrongs) / sizeof(*wrongs); i++) {
			memcpy(copy, layout.header, layout.header->bytes);
			copy[wrongs[i].offset / 4] += (uint32_t)wrongs[i].change;
			if (adapter_layout_check(copy, layout.header->bytes, &parts) != wrongs[i].result)
				fail_msg("%s", wrongs[i].what);
		}
	}
	memcpy(copy, layout.header, layout.header->bytes);
	((float *)copy)[AT(modules, 0, scale) / 4] = NAN;
	assert_int_equal(adapter_layout_check(copy, layout.header->bytes, &parts), -EBADMSG);
	free(copy);
	pack_free(&layout);
	rig_end(&rig);
}

/* A tile ends in the next page, where no other tile is. */
static void test_across(void **state)
{
	const struct rig_module fixed = {"h.0.a", 2, 128, 128, SAFETENSORS_F16};
	struct adapter_layout layout, parts;
	struct adapter_layout_header *header;
	struct adapter_run *runs;
	struct rig rig;

	(void)state;
	rig_make(&rig, &fixed, 1);
	layout = packed(&rig.peft, 512 << 10);
	header = (struct adapter_layout_header *)(uintptr_t)layout.header;
	runs = (struct adapter_run *)(uintptr_t)layout.runs;
	((struct adapter_layer *)(uintptr_t)layout.layers)->pages = header->pages = 2;
	header->last_bytes = 1024;
	runs[0] = (struct adapter_run){0, (512 << 10) - 512};
	runs[1] = (struct adapter_run){1, 512};
	assert_int_equal(adapter_layout_check(header, header->bytes, &parts), 0);
	runs[0].offset += 256;
	assert_int_equal(adapter_layout_check(header, header->bytes, &parts), -EBADMSG);
	pack_free(&layout);
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_loss),
		cmocka_unit_test(test_gap),
		cmocka_unit_test(test_too_large),
		cmocka_unit_test(test_wrong),
		cmocka_unit_test(test_across),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
