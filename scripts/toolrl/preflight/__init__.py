"""What can be known to fail before anything is started, each as a sentence; all are found, not only the first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from toolrl import manifest
from toolrl.errors import UserError


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a process here may use: how many, and the bytes of the smallest."""

    count: int
    bytes_each: int


@dataclass
class Inputs:
    """What a launch would be given.

    Attributes:
        stage: `train` or `evaluate`.
        config: the settings of that stage.
        data: preprocess's folder.
        model: the start model's folder.
        work: where training will write.
        lock: the lock file of the environment.
        gpus: the GPUs here; None where the heavy stages run elsewhere (another job of a scheduler).
    """

    stage: str
    config: dict[str, Any]
    data: Path
    model: Path
    work: Path
    lock: Path
    gpus: Gpus | None = None

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The entries of the tool config that the agent is offered."""
        return yaml.safe_load((self.data / "tools.yaml").read_text(encoding="utf-8"))["tools"]

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model)

    @cached_property
    def data_manifest(self) -> dict[str, Any]:
        return manifest.read_json(self.data / "manifest.json")


Check = Callable[[Inputs], Iterator[str]]


def problems(inputs: Inputs) -> Iterator[str]:
    """The sentences of all checks; one check's failure hides no other's."""
    from toolrl.preflight import capacity, conversation, environment, options, rows

    checks: list[Check] = [
        environment.versions,
        environment.backend,
        environment.gpus,
        options.overrides,
        options.agent_loops,
        rows.agent_rows,
        rows.prompt_lengths,
        conversation.template,
        conversation.parser,
        conversation.tools,
        capacity.context_window,
    ]
    training: list[Check] = [
        environment.nodes,
        options.batches,
        options.verl_accepts,
        options.reward_terms,
        rows.training_steps,
        capacity.disk,
        capacity.gpu_memory,
    ]
    for check in [*checks, *(training if inputs.stage == "train" else [])]:
        try:
            yield from check(inputs)
        except UserError as error:
            yield str(error)
