"""Leadership roles: names that one session of a pool holds at a time."""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING

from . import _abi
from ._errors import Error, Stale, check
from ._library import library
from ._text import c_text
from ._wait import waiting

if TYPE_CHECKING:
    from ._handle import Handle


class Role:
    """A leadership role, held from Pool.acquire_role() until release(), the end of a `with` statement, the close of the
    pool, or the end of the process.

    A role is not taken from a running process that does none of these. `token` increases with each grant of the role.
    Send it with requests to other systems, which can then reject lower tokens.

    Threads: any.
    """

    def __init__(self, handle: Handle, name: str, role: _abi.gpool_role) -> None:
        self._handle = handle
        self._role = role
        self.name = name
        self.token = int(role.token)

    @property
    def held(self) -> bool:
        """Return whether this process still holds the role. Raises Closed; Forked. Cost: two loads."""
        try:
            with self._handle as pool:
                check(library().gpool_role_check(pool, self._role), f"check role '{self.name}'")
        except Stale:
            return False
        return True

    def release(self) -> None:
        """Release the role. When the call returns, the first standby holds it.

        Raises Stale: this process no longer holds it; AgentGone: no answer within 10 s.
        Cost: one request to the agent.
        """
        with self._handle as pool:
            check(library().gpool_role_release(pool, self._role), f"release role '{self.name}'")

    def __enter__(self) -> Role:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._handle.closed and self.held:
            self.release()


def acquire(handle: Handle, name: str, timeout_ms: int) -> Role:
    """Acquire a leadership role: see Pool.acquire_role(). Raises TimedOut; NoRoom; AgentGone; Error."""
    role = _abi.gpool_role(size=ctypes.sizeof(_abi.gpool_role))
    with handle as pool:
        undo = lambda: library().gpool_role_release(pool, role)  # noqa: E731
        result = waiting(
            timeout_ms, library().gpool_role_acquire, pool, c_text(name), timeout_ms, ctypes.byref(role), undo=undo
        )
        check(result, f"acquire role '{name}'")
    return Role(handle, name, role)


def refuse_role(role: Role, pool: Handle) -> None:
    """Raise TypeError: it is not a Role; Error with EINVAL: another session has acquired it."""
    if not isinstance(role, Role):
        raise TypeError(f"role is {role!r}, which is not a Role")
    if role._handle is not pool:
        raise Error(errno.EINVAL, "cannot use a role: it belongs to another pool")
