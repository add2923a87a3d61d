"""Addresses of the Hub's pages, as they are copied from a browser: which repository and revision they show."""

import os
import re
from urllib.parse import unquote, urlsplit

from csf_tool.errors import UsageError

_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_OTHERS = {"datasets": "a data set", "spaces": "a space", "collections": "a collection", "papers": "a paper"}
_OTHERS |= {"docs": "documentation", "blog": "a blog", "models": "a list of models", "kernels": "a kernel"}

_NAME = r"(?P<repo>\w[\w.-]*/\w[\w.-]*?)(?:\.git)?"
_REVISION = r"(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+)"
_PAGE = re.compile(rf"(?:api/models/)?{_NAME}(?:/(?:tree|blob|resolve|raw|commits?|revision)/{_REVISION}(?:/.*)?)?/*")
_TAB = re.compile(rf"{_NAME}/(?:tree|blob|resolve|raw|commits?|discussions|settings|revision)(?:/.*)?")


def is_address(text: str) -> bool:
    """Whether a text is the address of a page, with its scheme or with the Hub's host first."""
    return bool(re.match(r"https?:/", text, re.IGNORECASE)) or text.lower().startswith(tuple(f"{h}/" for h in _HOSTS))


def is_path_of_page(text: str) -> bool:
    """Whether a text is what stands after the host in the address of a repository's page, such as a folder of it."""
    return bool(re.fullmatch(rf"{_NAME}/(?:tree|blob|resolve|raw)/.+", text, re.ASCII))


def repository_of(address: str) -> str:
    """The repository that a page shows, as `org/name` or `org/name@revision`.

    Raises:
        UsageError: it is no page of a model, or one of another site.
    """
    path = _path_of(address) if is_address(address) else address.partition("?")[0].partition("#")[0]
    path = path.strip("/")
    first = path.split("/")[0].lower()
    if first in _OTHERS and "/" in path:
        raise UsageError(f"{address}: is {_OTHERS[first]}, not a model: give org/name of a model's repository")
    match = _PAGE.fullmatch(path) or _TAB.fullmatch(path)
    if not match:
        raise UsageError(f"{address}: is not a page of a model's repository: give org/name, or org/name@revision")
    revision = unquote(match.groupdict().get("revision") or "")
    return f"{match['repo']}@{revision}" if revision else match["repo"]


def _path_of(address: str) -> str:
    """The path in an address of the Hub: of the one that is set, or of huggingface.co, which mirrors stand for."""
    text = re.sub(r"^(https?):/+", r"\1://", address, flags=re.IGNORECASE)
    text = text if "://" in text else f"https://{text}"
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", "").rstrip("/"))
    try:
        found = urlsplit(text)
        host = (found.hostname or "").lower()
    except ValueError as error:
        raise UsageError(f"{address}: is not the address of a page: {error}") from error
    if endpoint.netloc and found.netloc.lower() == endpoint.netloc.lower():
        return found.path.removeprefix(endpoint.path)
    if host not in _HOSTS:
        site = f"{found.scheme}://{found.netloc}"
        problem = f"{address}: is not on the Hub: give org/name, a page of huggingface.co or a path here"
        raise UsageError(f"{problem}; if it is a mirror of the Hub, set HF_ENDPOINT={site}")
    return found.path
