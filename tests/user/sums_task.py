"""A second task, outside the package: add whole numbers; its tool is no oracle."""

from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.answers import read_answer, read_argument
from toolrl.errors import UserError
from toolrl.tasks.base import Message, Problem, Task, Verdict, canonical_number
from toolrl.tasks.gsm8k import TASK as GSM8K

SYSTEM = "Compute the sum of the numbers. Use the `calculator` tool. Give the result as `#### <number>`."


class Sums(Task):
    name = "sums"
    tools = {"calculator": GSM8K.tools["calculator"]}

    def problem(self, row: Mapping[str, Any]) -> Problem:
        try:
            total = sum(int(number) for number in row["question"].split())
        except (KeyError, ValueError):
            raise UserError("it needs whole numbers in `question`") from None
        return Problem(row["question"], row["question"].replace(" ", " + "), str(total))

    def prompt(self, question: str, tools: Sequence[str]) -> list[Message]:
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]

    def score(self, answer: str, ground_truth: str) -> Verdict:
        return self._verdict(read_answer(answer), ground_truth)

    def score_argument(self, argument: str, ground_truth: str) -> Verdict:
        return self._verdict(read_argument(argument), ground_truth)

    def _verdict(self, answer, ground_truth: str) -> Verdict:
        right = answer.value == int(ground_truth)
        extracted = None if answer.value is None else canonical_number(answer.value)
        return Verdict(right, answer.has_marker, not answer.has_number, extracted)


TASK = Sums()
