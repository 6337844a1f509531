"""The one error tree. Every error knows its code, its status, and what the caller may do next.

    StillrunError
    |-- Refused       change something, then try again
    |   |-- MalformedBody, InvalidParameter, InvalidBody, UnsupportedValue, TooLarge, ...
    |   |-- RunNotFound, SeqOutOfRange, RunExists, RunClosed, RunDeleted, ...
    |   |-- SeqConflict, Fenced, EventIdReused
    |   `-- CheckRefused  a rule of `check`, with a code of its own
    |-- Unavailable   try again with the same ids
    |   `-- Recovering, Stopping, Overloaded, OutcomeUnknown, DiskFull
    `-- Damaged       stop and call a person
        `-- CorruptLog, UnknownSchema

Clients branch on `code`, never on the text.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["CODES", "Damaged", "Refused", "StillrunError", "Unavailable", "from_problem"]


class StillrunError(Exception):
    """What every refusal carries: `code`, `status`, `retryable`, and `facts` for programs."""

    code: str = "internal"
    status: int = 500
    retryable: bool = False
    title: ClassVar[str] = "Something went wrong"

    def __init__(self, detail: str, **facts: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts


class Refused(StillrunError):
    """The request cannot be taken as it is: change something."""

    status = 400


class Unavailable(StillrunError):
    """Not now: send the same request, with the same ids, again."""

    status, retryable = 503, True


class Damaged(StillrunError):
    """Stored bytes are not what was written: stop and call a person."""


# --- the body or a parameter is wrong


class MalformedBody(Refused):
    """The body cannot be read as JSON or msgpack: mend its syntax or its Content-Type."""

    code, title = "malformed_body", "The body cannot be read"


class InvalidParameter(Refused):
    """A path part, a query parameter, an id or a filter is wrong: `parameter` names it."""

    code, title = "invalid_parameter", "A parameter is wrong"

    def __init__(self, parameter: str, detail: str) -> None:
        super().__init__(f"{parameter}: {detail}", parameter=parameter)


class CrossOrigin(Refused):
    """A browser page of another origin or a foreign host name: set ALLOWED_HOSTS if it is yours."""

    code, status, title = "cross_origin", 403, "Host or origin not allowed"


class NotFound(Refused):
    """No such address here: GET / lists what there is."""

    code, status, title = "not_found", 404, "Nothing lives at this path"


class MethodNotAllowed(Refused):
    """The path exists, the method does not: see the Allow header."""

    code, status, title = "method_not_allowed", 405, "Method not allowed here"


class NotAcceptable(Refused):
    """None of the types in Accept can be served; nothing was done."""

    code, status, title = "not_acceptable", 406, "No representation fits Accept"


class UnsupportedMediaType(Refused):
    """Send JSON (or no Content-Type), or application/vnd.msgpack, uncompressed."""

    code, status, title = "unsupported_media_type", 415, "Body type not supported"


class TooLarge(Refused):
    """Over a named limit: send less at once, or a blob (PUT /blobs/{sha256}) and its reference."""

    code, status, title = "too_large", 413, "Over a size limit"


class InvalidBody(Refused):
    """The body reads well but has a wrong shape: `pointer` names the place."""

    code, status, title = "invalid_body", 422, "The body has a wrong shape"

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer or 'body'}: {detail}", pointer=pointer)


class UnsupportedValue(Refused):
    """A value that JSON and msgpack cannot both hold: `pointer` names it."""

    code, status, title = "unsupported_value", 422, "A value cannot be stored"

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer or 'value'}: {detail}", pointer=pointer)


class UnknownEventType(Refused):
    """An undotted type is Stillrun's own: use one of the built-in types, or a dotted name."""

    code, status, title = "unknown_event_type", 422, "Unknown event type"


class WrongWriter(Refused):
    """This type of event is written by somebody else, through the route that `route` names."""

    code, status, title = "wrong_writer", 422, "This type has another writer"


# --- the run, the seq, the epoch


class RunNotFound(Refused):
    """No run of that id was ever started here: check the id, or start it."""

    code, status, title = "run_not_found", 404, "No such run"

    def __init__(self, run: str) -> None:
        super().__init__(f"no run {run!r}", run=run)


class SeqOutOfRange(Refused):
    """The ref names no event of this run: seqs go from 1 to `head_seq`."""

    code, status, title = "seq_out_of_range", 404, "No such seq"


class WaitNotFound(Refused):
    """The run never had a wait of that id: GET /runs/{run}/waits lists them."""

    code, status, title = "wait_not_found", 404, "No such wait"


class EffectNotFound(Refused):
    """The run never had an effect of that id: GET /runs/{run}/effects lists them."""

    code, status, title = "effect_not_found", 404, "No such effect"


class BlobNotFound(Refused):
    """No blob of that digest: PUT it first."""

    code, status, title = "blob_not_found", 404, "No such blob"


class AgentNotFound(Refused):
    """This agent service has no agent of that name: GET /agents lists them."""

    code, status, title = "agent_not_found", 404, "No such agent"


class RunExists(Refused):
    """A run of that id was started differently: choose another id, or send the same again."""

    code, status, title = "run_exists", 409, "The run exists already"


class RunDeleted(Refused):
    """The run was deleted; its id is never used again."""

    code, status, title = "run_deleted", 410, "The run was deleted"


class RunClosed(Refused):
    """The run has ended: start another one, or fork it."""

    code, status, title = "run_closed", 409, "The run has ended"


