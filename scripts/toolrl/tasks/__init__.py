"""Finding a task: one of the package's by name, or the user's own module by its path."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path

from toolrl.errors import UserError
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
    module_name = f"toolrl_user_task_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise UserError(f"task: {name_or_path} cannot be imported ({type(error).__name__}: {error}).") from error
    task = getattr(sys.modules[module_name], "TASK", None)
    if not isinstance(task, Task):
        raise UserError(f"task: {name_or_path} must define TASK, an instance of toolrl.tasks.base.Task.")
    return task
