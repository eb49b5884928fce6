"""The agent-loop rows: what verl would drop, or run otherwise than asked, in silence."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from toolrl.data.agent_rows import prompt_length_problems
from toolrl.preflight import Inputs
from toolrl.verl_bridge import settings

SPLITS = ("train", "test")


def agent_rows(inputs: Inputs) -> Iterator[str]:
    """Every row asks for the configured agent loop, and every tool of it is given the row's ground truth."""
    wanted = inputs.config["agent"]["agent_name"]
    for split in SPLITS:
        table = pq.read_table(inputs.data / f"{split}.parquet")
        if "agent_name" not in table.column_names:
            yield f"{split}.parquet has no column agent_name: verl would run every row in a single turn without tools."
        elif strays := table.num_rows - (pc.sum(pc.equal(table["agent_name"], wanted)).as_py() or 0):
            yield (
                f"{strays} of {table.num_rows} {split} rows do not ask for the agent loop {wanted} (agent.agent_name): "
                "run preprocess again."
            )
        yield from _ground_truths(table, split)


def _ground_truths(table: pa.Table, split: str) -> Iterator[str]:
    truths = pc.struct_field(table["reward_model"], "ground_truth")
    info = table["extra_info"].type
    if info.get_field_index("tools_kwargs") < 0:
        return
    kwargs = pc.struct_field(table["extra_info"], "tools_kwargs")
    for tool in kwargs.type:
        created = tool.type.field("create_kwargs").type
        if created.get_field_index("ground_truth") < 0:
            continue
        given = pc.struct_field(kwargs, [tool.name, "create_kwargs", "ground_truth"])
        right = pc.sum(pc.equal(given, truths)).as_py() or 0
        if right < table.num_rows:
            yield (
                f"the tool {tool.name} is not given the ground truth in {table.num_rows - right} of {table.num_rows} "
                f"{split} rows (extra_info.tools_kwargs): run preprocess again."
            )


def prompt_lengths(inputs: Inputs) -> Iterator[str]:
    yield from prompt_length_problems(inputs.data_manifest, inputs.config["agent"]["max_prompt_length"])


def training_steps(inputs: Inputs) -> Iterator[str]:
    settings.total_steps(inputs.config, inputs.data_manifest["rows"]["train"])
    yield from ()
