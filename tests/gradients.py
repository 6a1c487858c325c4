"""Gradients of train.update() for every loss and several micro-batch sizes, saved to a file; test_train.py runs it
under torchrun on 1 and 2 ranks and compares. Usage: gradients.py MODEL OUT"""

import copy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
import train
from loss import LOSSES
from measure import Probe
from policy import load_policy, micro_batches, no_grad_pass, over_all_ranks, start_distributed


def responses(n_vocab: int):
    """Seven responses of unequal length to prompts of unequal length; the same on every rank."""
    g = torch.Generator().manual_seed(0)
    ids = lambda n: torch.randint(0, n_vocab, (n,), generator=g).numpy()
    shape = [(3, 9), (5, 2), (4, 17), (6, 1), (3, 12), (7, 5), (2, 8)]
    return [SimpleNamespace(prompt=ids(s), tokens=ids(t), sampler_logprobs=np.zeros(t), advantage=a)
            for (s, t), a in zip(shape, [1.2, -0.7, 0.4, -1.1, 2.0, -0.3, 0.9])]


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def add(p, whole):
    p.data += torch.distributed.tensor.distribute_tensor(whole, p.device_mesh, p.placements) if isinstance(p, DTensor) else whole


class GradientAsStep(torch.optim.SGD):
    """Keeps the gradient instead of taking the step."""

    def step(self):
        self.gradient = [full(p.grad).clone() for p in self.param_groups[0]["params"]]


def main(model: str, out: str):
    device = start_distributed()
    tokenizer = AutoTokenizer.from_pretrained(model)
    policy = load_policy(model, tokenizer, device).double()
    ref_policy = load_policy(model, tokenizer, device).double()
    noise = torch.Generator().manual_seed(1)
    for p in ref_policy.parameters():  # a reference that differs from the policy
        whole = 0.05 * torch.randn(p.shape, generator=noise, dtype=torch.double)
        add(p, whole)
    old = copy.deepcopy({k: v.clone() for k, v in policy.state_dict().items()})
    optimizer = GradientAsStep(policy.parameters(), lr=1.0)  # before a forward pass: the parameters are sharded
    rows = responses(len(tokenizer))
    results, probes = {}, {}
    for budget in (1, 48, 10**6):  # one row a micro-batch; about two; all
        policy.reshard()
        policy.load_state_dict(old)
        batches, N = micro_batches(rows, budget, device)
        for m, (logprobs, entropy), (ref, _) in zip(batches, no_grad_pass(policy, batches), no_grad_pass(ref_policy, batches)):
            m.old_logprobs, m.entropy, m.ref_logprobs = logprobs, entropy, ref
        tokens = {k: over_all_ranks([getattr(m, k) for m in batches], batches, N)
                  for k in ("old_logprobs", "entropy", "advantages")}
        probe = Probe(policy, [rows], n_first=3, n_states=27, budget=budget, device=device)
        for stage in ("on-policy", "moved"):
            if stage == "moved":  # as after an optimizer step: ratios are no longer 1, some are clipped
                policy.reshard()
                noise = torch.Generator().manual_seed(2)
                for p in policy.parameters():
                    whole = 0.03 * torch.randn(p.shape, generator=noise, dtype=torch.double)
                    add(p, whole)
            now = over_all_ranks([lp for lp, _ in no_grad_pass(policy, batches)], batches, N)
            for loss in LOSSES:
                for selection in ("cov", "random") if loss in ("clip_cov", "kl_cov") else ("cov",):
                    cfg = train.Config(loss=loss, selection=selection, clip_cov_ratio=0.1, clip_cov_lb=0.0,
                                       clip_cov_ub=50.0, kl_cov_ratio=0.1, max_grad_norm=1e9)
                    selects = loss in ("clip_cov", "kl_cov", "top_entropy")
                    selected = train.select_tokens(cfg, now, tokens, seed=3) if selects else None
                    stats = train.update(cfg, policy, optimizer, batches, N, selected)
                    results[stage, loss, selection, budget] = {
                        "gradient": torch.cat([g.flatten() for g in optimizer.gradient]),
                        "selected": selected, "n": N, "n_micro": len(batches)}
                    total = stats["pg_loss"].clone()
                    dist.all_reduce(total)
                    results[stage, loss, selection, budget]["loss"] = total / N
        for selection in ("tis", "tis by hand"):  # the sampler's log-probs of these responses are 0, and the cap is 0.2
            cfg = train.Config(loss="ref_kl", tis_cap=0.2 if selection == "tis" else None, max_grad_norm=1e9)
            if selection == "tis by hand":
                for m in batches:
                    m.advantages = m.advantages * m.old_logprobs.exp().clamp(max=0.2)
            stats = train.update(cfg, policy, optimizer, batches, N, None)
            total = stats["pg_loss"].clone()
            dist.all_reduce(total)
            results["moved", "ref_kl", selection, budget] = {
                "gradient": torch.cat([g.flatten() for g in optimizer.gradient]), "selected": None, "n": N,
                "n_micro": len(batches), "loss": total / N}
        probes[budget] = probe.change("first")
    policy.reshard(), ref_policy.reshard()
    states = {name: {k.removeprefix("model."): full(v) for k, v in state.items()}  # every rank: full() is collective
              for name, state in (("state", policy.state_dict()), ("old", old), ("ref", ref_policy.state_dict()))}
    if dist.get_rank() == 0:
        names = [name for name, _ in policy.model.named_parameters()]
        torch.save({"results": results, "probes": probes, "names": names, **states}, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
