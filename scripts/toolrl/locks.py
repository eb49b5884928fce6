"""Locks that end with the process that holds them, even when it is killed."""

import fcntl
import time
from pathlib import Path
from typing import IO

from toolrl.errors import UserError

POLL_SECONDS = 0.5


def attempt(path: Path) -> IO[str] | None:
    """Opens and locks a file; None if another process has it. The lock lasts until it is closed here and in every
    child that inherits it.

    Raises:
        UserError: on a file system without locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = open(path, "w")  # noqa: SIM115
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    except OSError as error:
        handle.close()
        raise UserError(
            f"the file system of {path.parent.resolve()} cannot lock files ({error.strerror}): mount it with flock, or "
            "work in another folder."
        ) from None
    return handle


def acquire(path: Path, patience_seconds: float) -> IO[str]:
    """As `attempt`, but waits.

    Raises:
        UserError: when another process has it for longer than one is willing to wait.
    """
    deadline = time.monotonic() + patience_seconds
    while (handle := attempt(path)) is None:
        if time.monotonic() >= deadline:
            raise UserError(f"another run works in {path.parent.resolve()}: wait for it to end, or stop it.")
        time.sleep(POLL_SECONDS)
    return handle
