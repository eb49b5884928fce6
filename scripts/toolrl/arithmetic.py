"""Exact arithmetic on text from a model: a whitelist over Python's parser, with bounded size and no `eval`."""

import ast
import warnings
from fractions import Fraction

LONGEST_EXPRESSION = 500
LARGEST_EXPONENT = 64
LARGEST_BITS = 4096


class NotArithmetic(ValueError):
    """The expression is not arithmetic, or too large; the message can be shown to the model."""


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression of numbers, + - * / // % ** and parentheses.

    Commas in numbers (`1,000`), `×`, `÷`, `^` and unicode minus are read as people mean them.

    Raises:
        NotArithmetic: on anything else, a division by zero, or a result of more than 4,096 bits.
    """
    text = expression.strip().translate(_SYMBOLS).replace("^", "**").replace("_", "?")
    if not text:
        raise NotArithmetic("the expression is empty")
    if len(text) > LONGEST_EXPRESSION:
        raise NotArithmetic(f"the expression is longer than {LONGEST_EXPRESSION} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of text such as `1if`
            tree = ast.parse(_without_thousands_separators(text), mode="eval")
        return _value(tree.body)
    except NotArithmetic:
        raise
    except ZeroDivisionError:
        raise NotArithmetic("division by zero") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotArithmetic("this is not an arithmetic expression") from None


_SYMBOLS = str.maketrans({"×": "*", "÷": "/", "−": "-", "–": "-"})


def _without_thousands_separators(text: str) -> str:
    parts = text.split(",")
    for left, right in zip(parts, parts[1:]):
        if not (left[-1:].isdigit() and right[:3].isdigit() and len(right[:3]) == 3 and not right[3:4].isdigit()):
            raise NotArithmetic("a comma stands only before three digits, as in 1,000")
    return "".join(parts)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > LARGEST_BITS:
        raise NotArithmetic("the number is too large")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > LARGEST_EXPONENT:
        raise NotArithmetic(f"an exponent must be a whole number up to {LARGEST_EXPONENT}")
    return base ** int(exponent)


_BINARY = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
}


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        # str(float) is the shortest text that reads back, so 0.1 means one tenth
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = _value(node.operand)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _bounded(_BINARY[type(node.op)](_value(node.left), _value(node.right)))
    raise NotArithmetic("only numbers, + - * / // % ** and parentheses are allowed")
