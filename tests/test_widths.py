"""Tables fit 80 columns, and no name is broken or cut off, however long it is and however large numbers are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import RenderableType

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import GroupBy
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.look.inspection import Inspected, inspect_plane
from csf_tool.look.plan import Plan, Stack, make_plan
from csf_tool.look.scale_bytes import ByteCounts, LayerFormat, ScaleBytes
from csf_tool.look.stats import Projection, Stats, Totals, collect_stats
from csf_tool.report.inspection import plane_report
from csf_tool.report.plan import plan_report
from csf_tool.report.stats import stats_report
from csf_tool.report.table import Table
from tests import building

LONG = "model." + "a_module_with_a_long_name." * 6 + "layers.0"
TERABYTES = 1_023 << 40
BILLIONS = 9_999_999_999


def shown(report: list[RenderableType]) -> str:
    """The tables of a report as a terminal of 80 columns has them."""
    return "\n".join(str(line) for part in report if isinstance(part, Table) for line in part.lines(80))


def require_whole(text: str, *cells: str) -> None:
    """Every cell is there in one piece; no line is too long but for that of a name, and none was cut."""
    assert all(len(line) <= 80 or " " not in line for line in text.splitlines())
    assert "…" not in text
    for cell in cells:
        assert cell in text, cell


@pytest.fixture
def long_names(tmp_path: Path) -> Path:
    """A checkpoint whose layer has a name of 170 letters, and whose shard has one of 230."""
    shard = f"{'shard_' * 36}.safetensors"
    tensors = [
        tensor
        for expert in range(2)
        for projection in ("gate_proj", "up_proj", "down_proj")
        for tensor in building.matrix(f"{LONG}.experts.{expert}.{projection}", building.NVFP4, expert, rows=32)
    ]
    return building.write_hf(tmp_path / "csf", {shard: building.compressed(tensors, building.NVFP4)})


@pytest.mark.parametrize("by", GroupBy)
def test_stats_of_long_names(long_names: Path, by: GroupBy) -> None:
    names = {"layer": LONG, "shard": "shard_" * 36 + ".safetensors", "projection": "down_proj 32x"}
    require_whole(shown(stats_report(collect_stats(open_checkpoint(long_names)), by)), names[by])


def test_stats_of_large_numbers() -> None:
    large = Totals(BILLIONS, TERABYTES, TERABYTES // 2, TERABYTES // 100)
    found = Stats(
        "x", "hf", "", 1, 1, large, Totals(), 2 * TERABYTES, {Projection("gate_proj", "nvfp4", 1 << 20, 4096): large}
    )
    counts = ByteCounts(np.full(256, BILLIONS), NVFP4)
    found.scale_bytes = ScaleBytes({LayerFormat(LONG, NVFP4): counts})
    text = shown(stats_report(found, GroupBy.PROJECTION))
    require_whole(text, "gate_proj", "1048576x4096", f"{BILLIONS:,}", "1023.00 TiB", f"{256 * BILLIONS:,}", LONG)


def test_plan_of_long_names_and_large_numbers(long_names: Path) -> None:
    require_whole(shown(plan_report(make_plan(open_checkpoint(long_names), gpu_memory=96 << 30))), "left of 96.00 GiB")
    stack = Stack(
        "layers.0", "gate_projection_of_a_kind_and_another_projection", NVFP4, 999_999, 1 << 20, 4096, TERABYTES
    )
    plan = Plan("x", "", 1, [stack] * 2, 2, TERABYTES, gpu_memory=TERABYTES)
    require_whole(shown(plan_report(plan)), stack.projection, "999,999", "1048576x4096", "1023.00 TiB")


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
def test_a_corner_of_the_longest_values(fmt: CsfFormat) -> None:
    """As many columns as fit, and a line above says which do not."""
    plane = inspect_plane(open_checkpoint(Path(__file__).parent / "data/samples/nvfp4-csf-hf").planes[0])
    byte = 129 if fmt is NVFP4 else 90  # -0.001953, 7.276e-12
    words = plane.positions.astype(np.uint32) | np.uint32(byte << 24)
    wide: Inspected = replace(plane, format=fmt, scales=np.full_like(plane.scales, byte), words=words)
    report = plane_report(wide, values=True)
    corner = report[-1]
    assert isinstance(corner, Table)
    assert report[-2] == f"{fmt.scale_type} values of the first 16 rows and 8 columns; * marks an exception:"
    text = shown([corner])
    require_whole(text, "(the terminal is too narrow for: ", "-0.001953" if fmt is NVFP4 else "7.276e-12")
    assert "7" in text.partition(")")[0]
