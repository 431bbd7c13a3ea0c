"""Kernels that start warm: copies of one process that has loaded what every notebook loads.

A notebook is checked in a kernel of its own. Jupyter, both SDKs, pandas and matplotlib take four seconds of processor
time to load, and nothing is tested by loading them again for every notebook. So one process loads them
(`serve`) and makes a copy of itself for each kernel. What Jupyter starts and stops is `launch`: it orders a copy, ends
when the copy ends, and takes the copy along when it is ended itself. Where it cannot order one, it is the
kernel itself, as anywhere else.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

NAME = "warm"  # of the kernel
ADDRESS = "VOICEKIT_WARM_KERNELS"  # the environment variable that names the socket at which copies are ordered


def start(folder: Path) -> Callable[[], None]:
    """Start the process and make the kernel known to Jupyter, by the environment; returns what ends the process."""
    spec = folder / "kernels" / NAME / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, __file__, "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": NAME, "language": "python"}))
    address = str(folder / "socket")
    os.environ |= {"JUPYTER_PATH": os.pathsep.join([str(folder), os.environ.get("JUPYTER_PATH", "")]), ADDRESS: address}
    server = subprocess.Popen([sys.executable, __file__, "serve", address], stdin=subprocess.PIPE)

    def end() -> None:
        server.communicate(timeout=10)  # closes its standard input
        del os.environ[ADDRESS]

    return end


def launch() -> None:
    """Be the process that Jupyter knows: order a kernel, and wait for its end."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(os.environ[ADDRESS])
        except OSError:
            return cold()
        signal.signal(signal.SIGINT, lambda *_: line.send(b"i"))  # the notebook's stop button
        order = {"argv": sys.argv, "env": dict(os.environ), "folder": os.getcwd()}
        line.sendall(json.dumps(order).encode() + b"\n")
        line.recv(1)  # the end of the kernel is the end of the connection
    return None


def cold() -> None:
    """Be the kernel, in this process."""
    del sys.path[0]  # this folder: a kernel does not see it
    runpy.run_module("ipykernel_launcher", run_name="__main__")


def serve(address: str) -> None:
    """Load what the notebooks load, then make a kernel for each order, until the standard input is closed."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        warm_up()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a kernel ended
        while server in select.select([server, sys.stdin], [], [])[0]:
            line, _ = server.accept()
            if os.fork() == 0:
                server.close()
                become_kernel(line)
            line.close()


def warm_up() -> None:
    import ipykernel.zmqshell
    import matplotlib.backends.backend_agg
    import matplotlib_inline.backend_inline
    import pandas

    import voicekit as vk

    assert ipykernel.zmqshell and matplotlib.backends.backend_agg and matplotlib_inline.backend_inline and pandas
    for model in ("gpt-realtime", "gemini-3.8-live"):  # both SDKs, and what they only build when they are used
        vk.run("quick_lookup", model=model).timeline()


def become_kernel(line: socket.socket) -> None:
    """The rest of this copy's life: the kernel that was ordered."""
    import pandas

    with line.makefile("rb") as orders:
        order = json.loads(orders.readline())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pandas.set_option("display.max_columns", 20)  # its default where it is loaded in a kernel
    os.setsid()
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    sys.argv = order["argv"]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    def obey() -> None:
        while line.recv(1):
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(0)  # Jupyter has ended the process it knows

    threading.Thread(target=obey, daemon=True).start()
    try:
        cold()
    finally:
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        launch()
