"""What pictures, reports and live pages refuse."""

from error_cases import case

TITLE = "Pictures, reports and the live page"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
x = torch.ones(6, 2)
d = sw.distribute_tensor(x, mesh, [Shard(0)])
"""
CASES = [
    case("a picture of a plain tensor", "sw.debug.picture(x)", TypeError),
    case("where local shards would go", "sw.debug.diff(LocalShardsWrapper([x], [(0, 0)]), [Shard(0)])", TypeError),
    case("one placement where a list of them goes", "sw.debug.diff(d, Shard(1))", TypeError),
    case(
        "an optimizer beside a tensor",
        "sw.debug.picture(d, optimizer=torch.optim.SGD([torch.ones(1)], lr=0.1))",
        TypeError,
    ),
    case(
        "an optimizer where a tensor goes",
        "sw.debug.picture(torch.optim.SGD([torch.ones(1)], lr=0.1))",
        TypeError,
    ),
    case("something else where a tensor goes", "sw.debug.picture(3)", TypeError),
    case("what is no optimizer", "sw.debug.picture(torch.nn.Linear(2, 2), optimizer=3)", TypeError),
    case("an optimizer beside what moves", "sw.visualize_sharding(d, [Shard(1)], optimizer=3)", TypeError),
    case("a dtype that is a text", 'sw.debug.picture(sw.Layout((4, 2), (2,), [Shard(0)]), dtype="float32")', TypeError),
    case("a width that is a text", 'sw.debug.picture(d, max_width="a")', TypeError),
    case("a width that no text has", "sw.debug.picture(d, max_width=10**30)", ValueError),
    case("a list of formats", 'sw.debug.picture(d, format=["svg"])', TypeError),
    case("a module where a tensor moves", "sw.debug.diff(torch.nn.Linear(2, 2), d)", TypeError),
    case(
        "a file in a folder that there is not",
        'sw.visualize_sharding(d, file="/nonexistent/picture.svg")',
        FileNotFoundError,
    ),
    case(
        "a trace in a folder that there is not",
        """
        from shardwise.debug import MergedProfile
        MergedProfile([]).save_trace("/nonexistent/step.json")
        """,
        FileNotFoundError,
    ),
    case(
        "a dump that is not there",
        "from pathlib import Path\nfrom shardwise.debug.flight_files import read_flights\nread_flights([Path('/nonexistent/dump.json')])",
        FileNotFoundError,
    ),
    case("a file that is no path", "sw.visualize_sharding(d, file=3)", TypeError),
    case("a file of which no system has the name", r'sw.visualize_sharding(d, file="a\0.svg")', ValueError),
    case("a file of an unknown kind", 'sw.visualize_sharding(d, file="/tmp/picture.png")', ValueError),
    case(
        "a file of another kind than the format",
        'sw.visualize_sharding(d, file="/tmp/picture.svg", format="html")',
        ValueError,
    ),
    case("a report of a step without gradients", "sw.step_report(torch.nn.Identity(), x)", TypeError),
    case("a report of what is no module", "sw.step_report(None, x)", TypeError),
    case(
        "a rank that a profile does not have",
        """
        from shardwise.debug import MergedProfile
        MergedProfile([None, None]).tables(rank=2)
        """,
        IndexError,
    ),
    case(
        "a rank that is no number",
        """
        from shardwise.debug import MergedProfile
        MergedProfile([]).tables(rank="1")
        """,
        TypeError,
    ),
    case("a table of no number of lines", "sw.profile().tables(limit=None)", TypeError),
    case("a table of fewer than no lines", "sw.profile().unasked(limit=-1)", ValueError),
    case(
        "a trace without a path",
        "from shardwise.debug import MergedProfile\nMergedProfile([]).save_trace(None)",
        TypeError,
    ),
    case("a folder that cannot be written to", 'sw.debug.dump("/proc")', RuntimeError, is_of_rank=True),
    case("a folder that is no path", "sw.debug.dump(3)", TypeError),
    case("a folder with a null character", 'sw.debug.dump("a\\0b")', ValueError),
    case("a CommDebugMode within itself", "comm = sw.CommDebugMode()\nwith comm, comm: pass", ValueError),
    case("a profile within itself", "profile = sw.profile()\nwith profile, profile: pass", ValueError),
    case(
        "a profile that another thread closes",
        """
        from concurrent.futures import ThreadPoolExecutor
        with sw.profile() as profile, ThreadPoolExecutor() as pool:
            pool.submit(profile.__exit__, None, None, None).result()
        """,
        ValueError,
    ),
    case("a live page on a port that is none", "sw.debug.watch(70_000)", ValueError),
    case("a live page on a port that is no number", 'sw.debug.watch(port="8765")', TypeError),
    case("a live page of an interval that is no number", "sw.debug.watch(8000, every=None)", TypeError),
    case("a live page of no interval", "sw.debug.watch(8000, every=0)", ValueError),
    case(
        "a live page on what is no port",
        """
        import os
        os.environ["SHARDWISE_WATCH"] = "yes"
        try:
            sw.debug.watch()
        finally:
            del os.environ["SHARDWISE_WATCH"]
        """,
        ValueError,
        of_processes=True,
    ),
    case("no dumps of a hang", "from shardwise.debug.flight_files import read_flights\nread_flights([])", ValueError),
    case(
        "a dump that is no JSON",
        "from pathlib import Path\nfrom shardwise.debug.flight_files import read_flights\nread_flights([Path('/dev/null')])",
        ValueError,
    ),
    case(
        "a dump that is damaged",
        """
        import tempfile
        from pathlib import Path
        from shardwise.debug.flight_files import read_flights
        file = Path(tempfile.mkdtemp()) / "dump.json"
        file.write_text('{"version": 1, "communications": []}')
        read_flights([file])
        """,
        ValueError,
    ),
    case(
        "a dump of another program",
        """
        import tempfile
        from pathlib import Path
        from shardwise.debug.flight_files import read_flights
        file = Path(tempfile.mkdtemp()) / "dump.json"
        file.write_text("{}")
        read_flights([file])
        """,
        ValueError,
    ),
]
