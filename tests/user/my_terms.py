"""A user's reward term: shorter answers are better."""

from toolrl.episodes import Episode, Measures


def brevity(episode: Episode, measures: Measures, ground_truth: str) -> float:
    return 1.0 / (1 + len(episode.final_message.split()))
