"""A small Hub on the loopback: the answers that huggingface_hub asks for, faults on demand, every request noted.

It serves folders as repositories: model info, the paged tree, `resolve` with a redirect to a storage of another
origin for files in LFS, Range, and the headers by which clients know a file again.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 4
"""Entries on a page of the tree: so few that following pages is tested, too."""

TOKEN = "hf_right"


@dataclass
class Request:
    """A request as it was answered."""

    method: str
    path: str
    range: str | None
    authorized: bool
    status: int = 0
    sent: int = 0


@dataclass
class Fault:
    """What goes wrong with requests whose path has `match` in it (and that ask for `range`), `times` times.

    `status` answers with that; `sent` cuts the body there; `declared` states and sends that many bytes more or less;
    `whole` ignores the range; `headers` and `body` stand in the answer in place of the right ones. With `pause` the
    body comes byte by byte, and so many seconds lie between two; with `endless` it never ends.
    """

    match: str
    times: int = 1
    status: int | None = None
    range: str | None = None
    sent: int | None = None
    declared: int = 0
    whole: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    pause: float = 0
    endless: bool = False


@dataclass
class Repository:
    """A folder that is served under a name, as one commit of it. `other` has contents that differ from the folder's."""

    folder: Path
    commit: str
    refs: dict[str, str]
    private: bool = False
    other: dict[str, bytes] = field(default_factory=dict)

    def files(self) -> list[str]:
        """The names of the files."""
        here = {p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file()}
        return sorted(here | self.other.keys())

    def read(self, file: str, begin: int = 0, end: int | None = None) -> bytes | None:
        """Bytes of a file; None where there is none of that name."""
        if file in self.other:
            return self.other[file][begin:end]
        path = self.folder / file
        if not path.is_file():
            return None
        with path.open("rb") as opened:
            opened.seek(begin)
            return opened.read(-1 if end is None else end - begin)

    def size(self, file: str) -> int:
        """Bytes of a file."""
        return len(self.other[file]) if file in self.other else (self.folder / file).stat().st_size

    def sha256(self, file: str) -> str:
        """The hash under which the Hub lists a file in LFS."""
        return hashlib.sha256(self.read(file) or b"").hexdigest()


