"""What a run measures about itself, under names that README.md explains, and the folder that it goes to.

The measurements work on the N tokens of a step over all ranks ([N] tensors, the same on every rank) or on the
groups of responses, and change nothing: a run without them would train alike.
"""

import contextlib
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import reward
from loss import entropy_change, quadrants, response_cov, token_cov
from policy import Policy, Response, all_equal, micro_batches, over_all_ranks


def rollout_metrics(sampled: list[list[Response]], rounds: int) -> dict[str, float]:
    """Of everything that was sampled, before dynamic sampling drops a group."""
    responses = [r for group in sampled for r in group]
    share = lambda test: sum(map(test, responses)) / len(responses)
    return {
        "reward/mean": share(lambda r: r.reward),
        "reward/acc": share(lambda r: r.score.status == "right"),
        **{f"reward/rate_{status}": share(lambda r: r.score.status == status) for status in reward.STATUSES},
        "response_length/mean": share(lambda r: len(r.tokens)),
        "response_length/max": max(len(r.tokens) for r in responses),
        "response_length/clip_ratio": share(lambda r: r.finish_reason == "length"),
        "rollout/frac_zero_std": sum(map(all_equal, sampled)) / len(sampled),
        "rollout/gen_rounds": rounds,
    }


def token_metrics(tokens: dict[str, Tensor]) -> dict[str, float]:
    """Of the tokens trained on, under the policy that sampled them; `tokens`: name -> [N].

    cov/*: Table 1; quadrant/*: Theorem 2's sign table; rollout/*: the sampler's log-probs against the trainer's.
    """
    mask = torch.ones_like(tokens["entropy"], dtype=torch.bool)
    cov = token_cov(tokens["old_logprobs"], tokens["advantages"], mask).sort(descending=True).values
    log_ratio = tokens["old_logprobs"] - tokens["sampler_logprobs"]
    p95 = log_ratio.abs().kthvalue(max(1, int(0.95 * len(cov)))).values  # torch.quantile stops at 16 M values
    ratio = log_ratio.exp()
    return {
        "actor/entropy": tokens["entropy"].mean().item(),
        "rollout/logprob_diff": log_ratio.abs().mean().item(),
        "rollout/logprob_diff_p95": p95.item(),
        "rollout/ratio_outside": ((ratio < 0.9) | (ratio > 1.1)).float().mean().item(),
        "cov/mean": cov.mean().item(), "cov/std": cov.std().item(),
        "cov/positive": (cov > 0).float().mean().item(),
        **{f"cov/top_{p}%": cov[:max(1, int(p / 100 * len(cov)))].mean().item() for p in (0.02, 0.2, 2)},
        **{f"quadrant/{name}": member.float().mean().item() for name, member in
           quadrants(tokens["old_logprobs"], tokens["entropy"], tokens["advantages"]).items()},
    }


def response_metrics(groups: list[list[Response]], tokens: dict[str, Tensor]) -> dict[str, float]:
    """cov/response: Section 3.3's covariance, mean over the groups; _acc_25: over groups of accuracy in (0, 0.25]..."""
    lengths = torch.tensor([len(r.tokens) for group in groups for r in group])
    means = torch.stack([part.mean() if len(part) else part.sum()
                         for part in tokens["old_logprobs"].cpu().split(lengths.tolist())])
    shape = len(groups), len(groups[0])
    cov = response_cov(means.view(shape), torch.tensor([[r.advantage for r in group] for group in groups]))  # [P]
    right = torch.tensor([[r.score.status == "right" for r in group] for group in groups])
    quarter = (right.float().mean(1) * 4).ceil()                                                             # [P]
    metrics = {"cov/response": cov.mean().item()}
    for q in range(1, 5):
        if (quarter == q).any():
            metrics[f"cov/response_acc_{25 * q}"] = cov[quarter == q].mean().item()
    return metrics


# =========================================================================================================
# Which tokens does a method select?
# =========================================================================================================


def selected_metrics(selected: Tensor, tokens: dict[str, Tensor]) -> dict[str, float]:
    """Means over the selected ones of a step's N tokens; selected: bool [N]. {} if none is."""
    if not selected.any():
        return {}
    chosen = {name: value[selected] for name, value in tokens.items()}
    members = quadrants(chosen["old_logprobs"], chosen["entropy"], chosen["advantages"])
    return {**{f"selected/{name}": member.float().mean().item() for name, member in members.items()},
            "selected/prob": chosen["old_logprobs"].exp().mean().item(),
            "selected/entropy": chosen["entropy"].mean().item()}


