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
from loss import LOSSES, SELECT
from support.batches import mini_batches, start_distributed
from support.mechanism import Probe


def responses(n_vocab: int):
    """Seven responses of unequal length to prompts of unequal length; the same on every rank."""
    g = torch.Generator().manual_seed(0)
    ids = lambda n: torch.randint(0, n_vocab, (n,), generator=g).numpy()
    shape = [(3, 9), (5, 2), (4, 17), (6, 1), (3, 12), (7, 5), (2, 8)]
    return [SimpleNamespace(prompt=ids(s), tokens=ids(t), sampler_logprobs=np.zeros(t), text="", reward=0.0,
                            advantages=np.full(t, a, np.float32), score=SimpleNamespace(reward=float(a > 0)))
            for (s, t), a in zip(shape, [1.2, -0.7, 0.4, -1.1, 2.0, -0.3, 0.9])]


def stub_run(cfg, policy, optimizer, device):
    """What select() and update() need of a Run, at its first step."""
    state = {"skipped_in_a_row": 0, "entropy_coeff": cfg.entropy_coeff}
    return SimpleNamespace(cfg=cfg, policy=policy, models={"policy": (policy, optimizer)}, device=device, state=state,
                           metrics={"step": 2})


def mini_batch(rows, budget: int, device):
    return mini_batches([rows], 1, budget, device)[0]


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
    cfg = train.Config(model=model)
    policy, ref_policy = (train.load_policy(cfg, tokenizer, device).double() for _ in range(2))
    noise = torch.Generator().manual_seed(1)
    for p in ref_policy.parameters():  # a reference that differs from the policy
        whole = 0.05 * torch.randn(p.shape, generator=noise, dtype=torch.double)
        add(p, whole)
    old = copy.deepcopy({k: v.clone() for k, v in policy.state_dict().items()})
    optimizer = GradientAsStep(policy.parameters(), lr=1.0)  # before a forward pass: the parameters are sharded
    rows = responses(len(tokenizer))
    results, probes, prime = {}, {}, {}

    def record(key, cfg, mini):
        train.update(stub_run(cfg, policy, optimizer, device), mini)
        total = mini.sums["pg_loss"].clone()
        dist.all_reduce(total)
        results[key] = {"gradient": torch.cat([g.flatten() for g in optimizer.gradient]), "selected": mini.selected,
                        "n": mini.n_tokens, "n_micro": len(mini.batches), "loss": total / mini.n_tokens}

    for budget in (1, 48, 10**6):  # one row a micro-batch; about two; all
        policy.reshard()
        policy.load_state_dict(old)
        mini = mini_batch(rows, budget, device)
        batches = mini.batches
        for m, (logprobs, entropy), (ref, _) in zip(batches, train.no_grad_pass(policy, batches),
                                                    train.no_grad_pass(ref_policy, batches)):
            m.old_logprobs, m.entropy, m.ref_logprobs = logprobs, entropy, ref
        mini.tokens = {k: mini.over_all_ranks([getattr(m, k) for m in batches])
                       for k in ("old_logprobs", "entropy", "advantages")}
        probe = Probe(policy, [rows], n_first=3, n_states=27, budget=budget, device=device)
        for stage in ("on-policy", "moved"):
            if stage == "moved":  # as after an optimizer step: ratios are no longer 1, some are clipped
                policy.reshard()
                noise = torch.Generator().manual_seed(2)
                for p in policy.parameters():
                    whole = 0.03 * torch.randn(p.shape, generator=noise, dtype=torch.double)
                    add(p, whole)
            mini.index = int(stage == "moved")  # the selection then takes the scores of the policy as it is
            for loss in LOSSES:
                for selection in ("cov", "random") if loss in ("clip_cov", "kl_cov") else ("cov",):
                    cfg = train.Config(loss=loss, selection=selection, clip_cov_ratio=0.1, clip_cov_lb=0.0,
                                       clip_cov_ub=50.0, kl_cov_ratio=0.1, max_grad_norm=1e9)
                    mini.selected = train.select(stub_run(cfg, policy, optimizer, device), mini)
                    assert (mini.selected is not None) == (loss in SELECT)
                    record((stage, loss, selection, budget), cfg, mini)
        mini.selected = None
        record(("moved", "ref_kl", "tis", budget), train.Config(loss="ref_kl", tis_cap=0.2, max_grad_norm=1e9), mini)
        for m in batches:  # the sampler's log-probs of these responses are 0, and the cap is 0.2
            m.advantages = m.advantages * m.old_logprobs.exp().clamp(max=0.2)
        record(("moved", "ref_kl", "tis by hand", budget), train.Config(loss="ref_kl", max_grad_norm=1e9), mini)
        probes[budget] = probe.change("first")
        cfg = train.Config(advantage="prime", group_size=len(rows), mini_batch_prompts=1, micro_batch_tokens=budget, max_grad_norm=1e9)
        run = stub_run(cfg, policy, optimizer, device)  # the policy as it is now stands for the reward model
        run.ref_policy, run.models = ref_policy, {"prm": (policy, optimizer)}
        advantages = train.prime(run, [rows], torch.tensor([len(r.tokens) for r in rows]))
        prime[budget] = {"gradient": torch.cat([g.flatten() for g in optimizer.gradient]), "advantages": advantages, **run.metrics}
    policy.reshard(), ref_policy.reshard()
    states = {name: {k.removeprefix("model."): full(v) for k, v in state.items()}  # every rank: full() is collective
              for name, state in (("state", policy.state_dict()), ("old", old), ("ref", ref_policy.state_dict()))}
    if dist.get_rank() == 0:
        names = [name for name, _ in policy.model.named_parameters()]
        torch.save({"results": results, "probes": probes, "prime": prime, "names": names, **states}, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
