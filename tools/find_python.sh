#!/bin/sh
# Prints the first CPython >= 3.10 that can make a virtual environment and has the headers to build an extension.
# $PYTHON, when set, is taken without looking further.
probe='import sys, sysconfig, os, venv, ensurepip
ok = sys.version_info >= (3, 10) and sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
sys.exit(not (ok and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))'

for candidate in ${PYTHON:+"$PYTHON"} python3.14 python3.13 python3.12 python3.11 python3.10 python3 /usr/bin/python3 \
	"$HOME"/.pyenv/versions/3.1?.*/bin/python; do
	if "$candidate" -c "$probe" >/dev/null 2>&1; then
		"$candidate" -c 'import sys; print(sys.executable)'
		exit 0
	fi
done
echo "tent: no Python 3.10 or newer with venv and headers (Debian: apt install python3-dev python3-venv); or name one: make PYTHON=..." >&2
exit 1
