"""What a run measures about its own mechanism. A run without these measurements would train alike.

Everything works on the N tokens of a step over all ranks ([N] tensors, the same on every rank) or on the groups
of responses. The names in metrics.jsonl (verl's prefixes; step 0 is the base model; a name means the same for
every loss):

    actor/entropy               exact, of the distributions sampled from; nats, mean over the tokens trained on
    actor/pg_loss, pg_clipfrac  the loss; share of tokens that PPO's clip holds (losses that have one)
    actor/ppo_kl, ppo_kl_abs    mean of log pi_old - log pi during the updates, and of its absolute value
    actor/kl_loss               K3 estimate of KL to the reference policy (ref_kl)
    actor/entropy_coeff         the adapted weight of the entropy bonus (--entropy_target)
    actor/grad_norm, lr         before clipping, mean over the updates; learning rate
    actor/skipped               updates left out because loss or gradient were not finite
    prm/loss, acc, reward       PRIME: cross entropy in the update; share of responses whose sum of q has the
                                verdict's sign; mean of q over the tokens, nats
    reward/mean, acc, rate_*    of everything sampled, before a group is dropped; shares of each status
    response_length/*           tokens, the EOS included; clip_ratio: share cut at the limit
    rollout/frac_zero_std       share of groups all right or all wrong; frac_all_right, frac_all_wrong: of each
    rollout/gen_rounds, groups  rounds of generation that the step took; prompts trained on
    rollout/logprob_diff, _p95  |sampler's - trainer's log-prob| of the same tokens
    rollout/ratio_outside       share of tokens whose probability ratio trainer / sampler is outside [0.9, 1.1]
    cov/mean, std, positive     of Eq. 10 over the tokens trained on; share above 0
    cov/top_2%, _0.2%, _0.02%   means of the largest (Table 1)
    cov/response                Section 3.3, mean over the groups; _acc_25: of accuracy in (0, 0.25], ... (Fig. 8)
    cov/selected, overlap       share of tokens selected; of these, what the rollout's log-probs would select too
    quadrant/*, selected/*      shares in the cells of Theorem 2's sign table, of all tokens and of the selected;
                                mean probability and entropy of the selected
    probe/first/*, probe/step/* what the first update and the whole step did to the entropy at up to probe_states
                                states: dH (exact), dH_first_order (Lemma 1), dH_visited, dH_unvisited (states of
                                the first mini-batch, others); of Lemma 1 and of Theorems 1 and 2, state by
                                state: slope, corr, share explained
    val/<set>/*                 avg@n, pass@n, entropy (mean -log pi of the samples), length, truncated
    timing_s/*, tokens_per_s    seconds of each phase; sampled tokens a second of the whole step
"""

import contextlib
import math
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from loss import logprobs_and_entropy, token_cov
from support.batches import micro_batches, over_all_ranks


MAX_ROWS = 1000                 # of a file in selected/
seconds: dict[str, float] = {}  # of the current step, by phase


@contextlib.contextmanager
def timed(phase: str):
    """`with timed("gen"):` or `@timed("gen")` adds to this step's timing_s/gen."""
    start = time.perf_counter()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start


def rollout_metrics(sampled: list[list], rounds: int, statuses: tuple[str, ...]) -> dict[str, float]:
    """Of everything that was sampled, before dynamic sampling drops a group."""
    responses = [r for group in sampled for r in group]
    share = lambda test: sum(map(test, responses)) / len(responses)
    n_right = [sum(r.score.status == "right" for r in group) for group in sampled]
    all_right = sum(n == len(group) for n, group in zip(n_right, sampled)) / len(sampled)
    all_wrong = n_right.count(0) / len(sampled)
    return {
        "reward/mean": share(lambda r: r.reward),
        "reward/acc": share(lambda r: r.score.status == "right"),
        **{f"reward/rate_{status}": share(lambda r: r.score.status == status) for status in statuses},
        "response_length/mean": share(lambda r: len(r.tokens)),
        "response_length/max": max(len(r.tokens) for r in responses),
        "response_length/clip_ratio": share(lambda r: r.finish_reason == "length"),
        "rollout/frac_zero_std": all_right + all_wrong,
        "rollout/frac_all_right": all_right, "rollout/frac_all_wrong": all_wrong,
        "rollout/gen_rounds": rounds,
    }


@timed("measure")
def measure_groups(run, groups: list[list], minis: list):
    """Before the updates: of the tokens trained on, under the policy that sampled them; and the probe's logits."""
    if minis:
        tokens = joined(minis)
        run.metrics |= token_metrics(tokens) | response_metrics(groups, tokens)
        if run.evaluates and run.cfg.probe_states:
            run.probe = Probe(run.policy, groups, run.cfg.mini_batch_prompts * run.cfg.group_size, run.cfg.probe_states,
                              run.cfg.micro_batch_tokens, run.device)


