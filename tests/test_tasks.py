"""Tasks: the user's own module by config alone, the tool class that verl loads, and scoring a file."""

import asyncio
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, script, snakemake
from toolrl.config import check
from toolrl.errors import UserError
from toolrl.tasks import load_task

SUMS = ROOT / "tests" / "user" / "sums_task.py"


@pytest.mark.e2e
def test_a_task_outside_the_package_runs_by_config_alone(workflow: Path) -> None:
    """Through verl and vLLM: the user's prompt, tool and scorer, on a model that cannot answer."""
    shutil.copy(SUMS, workflow / "sums.py")
    rows = workflow / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{n} {n + 1} 3"}) + "\n" for n in range(8)))
    experiment = {
        "task": "sums.py",
        "data": {"source": "path", "path": {"train": "rows.jsonl", "test": "rows.jsonl"}},
        "model": {"source": "path", "path": str(_any_model(workflow))},
        "agent": {"tools": ["calculator"], "max_prompt_length": 1500, "max_response_length": 24},
        "warm_start": {"enabled": False},
        "train": {"batch_size": 8, "mini_batch_size": 8},
        "evaluate": {"max_items": 5, "arms": ["tool", "no_tool"], "repeats": 0, "samples": 2},
    }
    (workflow / "sums.yaml").write_text(yaml.safe_dump(experiment))
    result = snakemake(workflow, "results/evaluate/start/manifest.json", "--configfile", "sums.yaml")
    assert result.returncode == 0, result.stderr
    data = json.loads((workflow / "results" / "data" / "manifest.json").read_text())
    assert data["rows"] == {"train": 8, "validation": 0, "test": 8} and data["tools"] == ["calculator"]
    items = pq.read_table(workflow / "results" / "evaluate" / "start" / "items.parquet").to_pylist()
    places = [("no_tool", 0), ("tool", 0), ("tool", 1), ("tool", 2)]
    assert [(item["arm"], item["sample"]) for item in items] == [place for place in places for _ in range(5)]
    assert [item["ground_truth"] for item in items] == [str(2 * n + 4) for n in range(5)] * 4
    outputs = [[item["output"] for item in items if (item["arm"], item["sample"]) == place] for place in places]
    assert all(any(part) for part in outputs) and outputs[2] != outputs[3], "samples have seeds of their own"


def _any_model(folder: Path) -> Path:
    from toolrl.models import embedded

    tokenizer = embedded.make_tokenizer(["a text of words"] * 3, [], 400)
    model = embedded.make_model(tokenizer, {"hidden_size": 128, "layers": 1, "heads": 2}, seed=0)
    embedded.save(folder / "any", tokenizer, model)
    return folder / "any"


def test_a_task_without_demonstrations_says_so() -> None:
    with pytest.raises(NotImplementedError):
        load_task(str(SUMS)).demonstrations([], [], 0.0, None)


def test_a_file_without_a_task_is_refused(tmp_path: Path, config: dict) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(UserError, match="must define TASK"):
        check({**config, "task": str(tmp_path / "empty.py")})
    (tmp_path / "broken.py").write_text("1 /\n")
    with pytest.raises(UserError, match="cannot be imported"):
        check({**config, "task": str(tmp_path / "broken.py")})


def test_the_tool_class_keeps_its_memory_with_the_episode() -> None:
    from toolrl.verl_bridge.tools import TaskTool
    from verl.tools.schemas import OpenAIFunctionToolSchema

    schema = OpenAIFunctionToolSchema.model_validate(load_task("gsm8k").tools["calc_gsm8k_reward"].schema)
    tool = TaskTool({"type": "native", "task": "gsm8k"}, schema)

    async def call(answer: str, episode: SimpleNamespace) -> tuple[str, float]:
        instance, _ = await tool.create(create_kwargs={"ground_truth": "72"})
        response, reward, _ = await tool.execute(instance, {"answer": answer}, agent_data=episode)
        await tool.release(instance)
        return response.text, reward

    first, second = (SimpleNamespace(extra_fields={}) for _ in range(2))
    assert asyncio.run(call("72.", first)) == ("Current parsed answer='72.' reward=1.0", 0.0)
    assert asyncio.run(call("72", first))[1] == -0.05
    assert asyncio.run(call("72", second))[1] == 0.0, "another episode remembers nothing"


def test_score_a_file(tmp_path: Path) -> None:
    rows = [
        {"text": "#### 1,000", "gold": "1000"},
        {
            "messages": [{"role": "assistant", "content": "#### 1"}, {"role": "assistant", "content": "It is 2."}],
            "gold": 2,
        },
        {"tool_argument": "72 or 73", "gold": "73"},
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = script("score", str(file))
    verdicts = [json.loads(line) for line in result.stdout.splitlines()]
    assert [verdict["value_correct"] for verdict in verdicts] == [True, True, False]
    assert verdicts[0] == {
        "value_correct": True, "format_ok": True, "strict": True, "no_answer": False, "extracted": "1000",
    }  # fmt: skip
    file.write_text('{"text": "1"}\n')
    result = script("score", str(file))
    assert result.returncode == 1 and "line 1: a row needs `gold`" in result.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"class_name": "toolrl.nowhere.Tool"}, "cannot be imported"),
        ({"class_name": "pathlib.Path"}, "is not a subclass"),
        ({"name": "search"}, "its task has no such tool"),
        (
            {"properties": {"guess": {"type": "string"}}, "required": ["guess"]},
            "takes ['guess'], but the tool behind it",
        ),
        ({"required": ["answer", "more"]}, "requires ['more']"),
    ],
)
def test_tool_schema_and_class_are_checked(change: dict, words: str) -> None:
    from toolrl.data.agent_rows import tool_config
    from toolrl.verl_bridge.tools import check_tool_config

    config = json.loads(json.dumps(tool_config("gsm8k", load_task("gsm8k"), ["calc_gsm8k_reward"])))
    check_tool_config(config, "tools.yaml")
    entry = config["tools"][0]
    function = entry["tool_schema"]["function"]
    for key, value in change.items():
        target = entry if key == "class_name" else function if key == "name" else function["parameters"]
        target[key] = value
    with pytest.raises(UserError) as error:
        check_tool_config(config, "tools.yaml")
    assert words in str(error.value)
