"""support/mechanism.py, and the controls of train.py that act on what it measures."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests"))
import train
from loss import grpo_advantages, logprobs_and_entropy
from support.batches import MiniBatch
from support.mechanism import (agreement, entropy_change, quadrants, response_cov, response_metrics, selected_metrics,
                               selected_rows, token_metrics)
from test_train import TINY, run_training


def tokens_of(n=1000, seed=0):
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(n, generator=g)
    return {"old_logprobs": p.log(), "sampler_logprobs": p.log(), "entropy": torch.rand(n, generator=g),
            "advantages": torch.randn(n, generator=g)}


def test_table_1_by_sorting():
    tokens = tokens_of()
    logp, A = tokens["old_logprobs"].double().numpy(), tokens["advantages"].double().numpy()
    cov = sorted((logp - logp.mean()) * (A - A.mean()), reverse=True)
    got = token_metrics(tokens)
    want = {"cov/mean": np.mean(cov), "cov/std": np.std(cov, ddof=1), "cov/positive": np.mean(np.array(cov) > 0),
            "cov/top_2%": np.mean(cov[:20]), "cov/top_0.2%": np.mean(cov[:2]), "cov/top_0.02%": cov[0]}
    assert {key: got[key] for key in want} == pytest.approx(want, rel=1e-4)
    assert sum(value for key, value in got.items() if key.startswith("quadrant/")) == pytest.approx(1)


def test_sampler_mismatch_by_hand():
    """Of 100 tokens, 3 with ratio 1.2, 4 with ratio 0.8, the others with 1.01."""
    tokens = tokens_of(100)
    ratio = torch.tensor([1.2] * 3 + [0.8] * 4 + [1.01] * 93)
    tokens["sampler_logprobs"] = tokens["old_logprobs"] - ratio.log()
    got = token_metrics(tokens)
    assert got["rollout/ratio_outside"] == pytest.approx(0.07)
    assert got["rollout/logprob_diff"] == pytest.approx((3 * math.log(1.2) - 4 * math.log(0.8) + 93 * math.log(1.01)) / 100, rel=1e-3)
    assert got["rollout/logprob_diff_p95"] == pytest.approx(math.log(1.2), rel=1e-3)


def groups_of(rewards, lengths):
    advantages = grpo_advantages(torch.tensor(rewards)).tolist()
    return [[SimpleNamespace(tokens=np.arange(n) % 10 + 2, advantages=np.full(n, a, np.float32), score=SimpleNamespace(status="right" if r else "wrong"))
             for r, a, n in zip(*group)] for group in zip(rewards, advantages, lengths)]


def test_response_covariance_per_accuracy():
    """Section 3.3, one group at a time; a group of accuracy 1/4 is in the first bin, 3/4 in the third."""
    rewards, lengths = [[1.0, 0, 0, 0], [1.0, 1, 1, 0]], [[3, 1, 4, 2], [5, 1, 2, 6]]
    groups = groups_of(rewards, lengths)
    tokens = tokens_of(sum(map(sum, lengths)))
    got, covs, start = response_metrics(groups, tokens), [], 0
    for group in groups:
        x, A = [], [float(r.advantages[0]) for r in group]
        for r in group:
            x.append(float(tokens["old_logprobs"][start:start + len(r.tokens)].mean()))
            start += len(r.tokens)
        y = [math.exp(v) * a for v, a in zip(x, A)]
        covs.append(sum((v - sum(x) / 4) * (w - sum(y) / 4) for v, w in zip(x, y)) / 4)
    assert got == pytest.approx({"cov/response": sum(covs) / 2, "cov/response_acc_25": covs[0],
                                 "cov/response_acc_75": covs[1]}, rel=1e-4)


def test_selected_rows_point_at_the_selected_tokens():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    groups = groups_of([[1.0, 0], [1.0, 0]], [[3, 5], [4, 2]])
    tokens, selected = tokens_of(14), torch.zeros(14, dtype=torch.bool)
    selected[[0, 7, 13]] = True                                 # (0, 0, 0), (0, 1, 4), (1, 1, 1)
    dropped = groups_of([[1.0, 1.0]], [[2, 2]])                 # the first group sampled: all right
    minis = [MiniBatch(groups[:1], [], 8, 0, {k: v[:8] for k, v in tokens.items()}, selected[:8]),
             MiniBatch(groups[1:], [], 6, 1, {k: v[8:] for k, v in tokens.items()}, selected[8:], selected[8:] & False)]
    rows = selected_rows(tokenizer, dropped + groups, minis)
    assert [(r["group"], r["response"], r["position"], r["length"]) for r in rows] == [(1, 0, 0, 3), (1, 1, 4, 5), (2, 1, 1, 2)]
    assert rows[1]["token"] == tokenizer.decode([6]) and rows[1]["before"] == tokenizer.decode([2, 3, 4, 5])
    assert rows[1]["prob"] == pytest.approx(float(tokens["old_logprobs"][7].exp()))
    likely = float(tokens["old_logprobs"][7]) > -float(tokens["entropy"][7])
    right = float(tokens["advantages"][7]) > 0
    assert rows[1]["quadrant"] == f"{'likely' if likely else 'unlikely'}_{'right' if right else 'wrong'}"
    metrics = selected_metrics(minis)
    assert metrics["cov/overlap"] == 0
    for name in ("likely_right", "likely_wrong", "unlikely_right", "unlikely_wrong"):
        assert metrics[f"selected/{name}"] == pytest.approx(sum(r["quadrant"] == name for r in rows) / 3)
    assert metrics["selected/prob"] == pytest.approx(sum(r["prob"] for r in rows) / 3)
    for mini in minis:
        mini.selected = mini.selected & False
    assert selected_metrics(minis) == {} and selected_metrics([]) == {}


def test_agreement_of_known_relations():
    x = torch.linspace(-1, 2, 50, dtype=torch.double)
    assert agreement(x, 3 * x) == pytest.approx({"slope": 3, "corr": 1, "explained": 1})
    assert agreement(x, 3 * x, slope=1.0)["explained"] == pytest.approx(1 - 4 / 9)   # residual 2x of 3x
    noise = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    fit = agreement(x, x + noise)
    slope = float((x * (x + noise)).sum() / (x * x).sum())
    assert fit["slope"] == pytest.approx(slope)
    assert fit["explained"] == pytest.approx(1 - float(((x + noise - slope * x) ** 2).sum() / ((x + noise) ** 2).sum()))
    assert agreement(x, 0 * x) == {} and agreement(0 * x, x) == {}


# --- the theory ---------------------------------------------------------------------------------------------


def test_entropy_change_per_state():
    """Against sums over the vocabulary in plain floats; the first order's error falls with the square of dz."""
    g = torch.Generator().manual_seed(0)
    before, dz = torch.randn(2, 5, 7, generator=g, dtype=torch.float64)
    before[:, 6], y, A = -math.inf, torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1.5, -0.5, 2.0, -1.0, 0.0]).double()
    errors = []
    for eta in (0.02, 0.01):
        got = entropy_change(before, before + eta * dz, y, A)
        for s in range(5):
            p, q = [[math.exp(v) for v in z[s, :6].tolist()] for z in (before, before + eta * dz)]
            p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
            H = -sum(v * math.log(v) for v in p)
            mean_dz = sum(v * eta * dz[s, a].item() for a, v in enumerate(p))
            cov = sum(v * (math.log(v) + H) * (eta * dz[s, a].item() - mean_dz) for a, v in enumerate(p))
            surprise = math.log(p[y[s]]) + H
            want = {"exact": -sum(v * math.log(v) for v in q) - H, "first_order": -cov,
                    "theorem_1": -surprise * p[y[s]] * A[s].item(), "theorem_2": -surprise * A[s].item()}
            assert {name: got[name][s].item() for name in want} == pytest.approx(want, abs=1e-12)
        errors.append((got["exact"] - got["first_order"]).abs())
    assert ((errors[0] / errors[1] - 4).abs() < 0.5).all()


