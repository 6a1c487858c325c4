"""Tests of reward.py: every verdict here follows from mathematics, from the task, or from what a cheat must not get."""

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types

import jinja2
import pytest

import reward
from test_sandbox import CALLS, PYTEST, STDIO
from reward import Score, format_prompt, load_problems, score_batch, start_workers, verify_countdown, verify_math
from support.samplers import decode

ROOT = pathlib.Path(reward.__file__).parent
SECONDS = 60                                    # generous: the machines that run tests are busy

# --- countdown -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("response, expected", [
    ("7*9+1", True), ("(7+1)*8", False), ("9*7+1=64", True), ("64", False), (r"so \boxed{9\times 7+1}", True), ("7*9", False),
    ("7*9+1+1", False), ("7*9*1", False), ("try 7+9\n9*7+1", True), ("9*7+1\n7+9", False), ("9*7+1\n\n", True),
    ("<think>9*7+1</think>7+1", False), ("<think>9*7+1", False), ("1--7*9", True), ("7**9", False), ("9//7+1", False), ("", False),
    ("(9*7+1", False), ("9*7+1)", False), ("__import__('os')", False), ("9*(7", False), ("9*7+01", False), ("9 7*1", False),
    ("(" * 140 + "9*7+1" + ")" * 140, True), ("(" * 5000 + "9*7+1" + ")" * 5000, False), ("-" * 290 + "9*7+1", True), ("-" * 291 + "9*7+1", False),
    ("9*7+1/0", False), ("9*7+1.0", False), ("9*7+1e0", False), ("64=9*7+1", False), ("٩*7+1", False), ("9*7+True", False),
])
def test_countdown(response, expected):
    problem = {"problem": "", "numbers": [9, 7, 1], "target": 64, "task": "countdown"}
    assert verify_countdown(response, problem) is expected
    assert score_batch([response], [problem])[0].reward == float(expected)


def test_countdown_is_exact_and_counts_duplicates():
    thirds = {"numbers": [8, 3, 8, 3], "target": 24, "task": "countdown"}
    assert verify_countdown("8/(3-8/3)", thirds)                                   # 8 / (1/3); 23.999... in floats
    assert not verify_countdown("8/(3-8/3)", {**thirds, "numbers": [8, 3, 3]})
    assert verify_countdown("24", {**thirds, "numbers": [24, 1]})                  # the target is one of the numbers
    assert not verify_countdown("24", thirds)


# --- pool ------------------------------------------------------------------------------------------------------------

HANG = r"\boxed{" + "+".join(rf"\int_0^1 \sin(x^{{{k}}} e^{{x}}) dx" for k in range(2, 8)) + "}"


def test_order_statuses_and_truncation():
    responses = [r"\boxed{1}", "none", r"\boxed{\sqrt{4}}", r"\boxed{3}", "1+1", "```python\nprint(2)\n```"]
    problems = [{"answer": "1"}, {"answer": "1"}, {"answer": "2"}, {"answer": "2"}, {"task": "countdown", "numbers": [1, 1], "target": 2},
                {"task": "code", "tests": {"inputs": [""], "outputs": ["2"]}}]
    statuses = [s.status for s in score_batch(responses, problems, timeout=SECONDS)]
    assert statuses == ["right", "no_answer", "right", "wrong", "right", "right"]
    cut = score_batch(responses[:4], problems[:4], truncated=[True] * 4, timeout=SECONDS)
    assert [s.status for s in cut] == ["right", "truncated", "right", "truncated"]
    assert cut[0] == Score(1.0, "right", "1") and cut[3] == Score(0.0, "truncated", "3")
    with pytest.raises(ValueError):
        score_batch(["a"], [])


