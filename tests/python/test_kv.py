"""KV caches and their groups, with a real agent; contents are written and read through numpy."""

from __future__ import annotations

import errno
import os
import unittest
from typing import Any, List

import numpy

from harness import AgentTest, array_of, gpool

LAYERS, HEADS, HEAD_SIZE, BLOCK_TOKENS = 2, 2, 32, 16
TOKEN_ELEMENTS = 2 * LAYERS * HEADS * HEAD_SIZE
BLOCK_BYTES = TOKEN_ELEMENTS * 2 * BLOCK_TOKENS


class CacheTest(AgentTest):
    def setUp(self) -> None:
        super().setUp()
        self.stream = self.pool.stream()

    def cache(self, pool: Any = None, stream: Any = None, **options: Any) -> gpool.KvCache:
        made: gpool.KvCache = (pool or self.pool).create_kv_cache(
            LAYERS, HEADS, HEAD_SIZE, stream or self.stream, **{"max_blocks": 256, "watermark_blocks": 0, **options}
        )
        return made

    @staticmethod
    def blocks(cache: gpool.KvCache) -> Any:
        """Return the memory of the cache as an array of blocks."""
        return array_of(cache.view("uint16")).reshape(-1, BLOCK_BYTES // 2)


class Caches(CacheTest):
    def test_blocks_are_where_the_layout_says(self) -> None:
        with self.cache() as cache:
            layout = cache.layout
            self.assertEqual((layout.block_tokens, layout.block_bytes, layout.max_blocks), (16, BLOCK_BYTES, 256))
            sequence = cache.allocate(20)
            table = cache.table(sequence)
            self.assertEqual(len(table), 2)
            for block in [*table, 255]:
                chunk, rest = divmod(block, layout.chunk_blocks)
                self.assertEqual(
                    cache.address(block), layout.address + chunk * layout.chunk_bytes + rest * layout.block_bytes
                )
            self.assertEqual(cache.append(sequence), table[1] * BLOCK_TOKENS + 4)
            self.assertEqual(cache.append(sequence, 11), table[1] * BLOCK_TOKENS + 5)
            slot = cache.append(sequence)
            self.assertEqual(slot, cache.table(sequence)[2] * BLOCK_TOKENS)
            self.blocks(cache)[cache.table(sequence)[2]] = 7
            offset = cache.address(slot // BLOCK_TOKENS) - layout.address
            self.assertEqual(array_of(cache.view("uint8", 4, offset)).tobytes(), b"\7\0\7\0")
            with self.assertRaises(gpool.Error) as caught:
                cache.address(256)
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            info = cache.sequence_info(sequence)
            self.assertEqual((info.state, info.tokens, info.blocks, info.room), (gpool.KvState.RUNNING, 33, 3, 15))
            cache.free(sequence)
            self.assertRaises(gpool.Stale, cache.append, sequence)

    def test_the_device_reads_the_tables(self) -> None:
        with self.cache(max_sequences=8) as cache:
            sequence = cache.allocate(40)
            cache.sync()
            self.stream.synchronize()
            layout, row = cache.layout, cache.sequence_info(sequence).row
            place = layout.table_address + 4 * row * layout.table_columns
            with self.pool.alloc(1) as block:
                self.stream.copy(block.address, place, 12)
                self.stream.synchronize()
                self.assertEqual(list(array_of(block.view("int32", 3))), cache.table(sequence))

    def test_a_fork_copies_what_it_changes(self) -> None:
        with self.cache() as cache:
            parent = cache.allocate(20)
            memory = self.blocks(cache)
            memory[cache.table(parent)[0]] = 1
            memory[cache.table(parent)[1]] = 2
            child = cache.fork(parent)
            self.assertEqual(cache.table(child), cache.table(parent))
            self.assertEqual(cache.sequence_info(child).shared_blocks, 2)
            cache.append(child)
            self.stream.synchronize()
            first, second = cache.table(child)
            self.assertEqual(first, cache.table(parent)[0])
            self.assertNotEqual(second, cache.table(parent)[1])
            self.assertTrue((memory[second] == 2).all())
            memory[second] = 3
            self.assertTrue((memory[cache.table(parent)[1]] == 2).all())
            self.assertEqual(cache.stats().block_copies, 1)
            third = cache.allocate(16)
            cache.copy_blocks([(second, cache.table(third)[0])])
            self.stream.synchronize()
            self.assertTrue((memory[cache.table(third)[0]] == 3).all())
            with self.assertRaises(gpool.Error):
                cache.copy_blocks([(second, first)])  # it is shared
            del memory

    # ---- admission ----

    def test_admission(self) -> None:
        with self.cache(max_sequences=3, max_sequence_tokens=2048) as cache:
            admission, need = cache.can_allocate(100)
            self.assertEqual((admission, need.needed_blocks, need.free_blocks), (gpool.KvAdmission.OK, 7, 256))
            self.assertEqual(cache.can_allocate(2049)[0], gpool.KvAdmission.NEVER)
            fit, need = cache.can_batch([2048, 1024, 2048])
            self.assertEqual((fit, need.needed_blocks), (2, 192))
            self.assertEqual(cache.can_batch([16, 16, 16], max_sequences=1)[0], 1)
            self.assertEqual(cache.can_batch([16, 16, 16], max_tokens=32)[0], 2)
            for _ in range(2):
                cache.allocate(1536)
            self.assertEqual(cache.can_allocate(1536)[0], gpool.KvAdmission.LATER)
            self.assertRaises(gpool.NoRoom, cache.allocate, 1536)
            self.assertEqual(cache.oom_info()[0::2], (96, 64))
            with self.assertRaises(gpool.Error) as caught:
                cache.allocate(2049)
            self.assertEqual(caught.exception.errno, errno.EFBIG)
            cache.allocate(16, estimated_tokens=1024)
            self.assertEqual(cache.stats().free_blocks, 0)
            with self.assertRaises(gpool.Error) as caught:
                cache.allocate(0)
            self.assertEqual(caught.exception.errno, errno.EUSERS)
            self.assertEqual(cache.stats().refusals, 3)

    def test_the_watermark_stays_free(self) -> None:
        with self.cache(watermark_blocks=16) as cache:
            cache.allocate(200 * 16)
            self.assertRaises(gpool.NoRoom, cache.allocate, 41 * 16)
            cache.allocate(41 * 16, continues=True)
        with self.cache(watermark_blocks=None) as cache:
            self.assertEqual(cache.stats().watermark_blocks, 2)  # 1 %

    # ---- preemption and offloading ----

    def test_growing_preempts(self) -> None:
        with self.cache(max_blocks=16) as cache:
            size = cache.layout.max_blocks  # whole chunks
            low, middle, high = (cache.allocate((size // 4) * 16, priority=priority) for priority in range(3))
            rest = cache.allocate((size - 3 * (size // 4)) * 16, priority=9)
            slot, preempted = cache.grow(high)
            self.assertEqual((slot, preempted), (cache.table(high)[-1] * 16, [low]))
            self.assertEqual(cache.grow(high), (slot + 1, []))
            free = cache.stats().free_blocks
            asked: List[int] = []

            def policy(sequence: int) -> int:
                asked.append(sequence)
                self.assertGreater(cache.oom_info().needed_blocks, free)
                return rest

            _, preempted = cache.grow(middle, (free + 1) * 16, policy=policy)
            self.assertEqual((asked, preempted), ([middle], [rest]))
            self.assertEqual(cache.sequence_info(rest).state, gpool.KvState.PREEMPTED)
            # the sequence itself, an exception, and one that is not running
            with self.assertRaises(gpool.NoRoom) as refused:
                cache.grow(high, size * 8, policy=lambda sequence: sequence)
            self.assertEqual(refused.exception.preempted, [])  # type: ignore[attr-defined]
            with self.assertRaises(ZeroDivisionError):
                cache.grow(high, size * 8, policy=lambda sequence: 1 // 0)
            with self.assertRaises(TypeError):
                cache.grow(high, size * 8, policy=lambda sequence: "x")  # type: ignore[arg-type, return-value]
            with self.assertRaises(gpool.Error) as wrong:
                cache.grow(high, size * 8, policy=lambda sequence: rest)
            self.assertEqual(wrong.exception.errno, errno.EINVAL)
            # middle is the next in the order itself
            self.assertRaises(gpool.NoRoom, cache.grow, middle, size * 8)
            with self.assertRaises(gpool.Error) as wrong:
                cache.grow(high, size * 16)
            self.assertEqual(wrong.exception.errno, errno.EFBIG)
            self.assertEqual(cache.stats().preempted, 2)
            cache.host_reserve(size * BLOCK_BYTES)
            self.assertEqual(cache.grow(high, size * 8, policy=lambda sequence: None, offload=True)[1], [middle])
            self.assertEqual(cache.offload_info().sequences, 1)

    def test_preempted_sequences(self) -> None:
        with self.cache() as cache:
            self.assertIsNone(cache.waiting())
            self.assertRaises(gpool.NotFound, cache.preempt)
            low, high = cache.allocate(64), cache.allocate(32, priority=1, owner_id=77)
            self.assertEqual(cache.preempt(), (4, low))
            self.assertEqual(cache.preempt(high), (2, high))
            for call in (cache.append, cache.fork, cache.preempt):
                with (
                    self.subTest(call),
                    self.assertRaisesRegex(gpool.Preempted, f"sequence {low:#x} is preempted; resume it first"),
                ):
                    call(low)
            self.assertEqual((cache.waiting(), cache.table(low)), (high, []))
            cache.resume(high)
            with self.assertRaises(gpool.Error) as caught:
                cache.resume(high)
            self.assertEqual(caught.exception.errno, errno.EALREADY)
            info = cache.sequence_info(high)
            self.assertEqual((info.state, info.blocks, info.priority, info.owner_id), (gpool.KvState.RUNNING, 2, 1, 77))
            self.assertEqual(cache.sequence_info(low).state, gpool.KvState.PREEMPTED)
            stats = cache.stats()
            self.assertEqual((stats.running, stats.preempted, stats.preemptions, stats.resumes), (1, 1, 2, 1))

    def test_offloaded_content_comes_back(self) -> None:
        with self.cache() as cache:
            with self.assertRaises(gpool.Error) as caught:
                cache.offload(cache.allocate(16))
            self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)
            cache.host_reserve(64 * BLOCK_BYTES)
            memory = self.blocks(cache)
            for to_pool in (False, True):
                with self.subTest(to_pool=to_pool):
                    sequence = cache.allocate(48)
                    for number, block in enumerate(cache.table(sequence)):
                        memory[block] = 100 + number
                    self.assertEqual(cache.offload(sequence, to_pool=to_pool), (3, sequence))
                    self.stream.synchronize()  # the CPU writes to these blocks now
                    info = cache.offload_info()
                    self.assertEqual((info.sequences, info.content_bytes), (1, 3 * BLOCK_BYTES))
                    self.assertEqual(bool(info.pool_pages), to_pool)
                    other = cache.allocate(16 * 200)
                    for block in cache.table(other):
                        memory[block] = 0
                    if to_pool:
                        self.assertGreater(self.agent.evict(), 0)
                        while cache.prefetch(sequence):
                            pass
                    cache.resume(sequence)
                    self.stream.synchronize()
                    for number, block in enumerate(cache.table(sequence)):
                        self.assertTrue((memory[block] == 100 + number).all())
                    cache.free(other)
            with self.assertRaises(gpool.Error) as caught:
                cache.quant_error(sequence)
            self.assertEqual(caught.exception.errno, errno.ENODATA)
            del memory

    def test_int8(self) -> None:
        with self.cache() as cache:
            cache.host_reserve(64 * BLOCK_BYTES)
            sequence = cache.allocate(16)
            memory = array_of(cache.view()).reshape(-1, BLOCK_BYTES // 2)
            values = numpy.linspace(-1, 1, BLOCK_BYTES // 2).astype("float16")
            memory[cache.table(sequence)[0]] = values
            try:
                cache.offload(sequence, int8=True)
            except gpool.Error as raised:
                self.assertEqual(raised.errno, errno.EOPNOTSUPP)  # a build without kernels
                return
            cache.resume(sequence)
            self.stream.synchronize()
            lost = numpy.abs(memory[cache.table(sequence)[0]] - values).max()
            del memory
            said = cache.quant_error(sequence)
            self.assertAlmostEqual(said.max_error, float(lost), delta=0.001)
            self.assertGreater(said.relative_error, 0)

    def test_resident_int8(self) -> None:
        tokens, width = 20, HEADS * 64
        scratch = self.pool.alloc(1)
        memory = array_of(scratch.view("uint8"))
        memory[:] = 0
        random = numpy.random.default_rng(3)
        elements = [random.standard_normal((tokens, HEADS, 64)).astype("float16") for _ in range(2)]
        with self.pool.create_kv_cache(LAYERS, HEADS, 64, self.stream, max_blocks=64, int8=True) as cache:
            layout = cache.layout
            self.assertEqual(layout.block_bytes, 2 * LAYERS * HEADS * 66 * BLOCK_TOKENS)
            self.assertEqual(layout.layer_bytes * LAYERS, layout.block_bytes)
            sequence = cache.allocate(tokens)
            table = cache.table(sequence)
            slots = [table[token // BLOCK_TOKENS] * BLOCK_TOKENS + token % BLOCK_TOKENS for token in range(tokens)]
            size = tokens * width * 2
            for i, data in enumerate([*elements, numpy.array(slots, dtype="uint64")]):
                memory[i * size : i * size + data.nbytes] = data.view("uint8").reshape(-1)
            keys, values, places = (scratch.address + i * size for i in range(3))
            cache.write(1, keys, values, places, tokens, error=scratch.address + 3 * size)
            self.stream.synchronize()
            loss = gpool.KvQuantError.of_writes(memory[3 * size : 3 * size + 24].tobytes())
            self.assertTrue(0 < loss.relative_error < 0.01)
            stored = array_of(cache.view())
            self.assertEqual(stored.dtype, numpy.int8)
            worst = 0.0
            for token in range(tokens):
                block = cache.address(table[token // BLOCK_TOKENS]) - layout.address + layout.layer_bytes
                for head in range(HEADS):
                    for which, (codes, scale) in enumerate(
                        ((layout.keys, layout.key_scales), (layout.values, layout.value_scales))
                    ):
                        within = token % BLOCK_TOKENS
                        codes += block + within * layout.token_stride + head * layout.head_stride
                        scale += block + within * layout.scale_token_stride + head * layout.scale_head_stride
                        bits = numpy.concatenate((numpy.zeros(2, "int8"), stored[scale : scale + 2]))
                        vector = elements[which][token, head].astype("float64")
                        found = stored[codes : codes + 64] * float(bits.view("float32")[0])
                        worst = max(worst, abs(found - vector).max())
                        self.assertLess(abs(found - vector).max(), abs(vector).max() / 252 * 1.001)
            del stored  # while a view exists, the cache cannot be closed
            self.assertAlmostEqual(loss.max_error, worst, places=5)
            with self.assertRaises(gpool.Error) as caught:
                cache.write(LAYERS, keys, values, places, tokens)
            self.assertEqual(caught.exception.errno, errno.EINVAL)
        with self.cache() as cache, self.assertRaises(gpool.Error) as caught:
            cache.write(0, keys, values, places, tokens)
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)
        with self.assertRaises(ValueError):
            self.cache(dtype="float32", int8=True)
        scratch.free()

    def test_compacting(self) -> None:
        with self.cache() as cache:
            chunk = cache.layout.chunk_blocks
            whole, part = cache.allocate(16 * (chunk - 1)), cache.allocate(16 * 2)
            memory = self.blocks(cache)
            memory[cache.table(part)[1]] = 9
            cache.free(whole)
            before = cache.stats().committed_chunks
            moved = cache.compact(256)
            self.stream.synchronize()
            self.assertTrue((memory[cache.table(part)[1]] == 9).all())
            self.assertEqual((before - cache.stats().committed_chunks, moved), (1, 1))
            del memory

    # ---- prefixes ----

    def test_prefixes(self) -> None:
        ids = list(range(1000, 1100))
        with self.cache(prefixes=True, model=b"model") as cache:
            sequence = cache.allocate(100)
            self.blocks(cache)[cache.table(sequence)[0]] = 5
            named = gpool.KvPrefix(ids, adapter_id=3, salt=(1, 2))
            self.assertEqual(cache.prefix_find(named).blocks, 0)
            self.assertEqual(cache.prefix_publish(sequence, named), 6)
            self.assertEqual(cache.prefix_find(named), (6, 96, 0, cache.table(sequence)[5]))
            self.assertEqual(cache.prefix_find(gpool.KvPrefix(numpy.array(ids), 3, (1, 2))).tokens, 96)
            for other in (named._replace(adapter_id=4), named._replace(salt=(1, 3)), named._replace(ids=[7, *ids[1:]])):
                self.assertEqual(cache.prefix_find(other).blocks, 0)
            shared, found = cache.prefix_allocate(100, named)
            self.assertEqual((found, cache.table(shared)[:6]), (96, cache.table(sequence)[:6]))
            cache.free(shared)
            cache.free(sequence)
            self.assertEqual(cache.prefix_find(named)[:3], (6, 96, 6))
            again, found = cache.prefix_allocate(40, named._replace(ids=ids[:39]))
            self.assertEqual(found, 32)
            self.assertTrue((self.blocks(cache)[cache.table(again)[0]] == 5).all())
            cache.free(again)
            self.assertEqual(cache.prefix_evict(2), 2)
            self.assertEqual(cache.prefix_find(named).blocks, 4)
            self.assertEqual(cache.prefix_evict(), 4)
            self.assertEqual(cache.stats().prefix_evicted, 6)
            self.assertEqual(cache.prefix_find(gpool.KvPrefix([])).blocks, 0)
            self.assertRaises(OverflowError, cache.prefix_find, gpool.KvPrefix([-1]))
            self.assertRaises(TypeError, cache.prefix_find, gpool.KvPrefix(["1"]))  # type: ignore[list-item]
        with self.cache() as plain, self.assertRaises(gpool.Error) as caught:
            plain.prefix_find(named)
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)

    def test_prefixes_are_a_tree(self) -> None:
        first, second = list(range(96)), list(range(64)) + list(range(1000, 1064))
        with self.cache(prefixes=True) as cache:
            self.assertEqual(cache.prefix_tree()[0], [])
            sequences = []
            for ids in (first, second):
                sequences.append(cache.prefix_allocate(len(ids), gpool.KvPrefix(ids))[0])
                cache.prefix_publish(sequences[-1], gpool.KvPrefix(ids))
            nodes, node_of = cache.prefix_tree()
            self.assertEqual(len(nodes), 3)
            self.assertEqual(nodes[0][1:5] + nodes[0][6:], (None, 2, 0, 4, 2, False))
            for ids, sequence, blocks in zip((first, second), sequences, (2, 4)):
                last = cache.prefix_find(gpool.KvPrefix(ids)).last_block
                self.assertEqual(last, cache.table(sequence)[-1])
                node = nodes[node_of[last] or 0]
                self.assertEqual(node[1:], (0, 0, 64, blocks, last, 1, False))
                self.assertEqual({node_of[block] for block in cache.table(sequence)}, {0, node_of[last]})
                self.assertEqual(len(node.key), 32)
            cache.free(sequences[0])
            self.assertEqual(sorted(node.sequences for node in cache.prefix_tree()[0]), [0, 1, 1])
        with self.cache() as plain, self.assertRaises(gpool.Error):
            plain.prefix_tree()

    def test_prefixes_of_another_session(self) -> None:
        options: Any = {"prefixes": True, "model": b"m" * 32, "pool_blocks": 256}
        with self.cache(**options) as cache, self.agent.pool() as pool, pool.stream() as stream:
            tokens = BLOCK_TOKENS * cache.layout.chunk_blocks
            named = gpool.KvPrefix(range(tokens))
            sequence = cache.allocate(tokens)
            for number, block in enumerate(cache.table(sequence)):
                self.blocks(cache)[block] = number
            cache.prefix_publish(sequence, named)
            self.assertEqual(cache.prefix_share(sequence), cache.layout.chunk_blocks)
            self.assertEqual(min(cache.table(sequence)), cache.layout.max_blocks)
            with self.cache(pool, stream, **options) as other:
                found, count = other.prefix_allocate(tokens, named)
                self.assertEqual(count, tokens)
                memory = self.blocks(other)
                for number, block in enumerate(other.table(found)):
                    self.assertTrue((memory[block] == number).all())
                del memory
                self.assertEqual(other.stats().pool_found, cache.layout.chunk_blocks)
            cache.free(sequence)
            self.pool.delete_object(next(info.name for info in self.pool.objects()))
        with self.cache(prefixes=True) as alone, self.assertRaises(gpool.Error) as caught:
            alone.prefix_share(alone.allocate(16))
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)

    # ---- life ----

    def test_a_cache_with_views_does_not_close_and_sleeps(self) -> None:
        cache = self.cache(keep=True)
        sequence = cache.allocate(16)
        memory = self.blocks(cache)
        memory[cache.table(sequence)[0]] = 42
        self.assertRaisesRegex(gpool.Busy, "cannot close a KV cache: 1 view", cache.close)
        self.assertRaises(gpool.Busy, self.pool.close)
        self.pool.sleep()
        self.assertRaises(gpool.Asleep, cache.allocate, 16 * 200)
        self.pool.wake()
        self.assertTrue((memory[cache.table(sequence)[0]] == 42).all())
        del memory
        cache.close()
        cache.close()
        self.assertRaises(gpool.Closed, cache.allocate, 1)
        self.assertIn("closed", repr(cache))

    def test_what_is_refused_at_its_creation(self) -> None:
        for error, options in (
            (ValueError, {"model": b"x" * 33}),
            (TypeError, {"dtype": "float80"}),
            (gpool.Error, {"block_tokens": 3}),
            (gpool.Error, {"stream": self.pool.stream(host_signaled=True)}),
        ):
            with self.subTest(options):
                self.assertRaises(error, self.cache, **options)

    def test_the_child_of_a_fork_gets_an_error(self) -> None:
        with self.cache() as cache:
            sequence = cache.allocate(16)
            child = os.fork()
            if child == 0:
                try:
                    self.assertRaises(gpool.Forked, cache.append, sequence)
                    cache.close()
                    os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            cache.append(sequence)


class Groups(CacheTest):
    def test_a_group(self) -> None:
        with self.cache() as one, self.cache(max_sequence_tokens=512) as two:
            with gpool.KvGroup([one, two], 32) as group:
                sequence = group.allocate(40, priority=1)
                self.assertEqual(group.span(sequence, 0), (0, 32, 2, sequence))
                part = group.span(sequence, 1)
                self.assertEqual(part[:3], (32, 8, 1))
                self.assertEqual(group.append(sequence, 2), (1, two.table(part.sequence)[0] * BLOCK_TOKENS + 8))
                self.assertEqual(group.can_allocate(32 + 512)[0], gpool.KvAdmission.OK)
                admission, member, need = group.can_allocate(32 + 513)
                self.assertEqual((admission, member), (gpool.KvAdmission.NEVER, 1))
                with self.assertRaises(gpool.Error) as caught:
                    group.allocate(32 + 513)
                self.assertEqual((caught.exception.errno, group.oom_info()[0]), (errno.EFBIG, 1))
                child = group.fork(sequence)
                self.assertEqual(one.sequence_info(child).shared_blocks, 2)
                group.free(child)
                self.assertEqual(group.preempt(), (3, sequence))
                self.assertRaises(gpool.Preempted, group.append, sequence)
                self.assertEqual(one.waiting(), sequence)
                group.resume(sequence)
                self.assertRaisesRegex(gpool.Busy, "it belongs to a group", one.close)
                group.free(sequence)
                self.assertRaises(gpool.Stale, group.append, sequence)
            self.assertRaises(gpool.Closed, group.allocate, 1)
            self.assertEqual(self.pool.handle.calls, 0)
            for caches, tokens in (([], 32), ([one, one], 32), ([one, two], 33)):
                with self.subTest(caches=caches), self.assertRaises(gpool.Error):
                    gpool.KvGroup(caches, tokens)
            self.assertEqual(one.handle.calls, 0)

    def test_growing_in_a_group(self) -> None:
        with self.cache(max_blocks=16) as one, self.cache(max_blocks=16) as two, gpool.KvGroup([one, two], 32) as group:
            size = two.layout.max_blocks  # whole chunks
            low = group.allocate(32 + size // 2 * BLOCK_TOKENS, priority=1)
            high = group.allocate(32 + (size - size // 2) * BLOCK_TOKENS, priority=2)
            small = group.allocate(BLOCK_TOKENS)
            member, slot, preempted = group.grow(high)
            self.assertEqual((member, preempted), (1, [low]))
            self.assertEqual(slot // BLOCK_TOKENS, two.table(group.span(high, 1).sequence)[-1])
            self.assertEqual(one.sequence_info(low).state, gpool.KvState.PREEMPTED)
            self.assertEqual(one.sequence_info(small).state, gpool.KvState.RUNNING)
            other = group.allocate(32 + BLOCK_TOKENS, priority=3)
            more = (size // 2 - 1) * BLOCK_TOKENS
            with self.assertRaises(gpool.NoRoom) as refused:
                group.grow(high, more, policy=lambda sequence: sequence)
            self.assertEqual(refused.exception.preempted, [])  # type: ignore[attr-defined]
            with self.assertRaises(ZeroDivisionError):
                group.grow(high, more, policy=lambda sequence: 1 // 0)
            self.assertEqual(group.grow(high, more, policy=lambda sequence: other)[2], [other])
            self.assertEqual(two.stats().free_blocks, 0)

    def test_caches_of_other_processes(self) -> None:
        with self.cache() as one, self.cache() as two:
            broken = False
            orders: List[bytes] = []

            def send(order: bytes) -> bytes:
                orders.append(order)
                if broken:
                    raise ConnectionResetError
                return two.execute(order)

            with gpool.KvGroup([one, send], 32) as group:
                sequence = group.allocate(40)
                part = group.span(sequence, 1)
                self.assertEqual(part[:3], (32, 8, 1))
                self.assertEqual(group.append(sequence), (1, two.table(part.sequence)[0] * BLOCK_TOKENS + 8))
                self.assertEqual(two.stats().running, 1)
                broken = True
                with self.assertRaises(gpool.Error) as caught:
                    group.append(sequence)
                self.assertEqual(caught.exception.errno, errno.ECONNRESET)
                self.assertIsInstance(group.failures[0], ConnectionResetError)
                before = len(orders)
                with self.assertRaises(gpool.Error):
                    group.fork(sequence)
                self.assertEqual(len(orders), before)
                group.free(sequence)
                self.assertEqual(one.stats().running, 0)
            broken = False
            with gpool.KvGroup([send], 32) as group:
                group.free(group.allocate(1))
            self.assertRaises(ValueError, two.execute, b"order")
            with self.assertRaises(gpool.Error) as caught:
                two.execute(bytes(len(orders[0])))
            self.assertEqual(caught.exception.errno, errno.EPROTO)
            two.free(part.sequence)

    def test_a_pool_ends_its_groups(self) -> None:
        pool = self.agent.pool()
        stream = pool.stream()
        group = gpool.KvGroup([self.cache(pool, stream), self.cache(pool, stream)], 32)
        group.allocate(64)
        pool.close()
        self.assertTrue(group.handle.closed)
        self.assertRaises(gpool.Closed, group.allocate, 1)


if __name__ == "__main__":
    unittest.main()
