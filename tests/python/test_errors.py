"""The texts of refused calls, with a real agent: what is wrong, its value, and the limit."""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import itertools
import re
import shutil
import unittest
from pathlib import Path
from typing import Any, Callable, Iterator, Tuple, Type

from harness import BACKEND, ROOT, Agent, AgentTest, gpool

from gpool import _errors

PAGE = 512 << 10
PLAIN = ROOT / "tests" / "fixtures" / "adapters" / "plain"

# Methods with arguments that refuse none of them; the other classes and methods check what they are called with.
REFUSE_NOTHING = {
    "KvCache.compact",
    "KvCache.prefix_evict",
    "Pool.check_room",  # for the package only, as all lend()
    "Pool.scope",
    "Pool.use_reservation",
    "Range.lend",
    "Span.lend",
    "View.write",
}


def is_number(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is an integer. Functions in C have no annotations."""
    if parameter.annotation is inspect._empty:
        return not isinstance(parameter.default, bool) and parameter.name not in ("after", "stream", "fence", "usage")
    return parameter.annotation in ("int", "Optional[int]")


class Refusals(AgentTest):
    def refused(self, name: str, raised: Type[BaseException], text: str, call: Callable[[], object]) -> None:
        """Check the text of a refused call of the method `name`. It is not that of the code alone."""
        with self.assertRaises(raised, msg=name) as caught:
            call()
        self.assertRegex(str(caught.exception), text, name)
        if isinstance(caught.exception, gpool.Error):
            general = gpool.library().gpool_strerror(caught.exception.errno).decode()
            self.assertNotIn(general, str(caught.exception), name)

    def test_pools(self) -> None:
        pool = self.pool
        self.refused(
            "Pool", gpool.Error, "quota_bytes is 1; the minimum is a page", lambda: self.agent.pool(quota_bytes=1)
        )
        self.refused("Pool", gpool.NotFound, "no tenant 'nope'", lambda: self.agent.pool(tenant="nope"))
        self.refused("Pool", gpool.Error, "200 bytes; the maximum is 63", lambda: self.agent.pool("p" * 200))
        self.refused("Pool.alloc", gpool.Error, "page_count is 65; it must be 1 to 64", lambda: pool.alloc(65))
        self.refused("Pool.alloc", OverflowError, "page_count is -1; it must be from 1 to 64", lambda: pool.alloc(-1))
        self.refused("Pool.alloc", TypeError, "owner_id is 'x', which is not", lambda: pool.alloc(1, owner_id="x"))
        self.refused("Pool.alloc", OverflowError, "usage is -1; it must be from 0 to 4$", lambda: pool.alloc(1, -1))
        for call in (pool.alloc, pool.create_object("o").alloc):
            self.refused(
                "Object.alloc",
                OverflowError,
                "priority is -1; it must be from 0 to 3$",
                functools.partial(call, 1, priority=-1),
            )
        self.refused("Pool.alloc_span", gpool.Error, "nbytes is 0; a span must have", lambda: pool.alloc_span(0))
        self.refused(
            "Pool.alloc_span",
            OverflowError,
            "nbytes is -1; it must be from 1 to 262144, half a page",
            lambda: pool.alloc_span(-1),
        )
        self.refused("Pool.stream", TypeError, "native is 'x', which is not an integer", lambda: pool.stream("x"))
        self.refused("Pool.event", gpool.Error, "timeout_ms is -2; the minimum is -1", lambda: pool.event(-2))
        self.refused("Pool.event", gpool.TimedOut, "no event within 0 ms", lambda: pool.event(0))
        self.refused("Pool.wake", gpool.Error, "timeout_ms is -2", lambda: pool.wake(-2))
        self.refused("Pool.acquire_role", gpool.Error, "the name of the role is empty", lambda: pool.acquire_role(""))
        with pool.acquire_role("r"), self.agent.pool() as other:
            self.refused(
                "Pool.acquire_role",
                gpool.TimedOut,
                f"session {pool.session} holds role 'r' and has not released it within 1 ms",
                lambda: other.acquire_role("r", 1),
            )
        self.refused("Pool.role_info", gpool.NotFound, "role 'q' was never acquired", lambda: pool.role_info("q"))
        self.refused(
            "Pool.create_reservation",
            gpool.Error,
            "page_count is 0; it must be 1 to 64",
            lambda: pool.create_reservation(0),
        )
        self.refused(
            "Pool.create_reservation", OverflowError, "from 1 to 64, the pages", lambda: pool.create_reservation(-1)
        )
        self.refused(
            "Pool.release_reservation", OverflowError, "reservation is -1", lambda: pool.release_reservation(-1)
        )
        self.refused("Pool.fence_import", ValueError, "128 bytes, not 3", lambda: pool.fence_import(b"abc"))
        self.refused("Pool.fence_import", gpool.Error, "its handle_type is 0", lambda: pool.fence_import(bytes(128)))
        self.refused("Pool.stream", gpool.Error, "flags are 0x1", lambda: pool.stream(80, host_signaled=True))

    def test_blocks(self) -> None:
        with self.pool.alloc(1) as block:
            block.unpin()
            self.refused("Block.unpin", gpool.Error, "has no pin of it; call pin", block.unpin)
            self.refused("Block.free", TypeError, "after is 5, which is not a Fence", lambda: block.free(5))
        self.refused("Block.free", gpool.Stale, "block of 1 page at page .* was already freed", block.free)
        self.refused("Block.pin", gpool.Stale, "block of 1 page at page .* was already freed", block.pin)
        self.refused("Block.unpin", gpool.Stale, "already freed", block.unpin)
        self.refused("Block.view", gpool.Stale, "block of 1 page at page .* was already freed", block.view)
        self.refused("Block.touch", gpool.Stale, "block of 1 page at page .* was already freed", block.touch)
        with self.pool.scope() as scope:
            self.refused("Scope.alloc", gpool.Error, "page_count is 0", lambda: scope.alloc(0))
            scope.alloc(1)
            self.refused("Scope.end", TypeError, "after is 5, which is not a Fence", lambda: scope.end(5))
        self.refused("Scope.alloc", gpool.Closed, "scope: it has ended", lambda: scope.alloc(1))

    def test_views(self) -> None:
        with self.pool.alloc(1) as block:
            for shape, raised, text in (
                ((True,), TypeError, "a length of shape is True, which is not an integer"),
                (2.5, TypeError, "shape is 2.5, which is neither an integer nor a sequence of integers"),
                ((2.5,), TypeError, "a length of shape is 2.5, which is not an integer"),
                ((-1,), ValueError, r"shape is \(-1,\); no length may be negative"),
                ((1,) * 33, ValueError, "33 dimensions: the maximum is 32"),
                ((2 * PAGE,), ValueError, f"the memory has {PAGE} bytes"),
            ):
                self.refused("Block.view", raised, text, functools.partial(block.view, shape=shape))
            self.refused(
                "Block.view",
                ValueError,
                "offset is 3; it must be a multiple of 4",
                lambda: block.view("int32", offset=3),
            )
            self.refused("Block.view", TypeError, "unknown dtype 'x'", lambda: block.view("x"))
            self.refused("Block.view", TypeError, "offset is True", lambda: block.view(offset=True))
            self.refused("View.read", *self.beyond(block), functools.partial(block.view().read, 9, PAGE))
        with self.pool.alloc_span(300) as span:
            self.refused("Span.view", ValueError, "no length may be negative", lambda: span.view(shape=-1))
        self.refused("Span.address", gpool.Closed, "cannot use a span: it is closed", lambda: span.address)
        with self.agent.pool() as other:
            left = other.alloc_span(300)
        self.refused("Span.address", gpool.Closed, "it is closed", lambda: left.address)

    def test_texts_of_the_library_have_the_names_of_the_package(self) -> None:
        other = {"gpool_wait_check()", "gpool_lora_batch_set()"}  # calls that the package does not have
        sources = "".join(path.read_text() for path in (ROOT / "client").glob("**/*.c") if "examples" not in path.parts)
        literals = "".join(re.findall(r'"(?:[^"\\\n]|\\.)*"', sources))
        named = set(re.findall(r"gpool_[a-z0-9_]+\(\)", literals)) - other
        self.assertIn("gpool_wake()", named)
        self.assertEqual(named - set(_errors._NAMES), set(), "calls that _NAMES does not translate")
        # Environment variables, and constants that no argument of the package causes in a text.
        kept = r"GPOOL_(DIR|VM_.*|TORCH_.*|SCOPE_THREAD|KV_ATTENTION_INT8|KV_WRITE_BF16|LORA_F16)"
        flags = {name for name in re.findall(r"GPOOL_[A-Z0-9_]+", literals) if not re.fullmatch(kept, name)}
        self.assertIn("GPOOL_KV_GROW_OFFLOAD", flags)
        self.assertEqual(flags - set(_errors._NAMES), set(), "flags that _NAMES does not translate")
        for name in _errors._NAMES.values():
            if name.endswith("()"):
                of, _, method = name[:-2].partition(".")
                self.assertTrue(callable(getattr(getattr(gpool, of), method) if method else getattr(gpool, of)), name)
        pool = self.pool
        with contextlib.ExitStack() as opened:
            with self.assertRaisesRegex(gpool.Error, r"16 open pools, the limit; close one with Pool\.close\(\)$"):
                while True:
                    opened.enter_context(self.agent.pool())
        pool.sleep()
        self.refused("Pool.reserve_range", gpool.Asleep, r"call Pool\.wake\(\)", lambda: pool.reserve_range(1))
        pool.wake()

    def test_the_reason_of_a_refusal_for_lack_of_pages(self) -> None:
        """The quota of a session and the limit of its tenant have the same code."""
        with self.agent.pool(quota_bytes=PAGE) as small:
            for name, call in (
                ("Pool.alloc", lambda: small.alloc(2)),
                ("Pool.create_reservation", lambda: small.create_reservation(2)),
            ):
                self.refused(name, gpool.QuotaReached, "the quota of the session is reached: 2 needed", call)
        self.agent.poolctl("limit", "default", "--limit", "1")
        try:
            with self.assertRaisesRegex(gpool.NoRoom, "the limit of tenant 'default' is reached: 2 needed") as caught:
                self.agent.pool().alloc(2)
            self.assertNotIsInstance(caught.exception, gpool.QuotaReached)
        finally:
            self.agent.poolctl("limit", "default", "--limit", "100%")

    def test_numbers_that_no_argument_can_have(self) -> None:
        """Each method with integer arguments names the argument and the number in its exception."""
        pool, plain = self.pool, str(PLAIN)
        with contextlib.ExitStack() as opened:
            stream = opened.enter_context(pool.stream())
            elastic = opened.enter_context(contextlib.closing(pool.reserve_range(4)))
            sliced = opened.enter_context(contextlib.closing(pool.create_sliced_range(2, 2, 1)))
            cache = opened.enter_context(pool.create_kv_cache(2, 2, 64, stream, prefixes=True, max_blocks=8))
            adapters = opened.enter_context(pool.adapters())
            block = opened.enter_context(pool.alloc(1))
            draft = opened.enter_context(pool.create_object("o"))
            draft.alloc(1)
            adapter = adapters.register("plain", plain)
            values = {
                "stream": stream,
                "name": "n",
                "to": 4096,
                "source": 4096,
                "address": 4096,
                "layer": 0,
                "data": b"a",
                "prefix": gpool.KvPrefix([1]),
            }
            tried = 0
            views = (block.view(),) if BACKEND == "host" else ()  # others refuse the access of the CPU
            for of in (pool, stream, elastic, sliced, cache, adapter, block, draft, *views):
                for name, method in inspect.getmembers(type(of), callable):
                    if name[0] == "_" or name in ("check_room", "lend", "use_reservation", "capture"):
                        continue  # for the package only; a generator; checked below
                    parameters = list(inspect.signature(method).parameters.values())[1:]
                    numbers = [each.name for each in parameters if is_number(each)]
                    given = {
                        each.name: values.get(each.name, 1) for each in parameters if each.default is inspect._empty
                    }
                    for number, value in itertools.product(numbers, (-1, 2**64)):
                        if value == -1 and number == "timeout_ms" or of is sliced and number == "offset":
                            continue
                        tried += 1
                        with self.subTest(f"{type(of).__name__}.{name}({number}={value})"):
                            with self.assertRaises((OverflowError, ValueError, IndexError, gpool.Error)) as caught:
                                getattr(of, name)(**{**given, number: value})
                            self.assertRegex(str(caught.exception), rf"{number}\b.* is .*{value}\b|no slice {value}:")
            del views, of, method, caught  # the view, before the pool is closed
            self.assertGreater(tried, 150)
            self.refused(
                "KvCache.grow", gpool.Error, "0x1 is not a seq", lambda: cache.grow(1, most=2**32 - 1)
            )  # without an array of 32 GB
            self.refused("KvCache.can_batch", TypeError, "tokens\\[0\\] is 'x'", lambda: cache.can_batch("x"))
            self.assertEqual(cache.can_batch(b"\x01\x01")[0], 2)
            self.refused(
                "Range.capture",
                OverflowError,
                "count is -1",
                lambda: elastic.capture(0, -1, "x"),  # type: ignore
            )

    def test_streams_of_another_pool(self) -> None:
        """The first streams of two sessions have the same number, so the C library cannot tell them apart."""
        text = "cannot use a stream: it belongs to another pool"
        pool = self.pool
        elastic = pool.reserve_range(2)
        elastic.commit(0, 1)
        with self.agent.pool() as other, pool.alloc(1) as block, pool.alloc_span(300) as span, pool.stream() as own:
            stream = other.stream()
            self.assertEqual(stream.number, own.number)
            self.refused("Block.view", gpool.Error, text, lambda: block.view(stream=stream))
            self.refused("Span.view", gpool.Error, text, lambda: span.view(stream=stream))
            self.refused("Range.view", gpool.Error, text, lambda: elastic.view(stream=stream))
            self.refused("Pool.alloc", gpool.Error, text, lambda: pool.alloc(1, stream=stream))
            self.refused("Pool.create_kv_cache", gpool.Error, text, lambda: pool.create_kv_cache(2, 2, 64, stream))
            with self.agent.pool() as ended:
                pass
            closed = "cannot use the pool: it is closed"
            self.refused("Pool.create_kv_cache", gpool.Closed, closed, lambda: ended.create_kv_cache(2, 2, 64, stream))
            self.refused("Pool.alloc", gpool.Closed, closed, lambda: ended.alloc(1, stream=stream))
            with pool.create_object("o") as draft:
                self.refused("Object.alloc", gpool.Error, text, lambda: draft.alloc(1, stream=stream))
            self.refused("Block.view", TypeError, "stream is 5, not a Stream", lambda: block.view(stream=5))
        elastic.close()

    @staticmethod
    def beyond(block: gpool.Block) -> Tuple[Type[BaseException], str]:
        """Return the exception and the text for a read beyond the end of a block's view."""
        host = block.view().device.host_pointer
        return (ValueError, "offset is 9, and nbytes is ") if host else (BufferError, "the CPU cannot access memory")

    def test_streams(self) -> None:
        with self.pool.stream() as stream, self.pool.stream(host_signaled=True) as timeline:
            fence = timeline.record()
            self.refused(
                "Stream.fill", gpool.Error, "nbytes is 5, which is not a multiple", lambda: stream.fill(0, 0, 5)
            )
            self.refused("Stream.fill", gpool.Error, "at 0x2: to is 0x2, which is not", lambda: stream.fill(2, 0, 4))
            self.refused(
                "Stream.fill",
                gpool.Error,
                "^.*cannot fill 16 bytes at 0xfffffffffffffff8: the address is 0, or the end exceeds 2.64$",
                lambda: stream.fill(2**64 - 8, 0, 16),
            )
            self.refused("Stream.fill", OverflowError, "nbytes is -4", lambda: stream.fill(0, 0, -4))
            self.refused(
                "Stream.copy",
                gpool.Error,
                "cannot copy 4 bytes from 0x1000 to 0x0: an address is 0",
                lambda: stream.copy(0, 4096, 4),
            )
            if BACKEND == "host":  # the driver accepts the call, and the work fails
                self.refused("Stream.copy", gpool.Error, "0x40 is the address of nei", lambda: stream.copy(64, 4096, 4))
            self.refused("Stream.copy", gpool.Error, "is host-signaled", lambda: timeline.copy(0, 0, 4))
            self.refused("Stream.wait", gpool.Error, "is host-signaled", lambda: timeline.wait(fence))
            self.refused(
                "Stream.synchronize", gpool.TimedOut, "not signaled within 1 ms", lambda: timeline.synchronize(1)
            )
            self.refused("Fence.wait", gpool.TimedOut, "not signaled within 1 ms", lambda: fence.wait(1))
            self.refused("Fence.export", gpool.Error, "host-signaled timeline", lambda: fence.export(event=True))
            self.refused("Fence.close", gpool.Error, "was not imported by this session", fence.close)

    def test_objects(self) -> None:
        pool = self.pool
        with pool.create_object("o") as draft:
            self.refused("Object.alloc", gpool.Error, "page_count is 0; it must be", lambda: draft.alloc(0))
            self.refused("Object.alloc", OverflowError, "it must be from 1 to 64, the pages", lambda: draft.alloc(-1))
            self.metadata(draft)
            self.refused("Object.publish", gpool.Error, "'o' has no allocation; add one with", draft.publish)
            draft.alloc(1)
            self.refused("Object.address", gpool.Error, "no allocation 7: object 'o' has 1", lambda: draft.address(7))
            self.refused("Object.view", gpool.Error, "no allocation 7: object 'o' has 1", lambda: draft.view(7))
            self.refused("Object.unpin", gpool.Error, "object 'o'", draft.unpin)
            version = draft.publish()
            self.assertEqual(dict(draft.items()), {"array": b"a", "bytes": b"b"})
        text = f"version {version + 9} does not exist; the current version is {version}"
        self.refused("Pool.open_object", gpool.NotFound, text, lambda: pool.open_object("o", version + 9))
        self.refused("Pool.open_range", gpool.NotFound, text, lambda: pool.open_range("o", version + 9))
        self.refused(
            "Pool.open_object", gpool.Error, "without role, the object's", lambda: pool.open_object("o", adopt=True)
        )
        self.refused(
            "Pool.delete_object",
            gpool.Stale,
            f"current version is {version}, not {version + 9}",
            lambda: pool.delete_object("o", version + 9),
        )
        self.refused(
            "Pool.find_objects", TypeError, "names is 'o', which is not a sequence", lambda: pool.find_objects("o")
        )
        self.refused(
            "Pool.create_object",
            gpool.Error,
            "object has 200 bytes; the maximum is 127",
            lambda: pool.create_object("x" * 200),
        )
        self.refused(
            "Pool.create_object",
            gpool.Error,
            "'lora/abc': names that begin with lora/, .* are reserved for the library",
            lambda: pool.create_object("lora/abc"),
        )
        self.refused(
            "Pool.create_object",
            ValueError,
            r"name is 'a\\x00b', which contains NUL; C would end it there",
            lambda: pool.create_object("a\0b"),
        )
        self.refused(
            "Pool.open_object", ValueError, "name is '.udc00', which cannot be", lambda: pool.open_object("\udc00")
        )
        pool.delete_object("o")

    def metadata(self, draft: Any) -> None:
        """Set metadata of the draft of 'o'. ctypes would store a str as wide characters."""
        draft["bytes"] = b"b"
        draft["array"] = bytearray(b"a")
        for key, value, raised, text in (
            ("k", 5, TypeError, "the value of 'k' of object 'o' is 5, which is not bytes"),
            ("k", "s", TypeError, "the value of 'k' of object 'o' is 's', which is not bytes"),
            (5, b"", TypeError, "a key of object 'o' is 5, which is not a str"),
            ("k\0", b"", ValueError, r"a key of object 'o' is 'k\\x00', which contains NUL"),
            ("", b"", gpool.Error, "cannot set '' of object 'o': the key has 0 bytes; it must have 1 to 1023"),
        ):
            self.refused("Object", raised, text, functools.partial(draft.__setitem__, key, value))
        self.refused("Object", TypeError, "a key of object 'o' is 5, which is not a str", lambda: draft[5])

    def test_roles_of_another_pool(self) -> None:
        """The C library reads only name and token of a role, so the agent would refuse it at the publication."""
        text = "cannot use a role: it belongs to another pool"
        with self.agent.pool() as other, other.acquire_role("r") as role:
            self.refused("Pool.create_object", gpool.Error, text, lambda: self.pool.create_object("o", role=role))
            self.refused("Pool.open_object", gpool.Error, text, lambda: self.pool.open_object("o", role=role))
            other.create_object("o", role=role).close()

    def test_ranges(self) -> None:
        pool = self.pool
        self.refused(
            "Pool.create_range", gpool.Error, "page_count is 65; it must be 1 to 64", lambda: pool.create_range(65)
        )
        self.refused(
            "Pool.reserve_range",
            gpool.Error,
            f"^[^:]*: {PAGE << 31} bytes of addresses are needed; a process can have at most",
            lambda: pool.reserve_range(2**31),
        )
        self.refused("Pool.create_range", OverflowError, "from 1 to 64, the pages", lambda: pool.create_range(-1))
        self.refused("Pool.reserve_range", OverflowError, "from 1 to 4294967295", lambda: pool.reserve_range(-1))
        with pool.reserve_range(65) as elastic:
            large = "cannot commit 65 pages: 65 pages are needed; the pool has 64 pages"
            self.refused("Range.commit", gpool.NoRoom, large, lambda: elastic.commit(0, 65))
        with pool.reserve_range(4) as elastic:
            self.refused("Range.commit", gpool.Error, "count must be at least 1", lambda: elastic.commit(0, 0))
            outside = "first is 3 and count is 2; the range has 4 pages"
            self.refused("Range.commit", gpool.Error, outside, lambda: elastic.commit(3, 2))
            self.refused("Range.decommit", gpool.Error, outside, lambda: elastic.decommit(3, 2))
            self.refused("Range.offer", gpool.Error, outside, lambda: elastic.offer(3, 2))
            self.refused("Range.reclaim", gpool.Error, outside, lambda: elastic.reclaim(3, 2))
            self.refused("Range.capture", gpool.Error, outside, lambda: elastic.capture(3, 2))
            self.refused("Range.publish", gpool.Error, outside, lambda: elastic.publish(3, 2, "x"))
            self.refused("Range.commit", gpool.Error, r"cannot commit 1 page: first is 4", lambda: elastic.commit(4, 1))
            self.refused("Range.publish", gpool.Error, "publish 1 page as", lambda: elastic.publish(0, 1, "x"))
            # Numbers that C cannot hold.
            calls = (elastic.commit, elastic.decommit, elastic.offer, elastic.reclaim, elastic.capture)
            for call in (*calls, lambda first, count: elastic.publish(first, count, "x")):
                text = "count is -1; it must be from 1 to 4; the range has 4 pages"
                self.refused("Range.commit", OverflowError, text, lambda call=call: call(0, -1))
                text = "first is -1; it must be from 0 to 3; the range has 4 pages"
                self.refused("Range.commit", OverflowError, text, lambda call=call: call(-1, 1))
            self.refused("Range.map", OverflowError, "first is -1; .* from 0 to 3", lambda: elastic.map(-1, "x"))
            self.refused("Range.page_state", OverflowError, "index is -1; .* to 3", lambda: elastic.page_state(-1))
            usage = "usage is -1; it must be from 0 to 4$"
            self.refused("Pool.alloc_span", OverflowError, usage, lambda: pool.alloc_span(9, usage=-1))
            self.refused("Pool.reserve_range", OverflowError, usage, lambda: pool.reserve_range(2, usage=-1))
            elastic.commit(0, 1)
            with self.pool.create_object("draft") as draft, self.agent.pool() as other:
                text = "'x': follows is object 'draft', which is not published; publish\\(\\) it first"
                self.refused("Range.publish", gpool.Error, text, lambda: elastic.publish(0, 1, "x", follows=draft))
                text = "'x': follows is object 'far', which belongs to another pool"
                far = other.create_object("far")
                self.refused("Range.publish", gpool.Error, text, lambda: elastic.publish(0, 1, "x", follows=far))
            elastic.decommit(0, 1)
            self.refused("Range.page_state", gpool.Error, "first is 4 and count is 1", lambda: elastic.page_state(4))
            self.refused("Range.map", gpool.NotFound, "no such object", lambda: elastic.map(0, "none"))
            self.refused("Range.view", gpool.Error, "page 0 is not committed; commit", elastic.view)
        self.refused("Range.commit", gpool.Closed, "cannot use a range: it is closed", lambda: elastic.commit(0, 1))
        self.refused(
            "Pool.create_sliced_range", gpool.Error, "slices is 0, blocks is 2", lambda: pool.create_sliced_range(0, 2)
        )
        with pool.create_sliced_range(2, 2) as sliced:
            self.refused("SlicedRange.grow", gpool.Error, "blocks is 3; .* at most 2", lambda: sliced.grow(3))
            self.refused(
                "SlicedRange.shrink", TypeError, "after is 5, which is not a Fence", lambda: sliced.shrink(0, 5)
            )
            for name, call in (("SlicedRange.grow", sliced.grow), ("SlicedRange.shrink", sliced.shrink)):
                limits = "blocks is -1; it must be from 0 to 2"
                self.refused(name, OverflowError, limits, functools.partial(call, -1))
            self.refused("SlicedRange.shrink", gpool.Error, "blocks is 3; .* at most 2", lambda: sliced.shrink(3))
            self.refused("SlicedRange.view", IndexError, "9", lambda: sliced.view(9))
        with pool.create_sliced_range(4, 40) as sliced:
            large = "cannot grow a sliced range to 30 blocks: 120 pages are needed; the pool has 64 pages"
            self.refused("SlicedRange.grow", gpool.NoRoom, large, lambda: sliced.grow(30))

    def test_caches(self) -> None:
        pool = self.pool
        with pool.stream() as stream:

            def make(**options: Any) -> gpool.KvCache:
                return pool.create_kv_cache(2, 2, 16, stream, **{"max_blocks": 16, "max_sequences": 2, **options})

            requires = "requires prefixes=True"
            self.refused(
                "Pool.create_kv_cache", gpool.Error, "cached_blocks " + requires, lambda: make(cached_blocks=4)
            )
            self.refused("Pool.create_kv_cache", gpool.Error, "model " + requires, lambda: make(model=b"m"))
            self.refused("Pool.create_kv_cache", gpool.Error, "block_tokens is 3", lambda: make(block_tokens=3))
            self.refused(
                "Pool.create_kv_cache",
                ValueError,
                "model has 33 bytes; the maximum is 32",
                lambda: make(model=b"m" * 33),
            )
            with pool.stream(host_signaled=True) as timeline:
                text = f"stream {timeline.number} is host-signaled and cannot execute work"
                self.refused(
                    "Pool.create_kv_cache", gpool.Error, text, lambda: pool.create_kv_cache(2, 2, 16, timeline)
                )
            with make() as cache, make(prefixes=True) as second:
                self.caches(cache)
                self.prefixes(cache, second)
                with gpool.KvGroup([cache, second], 32) as group:
                    self.groups(group)

    def caches(self, cache: gpool.KvCache) -> None:
        unknown = "0x7 is not a sequence of this cache"
        ended = cache.allocate(1)
        cache.free(ended)
        for name, call in {
            "append": lambda: cache.append(7, 1),
            "fork": lambda: cache.fork(7),
            "free": lambda: cache.free(7),
            "grow": lambda: cache.grow(7, 1),
            "offload": lambda: cache.offload(7, to_pool=True),
            "preempt": lambda: cache.preempt(7),
            "prefetch": lambda: cache.prefetch(7),
            "quant_error": lambda: cache.quant_error(7),
            "resume": lambda: cache.resume(7),
            "sequence_info": lambda: cache.sequence_info(7),
            "table": lambda: cache.table(7),
        }.items():
            self.refused(f"KvCache.{name}", gpool.Error, unknown, call)
        self.refused("KvCache.free", gpool.Stale, f"sequence {ended:#x} has ended", lambda: cache.free(ended))
        self.refused("KvCache.address", gpool.Error, "block is 999999; the cache has", lambda: cache.address(999999))
        self.refused(
            "KvCache.allocate", gpool.Error, "62501 blocks needed; a sequence", lambda: cache.allocate(1000001)
        )
        self.refused("KvCache.can_allocate", OverflowError, "tokens is -1; it must be", lambda: cache.can_allocate(-1))
        self.refused("KvCache.can_batch", OverflowError, "-1|max_tokens", lambda: cache.can_batch([1], 0, -1))
        self.refused(
            "KvCache.copy_blocks", gpool.Error, "pair 0, from block 1 to 1", lambda: cache.copy_blocks([(1, 1)])
        )
        self.refused(
            "KvCache.host_reserve", gpool.Error, "bytes is 1; it must be at least", lambda: cache.host_reserve(1)
        )
        self.refused("KvCache.execute", ValueError, "an order has 144 bytes, not 3", lambda: cache.execute(b"abc"))
        self.refused("KvCache.view", ValueError, "no length may be negative", lambda: cache.view(shape=-1))
        self.refused("KvCache.write", gpool.Error, "created without int8=True", lambda: cache.write(0, 0, 0, 0, 1))

    def prefixes(self, plain: gpool.KvCache, cache: gpool.KvCache) -> None:
        prefix = gpool.KvPrefix(list(range(64)))
        without = "the cache was created without prefixes=True"
        sequence = cache.allocate(20)
        self.refused("KvCache.prefix_find", gpool.Error, without, lambda: plain.prefix_find(prefix))
        self.refused("KvCache.prefix_allocate", gpool.Error, without, lambda: plain.prefix_allocate(64, prefix))
        self.refused(
            "KvCache.prefix_publish",
            gpool.Error,
            "count is 64; it must not exceed 20",
            lambda: cache.prefix_publish(sequence, prefix),
        )
        self.refused("KvCache.prefix_share", gpool.Error, "without pool_blocks", lambda: cache.prefix_share(sequence))
        cache.free(sequence)

    def groups(self, group: gpool.KvGroup) -> None:
        unknown = "0x7 is not a sequence of this group"
        for name, call in {
            "append": lambda: group.append(7, 1),
            "fork": lambda: group.fork(7),
            "free": lambda: group.free(7),
            "grow": lambda: group.grow(7, 1),
            "preempt": lambda: group.preempt(7),
            "resume": lambda: group.resume(7),
            "span": lambda: group.span(7, 0),
        }.items():
            self.refused(f"KvGroup.{name}", gpool.Error, unknown, call)
        self.refused("KvGroup.allocate", OverflowError, "tokens is -1; it must be", lambda: group.allocate(-1))
        self.refused("KvGroup.can_allocate", OverflowError, "tokens is -1; it must be", lambda: group.can_allocate(-1))

    def test_adapters(self) -> None:
        pool = self.pool
        self.refused(
            "Pool.adapters", gpool.NotFound, "cannot open cache_dir '/nowhere'", lambda: pool.adapters("/nowhere")
        )
        with pool.adapters() as adapters:
            self.refused("Adapters.find", gpool.NotFound, "no adapter 'b' is registered", lambda: adapters.find("b"))
            self.refused(
                "Adapters.register",
                gpool.NotFound,
                "/nowhere/adapter_config.json",
                lambda: adapters.register("a", "/nowhere"),
            )
            self.refused(
                "Adapters.register_buffer",
                gpool.Error,
                "3 bytes are too few",
                lambda: adapters.register_buffer("a", b"abc", {}),
            )
            self.refused(
                "Adapters.register_arrays",
                TypeError,
                "is a int, which has neither DLPack",
                lambda: adapters.register_arrays("a", {"w": 5}, {}),
            )
            for config, raised, text in (
                (None, TypeError, "config is None, which is neither a str nor a mapping"),
                ({"r": b""}, TypeError, "config cannot be encoded as JSON: "),
                ("{\0}", ValueError, "config is .*, which contains NUL"),
            ):
                self.refused(
                    "Adapters.register_buffer",
                    raised,
                    text,
                    functools.partial(adapters.register_buffer, "y", b"abc", config),
                )
            self.refused(
                "Adapters.register_buffer",
                TypeError,
                "weights is 5, which has no contiguous buffer",
                lambda: adapters.register_buffer("y", 5, {}),
            )
            self.refused(
                "Adapters.register_arrays",
                TypeError,
                "arrays is 5, which is not a mapping",
                lambda: adapters.register_arrays("y", 5, {}),
            )
            self.refused("Adapters.find", TypeError, "name is 5, which is not a str", lambda: adapters.find(5))
            self.refused("Adapters.register", gpool.Error, "folder is empty", lambda: adapters.register("y", ""))
            weights = (PLAIN / "adapter_model.safetensors").read_bytes()
            for rank in (0, -1.5):
                self.refused(
                    "Adapters.register_buffer",
                    gpool.Error,
                    f"'r' is {rank}; it must be a positive number",
                    functools.partial(adapters.register_buffer, "y", weights, {"peft_type": "LORA", "r": rank}),
                )
            self.refused(
                "Adapters.register", TypeError, "folder is 5, which is not a str", lambda: adapters.register("y", 5)
            )
            adapter = adapters.register("plain", str(PLAIN))
            self.refused(
                "Adapter.restrict", TypeError, "tenants is 'x', which is not a seq", lambda: adapter.restrict("x")
            )
            self.refused("Adapter.restrict", gpool.Error, "0 tenants; there must be", lambda: adapter.restrict([]))
            self.refused("Adapter.acquire", gpool.TimedOut, "'plain' is being loaded", lambda: adapter.acquire(0))
            with adapter.acquire() as acquired:
                self.refused(
                    "Acquired.weights",
                    gpool.NotFound,
                    "'plain' has no part for 'x' of layer 0",
                    lambda: acquired.weights(0, "x"),
                )
                self.refused("Acquired.wait_layer", OverflowError, "layer is ", lambda: acquired.wait_layer(2**40))
                for call, name in (
                    (lambda: adapter.acquire(-2), "timeout_ms"),  # of an adapter that is resident
                    (lambda: adapter.acquire_async(-2), "timeout_ms"),
                    (lambda: acquired.wait_layer(0, -2), "timeout_ms"),
                    (lambda: acquired.wait_layer(-2), "layer"),
                ):
                    self.refused("Acquired.wait_layer", gpool.Error, f"{name} is -2; the minimum is -1", call)
                self.refused(
                    "Acquired.release", TypeError, "after is 5, which is not a Fence", lambda: acquired.release(5)
                )
            self.refused("Adapter.acquire_async", OverflowError, "timeout_ms is", lambda: adapter.acquire_async(2**40))

    def test_lost_agents_and_closed_handles(self) -> None:
        agent = Agent("--set", "lease.initial_pages=0")
        pool = agent.pool()
        cache = pool.create_kv_cache(2, 2, 16, pool.stream(), max_blocks=16, max_sequences=2)
        sequence = cache.allocate(1)
        self.refused("KvCache.quant_error", gpool.Error, "not offloaded with", lambda: cache.quant_error(sequence))
        agent.process.kill()
        agent.process.wait()
        with contextlib.suppress(gpool.AgentGone):
            while True:  # the agent ends shortly after the keeper
                self.publish(pool)
        self.refused("Pool.create_object", gpool.AgentGone, "gpoold is not running", lambda: self.publish(pool))
        self.refused("Pool.alloc", gpool.AgentGone, "gpoold is not running: the conn", lambda: pool.alloc(64))
        cache.close()
        self.refused("KvCache.quant_error", gpool.Closed, "it is closed", lambda: cache.quant_error(sequence))
        pool.close()
        self.refused("Pool.alloc", gpool.Closed, "the pool: it is closed", lambda: pool.alloc(1))
        shutil.rmtree(agent.base)

    @staticmethod
    def publish(pool: gpool.Pool) -> None:
        with pool.create_object("o") as draft:
            draft.alloc(1)
            draft.publish()

    def test_every_call_with_arguments_has_a_row(self) -> None:
        rows = set(re.findall(r'refused\(\s*"(\w+\.\w+)"', Path(__file__).read_text()))
        rows |= {f"KvCache.{name}" for name in re.findall(r'"(\w+)": lambda: cache\.', Path(__file__).read_text())}
        rows |= {f"KvGroup.{name}" for name in re.findall(r'"(\w+)": lambda: group\.', Path(__file__).read_text())}
        calls = set(calls_with_arguments())
        self.assertGreater(len(calls), 90)
        self.assertEqual(sorted(calls - rows - REFUSE_NOTHING), [])
        self.assertEqual(sorted(REFUSE_NOTHING - calls), [])


def calls_with_arguments() -> Iterator[str]:
    """Return the public methods of the package's classes that have arguments, as Class.method."""
    for name in gpool.__all__:
        made = getattr(gpool, name)
        if not inspect.isclass(made) or issubclass(made, (enum.Enum, tuple, BaseException)):
            continue
        for method in dir(made):
            call = getattr(made, method)
            if method.startswith("_") or not callable(call):
                continue
            if len(inspect.signature(call).parameters) > 1:
                yield f"{name}.{method}"


if __name__ == "__main__":
    unittest.main()
