"""pass@k, the entropy law, evaluate() and the four commands."""
import collections
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import eval as E  # noqa: E402
from support import figures as F  # noqa: E402
import reward  # noqa: E402
from support.samplers import Sample  # noqa: E402

BASE = str(ROOT / "tiny/base")


def run_command(monkeypatch, *argv):
    """What `python eval.py ...` does, in this process."""
    try:
        command = E.read_command([*map(str, argv)], E.__doc__)
    except ValueError as error:
        E.refuse(error, "eval.py")
    E.main(*command)


def assert_refuses(monkeypatch, capsys, *argv, says):
    with pytest.raises(SystemExit) as exit:
        run_command(monkeypatch, *argv)
    error = capsys.readouterr().err.strip().splitlines()
    assert exit.value.code == 2 and len(error) == 1 and says in error[0], error


# pass@k ---------------------------------------------------------------------------------------------------

def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample():
    for n in range(1, 11):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = list(itertools.combinations([i < c for i in range(n)], k))
            assert E.pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize("n, c, k", [(2, 0, 5), (4, 5, 1), (4, -1, 1), (4, 1, 0)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="pass@k"):
        E.pass_at_k(n, c, k)


# the entropy law ------------------------------------------------------------------------------------------

def test_law_without_noise_is_exact():
    H = np.array([0.8, 0.5, 0.3, 0.1])
    law = E.fit_entropy_law(H, -20 * np.exp(H) + 65)
    assert law == pytest.approx((20, 65, 0, 1, 45), abs=1e-9)
    assert law(0.0) == pytest.approx(law.ceiling)


def test_law_by_hand():
    # exp(H) = 1, 2, 3 and R = 6, 5, 1: slope -5/2, mean R 4 at exp(H) 2, residuals -1/2, 1, -1/2
    law = E.fit_entropy_law(np.log([1.0, 2.0, 3.0]), [6.0, 5.0, 1.0])
    assert law == pytest.approx((2.5, 9.0, np.sqrt(0.5), 1 - 1.5 / 14, 6.5))


def test_intervals_cover_the_coefficients_at_about_the_nominal_rate():
    rng, a, b, draws, covered = np.random.default_rng(0), 15.0, 60.0, 200, collections.Counter()
    for _ in range(draws):    # 16 evaluations, as the embedded run has
        H = 0.15 + 0.4 * np.exp(-np.linspace(0, 4, 16)) + rng.normal(0, 0.01, 16)
        R = -a * np.exp(H) + b + rng.normal(0, 1.0, 16)
        interval = E.bootstrap_entropy_law(H, R)
        for key, true in (("a", a), ("b", b), ("ceiling", b - a)):
            covered[key] += interval[key][0] <= true <= interval[key][1]
    assert all(0.88 * draws <= covered[key] <= 0.98 * draws for key in interval), covered    # 95 % nominal


def test_intervals_are_percentiles_of_refitted_laws():
    H, R = np.array([0.5, 0.4, 0.2, 0.1]), np.array([20.0, 35.0, 50.0, 51.0])
    laws, rng = [], np.random.default_rng(1)
    while len(laws) < 4000:    # one at a time, with numpy's own least squares
        i = rng.integers(4, size=4)
        if len(set(i)) > 1:
            slope, intercept = np.polyfit(np.exp(H[i]), R[i], 1)
            laws.append((-slope, intercept, intercept + slope))
    intervals = E.bootstrap_entropy_law(H, R, draws=4000)
    for k, key in enumerate(("a", "b", "ceiling")):
        expected = np.percentile(np.array(laws)[:, k], [2.5, 97.5])
        np.testing.assert_allclose(intervals[key], expected, atol=0.05 * np.ptp(expected))


def test_three_evaluations_have_finite_intervals():    # 1 of 9 resamples is one evaluation three times
    intervals = E.bootstrap_entropy_law(np.array([0.5, 0.3, 0.1]), np.array([20.0, 30.0, 35.0]))
    assert np.isfinite(list(intervals.values())).all()


@pytest.mark.parametrize("runs, evaluations, x", [(2, 20, 0.7), (3, 48, 0.99), (5, 31, 0.2), (3, 9, 0.4)])
def test_one_curve_p_value_is_the_tail_of_the_f_distribution(runs, evaluations, x):
    d1, d2 = 2 * runs - 2, evaluations - 2 * runs
    f = (1 - x) / x * d2 / d1    # ((sse_one - sse_each) / d1) / (sse_each / d2)
    u = np.linspace(0, 1, 400_001)[1:-1]    # F = d2 u / (d1 (1 - u)) with u ~ Beta(d1 / 2, d2 / 2)
    density = u ** (d1 / 2 - 1) * (1 - u) ** (d2 / 2 - 1)
    tail = density[d2 * u / (d1 * (1 - u)) > f].sum() / density.sum()
    assert E.one_curve_p_value(1.0, x, runs, evaluations) == pytest.approx(tail, rel=1e-3)


def test_one_curve_p_value_is_uniform_if_it_is_one_curve():
    rng, p = np.random.default_rng(0), []
    for _ in range(400):
        H, R = rng.uniform(0.1, 0.6, (2, 8)), None
        R = 60 - 20 * np.exp(H) + rng.normal(0, 2, H.shape)
        each = sum(E.fit_entropy_law(h, r).rmse ** 2 * 8 for h, r in zip(H, R))
        p.append(E.one_curve_p_value(E.fit_entropy_law(H.ravel(), R.ravel()).rmse ** 2 * 16, each, 2, 16))
    np.testing.assert_allclose(np.percentile(p, [5, 25, 50, 75]), [0.05, 0.25, 0.5, 0.75], atol=0.06)


def test_prediction_from_the_first_evaluations():
    H = np.linspace(0.8, 0.1, 12)
    R = -20 * np.exp(H) + 65
    R[6:] += 3.0    # the rest lies 3 points above the law of the first six
    law, error = E.predict_entropy_law(H, R, first=6)
    assert (law.a, law.b, error) == pytest.approx((20, 65, 3))
    for first in (2, 12):
        with pytest.raises(ValueError, match="first"):
            E.predict_entropy_law(H, R, first=first)


@pytest.mark.parametrize("H, R", [([], []), ([0.3, 0.2], [1, 2]), ([0.3] * 9, range(9)),
                                  ([0.3, 0.2, 0.3], [1, 2, 3]), ([0.3, 0.2, np.nan], [1, 2, 3]),
                                  ([0.3, 0.2, 0.1], [1, 2, np.inf])])
def test_law_refuses_degenerate_input(H, R):
    with pytest.raises(ValueError, match="no entropy law"):
        E.fit_entropy_law(H, R)


def test_law_that_explains_nothing():
    H = np.linspace(0.1, 0.8, 8)
    assert E.fit_entropy_law(H, np.full(8, 40.0)).r2 == 0.0
    for R, says in ((np.full(8, 40.0), "DOES NOT FIT"), (np.array([40, 20] * 4), "DOES NOT FIT"),
                    (40 + 10 * H, "accuracy rises"), (120 - 30 * H, "above 100 %"), (80 - 30 * H, "")):
        verdict = E.describe("run", E.fit_entropy_law(H, R), H, R).rpartition("evaluations")[2]
        assert says in verdict and bool(says) == bool(verdict)


# evaluate -------------------------------------------------------------------------------------------------

class ScriptedSampler:
    """Answers the i-th problem's samples with fixed expressions; two tokens of -0.5 and -1.5 a character."""
    dp_rank, dp_size = 0, 1
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    script = {"1,2:3\n": ["1+2", "2-1", "2+1"], "4,5:9\n": ["4-5", "4*5", "5"], "6,7:13\n": ["6+7"] * 3}

    def __init__(self):
        self.calls = []

    def generate(self, prompts, *, n, max_tokens, temperature, seed):
        self.calls.append((len(prompts), n, temperature, seed))
        return [[Sample(self.tokenizer(text).input_ids, [-0.5] * (len(text) - 1) + [-1.5],
                          "length" if len(text) == 1 else "stop")
                 for text in self.script[self.tokenizer.decode(prompt)][:n]] for prompt in prompts]

    def close(self):
        pass


PROBLEMS = [{"problem": text, "numbers": [int(x) for x in text.split(":")[0].split(",")],
             "target": int(text.split(":")[1]), "task": "countdown", "source": "test"}
            for text in ScriptedSampler.script]


def test_evaluate_by_hand():
    result = E.evaluate(ScriptedSampler(), PROBLEMS, n=3, temperature=1.0, max_tokens=3, seed=5)
    assert [r["status"] for r in result["samples"]] == [
        "right", "wrong", "right", "wrong", "wrong", "truncated", "right", "right", "right"]
    assert result["avg@3"] == pytest.approx(5 / 9) and result["pass@3"] == pytest.approx(2 / 3)
    # eight responses of three tokens at 0.5, 0.5, 1.5 nats and one of one token at 1.5
    assert result["entropy"] == pytest.approx((8 * 2.5 + 1.5) / 25)
    assert result["length"] == pytest.approx(25 / 9) and result["truncated"] == pytest.approx(1 / 9)


def test_evaluate_greedy():
    result = E.evaluate(ScriptedSampler(), PROBLEMS, n=1, temperature=0, max_tokens=3)
    assert result["entropy"] is None and result["avg@1"] == result["pass@1"] == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="greedy"):
        E.evaluate(ScriptedSampler(), PROBLEMS, n=3, temperature=0, max_tokens=3)


