"""Build the wheel from the files that tools/build/wheel has collected; `make wheel` runs it."""

from __future__ import annotations

from setuptools import Distribution, setup


class Binary(Distribution):
    """A package with libraries that were built before."""

    def has_ext_modules(self) -> bool:
        return True


# The module and the libraries are for CPython 3.9 and later versions.
setup(distclass=Binary, options={"bdist_wheel": {"py_limited_api": "cp39"}})
