"""The starts and faults of the one real run of the default experiment, on this machine and through Slurm."""

import sys
import time
from typing import Any

import attentive_snakemake
import slurm
from faults import (
    COMMAND,
    Fault,
    Process,
    Start,
    attempt_begins,
    kill_everything,
    log_says,
    press_ctrl_c,
    writes_checkpoint,
)

# one job at a time: two engines on the same two cores would wait for each other
SUBMIT = ["results/report.html", "--profile", "profiles/slurm", "--jobs", "1", "--retries", "4"]
# the default experiment needs no GPU; it asks for one here, so that Slurm has to find it
SUBMIT += ["--set-resources", "train:gpu=1", "evaluate:gpu=1"]
TOO_LITTLE_MEMORY = "train:mem_mb=1500 if attempt == 2 else 12000"
SECONDS_TO_CANCEL = 60

WARM_START = log_says("warm_start", "step 100/")
EXPORT = log_says("train", "exporting the model")


def here() -> list[Start]:
    """Three kills, on a machine without Slurm."""
    return [
        Start(COMMAND, [Fault("during the warm start", WARM_START)]),
        Start(COMMAND, [Fault("while a checkpoint is written", writes_checkpoint(8), kill_everything)]),
        Start(COMMAND, [Fault("while the model is exported", EXPORT)]),
        Start(COMMAND),
    ]


def submitted(observed: dict[str, Any]) -> list[Start]:
    """Three losses of the training job in one call of the command, which Ctrl-C ends, and a kill of a local start.

    Args:
        observed: gets what Slurm says at these moments.
    """

    def interrupt(process: Process) -> None:
        press_ctrl_c(process)
        process.wait()
        deadline = time.monotonic() + SECONDS_TO_CANCEL
        while (left := slurm.active_jobs()) and time.monotonic() < deadline:
            time.sleep(1)
        observed["left after Ctrl-C"] = left

    def lose(process: Process) -> None:
        slurm.lose("train")

    def look(process: Process) -> None:
        observed["train's TRES"] = slurm.resources("train")

    def end_time(process: Process) -> None:
        slurm.end_time("train")

    lost = [
        Fault("cancelled while a checkpoint is written", writes_checkpoint(8), lose, ends=False),
        # it has too little, and Slurm kills it
        Fault("out of memory", attempt_begins(2), look, ends=False),
        Fault("out of time", attempt_begins(3), end_time, ends=False),
        Fault("Ctrl-C while the model is exported", EXPORT, interrupt),
    ]
    return [
        Start([sys.executable, attentive_snakemake.__file__, *SUBMIT, TOO_LITTLE_MEMORY], lost),
        Start(COMMAND, [Fault("killed here while the model is exported", EXPORT)]),
        Start([sys.executable, "-m", "snakemake", *SUBMIT, "--slurm-init-seconds-before-status-checks", "2"]),
    ]
