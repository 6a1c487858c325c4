"""What only a GPU can show, in one command: each claim with its number, and pass or fail. Exit code 1 if one fails.

    python bench/gpu.py                      # all GPUs of this machine, Qwen2.5-0.5B, under 10 minutes
    python bench/gpu.py --model ./model --gpus 2
    python bench/gpu.py --tiny --gpus 1      # the same path on a CPU with the embedded model: only the hardware is missing

Runs train.py under torchrun in a temporary folder: four steps; the last two again after --resume; two steps with vLLM's
weights split over two GPUs. Every second response counts as right, so that any model has something to learn from.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    True: dict(prompts_per_step=8, group_size=4, mini_batch_prompts=4, val_samples=1, lr=1e-3, checkpoint_every=2),
    False: dict(prompts_per_step=64, group_size=8, mini_batch_prompts=16, val_samples=1, lr=1e-5, checkpoint_every=2,
                max_prompt_tokens=128, max_response_tokens=512, micro_batch_tokens=20480, grad_checkpointing=True,
                kl_cov_ratio=0.002, clip_cov_ratio=2e-4),
}


def child(out: str, options: list[str]):
    """A rank of a run of train.py that also notes the memory of each phase, and sleeps, wakes and reloads at its end."""
    sys.path.insert(0, str(ROOT))
    import torch
    from support import mechanism
    real_timed, peaks, found = mechanism.timed, {}, {}
    cuda = torch.cuda.is_available()

    @contextlib.contextmanager
    def timed(phase: str):
        if cuda:
            torch.cuda.empty_cache()  # what training had kept is not there any more when vLLM wakes
            torch.cuda.reset_peak_memory_stats()
        with real_timed(phase):
            yield
        if cuda:
            free, total = torch.cuda.mem_get_info()  # vLLM's pool is in it, what torch had freed since is not
            outside = total - free - torch.cuda.memory_reserved()
            peaks[phase] = max(peaks.get(phase, 0.0), (outside + torch.cuda.max_memory_reserved()) / 1e9)

    mechanism.timed = timed  # before train.py decorates its phases with it
    import reward
    import train
    from support.options import gpu_memory
    score_batch, finish, cfg = reward.score_batch, train.finish, train.parse_args(options, train.Config, train.PRESETS)

    def every_second_is_right(*args, **kwargs):
        return [s._replace(reward=float(i % 2), status=("wrong", "right")[i % 2]) for i, s in enumerate(score_batch(*args, **kwargs))]

    def sleep_wake_and_finish(run):
        problems = next(iter(run.vals.values()))[:8]
        prompts = [reward.format_prompt(problem, run.tokenizer) for problem in problems]
        greedy = dict(n=1, max_tokens=cfg.max_response_tokens, temperature=0.0, seed=0)
        twice = []
        for _ in range(2):  # both times with an empty prefix cache: another shape of the prefill rounds otherwise
            run.sampler.sleep()
            run.sampler.wake()
            run.sampler.load(run.weights())
            twice.append(run.sampler.generate(prompts, **greedy))
        before, after = twice
        differ = [abs(a - b) for (s,), (t,) in zip(before, after) for a, b in zip(s.logprobs, t.logprobs)]
        found.update(same_tokens=all(s.token_ids == t.token_ids for (s,), (t,) in zip(before, after)), reload=max(differ))
        n_params = sum(p.numel() for p in run.policy.parameters())
        if cuda:
            size, vllm = torch.cuda.mem_get_info()[1] / 1e9, train.uses_vllm(cfg)
            found["computed"] = gpu_memory(cfg, run.policy.model.config, n_params, torch.distributed.get_world_size(), size, vllm)
        if torch.distributed.get_rank() == 0:
            Path(out).write_text(json.dumps({**found, "peaks": peaks}))
        finish(run)

    reward.score_batch, train.finish = every_second_is_right, sleep_wake_and_finish
    train.main(cfg)


def rows_of(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in open(folder / f"runs/{name}/metrics.jsonl")]


def same(a: dict, b: dict) -> bool:
    timeless = lambda row: {k: v for k, v in row.items() if not k.startswith(("timing_s/", "tokens_per_s", "val/", "probe/"))}
    return timeless(a) == timeless(b)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="the embedded model; runs on a CPU")
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B")
    parser.add_argument("--gpus", type=int, help="processes; default: the GPUs of this machine")
    args = parser.parse_args()
    import torch
    cuda = torch.cuda.is_available()
    if not cuda and not args.tiny:
        sys.exit("bench/gpu.py: no GPU here; --tiny shows that the path works")
    ranks, failed = args.gpus or max(1, torch.cuda.device_count()), []
    folder = Path(tempfile.mkdtemp())
    (folder / "tiny").symlink_to(ROOT / "tiny")
    (folder / "val.jsonl").write_text("".join(open(ROOT / "tiny/val.jsonl").readlines()[:16]))
    model = {} if args.tiny else {"model": str(Path(args.model).resolve()) if Path(args.model).exists() else args.model}
    settings = dict(SIZES[args.tiny], val_data="val.jsonl", max_gen_rounds=1, warmup_steps=0, eval_every=0, **model)
    given = [text for key, value in settings.items() if value is not True for text in (f"--{key}", str(value))]
    given += ["--grad_checkpointing"] if settings.get("grad_checkpointing") else []
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "1", **os.environ}

    def train(name: str, *options) -> dict | None:
        """A run of train.py; None, a failed claim, if it did not end well."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", __file__, "--child",
                   f"{name}.json", *options]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            claim(f"run {name}", False, (done.stderr.strip().splitlines() or ["no output"])[-1][:200])
            (folder / f"{name}.log").write_text(done.stdout + done.stderr)
            return None
        return json.loads((folder / f"{name}.json").read_text())

    def claim(what: str, passed: bool | None, number: str):
        """passed: None is a measurement that nothing was claimed about."""
        failed.extend([what] if passed is False else [])
        print(f"{ {True: 'pass', False: 'FAIL', None: '    '}[passed]} {what}: {number}", flush=True)

    def gap(name: str, rows: list[dict]):
        worst = max(row["rollout/logprob_diff"] for row in rows[1:])
        claim(f"{name}: sampler against trainer, nats a token", worst < (0.05 if cuda else 1e-4),
              f"{rows[1]['rollout/logprob_diff']:.2g} before the first update, {worst:.2g} at most after one")

    def slept(name: str, found: dict):
        claim(f"{name}: the same greedy responses after sleep, wake and reload", found["same_tokens"],
              f"log-probs differ by {found['reload']:.2g} at most")

    print(f"{ranks} x {torch.cuda.get_device_name() if cuda else 'CPU'}, torch {torch.__version__}")
    if whole := train("whole", *given, "--name", "whole", "--max_steps", "4"):
        rows = rows_of(folder, "whole")
        gap("whole", rows)
        slept("whole", whole)
        claim("every update was finite", all(row["actor/skipped"] == 0 for row in rows[1:]), f"{len(rows) - 1} steps")
        for phase, peak in whole["peaks"].items():
            claim(f"memory, {phase}", None, f"{peak:.1f} GB")
        if cuda:
            peak = max(whole["peaks"].values())
            claim("no phase takes more than was computed", peak < whole["computed"], f"{peak:.1f} of {whole['computed']:.1f} GB")
        tokens = rows[-1]["tokens_per_s"] * rows[-1]["timing_s/step"]
        for phase in ("gen", "logprob", "update", "sync"):
            claim(f"speed, {phase}", None, f"{tokens / rows[-1]['timing_s/' + phase]:.0f} response tokens/s")
    if whole:
        shutil.copytree(folder / "runs/whole", folder / "runs/again", ignore=shutil.ignore_patterns("step_000004"))
    if whole and train("again", "--resume", "runs/again", "--max_steps", "4"):  # from step 2
        first, again = rows_of(folder, "whole"), rows_of(folder, "again")
        equal = [same(a, b) for a, b in zip(first, again, strict=True)]
        off = abs(again[3]["actor/entropy"] / first[3]["actor/entropy"] - 1)
        # on a GPU the backward of flash attention adds in any order: the same state does not give the same digits
        claim("resumed after step 2, a run goes on as before", off < 0.01 if cuda else all(equal),
              f"{sum(equal[3:])} of 2 steps to the last digit; the entropy of step 3 differs by {off:.2%}")
    if cuda and ranks % 2 == 0:
        if split := train("tp2", *given, "--name", "tp2", "--max_steps", "2", "--tensor_parallel", "2"):
            gap("tensor parallel 2", rows_of(folder, "tp2"))
            slept("tensor parallel 2", split)
    else:
        claim("tensor parallel 2", None, "not tried: it needs two GPUs")
    print(f"{len(failed)} failed; runs and logs: {folder}" if failed else "all passed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        main()