def follow_entropy_target(run):
    """--entropy_target: the weight of the entropy bonus, by an integral controller."""
    if run.targets and "actor/entropy" in run.metrics:
        gap = run.targets[min(run.metrics["step"], len(run.targets)) - 1] - run.metrics["actor/entropy"]
        if math.isfinite(gap):
            run.state["entropy_coeff"] = max(0.0, run.state["entropy_coeff"] + run.cfg.entropy_gain * gap)


@timed("measure")
def measure_update(run, mini, last: bool):
    """After an update: what the first one, and all of them, did to the entropy of the probe's states."""
    if run.metrics["step"] == 1 and mini.index == 0 and mini.selected is not None:
        run.folder.say(f"{run.cfg.loss} selects {int(mini.selected.sum())} of the first mini-batch's {mini.n_tokens} tokens")
    if run.probe and mini.index == 0 and not last:
        run.metrics |= run.probe.change("first")
    if run.probe and last:
        run.metrics |= run.probe.change("step")
        run.probe = None  # before the sampler takes its memory back


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


def response_metrics(groups: list[list], tokens: dict[str, Tensor]) -> dict[str, float]:
    """cov/response: Section 3.3's covariance, mean over the groups; _acc_25: over groups of accuracy in (0, 0.25]..."""
    lengths = torch.tensor([len(r.tokens) for group in groups for r in group])
    means = torch.stack([part.mean() if len(part) else part.sum()
                         for part in tokens["old_logprobs"].cpu().split(lengths.tolist())])
    shape = len(groups), len(groups[0])
    # in float64: the mean of equal numbers is then that number
    advantages = torch.tensor([[float(r.advantages.mean(dtype=float)) for r in group] for group in groups])  # [P, G]
    cov = response_cov(means.view(shape), advantages)                                                        # [P]
    right = torch.tensor([[r.score.status == "right" for r in group] for group in groups])
    quarter = (right.float().mean(1) * 4).ceil()                                                             # [P]
    metrics = {"cov/response": cov.mean().item()}
    for q in range(1, 5):
        if (quarter == q).any():
            metrics[f"cov/response_acc_{25 * q}"] = cov[quarter == q].mean().item()
    return metrics


def update_metrics(minis: list) -> dict[str, float]:
    """Means over a step's updates, or over the tokens that they trained on; skipped ones are counted. Collective."""
    done = [mini for mini in minis if mini.sums is not None]
    metrics = {"actor/skipped": len(minis) - len(done)} if minis else {}
    if not done:
        return metrics
    metrics["actor/grad_norm"] = torch.stack([mini.sums.pop("grad_norm") for mini in done]).mean().item()
    keys = list(done[0].sums)
    sums = torch.stack([sum(mini.sums[key] for mini in done) for key in keys])
    dist.all_reduce(sums)
    for key, value in zip(keys, (sums / sum(mini.n_tokens for mini in done)).tolist()):
        metrics["cov/selected" if key == "selected" else f"actor/{key}"] = value
    return metrics


def joined(minis: list) -> dict[str, Tensor]:
    """The tokens of a whole step, name -> [N]."""
    return {name: torch.cat([mini.tokens[name] for mini in minis]) for name in minis[0].tokens}


# =========================================================================================================
# Which tokens does a method select?
# =========================================================================================================


def selected_metrics(minis: list) -> dict[str, float]:
    """Means over the selected ones of a step's tokens. {} if none is."""
    if not minis or minis[0].selected is None:
        return {}
    overlaps = [((mini.selected & mini.by_old).sum() / mini.selected.sum()).item() for mini in minis[1:]
                if mini.selected is not mini.by_old and mini.selected.any()]
    metrics = {"cov/overlap": sum(overlaps) / len(overlaps)} if overlaps else {}
    selected = torch.cat([mini.selected for mini in minis])
    chosen = {name: value[selected] for name, value in joined(minis).items()}
    if not selected.any():
        return metrics
    members = quadrants(chosen["old_logprobs"], chosen["entropy"], chosen["advantages"])
    return {**metrics, **{f"selected/{name}": member.float().mean().item() for name, member in members.items()},
            "selected/prob": chosen["old_logprobs"].exp().mean().item(),
            "selected/entropy": chosen["entropy"].mean().item()}


