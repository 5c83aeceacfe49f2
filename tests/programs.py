"""Python programs that start at once: forked from a process that has imported torch and mixwise already.

    process = Program([sys.executable, "script.py", "--option"], stdout=subprocess.PIPE, text=True)

    done = run_program("-c", "print(1 + 1)")

A `Program` is a `subprocess.Popen`: a child process with its own directory, environment and streams, which ends the way
every Python program ends. Only the seconds that it takes to import torch are saved. With `STARTS_PROGRAMS` in its
environment, what the program starts by `subprocess.Popen` is a `Program`, too: for torchrun and `mixwise launch`. With
`NETWORK_OF=PID` it runs in the network namespace of another process.
Command lines that do not begin with this interpreter, and systems other than Linux, get an ordinary `Popen`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import CodeType
from typing import Any

import psutil

_IMPORTED = (
    "torch.distributed.run",
    "torch._dynamo",  # torch imports it when the first optimizer is made
    "mixwise.cli",
    "mixwise.experiments.runner",
    "mixwise.launch.supervisor",
    "sklearn.datasets",
)
_PDEATHSIG, _SUBREAPER = 1, 36  # prctl: the signal to get when the parent dies; to become the parent of orphans
_names = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # in this version of Python
_origin: tuple[Any, ...] | None = None  # the process that has one, and the way to the one that forks for it
_forked = False  # whether this process is a program that was forked


class Program(subprocess.Popen):  # type: ignore[type-arg]
    """A process that runs a Python program."""

    def _execute_child(self, *values: Any) -> None:  # what Popen calls when the pipes are ready
        given = dict(zip(_names, values, strict=True))
        command = [os.fspath(word) for word in given["args"]] if not isinstance(given["args"], str) else [given["args"]]
        alone = _forked and _origin is None
        if sys.platform != "linux" or command[0] != sys.executable or alone:
            super()._execute_child(*values)
            return
        pipes = [("p2cread", "p2cwrite"), ("c2pwrite", "c2pread"), ("errwrite", "errread")]
        streams = [standard if given[its] == -1 else given[its] for standard, (its, _) in enumerate(pipes)]
        environment = dict(os.environ if given["env"] is None else given["env"])
        group = 0 if given["start_new_session"] else given["process_group"]
        request = (os.getpid(), command[1:], os.fspath(given["cwd"] or os.getcwd()), environment, group)
        way = _way_to_origin()
        socket.send_fds(way, [json.dumps(request).encode()], streams)
        self.pid = int(way.recv(100))
        self._child_created = True
        for its, ours in pipes:
            if given[its] != -1 and given[ours] != -1:
                os.close(given[its])
        if getattr(self, "_devnull", None) is not None:
            os.close(self._devnull)


def run_program(
    *arguments: object, timeout: float = 300.0, starts_programs: bool = False, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` for the interpreter with these arguments; what is printed is captured as text."""
    command = [sys.executable, *map(str, arguments)]
    environment = os.environ | ({"STARTS_PROGRAMS": "1"} if starts_programs else {})
    with Program(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def torchrun(processes: int, *arguments: object, cwd: Path | None = None) -> str:
    """What a script prints under torchrun; its failure is an error here."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *arguments]
    done = run_program(*command, cwd=cwd, starts_programs=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(
    command: list[object], cwd: Path, env: dict[str, str] | None = None, log: Path | None = None
) -> Iterator[Program]:
    """A program that may start others; it has ended, with all of them, when the block has.

    It prints to a file, or to `process.stdout`; `env` are variables besides those of this process.
    """
    environment = os.environ | {"STARTS_PROGRAMS": "1", "OMP_NUM_THREADS": "1"} | (env or {})
    with log.open("a") if log else nullcontext(subprocess.PIPE) as output:
        process = Program(
            list(map(str, command)), cwd=cwd, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True,
            start_new_session=True
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # torchrun and mixwise launch end their own
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def wait_for(found: Callable[[], Any], processes: list[Program], folder: Path, seconds: float = 200.0) -> Any:
    """What the function finds, while the processes live; their logs in the folder are shown otherwise."""
    end = time.monotonic() + seconds
    while not (result := found()):
        logs = "".join(f"--- {path.name}\n{path.read_text()}" for path in folder.glob("*.log"))
        assert all(process.poll() is None for process in processes), f"it ended too early:\n{logs}"
        assert time.monotonic() < end, f"nothing happened for {seconds} s:\n{logs}"
        time.sleep(0.02)
    return result


def alive(pid: int) -> bool:
    """Whether a process has not ended; one that has stays known until its parent asks how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_with_hook(hook: str) -> str:
    """A script that is `mixwise run` without pictures, and does something after every checkpoint."""
    return f"""
import os, signal, time
from pathlib import Path
from mixwise.cli import main
from mixwise.experiments import runner
save = runner.save_checkpoint
def save_and_hook(training, folder):
    save(training, folder)
    {hook}
runner.save_checkpoint = save_and_hook
runner.save_curves = runner.save_page = lambda *args: None
main()
"""


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]  # type: ignore[no-any-return]


