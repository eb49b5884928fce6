"""The configuration as verl will see it."""

import contextlib
import inspect
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolrl.batches import batch_problems
from toolrl.errors import UserError
from toolrl.extensions import AGENT_LOOPS, load
from toolrl.preflight import Inputs
from toolrl.verl_bridge import settings


def batches(inputs: Inputs) -> Iterator[str]:
    yield from batch_problems(inputs.config)


def overrides(inputs: Inputs) -> Iterator[str]:
    """Every override is an option of verl's."""
    defaults = settings.verl_defaults()
    sections = [section for section in ("train", "rollout") if section in inputs.config]
    chosen = [(section, key) for section in sections for key in inputs.config[section]["overrides"]]
    for section, key in chosen:
        try:
            settings.check_overrides(section, {key: None}, defaults)
        except UserError as error:
            yield str(error)
    filtered = [key for _, key in chosen if "filter_groups" in key]
    if inputs.config["deterministic"] and filtered:
        yield (
            f"{filtered[0]} has no effect where deterministic is true (verl filters groups in the sampler that "
            "determinism replaces): set deterministic to false."
        )


def verl_accepts(inputs: Inputs) -> Iterator[str]:
    """verl's own validation of the composed configuration passes, where ours has found nothing."""
    if list(overrides(inputs)) or list(batches(inputs)):
        return
    composed = settings.compose_settings(_training_options(inputs), settings.verl_defaults())
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            validate_config(composed, need_reference_policy(composed), need_critic(composed))
    except Exception as error:  # verl raises assertion, value and type errors
        yield f"verl refuses the configuration: {' '.join(str(error).split())[:300]}"


def _training_options(inputs: Inputs) -> dict[str, Any]:
    paths = settings.Paths.below(inputs.work, inputs.data, inputs.model, "001")
    share = settings.node_share(inputs.config, "train", threads=1, memory_mb=0)  # verl does not look at these two
    options = settings.launch_options(inputs.config, paths, inputs.config["resources"]["nodes"], share, 1)
    return options | settings.training_options(inputs.config, paths, 1)


def agent_loops(inputs: Inputs) -> Iterator[str]:
    """The user's agent loops and tool classes can be imported and have the right shape."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase

    for name, loop in (AGENT_LOOPS | inputs.config["agent"]["loops"]).items():
        try:
            found = load(loop)
        except UserError as error:
            yield f"agent.loops.{name}: {error}."
            continue
        if not (isinstance(found, type) and issubclass(found, AgentLoopBase)):
            yield f"agent.loops.{name}: {loop} is not a subclass of verl's AgentLoopBase."
    if inputs.config["agent"]["tool_config"]:
        from toolrl.data.agent_rows import read_tool_config
        from toolrl.verl_bridge.tools import check_tool_config

        check_tool_config(read_tool_config(Path(inputs.data) / "tools.yaml"), inputs.config["agent"]["tool_config"])


def reward_terms(inputs: Inputs) -> Iterator[str]:
    """The user's reward terms can be imported and take what they are given."""
    for name, term in inputs.config["reward"]["terms"].items():
        try:
            function = load(term["function"])
            inspect.signature(function).bind("episode", "measures", "ground_truth")
        except UserError as error:
            yield f"reward.terms.{name}: {error}."
        except TypeError:
            yield f"reward.terms.{name}: {term['function']} must be a function of (episode, measures, ground_truth)."
