"""Takes the screenshots of this folder: page.png, a picture's page under the mouse, and live.png, the live page of four ranks that train.

python docs/pictures/screenshots.py     # where shardwise can be imported and scripts/setup_browser has been
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import shardwise as sw
from shardwise import Layout, Shard

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLE = ROOT / "examples" / "train_transformer.py"
sys.path.append(str(ROOT / "tests" / "python"))
from browser import started_browser  # noqa: E402

SIZE = {"width": 1000, "height": 560}


def take_page(browser):
    page = browser.new_page(viewport=SIZE)
    with tempfile.TemporaryDirectory() as folder:
        picture = sw.debug.picture(Layout((10, 8, 6), (2, 3), [Shard(0, [4, 6]), Shard(1, [1, 3, 4])]))
        page.goto(picture.save(Path(folder) / "page.html").as_uri())
        page.locator("figure").first.locator(".sw-cell[data-ranks='2']").hover()
        page.screenshot(path=HERE / "page.png")


def take_live(browser):
    page = browser.new_page(viewport=SIZE)
    ranks = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        EXAMPLE,
        "--steps",
        "1000",
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "shardwise", "watch", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    address = server.stdout.readline().split()[0]
    page.goto(address)
    port = address.rstrip("/").rsplit(":", 1)[1]
    program = subprocess.Popen(ranks, env={**os.environ, "SHARDWISE_WATCH": port})
    try:
        page.locator("#tensors td", has_text="weight").first.wait_for(timeout=120_000)
        page.wait_for_timeout(20_000)  # the last minute's line wants some seconds
        page.screenshot(path=HERE / "live.png")
    finally:
        program.terminate()
        server.terminate()


if __name__ == "__main__":
    with started_browser() as browser:
        take_page(browser)
        take_live(browser)
