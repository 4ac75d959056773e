"""Tests that have not begun when the time of scripts/test --minutes is over are not run."""

import os
import time

import pytest

DEADLINE = float(os.environ.get("SHARDWISE_TEST_DEADLINE", "inf"))  # seconds since 1970


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    if time.time() >= DEADLINE:
        pytest.skip("the time is over")
