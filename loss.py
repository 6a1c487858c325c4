"""Losses of the entropy mechanism, side by side (Cui et al. 2025, arXiv 2505.22617; Wang et al. 2025).

B sequences, T response positions (right-padded; position t is the t-th *response* token), P prompts, G
responses a prompt. `mask` is bool [B, T], true on response tokens, the EOS included. Log-probs and entropies
are in nats. Values under a false mask may be anything, NaN too: they are replaced before any arithmetic.

Every loss is a pure function `(logprobs, old_logprobs, advantages, mask, *, ...) -> (token_loss, stats)`,
both [B, T] (stats: a dict of such tensors, detached), both reduced by the caller as `masked_mean(x, mask)`.
`logprobs` carries the gradient; `old_logprobs` are those of the policy that sampled the responses;
`advantages` [B, T] are constant along a response, but for PRIME's. What else a loss needs it names as a
keyword: a field of train.py's Config, `entropy` or `ref_logprobs`; the trainer passes what a signature names.

    token_loss, stats = kl_cov(logprobs, old_logprobs, advantages, mask, kl_cov_ratio=2e-3, ppo_kl_coef=1.0)
    masked_mean(token_loss, mask).backward()
"""

import torch
from torch import Tensor
from torch.nn import functional as F

# --- Shared pieces: what must be identical in every variant ----------------------------------------------


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of `x` over the true positions of `mask` (same shape); 0 where none is true. -> scalar"""
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def logprobs_and_entropy(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-prob of `targets` and entropy of the policy softmax(logits / temperature), in at least fp32.

    logits [..., V], targets [...] (ids) -> (logprobs [...], entropy [...]), nats. A logit of -inf is an id
    that cannot be sampled. `temperature` is the sampling temperature: policy, old policy, reference and
    entropy all have to use the same one.

    >>> logprobs_and_entropy(torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor(0))
    (tensor(-0.3567), tensor(0.8018))
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; log-probs need a positive one")
    log_pi = (_at_least_fp32(logits) / temperature).log_softmax(-1)
    del logits  # each tensor of this size counts
    logprobs = log_pi.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    log_pi = log_pi.clamp(min=-1e4)  # p = 0 adds 0 to the entropy, not 0 * -inf = NaN
    entropy = -(log_pi.exp() * log_pi).sum(-1)
    return logprobs, entropy


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _clean(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Zeros under a false mask: exp(inf) * 0 is NaN, and so is its gradient behind a later torch.where."""
    return tuple(torch.where(mask, _at_least_fp32(x), 0.0) for x in tensors)


