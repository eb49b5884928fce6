"""What a task is. Copy `gsm8k.py` to add one; `docs/adding-a-task.md` walks through it."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

Message = dict[str, Any]
"""One chat message in OpenAI's form: role, content and, for an assistant that calls tools, tool_calls."""


@dataclass(frozen=True)
class Problem:
    """One row of a dataset as the task understands it.

    Attributes:
        question: what the model is asked.
        solution: the reference solution, with its working.
        ground_truth: the reference answer in the task's canonical form.
    """

    question: str
    solution: str
    ground_truth: str


@dataclass(frozen=True)
class Verdict:
    """What the scorer says of one answer.

    Attributes:
        value_correct: the last stated answer equals the reference.
        format_ok: it is stated in the form that the prompt asks for.
        no_answer: nothing was stated that could be an answer.
        extracted: the answer as read (canonical text), None where none could be read.
    """

    value_correct: bool
    format_ok: bool
    no_answer: bool
    extracted: str | None

    @property
    def strict(self) -> bool:
        """Right and in the required form."""
        return self.value_correct and self.format_ok


@dataclass
class ToolSession:
    """What a tool remembers within one episode.

    Attributes:
        create_kwargs: the row's `tools_kwargs[<tool>].create_kwargs`, for example the ground truth.
        memory: the tool's own, empty at the episode's start and kept across its calls.
    """

    create_kwargs: Mapping[str, Any]
    memory: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolResult:
    """What a tool call returns: the text shown to the model, and a reward that is logged
    (it enters the return only where the reward's shaping says so)."""

    text: str
    reward: float = 0.0


@dataclass(frozen=True)
class Tool:
    """A tool: its OpenAI function schema and the function behind it."""

    schema: Mapping[str, Any]
    call: Callable[[Mapping[str, Any], ToolSession], ToolResult]
    is_oracle: bool = False

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])


class Task(ABC):
    """Rows → prompts, tools, scores and demonstrations. Knows nothing of verl, files or models."""

    name: str
    tools: Mapping[str, Tool]

    @abstractmethod
    def problem(self, row: Mapping[str, Any]) -> Problem:
        """Reads a dataset row.

        Raises:
            UserError: when the row cannot be used; the message says why, the caller adds which row.
        """

    @abstractmethod
    def prompt(self, question: str, tools: Sequence[str]) -> list[Message]:
        """The conversation that an episode starts from (system and user message), given the tools that are offered."""

    @abstractmethod
    def score(self, answer: str, ground_truth: str) -> Verdict:
        """Scores the last assistant message of an episode."""

    @abstractmethod
    def score_argument(self, argument: str, ground_truth: str) -> Verdict:
        """Scores an answer handed to a tool, by the same rules as `score`."""

    def tool_schemas(self, tools: Sequence[str]) -> list[dict[str, Any]]:
        """The OpenAI schemas of the named tools, as a chat template takes them."""
        return [dict(self.tools[name].schema) for name in tools]

    def tools_kwargs(self, problem: Problem, tools: Sequence[str]) -> dict[str, Any]:
        """What each tool of the row is created with; the same keys for every row."""
        return {name: {"create_kwargs": {"ground_truth": problem.ground_truth}} for name in tools}

    def demonstrations(
        self, problems: Sequence[Problem], tools: Sequence[str], mistake_rate: float, rng: random.Random
    ) -> list[list[Message]]:
        """Whole conversations for a warm start, one for each problem.

        `mistake_rate` is the share of problems that are answered wrongly where the task can do so.
        """
        raise NotImplementedError(f"task {self.name} has no demonstrations: set warm_start.enabled to false.")


def canonical_number(value: Fraction) -> str:
    """A fraction as text: `72`, `0.5`, or `1/3` where no finite decimal exists."""
    if value.denominator == 1:
        return str(value.numerator)
    twos_and_fives = value.denominator
    digits = 0
    for factor in (2, 5):
        power = 0
        while twos_and_fives % factor == 0:
            twos_and_fives //= factor
            power += 1
        digits = max(digits, power)
    if twos_and_fives != 1:
        return f"{value.numerator}/{value.denominator}"
    scaled = str(abs(value) * 10**digits).rjust(digits + 1, "0")
    return f"{'-' if value < 0 else ''}{scaled[:-digits]}.{scaled[-digits:]}"
