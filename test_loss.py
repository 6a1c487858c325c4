"""The specification of loss.py:  pytest test_loss.py

Every expected value is a number worked out by hand, a law of the papers, or the output of `slow` below, which
states each published loss and its derivative for one token at a time in plain Python floats.
"""
import inspect
import math
import statistics
from collections import Counter
from functools import partial
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch

import loss

INF, NAN = float("inf"), float("nan")
PPO_CLIP = dict(clip_ratio_low=0.2, clip_ratio_high=0.2)
# a loss's options, the paper's values; a test that needs others says so
SETTINGS = {"pg": {}, "grpo": PPO_CLIP, "clip_higher": dict(clip_ratio_low=0.2, clip_ratio_high=0.28),
            "clip_cov": dict(clip_cov_ratio=2e-4, clip_cov_lb=1.0, clip_cov_ub=5.0, clip_ratio_low=1.0, clip_ratio_high=1.0),
            "kl_cov": dict(kl_cov_ratio=2e-3, ppo_kl_coef=1.0), "entropy_bonus": dict(entropy_coeff=0.01, **PPO_CLIP),
            "ref_kl": dict(kl_loss_coef=0.1, **PPO_CLIP),
            "top_entropy": dict(top_entropy_ratio=0.2, keep="top", clip_ratio_low=0.2, clip_ratio_high=0.28)}
every_loss = pytest.mark.parametrize("name", loss.LOSSES)
IN_SLOW = {"pg", "grpo", "clip_higher", "clip_cov", "kl_cov", "entropy_bonus", "ref_kl", "top_entropy"}   # see `slow`
seeds = pytest.mark.parametrize("seed", range(3))


# ---------------------------------------------------------------------- slow, obvious re-computation
def ppo(logp, old, adv, low, high):
    """-A * ratio, its derivative with respect to logp, and whether PPO holds the token: past the bound in the
    direction of its advantage it is a constant. The log ratio is clamped to [-20, 20]."""
    ratio = math.exp(max(-20.0, min(20.0, logp - old)))
    if adv > 0 and ratio > 1 + high:
        return -adv * (1 + high), 0.0, True
    if adv < 0 and ratio < 1 - low:
        return -adv * (1 - low), 0.0, True
    return -adv * ratio, -adv * ratio if abs(logp - old) < 20 else 0.0, False


def slow(name, b, low=0.2, high=0.2, coef=0.0, chosen=()):
    """The published algorithm: scalar loss, its gradient [B, T] by logprobs, the tokens that PPO holds."""
    if name in ("pg", "kl_cov"):
        low = high = INF
    value, grad, held = 0.0, torch.zeros(b.mask.shape, dtype=torch.float64), set()
    for k in to_set(b.mask):
        logp, old = b.logprobs[k].item(), b.old[k].item()
        token_loss, slope, is_held = ppo(logp, old, b.advantages[k].item(), low, high)
        held |= {k} if is_held else set()
        if name == "kl_cov" and k in chosen:
            token_loss += coef * abs(logp - old)
            slope += coef * math.copysign(1.0, logp - old)
        if name == "clip_cov" and k in chosen or name == "top_entropy" and k not in chosen:
            token_loss, slope = 0.0, 0.0
        if name == "entropy_bonus":
            token_loss -= coef * b.entropy[k].item()
        if name == "ref_kl":
            d = b.ref[k].item() - logp
            token_loss += coef * (math.exp(d) - d - 1)
            slope += coef * (1 - math.exp(d))
        n_averaged = len(chosen) if name == "top_entropy" else b.mask.sum().item()
        value += token_loss / n_averaged
        grad[k] = slope / n_averaged
    return SimpleNamespace(value=value, grad=grad, held=held)


def slow_cov(b):
    """Eq. 10: centred log-prob times centred advantage; both means over the valid tokens."""
    valid = to_set(b.mask)
    mean_logp = sum(b.logprobs[k].item() for k in valid) / len(valid)
    mean_adv = sum(b.advantages[k].item() for k in valid) / len(valid)
    return {k: (b.logprobs[k].item() - mean_logp) * (b.advantages[k].item() - mean_adv) for k in valid}


def slow_top(score, ratio):
    """The max(1, int(ratio * N)) tokens with the largest score."""
    return set(sorted(score, key=score.get, reverse=True)[:max(1, int(ratio * len(score)))])


def to_set(mask):
    return set(map(tuple, mask.nonzero().tolist()))


# ---------------------------------------------------------------------- the same from loss.py
def fast(name, b, **settings):
    logprobs = b.logprobs.detach().clone().requires_grad_()
    token_loss, stats = loss.LOSSES[name](logprobs, b.old, b.advantages, b.mask, **SETTINGS[name] | settings)
    value = loss.masked_mean(token_loss, b.mask)
    grad, = torch.autograd.grad(value, logprobs)
    return SimpleNamespace(value=value.item(), grad=grad, token_loss=token_loss.detach(), stats=stats)


def assert_same(got, want):
    assert got.value == pytest.approx(want.value, abs=1e-6)
    torch.testing.assert_close(got.grad, want.grad, rtol=0, atol=1e-6)
    if "pg_clipfrac" in got.stats:                     # PPO's clipping alone, whatever else a method drops
        assert to_set(got.stats["pg_clipfrac"] == 1) == want.held


