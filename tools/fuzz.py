"""make fuzz: runs every fuzz target of the tree for a while, one after the other."""

from __future__ import annotations

import argparse
import subprocess
import sys

import build_gotent
import interpreters


def targets(go: str, env: dict[str, str]) -> list[tuple[str, str]]:
    """(package, fuzz function) of the whole module."""
    form = "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"
    listed = subprocess.check_output([go, "list", "-f", form, "./..."], cwd=build_gotent.ROOT, env=env, text=True)
    found = []
    for package in listed.split():
        names = subprocess.check_output(
            [go, "test", "-list", "^Fuzz", package], cwd=build_gotent.ROOT, env=env, text=True
        )
        found += [(package, name) for name in names.split() if name.startswith("Fuzz")]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzzes tent's decoders.")
    parser.add_argument("--time", default="20s", help="time for each target, as go test -fuzztime takes it")
    args = parser.parse_args()
    go = interpreters.go_command()
    env = build_gotent.go_env(go)
    failed = []
    for package, name in targets(go, env):
        print(f"{package} {name}", flush=True)
        command = [go, "test", "-run=^$", f"-fuzz=^{name}$", f"-fuzztime={args.time}", package]
        if subprocess.run(command, cwd=build_gotent.ROOT, env=env).returncode != 0:
            failed.append(f"{package} {name}")
    print(f"{len(failed)} failed", *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
