r"""Reading the number that a text states as its answer, the way a careful person would.

The reading, in order:

1. Tool calls, tool responses and calculator annotations are not part of the answer; they are cut out.
2. *Cues* introduce an answer: the marker `####`, `\boxed{…}`, and phrases such as "the answer is". The last cue
   that states a number wins; a phrase competes with the other two only where the number follows it at once.
   Without a cue, the last sentence that has a number is read.
3. A statement is read as one number. Equations are read from their last side; a number may carry currency, units,
   bold, brackets, thousands separators, a fraction or a power of ten. Several alternatives ("20 or 25"), ranges,
   lists and digits in ill-formed groups ("3,4", "72,00", "7 2") state no single number.

Values are exact (`fractions.Fraction`). Every step scans disjoint pieces of the text, so that reading takes time in
proportion to its length.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Answer:
    """An answer as read.

    Attributes:
        value: the number, None where no single number is stated.
        has_marker: a `####` marker introduces the statement that was read.
        has_number: the text states at least one number (also where value is None).
    """

    value: Fraction | None
    has_marker: bool = False
    has_number: bool = False


def read_answer(text: str) -> Answer:
    """Reads the answer that the last assistant message states."""
    text = _normalise(_without_blocks(text))
    statements = _statements(text)
    competing = [s for s in statements if s.numbers and (s.cue != "phrase" or s.numbers[0].leads)]
    markers = [s for s in competing if s.cue == "marker"]
    chosen = (competing or [s for s in statements if s.numbers] or _last_sentence(text))[-1:]
    if not chosen:
        return Answer(None)
    value = _read_statement(chosen[0])
    has_marker = bool(markers) and (chosen[0] is markers[-1] or _read_statement(markers[-1]) == value)
    return Answer(value, has_marker, True)


def read_argument(argument: str) -> Answer:
    """Reads a bare answer, as handed to a tool or stored as ground truth: `1,000`, `72.`, `#### 72`."""
    return read_answer(argument if MARKER.search(argument) else f"#### {argument}")


def read_reference(solution: str) -> Fraction | None:
    """The value behind a reference solution's last `####`, or None where there is none."""
    _, marker, stated = solution.rpartition("####")
    return read_argument(stated).value if marker else None


# --- cutting the text ---

MARKER = re.compile(r"(?<!#)####(?!#)")


def _without_blocks(text: str) -> str:
    """Only what follows the last tool call, without tool responses and calculator annotations.

    A message that ends in a tool call has not stated its answer yet: what stands before the call is working.
    """
    last_call = text.rfind("<tool_call>")
    if last_call >= 0:
        _, _, text = text[last_call:].partition("</tool_call>")
    text = _cut(text, "<tool_response>", "</tool_response>", unclosed_runs_to_end=True)
    return _cut(text, "<<", ">>", unclosed_runs_to_end=False)


def _cut(text: str, start: str, end: str, unclosed_runs_to_end: bool) -> str:
    pieces = []
    position = 0
    while (opening := text.find(start, position)) >= 0:
        closing = text.find(end, opening)
        if closing < 0 and not unclosed_runs_to_end:
            break
        pieces.append(text[position:opening])
        position = len(text) if closing < 0 else closing + len(end)
    return " ".join([*pieces, text[position:]])


THIN_SPACE = "\u2009"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]?frac\s{0,3}\{\s{0,3}(-?[\d.,]{1,40})\s{0,3}\}\s{0,3}\{\s{0,3}([\d.,]{1,40})\s{0,3}\}", r" \1/\2 "),
        (r"\{,\}(?:\\!)?|,\\!", ","),
        (r"\\,", THIN_SPACE),
        (r"\\!", ""),
        (r"\\times|\\cdot|\\ast|(?<=[\d)])\s?[xX*](?=\s?[\d(])", "×"),
        (r"\\div", "÷"),
        (r"\\approx", "="),
        (r"\\(?:text|mathrm|mathbf|textbf|textit|bold|left|right|displaystyle|quad|qquad|;|:|\(|\)|\[|\])", " "),
        (r"\\([$%#&_{}])", r"\1"),
        (r"\b(?:USD|EUR|GBP|INR|CAD|AUD|US|Rs\.?)(?=\s?[$\d])", "$"),
        (r"\b(?:minus|negative)\s(?=[$\d])", "-"),
        (r"\*\*|__|[*_`~<>](?!\d)|(?<!\d)[*_`~<>]", " "),
    )
)
_CHARACTERS = {
    **dict.fromkeys("−﹣－", "-"),
    **dict.fromkeys("–—‒―", "–"),
    **dict.fromkeys("\u00a0\u202f\u2007\u2008\u200a", THIN_SPACE),
    **dict.fromkeys("≈≅≃⇒→", "="),
    **dict.fromkeys("⋅∙·", "×"),
    "⁄": "/",
    "＃": "#",
    "，": ",",
    "．": ".",
    "’": "'",
    "\u200b": "",
    "\ufeff": "",
}


