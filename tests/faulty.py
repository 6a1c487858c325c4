"""Runs of train.py that meet with a fault, for test_faults.py and bench/faults.py.

A rank is a process forked from one that has imported everything (a start takes a second, not ten). What it runs is
train.main(), untouched but for the one function through which the fault comes.
"""

import functools
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])  # of the process that is forked from
os.environ["OMP_NUM_THREADS"] = "1"

import torch

from support import checkpoints
from support import samplers
import reward
import train

SMALL = ["--prompts_per_step", "4", "--group_size", "4", "--mini_batch_prompts", "2", "--val_data", "val.jsonl",
         "--val_samples", "1", "--eval_every", "3", "--probe_states", "64", "--checkpoint_every", "1", "--warmup_steps", "0"]
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["faulty"])


def prepare(folder: Path) -> Path:
    """A working directory with the embedded model and data, and 16 problems to validate on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny").symlink_to(ROOT / "tiny")
    (folder / "val.jsonl").write_text("".join(open(ROOT / "tiny/val.jsonl").readlines()[:16]))
    return folder


def start(folder: Path, options: list[str], *, ranks: int = 1, fault: tuple = ()) -> list:
    """train.py in `folder`, one process a rank; rank r's output goes to folder/rank<r>.log. fault: (name, *arguments)"""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = [FORK.Process(target=rank_main, args=(folder, options, rank, ranks, port, fault), daemon=True)
                 for rank in range(ranks)]
    for rank, process in enumerate(processes):
        (folder / f"rank{rank}.log").write_text("")
        process.start()
    return processes


def finish(processes: list, timeout: float = 600) -> list[int]:
    """Exit codes; -9 is SIGKILL. TimeoutError if a process is still there."""
    end = time.monotonic() + timeout
    for process in processes:
        process.join(max(0, end - time.monotonic()))
    if late := [process for process in processes if process.is_alive()]:
        for process in late:
            process.kill()
        raise TimeoutError(f"{len(late)} of {len(processes)} ranks did not end in {timeout} s")
    return [process.exitcode for process in processes]


def run(folder: Path, options: list[str], **how) -> list[int]:
    return finish(start(folder, options, **how))


def output(folder: Path, rank: int = 0) -> str:
    return (folder / f"rank{rank}.log").read_text()


def metrics(run_folder: Path) -> list[dict]:
    """Lines of metrics.jsonl without what a clock decides."""
    return [{key: value for key, value in json.loads(line).items() if not key.startswith(("timing_s/", "tokens_per_s"))}
            for line in open(run_folder / "metrics.jsonl")]


def start_training():
    """What `python train.py` does, in this process."""
    try:
        cfg = train.parse_args(sys.argv[1:], train.Config, train.PRESETS)
    except ValueError as error:
        train.refuse(error)
    train.main(cfg)


