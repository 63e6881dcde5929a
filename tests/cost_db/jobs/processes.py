"""What other processes do in tests of the cost database: `python -m tests.cost_db.jobs.processes NAME …`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from collage.cost_db.database import CostDatabase
from collage.cost_db.errors import StaleFenceError
from tests.cost_db.builders import key, measured

ROOT = Path(__file__).parents[3]


def start(name: str, *words: object) -> subprocess.Popen[str]:
    """Run a function of this module in a process of its own; its lines come over stdout."""
    command = [sys.executable, "-m", "tests.cost_db.jobs.processes", name, *map(str, words)]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )


def write_forever(url: str, first: str) -> None:
    """Claim and store key after key; print each number after `store` returned."""
    database = CostDatabase(url)
    number = int(first)
    while True:
        row = measured(number)
        fence = database.claim([row.digest], f"writer {first}", 60.0).granted[row.digest]
        database.store(row, fence)
        print(number, flush=True)
        number += 1


def measure_shared(url: str, owner: str, count: str, lease_s: str) -> None:
    """Get all keys measured, by ourselves or by others; print each number that we measure."""
    database = CostDatabase(url)
    print("ready", flush=True)
    sys.stdin.readline()
    numbers = {key(number).digest: number for number in range(int(count))}
    missing = set(numbers)
    while missing:
        # Ten at a time, and each from another end: so all have something to do.
        wanted = sorted(missing, key=lambda digest: hash((owner, digest)))[:10]
        claims = database.claim(wanted, owner, float(lease_s))
        for digest, fence in claims.granted.items():
            print(numbers[digest], flush=True)
            time.sleep(0.002)
            database.store(measured(numbers[digest], host=owner), fence)
        missing -= claims.known.keys() | claims.granted.keys()
        if not claims.granted:
            time.sleep(0.01)


def claim_and_store(url: str, lease_s: str) -> None:
    """Claim one key, wait for a line, store the cost, and print the result."""
    database = CostDatabase(url)
    fence = database.claim([key()], "sleeper", float(lease_s)).granted[key().digest]
    print("claimed", flush=True)
    sys.stdin.readline()
    try:
        database.store(measured(latency_us=999.0), fence)
    except StaleFenceError:
        print("refused", flush=True)


def open_once(url: str) -> None:
    """Open the database, which makes or upgrades it."""
    print("ready", flush=True)
    sys.stdin.readline()
    CostDatabase(url).close()
    print("done", flush=True)


if __name__ == "__main__":
    functions = (write_forever, measure_shared, claim_and_store, open_once)
    {function.__name__: function for function in functions}[sys.argv[1]](*sys.argv[2:])