def test_a_hung_a_killed_and_a_failing_judgement_cost_only_themselves():
    start_workers(2)
    before = {w.process.pid for w in reward._started}
    good = r"\boxed{\sqrt{16}}"
    scores = score_batch([good, HANG, good, good], [{"answer": "4"}] * 4, timeout=2)
    assert scores[1].status in ("timeout", "wrong") and [s.reward for s in scores] == [1, 0, 1, 1]
    for worker in reward._started:
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
    roots = range(30, 42)
    responses, problems = [rf"\boxed{{\sqrt{{{k * k}}}}}" for k in roots], [{"answer": str(k)} for k in roots]
    assert [s.reward for s in score_batch(responses, problems, timeout=SECONDS)] == [1.0] * 12
    assert not before & {w.process.pid for w in reward._started}
    assert score_batch(["```python\n1\n```"], [{"task": "code", "tests": {"inputs": [""]}}])[0].status == "error"


def test_the_workers_clock_stops_one_long_big_integer_operation():
    """Such an operation never returns to the interpreter, so that a Python signal handler would wait for ever."""
    worker = reward.Worker()
    start = time.monotonic()
    answer = r"\binom{9999999999}{4999999999}"
    assert worker.judge({"answer": "7", "response": answer}, 2) in ("timeout", "error", "wrong")
    assert time.monotonic() - start < 60
    assert worker.judge({"answer": "7", "response": r"\sqrt{49}"}, SECONDS) == "right"


