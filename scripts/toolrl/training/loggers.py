"""Experiment trackers that are fed from the metrics file, outside verl: none of their failures can end a training."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from toolrl.cli import log

Send = Callable[[int, Mapping[str, float]], None]


class Loggers:
    """The configured trackers; one that fails is dropped with one warning."""

    def __init__(self, names: list[str], folder: Path, run_name: str, settings: Mapping[str, Any]) -> None:
        """Opens each tracker's local store in `folder`, continuing the run of that name where there is one."""
        self._send: dict[str, Send] = {}
        self._close: dict[str, Callable[[], Any]] = {}
        for name in names:
            self._guarded(name, partial(self._open, name, folder / name, run_name, settings))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        numbers = {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
        for name, send in list(self._send.items()):
            self._guarded(name, partial(send, step, numbers))

    def close(self) -> None:
        for name, close in self._close.items():
            self._guarded(name, close)

    def _open(self, name: str, folder: Path, run_name: str, settings: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._send[name], self._close[name] = OPENERS[name](folder, run_name, settings)

    def _guarded(self, name: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # whatever a tracker raises
            self._send.pop(name, None)
            log.warning("train: the logger %s failed and is left out: %s: %s", name, type(error).__name__, error)


def _mlflow(folder: Path, run_name: str, settings: Mapping[str, Any]) -> tuple[Send, Callable[[], Any]]:
    import os
    import time

    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("toolrl")
    identifier = (
        experiment.experiment_id
        if experiment
        else client.create_experiment("toolrl", artifact_location=(folder / "artifacts").as_uri())
    )
    found = client.search_runs([identifier], f"tags.`mlflow.runName` = '{run_name}'")
    if found:
        run = found[0].info.run_id
        client.update_run(run, "RUNNING")
    else:
        run = client.create_run(identifier, run_name=run_name).info.run_id
        client.log_batch(run, params=[Param(key, str(value)) for key, value in sorted(settings.items())])

    def send(step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        client.log_batch(run, [Metric(name.replace("@", "_at_"), value, now, step) for name, value in metrics.items()])

    return send, lambda: client.set_terminated(run)


def _tensorboard(folder: Path, run_name: str, settings: Mapping[str, Any]) -> tuple[Send, Callable[[], Any]]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / run_name))

    def send(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return send, writer.close


def _wandb(folder: Path, run_name: str, settings: Mapping[str, Any]) -> tuple[Send, Callable[[], Any]]:
    import wandb

    run = wandb.init(
        project="toolrl", name=run_name, id=run_name, resume="allow", dir=str(folder), config=dict(settings)
    )
    return lambda step, metrics: run.log(dict(metrics), step=step), run.finish


OPENERS = {"mlflow": _mlflow, "tensorboard": _tensorboard, "wandb": _wandb}
