"""The trainer: what must not depend on ranks or micro-batches, what must repeat, what must be refused."""

import importlib.util
import http.server
import inspect
import itertools
import json
import os
import random
import shutil
import socketserver
import subprocess
import sys
import threading
import typing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests"))
import train
from faulty import start_training
from loss import ADVANTAGES, LOSSES, SELECT, masked_mean
from support import batches
from support.options import gpu_memory, set_environment
from train import Policy

TINY = str(ROOT / "tiny/base")
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
SMALL = ["--prompts_per_step", "8", "--mini_batch_prompts", "2", "--group_size", "8", "--max_steps", "2",
         "--eval_every", "2", "--val_samples", "1"]


def torchrun(n: int, *command) -> str:
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}", *map(str, command)],
                          env=ENV, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_training(tmp_path, *options, ranks: int = 1) -> list[dict]:
    """A run of train.py in a folder of its own. -> the lines of metrics.jsonl"""
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else [sys.executable]
    done = subprocess.run([*command, str(ROOT / "train.py"), "--name", "run", *SMALL, *options], env=ENV, cwd=tmp_path,
                          capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in open(tmp_path / "runs/run/metrics.jsonl")]


def without_times(metrics: list[dict]) -> list[dict]:
    return [{k: v for k, v in m.items() if not k.startswith(("timing_s/", "tokens_per_s"))} for m in metrics]


# --- gradients --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    out = {n: tmp_path_factory.mktemp("gradients") / f"{n}.pt" for n in (1, 2)}
    for n in out:
        torchrun(n, ROOT / "tests/gradients.py", TINY, out[n])
    return {n: torch.load(path, weights_only=True) for n, path in out.items()}


def test_gradients_do_not_depend_on_ranks_or_micro_batches(gradients):
    cases = gradients[1]["results"]
    assert {loss for _, loss, _, _ in cases} == set(LOSSES)
    assert {cases[case]["n_micro"] for case in cases} == {1, 3, 7}, "the budgets have to give different micro-batches"
    for case, one in cases.items():
        whole = cases[(*case[:3], 10**6)]["gradient"]
        for n in (1, 2):
            other = gradients[n]["results"][case]
            assert torch.allclose(other["gradient"], whole, rtol=0, atol=1e-6 * float(whole.abs().max())), (case, n)
            assert abs(float(other["loss"] - one["loss"])) < 1e-9, (case, n)


def test_selection_covers_the_mini_batch_with_one_quota(gradients):
    """N = 54 tokens at ratio 0.1: 5 tokens whatever the micro-batches and ranks; cov and random differ."""
    for n in (1, 2):
        results = gradients[n]["results"]
        for (stage, loss, selection, budget), r in results.items():
            if loss in ("clip_cov", "kl_cov"):
                assert r["n"] == 54 and int(r["selected"].sum()) == 5, (stage, loss, selection, budget)
                assert torch.equal(r["selected"], gradients[1]["results"][stage, loss, selection, 1]["selected"])
        assert not torch.equal(results["moved", "kl_cov", "cov", 1]["selected"], results["moved", "kl_cov", "random", 1]["selected"])


def test_on_policy_kl_cov_is_pg(gradients):
    """log pi = log pi_old on the first update of a rollout: |.| has gradient 0 there."""
    for n in (1, 2):
        results = gradients[n]["results"]
        kl, pg = results["on-policy", "kl_cov", "cov", 48]["gradient"], results["on-policy", "pg", "cov", 48]["gradient"]
        assert torch.equal(kl, pg)
        moved = results["moved", "kl_cov", "cov", 48]["gradient"], results["moved", "pg", "cov", 48]["gradient"]
        assert not torch.allclose(*moved, atol=1e-4)


def test_tis_weighs_the_advantages_alone(gradients):
    """The reference KL keeps its size; the weights are min(pi_old / pi_sampler, cap) of each token."""
    for n in (1, 2):
        results = gradients[n]["results"]
        tis, by_hand, plain = (results["moved", "ref_kl", name, 48]["gradient"] for name in ("tis", "tis by hand", "cov"))
        assert torch.allclose(tis, by_hand, rtol=0, atol=1e-9) and not torch.allclose(tis, plain, rtol=0, atol=1e-4)


