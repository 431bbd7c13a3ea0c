"""`voicekit doctor` and `voicekit workshop`: does this machine have what the kit needs?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from voicekit.models import data_path

PACKAGES = ("voicekit", "openai", "google-genai", "websockets", "looptime", "jupyterlab")
KEYS = {"OPENAI_API_KEY": "OpenAI", "GEMINI_API_KEY": "Gemini", "GOOGLE_API_KEY": "Gemini"}


def checks(out: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (what, mend, finding); an empty mend means that all is well."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield "python", "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer", version
    for name in PACKAGES:
        try:
            yield name, "", importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, "pip install -e '.[notebooks]'", "not installed"
    for name, vendor in KEYS.items():
        present = "set (not shown)" if os.environ.get(name) else f"not set; only live runs on {vendor} need it"
        yield name, "", present
    yield _loopback()
    yield _proxy()
    yield _audio()
    yield _write_access(out)


def _loopback() -> tuple[str, str, str]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return "ports", "", f"127.0.0.1 can be listened on (tried {server.getsockname()[1]})"
    except OSError as error:
        return "ports", "allow local connections for Python in the firewall", str(error)


def _proxy() -> tuple[str, str, str]:
    proxies = [name for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY") if os.environ.get(name, os.environ.get(name.lower()))]
    excluded = os.environ.get("NO_PROXY", os.environ.get("no_proxy", ""))
    if proxies and "127.0.0.1" not in excluded:
        return "proxy", "", f"{', '.join(proxies)} is set; the kit goes around it, stock clients need NO_PROXY=127.0.0.1"
    return "proxy", "", "none in the way"


def _audio() -> tuple[str, str, str]:
    from voicekit import audio

    bad = []
    for clip in audio.clips().values():
        try:
            _ = clip.samples
        except ValueError as error:
            bad.append(str(error))
    if bad:
        return "audio", "restore data/audio from git", bad[0]
    return "audio", "", f"{len(audio.clips())} clips readable in {data_path('audio').parent.name}/audio (synthetic speech)"


def _write_access(out: Path) -> tuple[str, str, str]:
    folder = next(path for path in [out, *out.absolute().parents] if path.exists())
    if folder.is_dir() and os.access(folder, os.W_OK):
        free = shutil.disk_usage(folder).free / 1e9
        return "writing", "", f"{out} can be written ({free:.0f} GB free)"
    return "writing", "choose another --out folder", f"{folder} cannot be written"


def open_workshop() -> int:
    """Open JupyterLab in the notebooks' folder; from an installed package, in a copy of them here."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise ValueError("JupyterLab is not installed; pip install 'voicekit[notebooks]'")
    folder = data_path().parent / "notebooks"
    if "site-packages" in folder.parts:
        copy = Path("voicekit-notebooks")
        if not copy.exists():
            shutil.copytree(folder, copy)
        folder = copy
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(folder)])
