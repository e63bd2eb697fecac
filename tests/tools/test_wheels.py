"""The tag of a wheel is the one that it deserves."""

from __future__ import annotations

import platform
from pathlib import Path

import build_gotent
import pytest
import wheels


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
