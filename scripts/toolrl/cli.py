"""What every command line of ours shares: settings, log file, and errors of one sentence."""

import argparse
import json
import logging
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolrl import secrets
from toolrl.errors import UserError, is_disk_full

log = logging.getLogger("toolrl")


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with the options that all commands have."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--log", type=Path, help="also write messages to this file")
    return result


def add_settings(arguments: argparse.ArgumentParser) -> None:
    arguments.add_argument(
        "--settings",
        type=_settings,
        required=True,
        metavar="JSON|FILE",
        help="the configuration (config/schema.yaml), as JSON text or as a .json/.yaml file",
    )


def _settings(text: str) -> Any:
    import yaml

    try:
        is_json = text.lstrip().startswith("{")
        settings = json.loads(text) if is_json else yaml.safe_load(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise argparse.ArgumentTypeError(f"not JSON, nor a readable file: {str(error).splitlines()[0]}") from None
    secrets.register(settings)
    return settings


def command_line() -> str:
    """The running command, as one types it; manifests are written without secrets."""
    return shlex.join(["python", *sys.argv])


class _Redacting(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return secrets.redacted(super().format(record))


def run(main: Callable[[argparse.Namespace], None], arguments: argparse.ArgumentParser) -> None:
    """Parses, runs main and exits; a UserError or a full disk ends as one sentence and exit code 1."""
    parsed = arguments.parse_args()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if parsed.log:
        parsed.log.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(parsed.log, mode="w", encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(_Redacting("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=handlers)
    log.setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that children are stopped too
    try:
        main(parsed)
    except UserError as error:
        log.error("error: %s", error)
        sys.exit(1)
    except OSError as error:
        if not is_disk_full(error):
            raise
        where = f" while writing {error.filename}" if error.filename else ""
        log.error("error: the disk is full%s: free some space and run the same command again.", where)
        sys.exit(1)
