"""Adds up the JUnit reports of GoogleTest, pytest and scripts/check; the last line is "N passed, N failed"."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(reports: list[str]) -> int:
    """Prints the failed tests by name and the sum; the exit status is 0 when something passed and nothing failed."""
    passed = failed = skipped = 0
    for report in reports:
        if not Path(report).is_file():
            failed += 1
            print(f"  failed: {Path(report).stem} ended without a report")
            continue
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{Path(report).stem}: {case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
                print(f"  failed: {name}")
            elif case.find("skipped") is not None or case.get("status") == "notrun" or case.get("result") == "skipped":
                skipped += 1
            else:
                passed += 1
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
