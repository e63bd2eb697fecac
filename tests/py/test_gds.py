"""Memory of a GPU and files by cuFile, with emulated libraries: tests/fakes/cuda and tests/fakes/cufile."""

from __future__ import annotations

import textwrap
from pathlib import Path

import apart
import pytest
from gpu import COMMON, ORACLE, driver, files

__all__ = ["driver", "files"]  # the fixtures `library` and `cufile`


def passes(library: str, cufile: str, folder: Path, program: str, **settings: str) -> str:
    """Runs a program in a process with both libraries, and returns its output."""
    env = {"TENT_LIBCUDA": library, "TENT_LIBCUFILE": cufile, "FOLDER": str(folder)}
    env |= {f"TENT_FAKECUFILE_{k}": v for k, v in settings.items()}
    text = textwrap.dedent(COMMON) + textwrap.dedent(ORACLE) + textwrap.dedent(program)
    return apart.passes(text, **env)


# Writes memory of a GPU to a file and reads it back into other memory, and looks at every byte, also around them.
ROUND_TRIP = """
    size = 1_000_003
    address = allocate(0, 2 * size + 4 * BAND)
    first, second = address + BAND, address + size + 3 * BAND
    before = pattern(1, 2 * size + 4 * BAND)
    poke(address, before)
    path = Path(os.environ["FOLDER"]) / "kv.bin"
    with tent.Engine({"transports/gds/enable": True}) as engine:
        with engine.register((first, size)) as source, engine.register((second, size)) as target, \\
                engine.open(path, create=True, size=size + 5000) as file:
            engine.write(source, file[777 : 777 + size], durability="data").result(timeout=30)
            content = path.read_bytes()
            assert content[777 : 777 + size] == before[BAND : BAND + size]
            assert not any(content[:777]) and not any(content[777 + size :])
            engine.read(target, file[777 : 777 + size]).result(timeout=30)
            route = taken(engine, source, file[:size])
    expected = bytearray(before)
    expected[size + 3 * BAND : 2 * size + 3 * BAND] = before[BAND : BAND + size]
    assert peek(address, len(expected)) == bytes(expected)
    print(route)
"""


@pytest.mark.parametrize(
    ("native", "routes"),
    [("2", {"gds"}), ("0", {"io-uring", "buf-io"})],
    ids=["nvidia-fs", "compat mode, behind staging"],
)
def test_memory_of_a_gpu_goes_to_a_file_and_back(
    library: str, cufile: str, tmp_path: Path, native: str, routes: set[str]
) -> None:
    assert passes(library, cufile, tmp_path, ROUND_TRIP, NATIVE=native, DELAY_US="100").strip() in routes


def test_a_failure_of_cufile_is_not_the_users(library: str, cufile: str, tmp_path: Path) -> None:
    program = """
    io = ctypes.CDLL(os.environ["TENT_LIBCUFILE"])
    for function in (b"io", b"short", b"cuFileBatchIOSubmit"):
        io.fakecufile_inject(function, ctypes.c_long(1), 5)
    """
    passes(library, cufile, tmp_path, textwrap.dedent(program) + textwrap.dedent(ROUND_TRIP), NATIVE="2")


def test_explain_and_doctor_name_the_mode(library: str, cufile: str, tmp_path: Path) -> None:
    program = """
    import subprocess, sys
    address = allocate(0, SIZE)
    with tent.Engine({"transports/gds/enable": True}) as engine:
        with engine.register((address, SIZE)) as region, \\
                engine.open(Path(os.environ["FOLDER"]) / "kv", create=True, size=SIZE) as file:
            routes = engine.explain(region, file)["routes"]
            told = routes[-1]["detail"]
            assert routes[-1]["transport"] == "gds", routes
            assert "cuFile 1.9 in compat mode, without nvidia-fs" in told, told
    told = subprocess.run([sys.executable, "-m", "tent", "doctor"], capture_output=True, text=True, timeout=60).stdout
    assert "cuFile 1.9 in compat mode" in told, told
    assert "routes of gds come behind those that are staged" in told, told
    assert ("/run/udev is not here" in told) == (not os.path.exists("/run/udev")), told
    """
    passes(library, cufile, tmp_path, program)


def test_without_cufile_doctor_says_so_and_staging_carries_the_bytes(library: str, tmp_path: Path) -> None:
    program = """
    import subprocess, sys
    told = subprocess.run([sys.executable, "-m", "tent", "doctor"], capture_output=True, text=True, timeout=60).stdout
    assert "no library: /nonexistent/libcufile.so.0" in told, told
    """
    passes(library, "/nonexistent/libcufile.so.0", tmp_path, textwrap.dedent(program) + textwrap.dedent(ROUND_TRIP))
