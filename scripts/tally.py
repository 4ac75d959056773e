"""Adds up the JUnit reports of GoogleTest, pytest and scripts/check; the last line is "N passed, N failed".

Tests that scripts/test --minutes left no time for are counted by themselves.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

NO_TIME = "the time is over"  # as tests/conftest.py and tests/opinfo/sweep.py say it


def step_of(report: str) -> str:
    """The step that wrote NAME.0.xml, NAME.1.xml, ..."""
    return Path(report).name.split(".")[0]


def main(reports: list[str]) -> int:
    """Prints the failed tests by name and the sum; the exit status is 0 when something passed and nothing failed."""
    passed = failed = skipped = late = 0
    for report in reports:
        if not Path(report).is_file():
            failed += 1
            print(f"  failed: {step_of(report)} ended without a report")
            continue
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{step_of(report)}: {case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
                print(f"  failed: {name}")
            elif (mark := case.find("skipped")) is not None and mark.get("message") == NO_TIME:
                late += 1
            elif mark is not None or case.get("status") == "notrun" or case.get("result") == "skipped":
                skipped += 1
            else:
                passed += 1
    rest = [f", {count} {what}" for count, what in ((skipped, "skipped"), (late, f"not run: {NO_TIME}")) if count]
    print(f"{passed} passed, {failed} failed" + "".join(rest))
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