def _normalise(text: str) -> str:
    if not text.isascii():
        text = "".join(map(_ascii_character, text))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _ascii_character(character: str) -> str:
    if character in _CHARACTERS:
        return _CHARACTERS[character]
    if (digit := unicodedata.decimal(character, None)) is not None:
        return str(digit)
    if unicodedata.category(character) == "No" and unicodedata.decomposition(character).startswith("<fraction>"):
        fraction = Fraction(unicodedata.numeric(character)).limit_denominator(16)
        return f" {fraction.numerator}/{fraction.denominator}"
    return "?" if unicodedata.category(character) == "No" else character


# --- numbers ---

_DIGITS = r"\d{1,1000}"
_RUN = re.compile(
    rf"""
    (?<![A-Za-z\d])                                   # digits behind a letter (x2, CO2) are a name
    (?P<point>(?<![\d.])\.)?                          # .5
    (?P<run>{_DIGITS}(?:(?:[.,'/:]|[ {THIN_SPACE}]|[ ]?/[ ]?){_DIGITS}){{0,400}})
    (?P<exponent>(?:[eE]|\s?×\s?10\s?\^\s?\{{?)(?P<power>[+-]?\d{{1,3}})(?!\w|\.\d)\}}?)?
    (?P<magnitude>\s?(?:thousand|million|billion|trillion)\b|[kK](?![\w]))?
    (?P<glued>[A-Za-z]{{1,20}}\d|[xX]\b|\sand\sa\shalf\b|\^|\s?(?:factorial|!(?=\s*$)))?
    """,
    re.VERBOSE,
)
_SEPARATED = rf"(?P<separator>[,'{THIN_SPACE} ])"
_PLAIN = re.compile(r"\d+(?:\.\d+)?")
_GROUPED = re.compile(rf"\d{{1,3}}{_SEPARATED}\d{{3}}(?:(?P=separator)\d{{3}})*(?:\.\d+)?")
_INDIAN = re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?")
_FRACTION = re.compile(rf"(?:(?P<whole>\d+)[ {THIN_SPACE}]+)?(?P<top>[\d.,]+)\s?/\s?(?P<bottom>[\d.,]+)")
_MAGNITUDES = {"thousand": 10**3, "k": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_LEAD = re.compile(r"(?P<outer>-(?P<space>\s?))?[$€£¥₹(\[{]{0,3}(?P<inner>(?<=[$€£¥₹])-)?\s?$")
_NOT_A_SIGN = re.compile(r"(?:[\d)\]}%]\s?|[A-Za-z.])$")


@dataclass(frozen=True)
class Number:
    """A number in a statement: its value (None where the digits are ill-formed) and its place."""

    value: Fraction | None
    start: int
    end: int
    leads: bool
    """Nothing but symbols stands before it in its statement."""


def _unsigned_value(run: str) -> Fraction | None:
    run = run.strip()
    if match := _FRACTION.fullmatch(run):
        parts = [_unsigned_value(match[name]) if match[name] else Fraction(0) for name in ("whole", "top", "bottom")]
        if None in parts or not parts[2]:
            return None
        return parts[0] + parts[1] / parts[2]  # type: ignore[operator]
    if _PLAIN.fullmatch(run):
        return Fraction(run)
    if _GROUPED.fullmatch(run) or _INDIAN.fullmatch(run):
        return Fraction(re.sub(rf"[,'{THIN_SPACE} ]", "", run))
    return None


def _numbers(text: str, cue: str) -> list[Number]:
    found: list[Number] = []
    for match in _RUN.finditer(text):
        value = _unsigned_value(f"0.{match['run']}" if match["point"] else match["run"])
        if match["glued"]:
            value = None
        if value is not None and match["exponent"]:
            value *= Fraction(10) ** int(match["power"])
        if value is not None and match["magnitude"]:
            value *= _MAGNITUDES[match["magnitude"].strip().lower()]
        lead = _LEAD.search(text[max(found[-1].end if found else 0, match.start() - 8) : match.start()])
        start = match.start() - len(lead[0] if lead else "")
        if (
            lead
            and lead["outer"]
            and (_NOT_A_SIGN.search(text[max(0, start - 2) : start]) or (lead["space"] and cue == "prose"))
        ):
            start += len(lead["outer"])  # an operator, a range's dash, a hyphen or a bullet
        elif lead and (lead["outer"] or lead["inner"]) and value is not None:
            value = -value
        leads = not found and not re.search(r"[^\W_]", text[: match.start()])
        found.append(Number(value, start, match.end(), leads))
    return found


# --- statements ---


@dataclass(frozen=True)
class Statement:
    """A piece of text that states an answer, what introduced it, and the numbers in it."""

    text: str
    cue: str
    numbers: tuple[Number, ...]


_CUE = re.compile(
    rf"(?P<marker>{MARKER.pattern}(?:[^\w\n]{{0,10}}(?:(?:the|my|final|correct)\s){{0,3}}answers?\b)?)"
    r"|(?P<boxed>\\boxed\s?\{)"
    r"|(?P<phrase>\banswers?\b[^.\n=:#\\\d]{0,60}?(?:\b(?:is|are|was|be|equals)\b|[:=]|(?=\s{0,3}\n))[:=]?)",
    re.IGNORECASE,
)
_LABEL = re.compile(r"(?:\s{0,3}(?:the|final|my|correct|actually|now|just|simply|therefore|so|thus)\b){0,3}", re.I)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")


def _statements(text: str) -> list[Statement]:
    cues = list(_CUE.finditer(text))
    statements = []
    for cue, following in zip(cues, [*cues[1:], None]):
        piece = text[cue.end() : following.start() if following else len(text)]
        kind = str(cue.lastgroup)
        body = _inside_braces(piece) if kind == "boxed" else _first_line(piece)
        statements.append(_statement(body, kind))
    return statements


def _inside_braces(piece: str) -> str:
    depth = 1
    for match in re.finditer(r"[{}\n]", piece):
        depth += {"{": 1, "}": -1, "\n": -depth}[match[0]]
        if depth <= 0:
            return piece[: match.start()]
    return piece


def _first_line(piece: str) -> str:
    """The rest of the cue's line, or the next line that has something where that is empty."""
    for line in piece.splitlines():
        if re.search(r"\w", line):
            return line
        if re.search(r"[,.;?!]", line):
            return ""
    return ""


def _statement(body: str, cue: str) -> Statement:
    """The first sentence of body that has a number."""
    for sentence in _sentences(body):
        sentence = sentence[_LABEL.match(sentence).end() if cue == "phrase" else 0 :]  # type: ignore[union-attr]
        if numbers := _numbers(sentence, cue):
            return Statement(sentence, cue, tuple(numbers))
    return Statement(body, cue, ())


def _sentences(text: str) -> list[str]:
    return _SENTENCE_END.split(text)


def _last_sentence(text: str) -> list[Statement]:
    for sentence in reversed(_sentences(text)):
        if numbers := _numbers(sentence, "prose"):
            return [Statement(sentence, "prose", tuple(numbers))]
    return []


# --- one number from a statement ---

_OPERATOR = re.compile(r"\s*[)\]}]?\s*[-+×÷*/^–]\s*[(\[{$€£¥₹]?\s*")
_WORDS = r"(?:[^\W\d_]+[.,]?\s+){0,3}?"
_ALTERNATIVE = re.compile(
    rf"[\s)\]}}%°]*{_WORDS}[^\w]{{0,5}}(?:\b(?:or|and|to|through|vs|versus|either|maybe)\b|~|–|\.\.+|…)\s*[^\w]{{0,5}}{_WORDS}[^\w]{{0,5}}",
    re.I,
)
_LIST = re.compile(r"\s*[,;|&]\s*[$€£¥₹]?")
_COMPARATIVE = re.compile(r"\s*(?:[^\W\d_]+\s+)?(?:more|less|fewer|times)\b", re.I)
_NEGATED = re.compile(r"\b(?:not|isn't|instead of|rather than)\s[^\w]{0,5}$", re.I)


def _read_statement(statement: Statement) -> Fraction | None:
    """The last side of an equation that is one number; None for alternatives, ranges and bare expressions."""
    text = statement.text
    boundaries = [(0, 0), *((m.start(), m.end()) for m in re.finditer(r"=|:(?!\d)", text)), (len(text), len(text))]
    for (start, left), (right, _) in reversed(list(zip(boundaries, boundaries[1:]))):
        numbers = [n for n in statement.numbers if left < n.end <= right]
        if not numbers:
            continue
        value, is_expression = _read_side(text, left, numbers, statement.cue)
        if not (is_expression and text[start:left] == "="):
            return value
    return None


def _read_side(text: str, left: int, numbers: list[Number], cue: str) -> tuple[Fraction | None, bool]:
    """The one number of a side that starts at left, and whether the side is an arithmetic expression instead."""
    stated = [n for n in numbers if not _NEGATED.search(text[max(left, n.start - 24) : n.start])] or numbers
    first, last = stated[0], stated[-1]
    from_front = not re.search(r"[^\W_]", text[left : first.start]) and not _COMPARATIVE.match(text[first.end :])
    chosen = first if from_front else last
    for a, b in (stated[:2],) if from_front and len(stated) > 1 else (stated[-2:],) if len(stated) > 1 else ():
        gap = text[a.end : b.start]
        if _OPERATOR.fullmatch(gap):
            return None, True
        joined = _ALTERNATIVE.fullmatch(gap) or (cue != "prose" and _LIST.fullmatch(gap))
        if joined and a.value != b.value:
            return None, False
    return chosen.value, False
