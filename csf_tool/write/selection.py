"""Choice of the block scales that compress turns into CSF, and the reasons why others stay dense."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from types import MappingProxyType

from csf_tool.checkpoint.experts import USUAL, Experts
from csf_tool.checkpoint.model import Checkpoint, DensePlane
from csf_tool.codec.formats import EXCEPTION_BYTES, CsfFormat, nearest_format

_REASONS = 3
"""Reasons that are named at most."""


@dataclass(frozen=True)
class LeftDense:
    """A block scale that stays dense, and why."""

    plane: DensePlane
    reason: str


def left_otherwise(checkpoint: Checkpoint) -> list[LeftDense]:
    """The FP4 block scales that are no planes, with the reasons; those that fit no weight among them."""
    left = {misfit.plane.name: LeftDense(*misfit) for misfit in checkpoint.misfits}
    for scale, _, kind in checkpoint.other_scales:
        if kind.is_fp4:
            rows, cols = prod(scale.tensor.shape[:-1]), scale.tensor.shape[-1]
            plane = DensePlane(scale.tensor.name, nearest_format(scale.tensor.dtype), rows, cols, scale)
            left.setdefault(plane.name, LeftDense(plane, f"{kind}; {kind.why}"))
    return list(left.values())


def stay_dense(left: Sequence[LeftDense]) -> str:
    """Scales that stay dense, by the reason: how many, and the first of each."""
    reasons: dict[str, list[LeftDense]] = {}
    for entry in left:
        reasons.setdefault(entry.reason, []).append(entry)
    said = [f"{_stay(len(alike))}, as {alike[0].plane.name}: {reason}" for reason, alike in reasons.items()]
    more = f"; and so on, for {len(said) - _REASONS} more reasons" if len(said) > _REASONS else ""
    return "; ".join(said[:_REASONS]) + more


def _stay(number: int) -> str:
    return f"{number} block scale{' stays' if number == 1 else 's stay'} dense"


@dataclass(frozen=True)
class Rules:
    """The user's rules: globs on tensor names, and whether planes may grow.

    Without `include` the routed experts' scales are meant.
    """

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    keep_larger: bool = False
    allow_padded: bool = False

    def refusal(self, plane: DensePlane, doubt: str | None, experts: Experts) -> str | None:
        """Why a plane stays dense whatever its scales are, or None. `doubt` says why its order is unknown."""
        if _matches(plane.name, self.exclude):
            return "excluded by --exclude"
        if self.include and not _matches(plane.name, self.include):
            return "not included by --include"
        if not self.include and experts.of_tensor(plane.name) is None:
            return _whole_stack(plane) if experts.are_all_in(plane.name, plane.rows) else "not a routed expert's"
        if doubt and not self.allow_padded:
            return f"its layout is unknown, {doubt} (--allow-padded takes it as it is)"
        return plane.fmt.geometry_fault(plane.rows, plane.cols)


def _whole_stack(plane: DensePlane) -> str:
    """Why a matrix with the rows of all experts stays dense, and what can be done."""
    fault = plane.fmt.geometry_fault(plane.rows, plane.cols)
    can = f"nor can it be one plane: {fault}" if fault else "--include '*' takes it as one plane all the same"
    return f"it has the rows of all experts, and readers look for the planes of each expert; {can}"


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def formats_meant(
    planes: Sequence[DensePlane], rules: Rules, doubtful: Mapping[str, str], experts: Experts
) -> list[CsfFormat]:
    """The formats of the planes that the rules allow, before a plane is read; where they allow none, of all."""
    formats = {plane.fmt.name: plane.fmt for plane in planes}  # a name's hash is at hand, a format's is not
    if len(formats) > 1:  # otherwise no name of a plane has to be looked at
        meant = (plane for plane in planes if not rules.refusal(plane, doubtful.get(plane.name), experts))
        formats = {plane.fmt.name: plane.fmt for plane in meant} or formats
    return list(formats.values())


def csf_bytes(plane: DensePlane, exceptions: int) -> int:
    """Bytes of a plane's two streams with that many exceptions."""
    return plane.fmt.fixed_bytes(plane.rows, plane.cols) + exceptions * EXCEPTION_BYTES


def _why_no_gain(plane: DensePlane, exceptions: int) -> str | None:
    """The reason of a plane that CSF would not make smaller; None where it would."""
    nbytes = csf_bytes(plane, exceptions)
    if nbytes < plane.dense_bytes:
        return None
    return f"CSF would take {nbytes} bytes, dense {plane.dense_bytes} (--keep-larger forces it)"


def _whole_modules(
    chosen: Sequence[DensePlane], left: Sequence[LeftDense], module_of_plane: Mapping[str, str]
) -> tuple[list[DensePlane], list[LeftDense]]:
    """Leave a module dense as a whole when one of its planes stays dense: readers look up a mark by module."""
    broken: dict[str, LeftDense] = {}
    for entry in left:
        broken.setdefault(module_of_plane[entry.plane.name], entry)
    kept: list[DensePlane] = []
    dropped: list[LeftDense] = []
    for plane in chosen:
        module = module_of_plane[plane.name]
        if (first := broken.get(module)) is None:
            kept.append(plane)
        else:
            because = f"{module} is left dense as a whole, for {first.plane.name}: {first.reason}"
            dropped.append(LeftDense(plane, because))
    return kept, [*left, *dropped]


@dataclass(frozen=True)
class Selection:
    """The planes to compress with their exception counts, and every other block scale with the reason."""

    exceptions: dict[str, int]
    chosen: list[DensePlane]
    left: list[LeftDense]


def select(
    planes: Sequence[DensePlane],
    rules: Rules,
    module_of_plane: Mapping[str, str] | None,
    count_exceptions: Callable[[list[DensePlane]], dict[str, int]],
    doubtful: Mapping[str, str] = MappingProxyType({}),
    experts: Experts = USUAL,
) -> Selection:
    """Choose among the dense planes of a checkpoint; of those in `doubtful` the order of the scales is unknown.

    `count_exceptions` encodes planes to see how many exceptions each has. With `module_of_plane` (for the
    Hugging Face layout) modules are compressed whole or not at all.
    """
    left, wanted = [], []
    for plane in planes:
        if reason := rules.refusal(plane, doubtful.get(plane.name), experts):
            left.append(LeftDense(plane, reason))
        else:
            wanted.append(plane)
    exceptions = count_exceptions(wanted)
    chosen = []
    for plane in wanted:
        if not rules.keep_larger and (reason := _why_no_gain(plane, exceptions[plane.name])):
            left.append(LeftDense(plane, reason))
        else:
            chosen.append(plane)
    if module_of_plane is not None:
        chosen, left = _whole_modules(chosen, left, module_of_plane)
    return Selection(exceptions, chosen, left)