def make_batch(B=5, T=12, seed=0):
    """Right-padded rows; heavy-tailed log-probs, one advantage a row, ratios on both sides of every clip."""
    g = torch.Generator().manual_seed(seed)
    noise, logprobs = torch.randn(4, B, T, generator=g), 0.7 * torch.rand(B, T, generator=g).log() - 0.01
    b = SimpleNamespace(
        logprobs=logprobs, old=logprobs + 0.4 * noise[0], ref=logprobs + 0.4 * noise[1],
        advantages=1.5 * noise[2, :, :1].expand(B, T),
        entropy=torch.linspace(0.1, 3.0, B * T)[torch.randperm(B * T, generator=g)].view(B, T),
        mask=torch.arange(T) < torch.randint(T // 2, T + 1, (B, 1), generator=g))
    return cast(b, torch.float64)


def map_batch(b, f):
    return SimpleNamespace(**{name: f(x) for name, x in vars(b).items()})


def cast(b, dtype):
    return map_batch(b, lambda x: x.to(dtype) if x.is_floating_point() else x)


def hyper(name, b):
    """Settings under which a loss is deterministic and its selection acts on a small batch, and the tensors it asks for."""
    names = inspect.signature(loss.LOSSES[name]).parameters
    tensors = {key: x for key, x in (("entropy", b.entropy), ("ref_logprobs", b.ref)) if key in names}
    small = {"clip_cov": dict(clip_cov_ratio=0.9, clip_cov_lb=0.1, **PPO_CLIP), "kl_cov": dict(kl_cov_ratio=0.2)}
    return SETTINGS[name] | small.get(name, {}) | tensors


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


# ---------------------------------------------------------------------- means, log-probs, entropy
def test_masked_mean_weighs_tokens_and_ignores_garbage():
    x, mask = torch.zeros(2, 9), torch.ones(2, 9, dtype=torch.bool)
    x[0, 0], mask[0, 1:] = 1.0, False                  # row 0: one token with loss 1; row 1: nine with loss 0
    assert loss.masked_mean(x, mask).item() == pytest.approx(0.1)
    x = torch.tensor([[2.0, NAN, INF, 4.0]], requires_grad=True)
    mean = loss.masked_mean(x, torch.tensor([[True, False, False, True]]))
    assert mean.item() == 3.0
    assert torch.autograd.grad(mean, x)[0].tolist() == [[0.5, 0.0, 0.0, 0.5]]
    assert loss.masked_mean(x, torch.zeros(1, 4, dtype=torch.bool)).item() == 0.0


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_and_entropy_are_those_of_the_sampled_policy(temperature):
    g = torch.Generator().manual_seed(0)
    z = (3 * torch.randn(2, 5, 7, generator=g, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(7, (2, 5), generator=g)
    logp, entropy = loss.logprobs_and_entropy(z, targets, temperature=temperature)
    y = z.detach() / temperature
    p = y.softmax(-1)
    H = y.logsumexp(-1) - (p * y).sum(-1)
    torch.testing.assert_close(entropy.detach(), H)
    torch.testing.assert_close(logp.detach().exp(), p.gather(-1, targets[..., None])[..., 0])
    d_logp, = torch.autograd.grad(logp.sum(), z, retain_graph=True)
    torch.testing.assert_close(d_logp, (torch.nn.functional.one_hot(targets, 7) - p) / temperature)
    d_entropy, = torch.autograd.grad(entropy.sum(), z)                        # -pi (log pi + H), see Lemma 1
    torch.testing.assert_close(d_entropy, -p * (p.log() + H[..., None]) / temperature)
    with pytest.raises(ValueError):
        loss.logprobs_and_entropy(z, targets, temperature=0.0)                # greedy decoding


def test_entropy_by_hand_and_its_bounds():
    logp, entropy = loss.logprobs_and_entropy(row(0.7, 0.2, 0.1).log() + 3, torch.tensor([1]))
    assert entropy.item() == pytest.approx(0.8018, abs=5e-5) and logp.item() == pytest.approx(math.log(0.2))
    _, uniform = loss.logprobs_and_entropy(torch.full((4, 151), -7.0), torch.zeros(4, dtype=torch.long))
    torch.testing.assert_close(uniform, torch.full((4,), math.log(151)))
    for scale in (0.01, 1.0, 15.0, 100.0):             # nearly certain tokens are most of a chain of thought
        z = scale * torch.randn(2000, 200, generator=torch.Generator().manual_seed(0)) + 10
        logp, entropy = loss.logprobs_and_entropy(z, z.argmax(-1))
        assert (entropy >= 0).all() and (entropy <= math.log(200) + 1e-5).all() and (logp <= 0).all()


def test_ids_with_a_logit_of_minus_infinity_do_not_exist():
    z = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    padded, targets = torch.nn.functional.pad(z, (0, 2), value=-INF).requires_grad_(), torch.tensor([0, 5, 2])
    got, want = loss.logprobs_and_entropy(padded, targets), loss.logprobs_and_entropy(z, targets)
    torch.testing.assert_close(torch.stack(got), torch.stack(want))
    grad, = torch.autograd.grad(100 * (got[0].sum() + got[1].sum()), padded)
    assert grad.isfinite().all() and (grad[:, 6:] == 0).all()


def test_bf16_logits_are_processed_in_float32():
    z = (5 * torch.randn(64, 300, generator=torch.Generator().manual_seed(0))).bfloat16()
    got, want = (torch.stack(loss.logprobs_and_entropy(x, torch.arange(64), 0.7)) for x in (z, z.double()))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- advantages
def test_group_advantages_by_hand():
    close = lambda got, want: torch.testing.assert_close(got, torch.tensor(want), rtol=0, atol=1e-4)
    close(loss.grpo_advantages(torch.tensor([[1.0] + [0.0] * 7])), [[2.4749] + [-0.3536] * 7])       # ddof 1
    close(loss.grpo_advantages(torch.tensor([[1.0, 0.0], [1.0, 1.0]])), [[0.7071, -0.7071], [0.0, 0.0]])
    close(loss.grpo_advantages(torch.tensor([[1.0, 0, 0, 0]]), normalize_std=False), [[0.75] + [-0.25] * 3])
    close(loss.rloo_advantages(torch.tensor([[1.0] * 3 + [0.0] * 5])), [[0.7143] * 3 + [-0.4286] * 5])
    tiny = loss.grpo_advantages(row(0.0, 1e-5))        # std 1e-5 / sqrt(2); eps 1e-6 is added to the std
    assert tiny[0, 1].item() == pytest.approx(5e-6 / (1e-5 / math.sqrt(2) + 1e-6), rel=1e-9)
    rewards = [0.1, 0.7, 0.4, 0.9]                     # RLOO: own reward minus the mean of the others
    assert loss.rloo_advantages(row(*rewards))[0].tolist() == pytest.approx(
        [r - (sum(rewards) - r) / 3 for r in rewards])


def test_equal_rewards_give_exactly_zero_and_a_group_of_one_is_an_error():
    rewards = torch.tensor([[value] * 8 for value in (0.7, 0.95, 0.35, 0.0, 1.0)] + [[1.0, 0.0] * 4])
    for f in (loss.grpo_advantages, loss.rloo_advantages, partial(loss.grpo_advantages, normalize_std=False)):
        assert (f(rewards)[:5] == 0).all() and (f(rewards)[5] != 0).all()
        assert (f(row(0.5, 0.5 + 5e-7)) == 0).all()
        with pytest.raises(ValueError):
            f(torch.ones(3, 1))


def test_reinforce_pp_whitens_over_all_tokens():
    rewards, lengths = row(1.0, 0.0, 0.2, 0.5, 1.0, 1.0).view(2, 3), torch.tensor([[3, 1, 7], [2, 5, 4]])
    close = lambda x, y: torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)
    for f, score in ((loss.reinforce_pp_advantages, rewards),
                     (loss.reinforce_pp_baseline_advantages, rewards - row(0.4, 2.5 / 3).T)):
        per_token = score.flatten().repeat_interleave(lengths.flatten()).tolist()
        close(f(rewards, lengths), (score - statistics.mean(per_token)) / statistics.stdev(per_token))
        close(f(3 * rewards - 1, lengths), f(rewards, lengths))
        equal = f(torch.full((2, 4), 0.7), torch.full((2, 4), 6))
        assert equal.isfinite().all() and equal.abs().max() < 1e-2
        assert f(torch.tensor([[1.0, 0.0]]), torch.tensor([[1, 0]])).isfinite().all()      # one token in all
    shifted = loss.reinforce_pp_baseline_advantages(rewards + row(5.0, -2.0).T, lengths)
    close(shifted, loss.reinforce_pp_baseline_advantages(rewards, lengths))   # blind to a prompt's difficulty


def slow_prime(q, rewards, lengths):
    """The published arithmetic of PRIME, a response at a time: q [B][T], rewards [P][G] -> returns before whitening."""
    returns, G = [], len(rewards[0])
    for p, group in enumerate(rewards):
        rows = range(p * G, (p + 1) * G)
        means = [statistics.fmean(q[b][:lengths[b]]) for b in rows]
        for b, r in zip(rows, group):
            process = [G / (G - 1) * v - sum(means) / (G - 1) for v in q[b][:lengths[b]]]
            total = [5 * v for v in process]
            total[-1] += 5 * (r - (sum(group) - r) / (G - 1))                 # leave-one-out, at the last token
            returns.append([sum(total[t:]) for t in range(lengths[b])])
    return returns


@seeds
def test_prime_is_the_published_arithmetic(seed):
    g = torch.Generator().manual_seed(seed)
    q, lengths = torch.randn(8, 9, generator=g, dtype=torch.float64), torch.randint(1, 10, (8,), generator=g)
    rewards = row(1.0, 0, 0, 1, 0, 1, 1, 1).view(2, 4)
    mask = torch.arange(9) < lengths[:, None]
    got = loss.prime_advantages(q, rewards, mask)
    returns = slow_prime(q.tolist(), rewards.tolist(), lengths.tolist())
    flat = [v for r in returns for v in r]
    want = [(v - statistics.fmean(flat)) / statistics.stdev(flat) for v in flat]
    torch.testing.assert_close(got[mask], row(*want)[0], rtol=0, atol=1e-5)
    assert (got[~mask] == 0).all()
    padded = torch.nn.functional.pad(torch.where(mask, q, NAN), (0, 4), value=INF)
    wide = loss.prime_advantages(padded, rewards, torch.nn.functional.pad(mask, (0, 4)))
    torch.testing.assert_close(wide[:, :9], got)
    swapped = loss.prime_advantages(q[[4, 5, 6, 7, 0, 1, 2, 3]], rewards[[1, 0]], mask[[4, 5, 6, 7, 0, 1, 2, 3]])
    torch.testing.assert_close(swapped[[4, 5, 6, 7, 0, 1, 2, 3]], got)        # the order of the prompts means nothing


def test_prime_by_hand():
    """One group of two: q = (0.2, 0.4) right and (-0.1) wrong. Means 0.3 and -0.1, so the process rewards are
    2 q - 0.2 = (0.2, 0.6) and (-0.4); outcomes +1 and -1. Returns 5 (0.2 + 0.6 + 1), 5 (0.6 + 1), 5 (-0.4 - 1)."""
    mask = torch.tensor([[True, True], [True, False]])
    got = loss.prime_advantages(torch.tensor([[0.2, 0.4], [-0.1, 9.0]]).double(), row(1.0, 0.0), mask)
    returns = [9.0, 8.0, -7.0]
    want = [(v - 10 / 3) / statistics.stdev(returns) for v in returns]
    assert got[mask].tolist() == pytest.approx(want, abs=1e-6) and got[1, 1] == 0


def test_the_implicit_reward_model_learns_the_verdicts():
    ref, mask = row(-1.0, -2.0, -0.5).repeat(2, 1), torch.tensor([[True, True, True], [True, True, False]])
    prm = ref + torch.tensor([[1.0, 2.0, 3.0], [-4.0, 0.0, NAN]]).double()    # sums of q: 6 and -4
    right, beta = torch.tensor([1.0, 0.0]), 0.05
    want = -(math.log(1 / (1 + math.exp(-0.3))) + math.log(1 - 1 / (1 + math.exp(0.2)))) / 2
    prm.requires_grad_()
    value = loss.implicit_prm_loss(prm, ref, right, mask, beta=beta)
    assert value.item() == pytest.approx(want)
    grad, = torch.autograd.grad(value, prm)                                   # beta (sigmoid - right) / B on each token
    assert grad[0].tolist() == pytest.approx([0.05 * (1 / (1 + math.exp(-0.3)) - 1) / 2] * 3)
    assert grad[1].tolist() == pytest.approx([0.05 / (1 + math.exp(0.2)) / 2] * 2 + [0.0])
    assert loss.implicit_prm_loss(ref, ref, right, mask, beta=beta).item() == pytest.approx(math.log(2))


# ---------------------------------------------------------------------- the published algorithms, to 1e-6
@seeds
def test_losses_without_selection(seed):
    b = make_batch(seed=seed)
    assert_same(fast("pg", b), slow("pg", b))
    assert_same(fast("grpo", b), slow("grpo", b, 0.2, 0.2))
    assert_same(fast("grpo", b, clip_ratio_low=0.1, clip_ratio_high=0.3), slow("grpo", b, 0.1, 0.3))
    assert_same(fast("clip_higher", b), slow("clip_higher", b, 0.2, 0.28))
    bonus = fast("entropy_bonus", b, entropy=b.entropy, entropy_coeff=0.3)
    assert_same(bonus, slow("entropy_bonus", b, coef=0.3))
    assert_same(fast("ref_kl", b, ref_logprobs=b.ref, kl_loss_coef=0.5), slow("ref_kl", b, coef=0.5))


@seeds
def test_kl_cov_is_the_published_algorithm(seed):
    b = make_batch(seed=seed)
    chosen = slow_top(slow_cov(b), 0.2)
    got = fast("kl_cov", b, kl_cov_ratio=0.2, ppo_kl_coef=1.5)
    assert to_set(got.stats["selected"]) == chosen and len(chosen) > 3
    assert_same(got, slow("kl_cov", b, coef=1.5, chosen=chosen))
    selected = torch.rand(b.mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    got = fast("kl_cov", b, selected=selected)                                # given, also in the padding
    assert_same(got, slow("kl_cov", b, coef=1.0, chosen=to_set(selected & b.mask)))


@seeds
@pytest.mark.parametrize("low, high", [(0.2, 0.2), (0.2, 0.3), (1.0, 1.0)])
def test_clip_cov_is_the_published_algorithm(seed, low, high):
    b, g = make_batch(seed=seed, T=40), torch.Generator().manual_seed(seed)
    bounds = dict(clip_ratio_low=low, clip_ratio_high=high)
    band = {k for k, c in slow_cov(b).items() if 1.0 < c < 5.0}
    candidates = band - slow("clip_cov", b, low, high).held
    assert candidates and (low == 1.0 or candidates != band), "a weak batch: PPO holds no token of the band"

    everyone = fast("clip_cov", b, clip_cov_ratio=0.9, **bounds)              # quota above the candidates
    assert to_set(everyone.stats["selected"]) == candidates
    assert_same(everyone, slow("clip_cov", b, low, high, chosen=candidates))

    selected = everyone.stats["selected"] & (torch.rand(b.mask.shape, generator=g) < 0.5)
    assert_same(fast("clip_cov", b, selected=selected, **bounds),
                slow("clip_cov", b, low, high, chosen=to_set(selected)))

    drawn = fast("clip_cov", b, clip_cov_ratio=0.015, generator=g, **bounds)
    chosen = to_set(drawn.stats["selected"])
    assert chosen <= candidates and len(chosen) == int(0.015 * b.mask.sum()) > 1
    assert_same(drawn, slow("clip_cov", b, low, high, chosen=chosen))


@seeds
def test_top_entropy_averages_over_the_kept_tokens(seed):
    b = make_batch(seed=seed)
    entropy = {k: b.entropy[k].item() for k in to_set(b.mask)}
    for ratio, low, high in ((0.2, 0.2, 0.28), (0.1, 0.1, 0.1)):
        top = slow_top(entropy, ratio)
        for keep, kept in (("top", top), ("bottom", set(entropy) - top)):     # J_rho and its 80 % control
            got = fast("top_entropy", b, entropy=b.entropy, top_entropy_ratio=ratio, keep=keep,
                       clip_ratio_low=low, clip_ratio_high=high)
            assert to_set(got.stats["selected"]) == kept
            assert_same(got, slow("top_entropy", b, low, high, chosen=kept))


K3 = math.e - 2                                        # exp(d) - d - 1 at d = 1
# name, ratio, advantage -> loss of the token, whether PPO holds it; the settings that have defaults at them
BY_HAND = [("pg", 2.5, 1, -2.5, None), ("kl_cov", 2.5, 1, -2.5, None), ("kl_cov", 0.1, -1, 0.1, None),
           ("grpo", 1.25, 1, -1.2, 1), ("grpo", 1.25, -1, 1.25, 0), ("grpo", 0.7, 1, -0.7, 0),
           ("grpo", 0.7, -1, 0.8, 1), ("grpo", 1.1, 2, -2.2, 0), ("grpo", 1.5, 0, 0.0, 0),
           ("clip_higher", 1.25, 1, -1.25, 0), ("clip_higher", 1.3, 1, -1.28, 1),
           ("clip_higher", 0.7, -1, 0.8, 1), ("top_entropy", 1.25, 1, -1.25, 0),
           ("top_entropy", 1.3, 1, -1.28, 1), ("top_entropy", 0.7, -1, 0.8, 1),
           ("clip_cov", 2.5, 1, -2.0, 1), ("clip_cov", 1.9, 1, -1.9, 0), ("clip_cov", 0.01, -1, 0.01, 0),
           ("entropy_bonus", 1.25, 1, -1.2 - 0.01 * 0.5, 1), ("entropy_bonus", 0.7, -1, 0.8 - 0.01 * 0.5, 1),
           ("ref_kl", 1.25, 1, -1.2 + 0.1 * K3, 1), ("ref_kl", 0.7, -1, 0.8 + 0.1 * K3, 1)]


@pytest.mark.parametrize("name, ratio, adv, want, held", BY_HAND)
def test_one_token_by_hand(name, ratio, adv, want, held):
    old = row(-1.5, -3.0)                                                     # the second position is padding
    new = old + math.log(ratio)
    settings = hyper(name, SimpleNamespace(entropy=row(0.5, 9.0), ref=new + 1))
    if "cov" in name:
        settings = SETTINGS[name] | dict(selected=torch.tensor([[False, True]]))
    mask = torch.tensor([[True, False]])
    token_loss, stats = loss.LOSSES[name](new, old, row(adv, adv), mask, **settings)
    assert token_loss[0].tolist() == [pytest.approx(want, abs=1e-12), 0.0]
    assert stats["ppo_kl"][0].tolist() == [pytest.approx(-math.log(ratio)), 0.0]             # old - new
    assert stats["ppo_kl_abs"][0].tolist() == [pytest.approx(abs(math.log(ratio))), 0.0]
    assert held is None or stats["pg_clipfrac"][0].tolist() == [held, 0.0]
    assert name != "ref_kl" or stats["kl_loss"][0].tolist() == [pytest.approx(K3), 0.0]


# ---------------------------------------------------------------------- what the penalties do
def test_kl_cov_pulls_the_selected_tokens_only_and_none_on_policy():
    b = make_batch()
    selected = torch.rand(b.mask.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    plain, got = fast("pg", b).grad, fast("kl_cov", b, selected=selected, ppo_kl_coef=2.0).grad
    pull = 2.0 * (b.logprobs - b.old).sign() / b.mask.sum()
    torch.testing.assert_close(got, plain + torch.where(selected & b.mask, pull, 0.0))
    b.old = b.logprobs.clone()                                                # on policy: |0| has gradient 0
    plain, got = fast("pg", b), fast("kl_cov", b, kl_cov_ratio=0.2)
    assert got.value == plain.value and torch.equal(got.grad, plain.grad) and got.stats["selected"].any()


def test_reference_kl_pulls_towards_the_reference():
    for logp, ref in ((-0.5, -1.0), (-1.0, -0.5), (-0.7, -0.7)):
        b = SimpleNamespace(logprobs=row(logp), old=row(logp), advantages=row(0.0), mask=row(1.0) > 0)
        got = fast("ref_kl", b, ref_logprobs=row(ref), kl_loss_coef=1.0)
        step = -0.1 * got.grad.item()                                         # one step of SGD
        assert step * (ref - logp) > 0 and got.value > 0 if ref != logp else step == 0 and got.value == 0


# ---------------------------------------------------------------------- selection
def test_token_cov_by_hand():
    mask = torch.tensor([[True, True, True, False]])
    cov = loss.token_cov(row(-1, -2, -6, NAN).requires_grad_(), row(1, 0, -4, INF), mask)
    assert cov[0, :3].tolist() == [4.0, 1.0, 9.0]                             # (2, 1, -3) times (2, 1, -3)
    assert not cov.requires_grad


def test_selection_counts_are_exact():
    g = torch.Generator().manual_seed(0)
    for N, ratio, count in ((8192, 2e-4, 1), (1024, 2e-4, 1), (10000, 2e-4, 2), (15000, 2e-4, 3), (7, 1, 7),
                            (2500, 2e-3, 5), (2499, 2e-3, 4), (10, 0.2, 2), (4, 0.2, 1), (0, 0.2, 0)):
        mask = (torch.arange(N + 8) < N)[None]
        for score in (torch.randn(1, N + 8, generator=g), torch.zeros(1, N + 8)):         # distinct; all tied
            score, band = score.masked_fill(~mask, INF), dict(lb=-9.0, ub=9.0, n_tokens=N, generator=g)
            for selected in (loss.select_kl_cov(score, mask, ratio=ratio),
                             loss.select_top_entropy(score, mask, ratio=ratio),
                             loss.select_clip_cov(score, mask, ratio=ratio, **band)):
                assert selected.dtype == torch.bool and selected.sum() == count and (mask | ~selected).all()


def test_the_scope_and_the_default_quota_of_a_call():
    b = make_batch(B=8, T=1250)
    b.mask[:] = True
    assert fast("kl_cov", b).stats["selected"].sum() == 20                    # 2e-3 of 10,000 tokens
    assert fast("clip_cov", b).stats["selected"].sum() == 2                   # 2e-4
    assert fast("top_entropy", b, entropy=b.entropy).stats["selected"].sum() == 2000
    b = map_batch(b, lambda x: x[:, :1024])                                   # 8192 tokens: int(1.6384)
    assert fast("kl_cov", b, kl_cov_ratio=2e-4).stats["selected"].sum() == 1
    rows = [map_batch(b, lambda x: x[i:i + 1]) for i in range(8)]             # in one call a row: eight
    assert sum(fast("kl_cov", r, kl_cov_ratio=2e-4).stats["selected"].sum() for r in rows) == 8


@pytest.mark.parametrize("name", loss.SELECT)
def test_a_loss_alone_selects_what_its_select_does(name):
    """On [B, T] and on the flat tokens that the trainer hands over: the same tokens, of the same draw."""
    b = make_batch(T=40)
    flat = map_batch(b, lambda x: x[b.mask])
    settings = hyper(name, b) | ({"clip_cov_ratio": 0.02} if name == "clip_cov" else {})
    seed = lambda: {"generator": torch.Generator().manual_seed(3)} if name == "clip_cov" else {}
    alone = fast(name, b, **settings, **seed()).stats["selected"]
    options = {key: settings[key] for key in inspect.signature(loss.SELECT[name]).parameters if key in settings}
    whole = loss.SELECT[name](b.logprobs, b.old, b.advantages, b.mask, **options, **seed())
    assert torch.equal(alone, whole) and alone.any() and (b.mask | ~alone).all()
    if name != "clip_cov":                                                    # whose draw depends on the shape
        options |= {"entropy": flat.entropy} if "entropy" in options else {}
        assert torch.equal(loss.SELECT[name](flat.logprobs, flat.old, flat.advantages, flat.mask, **options), alone[b.mask])


def test_clip_cov_band_is_open_and_limited_to_candidates():
    cov = row(1.0, 1.001, 3.0, 4.999, 5.0, 7.0, -2.0, 2.0, NAN)
    candidates = torch.tensor([[True] * 7 + [False, False]])
    select = lambda cov, n: to_set(loss.select_clip_cov(
        cov, candidates, ratio=0.5, lb=1.0, ub=5.0, n_tokens=n, generator=torch.Generator().manual_seed(0)))
    assert select(cov, 9) == {(0, 1), (0, 2), (0, 3)}                         # quota 4, three available
    assert len(select(cov, 4)) == 2 and select(cov / 10, 9) == set()


def assert_uniform(draw, population, count, draws=2000):
    """chi-square over all subsets of `count` tokens of the population."""
    subsets = [frozenset(s) for s in combinations(sorted(population), count)]
    seen = Counter(frozenset(to_set(draw())) for _ in range(draws))
    assert set(seen) <= set(subsets)
    chi2 = sum((seen[s] - draws / len(subsets)) ** 2 for s in subsets) / (draws / len(subsets))
    assert chi2 < len(subsets) - 1 + 5 * math.sqrt(2 * (len(subsets) - 1))


def test_random_selections_are_uniform_and_reproducible():
    b, g = make_batch(B=3, T=30, seed=5), torch.Generator().manual_seed(0)
    candidates = {k for k, c in slow_cov(b).items() if 0.4 < c < 5} - slow("grpo", b).held
    assert 4 <= len(candidates) <= 9
    settings = dict(clip_cov_ratio=2.5 / b.mask.sum().item(), clip_cov_lb=0.4, generator=g, **PPO_CLIP)
    assert_uniform(lambda: fast("clip_cov", b, **settings).stats["selected"], candidates, 2)
    mask = torch.tensor([[True, True, False, True], [True, False, True, True]])
    assert_uniform(lambda: loss.select_random(mask, count=2, generator=g), to_set(mask), 2)
    assert loss.select_random(mask, count=0, generator=g).sum() == 0
    assert torch.equal(loss.select_random(mask, count=99, generator=g), mask)
    assert torch.equal(*(loss.select_random(b.mask, count=20, generator=g.manual_seed(7)) for _ in range(2)))


def test_clip_cov_selects_unlikely_wrong_tokens():
    """-log p ~ Exp(mean 0.5), A = +-1: P(1.5 < x < 5.5) / 2 = 2.5 % of tokens in the band, all with A < 0."""
    g = torch.Generator().manual_seed(0)
    logprobs = 0.5 * torch.rand(100, 2000, generator=g, dtype=torch.float64).log()
    advantages, mask = row(1.0, -1.0).T.repeat(50, 2000), torch.ones(100, 2000, dtype=torch.bool)
    settings = SETTINGS["clip_cov"] | dict(clip_cov_ratio=0.05)
    selected = loss.clip_cov(logprobs, logprobs, advantages, mask, **settings)[1]["selected"]
    assert selected.double().mean().item() == pytest.approx((math.exp(-3) - math.exp(-11)) / 2, rel=0.05)
    assert (advantages[selected] < 0).all()


# ---------------------------------------------------------------------- invariances
@every_loss
@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30])
def test_padding_has_no_effect_whatever_it_holds(name, garbage):
    b = make_batch()
    clean = map_batch(b, lambda x: torch.where(b.mask, x, garbage) if x.is_floating_point() else x)
    padded = map_batch(clean, lambda x: torch.nn.functional.pad(x, (0, 3), value=garbage))
    padded.mask[:, -3:] = False
    got, want = fast(name, padded, **hyper(name, padded)), fast(name, b, **hyper(name, b))
    assert got.value == pytest.approx(want.value, abs=1e-12)
    torch.testing.assert_close(got.grad[:, :-3], want.grad)
    for x in (got.token_loss, got.grad, *got.stats.values()):
        assert x.shape == padded.mask.shape and x.isfinite().all() and (x[~padded.mask] == 0).all()


@every_loss
def test_order_and_shape_have_no_effect(name):
    b = make_batch()
    order = torch.randperm(b.mask.numel(), generator=torch.Generator().manual_seed(1))
    flat = map_batch(b, lambda x: x.flatten()[order])                         # [N], as the trainer selects
    got, want = fast(name, flat, **hyper(name, flat)), fast(name, b, **hyper(name, b))
    assert got.value == pytest.approx(want.value, abs=1e-12)
    torch.testing.assert_close(got.grad, want.grad.flatten()[order])


@every_loss
@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_sum_to_the_whole_when_selected_is_given(name, size):
    b = make_batch()
    whole = fast(name, b, **hyper(name, b))
    n_tokens = b.mask.sum().item()
    value, grads = 0.0, []
    for i in range(0, 5, size):
        m, given = map_batch(b, lambda x: x[i:i + size]), {}
        if "selected" in whole.stats:
            given["selected"] = whole.stats["selected"][i:i + size]
        if "selected_share" in inspect.signature(loss.LOSSES[name]).parameters:
            given["selected_share"] = whole.stats["selected"].sum() / n_tokens
        got = fast(name, m, **hyper(name, m) | given)
        share = m.mask.sum().item() / n_tokens
        value += got.value * share
        grads.append(got.grad * share)
    assert value == pytest.approx(whole.value, abs=1e-7)
    torch.testing.assert_close(torch.cat(grads), whole.grad, rtol=1e-6, atol=1e-9)


@every_loss
def test_inputs_stay_as_they_were_and_nothing_else_carries_a_graph(name):
    b = make_batch()
    before = map_batch(b, torch.clone)
    b.entropy.requires_grad_()
    b.logprobs.requires_grad_()
    token_loss, stats = loss.LOSSES[name](b.logprobs, b.old, b.advantages, b.mask, **hyper(name, b))
    assert all(torch.equal(x, y) for x, y in zip(vars(b).values(), vars(before).values()))
    assert {"ppo_kl", "ppo_kl_abs"} <= set(stats) and not any(x.requires_grad for x in stats.values())
    grad, = torch.autograd.grad(token_loss.sum(), b.entropy, allow_unused=True)
    torch.testing.assert_close(torch.zeros_like(b.entropy) if grad is None else grad,
                               -0.01 * b.mask.double() * (name == "entropy_bonus"))


# ---------------------------------------------------------------------- extreme inputs
@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_ratios_of_1000_are_finite(name, dtype):
    logprobs, old = row(0.0, -1000.0, 0.0, -1000.0), row(-1000.0, 0.0, -1000.0, 0.0)
    b = cast(SimpleNamespace(logprobs=logprobs, old=old, ref=old, advantages=row(1.0, 1.0, -1.0, -1.0),
                             entropy=row(0.4, 0.3, 0.2, 0.1), mask=torch.tensor([[True] * 4])), dtype)
    got, e20 = fast(name, b, **hyper(name, b)), math.exp(20)
    assert all(x.isfinite().all() for x in (got.token_loss, got.grad, *got.stats.values()))
    if name == "pg":
        torch.testing.assert_close(got.token_loss.double(), row(-e20, -1 / e20, e20, 1 / e20))
        assert (got.grad == 0).all()
    if name == "ref_kl":                                   # d = -1000 and +1000, clamped to -20 and +20
        torch.testing.assert_close(got.stats["kl_loss"][0, :2].double(), row(19 + 1 / e20, e20 - 21)[0])


@every_loss
def test_one_token_and_an_empty_mask(name):
    b = make_batch(B=1, T=1)
    coef = {"kl_cov": 1.0, "entropy_bonus": 0.01, "ref_kl": 0.1}.get(name, 0.0)
    high = 0.28 if name in ("clip_higher", "top_entropy") else 0.2
    chosen = set() if name == "clip_cov" else {(0, 0)}                        # Cov = 0: outside its band
    b.mask[:] = True
    if name in IN_SLOW:
        assert_same(fast(name, b, **hyper(name, b)), slow(name, b, high=high, coef=coef, chosen=chosen))
    b.mask[:] = False
    got = fast(name, b, **hyper(name, b))
    assert got.value == 0 and all((x == 0).all() for x in (got.token_loss, got.grad, *got.stats.values()))


@every_loss
def test_bf16_inputs_are_computed_in_float32(name):
    b = cast(make_batch(), torch.bfloat16)
    exact = cast(b, torch.float64)
    got, want = fast(name, b, **hyper(name, b)), fast(name, exact, **hyper(name, exact))
    assert got.token_loss.dtype == torch.float32 and got.value == pytest.approx(want.value, abs=1e-5)
    torch.testing.assert_close(got.grad.double(), want.grad, rtol=1e-2, atol=1e-4)


# ---------------------------------------------------------------------- the entropy mechanism
def entropy_of(z):
    return loss.logprobs_and_entropy(z[None], torch.tensor([0]))[1][0]


def test_lemma_1_by_hand():
    """pi = [0.7, 0.2, 0.1], first logit + 1: minus the covariance is -0.31, the exact change -0.32."""
    z, dz = row(0.7, 0.2, 0.1)[0].log().requires_grad_(), row(1.0, 0.0, 0.0)[0]
    assert (torch.autograd.grad(entropy_of(z), z)[0] @ dz).item() == pytest.approx(-0.31, abs=5e-3)
    assert (entropy_of(z + dz) - entropy_of(z)).item() == pytest.approx(-0.32, abs=5e-3)


def test_entropy_change_is_minus_eta_times_covariance():
    """Theorems 1 and 2 for a tabular softmax policy; tokens as frequent as the policy makes them."""
    pi, A = row(0.5, 0.3, 0.2)[0], row(1.0, -0.5, -1.75)[0]                   # A averages to zero under pi
    actions, mask = torch.tensor([[0] * 5 + [1] * 3 + [2] * 2]), torch.tensor([[True] * 10])
    z = pi.log().requires_grad_()
    logprobs, _ = loss.logprobs_and_entropy(z.expand(1, 10, 3), actions)
    token_loss, _ = loss.pg(logprobs, logprobs.detach(), A[actions], mask)
    plain = -torch.autograd.grad(loss.masked_mean(token_loss, mask), z)[0]
    torch.testing.assert_close(plain, pi * A)                                 # Proposition 1
    natural = torch.linalg.pinv(pi.diag() - pi[:, None] * pi) @ plain         # inverse Fisher information

    cov = lambda x, y: (pi * (x - pi @ x) * (y - pi @ y)).sum().item()
    batch_cov = loss.masked_mean(loss.token_cov(logprobs, A[actions], mask), mask).item()
    assert batch_cov == pytest.approx(cov(pi.log(), A)) and batch_cov > 0     # Eq. 10 averages to Theorem 2's
    for direction, covariance in ((plain, cov(pi.log(), pi * A)), (natural, batch_cov)):
        change = lambda eta: (entropy_of(z + eta * direction) - entropy_of(z)).item()
        error = [change(eta) + eta * covariance for eta in (0.01, 0.005)]
        assert abs(error[0]) < 0.05 * 0.01 * covariance and 3.8 < error[0] / error[1] < 4.2   # O(eta^2)


def test_tis_weights_undo_the_mismatch_and_stop_at_the_cap():
    trainer, sampler = row(0.6, 0.3, 0.1).log(), row(0.3, 0.3, 0.4).log()
    mask = torch.tensor([[True, True, True]])
    weights = loss.tis_weights(trainer, sampler, mask, cap=10.0)
    torch.testing.assert_close(weights * sampler.exp(), trainer.exp())         # importance sampling
    assert loss.tis_weights(trainer, sampler, mask, cap=1.5)[0].tolist() == pytest.approx([1.5, 1.0, 0.25])
    garbage = torch.tensor([[NAN, 0.0, INF]])
    assert loss.tis_weights(garbage, garbage, mask & False, cap=2.0).tolist() == [[1.0, 1.0, 1.0]]
