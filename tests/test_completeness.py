"""Faults of completeness, each in every form of checkpoint, through every command; and what is no fault."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from csf_tool.checkpoint.causes import lines_of
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import Severity
from csf_tool.codes import INCOMPLETE, Code
from tests.building import BITS, MXFP4, NVFP4, Codec, Tensor, compressed, make_scales, matrix, shard_name, write_hf
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
    if is_error and written.exit_code == 0:
        assert "Note: the source lacks what its model needs, and so does the result" in written.output
    assert written.exit_code == int(not {p["code"] for p in problems} <= INCOMPLETE)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_a_sound_checkpoint_has_none(form: Form, tmp_path: Path) -> None:
    opened = open_checkpoint(form.write(tmp_path, form.tensors()))
    assert len(opened.planes) + len(opened.dense_planes) == LAYERS * EXPERTS * len(PROJECTIONS)
    assert {p.code for p in opened.problems} <= {Code.RECIPE_NOT_MARKED}
    assert not opened.incomplete


# What is no fault


def fp4(
    module: str, *, weight: str = "weight", scale: str = "weight_scale", codec: Codec = NVFP4, more: str = ""
) -> list[Tensor]:
    """An FP4 module, with the scalars in `more`."""
    return Form("", codec, weight=weight, scale=scale, others=tuple(more.split())).module(module, 5)


def plain(*names: str, dtype: str = "BF16", shape: tuple[int, ...] = (4, 64)) -> list[Tensor]:
    nbytes = BITS[dtype] // 8
    for n in shape:
        nbytes *= n
    return [Tensor(name, dtype, shape, bytes(nbytes)) for name in names]


ALL = "input_scale weight_scale_2"
EXPERT = "model.layers.{}.mlp.experts.{}.{}"

SOUND: dict[str, list[Tensor]] = {
    "some layers unquantised": fp4("l.0.mlp.up", more=ALL) + plain("l.1.mlp.up.weight"),
    "one expert unquantised": fp4("l.0.experts.0.up", more=ALL) + plain("l.0.experts.1.up.weight"),
    "an expert in FP8": fp4("l.0.experts.0.up", more=ALL)
    + plain("l.0.experts.1.up.weight", dtype="F8_E4M3")
    + plain("l.0.experts.1.up.weight_scale", "l.0.experts.1.up.input_scale", dtype="F32", shape=()),
    "FP8 in blocks of 128": fp4("l.0.experts.0.up", codec=MXFP4, scale="scale")
    + plain("l.0.attn.q.weight", dtype="F8_E4M3")
    + plain("l.0.attn.q.scale", dtype="F8_E8M0", shape=(1, 1)),
    "MXFP8 beside it": fp4("l.0.experts.0.up", codec=MXFP4, scale="scale")
    + plain("l.0.experts.1.up.weight", dtype="F8_E4M3")
    + plain("l.0.experts.1.up.scale", dtype="F8_E8M0", shape=(4, 2)),
    "INT8 with a scale a row": fp4("l.0.mlp.up", codec=MXFP4, scale="weight_scale")
    + plain("l.0.attn.q.weight", dtype="I8")
    + plain("l.0.attn.q.weight_scale", dtype="F32", shape=(4, 1)),
    "INT8 of the same shape": fp4("l.0.experts.0.up", codec=MXFP4, scale="scale")
    + plain("l.1.attn.up.weight", dtype="I8", shape=(ROWS, 256))
    + plain("l.1.attn.up.SCB", dtype="F32", shape=(ROWS,)),
    "bitsandbytes": fp4("l.0.mlp.up", more=ALL)
    + plain("l.1.mlp.up.weight", dtype="U8", shape=(512, 1))
    + plain("l.1.mlp.up.weight.absmax", dtype="U8", shape=(16,))
    + plain("l.1.mlp.up.weight.quant_map", dtype="F32", shape=(16,)),
    "AWQ beside it": fp4("l.0.mlp.up", more=ALL)
    + plain("l.1.mlp.up.qweight", "l.1.mlp.up.qzeros", dtype="I32")
    + plain("l.1.mlp.up.scales", dtype="F16"),
    "packed INT4 beside it": fp4("l.0.mlp.up", weight="weight_packed", more="weight_global_scale")
    + plain("l.1.mlp.up.weight_packed", dtype="I32")
    + plain("l.1.mlp.up.weight_scale", shape=(4, 2)),
    "weights alone in some layers": fp4("l.0.mlp.up", more=ALL) + fp4("l.1.mlp.up", more="weight_scale_2"),
    "weights alone in all experts": fp4("l.0.attn.q", more=ALL)
    + fp4("l.0.mlp.experts.0.up", more="weight_scale_2")
    + fp4("l.0.mlp.experts.1.up", more="weight_scale_2"),
    "input scales of gate and up alone": [
        t
        for e in range(3)
        for t in fp4(EXPERT.format(0, e, "gate_proj"), more=ALL)
        + fp4(EXPERT.format(0, e, "down_proj"), more="weight_scale_2")
        + plain(EXPERT.format(0, e, "up_proj") + ".weight")
    ],
    "pruned experts": [t for e in (0, 3, 7) for t in fp4(EXPERT.format(0, e, "up_proj"), more=ALL)],
    "layers with other numbers of experts": [
        t for layer, n in ((0, 4), (1, 2)) for e in range(n) for t in fp4(EXPERT.format(layer, e, "up_proj"), more=ALL)
    ],
    "shared experts of another width": fp4(EXPERT.format(0, 0, "up_proj"), more=ALL)
    + matrix("model.layers.0.mlp.shared_experts.up_proj", NVFP4, 1, rows=64, cols=4),
    "biases and a router": fp4(EXPERT.format(0, 0, "up_proj"), more=ALL)
    + plain(EXPERT.format(0, 0, "up_proj") + ".bias", shape=(ROWS,))
    + plain("model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.e_score_correction_bias"),
    "key and value scales": fp4("l.0.attn.k_proj", more=f"{ALL} k_scale") + fp4("l.1.attn.k_proj", more=ALL),
    "scales before quantisation": fp4("l.0.mlp.up", more=ALL) + plain("l.0.mlp.up.pre_quant_scale", shape=(64,)),
    "an MTP layer in BF16": fp4(EXPERT.format(0, 0, "up_proj"), more=ALL)
    + plain(EXPERT.format(1, 0, "up_proj") + ".weight"),
    "an MTP layer in MXFP4": fp4(EXPERT.format(0, 0, "up_proj"), more=ALL)
    + fp4(EXPERT.format(1, 0, "up_proj"), codec=MXFP4, scale="scale"),
    "a byte table": fp4("l.0.mlp.up", more=ALL) + plain("tok.table.weight", dtype="U8"),
    "norms called scale": fp4("l.0.mlp.up", more=ALL) + plain("l.0.norm.scale", dtype="F32", shape=(64,)),
    "layers that are not quantised first and last": fp4("l.1.mlp.up", more=ALL)
    + plain("l.0.mlp.up.weight", "l.2.mlp.up.weight"),
    "no numbers at all": fp4("up", more=ALL) + fp4("down", more=ALL),
    "no module around it": [replace(t, name=t.name.removeprefix("m.")) for t in fp4("m", more=ALL)],
    "padded scales": [
        *fp4("l.0.mlp.up", more=ALL),
        Tensor("l.1.mlp.up.weight", "U8", (100, 8 * COLS), b"\1" * 800 * COLS),
        Tensor("l.1.mlp.up.weight_scale", "F8_E4M3", (128, COLS), b"\1" * 128 * COLS),
        *plain("l.1.mlp.up.input_scale", "l.1.mlp.up.weight_scale_2", dtype="F32", shape=()),
    ],
    "an F4 weight": [
        *plain("l.0.mlp.up.weight", dtype="U8", shape=(0, 8)),
        Tensor("l.1.mlp.up.weight", "F4", (16, 32), b"\1" * 256),
        Tensor("l.1.mlp.up.weight_scale", "F8_E4M3", (16, 2), b"\1" * 32),
    ],
}

SCHEMES = [
    "model.layers.{}.mlp.experts.{}.{}", "model.language_model.layers.{}.mlp.experts.{}.{}",
    "language_model.model.layers.{}.mlp.experts.{}.{}", "layers.{}.ffn.experts.{}.{}",
    "transformer.h.{}.mlp.experts.{}.{}", "model.layers.{}.block_sparse_moe.experts.{}.{}",
    "backbone.layers.{}.mixer.experts.{}.{}", "model.layers.{}.feed_forward.experts.{}.{}",
    "decoder.layers.{}.mlp.experts.local_experts.{}.{}", "model.decoder.layers_{}.experts_{}.{}",
    "blocks.{}.moe.expert-{}.{}", "mtp.layers.{}.mlp.experts.{}.{}", "{}.{}.{}", "a{}.b{}.{}",
    "model.layers.{}.mlp.experts.{}.{}.base_layer", "thinker.model.layers.{}.mlp.experts.{}.{}",
]  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("is_csf", [False, True], ids=["dense", "csf"])
def test_other_ways_to_store_weights_are_no_fault(name: str, is_csf: bool, tmp_path: Path) -> None:
    form = replace(MODEL_OPT, is_csf=is_csf and "padded" not in name and "MTP layer in MXFP4" not in name)
    stored = [t for t in SOUND[name] if t.data]
    opened = open_checkpoint(_write(form, tmp_path, stored))
    assert [str(p) for p in opened.problems if p.code in INCOMPLETE] == []


def _write(form: Form, root: Path, tensors: list[Tensor]) -> Path:
    """As `Form.write`, with a stream for FP4's block scales alone."""
    stored: list[Tensor] = []
    names = {t.name: t for t in tensors}
    for tensor in tensors:
        module, _, last = tensor.name.rpartition(".")
        weight = names.get(f"{module}.weight", names.get(f"{module}.weight_packed"))
        codec = next((c for c in (NVFP4, MXFP4) if c.dtype == tensor.dtype and last in BLOCK_SCALES), None)
        is_fp4 = codec and weight and weight.dtype in ("U8", "I8") and tensor.shape[0] % 16 == 0
        stored += compressed([tensor], codec) if form.is_csf and codec and is_fp4 else [tensor]
    return write_hf(root, {shard_name(1, 1): stored}, config={"model_type": "mini"})


