"""Keeps secrets out of every file and message: what looks like one is replaced before it is written."""

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

REPLACEMENT = "[secret]"
SECRET_NAME = re.compile(
    r"token|secret|passw|api_?key|access_?key|private_?key|credential|authorization|_auth$|_pat$|cookie", re.IGNORECASE
)
NOT_SECRET = re.compile(r"max_|num_|_tokens|tokens_|tokenizer|token_id|TOKENIZERS", re.IGNORECASE)
SHORTEST = 6
"""Shorter values are not looked for in texts: they would be found everywhere."""

KNOWN_FORMS = re.compile(
    r"""(?P<before>\b[a-z][a-z0-9+.-]*://[^\s/:@'"]*:)[^\s/@'"]+(?=@)   # the password of a URL
    | \bhf_[A-Za-z0-9]{20,} | \bsk-[A-Za-z0-9_-]{16,} | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}
    | \bxox[abpr]-[A-Za-z0-9-]{10,} | \bA(?:KIA|SIA)[A-Z0-9]{16}\b | \bglpat-[A-Za-z0-9_-]{16,}
    | \beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----[\s\S]*?-----END\ [A-Z ]*PRIVATE\ KEY-----
    | (?<=Bearer\ )[A-Za-z0-9._~+/=-]{8,}
    | (?P<option>--[a-z-]*(?:token|secret|password|api-?key)[a-z-]*[=\ ])[^\s'"]+""",
    re.VERBOSE,
)

_configured: set[str] = set()


def is_secret_name(name: str) -> bool:
    """Whether a value of this name (an environment variable, a configuration key) must not be shown."""
    return bool(SECRET_NAME.search(name)) and not NOT_SECRET.search(name)


def register(settings: Any) -> None:
    """Remembers the values of secret keys in a configuration, so that they are redacted wherever they turn up."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if isinstance(value, str) and is_secret_name(str(key)):
                _configured.add(value)
            register(value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            register(value)


@cache
def _environment() -> frozenset[str]:
    return frozenset(value for name, value in os.environ.items() if is_secret_name(name))


def redacted(text: str) -> str:
    """The text with secrets replaced: values of secret variables and keys, passwords in URLs, and known token forms."""
    for value in sorted(_environment() | _configured, key=len, reverse=True):
        if len(value) >= SHORTEST:
            text = text.replace(value, REPLACEMENT)
    return KNOWN_FORMS.sub(_replacement, text)


def _replacement(match: re.Match[str]) -> str:
    return (match["before"] or match["option"] or "") + REPLACEMENT


def without_secrets(settings: Any) -> Any:
    """A configuration with the values of secret keys replaced, and all texts redacted."""
    if isinstance(settings, Mapping):
        return {
            key: REPLACEMENT if isinstance(value, str) and is_secret_name(str(key)) else without_secrets(value)
            for key, value in settings.items()
        }
    if isinstance(settings, list | tuple):
        return [without_secrets(value) for value in settings]
    return redacted(settings) if isinstance(settings, str) else settings
