"""What stands around the model at the paper's size: 2,048 responses of up to 8,192 tokens, without a model.

    python bench/scale.py                           # 1 and 2 processes; a quarter, a half and all of the tokens
    python bench/scale.py --losses kl_cov,clip_cov  # the selections to time

Every process goes through train.py's own phases with responses of random ids; only the model, the decoder and the
verifiers are replaced, by random numbers and by a text of three characters a token. Every rank holds all responses
of a step, so what one of 8 ranks does here is what one of 2 does, but for the share of the micro-batches that it
builds. Seconds of the slowest rank, as a share of the step that bench/README.md computes for `7b`, 150 s for 2,000 tokens
a response and in proportion; memory: the largest resident size of a process, less what there was before the phases.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from memory import reset_peak, resident

ROOT = Path(__file__).resolve().parents[1]
PROMPTS, GROUP, LIMIT = 256, 8, 8192
SECONDS_A_TOKEN = 150 / (PROMPTS * GROUP * 2000)


def work(folder: str, share: float, losses: list[str]):
    """One process of a step whose responses are full length at share 1; rank 0 prints a line of JSON."""
    sys.path.insert(0, str(ROOT))
    import numpy as np
    import torch
    import torch.distributed as dist
    import train
    from support import mechanism
    from support.batches import start_distributed
    from support.run_folder import RunFolder, selected_rows, update_metrics
    from support.samplers import Sample

    device, draw, seconds = start_distributed(), np.random.default_rng(0), {}
    rank, world = dist.get_rank(), dist.get_world_size()
    cfg = train.Config(**{**train.PRESETS["7b"], "probe_states": 0})
    run = SimpleNamespace(cfg=cfg, device=device, policy=None, ref_policy=None, models={}, metrics={"step": 1}, tokenizer=None,
                          sampler=SimpleNamespace(dp_rank=rank, dp_size=world), state={}, evaluates=False,
                          folder=RunFolder(Path(folder) / "run", vars(cfg), active=rank == 0, resumed=None))
    train.no_grad_pass = lambda policy, batches: [(-torch.rand(m.mask.shape), torch.rand(m.mask.shape)) for m in batches]
    train.decode = lambda tokenizer, ids, prompt: "abc" * len(ids)
    train.reward.score_batch = lambda texts, *_, **__: [train.reward.Score(float(i % 2), ("wrong", "right")[i % 2], "1")
                                                        for i in range(len(texts))]

    def timed(name, function, *args):
        dist.barrier()
        start = time.perf_counter()
        result = function(*args)
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
        return result

    def sample():
        length = int(LIMIT * share * draw.uniform(0.9, 1))
        return Sample(draw.integers(0, 150_000, length).tolist(), (-draw.random(length)).tolist(), "stop")

    rollouts = [({"problem": f"problem {i}"}, list(range(200)), [sample() for _ in range(GROUP)])
                for i in range(rank, PROMPTS, world)]
    reset_peak()
    before = resident("VmRSS")
    run.sampled = timed("gather the responses of all ranks", train.score, run, rollouts)
    del rollouts
    timed("advantages", train.set_advantages, run, run.sampled)
    minis = timed("micro-batches, and log-probs as one tensor", train.log_probs, run, run.sampled)
    timed("measure the rollout", mechanism.measure_groups, run, run.sampled, minis)
    for loss in losses:
        cfg.loss = loss
        for mini in minis:
            mini.selected = timed(f"select: {loss}", train.select, run, mini)
    for mini in minis:
        sums = {"pg_loss": torch.zeros((), dtype=torch.double), "selected": mini.selected.double().sum()}
        mini.sums = sums | {"grad_norm": torch.ones((), dtype=torch.double)}
    timed("metrics of the updates", lambda: update_metrics(minis) | mechanism.selected_metrics(minis))
    run.tokenizer = SimpleNamespace(decode=str)
    rows = timed("rows of selected tokens", selected_rows, run.tokenizer, run.sampled, minis)
    timed("samples to disk", run.folder.write, run.metrics, run.sampled, rows)
    answers = [None] * world
    dist.all_gather_object(answers, {"GB": resident() - before, "seconds": seconds})
    if rank == 0:
        slowest = {name: max(answer["seconds"][name] for answer in answers) for name in seconds}
        print(json.dumps({"tokens": sum(mini.n_tokens for mini in minis), "GB": max(a["GB"] for a in answers),
                          "seconds": slowest}))
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--shares", default="0.25,0.5,1", help="of 8,192 tokens a response")
    parser.add_argument("--losses", default="kl_cov,clip_cov,top_entropy")
    parser.add_argument("--work", nargs=2, metavar=("FOLDER", "SHARE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    losses = args.losses.split(",")
    if args.work:
        return work(args.work[0], float(args.work[1]), losses)
    for ranks in args.ranks.split(","):
        for share in args.shares.split(","):
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", __file__,
                           "--losses", args.losses, "--work", folder, share]
                done = subprocess.run(command, capture_output=True, text=True,
                                      env={**os.environ, "OMP_NUM_THREADS": "1"})
            if done.returncode:
                sys.exit(done.stderr[-3000:])
            result = json.loads(done.stdout.splitlines()[-1])
            print(f"\n{ranks} ranks, {result['tokens'] / 1e6:.1f} M tokens: {result['GB']:.2f} GB a rank")
            for name, value in result["seconds"].items():
                print(f"    {name:46} {value:7.2f} s  {value / result['tokens'] / SECONDS_A_TOKEN:6.2%} of a step")


if __name__ == "__main__":
    main()
