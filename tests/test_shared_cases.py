"""Answer strings with their right verdict, where a file of them is at hand ($ANSWER_CASES)."""

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import ROOT
from toolrl.tasks.gsm8k import TASK


def test_all_cases_agree() -> None:
    file = Path(os.environ.get("ANSWER_CASES", ROOT.parent / "shared" / "cases" / "answers.json"))
    if not file.is_file():
        pytest.skip("no file of answer cases at hand: set ANSWER_CASES")
    wrong = []
    for case in json.loads(file.read_text(encoding="utf-8"))["cases"]:
        score = TASK.score if case["kind"] == "final" else TASK.score_argument
        verdict = score(case["text"], case["gold"])
        agrees = verdict.value_correct == case["expected_correct"]
        if case["kind"] == "final":
            agrees &= verdict.format_ok == case["expected_format_ok"]
            expected = case["expected_value"]
            agrees &= (verdict.extracted is None) == (expected is None)
            agrees &= expected is None or Fraction(verdict.extracted) == Fraction(str(expected))
        if not agrees:
            wrong.append((case["id"], case["text"], verdict))
    assert not wrong
