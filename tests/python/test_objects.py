"""Named objects and ranges, with a real agent; objects of other processes are checked with numpy."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import unittest

import numpy

from harness import AgentTest, array_of, gpool

PAGE = 512 << 10
Class = gpool.ObjectClass


class ObjectTest(AgentTest):
    def tearDown(self) -> None:
        for info in list(self.pool.objects()):
            if info.state == gpool.ObjectState.CURRENT:
                self.pool.delete_object(info.name)


class Objects(ObjectTest):
    def publish(self, name: str, number: int, memory_class: Class = Class.IMMUTABLE, **options: bool) -> gpool.Object:
        draft = self.pool.create_object(name, memory_class, **options)
        draft.alloc(2)
        array_of(draft.view(dtype="uint32"))[:] = number
        draft["number"] = str(number).encode()
        draft.publish()
        return draft

    def test_another_process_reads_what_is_published(self) -> None:
        self.publish("weights", 0x600D).close()
        program = f"""
import sys
sys.path[:0] = {sys.path[:3]!r}
from harness import array_of, gpool
with gpool.Pool(directory={self.agent.directory!r}) as pool, pool.open_object("weights") as weights:
    array = array_of(weights.view(dtype="uint32"))
    assert (array == 0x600d).all() and array.size == 2 * {PAGE} // 4 and not array.flags.writeable
    print(weights["number"].decode(), list(weights.items()), len(weights), weights.info().readers)
    del array