def _way_to_origin() -> socket.socket:
    """To the process that forks for this one; started when it is needed."""
    global _origin
    if _origin is None or _origin[0] != os.getpid():
        _prctl(_SUBREAPER, 1)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # read when torch is imported
        forking = subprocess.Popen(
            [sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()], env=environment
        )  # ends with this process, when the other end of the socket is closed
        there.close()
        _origin = os.getpid(), here, forking
    return _origin[1]


def _prctl(option: int, value: int) -> None:
    _check(ctypes.CDLL(None, use_errno=True).prctl(option, value))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# --- in the process that forks ---
def next_program(way: socket.socket) -> CodeType:
    """Forks a process for every request, and returns in each of them, with the code that it shall run."""
    while True:
        message, streams, _, _ = socket.recv_fds(way, 1 << 20, 3)
        if not message:
            os._exit(0)
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(write, str(child).encode())
                os._exit(0)  # leaves an orphan, whose parent is now the process that asked
            way.close()
            for end in (read, write):
                os.close(end)
            return _become(*json.loads(message), streams)
        os.waitpid(between, 0)
        way.send(os.read(read, 100))
        for end in (read, write, *streams):
            os.close(end)


def _become(
    parent: int, arguments: list[str], directory: str, environment: dict[str, str], group: int, streams: list[int]
) -> CodeType:
    global _forked
    _forked = True
    while os.getppid() != parent:
        time.sleep(0.001)
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if group != -1:
        os.setpgid(0, group)
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    if process := os.environ.pop("NETWORK_OF", None):
        for namespace in [os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")]:
            _check(ctypes.CDLL(None, use_errno=True).setns(namespace, 0))
            os.close(namespace)
    sys.stdout.reconfigure(write_through="PYTHONUNBUFFERED" in environment)  # type: ignore[union-attr]
    if os.environ.pop("STARTS_PROGRAMS", None):
        code = _share_origin()
        if code is not None:
            return code
    if arguments[0] == "-u":
        del arguments[0]
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], directory
        sys.modules.pop(arguments[1], None)  # it is imported for others; as the main module it runs anew
        return compile(
            f"import runpy; runpy.run_module({arguments[1]!r}, run_name='__main__', alter_sys=True)", "-m", "exec"
        )
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], directory
        return compile(arguments[1], "-c", "exec", dont_inherit=True)
    script = Path(arguments[0])
    sys.argv, sys.path[0] = arguments, str(script.parent.resolve())
    return compile(script.read_bytes(), script, "exec", dont_inherit=True)


def _share_origin() -> CodeType | None:
    """Leave a process that forks for this one from the state of now; returns code in what it forks, None here."""
    global _origin
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        here.close()
        for stream in range(3):  # whoever reads them waits for this process otherwise
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        return next_program(there)
    there.close()
    _prctl(_SUBREAPER, 1)
    _origin = os.getpid(), here
    return None


if __name__ == "__main__":
    import programs as _programs  # whose names the programs do not share

    subprocess.Popen = _programs.Program  # type: ignore[misc]
    for _name in _IMPORTED:
        importlib.import_module(_name)
    gc.freeze()  # a program does not look through what it has inherited
    exec(_programs.next_program(socket.socket(fileno=int(sys.argv[1]))), globals())
