"""Which store a process works for: learnt at the first contact, and no other one from then on.

Always: a different or empty store is refused by name: its runs are not ours, and what it does not
know of would be done again (DESIGN 6).
"""

from __future__ import annotations

from .codec import decode_json
from .errors import Damaged, StillrunError
from .transport import Reply

__all__ = ["DifferentStore", "KnownStore"]


class DifferentStore(Damaged):
    """A different or empty store answers at this URL: mount the right volume, or restart me."""

    code, status, title = "different_store", 503, "A different or empty store"


class KnownStore:
    """The id of the store that one process works for; None until the first contact."""

    def __init__(self, store_id: str | None) -> None:
        self.store_id = store_id

    def recognise(self, url: str, reply: Reply) -> None:
        """Judge the answer to `GET /`: see `check`."""
        try:
            found = decode_json(reply.body)["store_id"] if reply.status == 200 else None
        except (StillrunError, LookupError, TypeError):
            found = None
        self.check(url, found)

    def check(self, url: str, found: object) -> None:
        """Learn the store's id, or raise DifferentStore; `found`: what answers at `url` says."""
        if not isinstance(found, str):
            raise DifferentStore(f"{url} does not answer as a Stillrun store")
        if self.store_id is None:
            self.store_id = found
        elif found != self.store_id:
            raise DifferentStore(
                f"a different or empty store answers at {url}: its id is {found}, "
                f"not {self.store_id}; mount the volume of {self.store_id} again, "
                "or restart this process to work for the other one",
                store_id=found,
                expected=self.store_id,
            )
