"""The entry points by which stacks find tent, without the stacks."""

from __future__ import annotations

from importlib import metadata

import apart
import pytest

from tent.integrations import registration

pytestmark = pytest.mark.adapters

PROGRAM = """
    import sys
    from tent.integrations import registration

    registration.{name}()
    print([m for m in sys.modules if m.startswith(("tent._gotent", "tent.engine", "tent._native", "numpy"))])
"""


@pytest.mark.parametrize(
    ("group", "name"), [("vllm.general_plugins", "register_vllm"), ("sglang.srt.plugins", "register_sglang")]
)
def test_the_entry_point_is_there(group: str, name: str) -> None:
    (found,) = (e for e in metadata.entry_points(group=group) if e.name == "tent")
    assert found.load() is getattr(registration, name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("register_vllm", "tent's connectors are not known to this vLLM: "),
        ("register_sglang", "tent is not known to this SGLang as a transfer backend: "),
    ],
)
def test_the_entry_point_loads_nothing_native(name: str, said: str) -> None:
    """Without the stack it says so once, and returns; with or without, no engine is loaded."""
    done = apart.run(PROGRAM.format(name=name))
    assert done.returncode == 0 and done.stdout.strip() == "[]", done
    assert done.stderr.startswith(said), done