"""
        said = subprocess.run(
            [sys.executable, "-c", program], env=os.environ, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        self.assertEqual(said, "24589 [('number', b'24589')] 1 1\n")

    def test_versions(self) -> None:
        first = self.publish("v", 1)
        second = self.publish("v", 2)
        with self.pool.open_object("v") as current:
            self.assertEqual(array_of(current.view(dtype="uint32"))[0], 2)
            self.assertEqual(current.info().version, second.info().version)
        self.assertEqual(array_of(first.view(dtype="uint32", shape=1)).tobytes(), b"\1\0\0\0")
        states = {info.version: info.state for info in self.pool.objects() if info.name == "v"}
        self.assertEqual(
            states, {first.info().version: gpool.ObjectState.OLD, second.info().version: gpool.ObjectState.CURRENT}
        )
        with self.assertRaises(gpool.NotFound) as caught:
            self.pool.delete_object("none")
        self.assertEqual(caught.exception.strerror, "cannot delete object 'none': no object 'none'")
        with self.assertRaises(gpool.Stale):
            self.pool.delete_object("v", first.info().version)
        for expected in (0, first.info().version):
            with self.pool.create_object("v", expect_version=expected) as draft:
                draft.alloc(1)
                self.assertRaises(gpool.Stale, draft.publish)
        first.close()
        second.close()

    def test_what_is_published_cannot_be_written(self) -> None:
        with self.pool.create_object("o") as draft:
            draft.alloc(1)
            array = array_of(draft.view())
            array[:] = 7
            with self.assertRaisesRegex(gpool.Busy, "1 view of its memory exists; delete"):
                draft.publish()
            del array
            draft.publish()
            self.assertFalse(array_of(draft.view()).flags.writeable)
            with self.assertRaises(gpool.Error) as caught:
                draft.alloc(1)
            self.assertEqual(caught.exception.errno, errno.EINVAL)

    def test_a_mutable_one_goes_on_being_written(self) -> None:
        with self.publish("m", 1, Class.MUTABLE) as writer, self.pool.open_object("m") as reader:
            seen = array_of(reader.view(dtype="uint32"))
            array_of(writer.view(dtype="uint32"))[5] = 99
            self.assertEqual(seen[5], 99)
            self.assertFalse(seen.flags.writeable)
            del seen

    def test_a_view_keeps_the_object_open(self) -> None:
        opened = self.publish("o", 3)
        array = array_of(opened.view(dtype="uint32"))
        self.assertRaises(gpool.Busy, opened.close)
        self.assertRaises(gpool.Busy, self.pool.close)
        self.assertEqual(array[-1], 3)
        del array
        opened.close()
        opened.close()
        self.assertRaises(gpool.Closed, opened.view)

    def test_pinnable_ones_go_when_nobody_pins_them(self) -> None:
        opened = self.publish("p", 4, Class.PINNABLE, pinned=True)
        array = array_of(opened.view(dtype="uint32"))
        opened.unpin()
        self.assertEqual(self.agent.evict(), 0)
        with self.assertRaises(gpool.Error):
            opened.unpin()  # the pin of the view does not belong to the program
        del array
        with opened.pin():
            self.assertEqual(self.agent.evict(), 0)
        self.assertEqual(self.agent.evict(), 2)
        for call in (opened.pin, opened.view):
            self.assertRaises(gpool.Stale, call)
        opened.close()
        self.assertRaises(gpool.NotFound, self.pool.open_object, "p")

    def test_metadata(self) -> None:
        with self.pool.create_object("meta") as draft:
            draft.alloc(1)
            values = {"a": b"", "b": b"\0" * 3, "ä": "ü".encode()}
            for key, value in values.items():
                draft[key] = value
            draft["b"] = values["b"] = b"again"
            self.assertRaises(gpool.Error, draft.info)
            draft.publish()
            self.assertEqual(dict(draft.items()), values)
            self.assertEqual(list(draft), sorted(values, key=str.encode))
            self.assertIn("a", draft)
            self.assertNotIn("c", draft)
            self.assertRaises(KeyError, draft.__getitem__, "c")

    def test_a_wrong_layout_hash_is_named(self) -> None:
        with self.pool.create_object("laid out") as draft:
            draft.alloc(1)
            draft.publish()
            found = draft.info().layout_hash
            with self.assertRaises(gpool.Error) as caught:
                self.pool.open_object("laid out", layout_hash=0xBAD)
        self.assertEqual(caught.exception.errno, errno.EPROTO)
        self.assertEqual(
            str(caught.exception.strerror),
            f"cannot open object 'laid out': its layout hash is {found:016x}, but the expected one is {0xBAD:016x}",
        )

    def test_a_text_with_nul_is_refused(self) -> None:
        """C would truncate the name: deleting "weights\\0harmless" would delete "weights"."""
        with self.pool.create_object("weights") as draft:
            draft.alloc(1)
            draft["key"] = b"1"
            draft.publish()
            cut = "weights\0harmless"
            for call in (
                lambda: self.pool.delete_object(cut),
                lambda: self.pool.create_object(cut),
                lambda: self.pool.open_object(cut),
                lambda: self.pool.open_range(cut),
                lambda: self.pool.create_range(1, Class.IMMUTABLE, name=cut),
                lambda: self.pool.acquire_role(cut),
                lambda: self.pool.role_info(cut),
                lambda: draft["key\0more"],
                lambda: draft.__setitem__("key\0more", b""),
                lambda: self.agent.pool("p0\0"),
                lambda: self.agent.pool(name="a\0"),
                lambda: self.agent.pool(tenant="a\0"),
                lambda: gpool.Pool(directory=self.agent.directory + "\0"),
                lambda: self.pool.adapters("/tmp\0"),
            ):
                with self.assertRaisesRegex(ValueError, "contains NUL"):
                    call()
            self.pool.open_object("weights").close()
        with self.pool.adapters() as adapters:
            for call in (
                lambda: adapters.register("a\0b", "/tmp"),
                lambda: adapters.register("a", "/tmp\0b"),
                lambda: adapters.find("a\0b"),
            ):
                with self.assertRaisesRegex(ValueError, "contains NUL"):
                    call()

    def test_what_is_not_published_is_gone(self) -> None:
        with self.pool.create_object("never") as draft:
            draft.alloc(64)
        self.assertRaises(gpool.NotFound, self.pool.open_object, "never")
        self.pool.alloc(64).free()

    def test_roles(self) -> None:
        with self.pool.acquire_role("writer") as role:
            self.assertTrue(role.held)
            self.assertEqual(self.pool.role_info("writer"), (self.pool.session, role.token))
            with self.agent.pool() as other:
                self.assertRaises(gpool.TimedOut, other.acquire_role, "writer", 0)
            with self.pool.create_object("r", role=role) as draft:
                draft.alloc(1)
                draft.publish()
        self.assertFalse(role.held)
        self.assertEqual(self.pool.role_info("writer")[0], 0)
        with self.pool.create_object("r", role=role) as draft:
            draft.alloc(1)
            self.assertRaises(gpool.Stale, draft.publish)
        self.assertRaises(gpool.NotFound, self.pool.role_info, "missing")

    def test_adopting(self) -> None:
        role = self.pool.acquire_role("heir")
        with self.pool.create_object("inherited", Class.MUTABLE, role=role) as draft:
            draft.alloc(1)
            draft.publish()
        with self.pool.open_object("inherited", role=role, adopt=True) as adopted:
            array_of(adopted.view())[:] = 7
        role.release()


class Ranges(ObjectTest):
    def test_contents_sleep_and_come_back(self) -> None:
        kept, dropped = self.pool.create_range(3), self.pool.create_range(1, Class.EPHEMERAL)
        array = array_of(kept.view("uint16"))
        array[:] = 0x600D
        with self.assertRaisesRegex(gpool.Busy, "cannot put a range to sleep: 1 view of its memory exists"):
            self.pool.sleep()
        del array
        self.pool.sleep()
        self.assertTrue(self.pool.asleep)
        self.assertTrue(kept.info().asleep)
        self.assertRaises(gpool.Busy, kept.view)
        self.pool.alloc(64).free()
        self.pool.wake()
        self.assertFalse(self.pool.asleep)
        self.assertTrue((array_of(kept.view("uint16")) == 0x600D).all())
        self.assertEqual(array_of(kept.view()).ctypes.data, kept.address)
        kept.close()
        dropped.close()

    def test_an_immutable_one_becomes_an_object(self) -> None:
        with self.pool.create_range(2, Class.IMMUTABLE, name="base") as weights:
            array_of(weights.view())[:] = 7
            self.pool.sleep()
            self.pool.wake()
            view = weights.view()
            self.assertTrue(view.readonly)
            self.assertTrue((array_of(view) == 7).all())
            self.assertEqual(weights.info().name, "base")
            del view
        with self.pool.open_range("base") as opened:
            self.assertTrue((array_of(opened.view()) == 7).all())
            self.assertTrue(opened.view().readonly)

    def test_a_range_with_views_does_not_close(self) -> None:
        made = self.pool.create_range(1)
        view = made.view()
        self.assertRaises(gpool.Busy, made.close)
        del view
        made.close()
        self.assertRaises(gpool.Closed, made.info)

    def test_elastic_ranges(self) -> None:
        with self.pool.reserve_range(1000) as elastic:
            self.assertEqual(elastic.page_state(7), gpool.PageState.HOLE)
            with self.assertRaises(gpool.Error) as caught:
                elastic.view(shape=PAGE, offset=7 * PAGE)
            self.assertEqual(caught.exception.errno, errno.EFAULT)
            elastic.commit(7, 2)
            view = elastic.view("uint8", 2 * PAGE, offset=7 * PAGE)
            array_of(view)[:] = 7
            self.assertRaises(gpool.Busy, elastic.decommit, 7, 1)
            self.assertEqual(elastic.info().committed_pages, 2)
            del view
            elastic.decommit(7, 1)
            self.assertEqual(elastic.page_state(7), gpool.PageState.RECLAIMABLE)
            with self.assertRaises(gpool.NoRoom):
                elastic.commit(0, 100)
            self.assertRaises(gpool.Error, elastic.view, "uint8", 2, PAGE * 8 - 1)
            self.assertEqual(array_of(elastic.view("uint8", 2, PAGE * 8)).tobytes(), b"\7\7")


class RangeObjects(ObjectTest):
    def setUp(self) -> None:
        super().setUp()
        self.range = self.pool.reserve_range(64, Class.EPHEMERAL)
        self.addCleanup(self.range.close)

    def test_pages_are_published_and_mapped_without_a_copy(self) -> None:
        self.range.commit(0, 4)
        sparse = array_of(self.range.view("uint32", sparse=True)).reshape(64, -1)
        sparse[0:4] = numpy.arange(4)[:, None]
        used = self.pool.stats().leased_pages
        with self.range.publish(1, 2, "prefix", key="layout", value=b"B\0HNC") as made:
            self.assertEqual(self.range.page_state(1), gpool.PageState.SHARED)
            self.assertEqual(made["layout"], b"B\0HNC")
            with self.range.map(10, "prefix") as mapped:
                self.assertTrue((sparse[10] == 1).all() and (sparse[11] == 2).all())
                self.assertEqual(mapped.info().pages, 2)
                mapped.unpin()
                with mapped.pin():
                    self.assertEqual(sparse[11, 5], 2)
            self.assertEqual(self.range.page_state(10), gpool.PageState.HOLE)
            self.assertLessEqual(self.pool.stats().leased_pages, used)
        self.assertEqual(self.range.page_state(1), gpool.PageState.HOLE)
        self.range.decommit(0, 1)
        with self.assertRaisesRegex(gpool.Busy, "1 view of its memory exists; delete"):
            self.range.close()
        del sparse

    def test_objects_are_found_in_their_order(self) -> None:
        self.range.commit(0, 3)
        kept = [self.range.publish(page, 1, f"part/{page}") for page in range(3)]
        names = [f"part/{page}" for page in range(5)]
        self.assertEqual(self.pool.find_objects(names), 3)
        self.assertEqual(self.pool.find_objects(names[1:]), 2)
        self.assertEqual(self.pool.find_objects(names[3:]), 0)
        self.assertEqual(self.pool.find_objects([]), 0)
        self.assertRaises(ValueError, self.pool.find_objects, ["part/0\0"])
        for each in kept:
            each.close()
        self.pool.delete_object("part/1")
        self.assertEqual(self.pool.find_objects(names), 1)

    def test_what_is_refused(self) -> None:
        self.range.commit(0, 1)
        with self.assertRaisesRegex(gpool.Error, "page 1 is not committed"):
            self.range.publish(0, 2, "o")
        first = self.range.publish(0, 1, "o")
        self.range.commit(1, 1)
        self.assertRaises(gpool.Stale, self.range.publish, 1, 1, "o")
        self.assertRaises(gpool.Busy, self.range.commit, 0, 1)
        self.assertRaises(gpool.Busy, self.pool.sleep)
        self.assertRaises(gpool.NotFound, self.range.map, 5, "absent")
        self.assertRaises(gpool.Busy, self.range.map, 1, "o")
        view = self.range.view(offset=PAGE, shape=8)
        self.assertRaises(gpool.Busy, self.range.publish, 1, 1, "p")
        del view
        first.close()
        self.pool.sleep()
        self.assertRaises(gpool.Asleep, self.range.map, 5, "o")
        self.pool.wake()

    def test_offered_pages_are_kept_until_they_are_needed(self) -> None:
        self.range.commit(0, 4)
        self.range.offer(1, 2)
        self.assertEqual(self.range.info().offered_pages, 2)
        self.assertEqual(self.range.reclaim(0, 5), b"\1\1\1\1\0")

    def test_an_object_of_another_class_is_mapped(self) -> None:
        draft = self.pool.create_object("weights")
        draft.alloc(2)
        array_of(draft.view())[:] = 9
        draft.publish()
        with self.range.map(3, "weights") as mapped:
            view = self.range.view(offset=3 * PAGE, shape=4, sparse=True)
            self.assertEqual(array_of(view).tobytes(), b"\11" * 4)
            del view
            self.assertEqual(mapped.info().memory_class, Class.IMMUTABLE)
        draft.close()


if __name__ == "__main__":
    unittest.main()
