"""The tag of a wheel is the one that it deserves, and its bill of materials that of the linked modules."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import zipfile
from pathlib import Path

import build_gotent
import interpreters
import licences
import pytest
import wheels

MIT = "Permission is hereby granted, free of charge"


def test_tag_follows_the_machine_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delenv(build_gotent.CROSS, raising=False)
    assert build_gotent.platform_tag() == "manylinux_2_28_x86_64"
    monkeypatch.setenv(build_gotent.CROSS, "aarch64")
    assert build_gotent.platform_tag() == "manylinux_2_28_aarch64"


@pytest.mark.parametrize(
    ("libc", "machine"), [(("", ""), "x86_64"), (("glibc", "2.17"), "x86_64"), (("glibc", "2.36"), "s390x")]
)
def test_no_tag_is_promised_that_was_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, libc: tuple[str, str], machine: str
) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.delenv(build_gotent.CROSS, raising=False)
    assert build_gotent.platform_tag() is None


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("tent-1-cp310-abi3-manylinux_2_28_x86_64.whl", "manylinux_2_28_x86_64", ""),
        ("tent-1-cp310-abi3-manylinux_2_28_x86_64.whl", "manylinux_2_5_x86_64", ""),
        ("tent-1-cp310-abi3-manylinux_2_28_x86_64.whl", "manylinux_2_34_x86_64", "but needs manylinux_2_34_x86_64"),
        ("tent-1-cp310-abi3-manylinux_2_28_x86_64.whl", "manylinux_2_17_aarch64", "but needs manylinux_2_17_aarch64"),
        ("tent-1-cp310-abi3-linux_x86_64.whl", "manylinux_2_28_x86_64", "has no manylinux tag"),
    ],
)
def test_a_tag_that_promises_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, allowed: str, refused: str
) -> None:
    said = f'{name} is consistent\nwith the following platform tag:\n"{allowed}".'
    monkeypatch.setattr(wheels, "run_auditwheel", lambda wheel: said)
    if refused:
        with pytest.raises(ValueError, match=refused):
            wheels.audit(Path(name))
    else:
        assert allowed in wheels.audit(Path(name))


@pytest.mark.parametrize(
    ("listed", "refused"),
    [
        ([("std", "1.26.8"), ("example.org/a", "v1.0.0")], ""),
        ([("std", "1.26.8"), ("example.org/a", "v1.0.1")], "differ: .*v1.0.0.*v1.0.1"),
        ([("std", "1.26.8")], "differ: .*example.org/a"),
        ([("std", "1.26.8"), ("example.org/a", "v1.0.0"), ("example.org/b", "v2.0.0")], "differ: .*example.org/b"),
        (None, "has no bill of materials"),
    ],
)
def test_a_bill_of_other_materials_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listed: list[tuple[str, str]] | None, refused: str
) -> None:
    monkeypatch.setattr(wheels, "modules", lambda extension: {("std", "1.26.8"), ("example.org/a", "v1.0.0")})
    wheel = tmp_path / "tent_engine-1-cp310-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tent/_gotent.abi3.so", b"")
        if listed is not None:
            go, *others = (licences.Part(name, version, (("LICENSE", MIT),)) for name, version in listed)
            text = json.dumps(licences.bill([go, *others], "1"))
            archive.writestr(f"tent_engine-1.dist-info/{licences.BILL}", text)
    if refused:
        with pytest.raises(ValueError, match=refused):
            wheels.bill(wheel)
    else:
        assert json.loads(wheels.bill(wheel))["components"][1]["purl"] == "pkg:golang/example.org/a@v1.0.0"


def test_every_component_of_a_bill_is_known_by_its_reference() -> None:
    parts = [licences.Part("a/" + name, "v1", (("LICENSE", MIT),)) for name in "xyz"]
    bill = licences.bill(parts, "0.1.dev0")
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    subject = bill["metadata"]["component"]
    assert subject["purl"] == subject["bom-ref"] == "pkg:pypi/tent-engine@0.1.dev0"
    references = [component["bom-ref"] for component in bill["components"]]
    assert bill["dependencies"] == [{"ref": subject["bom-ref"], "dependsOn": references}]
    assert len(set(references)) == len(parts)
    assert all(component["licenses"] == [{"expression": "MIT"}] for component in bill["components"])


def test_a_go_without_its_notices_has_those_of_the_tree(tmp_path: Path) -> None:
    """Go's packages of PyPI and of Debian leave them out. Such a Go builds the wheel of a machine that had none."""
    real = Path(subprocess.check_output([interpreters.go_command(), "env", "GOROOT"], text=True, cwd="/").strip())
    for entry in real.iterdir():
        if entry.is_dir() and entry.name != "bin":
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "go.env").symlink_to(real / "go.env")
    (tmp_path / "VERSION").symlink_to(real / "VERSION")
    (tmp_path / "bin").mkdir()
    shutil.copy(real / "bin" / "go", tmp_path / "bin")  # its folder is where it lies
    found = licences.parts(str(tmp_path / "bin" / "go"))
    assert found[0].licence == "BSD-3-Clause" and [name for name, _ in found[0].notices] == ["LICENSE", "PATENTS"]
    assert licences.text(found) == licences.FILE.read_text(encoding="utf-8")


def test_a_module_without_a_notice_is_refused(tmp_path: Path) -> None:
    part = licences.Part("example.org/a", "v1", licences.notices(tmp_path, set()))
    with pytest.raises(SystemExit, match=r"example\.org/a"):
        licences.bill([part], "1")
