"""Containers as models: their config and tokenizer lie in metadata/, and vLLM is told to take that for the model.

The loader finds the weights from there. All other models have a config where vLLM looks for it, and are let pass.
"""

import re
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from csf_tool.engines.vllm.plugin import warn

_CONFIG = "config.json"

_CHANGED = (ImportError, AttributeError, TypeError)
"""Errors of a vLLM in which functions have other names or arguments."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_containers(arguments: ModuleType) -> None:
    """Have the engine's arguments name a container's metadata/ where they name the container.

    `arguments` is vllm.engine.arg_utils. Models are served under the name that was given.
    """
    engine_args = arguments.EngineArgs
    originals = {name: getattr(engine_args, name) for name in ("create_engine_config", "create_model_config")}
    for name, original in originals.items():
        if not hasattr(original, "resolves_containers"):
            setattr(engine_args, name, _resolving(original))


def _resolving(create: Any) -> Any:
    @wraps(create)
    def resolving(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            _resolve(self)
        except _CHANGED as error:
            warn(error)
        return create(self, *args, **kwargs)

    resolving.resolves_containers = True  # type: ignore[attr-defined]
    return resolving


def _resolve(args: Any) -> None:
    if model := _model_of(args, args.model, args.revision):
        args.served_model_name = args.served_model_name or [args.model]
        args.tokenizer = model if args.tokenizer == args.model else args.tokenizer
        args.model, args.revision = model, None
    draft = args.speculative_config
    if isinstance(draft, dict) and (model := _model_of(args, draft.get("model"), draft.get("revision"))):
        args.speculative_config = {**draft, "model": model, "revision": None}


def _model_of(args: Any, name: Any, revision: str | None) -> str | None:
    """The folder of a container's model, downloaded if it is a name on the Hub; None for what is no container."""
    if not isinstance(name, str) or not (Path(name).is_dir() or _HUB_NAME.fullmatch(name)):
        return None
    if _has(name, _CONFIG, revision, otherwise=True):
        return None
    from csf_tool.checkpoint.container import MANIFEST, METADATA
    from csf_tool.engines.containers import container_of

    if not _has(name, MANIFEST, revision, otherwise=False):
        return None
    root = Path(name) if Path(name).is_dir() else _downloaded(args, name, revision)
    model = root / METADATA
    return str(model) if container_of(model) and (model / _CONFIG).is_file() else None


def _has(name: str, file: str, revision: str | None, *, otherwise: bool) -> bool:
    """Whether a model has a file; `otherwise` where that cannot be asked, and vLLM will say why."""
    from vllm.transformers_utils.repo_utils import file_or_path_exists

    try:
        return bool(file_or_path_exists(name, file, revision))
    except _CHANGED:
        raise
    except Exception:
        return otherwise


def _downloaded(args: Any, name: str, revision: str | None) -> Path:
    """The folder of a container that is on the Hub, whole, as vLLM downloads."""
    from csf_tool.checkpoint.container import METADATA, TENSORS

    for pattern in (f"{METADATA}/*", "*.json", f"{TENSORS}/*", "*.safetensors"):
        root = download(args, name, revision, pattern)
    return Path(root)


def download(settings: Any, name: str, revision: str | None, pattern: str) -> str:
    """The folder into which vLLM downloads files of a model; `settings` are its EngineArgs or its LoadConfig."""
    from vllm.model_executor.model_loader.weight_utils import download_weights_from_hf

    where, ignored = settings.download_dir, settings.ignore_patterns
    return str(download_weights_from_hf(name, where, [pattern], revision, ignore_patterns=ignored))
