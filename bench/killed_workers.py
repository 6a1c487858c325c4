"""What is left when reward workers are killed at random while they judge programs.

    python bench/killed_workers.py --items 1000 --kills 50        # exit code 1 if a process or a folder is left
"""
import argparse
import collections
import contextlib
import glob
import os
import random
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import reward

PROGRAMS = [                              # (program, does it pass)
    ("print(sum(map(int, input().split())))", True),
    ("import time\nprint(sum(map(int, input().split())), flush=True)\ntime.sleep(0.3)", True),
    ("import os\nfor i in range(400):\n    os.mkdir('d')\n    os.chdir('d')\n    open('f', 'w').close()", False),
    ("import os\nos.mkdir('closed')\nopen('closed/f', 'w').close()\nos.chmod('closed', 0)\nos.chmod('.', 0)", False),
    ("import ctypes\nfor _ in range(1000): ctypes.CDLL(None).fork()", False),
]


def left(folder):
    """Command lines of cells and supervisors, and what is in the folder for temporary files."""
    commands = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            command = open(path, "rb").read()
        except OSError:
            continue
        if b"cell.py" in command or b"solution.py" in command:
            commands.append(command)
    return commands, os.listdir(folder)


def run(items, kills, workers=2, seed=0):
    """(statuses, wrong verdicts that no kill explains, what is left); a kill may cost the item that it hit."""
    chance, folder = random.Random(seed), tempfile.mkdtemp()
    tempfile.tempdir, before, killed, done = folder, left(folder)[0], [], threading.Event()
    chosen = [chance.choice(PROGRAMS) for _ in range(items)]
    problems = [{"task": "code", "tests": {"inputs": [f"1 {i}"], "outputs": [str(i + 1)]}} for i in range(items)]
    reward.start_workers(workers)
    per_item = [time.monotonic()]
    def kill():
        while len(killed) < kills and not done.wait(chance.uniform(0.2, 0.8) * max(0.05, per_item[-1])):
            worker = chance.choice(reward._started)
            with contextlib.suppress(ProcessLookupError):    # gone already; its successor will do
                os.kill(worker.process.pid, signal.SIGKILL)
                killed.append(worker.process.pid)
    scores, size, killer = [], max(1, items // 20), threading.Thread(target=kill)
    for start in range(0, items, size):
        clock = time.monotonic()
        part = slice(start, start + size)
        scores += reward.score_batch([f"```python\n{program}\n```" for program, _ in chosen[part]], problems[part],
                                     workers=workers, timeout=10)
        per_item[0:] = [20 * (time.monotonic() - clock) / max(1, kills)]
        if start == 0:
            killer.start()
    done.set()
    killer.join()
    reward.stop_workers()
    time.sleep(1)
    commands, files = left(folder)
    os.rmdir(folder) if not files else None
    tempfile.tempdir = None
    wrong = sum((score.reward == 1) != passes for score, (_, passes) in zip(scores, chosen))
    paid = sum(score.reward == 1 and not passes for score, (_, passes) in zip(scores, chosen))
    return collections.Counter(score.status for score in scores), len(killed), wrong, paid, commands[len(before):], files


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=50)
    options = parser.parse_args()
    statuses, killed, wrong, paid, commands, files = run(options.items, options.kills)
    print(f"{options.items} items, {killed} workers killed: {dict(statuses)}; {wrong} verdicts differ, {paid} paid wrongly; "
          f"left: {len(commands)} processes, {len(files)} folders")
    sys.exit(bool(commands or files or paid or wrong > killed))
