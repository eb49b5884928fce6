"""A real Slurm on this machine, for the tests: Debian's packages, one controller, two nodes on loopback with two GPUs
each, and the accounting daemon, without which Slurm does not list GPUs among a job's TRES.

    python tests/slurm.py up | down       by hand, to look at it

It needs root. The configuration has to be in the default place, because srun inside a job reads it from there; one that
is there already is left alone, and the cluster does not start. The GPUs are twins of /dev/null: Slurm only counts and
names them. Without cgroups, memory is policed by sampling, as some clusters do.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import psutil
from toolrl.locks import attempt

PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge",
    "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server",
)  # fmt: skip
COMMANDS = ("slurmctld", "slurmd", "sbatch", "munged", "slurmdbd", "mariadbd")
CONFIGURATION = Path("/etc/slurm")
OURS = "# a test's cluster, written by tests/slurm.py\n"
FOLDER = Path("/tmp/toolrl-slurm")
NODES = ("one", "two")
GPUS = range(2)
"""Of each node."""
# below the ports that Linux gives to outgoing connections, which may be taken at any moment
ACCOUNTING_PORT = 16816
CONTROLLER_PORT = 16817
DATABASE = FOLDER / "mariadb"
START_SECONDS = 40
LOCK = Path("/tmp/toolrl-slurm.lock")
_HELD: list[IO[str]] = []
"""The lock of this process: Slurm has one configuration, and so a machine has one cluster."""


class Unavailable(Exception):
    """Why Slurm cannot be started here."""


def _slurm_conf() -> str:
    host = socket.gethostname().partition(".")[0]
    nodes = "".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={CONTROLLER_PORT + number} CPUs=16 "
        f"RealMemory=65536 Gres=gpu:test:{len(GPUS)} State=UNKNOWN\n"
        for number, name in enumerate(NODES, start=1)
    )
    return f"""{OURS}
ClusterName=toolrl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={CONTROLLER_PORT}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
SlurmctldPidFile={FOLDER}/slurmctld.pid
SlurmctldLogFile={FOLDER}/slurmctld.log
SlurmdPidFile={FOLDER}/slurmd-%n.pid
SlurmdLogFile={FOLDER}/slurmd-%n.log
SlurmdSpoolDir={FOLDER}/spool-%n
StateSaveLocation={FOLDER}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill,UsePss
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ACCOUNTING_PORT}
AccountingStorageTRES=gres/gpu
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
MinJobAge=600
KillWait=5
SlurmdTimeout=300
{nodes}PartitionName=main Nodes={",".join(NODES)} Default=YES MaxTime=1-00:00:00 State=UP
PartitionName=single Nodes={NODES[0]} MaxTime=1-00:00:00 State=UP
"""


def _gres_conf() -> str:
    lines = [f"NodeName={name} Name=gpu Type=test File={FOLDER}/gpu-{name}-{gpu}\n" for name in NODES for gpu in GPUS]
    return OURS + "".join(lines)


def _slurmdbd_conf() -> str:
    return f"""{OURS}
AuthType=auth/munge
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ACCOUNTING_PORT}
SlurmUser=root
PidFile={FOLDER}/slurmdbd.pid
LogFile={FOLDER}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""


def _run(*command: str, check: bool = True) -> str:
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if check and result.returncode:
        raise Unavailable(f"`{' '.join(command)}` failed: {(result.stderr or result.stdout).strip()[-500:]}")
    return result.stdout


