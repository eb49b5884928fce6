"""Locks that end with the process that holds them, even when it is killed."""

import fcntl
import time
from pathlib import Path
from typing import IO

from toolrl.errors import UserError

POLL_SECONDS = 0.5


def acquire(path: Path, patience_seconds: float) -> IO[str]:
    """Opens and locks a file; the lock lasts until it is closed here and in every child that inherits it.

    Raises:
        UserError: when another process has it for longer than one is willing to wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = open(path, "w")  # noqa: SIM115
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() >= deadline:
                handle.close()
                raise UserError(
                    f"another run works in {path.parent.resolve()}: wait for it to end, or stop it."
                ) from None
            time.sleep(POLL_SECONDS)
