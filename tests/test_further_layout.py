"""What docs/architecture.md says of a further layout: one class, listed once, and everything that reads works on it."""

import ast
import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from huggingface_hub import snapshot_download

import csf_tool
from csf_tool.checkpoint.known_layouts import LAYOUTS
from csf_tool.checkpoint.layout import Folder, Layout
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import Problems
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.checkpoint.stored import Shard
from csf_tool.choices import CompressTo
from csf_tool.codec.formats import CsfFormat
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.json_files import load_json, render_json
from csf_tool.documents.written import compress_document
from csf_tool.errors import CheckpointError
from csf_tool.progress import Silent
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.journal import Record
from csf_tool.write.output import Output
from csf_tool.write.targets import TARGETS, Statement, TargetLayout
from tests.building import tree, write_json
from tests.commands import run, says
from tests.fixture_types import Copied, Sample
from tests.hub_server import Hub


class Shelf(Layout):
    """Shards in weights/, the model's files in model/, and a list of the shards with their hashes."""

    name = "shelf"
    words = "shelf"
    shard_folder = "weights"
    main_document = "shelf.json"
    own_files = frozenset({"shelf.json"})
    identity_scheme = "shelf-v1"
    keeps_dense_files = True
    expects_config = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.digests: dict[str, str] = load_json(root / self.main_document, self.main_document)

    @classmethod
    def recognised(cls, folder: Folder, problems: Problems) -> "Shelf | None":
        if not (folder.path / cls.main_document).exists():
            return None
        shelf = cls(folder.path)
        if not shelf.digests:
            problems.warn("is an empty shelf", Code.INVALID_FIELD, cls.main_document)
            return None
        return shelf

    @classmethod
    def has_remains(cls, path: Path) -> bool:
        return (path / cls.shard_folder).is_dir()

    @classmethod
    def is_document(cls, name: str) -> bool:
        return name == cls.main_document

    @classmethod
    def needed_of(cls, root: Path) -> tuple[list[str], list[str]] | None:
        if not (root / cls.main_document).exists():
            return None
        return list(map(cls.stored_name, cls(root).digests)), []

    @property
    def listed(self) -> Collection[str]:
        return self.digests

    @property
    def origin(self) -> str:
        return "org/dense@1"

    @property
    def model_root(self) -> Path:
        return self.root / "model"

    def model_files(self) -> dict[str, Path]:
        return {path.name: path for path in self.model_root.iterdir()}

    def shard_hashes(self) -> list[PublishedHash]:
        return [PublishedHash(self.stored_name(n), "sha256", d, self.main_document) for n, d in self.digests.items()]


class ShelfTarget(TargetLayout):
    """A shelf as it is written, its list last."""

    layout = Shelf

    def refusal(self, formats: Sequence[CsfFormat], shards: Sequence[Shard]) -> str:  # noqa: ARG002 (see TargetLayout)
        return ""

    def placed(self, files: Sequence[SideFile]) -> list[SideFile]:
        return [replace(file, folder="model") for file in files]

    def compressed(self, output: Output, statement: Callable[[], Statement]) -> Output:  # noqa: ARG002
        def documents(records: Mapping[str, Record], _: Path) -> list[SideFile]:
            digests = {Shelf.dense_name(name): record.sha256 for name, record in records.items()}
            return [SideFile.new(Shelf.main_document, render_json(digests))]

        return replace(output, documents=documents, document_names=Shelf.own_files, wants_hashes=True)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(TARGETS, "shelf", ShelfTarget())
    LAYOUTS.insert(0, Shelf)
    yield
    LAYOUTS.remove(Shelf)


@pytest.fixture
def shelf(sample: Sample, tmp_path: Path) -> Path:
    options = CompressOptions(cast("CompressTo", "shelf"))  # a word of `choices.py`, were it an option
    done = compress(
        open_checkpoint(sample("nvfp4-dense")), tmp_path / "shelf", options, NumpyEncoder(), NumpyDecoder(), Silent()
    )
    assert compress_document(done)["layout"] == "shelf"
    return tmp_path / "shelf"


