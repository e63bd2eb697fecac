"""Memory: the hold on the bytes of a region, by which they stay where they are."""

from __future__ import annotations

from collections.abc import Callable

from . import _native


def not_back(address: int) -> TimeoutError:
    """The error for memory that only the program keeps, and may not give to others yet."""
    return TimeoutError(
        f"a driver or the kernel may still use the memory at {address:#x}, for a transfer that ended dirty; leave it "
        "as it is, and call again later"
    )


class Memory:
    """Keeps the bytes of a region where they are.

    They are those of a buffer of the program, which `owner` holds, those of another Memory, of which a lease is a part,
    or memory of tent that `free` unmaps when the region, every view and every transfer have let go of it.
    """

    __slots__ = ("__weakref__", "_free", "address", "owner", "read_only", "size")

    def __init__(
        self, address: int, size: int, read_only: bool, owner: object, free: Callable[[], object] | None = None
    ) -> None:
        self.address = address
        self.size = size
        self.read_only = read_only
        self.owner = owner
        self._free = free

    @_native.finalizer
    def __del__(self) -> None:
        if self._free is not None:
            self._free()

    @property
    def keeper(self) -> object:
        """The object by which a view keeps the bytes where they are, None when the program has its buffer back."""
        if self._free is not None:
            return self
        return self.owner.keeper if isinstance(self.owner, Memory) else self.owner

    @property
    def borrowed(self) -> bool:
        """Whether nothing here keeps the bytes: the program gave an address, and has to."""
        return type(self.owner) is tuple

    def another(self) -> Memory | None:
        """Another hold on a buffer of the program; None where this is no hold on one."""
        if self._free is not None or self.borrowed or self.owner is None or isinstance(self.owner, Memory):
            return None
        return Memory(self.address, self.size, self.read_only, self.owner)

    def let_go(self) -> None:
        """Gives the program its buffer back: nothing moves its bytes any more. Views hold it for themselves."""
        if self._free is None:
            self.owner = None
