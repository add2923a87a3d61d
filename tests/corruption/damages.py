"""Every damage of the matrix: at which place of a checkpoint, of what sort, and how it is done to a copy."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.building import MXFP4, Tensor, change_json, raw_file, shard_bytes, shard_name, span
from tests.corruption.checkpoints import ADAPTER, CODE, DOWNLOAD_NOTES, DRAFT, INDEX, SHARDS, SUMS, TEMPLATE, Kind

Span = tuple[str, int, int]
"""A range of a file: its path, begin and end."""


@dataclass(frozen=True)
class Site:
    """The folder of a checkpoint that may be damaged (`root`), and the same of another revision (`other`)."""

    root: Path
    other: Path

    def change(self, name: str, change: Callable[[bytearray], object]) -> None:
        """Let `change` work on the bytes of a file; links and their names stay."""
        data = bytearray((self.root / name).read_bytes())
        change(data)
        (self.root / name).write_bytes(data)

    def put(self, at: Span, data: bytes) -> None:
        """Overwrite a range with as many bytes."""
        name, begin, end = at
        assert len(data) == end - begin
        self.change(name, lambda raw: raw.__setitem__(slice(begin, end), data))

    def flip(self, name: str, at: int, bit: int = 0) -> None:
        """Flip a bit of a byte."""
        self.change(name, lambda raw: raw.__setitem__(at, raw[at] ^ 1 << bit))

    def zero(self, at: Span) -> None:
        """Overwrite a range with zeros."""
        self.put(at, bytes(at[2] - at[1]))

    def read(self, at: Span) -> bytes:
        """The bytes of a range."""
        return (self.root / at[0]).read_bytes()[at[1] : at[2]]

    def swap(self, a: Span, b: Span) -> None:
        """Exchange two ranges of one length and of different bytes."""
        first, second = self.read(a), self.read(b)
        assert first != second
        self.put(a, second)
        self.put(b, first)

    def size(self, name: str) -> int:
        """A file's bytes."""
        return (self.root / name).stat().st_size

    def header(self, shard: str) -> tuple[dict[str, Any], int]:
        """A shard's header document, and where its data begin."""
        raw = (self.root / shard).read_bytes()
        length = int.from_bytes(raw[:8], "little")
        return json.loads(raw[8 : 8 + length]), 8 + length

    def span(self, shard: str, tensor: str) -> Span:
        """Where a tensor's bytes are."""
        return shard, *span(self.root / shard, tensor)

    def edit_header(self, shard: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Write a shard's header anew, changed, before the same data."""
        document, start = self.header(shard)
        change(document)
        (self.root / shard).write_bytes(raw_file(document, (self.root / shard).read_bytes()[start:], pad=True))

    def rewrite(self, shard: str, change: Callable[[Tensor], Tensor]) -> None:
        """Write a shard anew, its tensors changed, every size and offset to fit."""
        document, start = self.header(shard)
        data = (self.root / shard).read_bytes()[start:]
        metadata = document.pop("__metadata__")
        tensors = [
            Tensor(k, e["dtype"], tuple(e["shape"]), data[slice(*e["data_offsets"])]) for k, e in document.items()
        ]
        (self.root / shard).write_bytes(shard_bytes(list(map(change, tensors)), metadata))

    def drop(self, shard: str, *names: str) -> None:
        """Write a shard anew without some tensors, and take them out of an index of what is stored."""
        document, start = self.header(shard)
        data = (self.root / shard).read_bytes()[start:]
        metadata = document.pop("__metadata__")
        kept = {k: e for k, e in document.items() if k not in names}
        assert len(kept) == len(document) - len(names)
        tensors = [Tensor(k, e["dtype"], tuple(e["shape"]), data[slice(*e["data_offsets"])]) for k, e in kept.items()]
        (self.root / shard).write_bytes(shard_bytes(tensors, metadata))
        if (self.root / INDEX).exists():
            change_json(self.root / INDEX, lambda index: [index["weight_map"].pop(name, None) for name in names])


Do = Callable[[Site], object]


@dataclass(frozen=True)
class Case:
    """One damage: where, what, and how."""

    place: str
    damage: str
    do: Do


def model_cases(kind: Kind) -> list[Case]:
    """The damages to the checkpoint itself."""
    found = [*_in_tensors(kind), *_in_header(kind), *_in_whole_shard(kind)]
    if kind.is_container:
        found += _in_container(kind)
    if not kind.is_single_file:
        found += _in_model_files(kind)
    return found


def evidence_cases(kind: Kind) -> list[Case]:
    """The damages to the hashes that lie beside the checkpoint."""
    shard = _shards(kind)[0]
    if kind.evidence == SUMS:
        flips = {
            "bit flip in a sha256": (shard, -20),
            "bit flip between hash and name": (shard, -1),
            "bit flip in a name": (shard, 10),
        }
        no_digit = Case(f"`{SUMS}`", "bit flip that leaves no sha256", _flip_in(SUMS, shard, -20, 6))
        return [no_digit, *_in_file(f"`{SUMS}`", SUMS, flips), *_in_lines(shard)]
    if kind.evidence == DOWNLOAD_NOTES:
        place, note = "a note of `hf download`", f"{DOWNLOAD_NOTES}/{shard}.metadata"
        flips = {"bit flip in the commit": ("0" * 40, 3), "bit flip in the sha256": ("\n", 5)}
        no_digit = Case(place, "bit flip that leaves no sha256", _flip_in(note, "\n", 5, 6))
        return [no_digit, *_in_file(place, note, flips)]
    return list(_in_links(kind))


def _shards(kind: Kind) -> list[str]:
    if kind.is_single_file:
        return [kind.checkpoint]
    return [("tensors/" if kind.is_container else "") + shard_name(i + 1, SHARDS) for i in range(SHARDS)]


# Tensors


@dataclass(frozen=True)
class _Names:
    """The tensors that are damaged: two matrices of one shape, and one tensor a shard that is no part of them."""

    one: str
    two: str
    norm: str = "model.layers.0.norm.weight"
    other_norm: str = "model.layers.1.norm.weight"


def _names(kind: Kind) -> _Names:
    if kind.codec is MXFP4:
        return _Names("layers.0.ffn.experts.0.w1", "layers.0.ffn.experts.0.w3")
    return _Names("model.layers.0.mlp.experts.0.gate_proj", "model.layers.0.mlp.experts.0.up_proj")


def _in_tensors(kind: Kind) -> Iterator[Case]:
    names, shards = _names(kind), _shards(kind)
    scale = "scale" if kind.codec is MXFP4 else "weight_scale"
    if kind.is_dense:
        yield from _in_tensor("dense scales", shards[0], f"{names.one}.{scale}", f"{names.two}.{scale}")
        yield _dropped("dense scales", shards[0], f"{names.one}.{scale}")
        yield Case(
            "dense scales",
            "half of its columns dropped, sizes mended",
            lambda s: s.rewrite(shards[0], lambda t: _narrower(t, f"{names.one}.{scale}")),
        )
    else:
        yield from _in_streams(kind, f"{names.one}.{scale}", f"{names.two}.{scale}")
        streams = (f"{names.one}.{scale}.{kind.codec.name}_csf_{part}" for part in ("fixed", "exceptions"))
        yield _dropped("both streams", shards[0], *streams)
    yield from _in_tensor("FP4 weight", shards[0], f"{names.one}.weight", f"{names.two}.weight")
    yield _dropped("FP4 weight", shards[0], f"{names.one}.weight")
    if kind.codec is not MXFP4:
        for suffix in ("weight_scale_2", "input_scale"):
            yield from _in_tensor(f"`{suffix}`", shards[0], f"{names.one}.{suffix}", f"{names.two}.{suffix}")
            yield _dropped(f"`{suffix}`", shards[0], f"{names.one}.{suffix}")
    yield from _in_tensor("other tensor (BF16 norm)", shards[0], names.norm, names.other_norm, shards[-1])


def _dropped(place: str, shard: str, *names: str) -> Case:
    """Tensors that are gone from shard and index, as if they had never been there."""
    return Case(place, "dropped, sizes and index mended", lambda s: s.drop(shard, *names))


def _narrower(tensor: Tensor, name: str) -> Tensor:
    """The tensor of that name with half as many columns; any other as it is."""
    if tensor.name != name:
        return tensor
    rows, columns = tensor.shape
    return replace(tensor, shape=(rows, columns // 2), data=tensor.data[: rows * columns // 2])


def _in_tensor(place: str, shard: str, one: str, two: str, home: str = "") -> Iterator[Case]:
    """Damages to a tensor that is stored as it is; `two`, of the same shape, lies in `home` or in the same shard."""

    def end_of(site: Site) -> Span:
        _, begin, end = site.span(shard, one)
        return shard, (begin + end) // 2, end

    yield Case(place, "bit flip", lambda s: s.flip(shard, s.span(shard, one)[1] + 1))
    yield Case(place, "half of it zeroed", lambda s: s.zero(end_of(s)))
    yield Case(place, "all of it zeroed", lambda s: s.zero(s.span(shard, one)))
    yield Case(
        place, "swapped with one of equal shape", lambda s: s.swap(s.span(shard, one), s.span(home or shard, two))
    )


def _in_streams(kind: Kind, one: str, two: str) -> Iterator[Case]:
    """Damages to the streams of plane `one`; plane `two` has the same shape and as many exceptions."""
    shard, parts = _shards(kind)[0], [f"{kind.codec.name}_csf_{part}" for part in ("fixed", "exceptions")]

    def fixed(site: Site, begin: int = 0, end: int | None = None) -> Span:
        return _part(site.span(shard, f"{one}.{parts[0]}"), begin, end)

    def words(site: Site, begin: int = 0, end: int | None = None) -> Span:
        return _part(site.span(shard, f"{one}.{parts[1]}"), begin, end)

    def swap(site: Site, part: str) -> None:
        site.swap(site.span(shard, f"{one}.{part}"), site.span(shard, f"{two}.{part}"))

    def swap_both(site: Site) -> None:
        for part in parts:
            swap(site, part)

    yield Case("row bases", "bit flip", lambda s: s.flip(shard, fixed(s)[1] + 5))
    yield Case("row bases", "a base that no encoder writes", lambda s: s.put(fixed(s, 5, 6), b"\xff"))
    yield Case("row bases", "zeroed", lambda s: s.zero(fixed(s, 0, 16)))
    yield Case("codes", "bit flip", lambda s: s.flip(shard, fixed(s)[2] - 9))
    yield Case("codes", "bit flip under an exception", lambda s: s.flip(shard, fixed(s)[1] + 16))  # position 0 is one
    yield Case("codes", "zeroed", lambda s: s.zero(fixed(s, 16)))
    if kind.codec is MXFP4:  # three columns leave five bits of padding
        yield Case("codes", "bit flip in the padding", lambda s: s.flip(shard, fixed(s)[1] + 16, 7))
    yield Case("fixed stream", "all of it zeroed", lambda s: s.zero(fixed(s)))
    yield Case("fixed stream", "swapped with one of equal shape", lambda s: swap(s, parts[0]))
    yield Case("exceptions", "bit flip in a value", lambda s: s.flip(shard, words(s)[1] + 7))
    yield Case("exceptions", "bit flip in a position, still in order", lambda s: s.flip(shard, words(s)[1] + 8))
    yield Case("exceptions", "bit flip to a position past the plane", lambda s: s.flip(shard, words(s)[2] - 2))
    yield Case("exceptions", "two entries swapped", lambda s: s.swap(words(s, 0, 4), words(s, 4, 8)))
    yield Case("exceptions", "zeroed", lambda s: s.zero(words(s)))
    yield Case(
        "exceptions", "last one dropped, sizes mended", lambda s: s.rewrite(shard, lambda t: _shorter(t, parts[1]))
    )
    yield Case("exceptions", "swapped with those of another plane", lambda s: swap(s, parts[1]))
    yield Case("both streams", "swapped with a plane of equal shape", swap_both)


def _part(span: Span, begin: int, end: int | None) -> Span:
    name, start, stop = span
    return name, start + begin, stop if end is None else start + end


def _shorter(tensor: Tensor, suffix: str) -> Tensor:
    """An exception list without its last entry; any other tensor as it is."""
    if not tensor.name.endswith(suffix):
        return tensor
    return replace(tensor, shape=(tensor.shape[0] - 1,), data=tensor.data[:-4])


# Headers and whole shards


def _flip_in(name: str, text: str, offset: int, bit: int = 0) -> Do:
    """Flip a bit of the byte `offset` after the start of the first `text` in a file."""
    return lambda s: s.flip(name, (s.root / name).read_bytes().index(text.encode()) + offset, bit)


def _flip_digit(name: str, text: str, offset: int) -> Do:
    """Flip a bit of a hash so that it stays a hash: that of the first digit, from there on, which allows it."""

    def flip(site: Site) -> None:
        raw = (site.root / name).read_bytes()
        begin = raw.index(text.encode()) + offset
        site.flip(name, next(at for at in range(begin, len(raw)) if raw[at] in b"0123456789bcde"))

    return flip


def _in_header(kind: Kind) -> Iterator[Case]:
    names, shard, place = _names(kind), _shards(kind)[0], "safetensors header"
    one, two, norm = f"{names.one}.weight", f"{names.two}.weight", names.norm

    def edit(change: Callable[[dict[str, Any]], object]) -> Do:
        return lambda s: s.edit_header(shard, change)

    def exchange(header: dict[str, Any]) -> None:
        a, b = header[one], header[two]
        a["data_offsets"], b["data_offsets"] = b["data_offsets"], a["data_offsets"]

    if not kind.is_dense:
        yield Case(place, "bit flip in a stream's name", _flip_in(shard, "_csf_fixed", 9))
    yield Case(place, "bit flip in a module's name", _flip_in(shard, f"{names.one}.", len(names.one) - 1))
    yield Case(place, "bit flip in a weight's name", _flip_in(shard, f'{one}"', len(one) - 1))
    yield Case(place, "bit flip in another tensor's name", _flip_in(shard, norm, len(norm) - 1))
    yield Case(place, "bit flip in a dtype", _flip_in(shard, "BF16", 1))
    yield Case(place, "bit flip in a shape", _flip_in(shard, '"shape":[5]', 9))
    yield Case(place, "bit flip in an offset", _flip_in(shard, '"data_offsets":[10,', 17))
    yield Case(place, "bit flip in its length", lambda s: s.flip(shard, 0))
    yield Case(place, "bit flip in the format that it states", _flip_in(shard, '"format":"pt"', 10))
    yield Case(place, "bit flip in the word `format`", _flip_in(shard, '"format":"pt"', 1))
    yield Case(place, "other dtype of equal size", edit(lambda h: h[norm].update(dtype="F16")))
    yield Case(place, "other shape of equal size", edit(lambda h: h[norm].update(shape=[1, 5])))
    yield Case(place, "offsets of two tensors swapped", edit(exchange))
    yield Case(place, "a block of it zeroed", lambda s: s.zero((shard, 64, 96)))
    yield Case(place, "cut off within it", _cut(shard, 1, 9))


def _cut(name: str, numerator: int, denominator: int) -> Do:
    """Keep a fraction of a file."""
    return lambda s: s.change(name, lambda raw: raw.__delitem__(slice(len(raw) * numerator // denominator, None)))


def _append(name: str) -> Do:
    return lambda s: s.change(name, lambda raw: raw.extend(bytes(8)))


def _take_other(name: str) -> Do:
    return lambda s: (s.root / name).write_bytes((s.other / name).read_bytes())


def _swap_files(a: str, b: str) -> Do:
    def swap(site: Site) -> None:
        first, second = (site.root / a).read_bytes(), (site.root / b).read_bytes()
        (site.root / a).write_bytes(second)
        (site.root / b).write_bytes(first)

    return swap


def _remove(name: str) -> Do:
    return lambda s: (s.root / name).unlink()


def _in_whole_shard(kind: Kind) -> Iterator[Case]:
    shards, place = _shards(kind), "whole shard"
    shard = shards[0]

    def zero_run(site: Site) -> None:
        start, size = site.header(shard)[1], site.size(shard)
        site.zero((shard, start + (size - start) // 4, size - 1))

    yield Case(place, "truncated", _cut(shard, 3, 4))
    yield Case(place, "last byte missing", lambda s: s.change(shard, lambda raw: raw.__delitem__(-1)))
    yield Case(place, "empty", _cut(shard, 0, 1))
    yield Case(place, "bytes appended", _append(shard))
    yield Case(place, "a long run of zeros", zero_run)
    yield Case(place, "file of another revision", _take_other(shard))
    if len(shards) > 1:
        yield Case(place, "swapped with another shard", _swap_files(*shards))
        yield Case(place, "missing", _remove(shard))


# JSON and other small files


def _in_file(place: str, name: str, flips: dict[str, tuple[str, int]], *, revised: bool = True) -> Iterator[Case]:
    """Damages to a text file: `flips` names bits by a text in it and an offset from there; `revised`: see below."""
    for damage, (text, offset) in flips.items():
        yield Case(
            place, damage, _flip_digit(name, text, offset) if "sha256" in damage else _flip_in(name, text, offset)
        )
    yield Case(place, "a block of it zeroed", lambda s: s.zero((name, s.size(name) // 3, s.size(name) // 2)))
    yield Case(place, "truncated", _cut(name, 2, 3))
    yield Case(place, "empty", _cut(name, 0, 1))
    yield Case(place, "bytes appended", _append(name))
    if revised:  # unless names, shapes and sizes are all that it says
        yield Case(place, "file of another revision", _take_other(name))
    yield Case(place, "missing", _remove(name))


def _in_model_files(kind: Kind) -> Iterator[Case]:
    folder = kind.model_folder

    def in_file(name: str, flips: dict[str, tuple[str, int]], *, revised: bool = True) -> Iterator[Case]:
        return _in_file(f"`{name}`", folder + name, flips, revised=revised)

    recipes: dict[str, tuple[str, int]] = {}
    if kind.codec is not MXFP4:
        recipes["bit flip in a recipe's module"] = ("layers.0.mlp", 7)
        recipes["bit flip in a group size"] = ('"group_size": 1', 15)
    if kind.codec is not MXFP4 and not kind.is_container and not kind.is_dense:
        recipes["bit flip in a `csf` mark"] = ('"csf"', 1)
    yield from in_file(INDEX, {
        "bit flip in a tensor's name": ('norm.weight"', 5),
        "bit flip in a shard's name": ("-of-00002", 8),
        "bit flip in `total_size`": ('"total_size": ', 15),
    }, revised=False)  # fmt: skip
    yield Case(f"`{INDEX}`", "names two shards the other way round", lambda s: _exchange_in_index(s, folder))
    yield from in_file("config.json", {"bit flip in a number": ('"hidden_size": 6', 15), **recipes})
    if recipes:
        yield from in_file("hf_quant_config.json", recipes)
    yield from in_file("generation_config.json", {"bit flip in a number": ('"top_k": 2', 10)})
    yield from in_file("tokenizer.json", {"bit flip in a number": ('"b": ', 5)})
    yield from in_file(CODE, {"bit flip": ("REVISION", 0)})
    yield from in_file(DRAFT, {"bit flip in its data": ("draft.weight", 70)})
    yield from in_file("draft/config.json", {"bit flip in a number": ('"hidden_size": ', 15)})
    yield from _in_values(f"{folder}tokenizer.json")
    yield from in_file("README.md", {"bit flip": ("Mini", 0)})
    for name in ("tokenizer.json", "README.md"):
        yield Case(f"`{name}`", "a pipe in its place", _replace_by_pipe(folder + name))
    for name, data in ((TEMPLATE, b"{{ x }}"), (ADAPTER, b"{}")):
        yield Case(SURPLUS, f"`{name}`", _add(folder + name, data))


SURPLUS = "a file that the original lacks"
"""The place of files that were added."""


def _in_values(name: str) -> Iterator[Case]:
    """JSON that Python takes for equal, and other readers do not."""

    def spelt(new: str) -> Do:
        return lambda s: s.change(name, lambda raw: raw.__setitem__(slice(None), raw.replace(b'"a": 0', new.encode())))

    yield Case("`tokenizer.json`", "a number becomes a float", spelt('"a": 0.0'))
    yield Case("`tokenizer.json`", "a number becomes `false`", spelt('"a": false'))
    yield Case("`tokenizer.json`", "a key stands twice", spelt('"a": 3, "a": 0'))


def _add(name: str, data: bytes) -> Do:
    return lambda s: (s.root / name).write_bytes(data)


def _replace_by_pipe(name: str) -> Do:
    def replace_it(site: Site) -> None:
        (site.root / name).unlink()
        os.mkfifo(site.root / name)

    return replace_it


def _exchange_in_index(site: Site, folder: str) -> None:
    one, two = (shard_name(i + 1, SHARDS) for i in range(SHARDS))
    other = {one: two, two: one}

    def exchange(index: dict[str, Any]) -> None:
        index["weight_map"] = {name: other[shard] for name, shard in index["weight_map"].items()}

    change_json(site.root / folder / INDEX, exchange)


def _in_container(kind: Kind) -> Iterator[Case]:
    yield from _in_file("`manifest.json`", "manifest.json", {
        "bit flip in a shard's name": ('"file": "model-00001', 18),
        "bit flip in `target_sha256`": ('"target_sha256": "', 20),
        "bit flip in `source_sha256`": ('"source_sha256": "', 20),
        "bit flip in `target_file_bytes`": ('"target_file_bytes": ', 22),
        "bit flip in `source_file_bytes`": ('"source_file_bytes": ', 22),
        "bit flip in a `metadata_sha256`": ('"config.json": "', 20),
        "bit flip in a total": ('"original_scale_bytes": ', 25),
        "bit flip in `source_revision`": ('"source_revision": "', 22),
        "bit flip in `schema`": ('"schema": "lil', 12),
        "bit flip in a key": ('"target_sha256"', 4),
    })  # fmt: skip
    place, config = "`manifest.json`", "config.json"
    yield Case(place, "without `metadata_sha256`", _edit("manifest.json", lambda m: m.pop("metadata_sha256")))
    yield Case(
        place, f"without the hash of `{config}`", _edit("manifest.json", lambda m: m["metadata_sha256"].pop(config))
    )
    if kind.has_receipts:
        yield from _beside_receipts(kind)
        shard = _shards(kind)[0]
        yield Case(
            SURPLUS,
            "a shard in `metadata/`",
            lambda s: (s.root / "metadata" / "more.safetensors").write_bytes((s.root / shard).read_bytes()),
        )


def _edit(name: str, change: Callable[[dict[str, Any]], object]) -> Do:
    return lambda s: change_json(s.root / name, change)


def _beside_receipts(kind: Kind) -> Iterator[Case]:
    receipt, other = (f"receipts/{shard_name(i + 1, SHARDS)}.json" for i in range(SHARDS))
    scale_bytes = 16 * (3 if kind.codec is MXFP4 else 4)
    yield from _in_file("`build-contract.json`", "build-contract.json", {
        "bit flip in a tensor's name": ('norm.weight"', 5),
        "bit flip in a shard's name": ('norm.weight": "model-00001', 25),
        "bit flip in `source_revision`": ('"source_revision": "', 22),
        "bit flip in a key": ('"source_names"', 3),
    })  # fmt: skip
    yield from _in_file("a receipt", receipt, {
        "bit flip in a plane's `source_sha256`": (f'"source_bytes": {scale_bytes},\n   "source_sha256": "', 44),
        "bit flip in the shard's `source_sha256`": ('"source_sha256": "', 20),
        "bit flip in `source_header_base64`": ('"source_header_base64": "', 60),
        "bit flip in a shape": ('"shape": [\n', 16),
        "bit flip in `exception_bytes`": ('"exception_bytes": ', 20),
        "bit flip in a plane's name": ("experts.0", 8),
        "bit flip in a key": ('"source_header_base64"', 3),
    })  # fmt: skip
    yield Case("a receipt", "swapped with another receipt", _swap_files(receipt, other))
    yield from _in_file("`verification.json`", "verification.json", {
        "bit flip in `shards`": ('"shards": ', 10),
        "bit flip in a key": ('"scale_matrices"', 3),
    }, revised=False)  # fmt: skip


# Evidence beside the checkpoint


def _in_lines(shard: str) -> Iterator[Case]:
    """Damages to a list of hashes that leave a text of lines; the last two are none."""

    def edit(change: Callable[[str], str]) -> Do:
        return lambda s: (s.root / SUMS).write_bytes(change((s.root / SUMS).read_text()).encode())

    yield Case(f"`{SUMS}`", "a shard listed again, with another hash", edit(lambda t: f"{t}{'0' * 64}  {shard}\n"))
    yield Case(f"`{SUMS}`", "a config listed again, with another hash", edit(lambda t: f"{'0' * 64} *config.json\n{t}"))
    yield Case(f"`{SUMS}`", "a digit missing", edit(lambda t: t[1:]))
    yield Case(f"`{SUMS}`", "one space instead of two", edit(lambda t: t.replace("  ", " ", 1)))
    yield Case(f"`{SUMS}`", "a line for a file that is not there", edit(lambda t: f"{t}{'0' * 64}  gone.json\n"))
    yield Case(f"`{SUMS}`", "a line for a file outside", edit(lambda t: f"{t}{'0' * 64}  ../config.json\n"))
    yield Case(f"`{SUMS}`", "line ends of Windows", edit(lambda t: t.replace("\n", "\r\n")))
    yield Case(
        f"`{SUMS}`",
        "digits in capitals",
        edit(lambda t: "".join(f"{w[:64].upper()}{w[64:]}\n" for w in t.split("\n") if w)),
    )


def _in_links(kind: Kind) -> Iterator[Case]:
    place, shards = "links of a Hub cache", _shards(kind)

    def swap(site: Site) -> None:
        targets = [(site.root / shard).readlink() for shard in shards]
        for shard, target in zip(shards, reversed(targets), strict=True):
            (site.root / shard).unlink()
            (site.root / shard).symlink_to(target)

    yield Case(place, "blob of a shard missing", lambda s: (s.root / shards[0]).resolve().unlink())
    yield Case(place, "blob of `tokenizer.json` missing", lambda s: (s.root / "tokenizer.json").resolve().unlink())
    yield Case(place, "shard links to a whole blob of another revision", lambda s: _link_other(s, shards[0]))
    yield Case(place, "`tokenizer.json` links to one", lambda s: _link_other(s, "tokenizer.json"))
    yield Case(place, "links of two shards swapped", swap)


def _link_other(site: Site, name: str) -> None:
    target = (site.other / name).readlink()
    (site.root / target).write_bytes((site.other / name).read_bytes())
    (site.root / name).unlink()
    (site.root / name).symlink_to(target)
