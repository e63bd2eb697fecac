"""A product of the C library's build is made again when an input of its command has changed, and only then."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import build_capi
import pytest

# Copies its input, and adds a line to a log: one line for each time that it ran.
COPY = "import sys; open(sys.argv[2], 'w').write(open(sys.argv[1]).read()); open(sys.argv[3], 'a').write('ran\\n')"


def test_a_product_follows_its_inputs_and_is_otherwise_left_alone(tmp_path: Path) -> None:
    source, product, log = tmp_path / "source.c", tmp_path / "product", tmp_path / "log"

    def made(*words: str) -> tuple[str, int]:
        command = [sys.executable, "-c", COPY, str(source), str(product), str(log), *words]
        build_capi.make(product, build_capi.key_of([source], *command), command)
        return product.read_text(), log.read_text().count("ran")

    source.write_text("one")
    assert made() == made() == ("one", 1)
    source.write_text("two")
    assert made() == made() == ("two", 2)
    assert made("-O2") == made("-O2") == ("two", 3), "other words of the command"
    product.unlink()
    assert made("-O2") == ("two", 4)


def test_the_calls_of_a_header_are_its_declarations_and_nothing_else() -> None:
    header = """
/* tent_last_error() says why.
tent_in_a_comment(void); */
typedef void *tent_engine_t;
enum { TENT_A = (1) };
int tent_open(tent_engine_t engine,
              const char *name); /* see tent_close() */
char *tent_describe(const char *what);
const char *tent_last_error(void);
#define TENT_CALLS(x) tent_macro(x)
#ifdef __cplusplus
struct Engine {
\tvoid close() { tent_close(engine_); }
};
#endif
"""
    assert build_capi.declared(header) == ["tent_describe", "tent_last_error", "tent_open"]


def test_a_command_that_fails_is_run_again(tmp_path: Path) -> None:
    product = tmp_path / "product"
    product.write_text("of an earlier key")
    wrong = [sys.executable, "-c", "raise SystemExit(1)"]
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            build_capi.make(product, "key", wrong)


def test_a_key_tells_names_contents_and_words_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a")
    two.write_text("b")
    keys = {
        build_capi.key_of([one, two]),
        build_capi.key_of([one]),
        build_capi.key_of([two]),
        build_capi.key_of([one, two], "-g"),
        build_capi.key_of([one, two], "-", "g"),
    }
    assert len(keys) == 5 and build_capi.key_of([two, one]) in keys, "the order of the files does not count"
    one.write_text("b")
    two.write_text("a")
    assert build_capi.key_of([one, two]) not in keys


def test_an_installation_leaves_the_files_of_running_programs_alone(tmp_path: Path) -> None:
    """A program that has the old library mapped dies of a file that changes below it."""
    built, prefix = tmp_path / "built", tmp_path / "prefix"
    names = ("lib/libtent.so", "lib/pkgconfig/tent.pc", "include/tent/transfer_engine.h")

    def install(text: str) -> None:
        for name in names:
            (built / name).parent.mkdir(parents=True, exist_ok=True)
            (built / name).write_text(text)
        (built / names[0]).chmod(0o755)
        build_capi.install(built, prefix)

    install("old")
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(open(prefix / name)) for name in names]
        install("new")
        assert [file.read() for file in running] == ["old"] * 3
    assert [(prefix / name).read_text() for name in names] == ["new"] * 3
    assert (prefix / names[0]).stat().st_mode & 0o777 == 0o755
    files = sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())
    assert files == sorted(names), "nothing else is left"
