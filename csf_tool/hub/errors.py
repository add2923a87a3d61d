"""Errors of the Hub, each as one line with its remedy; and retries of those that may pass."""

import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from csf_tool.cancel import Stopped
from csf_tool.codes import Code
from csf_tool.errors import CheckpointError, CsfToolError, EnvironmentFault, UsageError
from csf_tool.text import brief, count, first_line

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

NetworkError: type[Exception] = HfHubHTTPError.__mro__[1]
"""The base of all errors of the HTTP client: httpx's in huggingface_hub 1, httpx2's in huggingface_hub 2."""

_LASTING = ("UnsupportedProtocol", "LocalProtocolError")
"""Errors of the HTTP client, by the names that they have in httpx and httpx2, of what the user has set: they stay."""

_UNKNOWN_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
"""Answers of the name service that stay: there is no such host, or no network that knows it."""

_RETRIED = {408, 429, 500, 502, 503, 504}
"""HTTP statuses that may pass."""


_LONGEST_TEXT = 300


class WrongLength(Exception):
    """Raised when a body is not as long as it must be; a retry may get a whole one."""


class Refused(Exception):
    """Raised when a server answers that it will not; `said` are its own words.

    Not huggingface_hub's own errors, for which an answer is read to its end, however long that is.
    """

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        super().__init__(str(status))
        self.status, self.headers = status, headers
        self.kind = headers.get("X-Error-Code", "")
        self.said = headers.get("X-Error-Message") or _said(body)


def _said(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
    return error if isinstance(error, str) else ""


@dataclass(frozen=True)
class RetryPolicy:
    """Seconds before each retry, the longest wait that a server may ask for, and how slow its answer may be.

    An answer that brings less than `slowest_bytes` in `slow_seconds` has stopped for all that it is worth.
    """

    waits: tuple[float, ...] = (0.5, 1, 2, 4, 8)
    longest_wait: float = 60
    slowest_bytes: int = 16 << 10
    slow_seconds: float = 60


@dataclass(frozen=True)
class HubRef:
    """A revision of a repository, or a file of it, as messages name them."""

    repo_id: str
    revision: str
    endpoint: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.repo_id}@{self.revision}" + (f": {self.file}" if self.file else "")


def with_retries(action: Callable[[], T], ref: HubRef, policy: RetryPolicy, sleep: Callable[[float], None]) -> T:
    """The result of `action`, which is retried while it fails in a way that may pass.

    Not huggingface_hub's `http_backoff`, for its waits cannot be stopped, and as long as the server likes, and what
    breaks off in the body is not retried. (In 1.0 it retries 503 alone, and knows no Retry-After.)
    All that asks the Hub for anything goes through here, so that what nobody foresaw of an answer is an error, too.

    Raises:
        UsageError: there is no such repository, or no such revision of it.
        CheckpointError: the file is listed, and not there.
        EnvironmentFault: no network, no permission, too many requests, or a server that fails.
    """
    tries = 0
    while True:
        tries += 1
        try:
            return action()
        except (CsfToolError, Stopped):
            raise
        except Exception as error:
            wait = _wait(error, ref, policy, tries)
            if wait is None:
                raise error_for(error, ref, tries) from error
        sleep(wait)


def _wait(error: Exception, ref: HubRef, policy: RetryPolicy, tries: int) -> float | None:
    """Seconds until the next try; None where it would not help, or would take too long."""
    unresolved = _unresolved(error)
    if unresolved and unresolved.errno in _UNKNOWN_NAME:
        return None
    if not ref.file and tries > 1 and (unresolved or _caused_by(error, ConnectionRefusedError)):
        return None  # a run that has begun waits for a service that fails; a first question is not worth it
    if tries > len(policy.waits) or isinstance(error, OfflineModeIsEnabled) or type(error).__name__ in _LASTING:
        return None
    wait = policy.waits[tries - 1]
    if isinstance(error, Refused):
        if error.status not in _RETRIED:
            return None
        wait = max(wait, asked_wait(error) or 0)
    elif not isinstance(error, NetworkError | WrongLength):
        return None
    return wait if wait <= policy.longest_wait else None


def _without_password(address: str) -> str:
    return re.sub(r"//[^/]*@", "//", address)


def _unresolved(error: BaseException | None) -> socket.gaierror | None:
    """The name service's answer that an error of the HTTP client comes from; None where it comes from another."""
    return _caused_by(error, socket.gaierror)


