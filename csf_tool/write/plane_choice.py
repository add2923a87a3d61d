"""The planes that `compress` writes, with their exceptions, as facts by which a later run goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.plane_tables import DensePlane
from csf_tool.checkpoint.stored import Located, Shard
from csf_tool.codec.formats import CsfFormat, format_by_name
from csf_tool.codes import Code
from csf_tool.errors import UsageError
from csf_tool.write.layout_choice import find_planes
from csf_tool.write.recipes import Recipes
from csf_tool.write.selection import LeftDense, Rules, idle_globs, left_otherwise, select, stay_dense
from csf_tool.write.targets import TargetLayout

_Counted = tuple[str, int, int, int]
"""Name of the format, rows, columns and exceptions of a plane."""


@dataclass(frozen=True)
class PlaneChoice:
    """The planes to compress, each with format, rows, columns and exceptions, and the source's shards, in order.

    `names` has the shard of every tensor of the source; `recipes`, the modules whose recipes are written into configs
    that state one algorithm for all. All of it is JSON, so that a run that goes on without some of the source's shards
    still knows it.
    """

    layout: str
    planes: dict[str, _Counted]
    shards: list[str]
    names: dict[str, str]
    recipes: list[str]

    @classmethod
    def of(cls, planes: dict[str, _Counted], checkpoint: Checkpoint, target: TargetLayout, recipes: Recipes) -> Self:
        """The choice of these planes."""
        names = {located.tensor.name: located.shard.name for located in checkpoint.tensors()}
        shards = [shard.name for shard in checkpoint.shards]
        return cls(target.layout.name, planes, shards, names, recipes.written)

    @classmethod
    def of_result(cls, result: Checkpoint, checkpoint: Checkpoint, target: TargetLayout, recipes: Recipes) -> Self:
        """The choice of the planes that a finished result holds: none has to be encoded to know its exceptions."""
        planes = {p.name: (p.fmt.name, p.rows, p.cols, p.exception_count) for p in result.planes}
        return cls.of(planes, checkpoint, target, recipes)

    @property
    def formats(self) -> list[CsfFormat]:
        """The formats of its planes."""
        return list(map(format_by_name, dict.fromkeys(name for name, *_ in self.planes.values())))

    def planes_of(self, shard: Shard) -> dict[str, DensePlane]:
        """The chosen planes among the tensors of a shard."""
        found = ((tensor, self.planes.get(tensor.name)) for tensor in shard.header)
        return {
            t.name: DensePlane(t.name, format_by_name(has[0]), has[1], has[2], Located(shard, t))
            for t, has in found
            if has
        }

    def scales(self) -> list[tuple[str, int, int]]:
        """The format's name, dense and stored bytes of every plane."""
        formats = {fmt.name: fmt for fmt in self.formats}
        return [
            (name, rows * cols, formats[name].csf_bytes(rows, cols, exceptions))
            for name, rows, cols, exceptions in self.planes.values()
        ]


def choose_planes(
    checkpoint: Checkpoint,
    target: TargetLayout,
    rules: Rules,
    recipes: Recipes,
    measure: Callable[[list[DensePlane]], dict[str, int]],
) -> tuple[PlaneChoice, list[LeftDense]]:
    """Choose the planes to compress, and list those that stay dense, each with the reason."""
    planes, doubtful, otherwise = checkpoint.dense_planes, checkpoint.doubtful, left_otherwise(checkpoint)
    modules, refused = None, {}
    if not target.layout.keeps_dense_files:
        modules = {p.name: recipes.whole_of(p.name) for p in (*planes, *(left.plane for left in otherwise))}
        if find_planes(checkpoint, rules, recipes):
            why = "no recipe covers it: readers of this layout would not find it (--to container compresses it)"
            refused = {p.name: why for p in planes if p.fmt.has_hf_readers and not recipes.cover(p.name)}
    selection = select(planes, rules, modules, measure, doubtful, checkpoint.experts, refused, otherwise)
    if not selection.chosen:
        why = "; ".join([stay_dense(selection.left), *idle_globs(rules, [left.plane.name for left in selection.left])])
        raise UsageError(f"0 planes matched: {why}", Code.NOTHING_MATCHED, checkpoint.label)
    chosen = {p.name: (p.fmt.name, p.rows, p.cols, selection.exceptions[p.name]) for p in selection.chosen}
    return PlaneChoice.of(chosen, checkpoint, target, recipes), selection.left
