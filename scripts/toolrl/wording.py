"""How statistics are written, in the report and in the terminal."""

from toolrl.stats import Mean, MeanComparison, PairedComparison, Proportion


def percent(share: Proportion | Mean) -> str:
    """A share with its interval, as `84.8% (79.9 to 88.7)`."""
    return f"{100 * share.value:.1f}% ({100 * share.low:.1f} to {100 * share.high:.1f})"


def points(comparison: PairedComparison | MeanComparison) -> str:
    """A paired difference with its interval in percentage points, as `+32.8 (+26.6 to +38.7)`."""
    low, high = 100 * comparison.low, 100 * comparison.high
    return f"{100 * comparison.difference:+.1f} ({low:+.1f} to {high:+.1f})"
