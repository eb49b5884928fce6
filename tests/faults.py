"""Disturbs a whole run of the workflow, at moments that hurt, and gives the same command again."""

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
from toolrl import manifest

COMMAND = [sys.executable, "-m", "snakemake", "--cores", "all", "results/report.html"]
POLL_SECONDS = 0.02

Process = subprocess.Popen
Due = Callable[[Path, float], bool]
"""Asked again and again, with the results folder and the seconds since the start."""


def kill_run(process: Process) -> None:
    """SIGKILL to the command and what shares its process group."""
    os.killpg(process.pid, signal.SIGKILL)


def kill_everything(process: Process) -> None:
    """As `kill_run`, and to the process groups that it has started, too, as a power failure would."""
    others = psutil.Process(process.pid).children(recursive=True)
    kill_run(process)
    for other in others:
        with contextlib.suppress(psutil.NoSuchProcess):
            other.kill()


def hear_ctrl_c() -> None:
    """A child of a background job would ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def press_ctrl_c(process: Process) -> None:
    os.killpg(process.pid, signal.SIGINT)


@dataclass(frozen=True)
class Fault:
    """What happens to a run, and when; `ends` tells that the command ends by it."""

    name: str
    due: Due
    strike: Callable[[Process], None] = kill_run
    ends: bool = True


@dataclass(frozen=True)
class Start:
    """One call of a command, and the faults that it meets in this order."""

    command: Sequence[str]
    faults: Sequence[Fault] = ()


def log_says(log: str, text: str) -> Due:
    """A stage's log, made anew by this run, contains a text."""

    def due(results: Path, seconds: float) -> bool:
        file = results / "logs" / f"{log}.log"
        fresh = file.exists() and time.time() - file.stat().st_mtime < seconds
        return fresh and text in file.read_text()

    return due


def writes_checkpoint(step: int) -> Due:
    """The checkpoint of a step is being written: its folder is there, but it is not yet named as complete."""

    def due(results: Path, seconds: float) -> bool:
        folders = list((results / "train" / "checkpoints").glob(f"*/global_step_{step}"))
        trackers = [folder.parent / "latest_checkpointed_iteration.txt" for folder in folders]
        return any(not tracker.exists() or tracker.read_text() != str(step) for tracker in trackers)

    return due


def attempt_begins(number: int) -> Due:
    """An attempt at training, counted from 1, is on record."""

    def due(results: Path, seconds: float) -> bool:
        files = list((results / "train" / "checkpoints").glob("*/attempts.json"))
        return any(len(manifest.read_json(file)["attempts"]) >= number for file in files)

    return due


def after(delay: float) -> Due:
    return lambda results, seconds: seconds >= delay


def run_with_faults(folder: Path, starts: Sequence[Start]) -> list[str]:
    """Runs each start until it ends; every fault comes at its moment, where that comes.

    Returns:
        the names of the faults that happened.

    Raises:
        AssertionError: when a start that nothing ends fails by itself.
    """
    done = []
    for start in starts:
        process = subprocess.Popen(
            start.command, cwd=folder, env=environment(), start_new_session=True, preexec_fn=hear_ctrl_c
        )
        started, ended = time.monotonic(), False
        try:
            for fault in start.faults:
                while process.poll() is None and not fault.due(folder / "results", time.monotonic() - started):
                    time.sleep(POLL_SECONDS)
                if process.poll() is not None:
                    break
                fault.strike(process)
                ended |= fault.ends
                done.append(fault.name)
                print(f"fault: {fault.name}", flush=True)
            process.wait()
        finally:
            if process.poll() is None:
                kill_everything(process)
        assert ended or process.returncode == 0, "a run failed; its messages stand above"
    return done


def kill_until_it_succeeds(folder: Path, kills: Sequence[Fault]) -> list[str]:
    """Runs `COMMAND` until it succeeds; each start meets the next of the kills, where its moment comes.

    Returns:
        the names of the kills that happened.
    """
    done: list[str] = []
    for kill in kills:
        happened = run_with_faults(folder, [Start(COMMAND, [kill])])
        done += happened
        if not happened:
            return done
    run_with_faults(folder, [Start(COMMAND)])
    return done
