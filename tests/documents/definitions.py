"""The definitions of the JSON documents, read from their source, and values held against them."""

import ast
import importlib
import types
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

import csf_tool.documents

PACKAGE = Path(csf_tool.documents.__file__).parent


class Definition(NamedTuple):
    """A document, or a part of one: its meaning, and the type and the meaning of each field."""

    name: str
    meaning: str
    fields: dict[str, tuple[Any, str]]

    @property
    def schema(self) -> str | None:
        """The name and version of a whole document."""
        return str(get_args(self.fields["schema"][0])[0]) if "schema" in self.fields else None


def definitions() -> dict[str, Definition]:
    """Every class that defines a document or a part of one."""
    trees = {path.stem: ast.parse(path.read_text()) for path in sorted(PACKAGE.glob("*.py"))}
    nodes = [(module, node) for module, tree in trees.items() for node in tree.body]
    classes = {node.name: (module, node) for module, node in nodes if isinstance(node, ast.ClassDef)}

    def meanings(name: str) -> dict[str, str]:
        _, node = classes[name]
        found: dict[str, str] = {}
        for base in map(ast.unparse, node.bases):
            found |= meanings(base) if base in classes else {}
        for field, text in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                said = text.value if isinstance(text, ast.Expr) else None
                found[ast.unparse(field.target)] = str(said.value) if isinstance(said, ast.Constant) else ""
        return found

    result = {}
    for name, (module, node) in classes.items():
        hints = get_type_hints(getattr(importlib.import_module(f"csf_tool.documents.{module}"), name))
        fields = {field: (hints[field], " ".join(text.split())) for field, text in meanings(name).items()}
        fields = {"schema": fields["schema"], **fields} if "schema" in fields else fields
        result[name] = Definition(name, " ".join((ast.get_docstring(node) or "").split()), fields)
    return result


def misfits(value: Any, hint: Any, place: str = "") -> list[str]:
    """Places at which a value is not what its type says."""
    if is_typeddict(hint):
        hints = get_type_hints(hint)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            return [f"{place}: {sorted(value) if isinstance(value, dict) else value!r}, not {sorted(hints)}"]
        return [each for key, kind in hints.items() for each in misfits(value[key], kind, f"{place}.{key}")]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        found = [misfits(value, kind, place) for kind in args]
        return [] if [] in found else found[0]
    if origin is list and isinstance(value, list):
        return [each for i, item in enumerate(value) for each in misfits(item, args[0], f"{place}[{i}]")]
    if origin is dict and isinstance(value, dict):
        return [each for key, item in value.items() for each in misfits(item, args[1], f"{place}[{key!r}]")]
    if origin is Literal:
        fits = value in args and isinstance(value, str)
    elif hint is float:
        fits = type(value) in (int, float)
    else:
        fits = origin is None and type(value) is hint
    return [] if fits else [f"{place}: {value!r} is no {hint}"]
