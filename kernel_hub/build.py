"""Make a package for the Hugging Face kernel hub out of csf_tool's decode: torch and Triton, no numpy, no csf_tool.

    python kernel_hub/build.py FOLDER

FOLDER then holds what the hub's own builder takes (build.toml, flake.nix, torch-ext) and what it would make of it
(build). Nothing in it is written by hand: the modules are csf_tool's, with relative imports and in the syntax of
Python 3.9, which the hub asks for. docs/kernel-hub.md says how it is checked and published.
"""

import argparse
import ast
import base64
import hashlib
import json
from pathlib import Path

NAME = "csf-scales"
MODULE = "csf_scales"
VERSION = 1
"""Version on the hub, a branch `v1` there: the next number where callers would have to change."""

BACKENDS = ("cuda",)
"""Backends of `torch` that the kernels were run on."""

SOURCES = (
    "codec/formats.py",
    "codec/prepared.py",
    "codec/tiles.py",
    "dtypes.py",
    "gpu/arguments.py",
    "gpu/decode.py",
    "gpu/decode_kernels.py",
    "gpu/launching.py",
    "gpu/layout_kernels.py",
    "gpu/layouts.py",
    "gpu/routing.py",
    "gpu/routing_kernels.py",
    "gpu/scales.py",
    "gpu/streams.py",
    "gpu/workspace.py",
)
"""The modules of csf_tool that decoding takes. They become one flat package."""

PUBLIC = {
    "layouts": ["ScaleLayout"],
    "scales": [
        "CsfScales",
        "decompress_csf_scales",
        "decompress_mxfp4_csf_scales",
        "decompress_nvfp4_csf_scales",
        "prepare_mxfp4_csf_scales",
        "prepare_nvfp4_csf_scales",
    ],
    "workspace": ["ScaleWorkspace"],
}
"""The package's names, by their modules."""

_PACKAGES = ("csf_tool.codec", "csf_tool.gpu")

_CSF_TOOL = Path(__file__).parent.parent / "csf_tool"

_OPS = '''"""The namespace of this build's operators: several builds may be loaded into one process."""

import torch

ops = torch.ops.{namespace}


def add_op_namespace_prefix(op_name: str) -> str:
    """The full name of an operator."""
    return f"{namespace}::{{op_name}}"
'''

_BUILD_TOML = f"""[general]
name = "{NAME}"
version = {VERSION}
edition = 6
license = "Apache-2.0"
backends = [{", ".join(f'"{backend}"' for backend in BACKENDS)}]

[general.hub]
repo-id = "ORGANISATION/{NAME}"

[torch-noarch]
"""

_FLAKE = f"""{{
  description = "Flake for {NAME}";
  inputs.kernel-builder.url = "github:huggingface/kernels";
  outputs =
    {{ self, kernel-builder }}:
    kernel-builder.lib.genKernelFlakeOutputs {{
      inherit self;
      path = ./.;
    }};
}}
"""


def build(folder: Path, backends: tuple[str, ...] = BACKENDS) -> None:
    """Write the package into an empty or new folder.

    Raises:
        FileExistsError: the folder is not empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    sources = {Path(name).name: hub_source(_CSF_TOOL / name) for name in SOURCES}
    sources["__init__.py"] = _init()
    write(
        folder, {"build.toml": _BUILD_TOML, "flake.nix": _FLAKE, "LICENSE": (_CSF_TOOL.parent / "LICENSE").read_text()}
    )
    write(folder / "torch-ext" / MODULE, sources)
    unique = hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:7]
    for backend in backends:
        variant, namespace = folder / "build" / f"torch-{backend}", f"_{MODULE}_{backend}_{unique}"
        write(variant, sources | {"_ops.py": _OPS.format(namespace=namespace)})
        write(variant, {"metadata.json": json.dumps(_metadata(variant, namespace, backend), indent=2) + "\n"})


def write(folder: Path, files: dict[str, str]) -> None:
    """Write texts by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def hub_source(path: Path) -> str:
    """A module of csf_tool as the hub wants it."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for node in reversed(ast.parse("".join(lines)).body):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("csf_tool"):
            lines[node.lineno - 1 : node.end_lineno] = [_relative(node)]
    return _for_python_3_9("".join(lines)).rstrip() + "\n"


def _relative(node: ast.ImportFrom) -> str:
    module = str(node.module)
    home = "" if module in _PACKAGES else module.rpartition(".")[2]
    return f"from .{home} import {', '.join(ast.unparse(alias) for alias in node.names)}\n"


def _for_python_3_9(text: str) -> str:
    """The same code without what Python 3.9 does not know, and with the operator in the build's own namespace."""
    lines = text.replace(", slots=True", "").replace(", strict=True", "").splitlines(keepends=True)
    imports: dict[str, None] = {}
    for node in sorted(_annotations(ast.parse("".join(lines))), key=lambda node: (-node.lineno, -node.col_offset)):
        line, kind = lines[node.lineno - 1], _Unions()
        older = ast.unparse(kind.visit(node))
        if kind.found:
            lines[node.lineno - 1] = line[: node.col_offset] + older + line[node.end_col_offset :]
            imports |= dict.fromkeys(kind.found)
    text = "".join(lines)
    own = text.replace('custom_op("csf_tool::decompress"', 'custom_op(add_op_namespace_prefix("decompress")')
    added = [f"from typing import {', '.join(sorted(imports))}\n"] if imports else []
    added += ["from ._ops import add_op_namespace_prefix\n"] if own != text else []
    docstring = ast.parse(own).body[0]
    lines = own.splitlines(keepends=True)
    return "".join([*lines[: docstring.end_lineno], *(["\n"] if added else []), *added, *lines[docstring.end_lineno :]])


def _annotations(tree: ast.Module) -> list[ast.expr]:
    """All annotations of a module. In csf_tool each is on one line."""
    found = [node.annotation for node in ast.walk(tree) if isinstance(node, ast.arg | ast.AnnAssign)]
    found += [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [node for node in found if node and node.lineno == node.end_lineno]


class _Unions(ast.NodeTransformer):
    """`A | B | None` as `Optional[Union[A, B]]`; `found` are the names that this takes."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """A union."""
        parts = ast.unparse(node).split(" | ")
        kinds = [part for part in parts if part != "None"]
        text = kinds[0] if len(kinds) == 1 else f"Union[{', '.join(kinds)}]"
        if len(kinds) < len(parts):
            text = f"Optional[{text}]"
        self.found |= {name for name in ("Optional", "Union") if f"{name}[" in text}
        return ast.parse(text, mode="eval").body


def _init() -> str:
    imports = [f"from .{module} import {name}" for module, names in PUBLIC.items() for name in names]
    names = sorted(name for names in PUBLIC.values() for name in names)
    docstring = '"""Decode the CSF block scales of NVFP4 and MXFP4 experts, losslessly: see csf-tool."""'
    return "\n".join([docstring, "", *imports, "", f"__all__ = {json.dumps(names, indent=4)}", ""])


def _metadata(variant: Path, namespace: str, backend: str) -> dict[str, object]:
    digests = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in sorted(variant.iterdir())}
    return {
        "id": namespace,
        "name": NAME,
        "version": VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": backend},
        "digest": {
            "algorithm": "sha256",
            "files": {name: base64.b64encode(raw).decode() for name, raw in digests.items()},
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    build(parser.parse_args().folder)
