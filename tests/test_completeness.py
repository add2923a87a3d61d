"""Faults of completeness, each in every form of checkpoint, through every command; and what is no fault."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import Severity
from csf_tool.codes import INCOMPLETE, Code
from tests.building import MXFP4, NVFP4, Codec, Tensor, compressed, make_scales, matrix, shard_name, write_hf
from tests.commands import run

LAYERS, EXPERTS, ROWS, COLS = 2, 4, 32, 16
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
BLOCK_SCALES = ("weight_scale", "scale")
GLOBALS = ("weight_scale_2", "weight_global_scale")


@dataclass(frozen=True)
class Form:
    """How a checkpoint names and stores its FP4 weights; `others` are FP32 scalars beside them."""

    name: str
    codec: Codec
    weight: str = "weight"
    scale: str = "weight_scale"
    others: tuple[str, ...] = ()
    pattern: str = "model.layers.{}.mlp.experts.{}.{}"
    is_csf: bool = False

    @property
    def victim(self) -> str:
        """The module that faults are done to."""
        return self.pattern.format(1, 2, "up_proj")

    @property
    def global_scale(self) -> str:
        return next((other for other in self.others if other in GLOBALS), "")

    def tensors(self) -> list[Tensor]:
        """The sound model, dense."""
        tensors = [Tensor("lm_head.weight", "BF16", (4, 64), bytes(512))]
        for layer in range(LAYERS):
            tensors.append(Tensor(f"model.layers.{layer}.mlp.gate.weight", "BF16", (EXPERTS, 64), bytes(512)))
            for expert in range(EXPERTS):
                for i, projection in enumerate(PROJECTIONS):
                    module = self.pattern.format(layer, expert, projection)
                    tensors += self.module(module, 100 * layer + 10 * expert + i)
        return tensors

    def module(self, module: str, seed: int) -> list[Tensor]:
        found = {t.name.removeprefix(f"{module}."): t for t in matrix(module, self.codec, seed, rows=ROWS, cols=COLS)}
        scale = found["scale" if self.codec is MXFP4 else "weight_scale"]
        scalars = [Tensor(f"{module}.{other}", "F32", (), b"\0\0\x80\x3f") for other in self.others]
        weight = replace(found["weight"], name=f"{module}.{self.weight}")
        return [weight, replace(scale, name=f"{module}.{self.scale}"), *scalars]

    def write(self, root: Path, tensors: list[Tensor]) -> Path:
        """Write tensors, block scales as streams where the form has them so."""
        stored = []
        for tensor in tensors:
            is_scale = tensor.name.endswith(f".{self.scale}") and len(tensor.shape) == 2 and self.is_csf
            stored += compressed([replace(tensor, dtype=self.codec.dtype)], self.codec) if is_scale else [tensor]
        return write_hf(root, {shard_name(1, 1): stored}, config={"model_type": "mini"})


MODEL_OPT = Form("ModelOpt", NVFP4, others=("input_scale", "weight_scale_2"))
COMPRESSED_TENSORS = Form(
    "compressed-tensors", NVFP4, weight="weight_packed", others=("input_global_scale", "weight_global_scale")
)
DEEP_SEEK = Form("DeepSeek", MXFP4, scale="scale")
KIMI = Form("compressed-tensors MXFP4", MXFP4, weight="weight_packed")
DENSE = (MODEL_OPT, COMPRESSED_TENSORS, DEEP_SEEK, KIMI)
FORMS = [*DENSE, *(replace(form, name=f"{form.name}, CSF", is_csf=True) for form in DENSE)]

Change = Callable[[Form, list[Tensor]], list[Tensor]]


def without(*lasts: str) -> Change:
    """The victim's tensors of these names are gone."""

    def change(form: Form, tensors: list[Tensor]) -> list[Tensor]:
        gone = {f"{form.victim}.{getattr(form, last)}" for last in lasts}
        assert gone < {t.name for t in tensors}
        return [t for t in tensors if t.name not in gone]

    return change


def without_inputs(form: Form, tensors: list[Tensor]) -> list[Tensor]:
    return [t for t in tensors if not (t.name.startswith(f"{form.victim}.") and ".input" in t.name)]


def without_module(form: Form, tensors: list[Tensor]) -> list[Tensor]:
    return [t for t in tensors if not t.name.startswith(f"{form.victim}.")]


def of_shape(rows: int, cols: int) -> Change:
    """The victim's scale is of another shape."""

    def change(form: Form, tensors: list[Tensor]) -> list[Tensor]:
        data = make_scales(rows, cols, form.codec, 3)
        scale = Tensor(f"{form.victim}.{form.scale}", form.codec.dtype, (rows, cols), data)
        return [scale if t.name == scale.name else t for t in tensors]

    return change


