"""Processes that start warm: the workers that run the tests and the kernels that run the notebooks.

Both SDKs, pandas, matplotlib and Jupyter take four seconds of processor time to load, and nothing is tested by loading
them again in every process. So one process loads them (`serve`) and makes a copy of itself for each worker and each
kernel. What xdist and Jupyter start and stop is `launch`: it orders a copy, ends when the copy ends, and takes the copy
along when it is ended itself. A kernel that cannot be ordered is started cold, as anywhere else.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

NAME = "warm"  # of the kernel
YOUNG = 50_000  # objects before the collector looks through the new ones; at Python's 700 it is a tenth of the time
ADDRESS = "VOICEKIT_WARM_PROCESSES"  # the environment variable that names the socket at which copies are ordered
WORKER = f"{shlex.quote(sys.executable)} {shlex.quote(__file__)} worker"  # in place of a Python that runs a worker


def start(folder: Path) -> Callable[[], None]:
    """Start the process and make the kernel known to Jupyter, by the environment; returns what ends the process.

    Raises OSError where there can be no such socket.
    """
    spec = folder / "kernels" / NAME / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, __file__, "kernel", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": NAME, "language": "python"}))
    address = str(folder / "socket")
    with socket.socket(socket.AF_UNIX) as orders:
        orders.bind(address)  # raises OSError for a folder with a very long name
        os.environ |= {"JUPYTER_PATH": os.pathsep.join([str(folder), os.environ.get("JUPYTER_PATH", "")])}
        os.environ[ADDRESS] = address
        orders.listen()  # whoever orders before the process is ready waits
        argv = [sys.executable, __file__, "serve", str(orders.fileno())]
        server = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[orders.fileno()])

    def end() -> None:
        server.communicate(timeout=10)  # closes its standard input
        del os.environ[ADDRESS]

    return end


def launch(kind: str, arguments: list[str]) -> None:
    """Be the process that xdist or Jupyter knows: order a copy, and wait for its end."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(os.environ[ADDRESS])
        except OSError:
            if kind == "kernel":
                return cold_kernel(arguments)
            raise
        if kind == "kernel":
            signal.signal(signal.SIGINT, lambda *_: line.send(b"i"))  # the notebook's stop button
        order = {"kind": kind, "arguments": arguments, "env": dict(os.environ), "folder": os.getcwd()}
        socket.send_fds(line, [b"f"], [0, 1, 2])
        line.sendall(json.dumps(order).encode() + b"\n")
        line.recv(1)  # the end of the copy is the end of the connection
    return None


def cold_kernel(arguments: list[str]) -> None:
    """Be the kernel, in this process."""
    sys.argv = ["ipykernel_launcher", *arguments]
    del sys.path[0]  # this folder: a kernel does not see it
    runpy.run_module("ipykernel_launcher", run_name="__main__")


def serve(orders: int) -> None:
    """Load what is needed, then make a copy for each order, until the standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for those who ordered
    with socket.socket(fileno=orders) as server:
        try:
            warm_up()
        except Exception:  # what is broken is for the tests to say: the copies are only less warm
            traceback.print_exc()
        gc.freeze()  # a copy need not look through what was loaded, time and again
        gc.set_threshold(YOUNG)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a copy ended
        while server in select.select([server, sys.stdin], [], [])[0]:
            line, _ = server.accept()
            if os.fork() == 0:
                server.close()
                be_the_copy(line)
            line.close()


def warm_up() -> None:
    for name in ("ipykernel.kernelapp", "ipykernel.zmqshell", "ipykernel.debugger",
                 "matplotlib.backends.backend_agg", "matplotlib_inline.backend_inline", "pandas"):  # fmt: skip
        import_module(name)
    import voicekit as vk

    for model in ("gpt-realtime", "gpt-live-1", "gemini-3.8-live"):  # the SDKs, and what they build when they are used
        vk.run("quick_lookup", model=model).timeline()


def be_the_copy(line: socket.socket) -> None:
    """The rest of this copy's life: the worker or the kernel that was ordered."""
    import pandas

    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    with line.makefile("rb") as orders:
        order = json.loads(orders.readline())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww"))

    def obey() -> None:
        while line.recv(1):
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(0)  # whoever ordered it has ended the process it knows

    threading.Thread(target=obey, daemon=True).start()
    try:
        if order["kind"] == "kernel":
            os.setsid()
            pandas.set_option("display.max_columns", 20)  # its default where it is loaded in a kernel
            cold_kernel(order["arguments"])
        else:
            exec(order["arguments"][-1], {"__name__": "__main__"})  # what follows -c
    finally:
        os._exit(0)


def main(what: str, *arguments: str) -> Any:
    return serve(int(arguments[0])) if what == "serve" else launch(what, list(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