def test_probe_does_not_depend_on_ranks_or_micro_batches(gradients):
    whole = gradients[1]["probes"][10**6]
    assert whole["probe/first/dH_visited"] != whole["probe/first/dH_unvisited"]
    for n in (1, 2):
        for probe in gradients[n]["probes"].values():
            assert probe == pytest.approx(whole, rel=1e-9)


def test_prime_does_not_depend_on_ranks_or_micro_batches(gradients):
    whole = gradients[1]["prime"][10**6]
    assert whole["advantages"].shape == (7, 17) and (whole["advantages"][0, :9] != whole["advantages"][0, 0]).any()
    for n in (1, 2):
        for prime in gradients[n]["prime"].values():
            assert torch.allclose(prime["gradient"], whole["gradient"], rtol=0, atol=1e-6 * float(whole["gradient"].abs().max()))
            assert torch.allclose(prime["advantages"], whole["advantages"], rtol=0, atol=1e-5)
            for key in ("prm/loss", "prm/acc", "prm/reward"):
                assert prime[key] == pytest.approx(whole[key], rel=1e-5), key


def test_prime_equals_plain_recomputation(gradients):
    """From full logits of plain models: q, the cross entropy and its gradient, the largest reward-to-go."""
    sys.path.insert(0, str(ROOT / "tests"))
    from gradients import responses
    from loss import prime_advantages
    saved, n_vocab = gradients[1], len(AutoTokenizer.from_pretrained(TINY))
    rows, sums, q = responses(n_vocab), [], torch.zeros(7, 17, dtype=torch.double)
    models = {}
    for name in ("state", "ref"):
        models[name] = AutoModelForCausalLM.from_pretrained(TINY).double()
        models[name].load_state_dict(saved[name], strict=False)
        models[name].tie_weights()
    for i, r in enumerate(rows):
        ids = torch.from_numpy(np.concatenate([r.prompt, r.tokens]))[None]
        logp = {name: m(input_ids=ids).logits[0, len(r.prompt) - 1:-1, :n_vocab].log_softmax(-1) for name, m in models.items()}
        chosen = [logp[name].gather(1, torch.from_numpy(r.tokens)[:, None])[:, 0] for name in ("state", "ref")]
        difference = chosen[0] - chosen[1].detach()
        sums.append(difference.sum())
        q[i, :len(r.tokens)] = difference.detach()
    right = torch.tensor([r.score.reward for r in rows], dtype=torch.double)
    probability = torch.sigmoid(0.05 * torch.stack(sums))
    loss = -(right * probability.log() + (1 - right) * (1 - probability).log()).mean()
    loss.backward()
    expected = torch.cat([dict(models["state"].named_parameters())[name].grad.flatten() for name in saved["names"]])
    got = saved["prime"][48]
    assert got["prm/loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    assert torch.allclose(got["gradient"], expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
    mask = torch.tensor([[t < len(r.tokens) for t in range(17)] for r in rows])
    largest = max(abs(float(q[i, t:].sum())) for i in range(7) for t in range(17))
    want = prime_advantages(q / (largest + 1e-6), right[None].float(), mask)
    assert torch.allclose(got["advantages"], want, rtol=0, atol=1e-5)


def test_probe_equals_plain_recomputation(gradients):
    """Every second of the 54 states, one at a time, from full logits of a plain model before and after."""
    sys.path.insert(0, str(ROOT / "tests"))
    from gradients import responses
    saved, n_vocab = gradients[1], len(AutoTokenizer.from_pretrained(TINY))
    models = {}
    for name in ("old", "state"):
        models[name] = AutoModelForCausalLM.from_pretrained(TINY).double()
        models[name].load_state_dict(saved[name], strict=False)
        models[name].tie_weights()
    exact, first_order, theorem_2, visited, n = [], [], [], [], 0
    for i, r in enumerate(responses(n_vocab)):
        ids = torch.from_numpy(np.concatenate([r.prompt, r.tokens]))[None]
        with torch.no_grad():
            z, z_after = (models[name](input_ids=ids).logits[0, :, :n_vocab] for name in ("old", "state"))
        for t, token in enumerate(r.tokens):
            n += 1
            if n % 2 == 0:  # the probe takes tokens 0, 2, 4, ...
                continue
            at = len(r.prompt) - 1 + t
            pi, q = z[at].softmax(0), z_after[at].softmax(0)
            H = -(pi * pi.log()).sum()
            exact.append(float(-(q * q.log()).sum() - H))
            dz = z_after[at] - z[at]
            first_order.append(float(-(pi * (pi.log() + H) * (dz - pi @ dz)).sum()))
            theorem_2.append(float(-(pi[token].log() + H) * r.advantages[t]))
            visited.append(i < 3)
    exact, first_order, theorem_2, visited = map(np.array, (exact, first_order, theorem_2, visited))
    probe = saved["probes"][1]
    slope = (theorem_2 * exact)[visited].sum() / (theorem_2 ** 2)[visited].sum()
    want = {"dH": exact.mean(), "dH_first_order": first_order.mean(), "dH_visited": exact[visited].mean(),
            "dH_unvisited": exact[~visited].mean(), "first_order_corr": np.corrcoef(first_order, exact)[0, 1],
            "first_order_slope": (first_order * exact).sum() / (first_order ** 2).sum(),
            "first_order_explained": 1 - ((exact - first_order) ** 2).sum() / (exact ** 2).sum(), "theorem_2_slope": slope,
            "theorem_2_explained": 1 - ((exact - slope * theorem_2)[visited] ** 2).sum() / (exact ** 2)[visited].sum()}
    for key, value in want.items():
        assert probe[f"probe/first/{key}"] == pytest.approx(float(value), rel=1e-6), key


@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_equals_plain_autograd(gradients, loss):
    """One padded batch, full logits, no FSDP, no chunks: the same gradient in float64."""
    sys.path.insert(0, str(ROOT / "tests"))
    from gradients import responses
    saved = gradients[1]
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    rows = responses(len(tokenizer))
    T, L = max(len(r.tokens) for r in rows), max(len(r.prompt) + len(r.tokens) for r in rows)
    mask = torch.zeros(len(rows), T, dtype=torch.bool)
    advantages = torch.zeros(len(rows), T, dtype=torch.double)
    ids = torch.zeros(len(rows), L, dtype=torch.long)
    for b, r in enumerate(rows):
        ids[b, :len(r.prompt) + len(r.tokens)] = torch.from_numpy(np.concatenate([r.prompt, r.tokens]))
        mask[b, :len(r.tokens)], advantages[b, :len(r.tokens)] = True, torch.from_numpy(r.advantages)

    def logprobs_and_entropy(state):
        model = AutoModelForCausalLM.from_pretrained(TINY).double()
        model.load_state_dict(state, strict=False)
        model.tie_weights()
        logits = model(input_ids=ids).logits[..., :len(tokenizer)]
        logp = torch.log_softmax(logits, -1)
        entropy = -(logp.exp() * logp).sum(-1)
        out = [torch.zeros(len(rows), T, dtype=torch.double) for _ in range(2)]
        for b, r in enumerate(rows):
            for t, token in enumerate(r.tokens):
                out[0][b, t] = logp[b, len(r.prompt) - 1 + t, token]
                out[1][b, t] = entropy[b, len(r.prompt) - 1 + t]
        return model, *out

    with torch.no_grad():
        _, old, old_entropy = logprobs_and_entropy(saved["old"])
        _, ref, _ = logprobs_and_entropy(saved["ref"])
    model, logprobs, entropy = logprobs_and_entropy(saved["state"])
    case = saved["results"]["moved", loss, "cov", 48]
    options = train.asked_for(LOSSES[loss], train.Config(loss=loss, clip_cov_ratio=0.1, kl_cov_ratio=0.1))
    if case["selected"] is not None:
        selected = torch.zeros_like(mask)
        selected[mask] = case["selected"]
        options["selected"] = selected
    options |= {"entropy_bonus": {"entropy": entropy}, "top_entropy": {"entropy": entropy},
                "ref_kl": {"ref_logprobs": ref}}.get(loss, {})
    token_loss, _ = LOSSES[loss](logprobs, old, advantages, mask, **options)
    masked_mean(token_loss, mask).backward()
    expected = torch.cat([dict(model.named_parameters())[name].grad.flatten() for name in saved["names"]])
    assert torch.allclose(case["gradient"], expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


# --- the policy's log-probs -------------------------------------------------------------------------------


@pytest.fixture
def padded_vocabulary():
    """The tiny model with 5 logits more than its tokenizer has ids, as Qwen2.5 has."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer) + 5, mean_resizing=False)
    return model, len(tokenizer)


def test_logprobs_divide_by_the_temperature_and_leave_out_ids_without_a_token(padded_vocabulary):
    model, n_vocab = padded_vocabulary
    ids = torch.randint(0, n_vocab, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    logprobs, entropy = Policy(model.requires_grad_(False), n_vocab, 0.7)(ids, torch.tensor([4, 6]), torch.stack([ids[0, 4:], torch.cat([ids[1, 6:], ids[1, :2]])]), mask)
    pi = (model(input_ids=ids).logits.double() / 0.7)[..., :n_vocab].softmax(-1)
    for b, start in ((0, 4), (1, 6)):
        for t in range(int(mask[b].sum())):
            p = pi[b, start + t - 1]
            assert abs(float(logprobs[b, t] - p[ids[b, start + t]].log())) < 1e-5
            assert abs(float(entropy[b, t] + (p * p.log()).sum())) < 1e-5
    assert (logprobs[~mask] == 0).all() and (entropy[~mask] == 0).all()


def test_chunked_head_gives_the_same_values_and_gradients(padded_vocabulary, monkeypatch):
    model, n_vocab = padded_vocabulary
    ids = torch.randint(0, n_vocab, (3, 12), generator=torch.Generator().manual_seed(1))
    results = []
    for chunk_logits in (2**27, 4 * n_vocab):  # all tokens at once; 4 at a time, recomputed in backward
        monkeypatch.setattr(Policy, "CHUNK_LOGITS", chunk_logits)
        model.zero_grad()
        logprobs, entropy = Policy(model, n_vocab, 1.0)(ids, torch.tensor([5, 5, 5]), ids[:, 5:], torch.ones(3, 7, dtype=torch.bool))
        (logprobs.sum() + 0.3 * entropy.square().sum()).backward()
        results.append([logprobs.detach(), entropy.detach(), *(p.grad.clone() for p in model.parameters())])
    for whole, chunked in zip(*results):
        assert torch.allclose(whole, chunked, atol=1e-5)


# --- sync -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", (1, 2))
@pytest.mark.parametrize("sampler", ("hf", "vllm"))
def test_after_a_step_and_sync_the_sampler_is_the_trained_model(sampler, ranks):
    if sampler == "vllm":
        pytest.importorskip("vllm")
    out = torchrun(ranks, ROOT / "tests/sync.py", TINY, sampler)
    assert out.count("log-probs agree") == ranks


def test_a_run_with_vllm_as_sampler(tmp_path):
    pytest.importorskip("vllm")
    metrics = run_training(tmp_path, "--sampler", "vllm", "--loss", "kl_cov")
    assert [m["step"] for m in metrics] == [0, 1, 2]
    assert metrics[2]["rollout/logprob_diff"] < 1e-4


# --- whole runs -------------------------------------------------------------------------------------------


def test_a_seed_repeats_a_run_exactly_and_another_does_not(tmp_path):
    runs = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).mkdir()
        runs.append(without_times(run_training(tmp_path / name, "--seed", seed, "--loss", "clip_cov")))
    assert runs[0] == runs[1]
    assert runs[0][1]["actor/entropy"] != runs[2][1]["actor/entropy"]


def test_gradient_checkpointing_changes_memory_not_results(tmp_path):
    runs = []
    for name in ("false", "true"):
        (tmp_path / name).mkdir()
        runs.append(run_training(tmp_path / name, "--grad_checkpointing" if name == "true" else "--no-grad_checkpointing", "--max_steps", "1", "--loss", "ref_kl"))
    assert runs[0][1]["actor/grad_norm"] == pytest.approx(runs[1][1]["actor/grad_norm"], rel=1e-4)
    assert runs[0][1]["actor/entropy"] == pytest.approx(runs[1][1]["actor/entropy"], rel=1e-6)


def test_run_folder_has_what_it_promises(tmp_path):
    metrics = run_training(tmp_path, "--loss", "kl_cov", "--samples_every", "1")
    assert [m["step"] for m in metrics] == [0, 1, 2]
    assert metrics[0].keys() == {k for k in metrics[2] if k.startswith("val/")} | {"step"}
    last = metrics[2]
    for name in ("actor/pg_loss", "actor/entropy", "actor/ppo_kl", "actor/ppo_kl_abs", "actor/grad_norm", "actor/lr", "reward/mean",
                 "reward/acc", "reward/rate_right", "reward/rate_timeout", "response_length/mean", "response_length/max",
                 "response_length/clip_ratio", "rollout/frac_zero_std", "rollout/gen_rounds", "rollout/logprob_diff", "cov/mean",
                 "cov/std", "cov/top_0.02%", "cov/top_0.2%", "cov/top_2%", "cov/selected", "cov/overlap", "timing_s/gen",
                 "timing_s/score", "timing_s/logprob", "timing_s/update", "timing_s/sync", "timing_s/step", "tokens_per_s"):
        assert isinstance(last[name], (int, float)), name
    assert last["rollout/logprob_diff"] < 1e-5, "the sampler does not hold the policy's weights"
    assert abs(sum(last[f"reward/rate_{s}"] for s in train.reward.STATUSES) - 1) < 1e-9
    assert abs(last["cov/selected"] - train.Config.kl_cov_ratio) < 0.01
    samples = [json.loads(line) for line in open(tmp_path / "runs/run/samples/step_000002.jsonl")]
    assert len(samples) % 8 == 0 and {"group", "response", "reward", "status", "answer"} <= samples[0].keys()
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "runs/run/hf/step_000002")
    base = AutoModelForCausalLM.from_pretrained(TINY)
    change = max(float((a - b).detach().abs().max()) for a, b in zip(exported.parameters(), base.parameters()))
    assert 0 < change < 0.1
    assert AutoTokenizer.from_pretrained(tmp_path / "runs/run/hf/step_000002")("1+2").input_ids


def test_two_ranks_draw_different_samples_and_train_one_policy(tmp_path):
    metrics = run_training(tmp_path, "--samples_every", "1", ranks=2)
    assert len(metrics) == 3 and metrics[2]["rollout/logprob_diff"] < 1e-5
    rows = [json.loads(line) for line in open(tmp_path / "runs/run/samples/step_000001.jsonl")]
    groups = [[r["response"] for r in rows if r["group"] == g] for g in range(rows[-1]["group"] + 1)]
    half = len(groups) // 2  # the first half is rank 0's
    assert all(a != b for a, b in zip(groups[:half], groups[half:]))


def test_oversampling_fills_a_step_in_few_rounds_whatever_the_share_of_usable_groups(monkeypatch):
    """A simulated rollout in which a group is usable with a probability that falls from 0.9 to 0.34, as in a long run."""
    draw, asked, P = random.Random(0), [], 64

    def step(run, p):
        monkeypatch.setattr(train, "generate", lambda run, problems, seed: problems)
        monkeypatch.setattr(train, "score", lambda run, problems: [draw.random() < p for _ in problems])
        before = run.state["drawn"]
        groups = train.rollout(run)
        asked.append(run.state["drawn"] - before)
        return len(groups), run.metrics["rollout/gen_rounds"]

    monkeypatch.setattr(train, "teaches", lambda cfg, group: group)
    monkeypatch.setattr(train, "rollout_metrics", lambda sampled, rounds, statuses: {"rollout/gen_rounds": rounds})

    def simulate(oversample):
        cfg = train.Config(prompts_per_step=P, max_gen_rounds=10, oversample=oversample)
        run = SimpleNamespace(cfg=cfg, stream=itertools.repeat({}), metrics={"step": 1}, state={"drawn": 0, "usable": 1.0})
        return np.array([step(run, p) for p in np.repeat(np.linspace(0.9, 0.34, 40), 5)])

    plain, few = simulate(False), simulate(True)
    assert (few[:, 0] == P).all(), "every step is whole"
    assert few[1:, 1].mean() < 1.25 and few[1:, 1].max() <= 3, few[:, 1]
    assert plain[:, 1].mean() > 2
    assert sum(asked[200:]) < 1.2 * sum(asked[:200]), "and little is generated for nothing"


def test_compiled_layers_train_alike_and_resume_exactly(tmp_path):
    for name in ("eager", "whole"):
        (tmp_path / name).mkdir()
    eager = run_training(tmp_path / "eager", "--loss", "kl_cov")
    compiled = run_training(tmp_path / "whole", "--loss", "kl_cov", "--compile", "--checkpoint_every", "1", "--samples_every", "0")
    for name in ("actor/grad_norm", "actor/entropy", "actor/ppo_kl_abs", "actor/pg_loss"):
        assert compiled[1][name] == pytest.approx(eager[1][name], rel=1e-4), name
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped", symlinks=True)
    shutil.rmtree(tmp_path / "stopped/runs/run/checkpoints/step_000002")
    done = subprocess.run([sys.executable, str(ROOT / "train.py"), "--resume", "runs/run"], env=ENV, cwd=tmp_path / "stopped",
                          capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 and "resumed after step 1" in done.stderr + done.stdout, done.stderr[-3000:]
    resumed = [json.loads(line) for line in open(tmp_path / "stopped/runs/run/metrics.jsonl")]
    assert without_times(resumed) == without_times(compiled)


def test_when_no_group_teaches_anything_the_step_is_logged_without_an_update(tmp_path):
    impossible = tmp_path / "impossible.jsonl"
    rows = [{"problem": f"1,1,1,{i}:9\n", "numbers": [1, 1, 1, i], "target": 10**6, "task": "countdown", "source": "x"} for i in range(1, 10)]
    impossible.write_text("".join(json.dumps(r) + "\n" for r in rows))
    metrics = run_training(tmp_path, "--train_data", str(impossible), "--max_gen_rounds", "2", "--overlong_buffer", "40")
    assert metrics[1]["reward/mean"] < 0, "a length penalty makes rewards differ, and is nothing to train on alone"
    assert [m.get("actor/grad_norm") for m in metrics] == [None] * 3
    assert (tmp_path / "runs/run/samples/step_000001.jsonl").exists() and (tmp_path / "runs/run/samples/step_000002.jsonl").exists()
    assert metrics[1]["rollout/frac_zero_std"] == 1 and metrics[1]["rollout/gen_rounds"] == 2
    assert metrics[0]["val/" + source_of_val() + "/avg@1"] == metrics[2]["val/" + source_of_val() + "/avg@1"]


def source_of_val() -> str:
    return json.loads(open(ROOT / "tiny/val.jsonl").readline())["source"]


# --- bad input --------------------------------------------------------------------------------------------

BAD_OPTIONS = {
    "unknown field": (["--kl_covratio", "0.1"], "--kl_cov_ratio"),
    "wrong type": (["--lr", "fast"], "lr"),
    "unknown loss": (["--loss", "ppo"], "kl_cov"),
    "unknown preset": (["--preset", "8b"], "7b"),
    "no such model folder": (["--model", "/no/such/folder"], "/no/such/folder"),
    "mini-batch does not divide": (["--mini_batch_prompts", "5"], "does not divide"),
    "negative": (["--lr", "-1"], "--lr"),
    "not a number": (["--temperature", "nan"], "--temperature"),
    "greedy training": (["--temperature", "0"], "--temperature"),
    "group of one": (["--group_size", "1"], "--group_size"),
    "percent for a fraction": (["--model", "tiny", "--kl_cov_ratio", "0.2"], "0.002"),
    "random without a cov method": (["--selection", "random"], "--selection"),
    "clip of a loss without one": (["--loss", "kl_cov", "--clip_ratio_low", "0.3"], "--clip_ratio_low"),
    "an option of another loss": (["--ppo_kl_coef", "3"], "--ppo_kl_coef"),
    "a selection where nothing is selected": (["--cov_logprobs", "old"], "--cov_logprobs"),
    "an empty band": (["--loss", "clip_cov", "--clip_cov_lb", "5", "--clip_cov_ub", "1"], "--clip_cov_lb"),
    "run name leaves runs/": (["--name", "..", "--overwrite"], "--name"),
    "not a boolean": (["--overwrite", "yes"], "overwrite"),
    "greedy, several samples": (["--val_temperature", "0"], "--val_samples"),
    "ratio above one": (["--loss", "kl_cov", "--kl_cov_ratio", "2"], "fraction"),
    "the embedded run's ratio for another model": (["--model", "some/model", "--loss", "kl_cov"], "--kl_cov_ratio"),
    "validation prompt too long": (["--max_prompt_tokens", "12"], "--max_prompt_tokens"),
    "no such data": (["--train_data", "/no/such.jsonl"], "/no/such.jsonl"),
    "vllm missing": (["--sampler", "vllm"], "vllm"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options_end_with_one_line_and_code_2(case, tmp_path, monkeypatch, capsys):
    options, word = BAD_OPTIONS[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")
    monkeypatch.setattr(sys, "argv", ["train.py", *options])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(train, "load_policy", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(SystemExit) as exit_:
        start_training()
    lines = capsys.readouterr().err.strip().splitlines()
    assert exit_.value.code == 2 and len(lines) == 1 and word in lines[0], lines
    assert not (tmp_path / "runs").exists()


def test_a_row_without_an_answer_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")
    data = tmp_path / "data.jsonl"
    data.write_text('{"problem": "1+1?", "answer": "2", "task": "math", "source": "x"}\n{"problem": "1+2?", "task": "math", "source": "x"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--train_data", str(data)])
    with pytest.raises(SystemExit) as exit_:
        start_training()
    lines = capsys.readouterr().err.strip().splitlines()
    assert exit_.value.code == 2 and len(lines) == 1, lines
    assert "data.jsonl" in lines[0] and "2" in lines[0] and "answer" in lines[0]


def test_more_ranks_than_prompts_is_refused():
    with pytest.raises(ValueError, match="processes"):
        train.check(train.Config(prompts_per_step=4, mini_batch_prompts=4), world_size=8)


def test_a_short_step_ends_in_no_tiny_update(monkeypatch):
    """A rest of less than half a mini-batch joins the one before; full steps, and longer rests, are cut as ever."""
    monkeypatch.setattr(batches, "micro_batches", lambda *_: ([], 0))
    sizes = lambda n, size: [len(mini.groups) for mini in batches.mini_batches([[i] for i in range(n)], size, 0, None)]
    assert sizes(32, 4) == [4] * 8 and sizes(31, 4) == [4] * 7 + [3] and sizes(30, 4) == [4] * 7 + [2]
    assert sizes(29, 4) == [4] * 6 + [5] and sizes(75, 32) == [32, 43] and sizes(5, 32) == [5] and sizes(0, 4) == []


def test_32b_on_8_gpus_of_80_gb_is_too_much(monkeypatch):
    """The shapes of Qwen2.5 7B and 32B."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shapes = {"7b": (SimpleNamespace(hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
                                     vocab_size=152064), 7.6e9),
              "32b": (SimpleNamespace(hidden_size=5120, num_hidden_layers=64, num_attention_heads=40, num_key_value_heads=8,
                                      vocab_size=152064), 32.8e9)}

    def need(preset, size, vllm=True, world_size=8):
        cfg = train.parse_args(["--preset", preset, "--loss", "kl_cov"], train.Config, train.PRESETS)
        return gpu_memory(cfg, *shapes[preset], world_size, size, vllm)

    assert need("7b", 80) < 80 < need("32b", 80) and need("32b", 141) < 141 < need("32b", 141, world_size=4)
    assert need("7b", 80, vllm=False) > 80, "the cache of 512 responses of 10,240 tokens"


