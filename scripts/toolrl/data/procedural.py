"""The embedded dataset: one- and two-step word problems with small integer answers, in GSM8K's row form.

Deterministic by seed; no question stands in both splits. A row's solution carries GSM8K's calculator
annotations (`<<3+4=7>>`), so whatever reads GSM8K reads these.
"""

import random
from dataclasses import dataclass

from toolrl.errors import UserError

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivan", "Joy", "Kai", "Lena",
    "Mia", "Noah", "Olga", "Pia", "Quinn", "Rosa", "Sam", "Tara",
)  # fmt: skip
THINGS = (
    "apples", "books", "cards", "coins", "cups", "eggs", "marbles", "pears", "pens", "shells", "stamps", "toys",
)  # fmt: skip
LARGEST = 6
"""The largest number in a question; small, so that a tiny model can learn the sums."""


@dataclass(frozen=True)
class Step:
    """One operation on the running total, and how a story tells it."""

    operator: str
    phrases: tuple[str, ...]

    def apply(self, total: int, amount: int) -> int:
        return {"+": total + amount, "-": total - amount, "*": total * amount}[self.operator]


GAIN = Step("+", (
    "finds {n} more", "gets {n} from a friend", "buys {n} more", "wins {n} more", "picks up {n} on the way",
))  # fmt: skip
LOSS = Step("-", ("gives away {n}", "loses {n}", "sells {n}", "hands {n} to a friend", "drops {n}"))
MULTIPLY = Step("*", ("then has {n} times as many", "makes it {n} times as many"))
OPENINGS = ("{name} has {n} {thing}.", "{name} starts with {n} {thing}.", "{name} owns {n} {thing}.")
QUESTIONS = ("How many {thing} does {name} have now?", "How many {thing} are left with {name}?")


def _sentence(step: Step, amount: int, rng: random.Random) -> str:
    return rng.choice(("Then {name} ", "{name} ", "Later {name} ")) + rng.choice(step.phrases).format(n=amount) + "."


def _row(rng: random.Random) -> dict[str, str]:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    total = rng.randint(2, LARGEST)
    sentences = [rng.choice(OPENINGS).format(name=name, thing=thing, n=total)]
    working = []
    for position in range(rng.choice((1, 1, 2, 2, 2))):
        choices = [step for step in (GAIN, LOSS, MULTIPLY) if step is not LOSS or total > 1]
        step = rng.choice([s for s in choices if s is not MULTIPLY or (position == 0 and total <= LARGEST)])
        largest = {"+": LARGEST, "-": min(LARGEST, total - 1), "*": 3}[step.operator]
        amount = rng.randint(2 if step is MULTIPLY else 1, largest)
        result = step.apply(total, amount)
        sentences.append(_sentence(step, amount, rng).format(name=name))
        working.append(f"{total} {step.operator} {amount} = <<{total}{step.operator}{amount}={result}>>{result}")
        total = result
    sentences.append(rng.choice(QUESTIONS).format(name=name, thing=thing))
    return {"question": " ".join(sentences), "answer": "\n".join([*working, f"#### {total}"])}


def generate(train_rows: int, test_rows: int, seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Makes the two splits of `{question, answer}` rows.

    The test split is drawn first, so that its rows do not depend on how many training rows are asked for.

    Raises:
        UserError: when so many distinct questions cannot be made.
    """
    rng = random.Random(f"procedural-{seed}")
    seen: set[str] = set()
    splits: list[list[dict[str, str]]] = []
    for wanted in (test_rows, train_rows):
        rows: list[dict[str, str]] = []
        for _ in range(50 * wanted):
            if len(rows) == wanted:
                break
            row = _row(rng)
            if row["question"] not in seen:
                seen.add(row["question"])
                rows.append(row)
        if len(rows) < wanted:
            raise UserError(
                f"data.procedural asks for {train_rows} + {test_rows} distinct questions, more than the generator "
                "has: lower data.procedural.train_rows or test_rows."
            )
        splits.append(rows)
    return splits[1], splits[0]
