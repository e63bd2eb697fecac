"""`make docs`: builds the site in build/site, strictly, after running the code of every page.

    docs.py               # the code of every page, then the site; every notebook runs for it
    docs.py --reference   # instead writes the pages of docs/reference and docs/performance that come from tables

It runs in an environment in which tent is installed, and adds the packages of the extras `docs` and `test` to it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import build_gotent
import interpreters

ROOT = build_gotent.ROOT


def install(*extras: str) -> None:
    """Installs the packages of extras of the installed tent, without building tent again."""
    wanted = []
    for requirement in importlib.metadata.requires("tent-engine") or ():
        package, _, marker = requirement.partition(";")
        found = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if found and found[1] in extras:
            wanted.append(package.strip())
    run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)


def run(*command: str, **env: str) -> None:
    """Runs a command in the tree; its failure ends this program with the same status."""
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env})
    if done.returncode:
        sys.exit(done.returncode)


def build() -> None:
    install("docs", "test")
    # Scripts put no source tree on sys.path, unlike `python -m`: its package may have no native module.
    scripts = Path(sys.executable).parent
    pages = ("tests/py/test_docs.py", "tests/py/test_readme.py")
    run(str(scripts / "pytest"), "--quiet", *pages, "-m", "not slow")
    run(str(scripts / "mkdocs"), "build", "--quiet", "--strict", NO_MKDOCS_2_WARNING="1")
    print(f"{ROOT / 'build' / 'site' / 'index.html'}")


def reference() -> None:
    go = interpreters.go_command()
    run(go, "test", "./tests/go/reference", "-rewrite", **build_gotent.go_env(go))
    run(sys.executable, "tools/docs_reference.py")
    run(sys.executable, "tools/docs_tables.py")
    run(sys.executable, "tools/dashboard.py")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the documentation.")
    parser.add_argument("--reference", action="store_true", help="write the generated pages instead")
    options = parser.parse_args()
    reference() if options.reference else build()
    return 0


if __name__ == "__main__":
    sys.exit(main())
