"""Ray workers that are forked from one process which has already imported torch, transformers and vLLM.

A launch of verl starts about eight Ray workers one after the other, and each spends 7 to 17 s of one core on the same
imports: two minutes in all on a laptop. Ray's runtime environment lets a `py_executable` start its workers
(`ray._private.runtime_env.context.RuntimeEnvContext.exec_worker`); this file, run as a script, is that executable. It
hands the worker's arguments, environment and standard streams to a server, which forks the worker, and then waits for
the worker to end. Without a server it becomes the worker itself, so that only time is lost.

The file imports nothing heavy until it serves.
"""

import array
import json
import os
import signal
import socket
import sys
import time

SOCKET_VARIABLE = "TOOLRL_WORKER_FORKS"
LONGEST_WAIT_SECONDS = 120
PRELOADED = (
    "torch._dynamo",
    "torch._inductor.lowering",
    "tensordict",
    "transformers.models.qwen2.modeling_qwen2",
    "datasets",
    "torchdata.stateful_dataloader",
    "hydra",
    "peft",
    "fastapi",
    "vllm.model_executor.models.qwen2",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.structured_output",
    "vllm.v1.engine.input_processor",
    "vllm.v1.engine.output_processor",
    "vllm.engine.arg_utils",
    "vllm.entrypoints.chat_utils",
    "vllm.tool_parsers",
)
"""Not Ray, nor what imports it (verl, vLLM's executors): it reads the worker's environment while it is loaded."""


def serve(address: str) -> None:
    """Imports what workers need, then forks one for each request until it is killed."""
    import gc
    import importlib

    gc.disable()
    for module in PRELOADED:
        importlib.import_module(module)
    assert "ray" not in sys.modules
    gc.collect()
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become_worker(connection)
            connection.close()


def _become_worker(connection: socket.socket) -> None:
    import runpy

    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        size, streams = _receive_header(connection)
        request = json.loads(_receive(connection, size))
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = request["arguments"]
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _receive_header(connection: socket.socket) -> tuple[int, list[int]]:
    streams = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_LEN(3 * streams.itemsize))
    for _, kind, payload in ancillary:
        if kind == socket.SCM_RIGHTS:
            streams.frombytes(payload)
    return int.from_bytes(data, "big"), list(streams)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def _connect(address: str) -> socket.socket | None:
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
            return connection
        except OSError:
            connection.close()
            time.sleep(0.1)
    return None


def request_worker(address: str, arguments: list[str]) -> None:
    """Asks the server for a worker and waits until it has ended; becomes the worker where no server answers."""
    connection = _connect(address)
    if connection is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    request = json.dumps({"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}).encode()
    streams = array.array("i", [0, 1, 2])
    connection.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    connection.sendall(request)
    while connection.recv(64):
        pass


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        request_worker(os.environ.get(SOCKET_VARIABLE, ""), sys.argv[1:])
