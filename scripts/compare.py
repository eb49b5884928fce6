"""Compares the trained models of two finished runs on the same items, in the terminal or as JSON.

python scripts/compare.py results/runs/seed1 results/runs/seed2
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from toolrl import cli
from toolrl.errors import UserError
from toolrl.evaluation import Evaluation, compare, shared_arms
from toolrl.stats import PairedComparison, adjusted
from toolrl.wording import percent, points


def main(arguments: argparse.Namespace) -> None:
    first, second = (_evaluation(path, arguments.model) for path in (arguments.run_a, arguments.run_b))
    arms = shared_arms([first, second])
    if not arms:
        raise UserError(f"{first.folder} and {second.folder} have no evaluated arm in common.")
    found = dict(zip(arms, adjusted([compare(first, second, arm, arguments.seed) for arm in arms])))
    if arguments.json:
        rows = {
            arm: {
                **asdict(comparison),
                "verdict": comparison.verdict,
                "first": asdict(first.accuracy(arm)),
                "second": asdict(second.accuracy(arm)),
            }
            for arm, comparison in found.items()
        }
        print(json.dumps({"first": str(first.folder), "second": str(second.folder), "arms": rows}, indent=2))
    else:
        _print_table(first, second, found)


def _evaluation(run: Path, model: str) -> Evaluation:
    """The evaluation of a run: its folder, or directly a folder with items.parquet.

    Raises:
        UserError: when there is none.
    """
    for folder in (run, run / "evaluate" / model):
        if (folder / "items.parquet").is_file() and (folder / "manifest.json").is_file():
            return Evaluation(folder)
    raise UserError(
        f"{run} holds no finished evaluation: expected {run / 'evaluate' / model / 'items.parquet'} with its "
        "manifest.json; name a run's folder, such as results or results/runs/<name>."
    )


def _print_table(first: Evaluation, second: Evaluation, found: dict[str, PairedComparison]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"{first.folder} → {second.folder}, paired on the same items"))
    for heading in ("", *found):
        table.add_column(Text(heading))
    words = {"improved": "better", "worse": "worse"}
    comparisons = found.values()
    rows: dict[str, list[str]] = {
        "items": [str(comparison.n) for comparison in comparisons],
        "first": [_two_lines(percent(first.accuracy(arm))) for arm in found],
        "second": [_two_lines(percent(second.accuracy(arm))) for arm in found],
        "difference, points": [_two_lines(points(comparison)) for comparison in comparisons],
        "fixed / broken": [f"{comparison.only_second} / {comparison.only_first}" for comparison in comparisons],
        "p": [f"{comparison.p_value:.4f}" for comparison in comparisons],
        "adjusted p": [f"{comparison.adjusted_p:.4f}" for comparison in comparisons],
        "second is": [words.get(comparison.verdict, comparison.verdict) for comparison in comparisons],
    }
    for name, cells in rows.items():
        table.add_row(name, *map(Text, cells))
    console = Console()
    console.print(table)
    console.print("95% intervals: Wilson, and bootstrap over items; exact McNemar tests, Holm-adjusted over the arms.")


def _two_lines(value: str) -> str:
    """A value over its interval, so that three arms fit a terminal of 80 columns."""
    return value.replace(" (", "\n(")


if __name__ == "__main__":
    command = cli.parser(__doc__)
    command.add_argument("run_a", type=Path, metavar="RUN_A", help="folder of a run, or of one evaluation")
    command.add_argument("run_b", type=Path, metavar="RUN_B", help="the other one")
    command.add_argument("--model", choices=("trained", "start"), default="trained", help="which model of the runs")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.add_argument("--seed", type=int, default=1, help="of the bootstrap (default: 1)")
    cli.run(main, command)
