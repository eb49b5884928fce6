"""Workers that are forked from one process which has already imported torch, transformers and vLLM.

A launch of verl starts about eight Ray workers and two vLLM processes one after the other, and each spends 7 to 17 s of
one core on the same imports: one to two minutes in all. Ray's runtime environment lets a `py_executable`
start its workers (`ray._private.runtime_env.context.RuntimeEnvContext.exec_worker`), and so does
`multiprocessing.set_executable` for their own processes, as vLLM's. This file, run as a script, is that executable. It
hands the command line, the environment and the open files to a server, which forks the worker, and then waits for the
worker to end. Where there is no server, as after imports that have failed or have started CUDA, whose state does not
survive a fork, it becomes the worker itself, so that only time is lost.

The file imports nothing heavy until it serves.
"""

import array
import contextlib
import fcntl
import json
import multiprocessing
import os
import select
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

SOCKET_VARIABLE = "TOOLRL_WORKER_FORKS"
EXECUTABLE_NAME = "python"
MOST_DESCRIPTORS = 200
SPARE_DESCRIPTORS = 400  # above what is passed, below the usual limit of 1024
CUDA_NOT_INITIALIZED = 3
"""The driver's answer to any question before `cuInit`."""

PRELOADED = (
    "torch._dynamo",
    "torch._inductor.lowering",
    "tensordict",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "datasets",
    "torchdata.stateful_dataloader",
    "hydra",
    "peft",
    "fastapi",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen2",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.structured_output",
    "vllm.v1.engine.input_processor",
    "vllm.v1.engine.output_processor",
    "vllm.engine.arg_utils",
    "vllm.entrypoints.chat_utils",
    "vllm.tool_parsers",
)
"""Not Ray, nor what imports it (verl, vLLM's executors): it reads the worker's environment while it is loaded."""

VLLM_WORKERS = {"cpu": "vllm.v1.worker.cpu_worker", "cuda": "vllm.v1.worker.gpu_worker"}


def listening(address: str) -> socket.socket:
    """The server's socket, made before the server is started: requests wait from now on, and end with the server."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    return listener


def serve(listener: socket.socket, modules: Sequence[str]) -> None:
    """Imports the modules while requests wait, then forks a worker for each until it is killed; ends where that has
    started CUDA."""
    import gc
    import importlib

    before = dict(os.environ)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to see whether there is a GPU without starting CUDA
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    assert "ray" not in sys.modules
    added = {name: value for name, value in os.environ.items() if name not in before}
    if _cuda_has_started():
        sys.exit("worker_forks: an import has started CUDA: each worker imports for itself")
    gc.collect()
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _become_worker(connection, added)
        connection.close()


def _become_worker(connection: socket.socket, added: Mapping[str, str]) -> None:
    """Runs what is requested; its environment is the client's and what imports have added to the server's."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        size, received = _receive_header(connection)
        request = json.loads(_receive(connection, size))
        connection = socket.socket(fileno=fcntl.fcntl(connection.detach(), fcntl.F_DUPFD_CLOEXEC, SPARE_DESCRIPTORS))
        _place(received, request["descriptors"])
        connection.sendall(os.getpid().to_bytes(8, "big"))
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update({**added, **request["environment"]})
        multiprocessing.set_executable(_executable(os.environ[SOCKET_VARIABLE]))
        _run(request["arguments"])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.suppress(OSError):  # the client may have been killed
            connection.sendall(bytes([status & 255]))
        os._exit(status)


def _place(received: list[int], wanted: list[int]) -> None:
    """Moves the received files to the numbers that they have in the client."""
    spare = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, SPARE_DESCRIPTORS) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, target in zip(spare, wanted):
        os.dup2(descriptor, target)
        os.close(descriptor)


def _run(arguments: list[str]) -> None:
    """Does what `python ARGUMENTS` does, for a script or for `-c CODE`."""
    import runpy

    while arguments[0].startswith("-") and arguments[0] != "-c":
        arguments = arguments[1:]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), sys.modules["__main__"].__dict__)  # noqa: S102
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(arguments[0])
        runpy.run_path(arguments[0], run_name="__main__")


def _receive_header(connection: socket.socket) -> tuple[int, list[int]]:
    descriptors = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_LEN(MOST_DESCRIPTORS * descriptors.itemsize))
    for _, kind, payload in ancillary:
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload)
    return int.from_bytes(data, "big"), list(descriptors)


def _receive(connection: socket.socket, size: int) -> bytes:
    """Exactly size bytes, or fewer where the other side has gone."""
    data = b""
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return data


def _connect(address: str) -> socket.socket | None:
    """A connection to the server; None where there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


def _cuda_has_started() -> bool:
    """Whether this process has initialised CUDA's driver, without doing so."""
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # not even loaded
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != CUDA_NOT_INITIALIZED


def _open_descriptors() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:  # the listing's own
            continue
        found.append(int(name))
    return sorted(found)[:MOST_DESCRIPTORS]


def request_worker(address: str, arguments: list[str]) -> int:
    """Asks the server for a worker, waits until it has ended and returns its exit status.

    Becomes the worker where no server answers.
    """
    descriptors = _open_descriptors()
    connection = _connect(address)
    signals = _signals_to_read((signal.SIGTERM, signal.SIGINT))
    request = json.dumps(
        {
            "arguments": arguments,
            "descriptors": descriptors,
            "environment": dict(os.environ),
            "directory": os.getcwd(),
        }
    ).encode()
    worker = 0
    if connection is not None:
        with contextlib.suppress(OSError):  # the server may end while it imports
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            connection.sendmsg([len(request).to_bytes(8, "big")], [rights])
            connection.sendall(request)
            worker = int.from_bytes(_receive(connection, 8), "big")
    if connection is None or not worker:
        os.execv(sys.executable, [sys.executable, *arguments])
    for descriptor in descriptors:  # the worker's end of a pipe must close when the worker ends
        if descriptor > 2:
            os.close(descriptor)
    while connection not in select.select([connection, signals], [], [])[0]:
        for number in signals.recv(64):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, number)
    status = _receive(connection, 1)
    return status[0] if status else 1


def _signals_to_read(numbers: tuple[int, ...]) -> socket.socket:
    """From now on these signals are read from the socket: none comes too early, nor between a check and a wait."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach())
    for number in numbers:
        signal.signal(number, lambda received, frame: None)
    return reading


def _executable(address: str) -> str:
    return os.path.join(os.path.dirname(address), EXECUTABLE_NAME)


def write_executable(address: str) -> str:
    """Writes this file's command as a single executable beside the server's socket, for
    `multiprocessing.set_executable`."""
    path = _executable(address)
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(f'#!/bin/sh\nexec {shlex.join([sys.executable, os.path.abspath(__file__)])} "$@"\n')
    os.chmod(path, 0o700)
    return path


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(socket.socket(fileno=int(sys.argv[2])), (*PRELOADED, VLLM_WORKERS[sys.argv[3]]))
    else:
        sys.exit(request_worker(os.environ.get(SOCKET_VARIABLE, ""), sys.argv[1:]))
