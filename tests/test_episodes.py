"""The measures of an episode, by example."""

from toolrl.episodes import Episode, Shaping, ToolCall, Turn, measure, reward
from toolrl.tasks.gsm8k import TASK, ToolSession, calc_gsm8k_reward

TOOL = "calc_gsm8k_reward"


def submit(answer: str, right: bool) -> ToolCall:
    return ToolCall(TOOL, {"answer": answer}, f"Current parsed answer={answer!r} reward={float(right)}")


def test_a_corrected_guess() -> None:
    episode = Episode((
        Turn("9\n<tool_call>", (submit("9", False),)),
        Turn("8\n<tool_call>", (submit("8", True),)),
        Turn("#### 8"),
    ))  # fmt: skip
    measures = measure(episode, "8", TASK, [TOOL])
    assert measures.strict and not measures.first_submission_correct
    assert (measures.oracle_gain, measures.guess_depth, measures.tool_calls, measures.turns) == (1, 2, 2, 3)
    assert measures.tool_agrees and measures.parse_failures == 0


def test_without_a_call_the_final_answer_is_the_first() -> None:
    measures = measure(Episode((Turn("#### 8"),)), "8", TASK, [TOOL])
    assert measures.first_submission_correct and measures.oracle_gain == 0 and measures.guess_depth == 0


def test_what_goes_wrong_is_counted() -> None:
    turn = Turn(
        "<tool_call>x</tool_call><tool_call>y</tool_call><tool_call>z</tool_call>",
        (ToolCall("nothing", {}, "Unknown function"), ToolCall(TOOL, {"answer": "1"}, None, dropped=True)),
    )
    measures = measure(Episode((turn, Turn("<tool_call>")), cut="turns"), "8", TASK, [TOOL])
    assert (measures.unknown_tools, measures.dropped_calls, measures.parse_failures) == (1, 1, 1)
    assert measures.cut_by_turns and not measures.cut_by_length and measures.no_answer
    assert measures.tool_calls == 0


def test_an_episode_survives_json() -> None:
    episode = Episode((Turn("a", (submit("1", False),)), Turn("b")), cut="length")
    assert Episode.from_json(episode.to_json()) == episode


def test_reward_is_the_answer_unless_shaped() -> None:
    measures = measure(Episode((Turn("<tool_call>", (submit("8", True),)), Turn("#### 8"))), "8", TASK, [TOOL])
    assert reward(measures, [0.0, -0.05], Shaping()).total == 1.0
    shaped = reward(measures, [0.0, -0.05], Shaping(format=0.1, tool_use=0.2, tool_penalty=1.0))
    assert shaped.parts == {"answer": 1.0, "format": 0.1, "tool_use": 0.2, "tool_penalty": -0.05}


def test_the_oracle_tool_remembers_its_episode() -> None:
    session = ToolSession({"ground_truth": "1000"})
    results = [calc_gsm8k_reward({"answer": answer}, session) for answer in ("7", "1,000", "1000.")]
    assert [result.reward for result in results] == [-0.05, 0.0, -0.05]
    assert results[1].text == "Current parsed answer='1,000' reward=1.0"
    assert session.memory == {"best": 1.0, "attempts": 3, "improvements": 1}
