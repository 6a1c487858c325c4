"""Problems of reasoning-gym: which are taken, what their verifiers decide, what a line of the command may say."""

import json
import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest
import reasoning_gym

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
import reward
from reward import format_prompt, load_data, load_problems, score_batch
from support import procedural
from test_reward import Tokenizer

CHAIN = "reasoning_gym:chain_sum?max_digits=1&min_terms=3&max_terms=3"
SECONDS = 60                                    # generous: the machines that run tests are busy


def test_rows_are_the_library_s_problems_under_the_options_given():
    rows = load_problems(CHAIN + "&size=40&seed=1+gcd?min_value=2&max_value=9&size=5+aiw?size=3&max_entities=2")
    assert {row["entry"]["name"] for row in rows} == {"chain_sum", "gcd", "aiw"} and {row["source"] for row in rows} == {"reasoning_gym"}
    own = reasoning_gym.create_dataset("chain_sum", max_digits=1, min_terms=3, max_terms=3, size=40, seed=procedural.SPREAD)
    assert [row["entry"]["name"] for row in rows[:4]] == ["chain_sum", "gcd", "aiw", "chain_sum"], "in turn: the first few are of all"
    assert [row["problem"] for row in rows if row["entry"]["name"] == "chain_sum"] == list(dict.fromkeys(entry["question"] for entry in own))
    assert all(row["task"] == "reasoning_gym" and json.loads(json.dumps(row)) == row for row in rows)
    assert load_problems(CHAIN + "&size=2")[0]["source"] == "chain_sum"


def test_a_list_repeats_its_option_and_types_are_the_task_s():
    row = load_problems("reasoning_gym:basic_arithmetic?operators=%2B&operators=*&allow_parentheses=false&size=20&format_style=natural")[0]
    assert json.loads(row["entry"]["options"]) == {"seed": 0, "operators": ["+", "*"], "allow_parentheses": False, "size": 20, "format_style": "natural"}
    one = load_problems("reasoning_gym:basic_arithmetic?operators=*&size=9")[0]
    assert json.loads(one["entry"]["options"])["operators"] == ["*"]


@pytest.mark.parametrize("source, words", [
    ("chian_sum", ["chian_sum", "chain_sum"]), ("", ["no task ''"]), ("chain_sum?max_digit=1", ["max_digit'", "max_digits"]),
    ("chain_sum?max_digits=one", ["max_digits=one", "int"]), ("chain_sum?max_digits=1.5", ["max_digits=1.5", "int"]),
    ("chain_sum?allow_negation=1", ["allow_negation=1", "bool"]), ("chain_sum?seed=x", ["seed=x", "int"]),
    ("chain_sum?max_digits", ["max_digits"]), ("chain_sum?size=2&size=3", ["size=3", "one value"]),
    ("chain_sum?min_terms=9&max_terms=3", ["max_terms must be >= min_terms"]), ("chain_sum?size=0", ["size must be positive"]),
    ("basic_arithmetic?operators=^", ["unsupported operator: ^"]), ("simple_equations?operators_weights=x", ["simple_equations"]),
    ("composite", ["composite"]), ("binary_matrix?size=4", ["binary_matrix", "Python"]), ("n_queens?size=4", ["Python"]),
    ("game_of_life_halting?size=4", ["right about '?'"]), ("complex_arithmetic?size=4", ["'nan'"]),
    ("gsm_symbolic?size=4", ["or 7"]), ("coin_flip", ["beginning"]), ("arc_agi?size=2", ["wrong about its own answer"]),
])
def test_what_cannot_be_used_is_one_clear_line(source, words):
    with pytest.raises(ValueError) as error:
        load_problems("reasoning_gym:" + source)
    line = str(error.value)
    assert line.startswith("reasoning_gym:") and "\n" not in line and all(word in line for word in words), line


def test_a_missing_library_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ValueError, match="not installed: pip install reasoning-gym=="):
        load_problems(CHAIN)


def test_no_instruction_without_a_chat_template():
    chat = Tokenizer()
    chat.chat_template = "yes"
    problem = {"problem": "1 + 1 =", "task": "reasoning_gym"}
    text = lambda tokenizer: "".join(map(chr, format_prompt(problem, tokenizer)))
    assert text(Tokenizer()) == "\x001 + 1 =\n"
    assert "\\boxed{}" in text(chat) and text(chat).endswith("<user>1 + 1 =<assistant>")


# --- verdicts --------------------------------------------------------------------------------------------------------

