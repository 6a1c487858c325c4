"""Prompts and verifiable rewards: math (support/answers.py), countdown, code (support/sandbox.py).

    score_batch(responses, problems, workers=2)       # [Score(reward, status, answer), ...] in the same order

Plain numbers and countdown are exact arithmetic on at most 300 characters and are judged on the spot.
Expressions and programs go to worker processes, which may hang, eat memory or die: it costs the response its reward.
"""
import atexit
import ctypes
import json
import logging
import operator
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from jinja2 import TemplateError

from support import procedural
from support.answers import (SIGNS, Unreadable, extract_boxed, final_text, gold_answer, number, read, readable,
                             same_answer, same_number, tokenize)
from support.sandbox import Limits, check_code, extract_code, log_sandbox, read_tests, remove

STATUSES = ("right", "wrong", "no_answer", "truncated", "timeout", "error")
MAX_ANSWER = 300                      # characters; a longer answer is right only if it is the gold answer

class Score(NamedTuple):
    reward: float                     # 1.0 or 0.0
    status: str                       # of STATUSES
    answer: str | None                # what was judged

# --- prompt and answer extraction ---------------------------------------------------------------------------

INSTRUCTIONS = {
    "math": "Please reason step by step, and put your final answer within \\boxed{}.",
    "countdown": "Use each number at most once with + - * / and parentheses. "
                 "Put the expression within \\boxed{}.",
    "code": "Write a complete Python program and put it in one ```python code block.",
    "exact": "Put the final answer within \\boxed{}.",  # for a chat; small/make.py teaches it instead
}

def format_prompt(problem, tokenizer):
    """Token ids: the chat template if there is one, else the text, and for math and code the instruction."""
    task, text = problem.get("task", "math"), problem["problem"]
    if getattr(tokenizer, "chat_template", None):
        template = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
        try:
            chat = template([{"role": "system", "content": INSTRUCTIONS[task]}, {"role": "user", "content": text}])
        except TemplateError:
            chat = ""
        if INSTRUCTIONS[task] not in chat:                 # it knows no system role: it raises, or leaves it out
            chat = template([{"role": "user", "content": f"{INSTRUCTIONS[task]}\n\n{text}"}])
        return tokenizer(chat, add_special_tokens=False).input_ids         # the template wrote the BOS
    after = {"countdown": "", "exact": "\n"}.get(task, f"\n{INSTRUCTIONS[task]}\n")
    ids = tokenizer(text + after).input_ids
    return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids       # some tokenizers end every text with it

# --- countdown ----------------------------------------------------------------------------------------------

def extract_expression(response):
    """The last box, else the last line that is not empty."""
    return extract_boxed(response) or (final_text(response).strip().splitlines() or [""])[-1].strip() or None

def verify_countdown(response, problem):
    """True if the final expression, up to the first =, is + - * / ( ) on given integers, each used at most as
    often as given, and its exact value is the target."""
    operators = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
                 "neg": operator.neg}
    text, numbers = (extract_expression(response) or "")[:MAX_ANSWER + 1], list(problem["numbers"])
    def value(tree):
        if isinstance(tree, str):
            numbers.remove(int(tree) if tree == str(int(tree)) else None)  # ValueError: not given, or used up
            return Fraction(tree)
        return operators[tree[0]](*map(value, tree[1:]))
    odd = re.search(r"(?<!\\)[,;]|\d\s+\d|\d\s*\\[a-z]*frac|(?i:answer)", text)      # 1 3/4, "answer: 25+5"
    try:
        tokens = tokenize(text)
        tokens = tokens[:tokens.index("=")] if "=" in tokens else tokens
        plain = text.translate(SIGNS).isascii() and not odd
        return plain and len(text) <= MAX_ANSWER and value(read(tokens)) == problem["target"]
    except (Unreadable, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return False

# --- workers ------------------------------------------------------------------------------------------------

_free, _started, _lock = SimpleQueue(), [], threading.Lock()

class Worker:
    """A fresh interpreter in its own session; judges one item at a time and may be killed at any moment."""
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="reward-")                   # of its programs; deleted with it
        os.chmod(self.folder, 0o711)
        kept = {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH"} & os.environ.keys()
        env = {name: os.environ[name] for name in kept} | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, os.path.abspath(__file__), str(os.getpid())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env=env | {"TMPDIR": self.folder}, start_new_session=True)

    def stop(self):
        """End it, and with it what it started; its return code, when its folder is gone."""
        self.process.kill()
        self.process.communicate()
        remove(self.folder)
        return self.process.returncode

    def judge(self, item, timeout):
        """Status of one item. The worker's own clock ends it, whatever it does; a new one takes its place."""
        if self.process.poll() is not None:
            self.stop()
            self.__init__()                                # it died while idle: not this item's fault
        try:
            self.process.stdin.write(json.dumps({**item, "timeout": timeout}).encode() + b"\n")
            self.process.stdin.flush()
            answered = select.poll()                       # select takes no descriptor above 1,023
            answered.register(self.process.stdout, select.POLLIN)
            if answered.poll(1000 * (100 * item.get("limits", [timeout])[0] + 600)):   # a last resort, ms
                return json.loads(self.process.stdout.readline())
        except (OSError, ValueError):                      # it is dead
            pass
        died_of = -self.stop()
        self.__init__()
        return "timeout" if died_of in (signal.SIGALRM, signal.SIGKILL) else "error"

