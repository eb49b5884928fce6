"""GSM8K: grade-school word problems with one numeric answer, and two tools.

The prompt, the schema of `calc_gsm8k_reward` and its response text are those of verl's multi-turn GSM8K recipe
(verl 0.5, Apache-2.0), so that results can be set beside it. `calc_gsm8k_reward` is an oracle: it knows the
ground truth. `calculator` is not.
"""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.answers import Answer, read_answer, read_argument, read_reference
from toolrl.arithmetic import NotArithmetic, evaluate
from toolrl.errors import UserError
from toolrl.tasks.base import Message, Problem, Task, Tool, ToolResult, ToolSession, Verdict, canonical_number

SYSTEM_PROMPT = (
    "You are a math expert. You are given a question and you need to solve it step by step. "
    "Reasoning step by step before any tool call. "
    "You should use the `calc_gsm8k_reward` tool after step by step solving the question, "
    "before generate final answer at least once and refine your answer if necessary. "
    "Put your final answer in the format of `#### <answer>`."
)
SYSTEM_PROMPT_WITH_CALCULATOR = (
    "You are a math expert. You are given a question and you need to solve it step by step. "
    "Use the `calculator` tool for each calculation. "
    "Put your final answer in the format of `#### <answer>`."
)
SYSTEM_PROMPT_WITHOUT_TOOLS = (
    "You are a math expert. You are given a question and you need to solve it step by step. "
    "Put your final answer in the format of `#### <answer>`."
)
USER_SUFFIX = " Let's think step by step and output the final answer after `####`."

NON_IMPROVING_PENALTY = -0.05
"""The tool's reward for an attempt that is no better than the best before it (0.0 before the first)."""

CALCULATOR_ANNOTATION = re.compile(r"<<([^<>=]*)=?[^<>]*>>")


def calc_gsm8k_reward(arguments: Mapping[str, Any], session: ToolSession) -> ToolResult:
    """Scores the submitted answer; remembers the best of the episode."""
    answer = str(arguments.get("answer", ""))
    verdict = TASK.score_argument(answer, str(session.create_kwargs["ground_truth"]))
    reward = 1.0 if verdict.value_correct else 0.0
    best = session.memory.get("best", 0.0)
    improved = reward > best
    session.memory["best"] = max(best, reward)
    session.memory["attempts"] = session.memory.get("attempts", 0) + 1
    session.memory["improvements"] = session.memory.get("improvements", 0) + improved
    return ToolResult(f"Current parsed {answer=} {reward=}", 0.0 if improved else NON_IMPROVING_PENALTY)


def calculator(arguments: Mapping[str, Any], session: ToolSession) -> ToolResult:
    """Evaluates arithmetic exactly; an error is an answer too, so that the model can react to it."""
    try:
        return ToolResult(canonical_number(evaluate(str(arguments.get("expression", "")))))
    except NotArithmetic as error:
        return ToolResult(f"error: {error}")


def _function_schema(name: str, description: str, argument: str, argument_description: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string", "description": argument_description}},
                "required": [argument],
            },
        },
    }


class Gsm8k(Task):
    name = "gsm8k"
    tools = {
        tool.name: tool
        for tool in (
            Tool(
                _function_schema(
                    "calc_gsm8k_reward",
                    "A tool for calculating the reward of gsm8k. (1.0 if parsed answer is correct, 0.0 if parsed "
                    "answer is incorrect or not correctly parsed)",
                    "answer",
                    "The model's answer to the GSM8K math problem, must be a digits",
                ),
                calc_gsm8k_reward,
                is_oracle=True,
            ),
            Tool(
                _function_schema(
                    "calculator",
                    "Evaluates an arithmetic expression with + - * / ** and parentheses, exactly.",
                    "expression",
                    "The expression, for example (3 + 4) * 2",
                ),
                calculator,
            ),
        )
    }

    def problem(self, row: Mapping[str, Any]) -> Problem:
        for key in ("question", "answer"):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise UserError(f"it needs a text in `{key}`")
        value = read_reference(row["answer"])
        if value is None:
            raise UserError("its answer does not end with `#### <number>`")
        return Problem(row["question"], row["answer"], canonical_number(value))

    def prompt(self, question: str, tools: Sequence[str]) -> list[Message]:
        if "calc_gsm8k_reward" in tools:
            system = SYSTEM_PROMPT
        else:
            system = SYSTEM_PROMPT_WITH_CALCULATOR if "calculator" in tools else SYSTEM_PROMPT_WITHOUT_TOOLS
        return [{"role": "system", "content": system}, {"role": "user", "content": question + USER_SUFFIX}]

    def score(self, answer: str, ground_truth: str) -> Verdict:
        return self._verdict(read_answer(answer), ground_truth)

    def score_argument(self, argument: str, ground_truth: str) -> Verdict:
        return self._verdict(read_argument(argument), ground_truth)

    @staticmethod
    def _verdict(answer: Answer, ground_truth: str) -> Verdict:
        return Verdict(
            value_correct=answer.value is not None and answer.value == read_argument(ground_truth).value,
            format_ok=answer.has_marker,
            no_answer=not answer.has_number,
            extracted=None if answer.value is None else canonical_number(answer.value),
        )

    def demonstrations(
        self, problems: Sequence[Problem], tools: Sequence[str], mistake_rate: float, rng: random.Random
    ) -> list[list[Message]]:
        """Solves, uses the tool, and states the answer.

        With `calc_gsm8k_reward` the answer is submitted once; with `calculator` alone every calculation of the working
        is one call. A mistaken demonstration stops before the last line of the working and answers with what it has by
        then; problems of one line are always right.
        """
        return [self._demonstration(problem, tools, rng.random() < mistake_rate) for problem in problems]

    def _demonstration(self, problem: Problem, tools: Sequence[str], mistaken: bool) -> list[Message]:
        lines = problem.solution.split("####")[0].strip().split("\n")
        answer = problem.ground_truth
        intermediate = read_answer(lines[-2]).value if mistaken and len(lines) > 1 else None
        if intermediate is not None:
            lines, answer = lines[:-1], canonical_number(intermediate)
        working = CALCULATOR_ANNOTATION.sub("", "\n".join(lines))
        session = ToolSession({"ground_truth": problem.ground_truth})
        messages = self.prompt(problem.question, tools)
        if "calc_gsm8k_reward" in tools:
            messages += self._call("calc_gsm8k_reward", {"answer": answer}, working, session)
            return [*messages, {"role": "assistant", "content": f"#### {answer}"}]
        if "calculator" in tools:
            for expression in CALCULATOR_ANNOTATION.findall("\n".join(lines)):
                messages += self._call("calculator", {"expression": expression}, "", session)
        return [*messages, {"role": "assistant", "content": f"{working}\n#### {answer}"}]

    def _call(self, name: str, arguments: dict[str, str], content: str, session: ToolSession) -> list[Message]:
        """An assistant message that calls a tool, and the tool's real response."""
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return [
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "content": self.tools[name].call(arguments, session).text},
        ]


TASK = Gsm8k()
