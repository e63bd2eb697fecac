"""The version, in one place: setup reads it as text, programs as tent.__version__."""

__version__ = "0.1.0.dev0"
