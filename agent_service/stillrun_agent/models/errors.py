"""Why a model gave no reply, and what that means for its effect.

    NotDone
    `-- Busy              nothing was done: asked again later
    ModelError            no reply will come of this request: the run ends with it
    |-- ContextTooLong, KeyRefused, SettingRefused, RequestRefused, AnswerTooLarge, AnswerCut
    `-- AnswerLost        in doubt: it may have been worked on, and billed; asked again by policy
        `-- AnswerLate

Always: `code` is what the log carries and programs branch on; no text here holds the key.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from stillrun.agent import NotDone

__all__ = [
    "MODEL_ERRORS",
    "AnswerCut",
    "AnswerLate",
    "AnswerLost",
    "AnswerTooLarge",
    "Busy",
    "ContextTooLong",
    "KeyRefused",
    "ModelError",
    "RequestRefused",
    "SettingRefused",
]


Doubt = Literal["error", "timeout"]


class Busy(NotDone):
    """The endpoint is away or has no room; it has said, or must have seen, that nothing was done.

    `retry_in_s` is always set: a model call that was not made is never given up at once.
    """

    def __init__(self, message: str, *, retry_in_s: float) -> None:
        super().__init__(message, retry_in_s=retry_in_s)


class ModelError(Exception):
    """The model gave no reply. `doubt`: why its effect is in doubt, None where it has failed."""

    code: ClassVar[str] = "model_error"
    doubt: ClassVar[Doubt | None] = None


class ContextTooLong(ModelError):
    """The messages do not fit the model; nothing is left out of them in silence."""

    code = "context_too_long"


class KeyRefused(ModelError):
    """The endpoint does not let us in: see MODEL_KEY_FILE."""

    code = "key_refused"


class SettingRefused(ModelError):
    """There is no such model, or no such path, or nobody pays for it: see MODEL_URL, MODEL_NAME."""

    code = "setting_refused"


class RequestRefused(ModelError):
    """The endpoint will never take this request."""

    code = "request_refused"


class AnswerTooLarge(ModelError):
    """The answer is over a bound of ours: to ask again would bring the same."""

    code = "answer_too_large"


class AnswerCut(ModelError):
    """The model was cut off within a call: what is there of its arguments must not be used."""

    code = "answer_cut"


class AnswerLost(ModelError):
    """The request went out and no readable answer came back."""

    code = "answer_lost"
    doubt: ClassVar[Doubt | None] = "error"


class AnswerLate(AnswerLost):
    """No answer in time."""

    code = "answer_late"
    doubt = "timeout"


# A call's outcome carries an exception as the name of its class and its text.
MODEL_ERRORS: dict[str, type[ModelError]] = {
    kind.__name__: kind
    for kind in (
        ModelError,
        ContextTooLong,
        KeyRefused,
        SettingRefused,
        RequestRefused,
        AnswerTooLarge,
        AnswerCut,
        AnswerLost,
        AnswerLate,
    )
}
