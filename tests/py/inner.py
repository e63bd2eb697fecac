"""A pytest run inside of a test."""

from __future__ import annotations

import inspect

import pytest


def run(pytester: pytest.Pytester, body: str, *flags: str) -> pytest.RunResult:
    """A test file in a run of its own. Warnings are errors. Plug-ins of others, which take longer to load than the
    rest, are left out; faulthandler is that of the outer run. Runs with flags have a process of their own."""
    pytester.makepyfile(inspect.cleandoc(body))
    left_out = [word for name in ("cacheprovider", "hypothesispytest", "faulthandler") for word in ("-p", f"no:{name}")]
    if flags:
        return pytester.runpytest_subprocess("-W", "error", *left_out, *flags)
    return pytester.runpytest_inprocess("-W", "error", *left_out, "-p", "no:xdist")
