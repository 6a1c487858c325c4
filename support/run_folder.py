"""The run folder, the progress bar and wandb; what is logged and saved at the end of a step and of a run."""

import contextlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from support.batches import any_rank
from support.checkpoints import save_hf
from support.mechanism import seconds, selected_metrics, selected_rows, timed, update_metrics

class RunFolder:
    """config.json, metrics.jsonl, samples/, selected/ of a run, its bar and wandb; silent on other ranks than 0.

    config: what config.json keeps. resumed: the step after which an old run goes on; -1: it has no checkpoint, and
    starts again; None: a new run, whose folder replaces one of its name.
    """

    def __init__(self, path: Path, config: dict, active: bool, resumed: int | None = None):
        self.path, self.active, self.wandb, self.warned = path, active, None, False
        config = {key: value for key, value in config.items() if key != "resume"}
        # the numbers that matter come first: on 80 columns the end of the line is cut
        self.bar = tqdm(total=config["max_steps"], disable=not active, dynamic_ncols=True, initial=max(0, resumed or 0),
                        bar_format="{n_fmt}/{total_fmt} {elapsed}<{remaining}{postfix}")
        self.shown, self.unwritten, self.started = {}, [], time.monotonic()
        if not active:
            return
        if resumed is not None:
            self.cut_back(resumed, config)
        else:
            shutil.rmtree(path, ignore_errors=True)
        (path / "samples").mkdir(parents=True, exist_ok=True)
        (path / "config.tmp").write_text(json.dumps(config, indent=1) + "\n")
        (path / "config.tmp").rename(path / "config.json")
        if config["wandb"]:
            import wandb
            self.wandb = wandb.init(project=config["wandb"], name=path.name, config=config)

    def cut_back(self, step: int, config: dict):
        """To what the folder held at the end of that step; -1: nothing, and the old metrics are set aside."""
        for key, old in json.loads((self.path / "config.json").read_text()).items():
            if config[key] != old and key != "overwrite":
                self.say(f"--{key} {config[key]}: was {old}")
        path, kept = self.path / "metrics.jsonl", ""
        if step < 0:
            self.say(f"{self.path} has no checkpoint: from the beginning (old metrics: metrics.jsonl.old)")
            if path.exists():
                path.rename(path.with_suffix(".jsonl.old"))
        else:
            self.say(f"resumed after step {step}")
            for line in open(path) if path.exists() else ():
                with contextlib.suppress(ValueError):  # a kill may have cut the last line
                    kept += line if json.loads(line)["step"] <= step else ""
            path.with_suffix(".tmp").write_text(kept)
            path.with_suffix(".tmp").rename(path)
        for rows in self.path.glob("s*/step_*.jsonl"):  # samples/ and selected/
            if int(rows.stem.removeprefix("step_")) > step:
                rows.unlink()

    def say(self, text: str):
        if self.active:
            self.bar.write(text)

    def save_batch(self, step: int, mini):
        """A mini-batch for inspection: torch.load(path, weights_only=True)."""
        path = self.path / f"bad_batch_step_{step:06d}.pt"
        rows = [{"prompt": r.prompt.tolist(), "tokens": r.tokens.tolist(), "text": r.text, "reward": r.reward}
                for group in mini.groups for r in group]
        if self.active:
            torch.save({"responses": rows, **{name: value.cpu() for name, value in mini.tokens.items()}}, path)
        self.say(f"loss or gradient were not finite; see {path}")

    def append(self, name: str, rows: list[dict]) -> bool:
        """All of them or none; a full disk is reported."""
        path, size = self.path / name, 0
        try:
            path.parent.mkdir(exist_ok=True)
            with open(path, "a") as f:
                size = f.tell()
                f.writelines(json.dumps(row) + "\n" for row in rows)
            return True
        except OSError as error:
            self.say(f"{path} could not be written: {error}")
            if path.exists():
                os.truncate(path, size)
            return False

    def write(self, metrics: dict[str, float], groups: list[list] | None = None, selected: list[dict] | None = None):
        """One step's metrics, and its responses and selected tokens where they are given."""
        if not self.active:
            return
        self.unwritten.append(metrics)  # after a full disk, it goes out with the next lines
        if self.append("metrics.jsonl", self.unwritten):
            self.unwritten = []
        if groups:
            rows = [{"group": i, "problem": r.problem, "response": r.text, **r.score._asdict(), "reward": r.reward,
                     "length": len(r.tokens), "finish_reason": r.finish_reason, "advantage": float(r.advantages.mean(dtype=float))}
                    for i, group in enumerate(groups) for r in group]
            self.append(f"samples/step_{metrics['step']:06d}.jsonl", rows)
        if selected:
            self.append(f"selected/step_{metrics['step']:06d}.jsonl", selected)
        if self.wandb:
            self.wandb.log(metrics, step=metrics["step"])
        val = next((key for key in metrics if key.startswith("val/") and "/avg@" in key), None)
        names = {"entropy": "actor/entropy", "acc": "reward/acc", "val": val, "len": "response_length/mean",
                 "tok/s": "tokens_per_s"}
        self.shown |= {name: f"{metrics[key]:.3g}" for name, key in names.items() if key in metrics}
        self.bar.set_postfix(self.shown, refresh=False)
        self.bar.update(metrics["step"] - self.bar.n)

    def close(self, exported: Path | None):
        """The last lines: what happened, where the weights are, what to do next."""
        self.bar.close()
        if not self.active or not exported:
            return
        rows = [json.loads(line) for line in open(self.path / "metrics.jsonl")]
        val = next(key for key in rows[0] if key.startswith("val/") and "/avg@" in key)
        accuracies = [100 * row[val] for row in rows if val in row]
        entropies = [row["actor/entropy"] for row in rows if "actor/entropy" in row] or [float("nan")]
        print(f"entropy {entropies[0]:.3f} -> {entropies[-1]:.3f} nats, accuracy {accuracies[0]:.1f} -> {accuracies[-1]:.1f} % "
              f"({val}), {(time.monotonic() - self.started) / 60:.1f} minutes\nweights: {exported}\n"
              f"next: python eval.py plot {self.path}")


