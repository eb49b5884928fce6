"""Errors that are meant for the user: one sentence, no traceback."""

import errno
import shutil


class UserError(Exception):
    """What the user gave cannot be used; the message names it and says how to fix it."""


def is_disk_full(error: OSError) -> bool:
    """Whether the error says that no space is left; `shutil` wraps the errors of many files in one."""
    if isinstance(error, shutil.Error):
        return f"[Errno {errno.ENOSPC}]" in str(error) or f"[Errno {errno.EDQUOT}]" in str(error)
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
