"""Errors that are meant for the user: one sentence, no traceback."""

import errno


class UserError(Exception):
    """What the user gave cannot be used; the message names it and says how to fix it."""


DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