@atexit.register
def stop_workers():
    while _started:
        _started.pop().stop()
    while not _free.empty():                               # a stopped one would start itself again
        _free.get()

def start_workers(workers):
    """Start the pool, or enlarge it; call it before CUDA starts. RuntimeError if a worker misjudges."""
    with _lock:
        while len(_started) < workers:
            worker = Worker()
            questions = [{"answer": "0.5", "response": r} for r in ("\\frac{1}{\\sqrt{4}}", "1/3")]
            verdicts = [worker.judge(question, 60) for question in questions]
            if verdicts != ["right", "wrong"]:
                raise RuntimeError(f"a reward worker judges 1/sqrt(4) = 1/2 and 1/3 = 1/2 as {verdicts}")
            _started.append(worker)
            _free.put(worker)

def first_look(response, problem):
    """(answer, status or None if a worker has to judge it)"""
    task = problem.get("task", "math")
    if task == "countdown":
        answer = extract_expression(response)
        return answer, "right" if verify_countdown(response, problem) else "wrong" if answer else "no_answer"
    answer = extract_code(response) if task == "code" else extract_boxed(response)
    if not answer or not answer.strip():
        return None, "no_answer"
    if task == "code":
        return answer, None
    gold = str(problem["answer"])
    if task == "exact":                                    # nothing is calculated
        return answer, "right" if procedural.same(gold, answer) else "wrong"
    if len(answer) > MAX_ANSWER:
        return answer, "right" if "".join(answer.split()) == "".join(gold.split()) else "wrong"
    gold, given = number(gold), number(answer)
    return answer, None if not gold or not given else "right" if same_number(gold, given) else "wrong"

def score_batch(responses, problems, *, truncated=None, workers=2, timeout=5.0):
    """A Score for each response, in order. A judgement that hangs (timeout seconds), dies or fails costs its
    own response the reward and nothing else. A truncated response is "truncated" unless it is right."""
    looks = [first_look(*pair) for pair in zip(responses, problems, strict=True)]
    todo = {}                                              # equal questions of a group are judged once
    for i, (answer, status) in enumerate(looks):
        if status is None:
            asked = {"task", "answer", "tests", "limits"} & problems[i].keys()
            item = {name: problems[i][name] for name in sorted(asked)}
            todo.setdefault((answer, json.dumps(item, default=str)), []).append(i)
    def judge(key):
        worker = _free.get()
        try:
            return worker.judge({**json.loads(key[1]), "response": key[0]}, timeout)
        finally:
            _free.put(worker)
    if todo:
        start_workers(workers)
        if any(p.get("task") == "code" for p in problems):
            log_sandbox()
        with ThreadPoolExecutor(workers) as threads:
            for (key, places), status in zip(todo.items(), threads.map(judge, todo)):
                for i in places:
                    looks[i] = key[0], status
    return [Score(float(status == "right"), "truncated" if c and status != "right" else status, answer)
            for (answer, status), c in zip(looks, truncated or [False] * len(looks), strict=True)]

def verify_math(response, answer):
    """True if the last box of the response holds the answer."""
    return score_batch([response], [{"task": "math", "answer": answer}])[0].status == "right"

