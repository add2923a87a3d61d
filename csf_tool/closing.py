"""Objects that a `with` block closes."""

from typing import Self


class Closing:
    """An object that is closed at the end of a `with` block, however it ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what it holds."""
