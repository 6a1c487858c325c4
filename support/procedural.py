"""Problems of reasoning-gym, which writes them from a seed.

    reasoning_gym:chain_sum                                      # the library's settings, but for seed 0
    reasoning_gym:chain_sum?max_digits=1&size=2000&seed=1        # a task's options, as in a URL (%2B: +, %2C: a comma)
    reasoning_gym:aiw?size=50+gcd?min_value=2&max_value=40       # several tasks; a list repeats its option
    reasoning_gym:small?size=50&seed=1                           # the tasks of --preset small and small/make.py

The library's own verifiers are not used: many are right about more than the answer (a list that holds it, foreign
digits, "7 or 8"), and some run it as Python. So a task is taken if its answer is one number or, where the library
itself asks for equality, one text, and same() compares it. 43 of the 105 tasks are.
"""

import contextlib
import dataclasses
import io
import itertools
import json
import re
from fractions import Fraction
from urllib.parse import parse_qsl

PREFIX = "reasoning_gym:"
SMALL = {"chain_sum": "min_terms=3&max_terms=3&max_digits=1",
         "simple_equations": "max_terms=2&max_value=6&operators=%2B&operators=*&operators_weights=1&operators_weights=0",
         "gcd": "min_value=2&max_value=24",
         "aiw": "task_type_weights=1&task_type_weights=0&task_type_weights=0"}
SPREAD = 10**6  # the library's problem i of seed s is problem 0 of seed s + i: neighbouring seeds share all but one
NUMBER = re.compile(r"[-+]?(?:0|[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d*)(?:\.\d+|/[1-9]\d*)?", re.ASCII)


def same(gold: str, answer: str) -> bool:
    """The same text, or a number of equal value; a fraction only in lowest terms. Nothing is calculated: who repeats
    the question's sum or quotient has no answer."""
    def plain(text):
        text = re.sub(r"^\s*(?:\\text\{([^{}]*)\}|\$([^$]*)\$)\s*$", lambda m: m[1] or m[2] or "", text)
        fraction = re.fullmatch(r"\s*([-+]?)\\[dt]?frac\{(\d+)\}\{(\d+)\}\s*", text)    # in a sum or after a whole number: no
        text = "{}{}/{}".format(*fraction.groups()) if fraction else text
        return "\n".join(line.strip(" \t\r") for line in text.strip(" \t\r\n").split("\n"))
    gold, answer = plain(gold), plain(answer)
    if NUMBER.fullmatch(gold) and NUMBER.fullmatch(answer) and max(len(gold), len(answer)) < 1000 and gold != answer:
        value = Fraction(answer.replace(",", ""))
        return value == Fraction(gold.replace(",", "")) and ("/" not in answer or str(value) == answer.lstrip("+"))
    return gold == answer


def read_options(query: str, config) -> dict:
    """{"max_digits": 1} of "max_digits=1", in the types that the task's settings have. ValueError: one line."""
    defaults = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    pairs, options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)), {}
    for key, text in pairs:
        if key not in defaults:
            raise ValueError(f"no option {key!r}; there are {', '.join(defaults)}")
        default = defaults[key]
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        several = isinstance(default, (list, tuple))
        wanted = type(default[0]) if several and default else str if several else type(default)
        if key == "seed":  # of None in the library's settings
            wanted = int
        if key in options and not several:
            raise ValueError(f"{key}={text}: it is set already, to {options[key]} (small sets options of its own)")
        if wanted is not type(None) and type(value) not in ((float, int) if wanted is float else (wanted,)):
            raise ValueError(f"{key}={text}: it has to be {'values' if several else 'one value'} of type {wanted.__name__}")
        options[key] = [*options.get(key, []), value] if several else value
    for key, low, high in ("size", 1, SPREAD), ("seed", 0, 10**9 - 1):
        if not low <= options.get(key, low) <= high:
            raise ValueError(f"{key} is {low} to {high}, not {options[key]}")
    return options


def expanded(part: str) -> list[tuple[str, str]]:
    """[(task, query)] of one "task?query"; "small" is four tasks."""
    name, _, query = part.partition("?")
    if name != "small":
        return [(name, query)]
    return [(task, "&".join(filter(None, (own, query)))) for task, own in SMALL.items()]


def load(path: str) -> list[dict]:
    """Rows {"problem", "answer", "entry", "task": "exact", "source"}, the tasks in turn, no question twice.

    entry: the library's own row. ValueError: one line.
    """
    try:
        from reasoning_gym.dataset import ProceduralDataset
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise ValueError(f"{path}: reasoning_gym is not installed: pip install reasoning-gym==0.1.25") from None
    source, rows = path.removeprefix(PREFIX), []
    for name, query in itertools.chain(*map(expanded, source.split("+"))):
        if name not in DATASETS:
            raise ValueError(f"{path}: reasoning-gym has no task {name!r}; it has {', '.join(sorted(DATASETS))}, and small")
        try:
            options = {"seed": 0, **read_options(query, DATASETS[name][1]())}
            with contextlib.redirect_stdout(io.StringIO()):  # some tasks print
                tasks = create_dataset(name, **options | {"seed": SPREAD * options["seed"]})
                entries = {entry["question"]: entry | {"name": name} for entry in tasks if entry["answer"] != ""}.values()
                entries = json.loads(json.dumps(list(entries), default=str))  # plain, as rows of a file are
        except Exception as error:  # the settings of each task fail in a way of their own, some with a bare assert
            raise ValueError(f"{path}: {name}: {str(error) or f'settings that the library refuses ({error!r})'}") from None
        asks_equality = type(tasks).score_answer is ProceduralDataset.score_answer
        for entry in entries:
            if entry["answer"] is None or not asks_equality and not NUMBER.fullmatch(str(entry["answer"])):
                raise ValueError(f"{path}: {name}: answers like {str(entry['answer'])[:40]!r} are judged by a verifier of the "
                                 "task's own, which is not used here; take a task whose answer is one number or text")
        kind = "reasoning_gym" if "+" in source else source.partition("?")[0]
        rows.append([{"task": "exact", "problem": entry["question"], "answer": entry["answer"],
                      "entry": entry, "source": kind} for entry in entries])
    return [row for turn in itertools.zip_longest(*rows) for row in turn if row]
