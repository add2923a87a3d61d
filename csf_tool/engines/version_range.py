"""The versions of an engine that csf-tool was tested with, and the warning of others."""

import re
from dataclasses import dataclass
from functools import cache
from logging import Logger


@dataclass(frozen=True)
class VersionRange:
    """The oldest and the newest version of an engine, both included: the first numbers of versions, as many as count.

    docs/serving.md says how they were tried.
    """

    engine: str
    oldest: tuple[int, ...]
    newest: tuple[int, ...]

    def includes(self, version: str) -> bool:
        """Whether a version is in the range; those that do not look like one, as of a fork, are not."""
        match = re.match(r"\.".join([r"(\d+)"] * len(self.oldest)), version)
        return match is not None and self.oldest <= tuple(map(int, match.groups())) <= self.newest

    def says_of(self, version: str) -> str:
        """The sentence about a version outside the range; empty for any other."""
        said = f"{self.engine} {version} is outside the range that csf-tool was tested with"
        return "" if self.includes(version) else said

    def warn_of(self, version: str, logger: Logger) -> None:
        """Warn, once in a process, of a version outside the range."""
        if said := self.says_of(version):
            tested = " to ".join(".".join(map(str, bound)) for bound in (self.oldest, self.newest))
            warn_once(logger, f"{said} ({tested})")


@cache
def warn_once(logger: Logger, message: str) -> None:
    """Say something once in a process."""
    logger.warning("%s", message)
