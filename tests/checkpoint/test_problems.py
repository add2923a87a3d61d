"""A checkpoint owns its problems: whoever reads a part of it adds to these, and a copy has its own."""

from dataclasses import fields, replace
from pathlib import Path

from csf_tool.checkpoint.container_layout import Container
from csf_tool.checkpoint.cross_check import cross_check
from csf_tool.checkpoint.open import open_checkpoint, open_listed
from csf_tool.checkpoint.problems import Problems, Severity, errors, warnings
from csf_tool.checkpoint.stored import Stored
from csf_tool.codes import Code
from tests.building import change_json, mini_container, shard_name, write_json

ONE = shard_name(1, 2)
SCALE = "model.layers.0.mlp.experts.0.gate_proj.weight_scale"


def spoilt(root: Path) -> Path:
    """A container with a fault of its manifest, its contract, a receipt, its record, a shard, and of the totals."""
    mini_container(root)
    change_json(root / "manifest.json", lambda m: m.update(status="other", original_scale_bytes=1))
    change_json(root / "manifest.json", lambda m: m["shards"][0].update(target_file_bytes=1))
    change_json(root / "build-contract.json", lambda c: c["source_names"].pop(SCALE))
    change_json(root / "verification.json", lambda v: v.update(passed=False))
    write_json(root / "receipts" / "x.json", {})
    (root / "tensors" / "more.safetensors").write_bytes((root / "tensors" / ONE).read_bytes())
    return root


def test_a_container_hands_every_problem_to_the_checkpoint(tmp_path: Path) -> None:
    assert "problems" not in {field.name for field in fields(Container)}
    problems = Problems()
    container = Container.read(spoilt(tmp_path), problems)
    read = list(problems)
    opened = open_listed(container, problems)
    assert opened.problems is problems
    assert opened.problems[: len(read)] == read
    assert {problem.code for problem in read} == {Code.INVALID_FIELD, Code.DOCUMENTS_CONTRADICT, Code.STRAY_RECEIPT}
    assert {problem.code for problem in problems[len(read) :]} == {
        Code.SHARD_NOT_IN_MANIFEST,
        Code.SIZE_DIFFERS,
        Code.CONTRACT_DIFFERS,
        Code.RECEIPT_DIFFERS,
        Code.DOCUMENTS_CONTRADICT,
    }


def test_what_is_found_of_a_copy_is_in_the_copy_and_all_of_it(tmp_path: Path) -> None:
    opened = open_checkpoint(spoilt(tmp_path))
    before = list(opened.problems)
    copy = replace(opened, problems=Problems())
    cross_check(copy, Stored(copy.shards))
    assert opened.problems == before
    assert copy.problems
    assert copy.problems == before[-len(copy.problems) :]
    left = before[: -len(copy.problems)]
    assert not {Code.SIZE_DIFFERS, Code.CONTRACT_DIFFERS} & {problem.code for problem in left}


def test_errors_and_warnings_are_told_apart() -> None:
    problems = Problems()
    problems.error("broken", Code.TRUNCATED, "a", "m")
    problems.warn("odd", Code.NO_INDEX)
    assert [str(problem) for problem in errors(problems)] == ["a: m: broken"]
    assert [(str(problem), problem.severity) for problem in warnings(problems)] == [("odd", Severity.WARNING)]
