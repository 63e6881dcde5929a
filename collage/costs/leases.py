"""Claims in the database, kept for as long as the work under them goes on.

Terms: others take a claim over when it was not renewed for as long as its *lease*.
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
    """A unique name for a process that claims."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def renewed(database: CostDatabase, owner: str, claims: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Renew the leases of claims inside the block, and release what is left at the end.

    `claims` gives the digests whose claims are kept; it is called each time.
    """
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LEASE_S / 3):
            # After a lease without the database others take over; fences keep order.
            with contextlib.suppress(DatabaseError):
                database.renew(claims(), owner, LEASE_S)

    if claims():
        threading.Thread(target=renew, name="lease", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        if left := claims():
            database.release(left, owner)


def wait_a_little(cancel: threading.Event | None) -> None:
    """Wait before the database is asked again."""
    if (cancel or threading.Event()).wait(_POLL_S):
        raise CancelledError("cancelled while another tuner works on the same")
