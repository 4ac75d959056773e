"""What memory this process has taken."""

import resource
import sys


def peak_of_process() -> int:
    """The most bytes that were in memory at one time so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
