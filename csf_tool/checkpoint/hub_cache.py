"""Snapshots in a cache of huggingface_hub: which repository and revision they are, and what to fetch of them.

The cache's layout is that of https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.disk.paths import names_in
from csf_tool.disk.reader import exists
from csf_tool.errors import CheckpointError
from csf_tool.text import some

_PLACE = re.compile(r"(?P<cache>.*)/models--(?P<org>[^/]+?)--(?P<name>[^/]+)(?:/(?:snapshots/(?P<revision>[^/]+).*)?)?")

_MODEL = re.compile(r"models--[^/]+--[^/]+")

_SUGGESTED = 5
"""Most repositories in one line."""


@dataclass(frozen=True)
class Snapshot:
    """A revision of a repository in a Hub cache; the revision is None of the folder that has all of them."""

    repo_id: str
    revision: str | None
    cache: Path

    @classmethod
    def at(cls, path: Path) -> Self | None:
        """The snapshot that a path is, or lies in; None for any other path."""
        match = _PLACE.fullmatch(path.absolute().as_posix())
        return cls(f"{match['org']}/{match['name']}", match["revision"], Path(match["cache"])) if match else None

    @property
    def folder(self) -> Path:
        """The folder of the repository in the cache."""
        return self.cache / ("models--" + self.repo_id.replace("/", "--"))

    @property
    def root(self) -> Path:
        """The folder of the snapshot; that of all snapshots where the revision is open."""
        return self.folder / "snapshots" / (self.revision or "")

    @property
    def commits(self) -> list[str]:
        """The revisions of which the cache has files."""
        return names_in(self.folder / "snapshots")

    def complete_others(self) -> str:
        """The end of a sentence that says which other revision is complete; empty where none is."""
        others = [commit for commit in self.commits if commit != self.revision]
        found = [f"{self.repo_id}@{commit}" for commit in others if is_complete(replace(self, revision=commit).root)]
        return f"; the cache has all shards of {some(found, 1)}" if found else ""

    @property
    def download(self) -> str:
        """The command that fetches what is missing, into this cache."""
        return f"`hf download {self.repo_id}{self.options}`"

    @property
    def options(self) -> str:
        """The options of `hf download` for this revision and this cache."""
        revision = f" --revision {shlex.quote(self.revision)}" if self.revision else ""
        is_usual = os.path.realpath(self.cache) == os.path.realpath(_usual_cache())
        elsewhere = "" if is_usual else f" --cache-dir {shlex.quote(str(self.cache))}"
        return f"{revision}{elsewhere}"


def _usual_cache() -> Path:
    """The cache that huggingface_hub takes unless told otherwise."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def repositories_in(path: Path) -> str:
    """The end of a sentence that names the models in a Hub cache, or in the folder around it; empty for any other."""
    for cache in (path, path / "hub"):
        names = [name for name in names_in(cache) if _MODEL.fullmatch(name)]
        found = {name: snapshot.repo_id for name in names if (snapshot := Snapshot.at(cache / name))}
        if not found:
            continue
        if os.path.realpath(cache) == os.path.realpath(_usual_cache()):
            return (
                f"; this is the Hub cache: give a repository in it: {some(list(found.values()), _SUGGESTED, word='or')}"
            )
        places = [(cache / name).relative_to(path).as_posix() for name in found]
        return f"; this is a Hub cache: give one of the snapshots in it: {some(places, _SUGGESTED, word='or')}"
    return ""


def advise_download(path: Path, otherwise: str) -> str:
    """The advice to fetch what is missing at `path`: with the command where it lies in a Hub cache."""
    snapshot = Snapshot.at(path)
    return f"{snapshot.download} fetches what is missing{snapshot.complete_others()}" if snapshot else otherwise


def is_complete(root: Path, *, documents: bool = False) -> bool:
    """Whether the shards that a snapshot lists are there, and if asked for the files that say how to read them."""
    try:
        shards, beside = next(filter(None, (layout.needed_of(root) for layout in LAYOUTS)), ([], []))
    except CheckpointError:
        return False
    return bool(shards) and all(exists(root / name) for name in shards + (beside if documents else []))
