"""Ray's job id, made unique on the machine; verl imports this in each of its processes (`VERL_USE_EXTERNAL_MODULES`).

verl names the socket in /tmp through which vLLM gets its weights after Ray's job id, so that two jobs on one machine
have two sockets. But each of our launches has a Ray of its own, and every Ray calls its first job 01000000: of two
launches side by side one would get the other's weights.
"""

import os

from ray.runtime_context import RuntimeContext

_get_job_id = RuntimeContext.get_job_id


def unique_job_id(context: RuntimeContext) -> str:
    """Ray's job id and the launch, which `launch.environment` names."""
    return f"{_get_job_id(context)}-{os.environ['TOOLRL_LAUNCH']}"


RuntimeContext.get_job_id = unique_job_id  # type: ignore[assignment, method-assign]