def verify_code(response, tests, limits=Limits()):
    """True if the last closed code fence of the response passes the tests."""
    return score_batch([response], [{"task": "code", "tests": tests, "limits": limits}])[0].status == "right"

def work(parent):
    """A worker: reads items, one JSON a line, and answers with their statuses until its parent is gone."""
    def follow_parent():
        while os.getppid() == parent:
            time.sleep(0.5)
        for child in open(f"/proc/self/task/{os.getpid()}/children").read().split():
            os.kill(int(child), signal.SIGKILL)
        remove(os.environ["TMPDIR"])
        os.killpg(0, signal.SIGKILL)
    threading.Thread(target=follow_parent, daemon=True).start()
    prctl = ctypes.CDLL(None).prctl
    prctl(4, 0)                                            # PR_SET_DUMPABLE: nobody may read this process
    prctl(36, 1)                                           # PR_SET_CHILD_SUBREAPER: it adopts orphans
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)           # only statuses go into the pipe
    logging.disable()
    for answer in "\\sqrt{4}", "x(x+1)", "(1,\\frac{1}{2})", "0\\le x<\\pi":
        same_answer("[0,\\infty)", answer)                 # imports and caches, before the first clock starts
    for line in sys.stdin:
        item = json.loads(line)
        code = item.get("task") == "code"
        limits = Limits(*item["limits"]) if "limits" in item else Limits(item["timeout"])
        signal.setitimer(signal.ITIMER_REAL, 0 if code else item["timeout"])           # SIGALRM ends it
        try:
            if code:
                tests = read_tests(item["tests"])
                status = check_code(item["response"], tests, limits) if tests else "error"
            else:
                status = "right" if same_answer(str(item["answer"]), item["response"]) else "wrong"
        except Exception:
            status = "error"
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(status), file=reply, flush=True)
    remove(os.environ["TMPDIR"])

def overlong_penalty(length, max_length, buffer):
    """DAPO's soft penalty (Yu et al. 2025, Eq. 13): 0 up to max_length - buffer tokens, -1 at max_length."""
    return -max(0, length - (max_length - buffer)) / buffer if buffer else 0.0

# --- data ---------------------------------------------------------------------------------------------------

FIELDS = {"math": ["problem", "answer"], "code": ["problem", "tests"],
          "countdown": ["problem", "numbers", "target"], "exact": ["problem", "answer"]}
DAPO_INSTRUCTION = re.compile(r"^Solve the following math problem step by step\..*?\n\n"
                              r"|\n\nRemember to put your answer on .*$", re.DOTALL)

def as_problem(row):
    """A row of ours, of DAPO-Math-17k, Eurus-2-RL-Data, KodCode or a benchmark, in our names for what they share."""
    low = {name.lower(): value for name, value in row.items() if value is not None}
    def first(*names):
        return next((low[name] for name in names if name in low), None)
    problem, truth = first("problem", "question", "prompt"), first("reward_model") or {}
    if isinstance(problem, list):                          # a chat; our instruction replaces DAPO's
        problem = DAPO_INSTRUCTION.sub("", problem[-1]["content"])
    task = low.get("task") or ("code" if "test" in low or low.get("ability") == "code" else "math")
    names = {"math": ("answer", "final_answer"), "code": ("tests", "test")}.get(task, ())
    wanted = first(*names) if first(*names) is not None else truth.get("ground_truth")
    if task == "math":
        wanted = first("solution") if wanted is None else wanted
        if isinstance(wanted, list):                       # OlympiadBench
            wanted = ", ".join(map(str, wanted[:None if low.get("is_multiple_answer") else 1]))
        wanted = wanted if wanted is None else gold_answer(wanted, wanted is low.get("solution"))
    ours = {"task": task, "problem": problem, **({names[0]: wanted} if names else {})}
    return {**row, **{name: value for name, value in ours.items() if value is not None}}

