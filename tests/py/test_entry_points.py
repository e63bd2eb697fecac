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


DYNAMO = """
    import sys, types

    names = []
    factory = types.ModuleType("vllm.distributed.kv_transfer.kv_connector.factory")
    factory.KVConnectorFactory = types.SimpleNamespace(register_connector=lambda name, *_: names.append(name))
    sys.modules[factory.__name__] = factory
    table = types.ModuleType("dynamo.vllm.kv_connector_protocols")
    table.NixlConnectorProtocol, table.KV_CONNECTOR_PROTOCOLS = object(), {known}
    sys.modules[table.__name__] = table
    from tent.integrations import registration

    registration.register_vllm()
    print(sorted(table.KV_CONNECTOR_PROTOCOLS))
    sys.modules["dynamo.vllm"] = types.ModuleType("dynamo.vllm")
    registration.register_vllm()
    print(sorted(table.KV_CONNECTOR_PROTOCOLS), table.KV_CONNECTOR_PROTOCOLS["TentConnector"] is {taken}, names)
"""


@pytest.mark.parametrize(("known", "taken"), [("{}", "table.NixlConnectorProtocol"), ('{"TentConnector": 7}', "7")])
def test_a_server_of_dynamo_knows_the_connector(known: str, taken: str) -> None:
    """In its own process alone, and a class of Dynamo's own for the connector stays."""
    done = apart.run(DYNAMO.format(known=known, taken=taken))
    before = [] if known == "{}" else ["TentConnector"]
    names = ["TentConnector", "TentPushConnector"] * 2
    assert done.stdout.splitlines() == [str(before), f"['TentConnector'] True {names}"], done


def test_a_dynamo_without_the_table_is_named() -> None:
    program = DYNAMO.format(known="{}", taken="0").replace("table.KV_CONNECTOR_PROTOCOLS = ", "table.gone = ")
    done = apart.run(program.replace("print(", "0 and print("))
    assert "tent's connector is not known to this Dynamo: " in done.stderr, done
