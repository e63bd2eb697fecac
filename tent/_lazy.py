"""Public names that are fetched at their first use (PEP 562): importing a package that does so loads nothing else."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's costs more than all of this; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def attach(
    package: str, public: Mapping[str, str], *, eager: str = "", unlisted: str = ""
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Returns `__all__`, `__getattr__` and `__dir__` of a package from one table: module to its names, with blanks.

    `eager` names are there already and listed; `unlisted` ones, and those of modules that begin with _, can be
    fetched, and `import *` leaves them alone.
    tools/stubs.py writes the package's `__init__.pyi`, the view of type checkers, from the same table.
    """
    module_of = {name: module for module, names in public.items() for name in names.split()}

    def fetch(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{package}.{module}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    listed = {name for name, module in module_of.items() if not module.startswith("_")}
    listed = (listed | {*eager.split()}) - {*unlisted.split()}
    return sorted(listed), fetch, names
