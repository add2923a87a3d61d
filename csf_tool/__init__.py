"""csf-tool: inspect, verify and expand FP4 checkpoints whose block scales are CSF-compressed.

The Python API is found here: what commands do, reading checkpoints, and the GPU functions. A module is imported when
the first of its names is touched, torch and Triton with it where it needs them.
"""

from importlib import import_module

from csf_tool.version import __version__ as __version__

TYPE_CHECKING = False  # as in typing, which takes longer to load than all else that a command needs to hear Ctrl-C
if TYPE_CHECKING:  # what `_NAMES` says, for type checkers
    from csf_tool.api.look import plan as plan
    from csf_tool.api.look import stats as stats
    from csf_tool.api.prove import identity as identity
    from csf_tool.api.prove import verify as verify
    from csf_tool.api.write import compress as compress
    from csf_tool.api.write import convert as convert
    from csf_tool.api.write import expand as expand
    from csf_tool.api.write import finish as finish
    from csf_tool.checkpoint.open import open_checkpoint as open_checkpoint
    from csf_tool.documents.identity import IdentityDocument as IdentityDocument
    from csf_tool.documents.plan import PlanDocument as PlanDocument
    from csf_tool.documents.stats import StatsDocument as StatsDocument
    from csf_tool.documents.verify import VerifyDocument as VerifyDocument
    from csf_tool.documents.written import CompressDocument as CompressDocument
    from csf_tool.documents.written import ConvertDocument as ConvertDocument
    from csf_tool.documents.written import ExpandDocument as ExpandDocument
    from csf_tool.gpu.encode import compress_csf_scales as compress_csf_scales
    from csf_tool.gpu.encode import compress_mxfp4_scales as compress_mxfp4_scales
    from csf_tool.gpu.encode import compress_nvfp4_scales as compress_nvfp4_scales
    from csf_tool.gpu.layouts import ScaleLayout as ScaleLayout
    from csf_tool.gpu.scales import CsfScales as CsfScales
    from csf_tool.gpu.scales import decompress_csf_scales as decompress_csf_scales
    from csf_tool.gpu.scales import decompress_mxfp4_csf_scales as decompress_mxfp4_csf_scales
    from csf_tool.gpu.scales import decompress_nvfp4_csf_scales as decompress_nvfp4_csf_scales
    from csf_tool.gpu.scales import prepare_csf_scales as prepare_csf_scales
    from csf_tool.gpu.scales import prepare_mxfp4_csf_scales as prepare_mxfp4_csf_scales
    from csf_tool.gpu.scales import prepare_nvfp4_csf_scales as prepare_nvfp4_csf_scales
    from csf_tool.gpu.streams import CsfStreams as CsfStreams
    from csf_tool.gpu.workspace import ScaleWorkspace as ScaleWorkspace
    from csf_tool.loading.safe_open import safe_open as safe_open
    from csf_tool.loading.stacks import load_stack as load_stack
    from csf_tool.loading.tensors import iter_tensors as iter_tensors
    from csf_tool.loading.tensors import load_file as load_file

if TYPE_CHECKING:
    from typing import Any

_NAMES = {
    "api.look": "plan stats",
    "api.prove": "identity verify",
    "api.write": "compress convert expand finish",
    "documents.identity": "IdentityDocument",
    "documents.plan": "PlanDocument",
    "documents.stats": "StatsDocument",
    "documents.verify": "VerifyDocument",
    "documents.written": "CompressDocument ConvertDocument ExpandDocument",
    "checkpoint.open": "open_checkpoint",
    "gpu.encode": "compress_csf_scales compress_mxfp4_scales compress_nvfp4_scales",
    "gpu.layouts": "ScaleLayout",
    "gpu.scales": "CsfScales decompress_csf_scales decompress_mxfp4_csf_scales decompress_nvfp4_csf_scales"
    " prepare_csf_scales prepare_mxfp4_csf_scales prepare_nvfp4_csf_scales",
    "gpu.streams": "CsfStreams",
    "gpu.workspace": "ScaleWorkspace",
    "loading.stacks": "load_stack",
    "loading.safe_open": "safe_open",
    "loading.tensors": "iter_tensors load_file",
}
"""The public names, by the module that each is in."""

_HOMES = {name: f"csf_tool.{home}" for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> "Any":
    if name in _HOMES:
        try:
            return getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            if package not in ("torch", "triton"):
                raise
            from csf_tool.errors import not_installed

            raise not_installed(package) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
