"""Advice after a verification: files to download again, and options that would prove more."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.hub_cache import Snapshot


@dataclass(frozen=True)
class Download:
    """The way in which a file of a checkpoint came, or could come, from the Hub."""

    repository: str
    options: str

    def command(self, files: Sequence[str]) -> str:
        """The command that fetches some files anew, which replaces damaged ones."""
        return f"hf download {' '.join(map(shlex.quote, [self.repository, *files]))}{self.options} --force-download"


def known_download(checkpoint: Checkpoint, hub: str = "") -> Download | None:
    """The download of a checkpoint that is here, by its place in a Hub cache, or by the `hub` that the user named."""
    snapshot = Snapshot.at(checkpoint.root)
    if snapshot and snapshot.revision:
        return Download(snapshot.repo_id, snapshot.options)
    repository, _, revision = hub.removeprefix("hf://").partition("@")
    if not repository:
        return None
    at = f" --revision {shlex.quote(revision)}" if revision else ""
    return Download(repository, f"{at} --local-dir {shlex.quote(str(checkpoint.root))}")