class Hub:
    """The server: its repositories, the faults that are left, and the requests so far."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.stored: dict[str, Repository] = {}
        """What the storage has of a repository, where that is not what the Hub lists."""
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.before_answer: Callable[[Request], None] = lambda _: None
        self.lock = threading.Lock()
        self.endpoint = self.storage = ""

    def add(self, name: str, folder: Path, commit: str | None = None, *, private: bool = False) -> Repository:
        """Serve a folder as a repository whose main is one commit."""
        commit = commit or hashlib.sha1(name.encode()).hexdigest()
        self.repositories[name] = Repository(folder, commit, {"main": commit, commit: commit}, private)
        return self.repositories[name]

    def asked(self, match: str = "", *, method: str = "", ok: bool = True) -> list[Request]:
        """The requests whose path has `match` in it; with `ok` only those that were answered with content."""
        return [
            r
            for r in self.requests
            if match in r.path and (not method or r.method == method) and (not ok or r.status in (200, 206))
        ]

    def sent(self, match: str = "/storage/") -> int:
        """Bytes of bodies that were sent."""
        return sum(r.sent for r in self.requests if match in r.path)

    def take_fault(self, request: Request) -> Fault | None:
        """The fault that a request meets, if one is left for it."""
        with self.lock:
            for fault in self.faults:
                if fault.match in request.path and fault.range in (None, request.range) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that close a connection early are what some tests are about."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A server on two random ports: the Hub's own, and its storage's."""
    hub = Hub()
    servers = [_Server(("127.0.0.1", 0), _handler(hub)) for _ in range(2)]
    ports = [server.server_address[1] for server in servers]
    # Two names of one machine: huggingface_hub 1.33 follows a redirect by itself to the same host, whatever the port.
    hub.endpoint, hub.storage = f"http://127.0.0.1:{ports[0]}", f"http://localhost:{ports[1]}"
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"hub": hub})


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        path = unquote(self.path)
        authorized = self.headers.get("authorization") == f"Bearer {TOKEN}"
        self.request_ = Request(self.command, path, self.headers.get("range"), authorized)
        with self.hub.lock:
            self.hub.requests.append(self.request_)
        self.hub.before_answer(self.request_)
        fault = self.hub.take_fault(self.request_) or Fault("")
        if fault.status:
            self._answer(fault.status, b'{"error": "on demand"}', fault.headers, fault)
        elif path.startswith("/storage/"):
            self._storage(path, fault)
        elif path.startswith("/api/models/"):
            self._api(path, fault)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path.partition("?")[0]):
            self._resolve(match[1], match[2], match[3], fault)
        else:
            self._answer(404, b"", {}, fault)

    def _repository(self, name: str, revision: str, fault: Fault) -> Repository | None:
        """The repository at a revision; what is wrong with asking for it is answered here."""
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and not self.request_.authorized):
            code = 404 if self.request_.authorized else 401
            self._answer(code, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, fault)
            return None
        if revision not in repository.refs:
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"}, fault)
            return None
        return repository

    def _api(self, path: str, fault: Fault) -> None:
        address, query = urlsplit(path).path.removeprefix("/api/models/"), parse_qs(urlsplit(path).query)
        org, name, what, revision = [*address.split("/"), "info", "main"][:4]
        name = f"{org}/{name}"
        if (repository := self._repository(name, revision, fault)) is None:
            return
        commit = repository.refs[revision]
        if what != "tree":
            siblings = [_sibling(repository, file) for file in repository.files()] if "blobs" in query else []
            document: object = {"_id": "0", "id": name, "modelId": name, "sha": commit, "siblings": siblings}
            self._answer(200, json.dumps(document).encode(), {}, fault)
            return
        entries = [_entry(repository, file) for file in repository.files()]
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": p} for p in _folders(entries)]
        start = int(query.get("cursor", ["0"])[0])
        headers = {}
        if start + PAGE < len(entries):
            headers["Link"] = (
                f'<{self.hub.endpoint}{urlsplit(path).path}?recursive=1&cursor={start + PAGE}>; rel="next"'
            )
        self._answer(200, json.dumps(entries[start : start + PAGE]).encode(), headers, fault)

    def _resolve(self, name: str, revision: str, file: str, fault: Fault) -> None:
        if (repository := self._repository(name, revision, fault)) is None:
            return
        headers = {"X-Repo-Commit": repository.refs[revision]}
        if file not in repository.files():
            self._answer(404, b"", {**headers, "X-Error-Code": "EntryNotFound"}, fault)
        elif _is_lfs(file):
            headers |= {"X-Linked-ETag": f'"{repository.sha256(file)}"', "X-Linked-Size": str(repository.size(file))}
            headers["Location"] = f"{self.hub.storage}/storage/{name}/{file}?signature=1"
            self._answer(302, b"", headers, fault)
        else:
            self._content(repository, file, {**headers, "ETag": f'"{_git_sha1(repository, file)}"'}, fault)

    def _storage(self, path: str, fault: Fault) -> None:
        _, _, org, name, file = urlsplit(path).path.split("/", 4)
        repository = self.hub.repositories[f"{org}/{name}"]
        stored = self.hub.stored.get(f"{org}/{name}", repository)
        self._content(stored, file, {"ETag": '"of the storage"'}, fault)

    def _content(self, repository: Repository, file: str, headers: dict[str, str], fault: Fault) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.request_.range or "")
        if not match or fault.whole:
            self._answer(200, repository.read(file) or b"", headers, fault)
            return
        begin, end = int(match[1]), min(int(match[2]) + 1, repository.size(file))
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{repository.size(file)}"
        self._answer(206, repository.read(file, begin, end) or b"", headers, fault)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], fault: Fault) -> None:
        self.request_.status = status
        body = body if fault.body is None else fault.body
        body = body + bytes(fault.declared) if fault.declared > 0 else body[: len(body) + fault.declared]
        self.send_response(status)
        for name, value in {**headers, **fault.headers}.items():
            self.send_header(name, value)
        if fault.endless:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault.pause or fault.endless:
            self._drip(body, fault)
            return
        body = body if fault.sent is None else body[: fault.sent]
        try:
            for at in range(0, len(body), 1 << 16):
                self.request_.sent += len(body[at : at + (1 << 16)])
                self.wfile.write(body[at : at + (1 << 16)])
        except OSError:  # the client has seen enough
            self.close_connection = True
        if fault.sent is not None:
            self.close_connection = True

    def _drip(self, body: bytes, fault: Fault) -> None:
        step = 1 if fault.pause else 1 << 16
        while True:
            for at in range(0, len(body), step):
                try:
                    self.wfile.write(body[at : at + step])
                except OSError:  # the client has seen enough
                    return
                self.request_.sent += step
                time.sleep(fault.pause)
            if not fault.endless:
                return


def _entry(repository: Repository, file: str) -> dict[str, Any]:
    size = repository.size(file)
    if _is_lfs(file):
        lfs = {"oid": repository.sha256(file), "size": size, "pointerSize": 134}
        return {"type": "file", "oid": "0" * 40, "size": size, "path": file, "lfs": lfs}
    return {"type": "file", "oid": _git_sha1(repository, file), "size": size, "path": file}


def _sibling(repository: Repository, file: str) -> dict[str, Any]:
    entry = _entry(repository, file)
    lfs = {"lfs": {**entry["lfs"], "sha256": entry["lfs"]["oid"]}} if "lfs" in entry else {}
    return {"rfilename": entry["path"], "blobId": entry["oid"], "size": entry["size"], **lfs}


def _folders(entries: list[dict[str, Any]]) -> list[str]:
    return sorted({entry["path"].rpartition("/")[0] for entry in entries} - {""})


def _is_lfs(file: str) -> bool:
    return file.endswith(".safetensors")


def _git_sha1(repository: Repository, file: str) -> str:
    data = repository.read(file) or b""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
