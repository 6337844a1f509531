"""Results that come after the work on their run is over: handed in, and never lost in silence.

Always: first as a fact of the epoch that made the call, which the store takes while no other worker
was granted the run; then as a settlement, as a person would write it. Ids are made once.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from msgspec.structs import replace

from stillrun import wire
from stillrun.client import Interrupted, StoreClient, new_id
from stillrun.codec import plain_data
from stillrun.errors import Fenced, InvalidBody, StillrunError
from stillrun.events import Data, EffectFailed, EffectSucceeded

from .outcomes import UNTAKABLE, bare, facts_of
from .patience import patiently
from .run_log import Draft
from .tools import Outcome

__all__ = ["hand_in"]

_log = logging.getLogger("stillrun.agent")


def hand_in(client: StoreClient, worker: str, outcome: Outcome, stop: threading.Event) -> None:
    """Tell the store how a call ended whose run is not ours any more; never raises."""
    call = outcome.call
    if call.kind == "hook" or stop.is_set():
        return  # the next holder asks again
    try:
        facts = facts_of(
            outcome,
            lambda data: patiently(lambda: client.put_blob(data, stop=stop), call.run),
        )
        try:
            _tell(client, worker, outcome, facts, stop)
        except (*UNTAKABLE, UnicodeEncodeError) as error:
            # The call was made: what cannot be stored of its outcome must not hide that it ended.
            left = [bare(fact, str(error), model=call.kind == "model") for fact in facts]
            _tell(client, worker, outcome, [fact for fact in left if fact is not None], stop)
    except Interrupted:
        _log.info("not handed in: %s: stopped", call)
    except StillrunError as error:
        # Somebody has settled it meanwhile, or the run is over: nothing is left to say.
        _log.info("not handed in: %s: %s: %s", call, error.code, error.detail)
    except Exception:
        _log.exception("not handed in: %s", call)


def _tell(
    client: StoreClient, worker: str, outcome: Outcome, facts: list[Data], stop: threading.Event
) -> None:
    call = outcome.call
    append = wire.AppendEvents(
        events=[Draft.of(fact).to_wire() for fact in facts], epoch=call.epoch
    )
    try:
        patiently(lambda: client.append(call.run, append, stop=stop), call.run)
    except Fenced:
        _settle(client, worker, outcome, facts[0], stop)
    else:
        _log.info("handed in late: %s", call)


def _settle(
    client: StoreClient, worker: str, outcome: Outcome, fact: Data, stop: threading.Event
) -> None:
    call = outcome.call
    if isinstance(fact, EffectSucceeded):
        result: Any = fact.result if fact.blob is None else {"$blob": plain_data(fact.blob)}
        settle = wire.SettleEffect(
            outcome="happened",
            result=result,
            vars=fact.vars,
            usage=fact.usage,
            by=worker,
            id=new_id(),
        )
    elif isinstance(fact, EffectFailed) and outcome.what in ("not_started", "not_done"):
        evidence = {"worker": worker, "error": plain_data(fact.error)}
        settle = wire.SettleEffect(
            outcome="did_not_happen",
            evidence=evidence,
            by=worker,
            attempt=call.attempt,  # a later one, of another worker, may have done it
            id=new_id(),
        )
    else:
        return  # nobody knows what it did: the doubt stands
    try:
        patiently(lambda: client.settle(call.run, call.effect, settle, stop=stop), call.run)
    except InvalidBody as error:
        if settle.usage is None or error.facts.get("pointer") not in ("", "/usage"):
            raise
        # An older store: what the call has cost is not worth its result.
        less = replace(settle, usage=None)
        patiently(lambda: client.settle(call.run, call.effect, less, stop=stop), call.run)
    _log.info("handed in as a settlement: %s", call)
