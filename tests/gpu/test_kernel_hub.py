"""The package for the kernel hub, loaded as the hub's own library loads kernels."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from kernels import get_local_kernel
from kernels._rust import Digest, DigestAlgorithm, Metadata

import csf_tool
from csf_tool.codec.formats import NVFP4
from kernel_hub.build import BACKENDS, MODULE, build
from tests.codec.vectors import Vector, golden
from tests.gpu.stacks import DEVICE, on_device, prepared, random_stack
from tests.swizzled import swizzle

BACKEND = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernel")
    build(folder, backends=(BACKEND,))
    return folder


@pytest.fixture(scope="module")
def kernel(package: Path) -> ModuleType:
    module: ModuleType = get_local_kernel(package, backend=BACKEND, trust_remote_code=True)
    return module


@pytest.fixture(scope="module")
def sources(package: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (package / "build" / f"torch-{BACKEND}").glob("*.py")}


@pytest.mark.parametrize("vector", golden(), ids=lambda vector: f"{vector.fmt.name}-{vector.name}")
def test_golden_vectors(kernel: ModuleType, vector: Vector) -> None:
    assert vector.scales is not None
    prepare = getattr(kernel, f"prepare_{vector.fmt.name}_csf_scales")
    fixed = torch.from_numpy(vector.fixed.copy()).to(DEVICE)
    words = torch.from_numpy(vector.exceptions.view(np.int32).copy()).to(DEVICE)
    scales = prepare(fixed, words, rows=vector.rows, cols=vector.cols)
    dense = kernel.decompress_csf_scales(scales)
    assert np.array_equal(dense.view(torch.uint8).cpu().numpy()[0], vector.scales)
    for layout, want in (("linear", vector.scales), ("swizzled", swizzle(vector.scales))):
        workspace = kernel.ScaleWorkspace(scales, layout=layout)
        assert np.array_equal(workspace.decompress(scales).view(torch.uint8).cpu().numpy()[0], want)


@pytest.mark.slow
def test_layouts_and_choices_are_those_of_csf_tool(kernel: ModuleType) -> None:
    stack = random_stack(NVFP4, 3, 64, 8, 0.03)
    fixed, words = (
        [on_device(each) for each in stack.fixed],
        [on_device(each.view(np.int32)) for each in stack.exceptions],
    )
    scales = kernel.prepare_nvfp4_csf_scales(fixed, words, rows=64, cols=8)
    options = {"swap_halves": True, "table": torch.arange(256, dtype=torch.uint8, device=DEVICE).flip(0)}
    ids = torch.tensor([9, 7], device=DEVICE)
    for form in ("linear", "swizzled", "marlin"):
        own, others = (
            module.ScaleWorkspace(given, layout=module.ScaleLayout(form, **options))
            for module, given in ((kernel, scales), (csf_tool, prepared(stack)))
        )
        got = own.decompress(scales, topk_ids=ids, expert_offset=7).view(torch.uint8)
        want = others.decompress(prepared(stack)).view(torch.uint8)
        assert torch.equal(got[[0, 2]], want[[0, 2]])


def test_its_operators_are_its_own(kernel: ModuleType, package: Path) -> None:
    metadata = Metadata.read_from_file(package / "build" / f"torch-{BACKEND}" / "metadata.json")
    assert hasattr(getattr(torch.ops, metadata.id), "decompress")
    assert kernel.__name__ == metadata.id
    assert not kernel.__name__.startswith("csf_tool")


def test_digests_are_those_of_the_hubs_library(package: Path) -> None:
    variant = package / "build" / f"torch-{BACKEND}"
    stated = Metadata.read_from_file(variant / "metadata.json").digest
    assert stated is not None
    stated.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))
    assert len(stated.files) == len(list(variant.glob("*.py")))


def test_the_source_tree_is_what_was_built(package: Path, sources: dict[str, str]) -> None:
    """All but the namespace, which the hub's builder makes."""
    tree = {path.name: path.read_text() for path in (package / "torch-ext" / MODULE).iterdir()}
    assert tree == {name: text for name, text in sources.items() if name != "_ops.py"}
    assert {path.name for path in package.iterdir()} == {"LICENSE", "build", "build.toml", "flake.nix", "torch-ext"}


def test_imports_are_those_that_the_hub_allows(sources: dict[str, str]) -> None:
    """Its own modules, torch with Triton, and the standard library."""
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found = [str(node.module)]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1, name
                modules = [node.module] if node.module else [alias.name for alias in node.names]
                assert all(f"{module}.py" in sources for module in modules), name
                continue
            else:
                continue
            assert all(part.partition(".")[0] in {"torch", "triton", *sys.stdlib_module_names} for part in found), name
        assert '"csf_tool' not in text, name


def test_python_3_9_can_read_it(sources: dict[str, str]) -> None:
    """Its syntax, and what is evaluated when a module is imported: unions, newer arguments, newer names of typing."""
    known = {"Literal", "NamedTuple", "Optional", "Protocol", "Union"}
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text, feature_version=(3, 9))):
            if isinstance(node, ast.keyword):
                assert node.arg not in ("slots", "strict", "kw_only"), name
            if isinstance(node, ast.ImportFrom) and node.module == "typing":
                assert {alias.name for alias in node.names} <= known, name
            for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                if annotation is not None:
                    assert " | " not in ast.unparse(annotation), name


def test_it_is_the_same_whenever_it_is_built(package: Path, tmp_path: Path) -> None:
    build(tmp_path / "again", backends=(BACKEND,))
    files = [path.relative_to(package) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    for file in files:
        assert (tmp_path / "again" / file).read_bytes() == (package / file).read_bytes()
    with pytest.raises(FileExistsError):
        build(package)


@pytest.mark.slow
def test_the_command_and_a_process_without_csf_tool(tmp_path: Path) -> None:
    """Loading it takes nothing of csf_tool."""
    folder = tmp_path / "kernel"
    script = Path(__file__).parent.parent.parent / "kernel_hub" / "build.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True)
    assert [path.name for path in (folder / "build").iterdir()] == [f"torch-{backend}" for backend in BACKENDS]
    code = (
        "import json, sys; sys.modules['csf_tool'] = None\n"
        f"sys.path.insert(0, {str(folder / 'torch-ext')!r})\n"
        f"sys.modules['{MODULE}._ops'] = type(sys)('_ops')\n"
        f"sys.modules['{MODULE}._ops'].add_op_namespace_prefix = lambda name: 'x::' + name\n"
        f"import {MODULE}; print(json.dumps({MODULE}.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "decompress_nvfp4_csf_scales" in json.loads(done.stdout)