def _log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log(pi / pi_old), clamped to [-20, 20] so that its exp stays finite; 0 under a false mask."""
    logprobs, old_logprobs = _clean(mask, logprobs, old_logprobs)
    return (logprobs - old_logprobs).clamp(-20, 20)


def _kl_stats(log_ratio: Tensor) -> dict[str, Tensor]:
    """How far the policy has moved since it sampled: the K1 estimate of KL(pi_old || pi), and its size."""
    return {"ppo_kl": -log_ratio.detach(), "ppo_kl_abs": log_ratio.detach().abs()}


# --- Advantages: one number a response, [P, G] -> [P, G]; PRIME's differ along a response ----------------

EQUAL = 1e-6  # rewards closer than this are equal: in fp32 the std of eight 0.7s is 6e-8, not 0


def zero_variance(rewards: Tensor) -> Tensor:
    """Groups whose rewards are all equal and teach nothing: [P, G] -> bool [P]."""
    return rewards.amax(1) - rewards.amin(1) < EQUAL


def grpo_advantages(rewards: Tensor, normalize_std: bool = True) -> Tensor:
    """(r - mean) / (std + 1e-6) in each group (Shao et al. 2024), std with ddof 1; equal rewards: exactly 0.

    >>> grpo_advantages(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([[ 0.7071, -0.7071],
            [ 0.0000,  0.0000]])
    """
    rewards = _groups(rewards)
    centered = rewards - rewards.mean(1, keepdim=True)
    if normalize_std:
        std = (centered.square().sum(1, keepdim=True) / (rewards.shape[1] - 1)).sqrt()
        centered = centered / (std + 1e-6)
    return torch.where(zero_variance(rewards)[:, None], 0.0, centered)


def rloo_advantages(rewards: Tensor) -> Tensor:
    """Reward minus the mean of the other G - 1 (Kool et al. 2019): G / (G - 1) * (r - mean)."""
    rewards = _groups(rewards)
    G = rewards.shape[1]
    advantages = G / (G - 1) * (rewards - rewards.mean(1, keepdim=True))
    return torch.where(zero_variance(rewards)[:, None], 0.0, advantages)


def reinforce_pp_advantages(rewards: Tensor, lengths: Tensor) -> Tensor:
    """REINFORCE++ (Hu 2025): rewards whitened over all tokens of the batch; lengths [P, G] in tokens."""
    return _whiten_over_tokens(_at_least_fp32(rewards), lengths)


def reinforce_pp_baseline_advantages(rewards: Tensor, lengths: Tensor) -> Tensor:
    """REINFORCE++-baseline: minus the group mean, then whitened over all tokens of the batch."""
    rewards = _groups(rewards)
    centered = torch.where(zero_variance(rewards)[:, None], 0.0, rewards - rewards.mean(1, keepdim=True))
    return _whiten_over_tokens(centered, lengths)


def prime_advantages(process_rewards: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """PRIME (Cui et al. 2025, arXiv 2502.01456): leave-one-out process and outcome rewards. -> [B, T]

    process_rewards [B, T]: q = log pi_prm - log pi_ref over the batch's largest |reward-to-go|; rewards [P, G]:
    1 right, 0 wrong; mask bool [B, T]; B = P * G, groups in order. Process rewards become
    G / (G - 1) q_t - (sum of the G responses' token means) / (G - 1), as published; the outcome counts at the
    last token. Both times 5, summed from each token to the end, whitened over all tokens; 0 under a false mask.
    """
    outcome, G = rloo_advantages(rewards).flatten(), rewards.shape[1]                              # [B]
    (process,) = _clean(mask, process_rewards)
    lengths = mask.sum(1)                                                                          # [B]
    means = (process.sum(1) / lengths.clamp(min=1)).view(-1, G)                                    # [P, G]
    process = (G * process - means.sum(1).repeat_interleave(G)[:, None]) / (G - 1)
    is_last = torch.arange(mask.shape[1], device=mask.device) == lengths[:, None] - 1
    total = torch.where(mask, 5.0 * process + torch.where(is_last, 5.0 * outcome[:, None], 0.0), 0.0)
    returns = total.flip(1).cumsum(1).flip(1)
    return torch.where(mask, _whiten_over_tokens(returns, mask), 0.0)


def implicit_prm_loss(prm_logprobs: Tensor, ref_logprobs: Tensor, right: Tensor, mask: Tensor, *,
                      beta: float) -> Tensor:
    """Cross entropy of sigmoid(beta * sum_t q_t) against the verdict: how PRIME's reward model learns.

    q = log pi_prm - log pi_ref [B, T], pi_ref frozen; right [B] in {0, 1}. -> scalar, a mean over the B
    """
    prm_logprobs, ref_logprobs = _clean(mask, prm_logprobs, ref_logprobs)
    logit = beta * (prm_logprobs - ref_logprobs).sum(1)
    return F.binary_cross_entropy_with_logits(logit, right.to(logit.dtype))


ADVANTAGES = {"grpo": lambda rewards, lengths: grpo_advantages(rewards),
              "rloo": lambda rewards, lengths: rloo_advantages(rewards),
              "reinforce_pp": reinforce_pp_advantages,
              "reinforce_pp_baseline": reinforce_pp_baseline_advantages}


def _groups(rewards: Tensor) -> Tensor:
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards of shape {tuple(rewards.shape)}: a group baseline needs [P, G] with G >= 2")
    return _at_least_fp32(rewards)


def _whiten_over_tokens(x: Tensor, counts: Tensor) -> Tensor:
    """(x - mean) / std of x, each taken `counts` times (a response's tokens, a mask); variance with ddof 1."""
    n_tokens = counts.sum()
    mean = (counts * x).sum() / n_tokens.clamp(min=1)
    var = (counts * (x - mean).square()).sum() / (n_tokens - 1).clamp(min=1)
    equal = x.amax() - x.amin() < EQUAL
    return torch.where(equal, 0.0, (x - mean) * (var + 1e-8).rsqrt())


# --- Token selection: which tokens a method acts on. All bool, same shape as the mask, no gradient. ------
# The shape is free: the trainer selects over the [N] tokens of a mini-batch of all ranks at once.


@torch.no_grad()
def token_cov(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Cov(y_i) = (log pi(y_i) - mean log pi) (A(y_i) - mean A), means over the mask (Eq. 10); else 0."""
    logprobs, advantages = _clean(mask, logprobs, advantages)
    cov = (logprobs - masked_mean(logprobs, mask)) * (advantages - masked_mean(advantages, mask))
    return torch.where(mask, cov, 0.0)


def select_clip_cov(cov: Tensor, candidates: Tensor, *, ratio: float, lb: float, ub: float, n_tokens: int,
                    generator: torch.Generator | None = None) -> Tensor:
    """I_clip: max(1, int(ratio * n_tokens)) tokens by chance, of the candidates with lb < Cov < ub (Eq. 11).

    `candidates` are valid tokens that PPO's clip does not already hold; fewer in the band, fewer selected.
    """
    band = candidates & (cov > lb) & (cov < ub)
    return select_random(band, count=_count(ratio, n_tokens), generator=generator)


def select_kl_cov(cov: Tensor, mask: Tensor, *, ratio: float) -> Tensor:
    """I_KL: the max(1, int(ratio * N)) valid tokens with the largest covariance (Eq. 13)."""
    return _top(cov, mask, _count(ratio, int(mask.sum())))


def select_top_entropy(entropy: Tensor, mask: Tensor, *, ratio: float) -> Tensor:
    """The max(1, int(ratio * N)) valid tokens of highest entropy (Wang et al.): an exact count, ties too."""
    return _top(entropy.detach(), mask, _count(ratio, int(mask.sum())))


def select_random(mask: Tensor, *, count: int, generator: torch.Generator | None = None) -> Tensor:
    """`count` tokens of the mask (all, if it has fewer), every subset equally likely: the control."""
    device = generator.device if generator is not None else mask.device
    # float64: in float32 two of 10^6 keys are often equal, and a tie would prefer one end of the batch
    keys = torch.rand(mask.shape, generator=generator, device=device, dtype=torch.float64).to(mask.device)
    return _top(keys, mask, min(count, int(mask.sum())))


def _count(ratio: float, n_tokens: int) -> int:
    return max(1, int(ratio * n_tokens)) if n_tokens else 0


def _top(score: Tensor, mask: Tensor, count: int) -> Tensor:
    score = torch.where(mask, score, -torch.inf).flatten()
    top = torch.zeros_like(score, dtype=torch.bool).scatter(0, score.topk(count).indices, True)
    return top.view_as(mask)


def tis_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, cap: float) -> Tensor:
    """Truncated importance weights min(pi_old / pi_sampler, cap) of each token (Yao et al. 2025): [B, T].

    The sampler's numerics differ from the trainer's; the cap keeps one token from taking over. 1 in padding.
    """
    return _log_ratio(old_logprobs, sampler_logprobs, mask).exp().clamp(max=cap)


# --- The losses. What defines a method is repeated, so that two of them can be compared by eye. ----------


def pg(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor):
    """Policy gradient with importance ratio, no clip: with one update a rollout, the setting of Section 3.3."""
    log_ratio = _log_ratio(logprobs, old_logprobs, mask)
    (advantages,) = _clean(mask, advantages)
    token_loss = -advantages * log_ratio.exp()
    return token_loss, _kl_stats(log_ratio)


def grpo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
         clip_ratio_low: float, clip_ratio_high: float):
    """PPO's clipped surrogate: -min(r A, clip(r, 1 - low, 1 + high) A); with group advantages, GRPO.

    stats["pg_clipfrac"] is 1 where the clip holds a token (its gradient is 0).
    """
    log_ratio = _log_ratio(logprobs, old_logprobs, mask)
    (advantages,) = _clean(mask, advantages)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    token_loss = torch.maximum(unclipped, clipped)
    return token_loss, {"pg_clipfrac": (clipped > unclipped).float(), **_kl_stats(log_ratio)}


def clip_higher(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
                clip_ratio_low: float, clip_ratio_high: float):
    """DAPO's asymmetric clip (Yu et al. 2025): `grpo` with an upper bound (0.28) that lets rare tokens grow."""
    return grpo(logprobs, old_logprobs, advantages, mask,
                clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)


def clip_cov_tokens(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
                    clip_cov_ratio: float, clip_cov_lb: float, clip_cov_ub: float, clip_ratio_low: float,
                    clip_ratio_high: float, generator: torch.Generator | None = None) -> Tensor:
    """The tokens that Clip-Cov leaves out: drawn among those of high covariance that PPO's clip does not hold."""
    ratio = _log_ratio(logprobs, old_logprobs, mask).exp()
    cov = token_cov(logprobs, advantages, mask)
    (advantages,) = _clean(mask, advantages)
    held = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high) > -advantages * ratio
    return select_clip_cov(cov, mask & ~held, ratio=clip_cov_ratio, lb=clip_cov_lb, ub=clip_cov_ub,
                           n_tokens=int(mask.sum()), generator=generator)


def clip_cov(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
             selected: Tensor | None = None, clip_cov_ratio: float, clip_cov_lb: float, clip_cov_ub: float,
             clip_ratio_low: float, clip_ratio_high: float, generator: torch.Generator | None = None):
    """Clip-Cov (Eq. 12): a few tokens, drawn among those of high covariance, give no gradient.

    PPO's clip stays for the others (at the published 1.0 it only stops extreme ratios); a selected token's loss
    is 0 but it stays in the mean. `selected` [B, T] overrides the choice among the tokens of this call.
    """
    log_ratio = _log_ratio(logprobs, old_logprobs, mask)
    (advantages,) = _clean(mask, advantages)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    if selected is None:
        selected = clip_cov_tokens(
            logprobs, old_logprobs, advantages, mask, clip_cov_ratio=clip_cov_ratio, clip_cov_lb=clip_cov_lb,
            clip_cov_ub=clip_cov_ub, clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high,
            generator=generator)
    token_loss = torch.where(selected, 0.0, torch.maximum(unclipped, clipped))
    stats = {"pg_clipfrac": (clipped > unclipped).float(), "selected": selected, **_kl_stats(log_ratio)}
    return token_loss, stats


def kl_cov_tokens(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
                  kl_cov_ratio: float) -> Tensor:
    """The tokens that KL-Cov pulls back: those of largest covariance."""
    return select_kl_cov(token_cov(logprobs, advantages, mask), mask, ratio=kl_cov_ratio)


def kl_cov(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
           selected: Tensor | None = None, kl_cov_ratio: float, ppo_kl_coef: float):
    """KL-Cov (Eq. 14): `pg` plus coef * |log pi - log pi_old| on the tokens of largest Cov. No PPO clip.

    On the first update after a rollout log pi equals log pi_old and |.| has gradient 0 there: with one update
    a rollout, KL-Cov is `pg`. `selected` [B, T] overrides the choice among the tokens of this call.
    """
    log_ratio = _log_ratio(logprobs, old_logprobs, mask)
    (advantages,) = _clean(mask, advantages)
    if selected is None:
        selected = kl_cov_tokens(logprobs, old_logprobs, advantages, mask, kl_cov_ratio=kl_cov_ratio)
    logprobs, old_logprobs = _clean(mask, logprobs, old_logprobs)
    kl = (logprobs - old_logprobs).abs()  # not clamped: the pull back must not end where the ratio's does
    token_loss = -advantages * log_ratio.exp() + torch.where(selected, ppo_kl_coef * kl, 0.0)
    return token_loss, {"selected": selected, **_kl_stats(log_ratio)}


def entropy_bonus(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
                  entropy: Tensor, entropy_coeff: float, clip_ratio_low: float, clip_ratio_high: float):
    """`grpo` minus coeff * H on every token (Section 4.1); `entropy` [B, T] carries gradient."""
    token_loss, stats = grpo(logprobs, old_logprobs, advantages, mask,
                             clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    (entropy,) = _clean(mask, entropy)
    return token_loss - entropy_coeff * entropy, stats


def ref_kl(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
           ref_logprobs: Tensor, kl_loss_coef: float, clip_ratio_low: float, clip_ratio_high: float):
    """`grpo` plus coef * KL(pi || pi_ref) on every token (Section 4.1), estimated as K3 = exp(d) - d - 1,
    d = log pi_ref - log pi: never negative, 0 with gradient 0 where the two agree (Schulman 2020)."""
    token_loss, stats = grpo(logprobs, old_logprobs, advantages, mask,
                             clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high)
    d = _log_ratio(ref_logprobs, logprobs, mask)
    k3 = d.exp() - d - 1
    return token_loss + kl_loss_coef * k3, {"kl_loss": k3.detach(), **stats}


def top_entropy_tokens(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
                       entropy: Tensor, top_entropy_ratio: float, keep: str) -> Tensor:
    """The tokens that J_rho keeps: those of highest entropy; keep="bottom": all others (the 80 % control)."""
    if keep not in ("top", "bottom"):
        raise ValueError(f"keep is {keep!r}; it is 'top' or 'bottom'")
    top = select_top_entropy(entropy, mask, ratio=top_entropy_ratio)
    return top if keep == "top" else mask & ~top


def top_entropy(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *,
                entropy: Tensor, selected: Tensor | None = None, selected_share: Tensor | None = None,
                top_entropy_ratio: float, keep: str, clip_ratio_low: float, clip_ratio_high: float):
    """J_rho of Wang et al.: DAPO's clipped term on the tokens of highest entropy, averaged over them alone.

    The kept tokens' loss is divided by their share: the mean over `mask` is then the mean over the kept ones.
    With `selected` from a larger batch the caller gives that batch's `selected_share`.
    """
    log_ratio = _log_ratio(logprobs, old_logprobs, mask)
    (advantages,) = _clean(mask, advantages)
    ratio = log_ratio.exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    if selected is None:
        selected = top_entropy_tokens(logprobs, old_logprobs, advantages, mask, entropy=entropy,
                                      top_entropy_ratio=top_entropy_ratio, keep=keep)
    if selected_share is None:
        selected_share = masked_mean(selected.float(), mask)
    token_loss = torch.maximum(unclipped, clipped) / max(selected_share, 1e-9)  # nothing kept: 0, not 0 / 0
    token_loss = torch.where(selected, token_loss, 0.0)
    stats = {"pg_clipfrac": (clipped > unclipped).float(), "selected": selected, **_kl_stats(log_ratio)}
    return token_loss, stats


LOSSES = {"pg": pg, "grpo": grpo, "clip_higher": clip_higher, "clip_cov": clip_cov, "kl_cov": kl_cov,
          "entropy_bonus": entropy_bonus, "ref_kl": ref_kl, "top_entropy": top_entropy}
# which tokens a loss acts on, chosen as it would itself; the trainer asks over the tokens of all ranks
SELECT = {"clip_cov": clip_cov_tokens, "kl_cov": kl_cov_tokens, "top_entropy": top_entropy_tokens}