def evaluate_on_rank(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = []
    for dp_rank, dp_size in ((rank, 2), (0, 1)):    # two engines; one engine of two tensor-parallel ranks
        sampler = ScriptedSampler()
        sampler.dp_rank, sampler.dp_size = dp_rank, dp_size
        results.append(E.evaluate(sampler, PROBLEMS, n=3, temperature=1.0, max_tokens=3, seed=5))
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def test_evaluate_on_two_ranks_equals_one(tmp_path):
    alone = E.evaluate(ScriptedSampler(), PROBLEMS, n=3, temperature=1.0, max_tokens=3, seed=5)
    mp.spawn(evaluate_on_rank, (str(tmp_path),), nprocs=2)
    for rank in (0, 1):
        for result in json.loads((tmp_path / f"{rank}.json").read_text()):
            assert result == alone


# bench ----------------------------------------------------------------------------------------------------

@pytest.fixture
def val(tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text("".join(list((ROOT / "tiny/val.jsonl").open())[:24]))
    return path


def bench(monkeypatch, val, out):
    run_command(monkeypatch, "bench", BASE, "--benchmarks", val, "--out", out, "--samples", 2,
                "--max-tokens", 48, "--seed", 7)
    return json.loads((out / "bench.json").read_text())[str(val)]


def test_bench_equals_evaluate(monkeypatch, val, tmp_path, capsys):
    row = bench(monkeypatch, val, tmp_path / "out")
    sampler = E.HFSampler(BASE, AutoTokenizer.from_pretrained(BASE), device="cpu", dtype=torch.float32)
    expected = E.evaluate(sampler, reward.load_problems(val), n=2, temperature=1.0, max_tokens=48, seed=7)
    samples = [json.loads(line) for line in (tmp_path / "out/few.jsonl").open()][1:]
    assert samples == expected.pop("samples")
    assert {key: row[key] for key in expected} == expected
    low, high = row["interval"]
    assert 0 <= low <= row["avg@2"] <= high <= 1
    assert f"{100 * row['avg@2']:.1f}" in capsys.readouterr().out


def test_interrupted_bench_continues(monkeypatch, val, tmp_path):
    monkeypatch.setattr(E, "CHUNK", 10)
    whole = bench(monkeypatch, val, tmp_path / "whole")
    evaluate, calls, limit = E.evaluate, [], 2

    def interrupted(sampler, problems, **settings):
        if len(calls) == limit:
            raise KeyboardInterrupt
        calls.append(len(problems))
        return evaluate(sampler, problems, **settings)

    monkeypatch.setattr(E, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(monkeypatch, val, tmp_path / "cut")
    calls, limit = [], 9
    assert bench(monkeypatch, val, tmp_path / "cut") == whole
    assert calls == [4]
    text = (tmp_path / "whole/few.jsonl").read_text()
    assert (tmp_path / "cut/few.jsonl").read_text() == text

    # cut off in the settings, in the first response, in the second chunk, between two lines; complete
    lines = text.splitlines(keepends=True)
    cuts = [(text[:30], [10, 10, 4]), (text[:len(lines[0]) + 9], [10, 10, 4]), ("".join(lines[:21]), [10, 4]),
            ("".join(lines[:34]) + lines[34][:-20], [10, 4]), (text, [])]
    for left, again in cuts:
        calls = []
        (tmp_path / "cut/few.jsonl").write_text(left)
        assert bench(monkeypatch, val, tmp_path / "cut") == whole and calls == again
        assert (tmp_path / "cut/few.jsonl").read_text() == text


def test_bench_does_not_mix_settings_data_or_weights(monkeypatch, val, tmp_path, capsys):
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(BASE, model)
    command = ["bench", model, "--benchmarks", val, "--out", out, "--max-tokens", 8, "--samples"]
    run_command(monkeypatch, *command, 1)
    before = (out / "few.jsonl").read_text()
    capsys.readouterr()
    assert_refuses(monkeypatch, capsys, *command, 2, says="n 1, not 2")
    rows = val.read_text()
    val.write_text("".join(rows.splitlines(keepends=True)[::-1]))
    assert_refuses(monkeypatch, capsys, *command, 1, says="content")
    val.write_text(rows)
    os.utime(model / "model.safetensors", (1, 1))    # another training run has written the folder
    assert_refuses(monkeypatch, capsys, *command, 1, says="--out")
    assert (out / "few.jsonl").read_text() == before


def test_bench_interval_is_a_bootstrap_over_problems(monkeypatch, tmp_path, capsys):
    # 8 problems all right, 8 all wrong, 8 samples each: standard error sqrt(1/4 / 16) = 0.125 over problems
    # (over the 128 samples it would be 0.044)
    sampler = ScriptedSampler()
    sampler.script = {**{f"1,{i}:{i + 1}\n": [f"1+{i}"] * 8 for i in range(2, 10)},
                      **{f"1,{i}:{i + 1}\n": ["1+1"] * 8 for i in range(10, 18)}}
    rows = [{"problem": key, "numbers": [1, i], "target": i + 1, "task": "countdown", "source": "t"}
            for i, key in enumerate(sampler.script, 2)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(E, "HFSampler", lambda *args, **kwargs: sampler)
    run_command(monkeypatch, "bench", BASE, "--benchmarks", tmp_path / "t.jsonl", "--samples", 8,
                "--out", tmp_path / "out")
    row, = json.loads((tmp_path / "out/bench.json").read_text()).values()
    assert row["avg@8"] == 0.5 and row["pass@8"] == 0.5
    np.testing.assert_allclose(row["interval"], [0.5 - 1.96 * 0.125, 0.5 + 1.96 * 0.125], atol=0.04)


def test_the_paper_row_stands_beside_its_seven_benchmarks_only(capsys):
    row = {"n": 1, "problems": 30, "temperature": 0.0, "avg@1": 0.3, "pass@1": 0.3, "interval": [0.2, 0.4],
           "length": 9.0, "truncated": 0.0, "entropy": None}
    seven_others = [f"{i}.jsonl" for i in range(7)]
    for names, shown in ((E.BENCHMARKS, True), (["aime24", "math500"], False), (seven_others, False)):
        results = {name: row | {"avg@1": 0.1 * i} for i, name in enumerate(names)}
        E.print_bench(results, [0.25, 0.35], E.PAPER["Qwen2.5-32B"])
        lines = capsys.readouterr().out.splitlines()
        average = np.mean([r["avg@1"] for r in results.values()])
        assert f"{100 * average:.1f}    25.0 - 35.0" in lines[-1]
        assert ("KL-Cov 52.2" in lines[-1]) == shown
        assert ("KL-Cov 36.8" in lines[1]) == ("aime24" in names)


def test_bench_on_two_ranks(monkeypatch, val, tmp_path, capsys):
    # greedy: no sampling seed, so the ranks have to give the single process's responses
    command = ["bench", BASE, "--benchmarks", val, "--samples", 1, "--temperature", 0, "--max-tokens", 24]
    run_command(monkeypatch, *command, "--out", tmp_path / "one")
    table = capsys.readouterr().out
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = subprocess.run([*map(str, [*torchrun, ROOT / "eval.py", *command, "--out", tmp_path / "two"])],
                             capture_output=True, text=True)
    assert process.returncode == 0 and process.stdout == table, process.stderr    # printed once
    assert sorted(os.listdir(tmp_path / "two")) == ["bench.json", "few.jsonl"]
    one, two = ([json.loads(line) for line in (tmp_path / out / "few.jsonl").open()]
                for out in ("one", "two"))
    for a, b in zip(one, two, strict=True):
        assert a.pop("logprob", None) == pytest.approx(b.pop("logprob", None), abs=1e-4) and a == b


def test_only_one_rank_speaks(monkeypatch, tmp_path, capsys):
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            run_command(monkeypatch, "bench", BASE, "--benchmarks", tmp_path / "no_such.jsonl")
        assert len(capsys.readouterr().err.splitlines()) == lines


def test_bench_equals_the_trainers_own_evaluation(monkeypatch, tmp_path):
    settings = {"max_steps": 2, "prompts_per_step": 8, "group_size": 4, "mini_batch_prompts": 4, "seed": 3,
                "max_gen_rounds": 2, "val_samples": 2, "max_response_tokens": 24, "lr": 1e-3, "name": "run"}
    options = [text for key, value in settings.items() for text in (f"--{key}", str(value))]
    (tmp_path / "tiny").symlink_to(ROOT / "tiny")    # the trainer writes into the folder that it runs in
    subprocess.run([sys.executable, ROOT / "train.py", *options], cwd=tmp_path, check=True,
                   capture_output=True)
    last = json.loads((tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()[-1])
    trained = {key.removeprefix("val/countdown/"): last[key] for key in last if key.startswith("val/")}
    run_command(monkeypatch, "bench", tmp_path / "runs/run/hf/step_000002", "--benchmarks",
                ROOT / "tiny/val.jsonl", "--samples", 2, "--max-tokens", 24, "--seed", 3,
                "--out", tmp_path / "out")
    row, = json.loads((tmp_path / "out/bench.json").read_text()).values()
    assert trained.keys() == {"avg@2", "pass@2", "entropy", "length", "truncated"}
    # the same samples; log-probs may differ in their last bit between processes with several threads
    assert {key: row[key] for key in trained} == pytest.approx(trained, rel=1e-6)
    assert row["avg@2"] == trained["avg@2"] and row["length"] == trained["length"]


def test_bench_decodes_each_benchmark_as_its_row_says(monkeypatch, tmp_path, capsys):
    import datasets
    problems = list(ScriptedSampler.script)
    tables = {"HuggingFaceH4/aime_2024": {"problem": problems, "answer": ["3", "9", "13"]},
              "Hothan/OlympiadBench": {"question": problems, "final_answer": [["3"], ["9"], ["13"]]},
              "HuggingFaceH4/MATH-500": {"question": problems, "answer": ["3", "9", "13"]}}

    def load_dataset(name, config, split):
        if name not in tables:
            raise ConnectionError("no network\nand a second line")
        return datasets.Dataset.from_dict(tables[name])

    sampler = ScriptedSampler()
    math_prompts = [reward.format_prompt({"problem": p}, sampler.tokenizer) for p in problems]
    sampler.script = sampler.script | {sampler.tokenizer.decode(ids): ["1"] * 32 for ids in math_prompts}
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(E, "HFSampler", lambda *args, **kwargs: sampler)
    local = tmp_path / "local.jsonl"
    local.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    run_command(monkeypatch, "bench", BASE, "--benchmarks", f"aime24,olympiad,minerva,math500,{local}",
                "--samples", 3, "--temperature", 0.9, "--out", tmp_path / "out")
    run_command(monkeypatch, "bench", BASE, "--benchmarks", "aime24", "--out", tmp_path / "alone")
    assert sampler.calls.pop()[1:3] == (32, 0.6)    # alone as well
    assert [(n, temperature) for _, n, temperature, _ in sampler.calls] == [(32, 0.6), (1, 0.0), (3, 0.9)]
    errors = capsys.readouterr().err.strip().splitlines()[:-1]    # the last is of the second call
    assert [line.split(":")[0] for line in errors] == [
        "warning", "warning", "skipped minerva", "skipped math500"]
    assert "30" in errors[0] and "674" in errors[1]
    assert "math-ai/minervamath" in errors[2] and "'problem'" in errors[3]
    assert list(json.loads((tmp_path / "out/bench.json").read_text())) == ["aime24", "olympiad", str(local)]


def test_bench_refuses(monkeypatch, capsys, tmp_path):
    assert_refuses(monkeypatch, capsys, "bench", BASE, "--benchmarks", "aime42", says="aime42")
    assert_refuses(monkeypatch, capsys, "bench", BASE, "--samples", 0, says="--samples")
    assert_refuses(monkeypatch, capsys, "bench", BASE, "--tensor_parallel", 2, says="--tensor_parallel 2")
    assert_refuses(monkeypatch, capsys, "bench", BASE, "--temperature", 0, says="--samples 1")
    twice = "a/x.jsonl,b/x.jsonl"
    assert_refuses(monkeypatch, capsys, "bench", BASE, "--benchmarks", twice, says="same name")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "no answer"}\n')
    assert_refuses(monkeypatch, capsys, "bench", BASE, "--benchmarks", bad, says="bad.jsonl, row 2")
    assert_refuses(monkeypatch, capsys, "bench", tmp_path, "--benchmarks", "aime24", says=str(tmp_path))


@pytest.mark.parametrize("answer, text", [(27.0, "27"), (0.5, "0.5"), (1234567.0, "1234567"), (204, "204"),
                                          ("\\frac12", "\\frac12"), (["2"], "2"), (["2", "-1"], "2, -1")])
def test_answer_text(answer, text):
    assert E.answer_text(answer) == text


# law and plot ---------------------------------------------------------------------------------------------

def write_run(folder, seed=1, loss="grpo", a=20.0, b=60.0, entropies=np.linspace(0.6, 0.1, 9), **config):
    folder.mkdir()
    config |= {"name": folder.name, "seed": seed, "loss": loss}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [{"step": step, "val/toy/avg@4": (b - a * np.exp(H)) / 100, "val/toy/entropy": H,
             "actor/entropy": H, "response_length/mean": 20.0 + seed, "cov/mean": 0.01, "cov/top_0.02%": 5.0,
             "cov/top_0.2%": 3.0, "cov/top_2%": 1.0} for step, H in enumerate(entropies)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_law_command(monkeypatch, tmp_path, capsys):
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", entropies=np.linspace(0.5, 0.2, 9)),
            write_run(tmp_path / "three", b=70)]
    run_command(monkeypatch, "law", *runs[:2], "--first", 4)
    output = capsys.readouterr().out
    assert output.count("a 20.0 [20.0, 20.0], b 60.0 [60.0, 60.0], ceiling 40.0 [40.0, 40.0]") == 3
    assert output.count("RMSE on the rest 0.00") == 2
    run_command(monkeypatch, "law", runs[0], runs[2])    # the same curve, 10 points higher
    assert "RMSE 5.00 with one curve, 0.00 with a curve per run" in capsys.readouterr().out


def test_law_against_model_size(monkeypatch, tmp_path, capsys):
    sizes = [0.5, 1.5, 7, 32]
    runs = [write_run(tmp_path / f"{size}b", a=10 + 2 * np.log(size), b=50 + 4 * np.log(size))
            for size in sizes]
    run_command(monkeypatch, "law", *runs, "--sizes", ",".join(map(str, sizes)))
    lines = capsys.readouterr().out.splitlines()
    assert "a = 10.00 +2.00 log(size)" in lines[-3] and "b = 50.00 +4.00 log(size)" in lines[-2]
    assert f"smaller models {10 + 2 * np.log(32):.2f}" in lines[-3] and lines[-1].endswith(": 0.00")
    assert_refuses(monkeypatch, capsys, "law", *runs, "--sizes", "1,2,3", says="--sizes")


def write_rows(folder, *rows, **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_greedy_evaluations_take_the_entropy_of_the_same_policy(tmp_path):
    # the samples of step t come from the policy that the evaluation of step t - 1 was of
    rows = [{"step": 0, "val/toy/avg@1": 0.1, "val/toy/entropy": None}, {"step": 1, "actor/entropy": 0.3},
            {"step": 2, "actor/entropy": 0.2, "val/toy/avg@1": 0.2, "val/toy/entropy": None},
            {"step": 3, "actor/entropy": 0.15}, {"step": 4, "actor/entropy": 0.12, "val/toy/avg@1": 0.25}]
    run = F.read_run(write_rows(tmp_path / "greedy", *rows, temperature=1.0, val_temperature=0.0))
    np.testing.assert_allclose(run.evaluations(), [[0, 2], [0.3, 0.15], [10, 20]])
    own = [row | {"val/toy/entropy": 0.5} for row in rows]    # at a training temperature: its own samples'
    run = F.read_run(write_rows(tmp_path / "own", *own, temperature=1.0, val_temperature=1.0))
    np.testing.assert_allclose(run.evaluations(), [[0, 2, 4], [0.5] * 3, [10, 20, 25]])


def test_several_validation_sets(monkeypatch, tmp_path, capsys):
    H = np.linspace(0.6, 0.1, 6)
    rows = [{"step": t, "actor/entropy": h, "val/a/b/avg@4": 0.5 - 0.1 * np.exp(h), "val/a/b/entropy": h,
             "val/c/avg@1": 0.9 - 0.2 * np.exp(h), "val/c/entropy": h} for t, h in enumerate(H)]
    run = write_rows(tmp_path / "run", *rows)
    for val, says in (("a/b", "a 10.0 "), ("c", "a 20.0 ")):
        run_command(monkeypatch, "law", run, "--val", val)
        output = capsys.readouterr().out
        assert f"points on {val}," in output and says in output
    run_command(monkeypatch, "law", run)
    assert "points on a/b," in capsys.readouterr().out
    rest = [{key: value for key, value in row.items() if "a/b" not in key} for row in rows]
    other = write_rows(tmp_path / "other", *rest)
    run_command(monkeypatch, "law", run, other)
    captured = capsys.readouterr()
    assert "other: no evaluations of a/b" in captured.err and captured.out.count("evaluations") == 1
    assert_refuses(monkeypatch, capsys, "law", other, "--val", "a/b", says="other: no evaluations of a/b")


def test_a_killed_run_is_read_to_its_last_whole_line(monkeypatch, tmp_path, capsys):
    run = write_run(tmp_path / "killed")
    with (run / "metrics.jsonl").open("a") as f:
        f.write('{"step": 9, "actor/entropy": 0.0')
    run_command(monkeypatch, "law", run)
    assert "9 evaluations" in capsys.readouterr().out
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:3] + ["7"] + lines[3:]))
    assert_refuses(monkeypatch, capsys, "law", run, says="metrics.jsonl, line 4")


def test_law_and_plot_refuse(monkeypatch, tmp_path, capsys):
    for name in ("law", "plot"):
        assert_refuses(monkeypatch, capsys, name, tmp_path / "nothing", says="nothing is not a run folder")
        good = write_run(tmp_path / f"good-{name}")
        assert_refuses(monkeypatch, capsys, name, good, "--val", "other", says="other")
        (good / "metrics.jsonl").write_text('{"step": 1, "actor')
        assert_refuses(monkeypatch, capsys, name, good, says="no evaluations")
        (good / "metrics.jsonl").write_text('{"step": 1, "actor/entropy": 0.2}\n')
        assert_refuses(monkeypatch, capsys, name, good, says="no evaluations")
        step_0 = {"step": 0, "val/toy/avg@4": 0.2, "val/toy/entropy": 0.5}
        base = write_rows(tmp_path / f"base-{name}", step_0)
        assert_refuses(monkeypatch, capsys, name, base, says=f"base-{name}: ")
        (base / "config.json").write_text("{")
        assert_refuses(monkeypatch, capsys, name, base, says="config.json is not JSON")
        (base / "config.json").unlink()
        assert_refuses(monkeypatch, capsys, name, base, says="config.json")
    constant = write_run(tmp_path / "constant", entropies=[0.4] * 9)
    assert_refuses(monkeypatch, capsys, "law", constant, says="constant: no entropy law")
    nan = write_run(tmp_path / "nan", entropies=[0.4, np.nan, 0.2, 0.1])
    assert_refuses(monkeypatch, capsys, "law", nan, says="nan: no entropy law")
    run = write_run(tmp_path / "run")
    assert_refuses(monkeypatch, capsys, "law", run, "--first", 9, says="run: cannot fit the first 9 of 9")
    assert_refuses(monkeypatch, capsys, "law", run, "--first", 0, says="--first")
    assert_refuses(monkeypatch, capsys, "law", run, "--sizes", "1,2", says="--sizes")
    assert_refuses(monkeypatch, capsys, "law", run, run, run, "--sizes", "1,0,2", says="--sizes")


def test_what_is_no_run_is_left_out_of_a_glob(monkeypatch, tmp_path, capsys):
    run_command(monkeypatch, "law", write_run(tmp_path / "run"), tmp_path)
    captured = capsys.readouterr()
    assert captured.out.count("evaluations") == 1 and f"left out {tmp_path}" in captured.err


def test_plot(monkeypatch, tmp_path):
    import matplotlib.pyplot as plt
    runs = [write_run(tmp_path / "g1", seed=1),
            write_run(tmp_path / "g2", seed=2, entropies=np.linspace(0.8, 0.1, 9)),
            write_run(tmp_path / "k1", loss="kl_cov", kl_cov_ratio=0.02)]
    groups = F.group_runs(F.read_runs(runs, ""))
    assert {label: [run.name for run in group] for label, group in groups.items()} == {
        "grpo": ["g1", "g2"], "kl_cov": ["k1"]}
    more = [write_run(tmp_path / "g3", seed=3, kl_cov_ratio=0.5),    # grpo does not use it: the same settings
            write_run(tmp_path / "k2", loss="kl_cov", kl_cov_ratio=0.05)]
    groups = F.group_runs(F.read_runs([*runs, *more], ""))
    assert {label: [run.name for run in group] for label, group in groups.items()} == {
        "grpo": ["g1", "g2", "g3"], "kl_cov, kl_cov_ratio 0.02": ["k1"], "kl_cov, kl_cov_ratio 0.05": ["k2"]}
    out = tmp_path / "results/picture.png"
    run_command(monkeypatch, "plot", *runs, "--out", out.with_suffix(".svg"), "--panels", "entropy,law")
    assert "<svg" in out.with_suffix(".svg").read_text() and len(plt.gcf().axes) == 2
    run_command(monkeypatch, "plot", *runs, "--out", out)
    assert out.read_bytes()[:4] == b"\x89PNG"
    entropy_ax, accuracy_ax, law_ax, tail_ax, length_ax, drop_ax, cov_ax = plt.gcf().axes
    assert law_ax.get_ylim()[1] <= 100 and not any(ax.get_legend() for ax in plt.gcf().axes), "no legend over data"
    np.testing.assert_allclose(cov_ax.lines[0].get_ydata(), 0.01)
    np.testing.assert_allclose(entropy_ax.lines[0].get_ydata(), np.linspace(0.7, 0.1, 9))    # mean of seeds
    band = entropy_ax.collections[0].get_paths()[0].vertices[:, 1]    # lowest to highest seed
    assert (band.min(), band.max()) == pytest.approx((0.1, 0.8))
    np.testing.assert_allclose(length_ax.lines[0].get_ydata(), 21.5)
    np.testing.assert_allclose(law_ax.lines[1].get_ydata()[0], 40.0)    # fitted ceiling
    np.testing.assert_allclose(drop_ax.lines[0].get_ydata(), 0.6 / 8)    # entropy drop a step
    np.testing.assert_allclose([bar.get_height() for bar in tail_ax.patches], [5, 3, 1] * 2)
    assert all(ax.get_xlabel() and ax.get_ylabel() for ax in plt.gcf().axes)
    assert all(ax.get_title() for ax in plt.gcf().axes[:-1])
    plt.close("all")


def test_seeds_with_a_target_each_are_one_group_and_micro_batches_no_setting(tmp_path):
    runs = [write_run(tmp_path / f"{loss}{seed}", seed=seed, loss=loss, micro_batch_tokens=1000 * seed, **options)
            for seed in (1, 2) for loss, options in (
                ("grpo", {"lr": 0.1}), ("entropy_bonus", {"lr": 0.1, "entropy_target": f"runs/kl_cov-seed{seed}/metrics.jsonl"}))]
    runs.append(write_run(tmp_path / "other", loss="grpo", lr=0.2, mini_batch_prompts=2))
    groups = F.group_runs(F.read_runs(runs, ""))    # lr alone tells the two apart; it is named only where it does
    assert {label: len(group) for label, group in groups.items()} == {"grpo, lr 0.1": 2, "grpo, lr 0.2": 1, "entropy_bonus": 2}
    micro = [write_run(tmp_path / f"micro{n}", loss="kl_cov", cov_scope="micro", micro_batch_tokens=n) for n in (1, 2)]
    assert len(F.group_runs(F.read_runs(micro, ""))) == 2


def test_a_method_has_one_colour_in_all_figures_and_a_control_is_dashed():
    alone, among = (F.styles_of(labels) for labels in (
        ["kl_cov"], ["grpo", "kl_cov, lr 1", "kl_cov, lr 2", "kl_cov, selection random", "lr 3", "lr 4"]))
    colors = [style["color"] for style in among.values()]
    assert colors[1] == colors[2] == colors[3] == alone["kl_cov"]["color"] and len(set(colors)) == 4
    assert among["kl_cov, selection random"]["linestyle"] == "--"
    assert len(set(map(str, among.values()))) == len(among)    # and no two look the same


def test_plot_of_runs_that_lack_something(monkeypatch, tmp_path):
    import matplotlib.pyplot as plt
    bare = [{"step": t, "actor/entropy": 0.5 - 0.05 * t, "selected/new": [1], "probe/new": None}
            for t in range(1, 7)]
    bare[1] |= {"val/toy/avg@4": 0.3, "val/toy/entropy": None}
    runs = [write_rows(tmp_path / "no-cov", *bare, loss="pg", seed=1),
            write_run(tmp_path / "long", seed=1, lr=0.1),
            write_run(tmp_path / "one", entropies=[0.5, 0.4], seed=1, lr=0.2),
            write_run(tmp_path / "short", entropies=[0.6, 0.4, 0.2], seed=2, lr=0.1)]
    run_command(monkeypatch, "plot", runs[0], "--out", tmp_path / "one.png")
    run_command(monkeypatch, "plot", *runs, "--out", tmp_path / "all.png")
    lengths = [len(line.get_xdata()) for line in plt.gcf().axes[0].lines]
    assert lengths == [6, 3, 2]    # of long and short: the steps that both have
    plt.close("all")


def test_plot_of_many_settings_has_as_many_colours(monkeypatch, tmp_path):
    import matplotlib.pyplot as plt
    runs = [write_run(tmp_path / f"lr{i}", lr=i) for i in range(12)]
    run_command(monkeypatch, "plot", *runs, "--out", tmp_path / "many.png")
    assert len({str(line.get_color()) for line in plt.gcf().axes[0].lines}) == 12
    plt.close("all")


# tokens ---------------------------------------------------------------------------------------------------

def test_token_entropies():
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    pairs = [(tokenizer("1,2:3\n").input_ids, tokenizer("1+2=3").input_ids),
             (tokenizer("4,5:9\n").input_ids, [7])]
    n_ids = len(tokenizer) - 2    # as if the last two outputs had no token
    expected = []
    for prompt, response in pairs:
        for t in range(len(response)):    # one forward pass a token, in float64
            with torch.no_grad():
                logits = model.double()(torch.tensor([prompt + response[:t]])).logits[0, -1, :n_ids]
            p = torch.softmax(logits, dim=-1)
            expected.append(-(p * p.log()).sum().item())
    np.testing.assert_allclose(E.token_entropies(model.float(), pairs, n_ids), expected, atol=1e-5)


@pytest.fixture(scope="module")
def surer(tmp_path_factory):
    """The base model with its logits times three: surer everywhere."""
    folder = tmp_path_factory.mktemp("surer")
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    model.model.norm.weight.data *= 3
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(folder)
    return folder


def test_tokens_against_a_slow_recomputation(monkeypatch, val, surer, capsys):
    run_command(monkeypatch, "tokens", BASE, val, "--problems", 10, "--samples", 2, "--max-tokens", 32,
                "--seed", 4, "--min-count", 5, "--top", 3, "--other", surer)
    output = capsys.readouterr().out

    tokenizer = AutoTokenizer.from_pretrained(BASE)
    sampler = E.HFSampler(BASE, tokenizer, device="cpu", dtype=torch.float32)
    prompts = [reward.format_prompt(problem, tokenizer) for problem in reward.load_problems(val)[:10]]
    groups = sampler.generate(prompts, n=2, max_tokens=32, temperature=1.0, seed=4)
    drawn = [(prompt, sample.token_ids) for prompt, group in zip(prompts, groups) for sample in group]
    entropies = []
    for path in (BASE, surer):
        model, values = AutoModelForCausalLM.from_pretrained(path).double(), []
        for prompt, response in drawn:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1:-1]
            rows = torch.softmax(logits[:, :len(tokenizer)], dim=-1).tolist()
            values += [-sum(p * np.log(p) for p in row if p > 0) for row in rows]
        entropies.append(values)
    base, after = entropies
    N, ranked = len(base), sorted(base)

    def quantile(q):    # linear between the two neighbours
        low = int(q * (N - 1))
        return ranked[low] + (q * (N - 1) - low) * (ranked[min(low + 1, N - 1)] - ranked[low])

    assert f"{N} tokens, 20 responses" in output and f"mean {sum(base) / N:.3f};" in output
    assert f"{100 * sum(H < 0.01 for H in base) / N:.1f} % of the tokens are below 0.01" in output
    for q in (5, 25, 50, 75, 80, 90, 95, 99):
        assert f"{q} % {quantile(q / 100):.3f}" in output

    of_token = collections.defaultdict(list)
    for token, H in zip([token for _, response in drawn for token in response], base):
        of_token[tokenizer.decode([token])].append(H)
    means = {text: sum(values) / len(values) for text, values in of_token.items() if len(values) >= 5}
    assert f"the {len(means)} tokens seen 5 times or more" in output
    for title, sign in (("highest", -1), ("lowest", 1)):
        order = sorted(means, key=lambda text: sign * means[text])
        listed = ", ".join(f"{text!r} {means[text]:.3f} {len(of_token[text])}" for text in order[:3])
        assert f"  {title}: {listed}\n" in output

    by_base, k = sorted(range(N), key=lambda i: base[i]), N // 5
    same = set(by_base[-k:]) & set(sorted(range(N), key=lambda i: after[i])[-k:])
    assert f"mean {sum(after) / N:.3f}; {100 * len(same) / k:.1f} % of the top 20 % positions" in output
    bands = [line.split()[3:] for line in output.splitlines() if " - " in line[:8]]
    assert len(bands) == 20
    start = 0
    for b, (before, now, change) in enumerate(bands):
        band = by_base[start:start + N // 20 + (b < N % 20)]
        start += len(band)
        expected = [sum(values[i] for i in band) / len(band) for values in (base, after)]
        np.testing.assert_allclose([float(before), float(now), float(change)],
                                   [*expected, expected[1] - expected[0]], atol=2e-4)
    assert start == N and float(bands[-1][-1]) < -0.1


def test_two_temperatures(monkeypatch, val, capsys):
    evaluate, calls = E.evaluate, []

    def recorded(sampler, problems, **settings):
        calls.append((*sampler.fork, settings["temperature"]))
        return evaluate(sampler, problems, **settings)

    monkeypatch.setattr(E, "evaluate", recorded)
    run_command(monkeypatch, "tokens", BASE, val, "--samples", 1, "--max-tokens", 32,
                "--temperatures", "1,0.5")
    output = capsys.readouterr().out
    lines = [line.split() for line in output.splitlines()[-2:]]
    assert lines[0][1] == lines[0][2]    # both temperatures are 1 either way
    assert [call[1:] for call in calls] == [(1.0, 1.0), (1.0, 1.0), (0.5, 1.0), (1.0, 0.5)]
    assert f" 80 % {calls[0][0]:.3f}," in output and f"above {calls[0][0]:.3f} nats" in output


def test_tokens_refuses(monkeypatch, capsys, val, surer, tmp_path):
    assert_refuses(monkeypatch, capsys, "tokens", tmp_path, val, says=str(tmp_path))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert_refuses(monkeypatch, capsys, "tokens", BASE, empty, says="empty.jsonl")
    assert_refuses(monkeypatch, capsys, "tokens", BASE, val, "--temperatures", "0,1", says="--temperatures")
    assert_refuses(monkeypatch, capsys, "tokens", BASE, val, "--problems", 1, "--max-tokens", 4,
                   says="too few for 5 % bands")
    bare, other = tmp_path / "bare", tmp_path / "other"
    for folder in (bare, other):
        shutil.copytree(BASE, folder)
    (bare / "model.safetensors").unlink()
    assert_refuses(monkeypatch, capsys, "tokens", bare, val, says="model.safetensors")
    assert_refuses(monkeypatch, capsys, "tokens", BASE, val, "--other", bare, says="model.safetensors")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["+"], vocab["-"] = vocab["-"], vocab["+"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert_refuses(monkeypatch, capsys, "tokens", BASE, val, "--other", other, says="its tokenizer is not")


def test_a_run_folder_stands_for_its_newest_export(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "run")
    assert_refuses(monkeypatch, capsys, "bench", run, "--benchmarks", "x.jsonl", says="no export in hf/")
    for step in (10, 20):
        (run / f"hf/step_{step:06d}").mkdir(parents=True)
    assert E.newest_export(str(run)) == str(run / "hf/step_000020") and E.newest_export(BASE) == BASE


def test_three_methods_on_two_curves(monkeypatch, tmp_path, capsys):
    """Two seeds of a method share a curve, another method's is 10 points higher: the F test is over methods, too."""
    runs = [write_run(tmp_path / "a1"), write_run(tmp_path / "a2", seed=2), write_run(tmp_path / "b1", b=70, loss="kl_cov")]
    run_command(monkeypatch, "law", *runs)
    output = capsys.readouterr().out
    assert "0.00 with a curve per method: NOT one curve" in output and "0.00 with a curve per run: NOT one curve" in output