def narrower_weight(form: Form, tensors: list[Tensor]) -> list[Tensor]:
    return [_narrower(t) if t.name == f"{form.victim}.{form.weight}" else t for t in tensors]


def _narrower(tensor: Tensor) -> Tensor:
    rows, columns = tensor.shape
    return replace(tensor, shape=(rows, columns // 2), data=tensor.data[: rows * columns // 2])


def plain_weight(form: Form, tensors: list[Tensor]) -> list[Tensor]:
    weight = Tensor(f"{form.victim}.{form.weight}", "BF16", (ROWS, 128), b"\1" * 256 * ROWS)
    return [weight if t.name == weight.name else t for t in tensors]


@dataclass(frozen=True)
class Fault:
    """What is done, and of which kind it is; `csf` are the kinds that it is of where the scales are streams."""

    name: str
    change: Change
    code: Code
    severity: Severity = Severity.ERROR
    csf: tuple[Code, ...] = ()
    has: Callable[[Form], bool] = field(default=lambda _: True)


STREAMS = (Code.GEOMETRY_CONTRADICTS, Code.STREAM_SIZE)

FAULTS = [
    Fault("no scale", without("scale"), Code.WEIGHT_WITHOUT_SCALE),
    Fault("half the columns", of_shape(ROWS, COLS // 2), Code.SCALE_SHAPE, csf=STREAMS),
    Fault("twice the columns", of_shape(ROWS, COLS * 2), Code.SCALE_SHAPE, csf=STREAMS),
    Fault("half the rows", of_shape(ROWS // 2, COLS), Code.SCALE_SHAPE, csf=STREAMS),
    Fault("a narrower weight", narrower_weight, Code.SCALE_SHAPE, csf=(*STREAMS, Code.NOT_FP4_WEIGHT)),
    Fault(
        "no weight",
        without("weight"),
        Code.SCALE_WITHOUT_WEIGHT,
        csf=(Code.GEOMETRY_UNKNOWN, Code.SCALE_WITHOUT_WEIGHT),
    ),
    Fault("a BF16 weight", plain_weight, Code.SCALE_WITHOUT_WEIGHT, csf=(Code.NOT_FP4_WEIGHT, Code.GEOMETRY_UNKNOWN)),
    Fault("no global scale", without("global_scale"), Code.COMPANION_MISSING, has=lambda form: bool(form.global_scale)),
    Fault(
        "no input scale", without_inputs, Code.COMPANION_MISSING, Severity.WARNING, has=lambda form: bool(form.others)
    ),
    Fault("no projection", without_module, Code.COMPANION_MISSING),
]
CASES = [(form, fault) for form in FORMS for fault in FAULTS if fault.has(form)]


def name_of(case: object) -> str:
    return getattr(case, "name", "")


@pytest.mark.parametrize(("form", "fault"), CASES, ids=name_of)
def test_a_fault_is_named_by_every_command(form: Form, fault: Fault, tmp_path: Path) -> None:
    root = form.write(tmp_path / "x", fault.change(form, form.tensors()))
    codes = fault.csf if form.is_csf and fault.csf else (fault.code,)
    stats, verified = run("stats", root, "--json"), run("verify", root, "--json")
    is_error = fault.severity is Severity.ERROR
    assert (stats.exit_code, verified.exit_code) == (int(is_error), int(is_error))
    document = json.loads(stats.stdout)
    problems = [p for p in document["problems"] if p["code"] in codes]
    assert {p["severity"] for p in problems} == {fault.severity}
    assert [p for p in document["problems"] if form.victim.rpartition(".")[0] in p["tensor"] + p["problem"]]
    structure = json.loads(verified.stdout)["checks"][0]
    found = [p["code"] for p in structure["failures" if is_error else "warnings"] if is_error or p["code"] in codes]
    assert found == [p["code"] for p in problems]
    if set(codes) <= INCOMPLETE:
        assert document["incomplete"] == {fault.code.value: 1}
        assert "It is not complete" in run("stats", root).output
    written = run(
        "expand" if form.is_csf else "compress", root, tmp_path / "out", *([] if form.is_csf else ["--to", "container"])
    )
    assert form.victim.rpartition(".")[0] in written.output
    assert written.exit_code == (0 if {p["code"] for p in problems} <= {c.value for c in INCOMPLETE} else 1), (
        written.output
    )


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_a_sound_checkpoint_has_none(form: Form, tmp_path: Path) -> None:
    opened = open_checkpoint(form.write(tmp_path, form.tensors()))
    assert len(opened.planes) + len(opened.dense_planes) == LAYERS * EXPERTS * len(PROJECTIONS)
    assert {p.code for p in opened.problems} <= {Code.RECIPE_NOT_MARKED}
    assert not opened.incomplete
