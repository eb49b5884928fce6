"""verl's replay buffer, with trajectories in the order of their rows rather than of their completion.

Which rollout ends first depends on the machine's load, and prompts carry random ids; sums of floats, and with them
every metric, depend on the order.
"""

from typing import Any

import transfer_queue
from verl.trainer.ppo.v1.replay_buffer import KVBatchMeta, ReplayBuffer

POLL_SECONDS = 0.2
"""verl's own 2 s are a good part of a short step."""


class OrderedReplayBuffer(ReplayBuffer):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options, poll_interval=POLL_SECONDS)

    def _materialize_batch(self, partition_id: str, selected_prompt_uids: list[str], snapshot: dict) -> KVBatchMeta:
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, snapshot)
        if not batch.keys:
            return batch
        rows = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=["index"])
        entries = zip([int(getattr(index, "data", index)) for index in rows["index"]], batch.keys, batch.tags)

        def place(entry: tuple[int, str, Any]) -> tuple[int, ...]:
            index, key, _ = entry
            _, session, part = key.rsplit("_", 2)
            return index, int(session), int(part)

        ordered = sorted(entries, key=place)
        keys, tags = [key for _, key, _ in ordered], [tag for _, _, tag in ordered]
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=tags)
