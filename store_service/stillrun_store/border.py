"""The one border at which the engine's errors become the tree of `stillrun.errors`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stillrun.errors import CorruptLog, OutcomeUnknown, Overloaded, RunDeleted

from .runs import Entry
from .space import Space
from .storage import Damage as DiskDamage
from .storage import Engine
from .storage import errors as disk

__all__ = ["damage_of", "translated"]


@contextlib.contextmanager
def translated(engine: Engine, space: Space, entry: Entry | None = None) -> Iterator[None]:
    """Around calls of the engine; `entry`: the run that they are about, marked if it is damaged."""
    try:
        yield
    except disk.DroppedRun as error:
        detail = f"run {error.run!r} was deleted; ids are never reused"
        raise RunDeleted(detail, run=error.run) from error
    except disk.DiskFull as error:
        raise space.refused(error) from error
    except disk.OutcomeUnknown as error:
        raise OutcomeUnknown(str(error)) from error
    except disk.DataDirUnusable as error:  # no file could be opened: nothing was written
        raise Overloaded(str(error)) from error
    except disk.RunExists as error:  # not one of ours: its directory holds what we did not write
        raise CorruptLog(str(error)) from error
    except disk.DamagedLog as error:
        damage = CorruptLog(str(error), run=error.run, seq=error.seq)
        info = None if entry is None else engine.info(entry.run)
        # A read that failed once may work again: only what the engine has marked stays refused.
        if entry is not None and info is not None and info.damage is not None:
            entry.damage = damage
        raise damage from error


def damage_of(damage: DiskDamage) -> CorruptLog:
    detail = f"run {damage.run}: damaged at seq {damage.seq}: {damage.detail}"
    return CorruptLog(detail, run=damage.run, seq=damage.seq)
