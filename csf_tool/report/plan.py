"""The report of `plan`."""

from rich.console import RenderableType

from csf_tool.checkpoint.causes import sentences_of
from csf_tool.look.plan import MOST_GPUS, Plan, Stack
from csf_tool.report.table import Table
from csf_tool.text import count, escape, percent, size, sizes


def plan_report(plan: Plan) -> list[RenderableType]:
    """The report for people: the two strategies side by side, and the stacks by kind."""
    each = f", on each of {plan.tp} GPUs" if plan.tp > 1 else ""
    stacks = len(plan.stacks)
    resident = f"{plan.resident} of its {stacks} stacks" if plan.resident < stacks else f"all {count(stacks, 'stack')}"
    lines: list[RenderableType] = [
        f"{escape(plan.path)}: {plan.kind}",
        f"Block scales of {resident} in GPU memory{each}:",
        "",
        _comparison(plan),
        "",
        _verdict(plan),
        *_fit(plan),
        "",
        _kinds(plan.stacks),
    ]
    if plan.undivided:
        lines += ["", *(f"These stay whole on each GPU: {line}." for line in sentences_of(plan.undivided))]
    return lines


def _comparison(plan: Plan) -> Table:
    used = [plan.dense_bytes, plan.kept_bytes]
    rows = {
        "scales": [plan.dense_bytes, plan.compressed_bytes],
        "workspace": [0, plan.workspace_bytes],
        "together": used,
    }
    if plan.gpu_memory:
        rows["all other tensors"] = [plan.tensor_bytes] * 2
        rows[f"left of {size(plan.gpu_memory)}"] = list(plan.left_bytes)
    result = Table("GPU memory", "decoded when loading", "kept compressed")
    columns = [[_or_too_much(cell) for cell in sizes(column)] for column in zip(*rows.values(), strict=True)]
    for name, *cells in zip(rows, *columns, strict=True):
        result.add_row(name, *cells)
    return result


def _verdict(plan: Plan) -> str:
    saved = plan.saved_bytes
    share = percent(abs(saved), plan.dense_bytes)
    here = (
        f"Keeping them compressed saves {size(saved)} ({share})"
        if saved > 0
        else (f"Keeping them compressed takes {size(-saved)} more ({share})")
    )
    if plan.wins_from is None:
        return f"{here}; it never saves memory for this checkpoint."
    return f"{here}; it saves memory from {count(plan.wins_from, 'resident stack')} on."


def _or_too_much(cell: str) -> str:
    """A size of which less than nothing is left, as what is too much."""
    return f"{cell[1:]} too much" if cell.startswith("-") else cell


def _fit(plan: Plan) -> list[str]:
    """A sentence on what does not fit into the memory of a GPU, and from which --tp on it does."""
    if not plan.gpu_memory or min(plan.left_bytes) >= 0:
        return []
    expanded, compressed = (_from(tp, plan) for tp in plan.fits_from)
    if expanded == compressed:
        return [f"It fits {expanded}."]
    return [f"Kept compressed, it fits {compressed}; decoded when loading, {expanded}."]


def _from(tp: int | None, plan: Plan) -> str:
    """The --tp with which a strategy fits."""
    if tp is None:
        return f"with no --tp up to {MOST_GPUS}"
    return "as it is" if tp == plan.tp else f"from --tp {tp} on"


def _kinds(stacks: list[Stack]) -> Table:
    """The stacks by what they have in common; sizes are those of one, the mean where they differ."""
    several = len({stack.format for stack in stacks}) > 1
    kinds: dict[tuple[str, int, int, int], list[Stack]] = {}
    for stack in stacks:
        name = f"{stack.projection}, {stack.format.title}" if several else stack.projection
        kinds.setdefault((name, stack.experts, stack.rows, stack.cols), []).append(stack)
    dense = sizes([alike[0].dense_bytes for alike in kinds.values()])
    mean = sizes([sum(stack.compressed_bytes for stack in alike) // len(alike) for alike in kinds.values()])
    result = Table("stack", "number", "experts", "plane", "dense", "compressed")
    for ((name, experts, rows, cols), alike), *cells in zip(kinds.items(), dense, mean, strict=True):
        result.add_row(escape(name), f"{len(alike):,}", f"{experts:,}", f"{rows}x{cols}", *cells)
    return result