def _caused_by(error: BaseException | None, kind: type[E]) -> E | None:
    """The error of a kind that another comes from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, kind):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def asked_wait(error: Refused) -> int | None:
    """The seconds that a server asks to wait: by Retry-After, or by the time that the Hub's rate limit has left."""
    headers = error.headers
    if re.fullmatch(r"\d{1,9}", after := headers.get("Retry-After", "").strip()):
        return int(after)
    left = re.search(r";\s*r=0\s*;\s*t=(\d{1,9})", headers.get("RateLimit", ""))
    return int(left[1]) if left else None


def error_for(error: BaseException, ref: HubRef, tries: int) -> CsfToolError:
    """The error to raise for what huggingface_hub raised: what is wrong, and what to do."""
    if isinstance(error, OfflineModeIsEnabled):
        return EnvironmentFault(f"{ref}: the network is off, because HF_HUB_OFFLINE is set")
    if isinstance(error, HFValidationError):
        return UsageError(f"{ref}: cannot be the name of a repository or revision: {first_line(error)[:_LONGEST_TEXT]}")
    if isinstance(error, Refused):
        return _refused(error, ref, tries)
    if isinstance(error, NetworkError) and (unresolved := _unresolved(error)):
        asked = urlsplit(_url_of(error) or ref.endpoint).hostname
        return EnvironmentFault(
            f"{ref}: no address is known for {asked} ({unresolved.strerror}): "
            f"check the network, the proxy and HF_ENDPOINT (now {_without_password(ref.endpoint)})"
        )
    if isinstance(error, NetworkError | WrongLength):
        return EnvironmentFault(
            f"{ref}: no complete answer in {count(tries, 'try')}. The last error: {first_line(error)[:_LONGEST_TEXT]}: "
            f"check the network, the proxy and HF_ENDPOINT (now {_without_password(ref.endpoint)})"
        )
    if isinstance(error, OSError) and error.strerror:
        return EnvironmentFault(f"{ref}: cannot be fetched: {error.strerror}")
    return no_hub(ref, f"{type(error).__name__}: {first_line(error)[:_LONGEST_TEXT]}")


def _url_of(error: BaseException) -> str:
    """The address that an error of the HTTP client is about; it has none before there is a request."""
    try:
        return str(error.request.url)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return ""


def is_out_of_reach(error: EnvironmentFault) -> bool:
    """Whether an error says that there is no network to ask the Hub by, rather than what it answered."""
    return isinstance(error.__cause__, OfflineModeIsEnabled | NetworkError | WrongLength)


def no_hub(ref: HubRef, how: str) -> EnvironmentFault:
    """The error to raise where an answer is none that a Hub gives, or none can be asked for with these settings."""
    remedy = (
        "check HF_ENDPOINT, HF_TOKEN and other HF_ variables, the proxy, and whether a login page answers in its place"
    )
    return EnvironmentFault(f"{ref}: {ref.endpoint} cannot be reached, or does not answer like a Hub ({how}): {remedy}")


def _refused(error: Refused, ref: HubRef, tries: int) -> CsfToolError:
    status = error.status
    reason = brief(error.said.strip().split("\n")[0])[1:-1] or "no reason given"
    page = f"{ref.endpoint}/{ref.repo_id}"
    if error.kind == "GatedRepo":
        return EnvironmentFault(
            f"{ref}: is gated: accept its conditions at {page}, then log in (`hf auth login`, or HF_TOKEN)"
        )
    if error.kind == "RevisionNotFound":
        return UsageError(f"{ref}: the repository has no such branch, tag or commit: {page}/tree/main lists them")
    if error.kind == "EntryNotFound":
        problem = "the Hub lists the file, but answers that it does not exist"
        return CheckpointError(problem, Code.HUB_LACKS_FILE, str(ref))
    if status == 401:
        return EnvironmentFault(
            f"{ref}: no such repository, or it is private, or the token is not valid (401): check the name, "
            "or log in (`hf auth login`, or HF_TOKEN)"
        )
    if error.kind == "RepoNotFound":
        return UsageError(
            f"{ref}: no such repository on {ref.endpoint}, or it is private and this login may not see it: "
            "check the name, or log in (`hf auth login`, or HF_TOKEN)"
        )
    if status == 403:
        return EnvironmentFault(
            f"{ref}: access is refused (403: {reason}): request access at {page}, or use a token that has access"
        )
    if status == 429:
        wait = asked_wait(error)
        when = f"in {wait} seconds" if wait is not None else "later"
        return EnvironmentFault(
            f"{ref}: too many requests (429) in {count(tries, 'try')}: run the command again {when}; "
            "the limit is higher after `hf auth login`"
        )
    if status >= 500:
        return EnvironmentFault(
            f"{ref}: the server failed {count(tries, 'time')}, last with status {status}: run the command again later"
        )
    return EnvironmentFault(f"{ref}: the server answers with status {status}: {reason}")