def rank_main(folder: Path, options: list[str], rank: int, ranks: int, port: int, fault: tuple):
    os.chdir(folder)
    log = os.open(f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1), os.dup2(log, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = ["train.py", *options]
    if fault:
        FAULTS[fault[0]](rank, *fault[1:])
    start_training()


# --- faults -----------------------------------------------------------------------------------------------


def steps_logged() -> list[int]:
    """The steps that this process logs from now on."""
    steps, write = [], train.RunFolder.write

    def noting(log, metrics, *rest):
        write(log, metrics, *rest)
        steps.append(metrics["step"])

    train.RunFolder.write = noting
    return steps


def kill_self():
    Path("killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)


PHASES = {"generate": (train, "generate"), "score": (train, "score"), "log-probs": (train, "no_grad_pass"),
          "update": (train, "update"), "sync": (train, "hf_weights"), "evaluate": (train.Run, "validate"),
          "log": (train.RunFolder, "append"), "save, tensors": (checkpoints.dcp, "async_save"),
          "save, manifest": (checkpoints.Checkpoints, "_finish")}


def kill_in(rank: int, phase: str, victim: int, after: int):
    """SIGKILL of rank `victim` in a phase, once this process has logged `after` steps of training."""
    owner, name = PHASES[phase]
    function, steps = getattr(owner, name), steps_logged()

    def fatal(*args, **kwargs):
        if rank == victim and sum(step > 0 for step in steps) >= after:
            if phase == "log":  # half a line is out
                with open(args[0].path / args[1], "a") as f:
                    f.write(json.dumps(args[2][0])[:100])
            if phase == "save, tensors":  # while the writing thread is at it
                function(*args, **kwargs)
            if phase == "save, manifest":  # the tensors are there, the rest is not
                args[1].exception()
            kill_self()
        return function(*args, **kwargs)

    setattr(owner, name, fatal)


def nan_loss(rank: int, updates: tuple[int, ...], victim: int = 0):
    """The loss of these updates (0 is the first) is NaN on one rank."""
    grpo, update, calls = train.LOSSES["grpo"], train.update, []

    def counting(*args, **kwargs):
        calls.append(1)
        return update(*args, **kwargs)

    @functools.wraps(grpo)  # the trainer reads its signature
    def poisoned(*args, **kwargs):
        loss, stats = grpo(*args, **kwargs)
        return loss * (torch.nan if len(calls) - 1 in updates and rank == victim else 1), stats

    train.update, train.LOSSES["grpo"] = counting, poisoned


def drifting_sampler(rank: int, factors: tuple[float, ...]):
    """After sync i the sampler's output matrix is the policy's times factors[i]."""
    load, left = samplers.HFSampler.load, list(factors)

    def drifted(sampler, weights):
        load(sampler, weights)
        if left:
            sampler.model.get_output_embeddings().weight.data.mul_(left.pop(0))

    samplers.HFSampler.load = drifted


def full_disk(rank: int, filler: str, first: int, last: int):
    """Not a byte is left on the disk that holds `filler`, between the metrics of step `first` - 1 and of step `last`."""
    write, filler = train.RunFolder.write, Path(filler)

    def filling(log, metrics, *rest):
        write(log, metrics, *rest)
        if metrics["step"] == first - 1:
            try:
                with open(filler, "wb", buffering=0) as f:
                    while f.write(bytes(4096)):
                        pass
            except OSError:
                pass
        if metrics["step"] == last:
            filler.unlink()

    train.RunFolder.write = filling


def strange_batches(rank: int):
    """Step 1: every response is right. Step 2: every one wrong. From step 3 on: half of them are empty."""
    generate, score, steps = train.generate, train.score, steps_logged()

    def emptied(*args):
        rollouts = generate(*args)
        if len(steps) >= 3:
            eos = samplers.Sample([1], [-1.0], "stop")  # 1 is the EOS of tiny/base
            rollouts = [(problem, prompt, [eos if i % 2 else s for i, s in enumerate(samples)])
                        for problem, prompt, samples in rollouts]
        return rollouts

    def judged(*args):
        groups = score(*args)
        for r in (r for group in groups for r in group):
            if len(steps) < 3:
                r.reward = float(len(steps) == 1)
                r.score = reward.Score(r.reward, "right" if r.reward else "wrong", r.text)
        for group in groups if len(steps) >= 3 else []:
            group[0].reward = 1.0  # a group to learn from
            group[1].reward = 0.0
        return groups

    train.generate, train.score = emptied, judged


def kill_verifiers(rank: int, every: float):
    """Responses go to the math workers, and every so many seconds one of these dies."""
    reward.first_look = lambda response, problem: (response, None) if response else (None, "no_answer")
    killed = []

    def killer():
        while True:
            time.sleep(every)
            if reward._started:
                worker = reward._started[len(killed) % len(reward._started)]
                os.killpg(worker.process.pid, signal.SIGKILL)
                killed.append(worker.process.pid)
                print(f"killed verifier {worker.process.pid}", flush=True)

    threading.Thread(target=killer, daemon=True).start()


FAULTS = {function.__name__: function for function in
          (kill_in, nan_loss, drifting_sampler, full_disk, strange_batches, kill_verifiers)}


if __name__ == "__main__":  # under torchrun: faulty.py '["kill_in", ...]' OPTIONS
    name, *arguments = json.loads(sys.argv.pop(1))
    FAULTS[name](int(os.environ["RANK"]), *arguments)
    start_training()
