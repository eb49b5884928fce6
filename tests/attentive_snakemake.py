"""Snakemake as it is, but for one thing: its Slurm executor looks after its jobs every few seconds.

The executor waits ten seconds longer after each look without a finished job, and no option changes that; a run of short
jobs with faults would be waiting for minutes.
"""

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

SECONDS_BETWEEN_LOOKS = 3

Executor.next_seconds_between_status_checks = property(
    lambda executor: SECONDS_BETWEEN_LOOKS, lambda executor, seconds: None
)

if __name__ == "__main__":
    main()