@pytest.mark.parametrize("answers", (True, False))
def test_a_hub_that_does_not_answer_counts_as_offline(answers, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "x")  # what the test sets is undone after it
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "mine")
    with socketserver.TCPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:  # 501 to everything
        if answers:
            threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        if not answers:
            server.server_close()
        set_environment(train.Config(model="nobody/nothing"))
    assert os.environ.get("HF_HUB_OFFLINE") == (None if answers else "1")
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "mine"


def test_a_run_folder_is_never_overwritten_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")
    (tmp_path / "runs/grpo-seed1").mkdir(parents=True)
    with pytest.raises(ValueError, match="--overwrite"):
        train.check(train.Config(), 1)
    train.check(train.Config(overwrite=True), 1)


@pytest.mark.parametrize("preset", ("7b", "32b"))
def test_presets_hold_the_paper_s_values(preset, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # on a CPU, --tensor_parallel is refused
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    cfg = train.parse_args(["--preset", preset, "--loss", "kl_cov"], train.Config, train.PRESETS)
    train.check(cfg, world_size=8)
    assert (cfg.prompts_per_step, cfg.group_size, cfg.mini_batch_prompts) == (256, 8, 32)
    assert (cfg.max_prompt_tokens, cfg.max_response_tokens, cfg.temperature) == (2048, 8192, 1.0)
    assert cfg.kl_cov_ratio == {"7b": 2e-3, "32b": 2e-4}[preset] and cfg.lr == {"7b": 5e-7, "32b": 1e-6}[preset]
    assert (cfg.clip_cov_ratio, cfg.clip_cov_lb, cfg.clip_cov_ub, cfg.ppo_kl_coef) == (2e-4, 1.0, 5.0, 1.0)
    assert train.parse_args(["--lr", "1e-5", "--preset", preset], train.Config, train.PRESETS).lr == 1e-5, "the command line wins"


def test_the_choices_of_the_command_line_are_those_of_the_tables():
    hints = typing.get_type_hints(train.Config)
    assert typing.get_args(hints["loss"]) == tuple(LOSSES)
    assert typing.get_args(hints["advantage"]) == (*ADVANTAGES, "prime")
    for table, given in ((LOSSES, ("selected", "selected_share", "entropy", "ref_logprobs", "generator")), (SELECT, ("entropy", "generator"))):
        for name, function in table.items():
            options = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
            assert set(options) - set(given) <= vars(train.Config()).keys(), name


def test_a_loss_alone_is_what_the_readme_reports():
    clip = {name: (cfg.clip_ratio_low, cfg.clip_ratio_high) for name in LOSSES
            for cfg in [train.parse_args(["--loss", name], train.Config, train.PRESETS)]}
    assert clip["grpo"] == clip["clip_cov"] == (0.2, 0.2) and clip["clip_higher"] == clip["top_entropy"] == (0.2, 0.28)
    paper = train.parse_args(["--preset", "7b", "--loss", "clip_cov"], train.Config, train.PRESETS)
    assert (paper.clip_ratio_low, paper.clip_ratio_high, paper.clip_cov_ratio) == (1.0, 1.0, 2e-4)
    prime = train.parse_args(["--advantage", "prime", "--max_accuracy", "1"], train.Config, train.PRESETS)
    assert (prime.min_accuracy, prime.max_accuracy) == (0.2, 1.0), "their filter, but for what is given"


def test_epochs_are_shuffled_and_complete():
    problems = [{"i": i} for i in range(7)]
    stream = train.shuffled_epochs(problems, seed=3)
    epochs = [[next(stream)["i"] for _ in problems] for _ in range(3)]
    assert all(sorted(e) == list(range(7)) for e in epochs) and epochs[0] != epochs[1]
    again = train.shuffled_epochs(problems, seed=3)
    assert [next(again)["i"] for _ in problems] == epochs[0]
