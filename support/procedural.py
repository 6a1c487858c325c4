"""Problems of reasoning-gym, which writes them from a seed and brings a verifier for each task.

    reasoning_gym:chain_sum                                      # the library's settings, but for seed 0
    reasoning_gym:chain_sum?max_digits=1&size=2000&seed=1        # a task's options, as in a URL
    reasoning_gym:aiw?size=50+gcd?min_value=2&operators=%2B      # several tasks; a list repeats its option
    reasoning_gym:small?size=50&seed=1                           # the tasks of --preset small and small/make.py

The library is imported in here alone, so that nobody else needs it.
"""

import contextlib
import functools
import inspect
import io
import itertools
import json
from urllib.parse import parse_qsl

PREFIX = "reasoning_gym:"
SMALL = ("chain_sum?min_terms=3&max_terms=3&max_digits=1&{0}"
         "+simple_equations?max_terms=2&max_value=6&operators=%2B&operators=*&operators_weights=1&operators_weights=0&{0}"
         "+gcd?min_value=2&max_value=24&{0}"
         "+aiw?task_type_weights=1&task_type_weights=0&task_type_weights=0&{0}")
SPREAD = 10**6  # the library's problem i of seed s is problem 0 of seed s + i: neighbouring seeds share all but one
LENIENT = ("coin_flip",)  # its verifier takes 0 for 0.0625, like every other beginning of the answer


def read_options(query: str, config) -> dict:
    """{"max_digits": 1} of "max_digits=1", in the types that the task's settings have. ValueError: one line."""
    pairs, options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)), {}
    for key, text in pairs:
        if not hasattr(config, key):
            raise ValueError(f"no option {key!r}; there are {', '.join(vars(config))}")
        default = getattr(config, key)
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        wanted = {float: (float, int), type(None): (int,)}.get(type(default), (type(default),))  # seed's is None
        if isinstance(default, (list, tuple)):
            options[key] = [*options.get(key, []), value]
        elif key in options or type(value) not in wanted:
            raise ValueError(f"{key}={text}: it has to be one value of type {wanted[0].__name__}")
        else:
            options[key] = value
    return options


@functools.lru_cache(maxsize=32)
def data_set(name: str, options: str):
    """The library's task under options, in JSON. Whatever the library raises."""
    from reasoning_gym.factory import create_dataset
    return create_dataset(name, **json.loads(options))


def verifier(problem: dict):
    """-> judge(answer): does the library give it 1.0? Less is partial credit. None for a problem of another task.

    What takes seconds, imports and word lists, happens in here, before a judgement's clock starts.
    """
    if entry := problem.get("entry"):
        score = data_set(entry["name"], entry["options"]).score_answer
        return lambda answer: score(answer, entry) == 1.0


def why_unusable(entry: dict) -> str | None:
    """A verifier that runs the answer as Python, or is right about nonsense, or reads but a part of the answer."""
    judge, answer = verifier({"entry": entry}), entry["answer"]
    if "eval(answer" in inspect.getsource(type(data_set(entry["name"], entry["options"]))):
        return "runs the answer as Python code"
    if entry["name"] in LENIENT:
        return "is right about a beginning of the answer"
    for nonsense in ("?", "nan", f"{answer} or 7", f"maybe {answer}"):
        with contextlib.suppress(Exception):  # a failing judgement is no reward
            if judge(nonsense):
                return f"is right about {nonsense!r}, where the answer is {answer!r}"
    if answer is not None and not judge(answer):
        return f"is wrong about its own answer {answer!r}"


def load(path: str) -> list[dict]:
    """Rows {"problem", "answer", "entry", "task": "reasoning_gym", "source"}, the tasks in turn, no question twice.

    entry: the library's own row, and the task and options to rebuild its verifier from. ValueError: one line.
    """
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise ValueError(f"{path}: reasoning_gym is not installed: pip install reasoning-gym==0.1.25") from None
    tasks = path.removeprefix(PREFIX)
    rows, parts = [], (SMALL.format(tasks[6:]) if tasks.startswith("small?") else tasks).split("+")
    for part in parts:
        name, _, query = part.partition("?")
        if name not in DATASETS:
            raise ValueError(f"{path}: reasoning-gym has no task {name!r}; it has {', '.join(sorted(DATASETS))}")
        try:
            options = {"seed": 0, **read_options(query, DATASETS[name][1]())}
            options = json.dumps(options | {"seed": SPREAD * options["seed"]})
            with contextlib.redirect_stdout(io.StringIO()):  # some tasks print
                each = {entry["question"]: entry for entry in data_set(name, options)}.values()
            rebuilt = {"name": name, "options": options}
            entries = [json.loads(json.dumps(entry | rebuilt, default=str)) for entry in each]  # as a worker gets them
            why = next(filter(None, map(why_unusable, entries[:8])), None)
        except Exception as error:  # the settings of each task fail in a way of their own
            raise ValueError(f"{path}: {name}: {error}") from None
        if why:
            raise ValueError(f"{path}: the verifier of {name} {why}; take another task")
        source = "reasoning_gym" if parts[1:] else name
        rows.append([{"task": "reasoning_gym", "problem": entry["question"], "answer": str(entry["answer"]),
                      "entry": entry, "source": source} for entry in entries])
    return [row for turn in itertools.zip_longest(*rows) for row in turn if row]