def test_it_is_written_and_looked_at(shelf: Path) -> None:
    assert {path.name for path in shelf.iterdir()} - {".csf-tool"} == {"weights", "model", "shelf.json"}
    document = json.loads(run("stats", shelf, "--json").stdout)
    assert document["checkpoint"]["layout"] == "shelf"
    assert document["checkpoint"]["kind"] == "shelf, NVFP4 CSF"
    says(run("identity", shelf), "shelf-v1, digest-based: the bytes of the manifest")
    assert json.loads(run("inspect", shelf, "--json").stdout)


def test_it_is_verified(shelf: Path, sample: Sample) -> None:
    result = run("verify", shelf, "--against", sample("nvfp4-dense"), "--json")
    assert result.exit_code == 0
    checks = {check["name"]: check["status"] for check in json.loads(result.stdout)["checks"]}
    assert checks["stored"] == checks["against"] == "passed"
    shard = next((shelf / "weights").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    says(run("verify", shelf, "--json"), "(shelf.json)", f"weights/{shard.name}")


def test_it_is_expanded(shelf: Path, sample: Sample, tmp_path: Path) -> None:
    assert json.loads(run("expand", shelf, tmp_path / "dense", "--json").stdout)["origin"] == "org/dense@1"
    assert tree(tmp_path / "dense").keys() - {".csf-tool/finished.json"} == tree(sample("nvfp4-dense")).keys()
    assert run("verify", tmp_path / "dense", "--against", sample("nvfp4-dense")).exit_code == 0


@pytest.mark.parametrize("to", ["hf", "container"])
def test_it_is_converted(shelf: Path, sample: Sample, tmp_path: Path, to: str) -> None:
    assert run("convert", shelf, tmp_path / "out", "--to", to).exit_code == 0
    assert run("verify", tmp_path / "out", "--against", sample("nvfp4-dense")).exit_code == 0


def test_what_is_wrong_with_it_is_found(shelf: Path) -> None:
    shard = next((shelf / "weights").iterdir())
    shutil.copy(shard, shelf / "weights" / "more.safetensors")
    [problem] = [p for p in open_checkpoint(shelf).problems if p.file.endswith("more.safetensors")]
    assert (problem.code, problem.file) == (Code.SHARD_NOT_IN_MANIFEST, "weights/more.safetensors")
    with pytest.raises(CheckpointError, match="this folder is part of a shelf; give"):
        open_checkpoint(shelf / "model")
    (shelf / "shelf.json").unlink()
    with pytest.raises(CheckpointError, match=r"a shelf without its shelf\.json: download that file again"):
        open_checkpoint(shelf)


def test_one_that_does_not_count_is_passed_over(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    write_json(folder / "shelf.json", {})
    opened = open_checkpoint(folder)
    assert opened.kind == "Hugging Face layout, NVFP4 CSF (mixed with what is left of a shelf)"
    assert [str(problem) for problem in opened.problems] == ["shelf.json: is an empty shelf"]


def test_one_on_the_hub(shelf: Path, hub: Hub) -> None:
    shutil.rmtree(shelf / ".csf-tool", ignore_errors=True)
    hub.add("org/shelf", shelf)
    says(run("stats", "org/shelf"), "shelf, NVFP4 CSF")
    snapshot_download("org/shelf")
    hub.requests.clear()
    says(run("stats", "org/shelf"), "shelf, NVFP4 CSF")
    assert not hub.asked("/storage/", ok=False)


def test_nothing_else_names_a_layout() -> None:
    """A place that asks which layout there is would have to learn of every further one."""
    containers = {f"checkpoint/container_{name}.py" for name in ("layout", "reading", "check")}
    at_home = {"checkpoint/layout.py", "checkpoint/container.py", *containers}
    lists_or_makes_them = {"checkpoint/known_layouts.py", "checkpoint/open.py", "write/targets.py", "write/encoding.py"}
    engines = {"engines/containers.py", "engines/vllm/containers.py"}  # they want a folder with the model's config
    package = Path(csf_tool.__file__).parent
    words = re.compile(r"(Container|HuggingFace|SingleFile|MANIFEST|CONTRACT|VERIFICATION|TENSORS|METADATA|RECEIPTS)")
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("csf_tool.checkpoint.")
        and any(words.fullmatch(alias.name) for alias in node.names)
    }
    assert found - at_home == lists_or_makes_them | engines