def check_sampler(run):
    """Before the updates: a sampler that drifted from the model is named once, or ends the run (--max_logprob_diff)."""
    diff = run.metrics.get("rollout/logprob_diff", 0.0)
    text = f"step {run.metrics['step']}: the sampler's log-probs differ from the trainer's by {diff:.3g} nats a token"
    if run.cfg.max_logprob_diff and not diff <= run.cfg.max_logprob_diff:
        run.folder.write(run.metrics, run.sampled)
        run.checkpoints.save(run.models, run.state)
        run.checkpoints.wait()
        sys.exit(f"stopped: {text}, --max_logprob_diff is {run.cfg.max_logprob_diff}; the sampler is not the model")
    if diff > max(1e-3, 4 * torch.finfo(run.dtype).eps) and not run.folder.warned:
        run.folder.warned = True
        run.folder.say(f"{text}; rounding explains {4 * torch.finfo(run.dtype).eps:.1g}")


def check_update(run, mini):
    """After an update: three in a row that were left out end the run."""
    run.state["skipped_in_a_row"] = run.state["skipped_in_a_row"] + 1 if mini.sums is None else 0
    if run.state["skipped_in_a_row"] == 3:
        run.folder.save_batch(run.metrics["step"], mini)
        run.checkpoints.wait()
        sys.exit("stopped: loss or gradient of three updates in a row were not finite")


def finish_step(run, minis: list):
    """Log, evaluate, save what is due."""
    cfg, step = run.cfg, run.metrics["step"]
    due = lambda every: every and step % every == 0
    with timed("measure"):
        run.metrics |= update_metrics(minis) | selected_metrics(minis)
        rows = selected_rows(run.tokenizer, run.sampled, minis) if run.evaluates and run.folder.active else None
    seconds["step"] = time.perf_counter() - run.started
    run.metrics |= {f"timing_s/{phase}": value for phase, value in seconds.items()}
    run.metrics["actor/lr"] = run.models["policy"][1].param_groups[0]["lr"]
    run.metrics["tokens_per_s"] = sum(len(r.tokens) for group in run.sampled for r in group) / seconds["step"]
    if run.targets:
        run.metrics["actor/entropy_coeff"] = run.state["entropy_coeff"]
    if run.evaluates:
        run.metrics |= run.validate()
    seconds.clear()
    if not minis:
        rates = {key.partition("rate_")[2]: rate for key, rate in run.metrics.items() if "rate_" in key and rate}
        run.folder.say(f"step {step}: every group is all right or all wrong; no update ("
                       + ", ".join(f"{rate:.0%} {status}" for status, rate in rates.items()) + ")")
    samples = due(cfg.samples_every) or cfg.samples_every and (step == 1 or not run.metrics["reward/acc"])
    run.folder.write(run.metrics, run.sampled if samples else None, rows)
    run.state["step"] = step
    run.stopped = any_rank(bool(run.signals), run.device)
    if run.stopped or due(cfg.checkpoint_every) or cfg.checkpoint_every and step == cfg.max_steps:
        run.checkpoints.save(run.models, run.state)
    if due(cfg.save_every) and step < cfg.max_steps:
        export(run)


def export(run) -> Path | None:
    """The policy as a Hugging Face folder. -> its path; None on rank 0: it could not be written"""
    folder = run.folder.path / f"hf/step_{run.state['step']:06d}"
    return folder if save_hf(run.policy, run.weights(), run.tokenizer, folder, run.dtype) else None


def finish(run):
    """Export, unless a signal ended the run; exit code 1 if that failed."""
    run.checkpoints.wait()
    exported = None if run.stopped else export(run)
    if run.stopped:
        run.folder.say(f"SIGTERM: stopped after step {run.state['step']}; train.py --resume {run.folder.path} goes on")
    run.folder.close(exported)
    dist.barrier()
    run.sampler.close()  # vLLM ends the default process group with its own
    if dist.is_initialized():
        dist.destroy_process_group()
    if not exported and not run.stopped:
        sys.exit(1)
