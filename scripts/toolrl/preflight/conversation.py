"""Whether model, chat template, tool parser and tools understand each other, on the task's own rows."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

from toolrl.preflight import Inputs
from toolrl.tasks import load_task
from toolrl.tasks.base import Tool, ToolSession

SAMPLED_ROWS = 20


def _sample(inputs: Inputs) -> list[dict[str, Any]]:
    return pq.read_table(inputs.data / "train.parquet").slice(0, SAMPLED_ROWS).to_pylist()


def _schemas(inputs: Inputs) -> list[dict[str, Any]]:
    return [tool["tool_schema"] for tool in inputs.tools]


def template(inputs: Inputs) -> Iterator[str]:
    """The chat template shows the tools, and appends: the tokens of a later prompt start with those of an earlier."""
    tokenizer, schemas = inputs.tokenizer, _schemas(inputs)
    if not tokenizer.chat_template:
        yield f"the model {inputs.model} has no chat template: an agent needs a chat model."
        return
    if tokenizer.eos_token_id is None:
        yield f"the tokenizer of {inputs.model} has no end-of-sequence token: no episode would end by itself."
    prompt = _sample(inputs)[0]["prompt"]
    try:
        shown = tokenizer.apply_chat_template(prompt, tools=schemas, add_generation_prompt=True, tokenize=False)
        bare = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        diverged = _first_rewritten_turn(tokenizer, prompt, schemas)
    except Exception as error:  # whatever a template raises
        yield f"the chat template of {inputs.model} fails on a conversation with tools: {type(error).__name__}: {error}"
        return
    if schemas and shown == bare:
        yield f"the chat template of {inputs.model} does not show the model its tools: use a tool-capable template."
    elif diverged:
        yield (
            f"the chat template of {inputs.model} is not append-only: with turn {diverged + 1} it changes the tokens "
            f"of the prompt of turn {diverged}, so that training would see other tokens than the rollout."
        )


def _first_rewritten_turn(tokenizer: Any, prompt: list[dict[str, Any]], schemas: list[dict[str, Any]]) -> int | None:
    """The turn whose prompt's tokens are no prefix of the next turn's; None if there is none."""
    messages = list(prompt)
    previous: list[int] = []
    for turn in range(3):
        text = tokenizer.apply_chat_template(
            messages, tools=schemas or None, add_generation_prompt=True, tokenize=False
        )
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        if tokens[: len(previous)] != previous:
            return turn
        previous = tokens
        messages.append({"role": "assistant", "content": f"Step {turn + 1}.", "tool_calls": _calls(schemas)})
        messages.append({"role": "tool", "content": f"The result is {turn}.", "tool_call_id": "0"})
    return None


def _calls(schemas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not schemas:
        return []
    function = schemas[0]["function"]
    arguments = {name: _example(schema) for name, schema in function["parameters"]["properties"].items()}
    return [{"id": "0", "type": "function", "function": {"name": function["name"], "arguments": arguments}}]


def _example(schema: dict[str, Any]) -> Any:
    return {"integer": 72, "number": 72, "boolean": True, "array": [], "object": {}}.get(schema.get("type", ""), "72")


def parser(inputs: Inputs) -> Iterator[str]:
    """The tool parser reads back a call that the template rendered."""
    from verl.experimental.agent_loop.tool_parser import ToolParser
    from verl.tools.schemas import OpenAIFunctionToolSchema

    name, schemas, tokenizer = inputs.config["agent"]["tool_parser"], _schemas(inputs), inputs.tokenizer
    if name not in ToolParser._registry:
        yield f"agent.tool_parser must be one of {', '.join(sorted(ToolParser._registry))}, not {name!r}."
        return
    if not schemas or not tokenizer.chat_template:
        return
    prompt = _sample(inputs)[0]["prompt"]
    calls = _calls(schemas)
    turn = [*prompt, {"role": "assistant", "content": "", "tool_calls": calls}]
    try:
        before = tokenizer.apply_chat_template(prompt, tools=schemas, add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template(turn, tools=schemas, tokenize=False)
    except Exception:  # the template's own check says it
        return
    tokens = tokenizer(whole[len(before) :], add_special_tokens=False)["input_ids"]
    models = [OpenAIFunctionToolSchema.model_validate(schema) for schema in schemas]
    _, found = asyncio.run(ToolParser.get_tool_parser(name, tokenizer).extract_tool_calls(tokens, models))
    wanted = calls[0]["function"]
    if [(call.name, json.loads(call.arguments)) for call in found] != [(wanted["name"], wanted["arguments"])]:
        yield (
            f"agent.tool_parser {name} does not read back a tool call as the chat template of {inputs.model} writes "
            "it: choose the parser of this model family."
        )


def tools(inputs: Inputs) -> Iterator[str]:
    """The scorer calls a ground truth right and another's wrong, and so do the oracle tools."""
    task = load_task(inputs.config["task"])
    truths = [row["reward_model"]["ground_truth"] for row in _sample(inputs)]
    wrong = next((truth for truth in truths if truth != truths[0]), None)
    for truth in truths:
        if not task.score_argument(truth, truth).value_correct:
            yield f"the task {task.name} scores the ground truth {truth!r} as wrong: its scorer cannot read it."
            return
    if wrong is not None and task.score_argument(wrong, truths[0]).value_correct:
        yield f"the task {task.name} scores {wrong!r} as right where {truths[0]!r} is: its scorer accepts too much."
        return
    for entry in inputs.tools:
        tool = task.tools.get(entry["tool_schema"]["function"]["name"])
        if tool and tool.is_oracle and wrong is not None:
            yield from _oracle_problems(tool, truths[0], wrong)


def _oracle_problems(tool: Tool, truth: str, wrong: str) -> Iterator[str]:
    (argument, *_) = tool.schema["function"]["parameters"]["properties"]

    def answer(submission: str) -> str:
        text = tool.call({argument: submission}, ToolSession({"ground_truth": truth})).text
        return text.replace(submission, "")

    try:
        same = answer(truth) == answer(wrong)
    except Exception as error:  # whatever a tool raises
        yield f"the tool {tool.name} fails on a ground truth: {type(error).__name__}: {error}"
        return
    if same:
        yield f"the tool {tool.name} answers a right and a wrong submission alike, although it is an oracle."