def test_theorem_samples_are_unbiased():
    """Weighted by the policy, the one-sample predictions are the covariances of Theorems 1 and 2."""
    pi, A = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([1.0, -0.5, -1.75]).double()                   # A averages to zero under pi
    z = pi.log().expand(3, 3)
    got = entropy_change(z, z, torch.arange(3), A)
    cov = lambda x, y: (pi * (x - pi @ x) * (y - pi @ y)).sum().item()
    assert (pi @ got["theorem_1"]).item() == pytest.approx(-cov(pi.log(), pi * A))
    assert (pi @ got["theorem_2"]).item() == pytest.approx(-cov(pi.log(), A))
    assert got["exact"].abs().max() == 0 and got["first_order"].abs().max() == 0


def test_response_cov_by_hand():
    """Means -ln 2 and -ln 4, A = 1 and -1: pi A is 1/2 and -1/4, so Cov = (ln 2 / 2)(3 / 8). Equal log-probs: 0."""
    logprobs, A = torch.tensor([[-math.log(2), -math.log(4)], [-1.0, -1.0]]), torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    assert response_cov(logprobs, A).tolist() == pytest.approx([math.log(2) / 2 * 3 / 8, 0.0])
    assert response_cov(logprobs, -A)[0] < 0


def test_quadrants_are_the_sign_table():
    """They partition the tokens; Theorem 2 predicts a fall on likely right and unlikely wrong, a rise on the others."""
    g = torch.Generator().manual_seed(1)
    z, A = torch.randn(200, 6, generator=g), torch.randn(200, generator=g)
    y = torch.multinomial(z.softmax(-1), 1, generator=g)[:, 0]
    logprobs, entropy = logprobs_and_entropy(z, y)
    members = quadrants(logprobs, entropy, A)
    assert torch.stack(list(members.values())).sum(0).eq(1).all()
    change = entropy_change(z, z, y, A)["theorem_2"]
    assert change[members["likely_right"] | members["unlikely_wrong"]].max() < 0
    assert change[members["likely_wrong"] | members["unlikely_right"]].min() > 0
    assert (logprobs[members["likely_right"]] > -entropy[members["likely_right"]]).all() and (A[members["unlikely_right"]] > 0).all()


