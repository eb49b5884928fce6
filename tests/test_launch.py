"""The child process: hangs end, orphans die, forked workers behave like started ones."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from toolrl.errors import UserError
from toolrl.verl_bridge import launch, worker_forks


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_a_silent_child_is_stopped_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "verl.log"
    log.write_text("BufferError: cannot close\n\x1b[36m(pid=1) RuntimeError: the weights did not arrive\nKeyError: 1\n")
    child = subprocess.Popen(["sh", "-c", "sleep 300 & echo $! > pid; wait"], cwd=tmp_path, **launch.OWN_GROUP)
    with pytest.raises(UserError, match="silent for .* RuntimeError: the weights did not arrive"):
        launch._watch(child, log, 0, 1.0, lambda: None)
    grandchild = int((tmp_path / "pid").read_text())
    launch._stop(child)
    assert child.returncode is not None and wait_until(lambda: not alive(grandchild))


def test_the_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import subprocess, time\nfrom toolrl.verl_bridge.launch import OWN_GROUP\n"
        "print(subprocess.Popen(['sleep', '300'], **OWN_GROUP).pid, flush=True)\ntime.sleep(300)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not alive(child))


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert launch.printable("\x1b[31mred\x1b[0m\x07 \x9btext") == "red text"


@pytest.mark.parametrize(("platform", "set_by_snakemake", "expected"), [("cuda", "2", "1"), ("cpu", "1", "2")])
def test_beside_a_gpu_each_process_computes_in_one_thread_else_in_all_given(
    platform: str, set_by_snakemake: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, set_by_snakemake)
    code = "import torch; from transfer_queue import client; print(torch.get_num_threads(), client.TQ_NUM_THREADS)"
    command = [sys.executable, "-c", code]
    child = subprocess.run(command, env=launch.environment(platform, 2), capture_output=True, text=True, check=True)
    assert child.stdout.split() == [expected, expected]


JOB_IDS = """
import ray, verl
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
@ray.remote
def in_a_worker():
    import verl
    return ray.get_runtime_context().get_job_id()
print(ray.get_runtime_context().get_job_id(), ray.get(in_a_worker.remote()))
"""


def test_launches_on_one_machine_do_not_share_the_socket_for_weights() -> None:
    """verl names it after the job's id, which every Ray counts from one."""
    ours, other = (launch.environment("cpu", 1) for _ in range(2))
    child = subprocess.run([sys.executable, "-c", JOB_IDS], env=ours, capture_output=True, text=True)
    assert ours["TOOLRL_LAUNCH"] != other["TOOLRL_LAUNCH"]
    assert child.stdout.split()[-2:] == [f"01000000-{ours['TOOLRL_LAUNCH']}"] * 2, child.stderr


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[str]:
    """The executable of a server that imports nothing."""
    with serving(tmp_path, "w.serve(listener, ())") as executable:
        yield executable


@contextmanager
def serving(folder: Path, call: str) -> Iterator[str]:
    address = str(folder / "forks")
    executable = worker_forks.write_executable(address)
    with worker_forks.listening(address) as listener:
        number = listener.fileno()
        code = "import socket; from toolrl.verl_bridge import worker_forks as w; "
        code += f"listener = socket.socket(fileno={number}); {call}"
        server = subprocess.Popen([sys.executable, "-c", code], pass_fds=[number])
    os.environ[worker_forks.SOCKET_VARIABLE] = address
    yield executable
    del os.environ[worker_forks.SOCKET_VARIABLE]
    server.kill()
    server.wait()


def test_a_forked_script_sees_its_arguments_environment_and_folder(forks: str, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], os.environ['MINE'], os.getcwd())\nsys.exit(7)\n")
    result = subprocess.run(
        [forks, "-B", str(script), "a", "b c"],
        cwd=tmp_path,
        env={**os.environ, "MINE": "yes"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout) == (7, f"['a', 'b c'] yes {tmp_path}\n")


def test_forked_code_gets_its_open_files_under_the_same_numbers(forks: str) -> None:
    reading, writing = os.pipe()
    code = f"import os; os.write({writing}, b'through the pipe')"
    result = subprocess.run([forks, "-c", code], pass_fds=[writing], timeout=60)
    os.close(writing)
    assert result.returncode == 0
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "through the pipe", "and the pipe is closed when the worker has ended"


def test_signals_reach_a_forked_worker(forks: str) -> None:
    # a signal just before a sleep waits until its end: the sleeps are short
    code = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: sys.exit(5))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    client = subprocess.Popen([forks, "-c", code], stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "up\n"
    client.send_signal(signal.SIGTERM)
    assert client.wait(timeout=30) == 5


def test_a_failing_worker_reports_its_traceback(forks: str) -> None:
    result = subprocess.run([forks, "-c", "raise ValueError('no')"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "ValueError: no" in result.stderr


def test_what_a_forked_worker_starts_is_forked_as_well(forks: str) -> None:
    code = "import os; from multiprocessing.spawn import get_executable as get; print(os.fsdecode(get()))"
    result = subprocess.run([forks, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == forks, result.stderr


def test_a_server_whose_imports_have_started_cuda_forks_nothing(tmp_path: Path) -> None:
    call = "w._cuda_has_started = lambda: True; w.serve(listener, ())"
    code = "import os, sys; print(sys.argv[1:], os.getppid()); sys.exit(7)"
    with serving(tmp_path, call) as executable:
        client = subprocess.Popen([executable, "-c", code, "a b"], stdout=subprocess.PIPE, text=True)
        assert client.communicate(timeout=60)[0] == f"['a b'] {os.getpid()}\n", "the client has become the worker"
    assert client.returncode == 7


def test_workers_start_where_the_servers_imports_fail(tmp_path: Path) -> None:
    with serving(tmp_path, "w.serve(listener, ('time', 'no_such_module'))") as executable:
        result = subprocess.run([executable, "-c", "print('up')"], capture_output=True, text=True, timeout=60)
    assert result.stdout == "up\n"


def test_workers_start_where_there_is_no_server(tmp_path: Path) -> None:
    executable = worker_forks.write_executable(str(tmp_path / "forks"))
    elsewhere = {**os.environ, worker_forks.SOCKET_VARIABLE: str(tmp_path / "other node" / "forks")}
    result = subprocess.run(
        [executable, "-c", "print('up')"], env=elsewhere, capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "up\n"
