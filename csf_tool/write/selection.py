"""Choice of the block scales that compress turns into CSF, and the reasons why others stay dense."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from types import MappingProxyType

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.experts import USUAL, Experts
from csf_tool.checkpoint.plane_tables import DensePlane
from csf_tool.codec.formats import CsfFormat, nearest_format
from csf_tool.text import count

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
    said = [
        f"{_stay(len(alike))} ({'' if len(alike) == 1 else 'for example '}{alike[0].plane.name}): {reason}"
        for reason, alike in reasons.items()
    ]
    more = f"; others stay dense for {count(len(said) - _REASONS, 'more reason')}" if len(said) > _REASONS else ""
    return "; ".join(said[:_REASONS]) + more


def _stay(number: int) -> str:
    return f"{number} block scale{' stays' if number == 1 else 's stay'} dense"


@dataclass(frozen=True)
class Rules:
    """The user's rules: globs on tensor names, and whether planes may grow.

    Without `include` the routed experts' scales are meant, in matrices of their own or one below the other.
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
        fault = plane.fmt.geometry_fault(plane.rows, plane.cols)
        if not self.include and experts.of_tensor(plane.name) is None:
            if not experts.are_all_in(plane.name, plane.rows):
                return "not the scale of a routed expert"
            if fault:
                return f"it has the rows of all experts, no reader splits it, and as one plane {fault}"
        if doubt and not self.allow_padded:
            return f"its layout is unknown, because {doubt} (--allow-padded compresses it as it is)"
        return fault


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def idle_globs(rules: Rules, names: Collection[str]) -> list[str]:
    """Sentences on globs of the user's that match none of all scales, with one that does where only `*` are missing."""
    said = []
    for option, globs in (("--include", rules.include), ("--exclude", rules.exclude)):
        for glob in globs:
            if not any(fnmatchcase(name, glob) for name in names):
                wider = f"*{glob.strip('*')}*"
                is_near = any(fnmatchcase(name, wider) for name in names)
                said.append(
                    f"{option} {glob} matches no block scale" + (f"; did you mean '{wider}'?" if is_near else "")
                )
    return said


def formats_meant(
    planes: Sequence[DensePlane], rules: Rules, doubtful: Mapping[str, str], experts: Experts
) -> list[CsfFormat]:
    """The formats of the planes that the rules allow, before a plane is read; where they allow none, of all."""
    formats = {plane.fmt.name: plane.fmt for plane in planes}  # a name's hash is at hand, a format's is not
    if len(formats) > 1:  # otherwise no name of a plane has to be looked at
        meant = (plane for plane in planes if not rules.refusal(plane, doubtful.get(plane.name), experts))
        formats = {plane.fmt.name: plane.fmt for plane in meant} or formats
    return list(formats.values())


def _growing(
    planes: Sequence[DensePlane], exceptions: Mapping[str, int], module_of_plane: Mapping[str, str] | None
) -> dict[str, str]:
    """The planes that CSF would not make smaller, each with the reason: alone, or all of a module together."""
    weighed: dict[str, list[DensePlane]] = {}
    for plane in planes:
        weighed.setdefault(plane.name if module_of_plane is None else module_of_plane[plane.name], []).append(plane)
    reasons: dict[str, str] = {}
    for module, together in weighed.items():
        stored = sum(p.fmt.csf_bytes(p.rows, p.cols, exceptions[p.name]) for p in together)
        dense = sum(plane.dense_bytes for plane in together)
        if stored >= dense:
            whole = f"{module} as a whole would not shrink: " if len(together) > 1 else ""
            reason = f"{whole}CSF would take {stored} bytes, but dense {dense} (--keep-larger forces it)"
            reasons |= {plane.name: reason for plane in together}
    return reasons


def _in_whole_modules(
    wanted: Sequence[DensePlane], left: Sequence[LeftDense], module_of_plane: Mapping[str, str]
) -> tuple[list[DensePlane], list[LeftDense]]:
    """The planes of modules in which all can be CSF, and the others: readers look up a mark by module."""
    broken: dict[str, LeftDense] = {}
    for entry in left:
        broken.setdefault(module_of_plane[entry.plane.name], entry)
    kept: list[DensePlane] = []
    dropped: list[LeftDense] = []
    for plane in wanted:
        module = module_of_plane[plane.name]
        if (first := broken.get(module)) is None:
            kept.append(plane)
        else:
            because = f"{module} stays dense as a whole because of {first.plane.name}: {first.reason}"
            dropped.append(LeftDense(plane, because))
    return kept, dropped


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
    refused: Mapping[str, str] = MappingProxyType({}),
    otherwise: Sequence[LeftDense] = (),
) -> Selection:
    """Choose among the dense planes of a checkpoint; of those in `doubtful` the order of the scales is unknown.

    `count_exceptions` encodes planes to see how many exceptions each has. With `module_of_plane` (for the
    Hugging Face layout) modules are weighed, and compressed, whole or not at all: a plane that grows goes along
    where its module shrinks. Planes in `refused`, and `otherwise`, stay dense whatever the rules say.
    """
    left, wanted = [], []
    for plane in planes:
        if reason := rules.refusal(plane, doubtful.get(plane.name), experts) or refused.get(plane.name):
            left.append(LeftDense(plane, reason))
        else:
            wanted.append(plane)
    if module_of_plane is not None:
        wanted, dropped = _in_whole_modules(wanted, [*left, *otherwise], module_of_plane)
        left += dropped
    exceptions = count_exceptions(wanted)
    reasons = {} if rules.keep_larger else _growing(wanted, exceptions, module_of_plane)
    left += [LeftDense(plane, reasons[plane.name]) for plane in wanted if plane.name in reasons]
    chosen = [plane for plane in wanted if plane.name not in reasons]
    return Selection(exceptions, chosen, [*left, *otherwise])
