"""Problems of reasoning-gym: which are taken, what their verifiers decide, what a line of the command may say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import reasoning_gym

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
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
    assert all(row["task"] == "exact" and json.loads(json.dumps(row)) == row for row in rows)
    assert load_problems(CHAIN + "&size=2")[0]["source"] == "chain_sum"


def test_a_list_repeats_its_option_and_types_are_the_task_s():
    rows = load_problems("reasoning_gym:basic_arithmetic?operators=%2B&operators=*&allow_parentheses=false&size=20&format_style=natural")
    symbols = {character for row in rows for character in row["entry"]["metadata"]["expression"] if not character.isdigit()}
    assert symbols <= set(" +*-") and "*" in symbols and "+" in symbols      # minus: of negative numbers


def test_small_is_four_tasks_wherever_it_stands():
    names = lambda source: [row["entry"]["name"] for row in load_problems("reasoning_gym:" + source)]
    four = ["chain_sum", "simple_equations", "gcd", "aiw"]
    assert names("small?size=1") == four and names("small?size=1+lcm?size=1") == [*four, "lcm"] == names("lcm?size=1+small?size=1")[1:] + ["lcm"]


@pytest.mark.parametrize("source, words", [
    ("chian_sum", ["chian_sum", "chain_sum"]), ("", ["no task ''"]), ("chain_sum?max_digit=1", ["max_digit'", "max_digits"]),
    ("chain_sum?max_digits=one", ["max_digits=one", "int"]), ("chain_sum?max_digits=1.5", ["max_digits=1.5", "int"]),
    ("chain_sum?allow_negation=1", ["allow_negation=1", "bool"]), ("chain_sum?seed=x", ["seed=x", "int"]), ("gcd?seed=-1", ["seed is 0 to", "not -1"]),
    ("chain_sum?max_digits", ["max_digits"]), ("chain_sum?size=2&size=3", ["size=3", "set already"]), ("small?max_digits=1", ["max_digits=1", "small"]),
    ("gsm_symbolic?difficulty=5", ["gsm_symbolic", "AssertionError"]), ("gcd?validate=1", ["'validate'"]),
    ("chain_sum?min_terms=9&max_terms=3", ["max_terms must be >= min_terms"]), ("chain_sum?size=0", ["size is 1 to"]),
    ("gcd?size=99999999999999", ["size is 1 to"]), ("aiw?male_names=5", ["male_names=5", "str"]),
    ("basic_arithmetic?operators=^", ["unsupported operator: ^"]), ("simple_equations?operators_weights=x", ["simple_equations"]),
    ("composite", ["composite"]), ("countdown?size=4", ["countdown", "of the task's own"]), ("n_queens?size=4", ["of the task's own"]),
    ("word_sorting?size=4", ["of the task's own"]), ("propositional_logic?size=4", ["'None'"]), ("coin_flip?size=60", ["of the task's own"]),
])
def test_what_cannot_be_used_is_one_clear_line(source, words):
    with pytest.raises(ValueError) as error:
        load_problems("reasoning_gym:" + source)
    line = str(error.value)
    assert line.startswith("reasoning_gym:") and "\n" not in line and all(word in line for word in words), line


def test_an_empty_answer_is_no_answer(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": f"p{i}", "answer": gold, "task": "exact"}) + "\n"
                            for i, gold in enumerate(["5", "", " ", "$$", "\\text{}", 0, "on"])))
    assert [row["answer"] for row in load_problems(str(path))] == ["5", 0, "on"]
    assert "[2, 3, 4, 5]" in capsys.readouterr().err


def test_a_missing_library_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ValueError, match="not installed: pip install reasoning-gym=="):
        load_problems(CHAIN)


def test_no_instruction_without_a_chat_template():
    chat = Tokenizer()
    chat.chat_template = "yes"
    problem = {"problem": "1 + 1 =", "task": "exact"}
    text = lambda tokenizer: "".join(map(chr, format_prompt(problem, tokenizer)))
    assert text(Tokenizer()) == "\x001 + 1 =\n"
    assert "\\boxed{}" in text(chat) and text(chat).endswith("<user>1 + 1 =<assistant>")


# --- verdicts --------------------------------------------------------------------------------------------------------

NUMBERS = {"{0}": 1, " {0} ": 1, "\n{0}\n": 1, "{0}.0": 1, "+{0}": 1, "${0}$": 1, "\\text{{{0}}}": 1, "\\frac{{{0}}}{{1}}": 0, "{0}/1": 0, "0\\frac{{{0}}}{{1}}": 0, "\\frac{{{0}}}{{1}}0": 0, "{0} or 7": 0,
           "maybe {0}": 0, "{0},{0}": 0, "0,{0}": 0, "-{0}": 0, "{0}_": 0, "1_{0}": 0, "{0}{0}": 0, "nan": 0, "?": 0, "[{0}]": 0, "{0} != 1": 0,
           "__import__('os')": 0, "len('{0}')": 0, "{0}9999": 0, "{0}.5": 0, "{0} + 0": 0, "{0}!": 0, "{0}\\cdot 1": 0, "{0}\\%": 0, "0{0}": 0,
           "y = {0}": 0, "{0} cents": 0, "\u0663": 0, "\uff13": 0, "{0}e0": 0}
WORDS = {"{0}": 1, " {0} ": 1, "\\text{{{0}}}": 1, "${0}$": 1, "{0}.": 0, "{0} {0}": 0, "{0} or on": 0, "not {0}": 0, "x{0}": 0, "{0},": 0}


@pytest.mark.parametrize("source, forms", [("gcd", NUMBERS), ("chain_sum", NUMBERS), ("simple_equations", NUMBERS), ("products", NUMBERS),
                                           ("aiw", NUMBERS), ("leg_counting", NUMBERS), ("acre", WORDS), ("syllogism", WORDS), ("bf", WORDS)])
def test_verdicts(source, forms):
    """One answer, in the forms that people write; nothing that holds it besides, and nothing that runs."""
    problem = next(row for row in load_problems(f"reasoning_gym:{source}?size=30") if row["answer"] not in ("0", "1") and row["answer"][0] != "-")
    responses = [f"so \\boxed{{{form.format(problem['answer'])}}}" for form in forms]
    scores = score_batch(responses, [problem] * len(forms), timeout=SECONDS)
    assert {form: score.reward for form, score in zip(forms, scores)} == forms


def test_nothing_is_calculated_and_digits_of_another_base_are_text():
    """The question's own sum in a box is no answer; of a number, thousands may be grouped."""
    sums = load_problems(CHAIN + "&size=30")
    echoes = ["\\boxed{" + row["entry"]["metadata"]["expression"] + "}" for row in sums]
    assert not any(score.reward for score in score_batch(echoes, sums))
    cases = {("1680", "1,680"): 1, ("1680", "16,80"): 0, ("-12", "-12.00"): 1, ("13/15", "26/30"): 0, ("26/30", "13/15"): 1, ("26/30", "26/30"): 1, ("13/15", "-\\frac{13}{15}"): 0,
             ("-13/15", "-\\dfrac{13}{15} "): 1, ("156", "1\\frac{56}{1}"): 0, ("0.9375", "1\\frac{5}{16}"): 0, ("0.9375", "+\\frac{15}{16}"): 1,
             ("0", "0/7"): 0, ("9" * 200_000, "9"): 0, ("9" * 2000, "9" * 2000): 1, ("2e2", "200"): 0, ("2e2", "2e2"): 1,
             ("0110", "110"): 0, ("4471.6021", "223580107/50000"): 0, ("7", "7" * 2000): 0, ("a  b", "a b"): 0, ("6", "5.999999999999999999"): 0}
    assert {case: procedural.same(*case) for case in cases} == cases


def test_a_grid_keeps_its_lines():
    grid = load_problems("reasoning_gym:rotate_matrix?size=1&min_n=2&max_n=2")[0]
    same = grid["answer"].replace("\n", " \n ")
    answers = {same: 1, grid["answer"].replace("\n", " "): 0, grid["answer"].replace(" ", "  "): 0, grid["answer"].replace(" ", ""): 0}
    scores = score_batch([f"\\boxed{{{answer}}}" for answer in answers], [grid] * len(answers), timeout=SECONDS)
    assert [score.reward for score in scores] == list(answers.values())
    assert score_batch([grid["answer"]], [grid])[0].status == "no_answer", "a box is asked for"


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
