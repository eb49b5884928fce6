"""The scorer: hand-made cases, properties, and hostile input."""

import contextlib
import random
import string
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toolrl.answers import read_answer, read_argument
from toolrl.arithmetic import NotArithmetic, evaluate
from toolrl.tasks.base import canonical_number
from toolrl.tasks.gsm8k import TASK

RIGHT = [
    ("#### 72", "72"), ("#### $1,234.50", "1234.5"), ("#### 1\u2009000", "1000"), ("#### 1{,}000", "1000"),
    ("The answer is **72**.", "72"), ("#### <72>", "72"), ("$\\boxed{72 \\text{ apples}}$", "72"), ("#### −5", "-5"),
    ("#### -$5", "-5"), ("The change is -3.", "-3"), ("#### 3 1/2", "3.5"), ("#### ½", "0.5"), ("#### 0.50", "1/2"),
    ("\\(\\frac{3}{4}\\)", "0.75"), ("#### 72%", "72"), ("#### 3 x 24 = 72", "72"), ("#### 72 = 3 x 24", "72"),
    ("#### 72. Let me know if you have 2 more.", "72"), ("The answer is not 72 but 73.", "73"), ("####\n72", "72"),
    ("#### 1.5e3", "1500"), ("#### 72 thousand", "72000"), ("#### ７２", "72"), ("Final Answer\n\n72", "72"),
]  # fmt: skip
WRONG = [
    ("20 or 25", "25"), ("#### 20-25", "20"), ("#### between 20 and 25", "25"), ("#### 3,4", "34"), ("#### 7 2", "72"),
    ("#### 72,00", "72"), ("#### 72,00", "7200"), ("#### 0.72", "72"), ("#### 72%", "0.72"), ("#### 2**3", "23"),
    ("#### 3:45", "3"), ("#### 72k", "72"), ("#### 20, 25", "20"), ("#### 72\n#### 73", "72"), ("#### 2x", "2"),
    ('<tool_call>\n{"name": "t", "arguments": {"answer": "72"}}\n</tool_call>', "72"), ("", "72"), ("none", "72"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "gold"), RIGHT)
def test_right(text: str, gold: str) -> None:
    assert TASK.score(text, gold).value_correct


@pytest.mark.parametrize(("text", "gold"), WRONG)
def test_wrong(text: str, gold: str) -> None:
    assert not TASK.score(text, gold).value_correct


def test_marker_makes_the_format() -> None:
    assert TASK.score("#### 72", "72").strict
    assert not TASK.score("### 72", "72").format_ok
    assert TASK.score("#### 20-25", "20").format_ok
    verdict = TASK.score("No number, sorry.", "72")
    assert verdict.no_answer and verdict.extracted is None


numbers = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=1).map(lambda value: value.numerator)
FORMATS = (
    "#### {n}", "####{n}", "#### {n:,}", "#### {n}.", "#### {n}.00", "#### **{n}**", "#### ${n}", "#### <{n}>",
    "#### {n} apples",
    "The answer is {n}.", "\\boxed{{{n}}}", "#### Answer: {n:,}", "The answer is {n:,} km, in total.",
)  # fmt: skip
prose = st.text(alphabet=string.ascii_letters + " ,.\n", max_size=60).filter(lambda text: "answer" not in text.lower())


@given(numbers, st.sampled_from(FORMATS))
def test_every_format_round_trips(value: int, form: str) -> None:
    assert read_answer(form.format(n=value)).value == value


@given(numbers, numbers, st.sampled_from(FORMATS))
def test_a_wrong_number_never_becomes_right(value: int, gold: int, form: str) -> None:
    assert TASK.score(form.format(n=value), str(gold)).value_correct == (value == gold)


@given(numbers, prose, prose)
def test_prose_around_the_marker_changes_nothing(value: int, before: str, after: str) -> None:
    assert read_answer(f"{before}\n#### {value}\n{after}").value == value


@given(numbers, numbers)
def test_a_tool_response_changes_nothing(value: int, other: int) -> None:
    text = f"#### {value}"
    assert TASK.score(f"{text}\n<tool_response>\n#### {other}\n</tool_response>", str(value)) == TASK.score(
        text, str(value)
    )


@given(st.fractions(max_denominator=1000))
def test_canonical_numbers_are_read_back(value: Fraction) -> None:
    assert read_argument(canonical_number(value)).value == value


@settings(max_examples=500)
@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    read_answer(text)
    read_argument(text)


def test_hostile_megabytes_take_linear_time() -> None:
    for piece in ("answer is ", "#### 7\n", "1,", "\\boxed{", "1 or ", "1.5e", "<<", "x=1 ", "\\frac{1", "<tool_call>"):
        small, large = piece * (10**5 // len(piece)), piece * (10**6 // len(piece))
        started = time.perf_counter()
        read_answer(small)
        middle = time.perf_counter()
        read_answer(large)
        assert time.perf_counter() - middle < 40 * (middle - started) + 0.5, piece


def test_100_000_random_texts_break_nothing_and_take_no_time() -> None:
    rng = random.Random(0)
    pieces = ["####", "answer is", "\\boxed{", "\\frac{", "<tool_call>", "or", "72", "1,000", "=", ":", "$", "million"]
    alphabet = [*"0123456789+-*/().^,eE_ jx%×÷−\"'[]{}\x00if\n½７", *pieces]
    slowest = 0.0
    for _ in range(100_000):
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 40)))
        started = time.process_time()  # of this process: other load does not count
        read_answer(text)
        with contextlib.suppress(NotArithmetic):
            evaluate(text)
        slowest = max(slowest, time.process_time() - started)
    assert slowest < 0.05


@pytest.mark.parametrize(
    ("text", "value"),
    [("3 + 4 * 2", 11), ("1,000 / 3", Fraction(1000, 3)), ("0.1 + 0.2", Fraction(3, 10)), ("2^10", 1024)],
)
def test_calculator(text: str, value: Fraction) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize("text", ["9**9**9", "__import__('os')", "1/0", "", "a", "(" * 400, "1" * 600, "1,00"])
def test_calculator_refuses(text: str) -> None:
    with pytest.raises(NotArithmetic):
        evaluate(text)