class SeqConflict(Refused):
    """Another writer came first: read from `head_seq`, decide again, append with the new seq."""

    code, status, title = "seq_conflict", 409, "The run has moved on"


class Fenced(Refused):
    """Your epoch is not the current one: stop working on this run, claim again if you may."""

    code, status, title = "fenced", 409, "The epoch is not current"


class SchemaBehind(Refused):
    """This worker reads an older schema version than the store writes: upgrade it first."""

    code, status, title = "schema_behind", 409, "The worker is behind the store"


class EventIdReused(Refused):
    """These event ids belong to other content: make new ids for new events."""

    code, status, title = "event_id_reused", 422, "Event ids were used for something else"


class WaitNotOpen(Refused):
    """The wait was answered, timed out or cancelled, or none is open: the body says how."""

    code, status, title = "wait_not_open", 409, "The wait is not open"


class CheckRefused(Refused):
    """A rule of `check` forbids this event now; `code` names the rule."""

    status, title = 409, "Not allowed in this state"

    def __init__(self, code: str, detail: str, **facts: object) -> None:
        super().__init__(detail, **facts)
        self.code = code


# --- not now


class Recovering(Unavailable):
    """The service is reading its files after a start."""

    code, title = "recovering", "Recovering"


class Stopping(Unavailable):
    """The service is going down; its successor will answer."""

    code, title = "stopping", "Stopping"


class Overloaded(Unavailable):
    """A named limit of requests in progress is reached."""

    code, title = "overloaded", "Overloaded"


class OutcomeUnknown(Unavailable):
    """The request may or may not have taken effect: repeat it with the same ids to learn which."""

    code, title = "outcome_unknown", "Outcome unknown"


class DiskFull(Unavailable):
    """The volume takes no more, for lack of what `lacking` says; reads and deletions go on.
    Make room, then send the same again: nothing was written, and no restart is needed."""

    code, status, title = "disk_full", 507, "Disk full"


# --- stop


class CorruptLog(Damaged):
    """Stored events cannot be trusted from `seq` on; earlier ones and other runs are served."""

    code, title = "corrupt_log", "Damage in the log"


class UnknownSchema(Damaged):
    """Written by a newer version: upgrade this service; nothing was touched."""

    code, title = "unknown_schema", "Written by a newer version"


class Internal(StillrunError):
    """A defect of Stillrun: the log of the service has the traceback under `request_id`."""

    title = "Internal error"


# Codes that `check` gives, with what to do; GET /problems/{code} serves them beside the classes.
CHECK_CODES: dict[str, str] = {
    "cancel_requested": "A cancel was asked for: only outcomes and the end may follow.",
    "run_paused": "The run is paused: POST /runs/{run}/unpause first.",
    "run_not_paused": "The run is not paused.",
    "keeps_no_snapshots": "The run's storage model is log: PUT /runs/{run}/storage first.",
    "effect_not_planned": "Plan the call first, or intend the one that is planned.",
    "effect_not_open": "The effect already has its outcome, or was never intended.",
    "effect_not_in_doubt": "Only an effect in doubt can be settled: see its status.",
    "effect_in_doubt": "A write is in doubt: settle it before another write starts.",
    "effects_simulated": "This fork makes no writes: ask for approval, or simulate the call.",
    "effects_live": "Effects of this run are not simulated.",
    "effect_open": "An effect has no outcome yet: the run cannot end before.",
    "plan_not_finished": "The calls of the last plan have neither result nor drop.",
    "wrong_ordinal": "Ids of effects and waits follow the run's own count: fold, decide anew.",
    "wrong_key": "The key must be <run>.<log_id>.<ordinal>.<8 hex of args digest>.",
    "wrong_messages": "Messages are replaced whole, in order, with their calls and answers.",
    "wrong_attempt": "The attempt must be one more than the last.",
    "wrong_args": "Name and arguments must be those that were planned or approved.",
    "approval_open": "The call waits for an approval.",
    "no_lease": "The lease is over: claim the run again.",
    "unused_full": "Too many unused signals or messages wait in this run.",
    "not_cancelled": "Only a run with a cancel can end as cancelled.",
    "limit_reached": "A named limit of this run is reached.",
    "several_open": "Several approvals are open: answer one by its id.",
    "wrong_answer": "The wait does not take this answer.",
}


def _leaves(kind: type[StillrunError]) -> list[type[StillrunError]]:
    subclasses = kind.__subclasses__()
    return [kind] if not subclasses else [leaf for sub in subclasses for leaf in _leaves(sub)]


CODES: dict[str, type[StillrunError]] = {
    kind.code: kind for kind in _leaves(StillrunError) if kind is not CheckRefused
}


def from_problem(problem: dict[str, object], status: int) -> StillrunError:
    """The error that a problem+json body stands for; an unknown code keeps its status' kind."""
    code = str(problem.get("code", "internal"))
    detail = str(problem.get("detail", problem.get("title", "")))
    known = {"type", "title", "status", "detail", "instance", "code", "retryable"}
    facts = {key: value for key, value in problem.items() if key not in known}
    kind = CODES.get(code)
    if kind is None:
        kind = Unavailable if status in (502, 503, 504) else Refused if status < 500 else Damaged
    error = kind.__new__(kind)
    StillrunError.__init__(error, detail, **facts)
    error.code, error.status = code, status
    return error
