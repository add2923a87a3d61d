"""Compile kernels for sm_90 without a GPU: registers, spills and shared memory, as ptxas and the compiler give them.

Triton brings ptxas; nothing of it needs a driver. Only kernels that are not interpreted can be compiled.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

TARGET = GPUTarget("cuda", 90, 32)


def resources(kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What a kernel takes."""
    return describe(compiled(kernel, types, constants, **options))


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: Any) -> Any:
    """A compiled kernel: `types` of its arguments ("*u8", "i32", ...), all pointers aligned to 16 bytes."""
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    missing = {name: None for name in names if name not in types and name not in constants}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = make_source(kernel, signature, constants | missing, aligned)
    return compile_kernel(source, target=TARGET, options=options)


def make_source(kernel: Any, signature: dict[str, str], constants: dict[str, Any], attributes: dict[Any, Any]) -> Any:
    if type(kernel).__name__ == "GluonJITFunction":
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource(kernel, signature, constants, attributes)
    return ASTSource(kernel, signature, constants, attributes)


def describe(compiled: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage))
    ptx = compiled.asm["ptx"]
    return {
        "registers": int(found["REG"]),
        "spilled or local bytes": int(found["STACK"]) + int(found["LOCAL"]),
        "shared": compiled.metadata.shared,
        "barriers": len(re.findall(r"\bbar\.sync|\bbarrier\.sync", ptx)),
        "wide stores": ptx.count("st.global.v4"),
        "triton": triton.__version__,
        "interpreted": os.environ.get("TRITON_INTERPRET", "0"),
    }