# --- in a run ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kl_cov_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kl_cov")
    return folder / "runs/run", run_training(folder, "--loss", "kl_cov", "--eval_every", "1")


def test_a_run_logs_its_mechanism(kl_cov_run):
    folder, metrics = kl_cov_run
    for row in metrics[1:]:
        selected = [json.loads(line) for line in open(folder / f"selected/step_{row['step']:06d}.jsonl")]
        unlikely_wrong = sum(r["quadrant"] == "unlikely_wrong" for r in selected) / len(selected)
        assert row["selected/unlikely_wrong"] == pytest.approx(unlikely_wrong)
        n_tokens = row["cov/selected"] and len(selected) / row["cov/selected"]
        assert n_tokens == pytest.approx(round(n_tokens), abs=1e-3) and 0.04 < row["cov/selected"] <= 0.05
        assert {"probe/first/dH", "probe/step/first_order_corr", "probe/step/theorem_1_slope", "cov/response"} <= row.keys()
        # one small update is close to first order; eight of them are further away
        assert row["probe/first/first_order_explained"] > 0.8


def test_measuring_changes_nothing(kl_cov_run, tmp_path):
    _, metrics = kl_cov_run
    without = run_training(tmp_path, "--loss", "kl_cov", "--eval_every", "1", "--probe_states", "0")
    for a, b in zip(metrics, without, strict=True):
        assert not any(key.startswith("probe/") for key in b)
        same = {key for key in b if not key.startswith(("timing_s/", "tokens_per_s"))}
        assert {key: a[key] for key in same} == {key: b[key] for key in same}


def test_entropy_follows_its_target(tmp_path):
    """The coefficient rises by gain * gap a step, never below 0; a high target raises the entropy, a low one lowers it."""
    options = ["--loss", "entropy_bonus", "--entropy_coeff", "0", "--max_steps", "4", "--eval_every", "0", "--lr", "5e-4",
               "--warmup_steps", "0"]
    final = {}
    for target in ("0.8", "0.01"):
        folder = tmp_path / target
        folder.mkdir()
        rows = run_training(folder, *options, "--entropy_target", target, "--entropy_gain", "0.3")[1:]
        coeff = 0.0
        for row in rows:
            coeff = max(0.0, coeff + 0.3 * (float(target) - row["actor/entropy"]))
            assert row["actor/entropy_coeff"] == pytest.approx(coeff)
        final[target] = rows[-1]["actor/entropy"]
    assert final["0.8"] > final["0.01"] + 0.03


def test_entropy_targets_are_a_number_or_another_run(tmp_path):
    assert train.entropy_targets("0.3") == [0.3]
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0, "val/x": 1}\n{"step": 1, "actor/entropy": 0.5}\n{"step": 2, "actor/entropy": 0.4}\n')
    assert train.entropy_targets(str(file)) == [0.5, 0.4]
    for wrong in ("-1", "nan", "inf", "runs/none/metrics.jsonl"):
        with pytest.raises(ValueError, match="entropy_target"):
            train.entropy_targets(wrong)
    for content in ('{"step": 0}', "0.5\n0.4", '{"step": 1, "actor/entropy": null}', '{"actor/entropy": 0.5}\n{}', "[]"):
        file.write_text(content)
        with pytest.raises(ValueError, match="entropy_target"):
            train.entropy_targets(str(file))
