"""verl's replay buffer, with trajectories in the order of their prompts rather than of their completion.

Which rollout ends first depends on the machine's load; sums of floats, and with them every metric, on the order.
"""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import KVBatchMeta, ReplayBuffer


class OrderedReplayBuffer(ReplayBuffer):
    def _materialize_batch(self, partition_id: str, selected_prompt_uids: list[str], snapshot: dict) -> KVBatchMeta:
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, snapshot)
        submitted: dict[str, int] = {}
        for key in snapshot:
            submitted.setdefault(key.split("_")[0], len(submitted))

        def place(entry: tuple[str, Any]) -> tuple[int, ...]:
            uid, *numbers = entry[0].split("_")
            return (submitted[uid], *map(int, numbers))

        ordered = sorted(zip(batch.keys, batch.tags), key=place)
        return KVBatchMeta(
            partition_id=partition_id, keys=[key for key, _ in ordered], tags=[tag for _, tag in ordered]
        )
