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


def passes(command: list[str], env: dict[str, str]) -> bool:
    """Runs a target, and once more where Go's own end of the time was its only failure: on a busy machine a worker that
    is stopped late fails as "context deadline exceeded", without an input that fails."""
    for _ in range(2):
        done = subprocess.run(
            command, cwd=build_gotent.ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        print(done.stdout, end="", flush=True)
        if done.returncode == 0:
            return True
        if "context deadline exceeded" not in done.stdout or "Failing input" in done.stdout:
            break
    return False


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
        if not passes(command, env):
            failed.append(f"{package} {name}")
    print(f"{len(failed)} failed", *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