def selected_rows(tokenizer, sampled: list[list[Response]], groups: list[list[Response]], selected: Tensor,
                  tokens: dict[str, Tensor]) -> list[dict]:
    """One row a selected token: what it is, where it stands, what the rollout's policy thought of it.

    cov is centred on the step; the selection centres on its mini-batch, under the policy of that moment.
    """
    cov = token_cov(tokens["old_logprobs"], tokens["advantages"], torch.ones_like(selected))[selected].tolist()
    chosen = {name: value[selected].cpu() for name, value in tokens.items()}
    members = quadrants(chosen["old_logprobs"], chosen["entropy"], chosen["advantages"])
    place = {id(group): g for g, group in enumerate(sampled)}  # the group's number in samples/ too
    responses = [(place[id(group)], i, r.tokens) for group in groups for i, r in enumerate(group)]
    starts = np.cumsum([0] + [len(ids) for _, _, ids in responses])
    rows = []
    for k, n in enumerate(selected.nonzero()[:, 0].tolist()):
        which = int(np.searchsorted(starts, n, side="right")) - 1
        g, i, ids = responses[which]
        t = int(n - starts[which])
        rows.append({"group": g, "response": i, "position": t, "length": len(ids), "token": tokenizer.decode(ids[t]),
                     "before": tokenizer.decode(ids[max(0, t - 16):t]), "prob": chosen["old_logprobs"][k].exp().item(),
                     "advantage": chosen["advantages"][k].item(), "entropy": chosen["entropy"][k].item(),
                     "cov": cov[k], "quadrant": next(name for name, member in members.items() if member[k])})
    return rows


# =========================================================================================================
# How far does the theory hold? Logits at a probe of states, before and after an update
# =========================================================================================================


