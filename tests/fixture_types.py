"""Types of the fixtures that all tests share (tests/conftest.py)."""

from collections.abc import Callable
from pathlib import Path

Sample = Callable[[str], Path]
"""Gives the folder of a sample by its name."""

Copied = Callable[..., Path]
"""Copies a sample of a name, under the same name or another."""
