"""pass@k, the entropy law, evaluate() and the four commands."""
import itertools
import json
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
import reward  # noqa: E402

BASE = str(ROOT / "tiny/base")


def run_command(monkeypatch, *argv):
    monkeypatch.setattr(sys, "argv", ["eval.py", *map(str, argv)])
    E.main()


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


def test_intervals_cover_the_coefficients():
    rng, a, b, draws, covered = np.random.default_rng(0), 15.0, 60.0, 40, 0
    for _ in range(draws):
        H = 0.05 + 0.6 * np.exp(-np.linspace(0, 4, 40)) + rng.normal(0, 0.01, 40)
        R = -a * np.exp(H) + b + rng.normal(0, 1.0, 40)
        interval = E.bootstrap_entropy_law(H, R, draws=200)
        covered += all(low <= true <= high for true, (low, high) in
                       ((a, interval["a"]), (b, interval["b"]), (b - a, interval["ceiling"])))
    assert covered >= 0.8 * draws    # 95 % each, jointly a little less


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
    law = E.fit_entropy_law(H, [40, 20] * 4)
    assert law.r2 < 0.5 and "DOES NOT FIT" in E.describe("run", law, H, np.array([40, 20] * 4))


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
        return [[E.Sample(self.tokenizer(text).input_ids, [-0.5] * (len(text) - 1) + [-1.5],
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
    run_command(monkeypatch, "bench", BASE, "--benchmarks", val, "--out", out, "--n", 2, "--max-tokens", 48,
                "--seed", 7)
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
    evaluate, calls = E.evaluate, []

    def interrupted(sampler, problems, **settings):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(problems))
        return evaluate(sampler, problems, **settings)

    monkeypatch.setattr(E, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(monkeypatch, val, tmp_path / "cut")
    calls.clear()
    assert bench(monkeypatch, val, tmp_path / "cut") == whole
    assert calls == [4]
    assert (tmp_path / "cut/few.jsonl").read_text() == (tmp_path / "whole/few.jsonl").read_text()


def test_bench_does_not_mix_settings(monkeypatch, val, tmp_path, capsys):
    bench(monkeypatch, val, tmp_path / "out")
    capsys.readouterr()
    assert_refuses(monkeypatch, capsys, "bench", BASE, "--benchmarks", val, "--out", tmp_path / "out",
                   "--n", 3, "--max-tokens", 48, says="--out")


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
                "--n", 3, "--temperature", 0.9, "--out", tmp_path / "out")
    assert [(n, temperature) for _, n, temperature, _ in sampler.calls] == [(32, 0.6), (1, 0.0), (3, 0.9)]
    errors = capsys.readouterr().err.strip().splitlines()
    assert [line.split(":")[0] for line in errors] == [
        "warning", "warning", "skipped minerva", "skipped math500"]
    assert "30" in errors[0] and "674" in errors[1]
    assert "math-ai/minervamath" in errors[2] and "'problem'" in errors[3]
    assert list(json.loads((tmp_path / "out/bench.json").read_text())) == ["aime24", "olympiad", str(local)]


def test_bench_refuses(monkeypatch, capsys, tmp_path):
    assert_refuses(monkeypatch, capsys, "bench", BASE, "--benchmarks", "aime42", says="aime42")
    assert_refuses(monkeypatch, capsys, "bench", BASE, "--n", 0, says="--n")
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


def test_greedy_evaluations_take_the_entropy_of_training(tmp_path):
    run = E.Run("run", {}, [{"step": 0, "val/toy/avg@1": 0.1, "val/toy/entropy": None},
                            {"step": 4, "val/toy/avg@1": 0.2, "val/toy/entropy": None, "actor/entropy": 0.3},
                            {"step": 5, "actor/entropy": 0.25}], "toy")
    assert run.evaluations().T.tolist() == [[4, 0.3, 20.0]]


def test_law_and_plot_refuse(monkeypatch, tmp_path, capsys):
    for name in ("law", "plot"):
        assert_refuses(monkeypatch, capsys, name, tmp_path / "nothing", says="nothing is not a run folder")
        good = write_run(tmp_path / f"good-{name}")
        assert_refuses(monkeypatch, capsys, name, good, "--val", "other", says="other")
        (good / "metrics.jsonl").write_text('{"step": 1, "actor')
        assert_refuses(monkeypatch, capsys, name, good, says="not JSON")
        (good / "metrics.jsonl").write_text('{"step": 1, "actor/entropy": 0.2}\n')
        assert_refuses(monkeypatch, capsys, name, good, says="no evaluations")
    constant = write_run(tmp_path / "constant", entropies=[0.4] * 9)
    assert_refuses(monkeypatch, capsys, "law", constant, says="constant: no entropy law")
    nan = write_run(tmp_path / "nan", entropies=[0.4, np.nan, 0.2, 0.1])
    assert_refuses(monkeypatch, capsys, "law", nan, says="nan: no entropy law")


def test_plot(monkeypatch, tmp_path):
    import matplotlib.pyplot as plt
    runs = [write_run(tmp_path / "g1", seed=1),
            write_run(tmp_path / "g2", seed=2, entropies=np.linspace(0.8, 0.1, 9)),
            write_run(tmp_path / "k1", loss="kl_cov", kl_cov_ratio=0.02)]
    groups = E.group_runs([E.read_run(run) for run in runs])
    assert {label: [run.name for run in group] for label, group in groups.items()} == {
        "grpo": ["g1", "g2"], "kl_cov": ["k1"]}
    more = [write_run(tmp_path / "g3", seed=3, kl_cov_ratio=0.5),    # grpo does not use it: the same settings
            write_run(tmp_path / "k2", loss="kl_cov", kl_cov_ratio=0.05)]
    groups = E.group_runs([E.read_run(run) for run in (*runs, *more)])
    assert {label: [run.name for run in group] for label, group in groups.items()} == {
        "grpo": ["g1", "g2", "g3"], "kl_cov, kl_cov_ratio 0.02": ["k1"], "kl_cov, kl_cov_ratio 0.05": ["k2"]}
    out = tmp_path / "results/picture.png"
    run_command(monkeypatch, "plot", *runs, "--out", out, "--svg")
    assert out.read_bytes()[:4] == b"\x89PNG" and "<svg" in out.with_suffix(".svg").read_text()
    entropy_ax, accuracy_ax, law_ax, tail_ax, length_ax, drop_ax = plt.gcf().axes
    np.testing.assert_allclose(entropy_ax.lines[0].get_ydata(), np.linspace(0.7, 0.1, 9))    # mean of seeds
    np.testing.assert_allclose(length_ax.lines[0].get_ydata(), 21.5)
    np.testing.assert_allclose(law_ax.lines[1].get_ydata()[0], 40.0)    # fitted ceiling
    np.testing.assert_allclose(drop_ax.lines[0].get_ydata(), 0.6 / 8)    # entropy drop a step
    np.testing.assert_allclose([bar.get_height() for bar in tail_ax.patches], [5, 3, 1] * 2)
    assert all(ax.get_xlabel() and ax.get_ylabel() and ax.get_title() for ax in plt.gcf().axes)
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


def test_tokens_command(monkeypatch, val, tmp_path, capsys):
    short = ["tokens", BASE, val, "--n", 2, "--max-tokens", 32]
    run_command(monkeypatch, *short, "--other", BASE, "--temperatures", "1")
    same = capsys.readouterr().out
    assert "100.0 % of the top 20 %" in same and same.count("+0.0000") == 20
    one, = [line.split() for line in same.splitlines() if line.startswith("         1.0")]
    assert one[1] == one[2]    # both temperatures are 1 either way

    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    model.model.norm.weight.data *= 3    # logits times three: surer everywhere
    model.save_pretrained(tmp_path / "surer")
    AutoTokenizer.from_pretrained(BASE).save_pretrained(tmp_path / "surer")
    run_command(monkeypatch, *short, "--other", tmp_path / "surer")
    bands = [line.split() for line in capsys.readouterr().out.splitlines() if " - " in line[:8]]
    assert len(bands) == 20 and all(float(band[-1]) <= 0 for band in bands) and float(bands[-1][-1]) < -0.1
    before = [float(band[3]) for band in bands]
    assert before == sorted(before)


def test_tokens_refuses(monkeypatch, capsys, val, tmp_path):
    assert_refuses(monkeypatch, capsys, "tokens", tmp_path, val, says=str(tmp_path))