def _wait(what: str, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            logs = "".join(file.read_text(errors="replace")[-500:] for file in FOLDER.glob("slurm*.log"))
            raise Unavailable(f"no {what} after {START_SECONDS} s: {logs}")
        time.sleep(0.3)


def _install() -> None:
    if all(shutil.which(name) for name in COMMANDS):
        return
    if shutil.which("apt-get") is None:
        raise Unavailable("Slurm is not installed, and there is no apt-get to install it with")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    _run("apt-get", "update", check=False)
    _run("apt-get", "install", "-y", "--no-install-recommends", *PACKAGES)


def _start_munge() -> None:
    if not _fails("munge", "-n"):
        return
    key = Path("/etc/munge/munge.key")
    folders = {"/etc/munge": 0o700, "/run/munge": 0o755, "/var/lib/munge": 0o711, "/var/log/munge": 0o700}
    for folder, mode in folders.items():
        Path(folder).mkdir(exist_ok=True)
        Path(folder).chmod(mode)
        shutil.chown(folder, "munge", "munge")
    if not key.exists():
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        shutil.chown(key, "munge", "munge")
    _run("runuser", "-u", "munge", "--", "munged")
    _wait("munge", lambda: not _fails("munge", "-n"))


def _start_accounting() -> None:
    socket_file = Path("/run/mysqld/mysqld.sock")  # where slurmdbd looks for a local database
    if not _fails("mariadb", "-e", "select 1"):
        raise Unavailable(f"this machine has a MariaDB of its own ({socket_file})")
    socket_file.parent.mkdir(exist_ok=True)
    DATABASE.mkdir()
    for folder in (socket_file.parent, DATABASE):
        shutil.chown(folder, "mysql", "mysql")
    alone = ("--no-defaults", "--user=mysql", f"--datadir={DATABASE}")
    _run("mariadb-install-db", *alone, "--auth-root-authentication-method=socket", "--skip-test-db")
    files = (f"--socket={socket_file}", f"--pid-file={DATABASE}/mariadb.pid", f"--log-error={DATABASE}/mariadb.log")
    # slurmdbd wants these two above the defaults
    sizes = ("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900")
    subprocess.Popen(
        ["mariadbd", *alone, "--skip-networking", *files, *sizes],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _wait("MariaDB", lambda: not _fails("mariadb", "-e", "select 1"))
    _run("slurmdbd")
    _wait("slurmdbd", lambda: (FOLDER / "slurmdbd.pid").exists() and not _fails("sacctmgr", "-n", "list", "cluster"))
    _run("sacctmgr", "-i", "add", "cluster", "toolrl")
    _run("sacctmgr", "-i", "add", "account", "toolrl", "Description=tests", "Organization=tests")
    _run("sacctmgr", "-i", "add", "user", "root", "account=toolrl", "defaultaccount=toolrl")


def _fails(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode != 0


def start() -> None:
    """Installs what is missing and starts the cluster.

    Raises:
        Unavailable: where that cannot be done, saying why.
    """
    if os.geteuid() != 0:
        raise Unavailable("a test cluster needs root")
    present = CONFIGURATION / "slurm.conf"
    if present.exists() and not present.read_text().startswith(OURS):
        raise Unavailable(f"this machine has a Slurm of its own ({present})")
    if (lock := attempt(LOCK)) is None:
        raise Unavailable("other tests on this machine have it running")
    _HELD.append(lock)
    try:
        _install()
        _start()
    except Unavailable:
        stop()
        raise


def _start() -> None:
    stop()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(mode=0o755)
    CONFIGURATION.mkdir(exist_ok=True)
    (CONFIGURATION / "slurm.conf").write_text(_slurm_conf())
    (CONFIGURATION / "gres.conf").write_text(_gres_conf())
    accounting = CONFIGURATION / "slurmdbd.conf"
    accounting.touch(0o600)
    accounting.write_text(_slurmdbd_conf())
    for name in NODES:
        for gpu in GPUS:  # distinct character devices, or jobs are told no index
            _run("mknod", "-m", "666", str(FOLDER / f"gpu-{name}-{gpu}"), "c", "1", "3")
    _start_munge()
    _start_accounting()
    _run("slurmctld", "-c")
    _wait("answer from slurmctld", lambda: "UP" in _run("scontrol", "ping", check=False))
    for name in NODES:
        _run("slurmd", "-N", name)
    _wait(
        "idle nodes",
        lambda: (
            set(_run("sinfo", "-h", "-N", "-o", "%N %t", check=False).splitlines())
            == {f"{name} idle" for name in NODES}
        ),
    )


def stop() -> None:
    """Cancels all jobs, stops the daemons and removes the configuration."""
    if not (CONFIGURATION / "slurm.conf").exists():
        return
    if (FOLDER / "slurmctld.pid").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["scancel", "-u", "root"], capture_output=True, timeout=10)
    daemons = (FOLDER / "slurmctld.pid", FOLDER / "slurmdbd.pid", DATABASE / "mariadb.pid")
    for file in [*FOLDER.glob("slurmd-*.pid"), *daemons]:
        _end(file)
    for name in ("slurm.conf", "gres.conf", "slurmdbd.conf"):
        (CONFIGURATION / name).unlink(missing_ok=True)


def _end(pid_file: Path) -> None:
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    for number, patience in ((signal.SIGTERM, 3), (signal.SIGKILL, 2)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, number)
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.1)
    pid_file.unlink(missing_ok=True)


def job(number: str) -> dict[str, str]:
    """What `scontrol` says about a job, key by key."""
    return dict(pair.partition("=")[::2] for pair in _run("scontrol", "-o", "show", "job", number).split())


def active_jobs(rule: str = "") -> list[str]:
    """The numbers of the jobs that have not ended; of one rule of the workflow, if it is named."""
    listed = (line.split(maxsplit=1) for line in _run("squeue", "--noheader", "--format=%i %k").splitlines())
    return [number for number, comment in listed if comment.startswith(f"rule_{rule}")]


def is_running(rule: str) -> bool:
    """Whether a job of the rule has its nodes."""
    return any(job(number)["JobState"] == "RUNNING" for number in active_jobs(rule))


def _only_job(rule: str) -> str:
    (number,) = active_jobs(rule)
    return number


def lose(rule: str) -> None:
    """Cancels a rule's job, and kills its processes before they can end by themselves."""
    number = _only_job(rule)
    doomed = processes(number)
    _run("scancel", number)
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def processes(number: str | None = None) -> list[psutil.Process]:
    """The processes of a job; of all jobs, without a number."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            job = process.environ().get("SLURM_JOB_ID")
            if job and number in (None, job):
                found.append(process)
    return found


def end_time(rule: str) -> None:
    """Lets a rule's job run for a minute and no longer."""
    _run("scontrol", "update", f"JobId={_only_job(rule)}", "TimeLimit=1")


def resources(rule: str) -> str:
    """The TRES of a rule's job, as `scontrol` shows them."""
    return job(_only_job(rule))["TRES"]


if __name__ == "__main__":
    {"up": start, "down": stop}[sys.argv[1]]()
