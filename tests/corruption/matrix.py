"""The matrix: every case on every kind of checkpoint, what was seen of it, and what must never be so."""

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.building import Codec, tree
from tests.corruption import checkpoints as kinds
from tests.corruption.checkpoints import DRAFT, INDEX, MODEL_FILES, Kind
from tests.corruption.damages import SURPLUS, Case, Site, evidence_cases, model_cases
from tests.corruption.runs import AGAINST, COMMANDS, EXPAND, IDENTITY, STATS, VERIFY, Ran, Runs, in_words, run_commands
from tests.oracle import Tensors, Unsure, logical_tensors

SOURCE = "the decoded bytes are the original ones"
CLAIMS = ("VERIFIED.", SOURCE, "every tensor equals")
"""What verify claims when the model's bytes are proved."""

PUBLISHED = "the stored bytes are the published ones"


@dataclass(frozen=True)
class Table:
    """One table of the document: a kind of checkpoint, its cases, and the same layout with hashes beside it."""

    title: str
    kind: Kind
    cases: list[Case]
    hashed: tuple[Kind, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The heads of the columns after place and damage."""
        return [STATS, VERIFY, *(f"{VERIFY}, {kind.name}" for kind in self.hashed), AGAINST, EXPAND, IDENTITY]


def _layout(kind: Kind, hashed: tuple[Kind, ...] = ()) -> Table:
    return Table(kind.name, kind, model_cases(kind), hashed)


TABLES = [
    _layout(kinds.HF, kinds.HASHED),
    _layout(kinds.NVFP4_CONTAINER),
    _layout(kinds.MXFP4_CONTAINER),
    _layout(kinds.BARE_CONTAINER),
    _layout(kinds.SINGLE_FILE),
    _layout(kinds.DENSE),
    *(Table(f"Hashes beside the checkpoint: {kind.name}", kind, evidence_cases(kind)) for kind in kinds.HASHED),
]


@dataclass(frozen=True)
class Tried:
    """One case done to one kind of checkpoint: the runs, and what of the checkpoint it changed.

    `vouched` are the changed files for whose bytes there is a published hash, `changes_tensors` says whether any
    decoded byte, dtype, shape or name of a tensor is another, `model_files` are configs, tokenizer and index that
    say something else.
    """

    kind: Kind
    case: Case
    runs: Runs
    good: Runs
    vouched: list[str]
    changes_tensors: bool
    model_files: list[str]

    @property
    def words(self) -> dict[str, str]:
        """What each command made of it."""
        return in_words(self.runs, self.good)

    def broken_promises(self) -> list[str]:
        """What must not be so, whatever the document says."""
        return [*self._wrong_codes(), *self._unseen(), *self._overclaimed(), *self._written()]

    def _wrong_codes(self) -> list[str]:
        return [
            f"{name} ends with {ran.code}: {ran.err}"
            for name, ran in self.runs.ran.items()
            if ran.code not in (0, 1, self.good.ran[name].code)
        ]

    def _verifications(self) -> list[tuple[str, Ran]]:
        return [(name, ran) for name, ran in self.runs.ran.items() if name in (VERIFY, AGAINST)]

    def _unseen(self) -> list[str]:
        """Damage that a hash or the reference shows, and that is not seen by it."""
        seen = [(name, ran.code == 1) for name, ran in self._verifications()]
        found = [f"{name} does not see {self.vouched}" for name, is_seen in seen if self.vouched and not is_seen]
        is_other = self.changes_tensors or any(map(self._reference_knows, self.model_files))
        if AGAINST in self.runs.ran and is_other and not self.runs.ran[AGAINST].code:
            found.append("the reference is another, and that is not seen")
        return found

    def _reference_knows(self, name: str) -> bool:
        """The index of streams has a total size of its own, which says nothing of the model."""
        has_own_total = not self.kind.is_container and not self.kind.is_dense
        return not (has_own_total and name == INDEX and "total_size" in self.case.damage)

    def _overclaimed(self) -> list[str]:
        found = []
        for name, ran in self._verifications():
            if self.changes_tensors:
                claims = [claim for claim in CLAIMS if claim != SOURCE or not self._is_beside]
                found += [f"{name} claims: {claim}" for claim in claims if claim in ran.claimed]
            if self.vouched and PUBLISHED in ran.claimed:
                found.append(f"{name} claims: {PUBLISHED}")
        return found

    @property
    def _is_beside(self) -> bool:
        """Whether the damage is to tensors that are no part of the model itself, and of which nothing is decoded."""
        return self.case.place in (f"`{DRAFT}`", SURPLUS)

    def _written(self) -> list[str]:
        """With receipts, expand gives the original or nothing, but for files that no hash lists."""
        is_known = bool(self.vouched) or self.changes_tensors
        is_wrong = self.kind.has_receipts and is_known and self.words.get(EXPAND) == "writes it"
        return ["expand writes what is not the original"] if is_wrong else []


class Bench:
    """Where cases are tried: the undamaged checkpoints, two revisions of each, are built when first asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._built = cache(self._build)
        self._copied = cache(self._copy)
        self._good = cache(self._run_good)
        self._means = cache(lambda kind: _meaning(kind.folder(self._built(kind, 0))))
        self._reference = cache(self._build_reference)

    def row(self, table: Table, case: Case) -> tuple[tuple[str, ...], list[Tried]]:
        """The words of a row of a table, and all that was tried for it."""
        tried = [self.attempt(table.kind, case)] + [self.attempt(kind, case, (VERIFY,)) for kind in table.hashed]
        words = tried[0].words
        hashed = [other.words[VERIFY] for other in tried[1:]]
        return (words[STATS], words[VERIFY], *hashed, words[AGAINST], words[EXPAND], words[IDENTITY]), tried

    def attempt(self, kind: Kind, case: Case, commands: tuple[str, ...] = COMMANDS) -> Tried:
        """Do one case to a copy of one kind of checkpoint, and run commands on it."""
        good, other, copy = self._built(kind, 0), self._built(kind, 1), self._copied(kind)
        folder = kind.folder(copy)
        try:
            case.do(Site(folder, kind.folder(other)))
            before, after = tree(kind.folder(good)), tree(folder)
            changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            return Tried(
                kind,
                case,
                run_commands(copy / kind.checkpoint, self._reference(kind.codec), self._root / "out", commands),
                self._good(kind),
                [name for name in changed if name in before and kind.vouched(folder, name)],
                _meaning(folder) != self._means(kind),
                [name for name in changed if name.rpartition("/")[2] in (*MODEL_FILES, INDEX)],
            )
        finally:
            _mend(copy, good)

    def _copy(self, kind: Kind) -> Path:
        good = self._built(kind, 0)
        return Path(shutil.copytree(good, self._root / f"copy of {good.name}", symlinks=True))

    def _build(self, kind: Kind, revision: int) -> Path:
        root = self._root / f"{len(list(self._root.iterdir()))}"
        root.mkdir()
        kind.build(root, revision)
        assert _meaning(kind.folder(root)) is not None
        return root

    def _build_reference(self, codec: Codec) -> Path:
        return kinds.dense(self._root / f"reference-{codec.name}", 0, codec)

    def _run_good(self, kind: Kind) -> Runs:
        """The runs on the undamaged checkpoint, which all find it good."""
        reference = self._reference(kind.codec)
        dense = _meaning(reference) or {}
        if kind.is_single_file:  # which has the nested checkpoint beside it, and not in it
            dense = {name: tensor for name, tensor in dense.items() if not name.startswith("draft.")}
        assert self._means(kind) == dense
        runs = run_commands(self._built(kind, 0) / kind.checkpoint, reference, self._root / "out")
        assert [runs.ran[name].code for name in (STATS, VERIFY, AGAINST)] == [0, 0, 0]
        return runs


def _meaning(folder: Path) -> Tensors | None:
    """Every dense tensor of a checkpoint, whatever its index says; None where its shards have no certain meaning.

    Bytes appended to a shard change no tensor: that they are reported is another promise.
    """
    shards = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors"))
    try:
        return logical_tensors(folder, shards, tail=True)
    except Unsure:
        return None


def _mend(copy: Path, good: Path) -> None:
    """Undo what was done to a copy: quicker than another copy."""
    for name in {path.relative_to(root) for root in (copy, good) for path in root.rglob("*")}:
        if _raw(copy / name) != _raw(good / name):
            (copy / name).unlink(missing_ok=True)
            if _raw(good / name) is not None:
                shutil.copy2(good / name, copy / name, follow_symlinks=False)


def _raw(path: Path) -> Path | bytes | None:
    """A link's target, a file's bytes, nothing of anything else."""
    if path.is_symlink():
        return path.readlink()
    return path.read_bytes() if path.is_file() else None
