"""`voicekit doctor` and `voicekit workshop`: does this machine have what the kit needs?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("voicekit", "openai", "google-genai", "websockets", "looptime")
OPTIONAL = {"jupyterlab": "to open the lessons", "mcp": "for lesson 09", "quicktok-v1": "for lesson 09"}
KEYS = {"OPENAI_API_KEY": "OpenAI", "GEMINI_API_KEY": "Gemini", "GOOGLE_API_KEY": "Gemini"}
ADDRESSES = ("OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL")
SIMULATOR_PORT = 8765  # the default of `voicekit simulator`

Check = tuple[str, str, str]


def checks(out: Path) -> Iterator[Check]:
    """Yield (what, mend, finding); an empty mend means that all is well."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield "python", "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer", version
    for name in PACKAGES:
        yield _package(name)
    for name, use in OPTIONAL.items():
        what, mend, finding = _package(name)
        yield what, "", f"{finding}; {use}: {mend}" if mend else finding
    for name, vendor in KEYS.items():
        present = "set (not shown)" if os.environ.get(name) else f"not set; only live runs on {vendor} need it"
        yield name, "", present
    for name in ADDRESSES:
        if os.environ.get(name):
            yield name, "", f"{os.environ[name]}; runs on the simulator go around it, live runs refuse another place"
    yield _loopback()
    yield _proxy()
    yield _audio()
    yield _write_access(out)


def _package(name: str) -> Check:
    checkout = (Path(__file__).resolve().parent.parent / "pyproject.toml").is_file()
    mend = f"pip install {'-e .' if checkout else 'voicekit'}[notebooks]"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return name, mend, "not installed"
    wanted = _bounds(name)
    low, high = wanted.get(">=", version), wanted.get("<")
    if _numbers(version) < _numbers(low) or (high is not None and _numbers(version) >= _numbers(high)):
        return name, mend, f"{version}, needed is {', '.join(sign + bound for sign, bound in wanted.items())}"
    return name, "", version


def _bounds(name: str) -> dict[str, str]:
    """What the kit's own metadata asks of a package, e.g. {">=": "3.57", "<": "4"}."""
    try:
        requirements = importlib.metadata.requires("voicekit") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    for requirement in requirements:
        if re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower() == name:
            return dict(re.findall(r"(>=|<)\s*([0-9.]+)", requirement.split(";")[0]))
    return {}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _loopback() -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            found = f"127.0.0.1 can be listened on (tried {server.getsockname()[1]})"
    except OSError as error:
        return "ports", "allow local connections for Python in the firewall", str(error)
    try:
        socket.create_server(("127.0.0.1", SIMULATOR_PORT)).close()
    except OSError:
        found += f"; {SIMULATOR_PORT} is in use, so start `voicekit simulator --port 0`"
    return "ports", "", found


def _proxy() -> Check:
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    proxies = [name for name in names if os.environ.get(name) or os.environ.get(name.lower())]
    excluded = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    if proxies and "127.0.0.1" not in excluded and excluded.strip() != "*":
        return "proxy", "", f"{', '.join(proxies)} set; the kit goes around it, other clients need NO_PROXY=127.0.0.1"
    return "proxy", "", "none in the way"


def _audio() -> Check:
    from voicekit import audio

    try:
        clips = audio.clips()
        for clip in clips.values():
            _ = clip.samples
    except (ValueError, OSError) as error:
        return "audio", "restore data/audio from git, or install the package again", str(error)
    return "audio", "", f"{len(clips)} clips readable (synthetic speech)"


def _write_access(out: Path) -> Check:
    folder = next(path for path in [out, *out.absolute().parents] if path.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):  # asked of the system, since permissions are not all there is
            free = shutil.disk_usage(folder).free / 1e9
    except OSError as error:
        return "writing", "choose another --out folder", f"{folder} cannot be written ({error.strerror})"
    return "writing", "", f"{out} can be written ({free:.0f} GB free)"


def open_workshop() -> int:
    """Open JupyterLab in the notebooks' folder; from an installed package, in a copy of them here.

    Raises ValueError when JupyterLab or the notebooks are missing.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise ValueError("JupyterLab is not installed; pip install 'voicekit[notebooks]'")
    folder = notebooks()
    if "site-packages" in folder.parts:
        copy = Path("voicekit-notebooks")
        if not copy.exists():
            shutil.copytree(folder, copy)
        folder = copy
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(folder)])


def notebooks() -> Path:
    """The folder of the lessons: in the checkout, or in the installed package. Raises ValueError when it is neither."""
    here = Path(__file__).resolve().parent
    for folder in (here / "notebooks", here.parent / "notebooks"):
        if folder.is_dir():
            return folder
    raise ValueError("the notebooks are missing; clone the repository again, or install the package again")
