"""Checks a commit's message: `package: verb what` as its subject, and a body with the
state before, the state now, and the reason.

commit_message.py FILE          the message in a file, as git's hook commit-msg gives it
commit_message.py A..B          the messages of a range of commits
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SUBJECT_MAX = 110
BODY_WORDS_MIN = 8
SUBJECT = re.compile(r"^[\w./, -]+: \S.*[^.]$")
GENERATED = re.compile(r'^(Merge|Revert "|fixup! |squash! )')  # git wrote it


def faults(message: str) -> list[str]:
    """The faults of a message, a sentence each; lines that git drops do not count."""
    kept, _, _ = message.partition("# ------------------------ >8")
    lines = [line.rstrip() for line in kept.splitlines() if not line.startswith("#")]
    while lines and not lines[0]:
        lines.pop(0)
    subject, rest = (lines[0], lines[1:]) if lines else ("", [])
    if GENERATED.match(subject):
        return []
    found = []
    if not SUBJECT.match(subject):
        found.append(f"the subject is `package: verb what`, without a full stop at its end: {subject!r}")
    if len(subject) > SUBJECT_MAX:
        found.append(f"the subject has {len(subject)} characters, more than {SUBJECT_MAX}")
    if rest and rest[0]:
        found.append("an empty line stands between the subject and the body")
    body = [line for line in rest if not re.match(r"^[A-Z][\w-]+: .+ <.+@.+>$", line)]  # Signed-off-by: and the like
    if len(" ".join(body).split()) < BODY_WORDS_MIN:
        found.append("the body says what was, what is, and why")
    return found


def messages(what: str) -> list[tuple[str, str]]:
    """(name, message) of a file or of each commit of a range."""
    if ".." not in what or Path(what).exists():
        return [(what, Path(what).read_text(encoding="utf-8"))]
    names = subprocess.check_output(["git", "rev-list", "--no-merges", what], text=True).split()
    return [(n[:9], subprocess.check_output(["git", "log", "-1", "--format=%B", n], text=True)) for n in names]


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    failed = False
    for name, message in messages(sys.argv[1]):
        for fault in faults(message):
            print(f"{name}: {fault}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
