"""What happened in one episode, and the measures taken of it. Their definitions live here only."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toolrl.tasks.base import Task, Verdict

TOOL_ERROR = "Error executing tool"
"""How verl's response begins where a tool raised (ToolAgentLoop._call_tool)."""


@dataclass(frozen=True)
class ToolCall:
    """A call that the parser read from an assistant message, and the response that it got (None: not run)."""

    name: str
    arguments: Any
    response: str | None = None
    dropped: bool = False
    """It stood beside another call and was not run (`agent.max_parallel_calls`)."""


@dataclass(frozen=True)
class Turn:
    """One assistant message, as decoded without special tokens, with its tool calls."""

    content: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Episode:
    """A whole trajectory after the prompt.

    Attributes:
        turns: the assistant's messages.
        cut: `length` or `turns` where a limit ended the episode, else None.
    """

    turns: tuple[Turn, ...]
    cut: str | None = None

    @property
    def final_message(self) -> str:
        return self.turns[-1].content if self.turns else ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Episode":
        data = json.loads(text)
        turns = (Turn(turn["content"], tuple(ToolCall(**call) for call in turn["calls"])) for turn in data["turns"])
        return cls(tuple(turns), data["cut"])


@dataclass(frozen=True)
class Measures:
    """The measures of one episode.

    Attributes:
        value_correct, format_ok, strict, no_answer, extracted: the scorer's verdict on the final message.
        first_submission_correct: the first argument handed to an oracle tool is right; without such a call, the
            final answer is.
        oracle_gain: final right minus first submission right (-1, 0 or 1): what asking the oracle changed.
        guess_depth: how many submissions to oracle tools were made until one was right (all of them if none was).
        tool_calls: calls that ran.
        parse_failures: `<tool_call>` openings that the parser made no call of.
        tool_errors: calls that ended in an error of the tool itself, such as a missing ground truth.
        unknown_tools: calls of a tool that is not offered.
        dropped_calls: calls left out because only so many may run beside each other.
        turns: assistant messages.
        cut_by_length, cut_by_turns: a limit ended the episode.
        tool_agrees: the last submission's verdict equals the final answer's, where both state the same value.
    """

    value_correct: bool
    format_ok: bool
    strict: bool
    no_answer: bool
    extracted: str | None
    first_submission_correct: bool
    oracle_gain: int
    guess_depth: int
    tool_calls: int
    parse_failures: int
    tool_errors: int
    unknown_tools: int
    dropped_calls: int
    turns: int
    cut_by_length: bool
    cut_by_turns: bool
    tool_agrees: bool


def measure(episode: Episode, ground_truth: str, task: Task, offered: Sequence[str]) -> Measures:
    """Scores the final message and counts what the episode did; `offered` names the tools of its prompt."""
    final = task.score(episode.final_message, ground_truth)
    calls = [call for turn in episode.turns for call in turn.calls]
    ran = [call for call in calls if not call.dropped and call.name in offered and call.response is not None]
    submissions = [
        task.score_argument(_only_argument(call.arguments), ground_truth)
        for call in ran
        if call.name in task.tools and task.tools[call.name].is_oracle
    ]
    verdicts = [verdict.value_correct for verdict in submissions]
    first = verdicts[0] if verdicts else final.value_correct
    parsed = episode.turns[:-1] if episode.cut == "turns" else episode.turns  # a turn at the limit is not parsed
    openings = sum(turn.content.count("<tool_call>") for turn in parsed)
    return Measures(
        value_correct=final.value_correct,
        format_ok=final.format_ok,
        strict=final.strict,
        no_answer=final.no_answer,
        extracted=final.extracted,
        first_submission_correct=first,
        oracle_gain=int(final.value_correct) - int(first),
        guess_depth=verdicts.index(True) + 1 if True in verdicts else len(verdicts),
        tool_calls=len(ran),
        parse_failures=max(0, openings - sum(len(turn.calls) for turn in parsed)),
        tool_errors=sum(call.response.startswith(TOOL_ERROR) for call in ran if call.response is not None),
        unknown_tools=sum(not call.dropped and call.name not in offered for call in calls),
        dropped_calls=sum(call.dropped for call in calls),
        turns=len(episode.turns),
        cut_by_length=episode.cut == "length",
        cut_by_turns=episode.cut == "turns",
        tool_agrees=_agree(submissions[-1] if submissions else None, final),
    )


def _only_argument(arguments: Any) -> str:
    if isinstance(arguments, Mapping):
        return str(next(iter(arguments.values()), ""))
    return str(arguments)


def _agree(last: Verdict | None, final: Verdict) -> bool:
    if last is None or last.extracted is None or last.extracted != final.extracted:
        return True
    return last.value_correct == final.value_correct


PARTS = ("answer", "format", "tool_use", "tool_penalty")
"""The parts of the return that are always there; the user's reward terms have other names."""


@dataclass(frozen=True)
class Shaping:
    """What enters the return besides 1.0 for a right final answer; all zero by default, as in the seed recipe."""

    format: float = 0.0
    tool_use: float = 0.0
    tool_penalty: float = 0.0


@dataclass(frozen=True)
class Reward:
    """The return of an episode and its parts."""

    total: float
    parts: Mapping[str, float] = field(default_factory=dict)


def reward(measures: Measures, tool_rewards: Sequence[float], shaping: Shaping) -> Reward:
    """1.0 for a right final answer, plus the configured shaping.

    `shaping.format` is added where the answer is in the required form, `shaping.tool_use` where a tool ran, and
    `shaping.tool_penalty` times the sum of the tools' own rewards (the -0.05 of a non-improving attempt).
    """
    parts = {
        "answer": float(measures.value_correct),
        "format": shaping.format * measures.format_ok,
        "tool_use": shaping.tool_use * (measures.tool_calls > 0),
        "tool_penalty": shaping.tool_penalty * sum(tool_rewards),
    }
    return Reward(sum(parts.values()), parts)


@dataclass(frozen=True)
class RewardTerm:
    """A part of the return that the user's own function computes from (episode, measures, ground truth)."""

    function: Callable[[Episode, Measures, str], float]
    weight: float


def with_terms(
    base: Reward, terms: Mapping[str, RewardTerm], episode: Episode, measures: Measures, ground_truth: str
) -> Reward:
    """The return with every term's weight times its value added, each a part of its own.

    Raises:
        ValueError: when a term's value is not a finite number.
    """
    parts = dict(base.parts)
    for name, term in terms.items():
        value = float(term.function(episode, measures, ground_truth))
        if not math.isfinite(value):
            raise ValueError(f"reward.terms.{name} is {value}, but the return must be finite")
        parts[name] = term.weight * value
    return Reward(sum(parts.values()), parts)
