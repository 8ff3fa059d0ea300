"""Run unit tests and print "ok NAME" or "FAIL NAME" for each, which tests/run counts."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import Collection, Iterator, List


class Lines(unittest.TextTestResult):
    """Print "ok NAME" or "FAIL NAME", with the failure below."""

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        print("ok", test.id(), flush=True)

    def addError(self, test: unittest.TestCase, err: object) -> None:
        super().addError(test, err)  # type: ignore[arg-type]
        print(f"FAIL {test.id()}\n{self.errors[-1][1]}", flush=True)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        super().addFailure(test, err)  # type: ignore[arg-type]
        print(f"FAIL {test.id()}\n{self.failures[-1][1]}", flush=True)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        print(f"skip {test.id()}: {reason}", flush=True)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: object) -> None:
        super().addSubTest(test, subtest, err)  # type: ignore[arg-type]
        if err is not None:
            print(f"FAIL {subtest.id()}\n{(self.failures + self.errors)[-1][1]}", flush=True)


def cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        else:
            yield test


def main(folder: Path, names: List[str], omitted: Collection[str] = ()) -> int:
    """Run the tests of a folder, or those named, except those omitted; return the exit status."""
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names) if names else loader.discover(str(folder), "test_*.py")
    if loader.errors:
        print("FAIL import\n" + "\n".join(loader.errors))
        return 1
    found = list(cases(suite))
    absent = set(omitted) - {test.id() for test in found}
    if absent and not names:
        print(f"FAIL omitted tests that do not exist: {sorted(absent)}")
        return 1
    suite = unittest.TestSuite(test for test in found if test.id() not in omitted)
    with open("/dev/null", "w") as nothing:
        result = unittest.TextTestRunner(stream=nothing, resultclass=Lines).run(suite)
    return 0 if result.wasSuccessful() else 1