class Probe:
    """About `n_states` states of a step's rollout, spread over its responses, and their logits before the update.

    change("update") later compares them with the policy as it is by then. Collective.
    """

    N_RESPONSES = 64  # whole rows go through the model, so few rows; 64 still cover every mini-batch

    def __init__(self, policy: Policy, groups: list[list[Response]], n_first: int, n_states: int, budget: int, device):
        """n_first: responses of the first mini-batch, the only ones that the first update sees."""
        responses = [r for group in groups for r in group]
        chosen = range(0, len(responses), max(1, len(responses) // self.N_RESPONSES))
        lengths = [len(responses[i].tokens) for i in chosen]
        self.policy, (self.batches, self.n_tokens) = policy, micro_batches([responses[i] for i in chosen], budget, device)
        self.stride = max(1, round(sum(lengths) / n_states))
        self.n_visited = sum(length for i, length in zip(chosen, lengths) if i < n_first)
        for m in self.batches:
            m.mask &= m.position % self.stride == 0
        self.before = self.logits()

    @torch.no_grad()
    def logits(self) -> list[Tensor]:
        return [self.policy(m.input_ids, m.prompt_lengths, m.targets, m.mask, logits_only=True) for m in self.batches]

    def change(self, name: str) -> dict[str, float]:
        """probe/<name>/*: mean entropy change, exact and predicted; how well each prediction agrees state by state."""
        parts = [entropy_change(before, after, m.targets[m.mask], m.advantages[m.mask])
                 for m, before, after in zip(self.batches, self.before, self.logits())]
        where = torch.arange(0, self.n_tokens, self.stride, device=parts[0]["exact"].device)                       # [S]
        table = {key: over_all_ranks([torch.zeros(m.mask.shape, dtype=torch.double, device=m.mask.device)
                                      .masked_scatter(m.mask, part[key]) for m, part in zip(self.batches, parts)],
                                     self.batches, self.n_tokens)[where] for key in parts[0]}                # [S]
        visited = where < self.n_visited
        metrics = {f"probe/{name}/dH": table["exact"].mean().item(),
                   f"probe/{name}/dH_first_order": table["first_order"].mean().item()}
        if name == "first":
            metrics |= {"probe/first/dH_visited": table["exact"][visited].mean().item(),
                        "probe/first/dH_unvisited": table["exact"][~visited].mean().item()}
        for key in ("first_order", "theorem_1", "theorem_2"):
            # tabular: a state that the update did not visit has no prediction
            on = visited if name == "first" and key != "first_order" else torch.ones_like(visited)
            fit = agreement(table[key][on], table["exact"][on], slope=1.0 if key == "first_order" else None)
            metrics |= {f"probe/{name}/{key}_{statistic}": value for statistic, value in fit.items()}
        return metrics


def agreement(predicted: Tensor, exact: Tensor, slope: float | None = None) -> dict[str, float]:
    """Of predicted and exact entropy changes [S]: least-squares slope through 0, correlation, and the share of
    sum(exact^2) that slope * predicted explains; `slope` None: the fitted one. {} if nothing moved."""
    if len(exact) < 2 or not exact.any() or not predicted.any():
        return {}
    fitted = (predicted @ exact / (predicted @ predicted)).item()
    residual = exact - (fitted if slope is None else slope) * predicted
    return {"slope": fitted, "corr": torch.corrcoef(torch.stack([predicted, exact]))[0, 1].item(),
            "explained": 1 - (residual @ residual / (exact @ exact)).item()}


# =========================================================================================================
# The run folder
# =========================================================================================================


@contextlib.contextmanager
def timed(timing: dict[str, float], phase: str):
    start = time.perf_counter()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    timing[phase] = timing.get(phase, 0.0) + time.perf_counter() - start


class Log:
    """The run folder, the progress bar and wandb; silent on other ranks than 0.

    config: what config.json keeps. resumed: the step after which an old run goes on; -1: it has no checkpoint, and
    starts again; None: a new run, whose folder replaces one of its name.
    """

    def __init__(self, folder: Path, config: dict, active: bool, resumed: int | None = None):
        self.folder, self.active, self.wandb = folder, active, None
        self.bar = tqdm(total=config["max_steps"], desc=self.folder.name, disable=not active, dynamic_ncols=True,
                        initial=max(0, resumed or 0))
        self.shown, self.unwritten = {}, []
        if active:
            if resumed is not None:
                self.cut_back(resumed, config)
            else:
                shutil.rmtree(self.folder, ignore_errors=True)
            (self.folder / "samples").mkdir(parents=True, exist_ok=True)
            (self.folder / "config.tmp").write_text(json.dumps(config, indent=1) + "\n")
            (self.folder / "config.tmp").rename(self.folder / "config.json")
        if active and config["wandb"]:
            import wandb
            self.wandb = wandb.init(project=config["wandb"], name=self.folder.name, config=config)

    def cut_back(self, step: int, config: dict):
        """To what the folder held at the end of that step; -1: nothing, and the old metrics are set aside."""
        for key, old in json.loads((self.folder / "config.json").read_text()).items():
            if config[key] != old and key != "overwrite":
                self.say(f"--{key} {config[key]}: was {old}")
        path, kept = self.folder / "metrics.jsonl", ""
        if step < 0:
            self.say(f"{self.folder} has no checkpoint: from the beginning (old metrics: metrics.jsonl.old)")
            if path.exists():
                path.rename(path.with_suffix(".jsonl.old"))
        else:
            self.say(f"resumed after step {step}")
            for line in open(path) if path.exists() else ():
                with contextlib.suppress(ValueError):  # a kill may have cut the last line
                    kept += line if json.loads(line)["step"] <= step else ""
            path.with_suffix(".tmp").write_text(kept)
            path.with_suffix(".tmp").rename(path)
        for rows in self.folder.glob("s*/step_*.jsonl"):  # samples/ and selected/
            if int(rows.stem.removeprefix("step_")) > step:
                rows.unlink()

    def say(self, text: str):
        if self.active:
            self.bar.write(text)

    def save_batch(self, step: int, groups: list[list[Response]], tokens: dict[str, Tensor]) -> Path:
        """A mini-batch for inspection: torch.load(path, weights_only=True)."""
        path = self.folder / f"bad_batch_step_{step:06d}.pt"
        rows = [{"prompt": r.prompt.tolist(), "tokens": r.tokens.tolist(), "text": r.text, "reward": r.reward}
                for group in groups for r in group]
        if self.active:
            torch.save({"responses": rows, **{name: value.cpu() for name, value in tokens.items()}}, path)
        return path

    def append(self, name: str, rows: list[dict]) -> bool:
        """All of them or none; a full disk is reported."""
        path, size = self.folder / name, 0
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

    def write(self, metrics: dict[str, float], groups: list[list[Response]] | None = None,
              selected: list[dict] | None = None):
        """One step's metrics, and its responses and selected tokens where they are given."""
        if not self.active:
            return
        self.unwritten.append(metrics)  # after a full disk, it goes out with the next lines
        if self.append("metrics.jsonl", self.unwritten):
            self.unwritten = []
        if groups:
            rows = [{"group": i, "problem": r.problem, "response": r.text, **r.score._asdict(), "reward": r.reward,
                     "length": len(r.tokens), "finish_reason": r.finish_reason, "advantage": r.advantage}
                    for i, group in enumerate(groups) for r in group]
            self.append(f"samples/step_{metrics['step']:06d}.jsonl", rows)
        if selected:
            self.append(f"selected/step_{metrics['step']:06d}.jsonl", selected)
        if self.wandb:
            self.wandb.log(metrics, step=metrics["step"])
        val = next((key for key in metrics if key.startswith("val/") and "/avg@" in key), None)
        names = {"entropy": "actor/entropy", "acc": "reward/acc", "val": val, "len": "response_length/mean",
                 "kl": "actor/ppo_kl_abs", "tok/s": "tokens_per_s"}
        self.shown |= {name: f"{metrics[key]:.3g}" for name, key in names.items() if key in metrics}
        self.bar.set_postfix(self.shown, refresh=False)
        self.bar.update(metrics["step"] - self.bar.n)
