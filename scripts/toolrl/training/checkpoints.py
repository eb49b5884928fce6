"""verl's checkpoints in a training's folder: which are complete, which may go, and the room that they need.

verl writes `global_step_<N>` and then names it in `latest_checkpointed_iteration.txt`: only what that file has named is
complete. Old ones are deleted here and not by verl, which makes room before the new one is complete and forgets, when
it resumes, what earlier attempts saved.
"""

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from toolrl import manifest
from toolrl.errors import UserError
from toolrl.models.sources import parameter_count

TRACKER = "latest_checkpointed_iteration.txt"
OPTIMIZER_BYTES = 8
MASTER_BYTES = 4
EXPORT_BYTES = 4


def folder(work: Path, step: int) -> Path:
    return work / f"global_step_{step}"


def exported(work: Path, step: int) -> Path:
    """The Hugging Face model that is saved with a checkpoint."""
    return folder(work, step) / "actor" / "huggingface"


def make_portable(exported: Path) -> None:
    """Removes from an exported config.json the attention that training used, which may exist in its processes alone."""
    file = exported / "config.json"
    if file.is_file():
        config = manifest.read_json(file)
        config.pop("attn_implementation", None)
        manifest.write_text(file, json.dumps(config, indent=2) + "\n")


def latest(work: Path) -> int:
    """The step of the newest complete checkpoint, 0 for none."""
    try:
        step = int((work / TRACKER).read_text())
    except (FileNotFoundError, ValueError):
        return 0
    return step if folder(work, step).is_dir() else 0


def complete(work: Path) -> list[int]:
    """The steps of all complete checkpoints, ascending."""
    newest = latest(work)
    return [step for step in _steps(work) if step <= newest]


def repair(work: Path, recorded_step: int) -> None:
    """Removes what a killed attempt left half done, so that verl continues from the newest checkpoint to be trusted.

    That is a complete one all of whose steps are recorded: verl saves a checkpoint before it logs the step's metrics
    and dumps its rollouts, and after a kill in between they would be missing for ever. Where the kill hit the tracker
    itself, the newest checkpoint may be incomplete.

    Args:
        work: the training's folder.
        recorded_step: the last step up to which every step has its metrics and rollouts.
    """
    steps = _steps(work)
    finished = complete(work) if latest(work) else steps[:-1]
    trusted = max((step for step in finished if step <= recorded_step), default=0)
    for step in steps:
        if step > trusted:
            shutil.rmtree(folder(work, step))
    if trusted:
        manifest.write_text(work / TRACKER, str(trusted))
    else:
        (work / TRACKER).unlink(missing_ok=True)


def prune(work: Path, keep: int, recorded_step: int, protected: Collection[int] = ()) -> None:
    """Deletes checkpoints except the newest `keep` up to the last recorded step, later ones, and the protected ones."""
    steps = [step for step in complete(work) if step <= recorded_step]
    for step in steps[:-keep]:
        if step not in protected:
            shutil.rmtree(folder(work, step), ignore_errors=True)


def _steps(work: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("global_step_")) for path in work.glob("global_step_*") if path.is_dir())


def bytes_each(model: Path) -> int:
    """About how many bytes one checkpoint of a model takes: float32 weights, Adam's two moments, and the export."""
    return parameter_count(model) * (MASTER_BYTES + OPTIMIZER_BYTES + EXPORT_BYTES)


def room_problem(work: Path, model: Path, train: Mapping[str, Any]) -> str | None:
    """A sentence if the disk lacks room for what training will keep at once, else None.

    That is `keep_checkpoints`, one that is being written, one more where every step is saved (an old one goes when the
    next step is recorded), the best validated one, and the exported model; what earlier attempts hold already counts
    as room.
    """
    work.mkdir(parents=True, exist_ok=True)
    each = bytes_each(model)
    keep = train["keep_checkpoints"]
    most = keep + 1 + (train["save_every"] == 1) + (train["validate_every"] > 0)
    wanted = each * most + parameter_count(model) * EXPORT_BYTES
    files = [file for step in complete(work) for file in folder(work, step).rglob("*")]
    held = sum(file.stat().st_size for file in files if file.is_file())
    free = shutil.disk_usage(work).free
    if free + held >= wanted:
        return None
    return (
        f"{work} has {free / 1e9:.3g} GB free, but {keep} checkpoints (train.keep_checkpoints), one being written and "
        f"the exported model need about {(wanted - held) / 1e9:.3g} GB more: free space, or lower "
        "train.keep_checkpoints."
    )


def need_room(work: Path, model: Path, train: Mapping[str, Any]) -> None:
    """Raises a UserError where `room_problem` finds one."""
    if problem := room_problem(work, model, train):
        raise UserError(problem)


def read_validations(work: Path) -> dict[int, list[bool]]:
    """Whether each item was right, by the step after which verl validated."""
    steps = sorted(int(path.stem) for path in (work / "validations").glob("*.jsonl"))
    return {step: _validated(work, step) for step in steps}


def _validated(work: Path, step: int) -> list[bool]:
    dump = work / "validations" / f"{step}.jsonl"
    return [bool(json.loads(line)["value_correct"]) for line in manifest.whole_lines(dump)] if dump.is_file() else []


def best_validated(work: Path, candidates: Collection[int]) -> int | None:
    """The candidate with the highest validation accuracy, the earliest of equals; None if none was validated."""
    outcomes = {step: _validated(work, step) for step in candidates}
    shares = {step: sum(right) / len(right) for step, right in outcomes.items() if right}
    return max(shares, key=lambda step: (shares[step], -step), default=None)