def test_verdicts():
    problem = load_problems(CHAIN + "&size=1")[0]
    right = problem["answer"]
    cases = {f"\\boxed{{{right}}}": "right", f"so \\boxed{{{right}.0}}": "right", f"\\boxed{{{int(right) + 1}}}": "wrong", right: "no_answer",
             f"\\boxed{{{right} or 7}}": "wrong", f"\\boxed{{{right}{right}}}": "wrong", "\\boxed{}": "no_answer", "\\boxed{?}": "wrong",
             f"\\boxed{{{right}}} \\boxed{{?}}": "wrong", "\\boxed{" + "9" * 10000 + "}": "wrong", "\\boxed{nan}": "wrong"}
    scores = score_batch(list(cases), [problem] * len(cases), timeout=SECONDS)
    assert [score.status for score in scores] == list(cases.values())
    assert [score.reward for score in scores] == [float(status == "right") for status in cases.values()]


def test_partial_credit_is_wrong_and_answers_of_many_lines_are_judged():
    sudoku, gcd = load_problems("reasoning_gym:mini_sudoku?size=1")[0], load_problems("reasoning_gym:gcd?size=1")[0]
    almost = gcd["answer"] + " 5"
    assert 0 < procedural.data_set("gcd", gcd["entry"]["options"]).score_answer(almost, gcd["entry"]) < 1
    scores = score_batch([f"\\boxed{{{sudoku['answer']}}}", f"\\boxed{{{almost}}}", f"\\boxed{{{gcd['answer']}}}"], [sudoku, gcd, gcd], timeout=SECONDS)
    assert [score.status for score in scores] == ["right", "wrong", "right"]


@pytest.fixture
def broken_library(tmp_path, monkeypatch):
    """Workers find a reasoning_gym whose verifiers hang, raise, or eat memory, and one whose import takes longer than a judgement may."""
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym/__init__.py").write_text("import time\ntime.sleep(3)\n")
    (tmp_path / "reasoning_gym/factory.py").write_text("""
import time
class Task:
    def __init__(self, name): self.name = name
    def score_answer(self, answer, entry):
        if answer == "1":
            return 1.0
        if answer == "half":
            return 0.5
        if answer == "hang":
            time.sleep(600)
        if answer == "memory":
            x = bytearray(8 << 30)
        raise ZeroDivisionError
def create_dataset(name, **options):
    if name == "unknown":
        raise ValueError("no such task")
    return Task(name)
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(reward, "_started", [])
    monkeypatch.setattr(reward, "_free", queue.SimpleQueue())
    yield
    reward.stop_workers()


def test_a_verifier_that_hangs_or_raises_costs_its_own_response_only(broken_library):
    problem = {"problem": "p", "task": "reasoning_gym", "answer": "1", "entry": {"name": "any", "options": "{}", "answer": "1"}}
    unknown = {**problem, "entry": {**problem["entry"], "name": "unknown"}}
    answers = {"1": "right", "half": "wrong", "hang": "timeout", "raise": "error", "memory": "error"}
    scores = score_batch([f"\\boxed{{{answer}}}" for answer in [*answers, "1"]], [problem] * len(answers) + [unknown], workers=1, timeout=2)
    assert [score.status for score in scores] == [*answers.values(), "error"]


# --- training and validation -----------------------------------------------------------------------------------------

def test_seeds_share_no_problem_by_position():
    """The library's problem i of seed s is problem 0 of seed s + i."""
    big = "reasoning_gym:chain_sum?min_digits=6&max_digits=6&min_terms=6&size=200&seed="
    one, two = ({row["problem"] for row in load_problems(big + seed)} for seed in "12")
    assert len(one) == len(two) == 200 and not one & two


def test_training_problems_that_stand_in_a_validation_set_are_left_out(capsys, tmp_path):
    sums = "reasoning_gym:chain_sum?max_digits=1&min_terms=2&max_terms=2"      # 200 different ones
    train, vals = load_data(f"{sums}&size=400&seed=1", f"{sums}&size=40&seed=2", Tokenizer(), 200)
    held_out = {row["problem"] for row in vals["chain_sum"]}
    assert held_out and not held_out & {row["problem"] for row in train}
    assert "prompts in --val_data are left out" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--val_data") as error:
        load_data(f"{sums}&seed=1", f"{sums}&seed=1", Tokenizer(), 200)
    assert "\n" not in str(error.value)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": f"p{i}", "answer": "5", "source": "s"}) + "\n" for i in range(3)))
    other = tmp_path / "val.jsonl"
    other.write_text('{"problem": "p1", "answer": "5", "source": "v"}\n')
    assert [row["problem"] for row in load_data(str(path), str(other), Tokenizer(), 200)[0]] == ["p0", "p2"]


def test_it_is_a_benchmark_too(tmp_path):
    source = "reasoning_gym:gcd?size=3&max_value=9"
    command = [sys.executable, str(ROOT / "eval.py"), "bench", str(ROOT / "tiny/base"), "--benchmarks", source, "--samples", "2",
               "--max_tokens", "8", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len((tmp_path / f"{source}.jsonl").read_text().splitlines()) == 1 + 3 * 2
