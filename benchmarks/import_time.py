"""The time that `import shardwise` adds to a program that has imported torch and torch.distributed: wall and CPU time in new processes.

    python benchmarks/import_time.py --runs 15

Every run is a new process that imports torch, torch.distributed and then shardwise, so both imports of a pair are timed in the same
state of the machine. The fastest run shows the cost itself; the median includes disturbance by other programs.
"""

import argparse
import json
import statistics
import subprocess
import sys

PROBE = """
import json, time
def timed(do):
    wall, cpu = time.perf_counter(), time.process_time()
    do()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)
def torch():
    import torch, torch.distributed
def shardwise():
    import shardwise
print(json.dumps({"torch": timed(torch), "shardwise": timed(shardwise)}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    n_runs = parser.parse_args().runs
    subprocess.run([sys.executable, "-c", PROBE], check=True, stdout=subprocess.DEVNULL)  # brings the files into memory
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", PROBE])) for _ in range(n_runs)]
    print(f"{'ms':34}{'wall: least':>12}{'median':>8}{'CPU: least':>12}{'median':>8}")
    for side, name in (("torch", "import torch, torch.distributed"), ("shardwise", "import shardwise after that")):
        wall, cpu = zip(*(run[side] for run in runs), strict=True)
        figures = (min(wall), statistics.median(wall), min(cpu), statistics.median(cpu))
        print("{:34}{:12.0f}{:8.0f}{:12.0f}{:8.0f}".format(name, *figures))


if __name__ == "__main__":
    main()