def load_problems(path):
    """Rows {**FIELDS[task], "task", "source", ...} of a jsonl file, of reasoning-gym (support/procedural.py), or of the
    hub's "id", "id:split" or "id:config:split". ValueError for a row without one of the fields. Rows whose answer
    cannot be read, or that have no tests, are dropped and named; repeated prompts are dropped and counted."""
    if os.path.exists(path):
        with open(path, "rb") as file:
            rows = [(i, line) for i, line in enumerate(file, 1) if line.strip()]
    elif path.startswith(procedural.PREFIX):
        rows = enumerate(procedural.load(path), 1)
    elif path.endswith((".jsonl", ".json")) or path[:1] in "./":
        raise ValueError(f"{path}: no such file")
    else:
        import datasets
        name, *config, split = path.split(":") if ":" in path else (path, "train")
        try:
            rows = enumerate(datasets.load_dataset(name, *config, split=split), 1)
        except Exception as error:                         # each release raises others if it is out of reach
            raise ValueError(f"{path}: no such file, and no dataset of that name could be loaded "
                             f"({type(error).__name__})") from None
    problems, dropped, seen, repeated = [], [], set(), 0
    for i, row in rows:
        try:
            if isinstance(row, bytes):                     # not UTF-8: a ValueError
                row = json.loads(row, parse_int=lambda n: int(n) if len(n) < 4000 else n)
            row = as_problem(row)
            task = row["task"]
            missing = [f"field {name!r} is missing; a {task} row has {FIELDS[task]}"
                       for name in FIELDS[task] if row.get(name) is None]
            kinds = {"problem": str, "numbers": list, "target": int}
            missing = missing or [f"field {name!r} is {row[name]!r}"[:120] for name in FIELDS[task]
                                  if not isinstance(row[name], kinds.get(name, object))
                                  or name == "numbers" and not all(isinstance(n, int) for n in row[name])]
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):
            missing = [f"{str(row)[:60]!r} is no JSON object (one object a line, UTF-8) of a task in {list(FIELDS)}"]
        if missing:
            raise ValueError(f"{path}, row {i}: {missing[0]}")
        if row["problem"] in seen:
            repeated += 1
            continue
        seen.add(row["problem"])
        usable = read_tests(row["tests"]) if task == "code" else task != "math" or readable(row["answer"])
        empty = not row["problem"].strip() or procedural.same("", str(row.get("answer")))
        usable = usable and not empty and not re.search("[\ud800-\udfff]", row["problem"] + str(row.get("answer")))
        row["source"] = str(row.get("source") or os.path.basename(path).removesuffix(".jsonl"))
        (problems if usable else dropped).append(row if usable else i)
    if not problems:
        raise ValueError(f"{path}: no row can be used ({len(dropped)} without a readable answer or tests)")
    if dropped and os.environ.get("RANK", "0") == "0":
        print(f"warning: {path}: dropped {len(dropped)} rows without a readable answer or tests: {dropped}", file=sys.stderr)
    if repeated and os.environ.get("RANK", "0") == "0":
        print(f"warning: {path}: dropped {repeated} rows whose prompt occurred before", file=sys.stderr)
    return problems

def load_data(train, val, tokenizer, max_tokens):
    """-> training problems, {source: validation problems}. val: several, comma-separated. Training prompts of more than
    max_tokens, or of a validation set, are left out; ValueError if none is left, and for two sets of one name."""
    fits = lambda problem: len(format_prompt(problem, tokenizer)) <= max_tokens
    problems, val_sets = load_problems(train), [load_problems(path) for path in val.split(",")]
    vals = {val_set[0]["source"]: val_set for val_set in val_sets}
    if len(vals) < len(val_sets):
        raise ValueError(f"--val_data {val}: two sets have the same source in their first row; rename one")
    for source, val_set in vals.items():
        if not all(map(fits, val_set)):
            raise ValueError(f"--val_data: a prompt of {source} is longer than --max_prompt_tokens {max_tokens}; raise it")
    held_out = {problem["problem"] for val_set in val_sets for problem in val_set}
    own = [problem for problem in problems if problem["problem"] not in held_out]
    fit = list(filter(fits, own))
    if not fit:
        raise ValueError(f"{train}: every prompt is longer than --max_prompt_tokens {max_tokens}, or in --val_data")
    for n, what in (len(problems) - len(own), "in --val_data"), (len(own) - len(fit), "longer than --max_prompt_tokens"):
        if n and os.environ.get("RANK", "0") == "0":
            print(f"{n} prompts {what} are left out", file=sys.stderr)
    return fit, vals

if __name__ == "__main__" and len(sys.argv) > 1:
    work(int(sys.argv[1]))
