"""Finding a task: one of the package's by name, or the user's own module by its path."""

import importlib
from pathlib import Path

from toolrl.errors import UserError
from toolrl.extensions import load_file
from toolrl.tasks.base import Task

BUILT_IN = ("gsm8k",)


def load_task(name_or_path: str) -> Task:
    """Returns the `TASK` of a built-in task or of a Python file.

    Raises:
        UserError: when there is no such task, or the file defines no `TASK`.
    """
    if name_or_path in BUILT_IN:
        return importlib.import_module(f"toolrl.tasks.{name_or_path}").TASK
    path = Path(name_or_path)
    if path.suffix != ".py":
        raise UserError(
            f"task: there is no task {name_or_path!r}; use one of {', '.join(BUILT_IN)}, or the path of a .py file "
            "that defines TASK."
        )
    if not path.is_file():
        raise UserError(f"task: the file {name_or_path} does not exist.")
    try:
        module = load_file(path)
    except Exception as error:
        raise UserError(f"task: {name_or_path} cannot be imported ({type(error).__name__}: {error}).") from error
    task = getattr(module, "TASK", None)
    if not isinstance(task, Task):
        raise UserError(f"task: {name_or_path} must define TASK, an instance of toolrl.tasks.base.Task.")
    return task
