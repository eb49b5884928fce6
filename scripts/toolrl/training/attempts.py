"""The record of a training's attempts: when each began and ended, why, and how far it came."""

import socket
import time
from pathlib import Path
from typing import Any

from toolrl import manifest
from toolrl.machine import scheduler_job, slurm_state

FILE = "attempts.json"
KILLED, INTERRUPTED = "killed", "interrupted"


def read(work: Path) -> list[dict[str, Any]]:
    """Every attempt so far: number, started and ended (Unix seconds), reason, from_step, to_step, host, job, how the
    scheduler says that the job ended, gpus, and the watchdog's alarms.

    `ended` and `reason` are None for the one that is running.
    """
    return manifest.read_json(work / FILE)["attempts"] if (work / FILE).exists() else []


def close_killed(work: Path, last_step: int) -> None:
    """Notes that an attempt which left no end was killed, and what the scheduler says about it; `last_step` is the last
    step that it finished."""
    attempts = read(work)
    for attempt in attempts:
        if attempt["ended"] is None:
            attempt |= {"ended": _last_sign_of_life(work, attempt), "reason": KILLED, "to_step": last_step}
        if attempt["reason"] in (KILLED, INTERRUPTED) and attempt["job"] and attempt["job_state"] is None:
            attempt["job_state"] = slurm_state(attempt["job"])
    if attempts:
        manifest.write_json(work / FILE, {"attempts": attempts})


def begin(work: Path, from_step: int, gpus: int) -> int:
    """Notes that an attempt begins.

    Args:
        work: the training's folder.
        from_step: the step of the checkpoint that it continues from, 0 for none.
        gpus: how many it uses.

    Returns:
        its number, from 1.
    """
    attempts = read(work)
    number = len(attempts) + 1
    attempts.append(
        {
            "number": number,
            "started": time.time(),
            "ended": None,
            "reason": None,
            "from_step": from_step,
            "to_step": from_step,
            "host": socket.gethostname(),
            "job": scheduler_job(),
            "job_state": None,
            "gpus": gpus,
            "alarms": [],
        }
    )
    manifest.write_json(work / FILE, {"attempts": attempts})
    return number


def end(work: Path, reason: str, to_step: int) -> None:
    """Notes why the last attempt ended, and the last step that it finished."""
    attempts = read(work)
    attempts[-1] |= {"ended": time.time(), "reason": reason, "to_step": to_step}
    manifest.write_json(work / FILE, {"attempts": attempts})


def note_alarm(work: Path, alarm: dict[str, Any]) -> None:
    """Adds an alarm (`Alarm.record`) to the running attempt."""
    attempts = read(work)
    attempts[-1]["alarms"].append(alarm)
    manifest.write_json(work / FILE, {"attempts": attempts})


def _last_sign_of_life(work: Path, attempt: dict[str, Any]) -> float:
    log = work / "verl.log"
    return max(attempt["started"], log.stat().st_mtime if log.exists() else 0.0)
