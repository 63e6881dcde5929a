"""Claims in the database that are held for as long as the work under them goes on.

Terms: a claim's *lease* is how long others wait for a sign of life before they take it over.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence

from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import DatabaseError
from collage.partitioner.errors import CancelledError

LEASE_S = 20.0
_POLL_S = 0.1


def new_owner() -> str:
    """A name for whoever claims, unlike all others'."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def kept(database: CostDatabase, owner: str, held: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Renew the leases of claims meanwhile, and give back at the end what is held still.

    Args:
        held: digests whose claims are to be kept, asked each time anew.
    """
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LEASE_S / 3):
            # Away for longer than a lease: others may take over then, and fences keep order.
            with contextlib.suppress(DatabaseError):
                database.renew(held(), owner, LEASE_S)

    if held():
        threading.Thread(target=renew, name="lease", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        if left := held():
            database.release(left, owner)


def wait_a_little(cancel: threading.Event | None) -> None:
    """Let others work before the database is asked again.

    Raises:
        CancelledError: `cancel` was set.
    """
    if (cancel or threading.Event()).wait(_POLL_S):
        raise CancelledError("cancelled while another tuner works on the same")