def selected_rows(tokenizer, sampled: list[list], minis: list) -> list[dict] | None:
    """One row a selected token: what it is, where it stands, what the rollout's policy thought of it.

    cov is centred on the step; the selection centres on its mini-batch, under the policy of that moment. At most
    MAX_ROWS, the first ones; None where nothing is selected.
    """
    if not minis or minis[0].selected is None:
        return None
    selected, tokens = torch.cat([mini.selected for mini in minis]), joined(minis)
    cov = token_cov(tokens["old_logprobs"], tokens["advantages"], torch.ones_like(selected))[selected].tolist()
    chosen = {name: value[selected].cpu() for name, value in tokens.items()}
    members = quadrants(chosen["old_logprobs"], chosen["entropy"], chosen["advantages"])
    place = {id(group): g for g, group in enumerate(sampled)}  # the group's number in samples/ too
    responses = [(place[id(group)], i, r.tokens) for mini in minis for group in mini.groups for i, r in enumerate(group)]
    starts = np.cumsum([0] + [len(ids) for _, _, ids in responses])
    rows = []
    for k, n in enumerate(selected.nonzero()[:MAX_ROWS, 0].tolist()):
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

    def __init__(self, policy, groups: list[list], n_first: int, n_states: int, budget: int, device):
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
        """probe/<name>/*: mean entropy change, exact and predicted; how well each prediction agrees, state by state."""
        parts = [self.changes(m, before, after) for m, before, after in zip(self.batches, self.before, self.logits())]
        table = {key: over_all_ranks([part[key] for part in parts], self.batches, self.n_tokens) for key in parts[0]}
        where = torch.arange(0, self.n_tokens, self.stride, device=table["exact"].device)
        table = {key: value[where] for key, value in table.items()}                                          # [S]
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

    @staticmethod
    def changes(m, before: Tensor, after: Tensor) -> dict[str, Tensor]:
        """entropy_change at a micro-batch's states, 128 at a time (in float64 over the vocabulary). -> [B, T] each"""
        split = [x.split(128) for x in (before, after, m.targets[m.mask], m.advantages[m.mask])]
        parts = [entropy_change(*chunk) for chunk in zip(*split)]
        zeros = torch.zeros(m.mask.shape, dtype=torch.double, device=m.mask.device)
        return {key: zeros.masked_scatter(m.mask, torch.cat([part[key] for part in parts])) for key in parts[0]}


def agreement(predicted: Tensor, exact: Tensor, slope: float | None = None) -> dict[str, float]:
    """Of predicted and exact entropy changes [S]: least-squares slope through 0, correlation, and the share of
    sum(exact^2) that slope * predicted explains; `slope` None: the fitted one. {} if nothing moved."""
    if len(exact) < 2 or not exact.any() or not predicted.any():
        return {}
    fitted = (predicted @ exact / (predicted @ predicted)).item()
    residual = exact - (fitted if slope is None else slope) * predicted
    return {"slope": fitted, "corr": torch.corrcoef(torch.stack([predicted, exact]))[0, 1].item(),
            "explained": 1 - (residual @ residual / (exact @ exact)).item()}


@torch.no_grad()
def response_cov(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Section 3.3: a response is one action. Cov(log pi, pi A) over the G responses of each prompt. -> [P]

    logprobs [P, G] are means over the tokens of a response (nats a token), pi is their exp; advantages [P, G].
    """
    weighted = logprobs.exp() * advantages
    return ((logprobs - logprobs.mean(1, keepdim=True)) * (weighted - weighted.mean(1, keepdim=True))).mean(1)


@torch.no_grad()
def entropy_change(before: Tensor, after: Tensor, targets: Tensor, advantages: Tensor) -> dict[str, Tensor]:
    """What an update did to the entropy at S states, and what the theory says that it does. -> [S] each, nats

    before, after: logits / temperature [S, V]; targets [S]: the token sampled at the state; advantages [S]: its A.
    exact        H(after) - H(before)
    first_order  -Cov_{a ~ pi}(log pi, dz) over the whole vocabulary (Lemma 1); nothing is fitted
    theorem_1    -(log pi(y) + H) pi(y) A: one sample of -Cov(log pi, pi A), policy gradient, step size 1
    theorem_2    -(log pi(y) + H) A: one sample of -Cov(log pi, A), natural policy gradient, step size 1
    A sample of the covariance, unbiased as E A = 0; not the change that a step on this one sample makes.
    """
    before, after = before.double(), after.double()
    (logprob_y, H), (_, H_after) = logprobs_and_entropy(before, targets), logprobs_and_entropy(after, targets)
    log_pi = before.log_softmax(-1)
    pi = log_pi.exp()
    dz = torch.where(pi > 0, after - before, 0.0)                       # -inf - -inf: an id that cannot be sampled
    centered = torch.where(pi > 0, log_pi + H[:, None], 0.0)
    return {"exact": H_after - H, "first_order": -(pi * centered * dz).sum(-1),
            "theorem_1": -(logprob_y + H) * logprob_y.exp() * advantages, "theorem_2": -(logprob_y + H) * advantages}


def quadrants(logprobs: Tensor, entropy: Tensor, advantages: Tensor) -> dict[str, Tensor]:
    """The sign table of Theorem 2, bool [N] each. Likely: log pi(y) above its mean -H at the state; right: A > 0.

    likely_right and unlikely_wrong tokens lower the entropy, the other two raise it.
    """
    likely, right = logprobs > -entropy, advantages > 0
    return {"likely_right": likely & right, "likely_wrong": likely & ~right,
            "unlikely_right": ~likely & right, "unlikely_wrong": ~likely & ~right}
