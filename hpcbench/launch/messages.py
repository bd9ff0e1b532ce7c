"""Messages between a supervisor, its template and its worker: typed here, JSON on the socket.

A supervisor sends a `Request` and gets an `Answer`; a template gets the kinds of cases, then
`ForkRequest` objects, and reports `TemplateEvent` objects."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import field
from multiprocessing.connection import Connection, wait
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from hpcbench.launch.verdict import RankOutcome
from hpcbench.plain import Codec, Int64, Plain
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.records import dataclass
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import NO_COMMUNICATOR

if TYPE_CHECKING:
    from hpcbench.config.section import Fault

PlainCase = Annotated[Case, Codec(case_from_json, case_to_json)]


def _fault(plain: Any) -> Fault:
    from hpcbench.config.section import Fault as Section  # a worker seldom needs the schema

    return Section.model_validate(plain)


if TYPE_CHECKING:
    PlainFault = Fault
else:
    PlainFault = Annotated[Any, Codec(_fault, methodcaller("model_dump", mode="json"))]


@dataclass(frozen=True, slots=True)
class FactsRequest:
    """Probe this machine, and ``tools`` on it (`backends.availability.tool_facts`). Children for
    calls that may hang have at most ``limit_s`` (`backends.facts`)."""

    tools: tuple[str, ...]
    limit_s: float
    request: Literal["facts"] = "facts"


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """Open the store at which all workers meet: on this address, on the first free port."""

    address: str
    ports: tuple[int, ...]
    timeout_s: float
    request: Literal["store"] = "store"


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Join the process group at ``address``. ``gpu`` is None for a worker without a GPU."""

    address: str
    port: int
    rank: int
    world_size: int
    local_rank: int
    local_size: int
    gpu: int | None
    timeout_s: float
    request: Literal["join"] = "join"


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """Run a case; ``number`` is unique in the job, ``faults`` and ``clock`` are this rank's.

    Its samples suffice after ``budget_s`` or at ``precision``."""

    case: PlainCase
    number: int
    device: str
    faults: tuple[PlainFault, ...]
    clock: ClockModel
    budget_s: float
    precision: float
    request: Literal["case"] = "case"


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Take profiled samples of a case, and write this rank's trace of them to ``path``.

    ``faults``: those of this rank that make samples take longer."""

    case: PlainCase
    number: int
    device: str
    faults: tuple[PlainFault, ...]
    clock: ClockModel
    samples: int
    attempt: int
    path: str
    tool: str
    request: Literal["profile"] = "profile"


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """Set a case up and call it once, as rank 0 of a world that does not exist."""

    case: PlainCase
    request: Literal["dry_run"] = "dry_run"


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """Leave the process group together with the other workers, and end."""

    request: Literal["leave"] = "leave"


Request = (FactsRequest | StoreRequest | JoinRequest | CaseRequest | ProfileRequest
           | DryRunRequest | LeaveRequest)


@dataclass(frozen=True, slots=True)
class FactsAnswer:
    """`backends.facts.gather_facts` of this machine."""

    facts: Mapping[str, Any]
    answer: Literal["facts"] = "facts"


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The store listens on this port."""

    port: int
    answer: Literal["store"] = "store"


@dataclass(frozen=True, slots=True)
class DoneAnswer:
    """A request without a result was carried out."""

    answer: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """A worker's report of a case beside its samples.

    ``n_wrong``: wrong elements of all checks, -1 without a check; ``wrong`` describes the first.
    ``phases``: by name a list of ns, one per row. ``detail``: the operation's own, plain JSON
    values. ``left_behind``: what the case has changed in the worker, in words."""

    begin_ns: Int64
    end_ns: Int64
    device: str
    stop_reason: str = ""
    communicator_ns: Int64 = NO_COMMUNICATOR
    n_wrong: Int64 = -1
    wrong: str = ""
    phases: Mapping[str, list[Int64]] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    left_behind: str = ""
    answer: Literal["case"] = "case"


@dataclass(frozen=True, slots=True)
class DryRunAnswer:
    """``calls``: collective -> (calls, bytes in all). ``needed``: the error for missing values,
    after which memory was used; "" without one."""

    calls: Mapping[str, tuple[int, int]]
    needed: str = ""
    answer: Literal["dry_run"] = "dry_run"


@dataclass(frozen=True, slots=True)
class FailureAnswer:
    """A request failed: how, the first line of the error, and whether memory was refused."""

    outcome: RankOutcome
    cause: str
    out_of_memory: bool = False
    answer: Literal["failure"] = "failure"


Answer = FactsAnswer | StoreAnswer | DoneAnswer | CaseAnswer | DryRunAnswer | FailureAnswer


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Fork a worker; ``capacity`` is the rows of its progress, a memory limit of 0 is none."""

    env: Mapping[str, str]
    memory_limit_bytes: int
    capacity: int


@dataclass(frozen=True, slots=True)
class TemplateEvent:
    """The template is ready (``pid`` 0), has forked a worker, or a worker has ended with ``code``
    (negative: a signal)."""

    event: Literal["ready", "forked", "ended"]
    pid: int
    code: int


Message = TypeVar("Message")
Sent = TypeVar("Sent")
Received = TypeVar("Received")


def encoded(form: Plain[Message], message: Message) -> bytes:
    """Return a message as ASCII JSON."""
    return json.dumps(form.write(message)).encode()


def decoded(form: Plain[Message], data: bytes) -> Message:
    """Return the message in the bytes of `encoded`. Raises ValueError for any other bytes."""
    return form.read(json.loads(data))


REQUESTS: Plain[Request] = Plain(Request)
ANSWERS: Plain[Answer] = Plain(Answer)
LOAD_REQUESTS: Plain[tuple[str, ...]] = Plain(tuple[str, ...])
"""The kinds whose cases the template is to import for: its first message."""
FORK_REQUESTS: Plain[ForkRequest] = Plain(ForkRequest)
TEMPLATE_EVENTS: Plain[TemplateEvent] = Plain(TemplateEvent)


class Channel(Generic[Sent, Received]):
    """One end of the socket pair. A closed peer shows as ``EOFError`` from `receive`."""

    def __init__(
        self, fd: int, sent: Plain[Sent], received: Plain[Received],
    ) -> None:
        """Take ownership of the connected socket ``fd``; the forms are of the messages."""
        self._connection = Connection(fd)
        self._sent = sent
        self._received = received

    def send(self, message: Sent) -> None:
        self._connection.send_bytes(encoded(self._sent, message))

    def receive(self) -> Received:
        """Return a message. Raises EOFError or OSError without a peer, ValueError for other data.
        """
        return decoded(self._received, self._connection.recv_bytes())

    def wait(self, timeout_s: float, wakeup_fd: int | None = None) -> bool:
        """Sleep until there is a message or the peer is gone, or ``wakeup_fd`` readable (False)."""
        watched: list[Any] = [self._connection, *([] if wakeup_fd is None else [wakeup_fd])]
        return self._connection in wait(watched, max(timeout_s, 0.0))

    def close(self) -> None:
        self._connection.close()


SupervisorChannel = Channel[Request, Answer]
WorkerChannel = Channel[Answer, Request]


def supervisor_channel(fd: int) -> SupervisorChannel:
    return Channel(fd, REQUESTS, ANSWERS)


def worker_channel(fd: int) -> WorkerChannel:
    return Channel(fd, ANSWERS, REQUESTS)


def socket_pair() -> tuple[int, int]:
    """Return two connected descriptors, closed on exec unless passed on."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()
