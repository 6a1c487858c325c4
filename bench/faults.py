"""What a long run survives. The faults of tests/test_faults.py as a table, and kills at random moments.

    python bench/faults.py                    # fault, what is promised, what happened
    python bench/faults.py --cycles 100       # SIGKILL at a random moment, resume, until the run is done; again

A cycle is one kill of a run of 10 small steps on the embedded model with a checkpoint a step; the process is forked
from one that has imported the libraries. Runs end at the metrics of one that nothing disturbed, or the bench fails.
"""

import argparse
import random
import re
import shutil
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import faulty


class Table:
    """A pytest plugin: a row a test."""

    def __init__(self):
        self.rows = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.when == "call" or report.outcome != "passed" and report.when == "setup":
            fault = item.name.removeprefix("test_").replace("_", " ")
            promise = " ".join((item.function.__doc__ or "").split())
            found = dict(report.user_properties).get("happened", "as promised")
            happened = {"passed": found, "skipped": f"not run: {report.longrepr[-1] if report.skipped else ''}",
                        "failed": f"NOT MET: {getattr(call.excinfo, 'value', '')}"[:200]}[report.outcome]
            self.rows.append((fault, promise, f"{happened} ({report.duration:.0f} s)"))
        return report


def print_table(rows: list[tuple]):
    for row in [("FAULT", "PROMISED", "HAPPENED"), *rows]:
        cells = [textwrap.wrap(cell, 40) for cell in row]
        for i in range(max(map(len, cells))):
            print(" | ".join(f"{cell[i] if i < len(cell) else '':40}" for cell in cells))
        print("-" * 126)


def checkpointed(run: Path) -> int:
    """The newest step whose checkpoint folder has its final name; -1: none."""
    return max((int(p.name.removeprefix("step_")) for p in run.glob("checkpoints/step_??????")), default=-1)


def logged(run: Path) -> int:
    """The newest step with a whole line in metrics.jsonl; -1: none."""
    path = run / "metrics.jsonl"
    return len([line for line in path.read_text().splitlines(True) if line.endswith("\n")]) - 1 if path.exists() else -1


def kill_and_resume(cycles: int, ranks: int, seed: int) -> list[str]:
    """-> lines of what was seen. AssertionError where a promise is broken."""
    rng = random.Random(seed)
    folder = faulty.prepare(Path(tempfile.mkdtemp(prefix="faults-")))
    options = [*faulty.SMALL, "--max_steps", "10", "--loss", "entropy_bonus", "--entropy_target", "0.4"]
    start = time.monotonic()
    assert faulty.run(folder, ["--name", "whole", *options], ranks=ranks) == [0] * ranks, faulty.output(folder)
    duration = time.monotonic() - start
    expected, run = faulty.metrics(folder / "runs/whole"), folder / "runs/run"
    kills, runs, redone, halves = 0, 0, [], 0
    while kills < cycles:
        finished = False
        while not finished:
            before = checkpointed(run)
            begun = (run / "config.json").exists()
            processes = faulty.start(folder, ["--resume", "runs/run"] if begun else ["--name", "run", "--overwrite", *options],
                                     ranks=ranks)
            if kills < cycles:
                processes[rng.randrange(ranks)].join(rng.uniform(0, duration))
                victim = processes[rng.randrange(ranks)]
                alive = victim.exitcode is None
                victim.kill()
            codes = faulty.finish(processes, timeout=600)
            resumed = re.search(r"resumed after step (\d+)", faulty.output(folder))
            if resumed:
                assert int(resumed[1]) >= before, f"step {before} had its checkpoint, the run went on from {resumed[1]}"
            assert "Traceback" not in faulty.output(folder) or ranks > 1, faulty.output(folder)
            finished = codes == [0] * ranks
            if not finished:
                assert alive and -9 in codes, (codes, faulty.output(folder))
                kills += 1
                halves += any(run.glob("checkpoints/*.tmp"))
                redone.append(max(0, logged(run) - max(0, checkpointed(run))))
                print(f"kill {kills}: {logged(run)} steps logged, {checkpointed(run)} checkpointed", flush=True)
        assert faulty.metrics(run) == expected, "another end than the uninterrupted run's"
        assert not any(run.glob("checkpoints/*.tmp")) and not any(run.glob("checkpoints/*.bad"))
        shutil.rmtree(run)
        runs += 1
    shutil.rmtree(folder)
    return [f"{kills} kills in {runs} runs of 10 steps, {ranks} rank(s), {time.monotonic() - start:.0f} s: every run ended "
            f"at the uninterrupted metrics",
            f"a checkpoint was half-written at {halves} kills; logged steps that had to be done again: "
            f"{sum(redone) / len(redone):.2f} a kill on average, {max(redone)} at most; checkpointed ones: 0"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=0, help="kills at random moments, instead of the table")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.cycles:
        print(*kill_and_resume(args.cycles, args.ranks, args.seed), sep="\n")
        return
    table = Table()
    code = pytest.main(["-q", "-p", "no:cacheprovider", str(ROOT / "tests/test_faults.py")], plugins=[table])
    print_table(table.rows)
    sys.exit(code)


if __name__ == "__main__":
    main()
