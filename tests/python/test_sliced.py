"""Sliced ranges and scopes, with a real agent; contents are written and read through numpy."""

from __future__ import annotations

import errno
import unittest

from harness import AgentTest, array_of, gpool

PAGE = 512 << 10


class SlicedRanges(AgentTest):
    def test_slices_grow_and_shrink_together(self) -> None:
        with self.pool.create_sliced_range(4, 100, read_ahead=2) as sliced:
            self.assertEqual((sliced.slices, sliced.blocks, sliced.block_bytes), (4, 100, PAGE))
            self.assertGreaterEqual(sliced.slice_bytes, 100 * PAGE)
            sliced.grow(3)
            self.assertEqual(sliced.info().committed, 3)
            for index in range(4):
                view = sliced.view(index, "uint32", 3 * PAGE // 4)
                self.assertEqual(view.address, sliced.address + index * sliced.slice_bytes)
                array_of(view)[:] = index
                del view
            sliced.grow(5)
            sliced.grow(4)
            self.assertEqual(sliced.info().committed, 5)
            for index in range(4):
                self.assertTrue((array_of(sliced.view(index, "uint32", 3 * PAGE // 4)) == index).all())
            sliced.shrink(1)
            self.assertEqual(sliced.info().committed, 1)
            self.assertTrue((array_of(sliced.view(3, "uint32", PAGE // 4)) == 3).all())

    def test_what_is_refused(self) -> None:
        sliced = self.pool.create_sliced_range(4, 20)
        with self.assertRaises(gpool.NoRoom) as caught:
            sliced.grow(17)
        self.assertIn("cannot grow a sliced range to 17 blocks", str(caught.exception))
        self.assertEqual((sliced.info().committed, caught.exception.oom_info is not None), (0, True))
        with self.assertRaises(gpool.Error) as refused:
            sliced.grow(21)
        self.assertEqual(refused.exception.errno, errno.EINVAL)
        with self.assertRaisesRegex(gpool.Error, "cannot create a view of 1 block of a sliced range: 0 have memory"):
            sliced.view(0, shape=1)
        self.assertRaises(IndexError, sliced.view, 4)
        self.assertRaises(IndexError, sliced.view, -1)
        self.assertRaises(ValueError, sliced.view)
        with self.assertRaises(gpool.Error):
            self.pool.create_sliced_range(0, 20)
        sliced.grow(2)
        with self.assertRaisesRegex(gpool.Error, "cannot create a view of 3 blocks"):
            sliced.view(1, shape=2 * PAGE + 1)
        view = sliced.view(1, shape=2 * PAGE)
        for call in (lambda: sliced.shrink(0), sliced.close, self.pool.sleep):
            with self.assertRaisesRegex(gpool.Busy, "1 view of its memory exists; delete"):
                call()
        del view
        sliced.close()
        sliced.close()
        self.assertRaises(gpool.Closed, sliced.grow, 1)

    def test_sparse_views_permit_changes_and_sleep(self) -> None:
        sliced = self.pool.create_sliced_range(2, 40, 2)
        whole = array_of(sliced.view(sparse=True))
        second = array_of(sliced.view(1, "uint16", sparse=True))
        self.assertEqual((whole.size, second.size), (2 * sliced.slice_bytes, 40 * PAGE))
        sliced.grow(2)
        second[: 2 * PAGE] = 0x600D
        self.assertEqual(whole[sliced.slice_bytes], 0x0D)
        self.pool.sleep()
        self.assertRaises(gpool.Asleep, sliced.grow, 3)
        self.pool.wake()
        self.assertTrue((second[: 2 * PAGE] == 0x600D).all())
        sliced.shrink(0)
        self.assertRaises(gpool.Busy, sliced.close)
        del whole, second
        sliced.close()


class Scopes(AgentTest):
    def test_a_scope_unpins_its_blocks(self) -> None:
        with self.pool.scope(gpool.Usage.ACTIVATION) as scope:
            blocks = [scope.alloc(2, priority=1), scope.alloc(3)]
            blocks[1].unpin()
            self.assertEqual(self.agent.evict(), 3)
        self.assertEqual(self.agent.evict(), 2)
        self.assertRaises(gpool.Stale, blocks[0].pin)

    def test_a_scope_frees_its_blocks(self) -> None:
        with self.assertRaises(KeyError):
            with self.pool.scope(free=True) as scope:
                scope.alloc(30).free()
                scope.alloc(30)
                scope.alloc(34).unpin()
                raise KeyError
        self.pool.alloc(64).free()
        with self.assertRaisesRegex(gpool.Closed, "cannot allocate in a scope: it has ended"):
            scope.alloc(1)
        self.pool.alloc(64).free()

    # Requirements: U3.
    def test_a_scope_ends_behind_a_fence(self) -> None:
        stream = self.pool.stream(host_signaled=True)
        fence = stream.record()
        scope = self.pool.scope(free=True)
        scope.alloc(64)
        scope.end(fence)
        scope.end()
        with self.assertRaises(gpool.NoRoom):
            self.pool.alloc(1)
        fence.signal()
        self.pool.alloc(64).free()

    def test_an_error_is_raised_after_all_blocks(self) -> None:
        with self.agent.pool() as other:
            foreign = other.stream(host_signaled=True).record()
            scope = self.pool.scope(free=True)
            kept = [scope.alloc(1), scope.alloc(1)]
            with self.assertRaisesRegex(gpool.Error, "it belongs to another pool"):
                scope.end(foreign)
        for block in kept:
            block.free()


if __name__ == "__main__":
    unittest.main()