def test_scores_from_threads():
    results = {}
    def score(k):
        results[k] = score_batch([rf"\boxed{{\sqrt{{{k * k}}}}}"] * 5, [{"answer": str(k)}] * 5, timeout=SECONDS)
    threads = [threading.Thread(target=score, args=(k,)) for k in range(101, 105)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(s.status == "right" for k in range(101, 105) for s in results[k])


@pytest.mark.parametrize("launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]], ids=["python", "torchrun"])
def test_no_worker_outlives_its_parent(tmp_path, launcher):
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(f"""
        import os, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        import reward
        assert reward.score_batch([r"\\boxed{{\\sqrt{{4}}}}"], [{{"answer": "2"}}], timeout=60)[0].status == "right"
        print("ready", os.getpid(), *[w.process.pid for w in reward._started], flush=True)
        time.sleep(600)"""))
    parent = subprocess.Popen([sys.executable, *launcher, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    ranks = [list(map(int, parent.stdout.readline().split()[1:])) for _ in range(2 if launcher else 1)]
    for rank in ranks:
        os.kill(rank[0], signal.SIGKILL)
    workers = {pid for rank in ranks for pid in rank[1:]}
    assert len(workers) == 2 * len(ranks)
    for _ in range(600):
        workers = {pid for pid in workers if os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read().split()[2]}
        if not workers:
            break
        time.sleep(0.1)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    assert not workers


def test_a_worker_that_misjudges_is_refused(monkeypatch):
    monkeypatch.setattr(reward.Worker, "judge", lambda self, item, timeout: "wrong")
    monkeypatch.setattr(reward, "_started", [])
    with pytest.raises(RuntimeError, match="a reward worker judges"):
        start_workers(1)


def test_importing_is_light():
    code = "import sys, reward; print([m for m in ('torch', 'sympy', 'math_verify', 'datasets', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "[]\n"


# --- prompts and data ------------------------------------------------------------------------------------------------

class Tokenizer:
    """One id per character; 0 is the BOS that a tokenizer adds unless told not to."""
    chat_template = eos_token_id = None
    def __call__(self, text, add_special_tokens=True):
        return collections.namedtuple("Encoding", "input_ids")([0] * add_special_tokens + [ord(c) for c in text])
    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return "\0" + "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


def test_format_prompt():
    plain, chat = Tokenizer(), Tokenizer()
    chat.chat_template = "yes"
    text = lambda ids: "".join(map(chr, ids))
    assert text(format_prompt({"problem": "7,1,9:72>", "task": "countdown"}, plain)) == "\x007,1,9:72>"
    math = text(format_prompt({"problem": "What is 1+1?"}, plain))
    assert math.startswith("\0What is 1+1?\n") and "\\boxed{}" in math
    math = text(format_prompt({"problem": "What is 1+1?"}, chat))
    assert math.count("\0") == 1 and math.endswith("<user>What is 1+1?<assistant>") and "<system>" in math

    def no_system_role(messages, **_):
        if messages[0]["role"] == "system":
            raise jinja2.TemplateError("System role not supported")
        return Tokenizer().apply_chat_template(messages, **_)
    chat.apply_chat_template = no_system_role
    math = text(format_prompt({"problem": "What is 1+1?"}, chat))
    assert math.startswith("\0<user>") and "\\boxed{}" in math and math.endswith("\n\nWhat is 1+1?<assistant>")


class Thinker:
    """Ids are characters, and those from 1000 on the special tokens of a model that thinks."""
    special = {1000: "<think>", 1001: "</think>", 1002: "<|im_end|>", 1003: "<pad>"}
    added_tokens_decoder = {i: types.SimpleNamespace(special=True, content=text) for i, text in special.items()}
    def ids(self, text):
        return [{t: i for i, t in self.special.items()}.get(part, ord(part[0])) for part in re.findall(r"</?think>|<\|im_end\|>|<pad>|.", text, re.DOTALL)]
    def decode(self, ids, skip_special_tokens):
        return "".join("" if i > 999 and skip_special_tokens else self.special.get(i, chr(i % 1000)) for i in ids)


@pytest.mark.parametrize("prompt, response, text, status", [
    ("Q:", r"\boxed{7}<|im_end|><pad><pad>", r"\boxed{7}", "right"),
    ("Q:<think>\n", r"maybe \boxed{7}", r"<think>maybe \boxed{7}", "no_answer"),               # the thought did not end
    ("Q:<think>\n", r"\boxed{6}</think>\boxed{7}<|im_end|>", r"<think>\boxed{6}</think>\boxed{7}", "right"),
    ("Q:<think>\n", r"\boxed{7}</think>\boxed{6}", r"<think>\boxed{7}</think>\boxed{6}", "wrong"),
    ("Q:<think>\n", r"\boxed{7}</think>", r"<think>\boxed{7}</think>", "no_answer"),
    ("Q:<think>\n\n</think>\n", r"\boxed{7}", r"\boxed{7}", "right"),                          # thinking is switched off
    ("Q:", r"<think>\boxed{6}</think>\boxed{7}", r"<think>\boxed{6}</think>\boxed{7}", "right"),
    ("Q:", r"<think>\boxed{7}", r"<think>\boxed{7}", "no_answer"),
])
def test_only_what_follows_the_thinking_counts(prompt, response, text, status):
    tokenizer = Thinker()
    decoded = decode(tokenizer, tokenizer.ids(response), tokenizer.ids(prompt))
    assert decoded == text
    score, = score_batch([decoded], [{"answer": "7"}])
    assert score.status == status and score.reward == (status == "right")
    cut, = score_batch([decoded], [{"answer": "7"}], truncated=[True])
    assert cut.status == ("right" if status == "right" else "truncated")


def test_decode_of_a_tokenizer_of_the_hub_is_what_it_was(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / "tiny" / "base")
    ids = tokenizer("1+2*3").input_ids + [tokenizer.eos_token_id]
    assert decode(tokenizer, ids, ids[:1]) == tokenizer.decode(ids, skip_special_tokens=True)


def write(tmp_path, *rows):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(path)


def test_unreadable_gold_answers_are_dropped_and_named(tmp_path, capsys):
    golds = ["5", "", "  ", "\\frac{", "$$", "\\text{}", "\\frac{1}{}", "?", "1+", "Sunday", "\\frac{1}{2}", 27.0, "(1,2]"]
    problems = load_problems(write(tmp_path, *[{"problem": f"p{i}", "answer": g, "source": "s"} for i, g in enumerate(golds)]))
    assert [p["answer"] for p in problems] == ["5", "Sunday", "\\frac{1}{2}", "27.0", "(1,2]"]
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and "8 rows" in warning and "[2, 3, 4, 5, 6, 7, 8, 9]" in warning
    assert all(p["task"] == "math" for p in problems)
    for gold in golds[1:9]:
        assert not verify_math(rf"\boxed{{{gold}}}", gold), gold


def test_gold_answers_of_every_form_are_read_or_dropped_and_named(tmp_path, capsys):
    golds = [("It is 3+4.\n#### 7", "7"), ("So 1,234.\n#### 1,234 ", "1,234"), ({"a": 1}, None), (float("nan"), None), (True, None),
             ("9" * 5000, None), ("\ud800", None), ("5\udfff", None), (["3", "4"], "3"), ([], None), (0, "0"), (2.5, "2.5")]
    rows = [{"problem": f"p{i}", "answer": g} for i, (g, _) in enumerate(golds)]
    rows += [{"problem": "  ", "answer": "5"}, {"problem": "lone \ud800", "answer": "5"}, {"problem": "s1", "solution": "It is four."},
             {"problem": "s2", "solution": "It is \\boxed{4}."}, {"problem": "s3", "solution": "four: #### 4"}, {"problem": "s4", "solution": "34"},
             '{"problem": "p", "answer": ' + "9" * 5000 + "}"]
    problems = load_problems(write(tmp_path, *rows))
    wanted = {f"p{i}": text for i, (_, text) in enumerate(golds) if text} | {"s2": "4", "s3": "4", "s4": "34"}
    assert {p["problem"]: p["answer"] for p in problems} == wanted
    dropped = [i for i, (_, text) in enumerate(golds, 1) if not text] + [13, 14, 15, 19]
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and str(dropped) in warning


@pytest.mark.parametrize("text", ['[{"problem": "p", "answer": "5"}]', '[\n  {"problem": "p", "answer": "5"}\n]'])
def test_a_json_array_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(ValueError, match="one object a line") as error:
        load_problems(str(tmp_path / "data.json"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("row, words", [
    ({"problem": "p"}, ["row 2", "answer"]), ({"answer": "5"}, ["row 2", "problem"]), ("{", ["row 2"]), ("[1]", ["row 2"]),
    ({"problem": "p", "answer": "5", "task": "mth"}, ["row 2", "mth", "math"]),
    ({"problem": "p", "numbers": [1], "task": "countdown"}, ["row 2", "target"]),
    ({"problem": "p", "task": "code"}, ["row 2", "tests"]), ({"problem": "p", "answer": None}, ["row 2", "answer"]),
])
def test_bad_rows_are_errors_of_one_clear_line(tmp_path, row, words):
    path = write(tmp_path, {"problem": "p", "answer": "5"}, row)
    with pytest.raises(ValueError) as error:
        load_problems(path)
    assert path in str(error.value) and "\n" not in str(error.value) and all(w in str(error.value) for w in words)


def test_code_rows_without_tests_are_dropped(tmp_path, capsys):
    tests = (STDIO, "", [], {"inputs": [], "outputs": []}, json.dumps(CALLS), PYTEST, "{broken")
    rows = [{"problem": f"p{i}", "task": "code", "tests": t} for i, t in enumerate(tests)]
    assert [p["tests"] for p in load_problems(write(tmp_path, *rows))] == [STDIO, json.dumps(CALLS), PYTEST]
    assert "4 rows" in capsys.readouterr().err


DAPO = ("Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
        "(without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its own line after "
        "\"Answer:\".")


@pytest.mark.parametrize("row, expected", [             # columns as the datasets have them on the hub
    ({"prompt": [{"role": "user", "content": DAPO.format("What is\n\n$1+1$?")}], "ability": "MATH", "data_source": "math_dapo",
      "reward_model": {"ground_truth": "2", "style": "rule"}, "extra_info": {"index": "a"}}, {"problem": "What is\n\n$1+1$?", "answer": "2"}),
    ({"prompt": "What?", "solution": "34", "reward_model": {"ground_truth": "34"}, "ability": "MATH"}, {"problem": "What?", "answer": "34"}),
    ({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "ability": "math",
      "reward_model": {"style": "rule", "ground_truth": "\\frac{1}{2}"}}, {"problem": "u", "answer": "\\frac{1}{2}"}),
    ({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "ability": "code",
      "reward_model": {"style": "rule", "ground_truth": json.dumps(STDIO)}}, {"problem": "u", "tests": json.dumps(STDIO), "task": "code"}),
    ({"question": "Add.", "solution": "def add(a, b): return a + b", "test": PYTEST, "style": "instruct"},
     {"problem": "Add.", "tests": PYTEST, "task": "code"}),
    ({"ID": "2024-I-1", "Problem": "P", "Solution": "So \\boxed{7}.", "Answer": 33}, {"problem": "P", "answer": "33"}),
    ({"problem": "P", "solution": "\\boxed{204}"}, {"problem": "P", "answer": "204"}),
    ({"question": "Q", "answer": 27.0}, {"problem": "Q", "answer": "27.0"}),
    ({"question": "Q", "final_answer": ["2"], "is_multiple_answer": False}, {"problem": "Q", "answer": "2"}),
    ({"question": "Q", "final_answer": ["2", "3"], "is_multiple_answer": True}, {"problem": "Q", "answer": "2, 3"}),
    ({"problem": "P", "answer": ["$11$"]}, {"problem": "P", "answer": "$11$"}),
    ({"problem": "P", "solution": "It is four.", "answer": "4", "domain": ["Algebra"]}, {"problem": "P", "answer": "4"}),
])
def test_columns_of_public_datasets(tmp_path, row, expected):
    problem, = load_problems(write(tmp_path, row))
    assert {name: problem[name] for name in expected} == expected and problem["task"] == expected.get("task", "math")


def test_repeated_prompts_are_dropped_and_counted(tmp_path, capsys):
    rows = [{"prompt": [{"role": "user", "content": DAPO.format(f"p{i % 3}")}], "reward_model": {"ground_truth": str(i % 3)}} for i in range(300)]
    assert [p["problem"] for p in load_problems(write(tmp_path, *rows))] == ["p0", "p1", "p2"]
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and "297 rows" in warning


def test_hub_datasets_have_the_same_columns_as_files(monkeypatch, tmp_path):
    """A table saved by datasets has the types of the hub's: chats as lists of dicts, None where a row lacks a column."""
    datasets = pytest.importorskip("datasets")
    rows = [{"Problem": "P", "Answer": 5, "final_answer": None}, {"Problem": "Q", "Answer": None, "final_answer": ["6"]}]
    asked = []
    def load_dataset(name, *config, split):
        asked.append((name, *config, split))
        return datasets.Dataset.from_list(rows)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for path in ("owner/set", "owner/set:test", "owner/set:en:train"):
        assert [(p["problem"], p["answer"]) for p in load_problems(path)] == [("P", "5"), ("Q", "6")]
    assert asked == [("owner/set", "train"), ("owner/set", "test"), ("owner/set", "en", "train")]


@pytest.mark.parametrize("row, said", [
    ({"problem": [], "answer": "5"}, "row 1"), ({"problem": {"a": 1}, "answer": "5"}, "'problem'"),
    ({"problem": 5, "answer": "5"}, "'problem'"), ({"problem": "x", "numbers": 5, "target": 3, "task": "countdown"}, "'numbers'"),
    ({"problem": "x", "numbers": ["1"], "target": 3, "task": "countdown"}, "'numbers'"),
    ({"problem": "x", "numbers": [1], "target": "3", "task": "countdown"}, "'target'")])
def test_values_of_the_wrong_type_are_named(row, said, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=said):
        reward.load_problems(str(path))


@pytest.mark.parametrize("tests", [5, {"inputs": ["1"]}, {"inputs": ["1", "2"], "outputs": ["1"]}, "", " "])
def test_tests_that_cannot_be_run_are_no_tests(tests):
    assert reward.read_tests(tests) is None
