"""Kills a whole run of the workflow with SIGKILL, at moments that hurt, and starts the same command again."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from conftest import environment

COMMAND = [sys.executable, "-m", "snakemake", "--cores", "all", "results/report.html"]
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Kill:
    """When to kill: `due` is asked again and again, with the results folder and the seconds since the start."""

    name: str
    due: Callable[[Path, float], bool]
    whole_machine: bool = False
    """Kills the process groups that the run has started, too, as a power failure would."""


def log_says(log: str, text: str) -> Callable[[Path, float], bool]:
    """A stage's log, made anew by this run, contains a text."""

    def due(results: Path, seconds: float) -> bool:
        file = results / "logs" / f"{log}.log"
        fresh = file.exists() and time.time() - file.stat().st_mtime < seconds
        return fresh and text in file.read_text()

    return due


def writes_checkpoint(step: int) -> Callable[[Path, float], bool]:
    """The checkpoint of a step is being written: its folder is there, but it is not yet named as complete."""

    def due(results: Path, seconds: float) -> bool:
        folders = list((results / "train" / "checkpoints").glob(f"*/global_step_{step}"))
        trackers = [folder.parent / "latest_checkpointed_iteration.txt" for folder in folders]
        return any(not tracker.exists() or tracker.read_text() != str(step) for tracker in trackers)

    return due


def after(delay: float) -> Callable[[Path, float], bool]:
    return lambda results, seconds: seconds >= delay


def run_with_kills(folder: Path, kills: Sequence[Kill], command: Sequence[str] = COMMAND) -> list[str]:
    """Runs until it succeeds; each start is killed at the next moment of the list, where it comes.

    Returns:
        the names of the kills that happened.

    Raises:
        AssertionError: when a start ends by itself with an error.
    """
    done = []
    for kill in [*kills, None]:
        process = subprocess.Popen(command, cwd=folder, env=environment(), start_new_session=True)
        started = time.monotonic()
        try:
            while process.poll() is None and not (kill and kill.due(folder / "results", time.monotonic() - started)):
                time.sleep(POLL_SECONDS)
        finally:
            killed = process.poll() is None
            if killed:
                others = psutil.Process(process.pid).children(recursive=True)
                os.killpg(process.pid, signal.SIGKILL)
                for other in others if kill and kill.whole_machine else []:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        other.kill()
                process.wait()
        if killed and kill:
            print(f"killed: {kill.name}", flush=True)
            done.append(kill.name)
            continue
        assert process.returncode == 0, "a run failed; its messages stand above"
        break
    return done