@pytest.mark.parametrize("pattern", SCHEMES)
@pytest.mark.parametrize("form", [MODEL_OPT, KIMI], ids=name_of)
def test_siblings_are_found_by_whatever_name(form: Form, pattern: str, tmp_path: Path) -> None:
    form = replace(form, pattern=pattern)
    assert not open_checkpoint(form.write(tmp_path / "sound", form.tensors())).incomplete
    lost = form.write(tmp_path / "lost", without("scale")(form, form.tensors()))
    assert open_checkpoint(lost).incomplete == {Code.WEIGHT_WITHOUT_SCALE: 1}


# Global scales and input scales that are no use


def replaced(last: str, dtype: str, *shape: int) -> Change:
    """The victim's scalar is of another dtype or shape."""

    def change(form: Form, tensors: list[Tensor]) -> list[Tensor]:
        [new] = plain(f"{form.victim}.{last}", dtype=dtype, shape=shape)
        return [new if t.name == new.name else t for t in tensors]

    return change


def in_all(last: str, dtype: str, *shape: int) -> Change:
    """All scalars of this name are of another dtype or shape."""

    def change(_: Form, tensors: list[Tensor]) -> list[Tensor]:
        return [plain(t.name, dtype=dtype, shape=shape)[0] if t.name.endswith(f".{last}") else t for t in tensors]

    return change


