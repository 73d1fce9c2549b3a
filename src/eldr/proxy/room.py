"""How many bytes of bodies requests may hold at once."""

SMALL_BYTES = 64 * 1024
"""Bodies up to this size always find room, so large ones cannot keep them out; `in_flight` bounds them."""


class NoRoomError(Exception):
    """There is no room for the body beside those of other requests."""


class Room:
    """The account of bodies, each by its size without compression. Used from one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def check(self, more_bytes: int, size_bytes: int) -> None:
        """Raise NoRoomError where a body cannot get so many bytes more (or fewer) and have this size then."""
        if size_bytes > SMALL_BYTES and 0 < more_bytes > self._limit_bytes - self.held_bytes:
            raise NoRoomError

    def take(self, more_bytes: int, size_bytes: int) -> None:
        """The same; if it can, they are held from now on."""
        self.check(more_bytes, size_bytes)
        self.held_bytes += more_bytes

    def give_back(self, held_bytes: int) -> None:
        """They are held no more."""
        self.held_bytes -= held_bytes