@pytest.mark.parametrize("form", [f for f in FORMS if f.others], ids=name_of)
@pytest.mark.parametrize("which", [0, 1], ids=["input", "global"])
@pytest.mark.parametrize(
    ("change", "dtype", "shape", "code", "severity"),
    [
        (replaced, "F32", (0,), Code.COMPANION_MISSING, Severity.ERROR),
        (replaced, "F32", (4, 0), Code.COMPANION_MISSING, Severity.ERROR),
        (in_all, "F32", (0,), Code.COMPANION_MISSING, Severity.ERROR),
        (replaced, "I32", (), Code.GLOBAL_SCALE, Severity.ERROR),
        (replaced, "U8", (4,), Code.GLOBAL_SCALE, Severity.ERROR),
        (in_all, "I32", (1,), Code.GLOBAL_SCALE, Severity.ERROR),
        (replaced, "F32", (2,), Code.GLOBAL_SCALE, Severity.ERROR),
        (replaced, "BF16", (ROWS, 1), Code.GLOBAL_SCALE, Severity.ERROR),
        (replaced, "F32", (1, 1), Code.GLOBAL_SCALE, Severity.WARNING),
        (in_all, "F32", (1, 1, 1), Code.GLOBAL_SCALE, Severity.WARNING),
        (in_all, "F32", (5,), Code.GLOBAL_SCALE, Severity.WARNING),
        (replaced, "F32", (1,), None, Severity.WARNING),
        (replaced, "BF16", (), None, Severity.WARNING),
        (in_all, "F16", (1,), None, Severity.WARNING),
        (in_all, "F32", (2,), None, Severity.WARNING),
        (in_all, "F32", (ROWS,), None, Severity.WARNING),
        (in_all, "F32", (ROWS, 1), None, Severity.WARNING),
    ],
)
def test_a_global_scale_is_one_number_that_readers_can_use(
    form: Form,
    which: int,
    change: Callable[..., Change],
    dtype: str,
    shape: tuple[int, ...],
    code: Code | None,
    severity: Severity,
    tmp_path: Path,
) -> None:
    """An input scale is only warned of; several numbers are right where all siblings have them."""
    root = form.write(tmp_path / "x", change(form.others[which], dtype, *shape)(form, form.tensors()))
    opened = open_checkpoint(root)
    found = [p for p in opened.problems if p.code in INCOMPLETE]
    assert {p.code for p in found} == ({code} if code else set())
    severity = severity if which else Severity.WARNING
    assert {p.severity for p in found} <= {severity}
    assert [p.tensor for p in found if form.victim in p.tensor] == [f"{form.victim}.{form.others[which]}"] * bool(code)
    assert run("verify", root).exit_code == int(bool(code) and severity is Severity.ERROR)
    done = run("expand" if form.is_csf else "compress", root, tmp_path / "out")
    assert done.exit_code == 0


@pytest.mark.parametrize("form", [f for f in FORMS if f.others], ids=name_of)
def test_a_second_scale_under_another_name_is_named(form: Form, tmp_path: Path) -> None:
    for pair in (GLOBALS, ("input_scale", "input_global_scale")):
        more = [Tensor(f"{form.victim}.{name}", "F32", (), b"\0\0\x80\x3f") for name in pair if name not in form.others]
        opened = open_checkpoint(form.write(tmp_path / pair[0], form.tensors() + more))
        [problem] = [p for p in opened.problems if p.code is Code.GLOBAL_SCALE]
        assert problem.severity is Severity.WARNING
        assert problem.tensor.startswith(form.victim)
        assert not opened.incomplete


# Block scales of a dtype or group that FP4 does not have


@pytest.mark.parametrize(
    ("dtype", "shape"), [("U8", (ROWS, COLS)), ("F8_E8M0", (ROWS, COLS)), ("F8_E4M3", (ROWS, COLS // 2))]
)
def test_labels_that_disagree_with_the_data_are_named(dtype: str, shape: tuple[int, int], tmp_path: Path) -> None:
    """A warning where all scales are so, an error where siblings are right; compress says why they stay."""

    def change(tensor: Tensor) -> Tensor:
        is_scale = tensor.name.endswith("weight_scale")
        return replace(tensor, dtype=dtype, shape=shape, data=b"\1" * shape[0] * shape[1]) if is_scale else tensor

    tensors = MODEL_OPT.tensors()
    root = MODEL_OPT.write(tmp_path / "all", list(map(change, tensors)))
    problems = [p for p in open_checkpoint(root).problems if p.code is Code.SCALE_LABEL]
    assert len(problems) == LAYERS * EXPERTS * len(PROJECTIONS)
    assert {p.severity for p in problems} == {Severity.WARNING}
    done = run("compress", root, tmp_path / "out")
    assert done.exit_code == 2
    assert "holds no FP4 block scales" not in done.output
    assert f"is {dtype} with one scale per" in done.output
    assert "24 block scales that do not fit their FP4 weights" in run("stats", root).output
    one = [change(t) if MODEL_OPT.victim in t.name else t for t in tensors]
    assert run("verify", MODEL_OPT.write(tmp_path / "one", one)).exit_code == 1


def test_compress_lists_a_scale_that_does_not_fit(tmp_path: Path) -> None:
    tensors = of_shape(ROWS, COLS // 2)(MODEL_OPT, MODEL_OPT.tensors())
    done = run("compress", MODEL_OPT.write(tmp_path / "x", tensors), tmp_path / "out", "--to", "container", "--json")
    left = json.loads(done.stdout)["left_dense"]
    reason = f"scale is {ROWS}x{COLS // 2}, but its weight needs {ROWS}x{COLS}"
    assert left == [{"tensor": f"{MODEL_OPT.victim}.weight_scale", "dense_bytes": ROWS * COLS // 2, "reason": reason}]
    lone = [t for t in tensors if t.name.startswith(f"{MODEL_OPT.victim}.")]
    lone += [t for t in tensors if "lm_head" in t.name]
    alone = run("compress", MODEL_OPT.write(tmp_path / "y", lone), tmp_path / "out 2")
    assert alone.exit_code == 2
    assert "1 block scale stays dense" in alone.output


def test_a_fault_of_many_is_a_problem_each_and_one_line(tmp_path: Path) -> None:
    tensors = [
        t for t in MODEL_OPT.tensors() if not (t.name.endswith("up_proj.weight_scale") and ".experts.0." not in t.name)
    ]
    opened = open_checkpoint(MODEL_OPT.write(tmp_path, tensors))
    lacking = [MODEL_OPT.pattern.format(i, j, "up_proj") for i in range(LAYERS) for j in range(1, EXPERTS)]
    assert opened.incomplete == {Code.WEIGHT_WITHOUT_SCALE: len(lacking)}
    found = [p for p in opened.problems if p.code is Code.WEIGHT_WITHOUT_SCALE]
    assert [p.tensor for p in found] == [f"{module}.weight" for module in lacking]
    [line] = lines_of(found)
    assert line.text.startswith(f"{shard_name(1, 1)}: {lacking[0]}.weight: has no block scale, but")
    names = ", ".join(f"{module}.weight" for module in lacking[1:])
    assert line.text.endswith(f"; and {len(lacking) - 1} more like it: {names}")


def test_nothing_is_called_lacking_that_may_lie_in_another_file(tmp_path: Path) -> None:
    weights = [t for t in MODEL_OPT.tensors() if not t.name.endswith("up_proj.weight_scale")]
    scales = [t for t in MODEL_OPT.tensors() if t.name.endswith("up_proj.weight_scale")]
    root = write_hf(tmp_path, {shard_name(1, 2): weights, shard_name(2, 2): scales})
    assert not open_checkpoint(root).incomplete
    assert not open_checkpoint(root / shard_name(1, 2)).incomplete
    (root / shard_name(2, 2)).unlink()
    assert not open_checkpoint(root).incomplete


def test_a_finished_run_over_an_incomplete_checkpoint_is_complete(tmp_path: Path) -> None:
    root = MODEL_OPT.write(tmp_path / "x", without("scale")(MODEL_OPT, MODEL_OPT.tensors()))
    for said in ("Wrote", "is already complete"):
        done = run("compress", root, tmp_path / "out", "--to", "container")
        assert done.exit_code == 0
        assert said in done.output


# What the config says


def uniform(*exceptions: str) -> dict[str, object]:
    return {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": exceptions}}


def grouped(*exceptions: str) -> dict[str, object]:
    groups = {"group_0": {"format": "nvfp4-pack-quantized", "targets": ["Linear"]}}
    return {
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": exceptions}
    }


def targeted(*targets: str) -> dict[str, object]:
    groups = {"group_0": {"format": "nvfp4-pack-quantized", "targets": targets}}
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": []}}


def by_layer(*modules: str) -> dict[str, object]:
    layers = {module: {"quant_algo": "NVFP4", "group_size": 16} for module in modules}
    return {"quantization_config": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}


FP4 = [t for layer in (1, 2, 3) for t in fp4(f"model.layers.{layer}.mlp.up_proj", more=ALL)]
PLAIN = plain("model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight")
ALL_FP4 = [f"model.layers.{layer}.mlp.up_proj" for layer in (1, 2, 3)]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, ""),
        ({"quantization_config": {"quant_method": "fp8", "ignore": ["model.layers.1"]}}, ""),
        (uniform(), "model.layers.0.mlp.up_proj"),
        (uniform("model.layers.0.mlp.up_proj"), ""),
        (uniform("model.layers.0*"), ""),
        (uniform("layers.0.mlp"), ""),
        (uniform("*layers.0.*", "*layers.2.*"), "model.layers.2.mlp.up_proj"),
        (uniform("model.layers.0", "model.layers.3"), "model.layers.3.mlp.up_proj"),
        (uniform("model.layers.0", "model.layers.3.self_attn", "lm_head", "*"), ""),
        (grouped(), "model.layers.0.mlp.up_proj"),
        (grouped("re:.*layers\\.0\\..*", "lm_head"), ""),
        (grouped("re:.*layers\\.[0-3]\\.self_attn.*", "model.layers.0.mlp.up_proj"), ""),
        (grouped("re:model\\.layers\\.0\\.(mlp|self_attn)\\..*$"), ""),
        (grouped("model.layers.0.mlp.up_proj", "re:.*layers\\.1\\.mlp.*"), "model.layers.1.mlp.up_proj"),
        (grouped("re:" + "(a*)*" * 90 + "b", "model.layers.0.mlp.up_proj"), ""),
        (uniform("language_model.model.layers.0.mlp.up_proj"), ""),
        (uniform("language_model.model.layers.0*"), ""),
        (uniform("language_model.model.layers.1*"), "model.layers.0.mlp.up_proj"),
        (grouped("re:^language_model\\.model\\.layers\\.0\\..*"), ""),
        (grouped("re:.*layers\\.(0|5)\\.mlp.*"), ""),
        (grouped("re:.*layers\\.\\d+\\.self_attn.*", "model.layers.0.mlp.up_proj"), ""),
        (grouped("re:.*layers\\.[05]\\.mlp\\.up_proj"), ""),
        (grouped("model.layers.0.mlp.gate_up_proj"), ""),
        (grouped("model.layers.0.self_attn.qkv_proj"), "model.layers.0.mlp.up_proj"),
        (targeted("Linear"), "model.layers.0.mlp.up_proj"),
        (targeted("re:.*layers\\.[1-3]\\..*"), ""),
        (targeted(*ALL_FP4), ""),
        (by_layer(*ALL_FP4), ""),
        (by_layer(*ALL_FP4, "model.layers.0.mlp"), "model.layers.0.mlp.up_proj"),
        (by_layer(*ALL_FP4, "model.layers.0.self_attn.q_proj"), "model.layers.0.self_attn.q_proj"),
        (by_layer(*ALL_FP4[:2]), ALL_FP4[2]),
        (by_layer("another.model"), ""),
    ],
)
def test_what_the_config_says_is_quantised_is(config: dict[str, object], named: str, tmp_path: Path) -> None:
    root = write_hf(tmp_path, {shard_name(1, 1): FP4 + PLAIN}, config={"model_type": "mini", **config})
    found = [p for p in open_checkpoint(root).problems if p.code is Code.CONFIG_PRECISION]
    assert [p.tensor for p in found] == ([named] if named else [])
    assert {p.severity for p in found} <= {Severity.WARNING}
    assert run("verify", root, "--quick").exit_code == 0


@pytest.mark.parametrize(
    ("layers", "is_named"),
    [
        ({}, True),
        ({"num_hidden_layers": 5}, True),
        ({"num_hidden_layers": 4}, False),
        ({"text_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 2}}, False),
        ({"num_hidden_layers": "4"}, True),
    ],
)
def test_a_draft_layer_may_be_plain(layers: dict[str, object], is_named: bool, tmp_path: Path) -> None:
    tensors = FP4 + plain("model.layers.4.mlp.up_proj.weight")
    root = write_hf(tmp_path, {shard_name(1, 1): tensors}, config={"model_type": "mini", **uniform(), **layers})
    found = [p.tensor for p in open_checkpoint(root).problems if p.code is Code.CONFIG_PRECISION]
    assert found == (["model.layers.4.mlp.up_proj"] if is_named else [])


# Experts and projections that are missing from all layers alike


def only(*layers: int, without: Callable[[int, int], bool]) -> list[tuple[int, int, str]]:
    """The places of layers, experts and projections that are left."""
    places = [(layer, e, p) for layer in layers for e in range(EXPERTS) for p in PROJECTIONS]
    return [place for place in places if not without(*place[:2])]


ALL_BUT: dict[str, tuple[list[tuple[int, int, str]], Severity]] = {
    "expert 1 of all layers": (only(0, 1, without=lambda _, e: e == 1), Severity.ERROR),
    "expert 2 of the only layer": (only(0, without=lambda _, e: e == 2), Severity.ERROR),
    "expert 0 of all layers": (only(0, 1, without=lambda _, e: e == 0), Severity.ERROR),
    "expert 1 of one layer": (only(0, 1, without=lambda layer, e: (layer, e) == (1, 1)), Severity.ERROR),
    "the last expert of one layer": (only(0, 1, without=lambda layer, e: (layer, e) == (1, 3)), Severity.ERROR),
    "the last expert of all layers": (only(0, 1, without=lambda _, e: e == 3), Severity.WARNING),
    "different experts": (only(0, 1, without=lambda layer, e: layer == e), Severity.ERROR),
}
KEYS = ["num_experts", "n_routed_experts", "num_local_experts"]


def of_places(form: Form, places: list[tuple[int, int, str]]) -> list[Tensor]:
    kept = {form.pattern.format(*place) + "." for place in places}
    return [t for t in form.tensors() if not any(p in t.name for p in PROJECTIONS) or any(map(t.name.startswith, kept))]


def config_of(root: Path, config: dict[str, object]) -> Path:
    (root / "config.json").write_text(json.dumps({"model_type": "mini", **config}))
    return root


@pytest.mark.parametrize("name", ALL_BUT)
@pytest.mark.parametrize("form", [MODEL_OPT, KIMI, replace(MODEL_OPT, is_csf=True)], ids=name_of)
@pytest.mark.parametrize(
    "pattern", ["model.layers.{}.mlp.experts.{}.{}", "blocks.{}.moe.expert-{}.{}", "l.{}.experts.{}.{}"]
)
def test_experts_that_the_config_states_are_there(name: str, form: Form, pattern: str, tmp_path: Path) -> None:
    places, severity = ALL_BUT[name]
    form = replace(form, pattern=pattern)
    root = form.write(tmp_path / "x", of_places(form, places))
    assert not open_checkpoint(root).incomplete
    key = KEYS[len(name) % 3]
    stated: list[dict[str, object]] = [{key: EXPERTS}, {"text_config": {key: EXPERTS}}]
    for config in stated:
        opened = open_checkpoint(config_of(root, config))
        found = [p for p in opened.problems if p.code is Code.EXPERT_MISSING]
        assert len(found) == opened.incomplete[Code.EXPERT_MISSING] > 0
        assert {p.severity for p in found} == {severity}
        assert all(f"{EXPERTS} ({key})" in p.problem for p in found)


def test_missing_experts_are_named_by_every_command(tmp_path: Path) -> None:
    form = replace(MODEL_OPT, is_csf=True)
    root = config_of(form.write(tmp_path / "x", of_places(form, ALL_BUT["expert 1 of all layers"][0])), {KEYS[0]: 4})
    said = "model.layers.0.mlp.experts has 3 experts, but config.json states 4 (num_experts): 1 is missing"
    verified = run("verify", root)
    assert verified.exit_code == 1
    expanded = run("expand", root, tmp_path / "dense")
    compressed_again = run("compress", tmp_path / "dense", tmp_path / "container", "--to", "container")
    assert (expanded.exit_code, compressed_again.exit_code) == (0, 0)
    container = run("stats", tmp_path / "container")
    for done in (verified, expanded, compressed_again, container, run("stats", root)):
        assert said in done.output


@pytest.mark.parametrize(
    "config", [{}, {"num_experts": 4}, {"num_experts": [4, 4]}, {"num_experts": None}, {"num_experts": 0}]
)
@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_all_experts_are_enough(form: Form, config: dict[str, object], tmp_path: Path) -> None:
    opened = open_checkpoint(config_of(form.write(tmp_path, form.tensors()), config))
    assert [p for p in opened.problems if p.code in INCOMPLETE] == []


def test_more_experts_than_stated_are_odd(tmp_path: Path) -> None:
    opened = open_checkpoint(config_of(MODEL_OPT.write(tmp_path, MODEL_OPT.tensors()), {"num_experts": 3}))
    assert {p.severity for p in opened.problems if p.code is Code.EXPERT_MISSING} == {Severity.WARNING}
    assert not opened.incomplete


def test_experts_that_are_not_quantised_count(tmp_path: Path) -> None:
    tensors = of_places(MODEL_OPT, ALL_BUT["expert 2 of the only layer"][0])
    tensors += plain(*(f"{EXPERT.format(0, 2, p)}.weight" for p in PROJECTIONS))
    opened = open_checkpoint(config_of(MODEL_OPT.write(tmp_path, tensors), {"num_experts": EXPERTS}))
    assert not opened.incomplete


@pytest.mark.parametrize("form", [MODEL_OPT, KIMI, replace(KIMI, is_csf=True)], ids=name_of)
@pytest.mark.parametrize("pattern", ["model.layers.{}.mlp.experts.{}.{}", "model.layers.{}.mlp{}.{}"])
@pytest.mark.parametrize("lacking", ["up_proj", "down_proj", "gate_proj", "w1", "w2", "w3"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_projection_that_is_nowhere_is_missed(
    form: Form, pattern: str, lacking: str, layers: int, tmp_path: Path
) -> None:
    """A block without a gate is sound: not every model has one."""
    names = dict(zip(PROJECTIONS, ("w1", "w3", "w2"), strict=True)) if lacking[0] == "w" else {}
    form = replace(form, pattern=pattern)
    tensors = [
        replace(t, name=t.name.replace(old, names.get(old, old)))
        for t in form.tensors()
        for old in PROJECTIONS
        if old in t.name and f".{layers - 1}." >= f".{t.name.split('.')[2]}."
    ]
    root = form.write(tmp_path, [t for t in tensors if f".{lacking}." not in t.name])
    opened = open_checkpoint(root)
    has_gate = lacking not in ("gate_proj", "w1")
    assert opened.incomplete == ({Code.COMPANION_MISSING: layers * EXPERTS} if has_gate else {})
    assert ("although" in run("verify", root).output) == has_gate
    other = plain(*(t.name.rpartition(".")[0].rpartition(".")[0] + f".{lacking}.weight" for t in tensors))
    tensors = [t for t in tensors if f".{lacking}." not in t.name] + list({t.name: t for t in other}.values())
    assert not open_checkpoint(form.write(tmp_path / "plain", tensors)).incomplete
