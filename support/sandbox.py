"""Runs a program that nobody trusts under tests: in a sandbox, with the verdict made outside of it.

The file is copied next to the program and runs there too, as the candidate's or as the tests' side of the line.
"""
import builtins
import ctypes
import json
import os
import pathlib
import pickle
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from typing import NamedTuple

class Limits(NamedTuple):
    seconds: float = 5.0              # wall clock of one run; four times as long for all runs of a response
    memory: int = 1 << 30             # bytes
    output: int = 1 << 20             # bytes, of standard output and of every file
    processes: int = 16               # and threads, of the sandbox's user

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"} | dict.fromkeys(["OMP_NUM_THREADS",
                                                                            "OPENBLAS_NUM_THREADS"], "1")

@lru_cache(1)
def sandbox():
    """(name, bwrap's command, setpriv's command, user id) of the best sandbox that works here. In bubblewrap
    there are no network, no processes and no files but its own and the interpreter's; otherwise rlimits
    alone. Root becomes a user of its own in either."""
    user, drop = -1, ["setpriv", "--no-new-privs", "--pdeathsig=KILL"]
    view = ["bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc",
            "--proc", "/proc", "--dev", "/dev"]
    if os.getuid() == 0:
        user = 60000 + os.getpid() % 5000                  # one for each worker: processes count by user
        drop += [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    else:
        view += ["--unshare-user", "--cap-drop", "ALL"]
    for path in ("/usr", "/lib", "/lib64", "/bin", sys.base_prefix, sys.prefix):
        for parent in list(pathlib.Path(path).parents)[-2::-1]:
            view += ["--perms", "0755", "--dir", str(parent)]
        view += ["--ro-bind-try", path, path]
    read = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]      # for a Python in /root
    options = [("bubblewrap", view, drop), ("rlimits only", [], drop), ("rlimits only", [], drop + read)]
    for name, view, drop in options:
        trial = [*view, *drop, "prlimit", "--core=0", sys.executable, "-c", "import ctypes"]
        if shutil.which(trial[0]):
            if subprocess.run(trial, cwd="/", env=ENVIRONMENT, capture_output=True).returncode == 0:
                return name, view, drop, user
    raise RuntimeError("no sandbox for code works here: are setpriv and prlimit (util-linux) installed?")

@lru_cache(1)
def log_sandbox():
    print(f"sandbox.py: programs run in the sandbox {sandbox()[0]!r}", file=sys.stderr)

def launch(arguments, folder, limits, **pipes):
    """Start Python with arguments in the sandbox; the folder is all that it may write to."""
    _, view, drop, user = sandbox()
    os.chown(folder, user, user)
    view = [*view, "--bind", folder, "/box", "--chdir", "/box"] if view else []
    caps = ["prlimit", f"--cpu={int(limits.seconds) + 1}", f"--as={limits.memory}",
            f"--fsize={limits.output}", f"--nproc={limits.processes}", "--core=0"]
    return subprocess.Popen([*view, *drop, *caps, sys.executable, "-I", "-B", *arguments], cwd=folder,
                            env=ENVIRONMENT, start_new_session=True, stderr=subprocess.DEVNULL, **pipes)

def run(arguments, folder, limits, stdin, **pipes):
    """(exit code, None if time ran out; standard output). Afterwards no program of the sandbox is left."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as written:
        given.write(stdin.encode())
        given.seek(0)
        try:
            process = launch(arguments, folder, limits, stdin=given, stdout=written, **pipes)
            code = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            code = None
        orphans = f"/proc/self/task/{os.getpid()}/children"                        # the worker adopts them
        while children := pathlib.Path(orphans).read_text().split():
            for pid in map(int, children):
                (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
        written.seek(0)
        return code, written.read(limits.output).decode(errors="replace")

def send(pipe, value, key):
    """Pickle a value; an object for which key(x) is not None crosses as that key."""
    pickler = pickle.Pickler(pipe, 5)
    pickler.persistent_id = key
    pickler.dump(value)
    pipe.flush()

class Receiver(pickle.Unpickler):
    """Reads plain values and keys. No name is looked up, so what a candidate sends cannot act."""
    def __init__(self, pipe, load):
        super().__init__(pipe)
        self.persistent_load = load
    def find_class(self, module, name):
        raise pickle.UnpicklingError("only plain values cross")

def serve_candidate():
    """In the sandbox: call what the tests ask for in solution.py. Objects stay here, their keys leave."""
    requests, replies, objects = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"), {}
    for fd in (0, 1):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    sys.path.insert(0, os.getcwd())
    plain = (bool, int, float, str, bytes, list, tuple, set, frozenset, dict, type(None))
    def key(x):
        if type(x) not in plain:
            objects[id(x)] = x
            return id(x)
    while requests.peek(1):
        owner, name, args, kwargs = Receiver(requests, objects.get).load()
        try:
            import solution
            owner = solution if owner is None else owner
            if owner is solution and not hasattr(owner, name) and hasattr(owner, "Solution"):
                owner = owner.Solution()
            value = getattr(owner, name) if args is None else getattr(owner, name)(*args, **kwargs)
            kinds = [kind for kind in plain[:-1] if isinstance(value, kind)]
            reply = None, kinds[0](value) if kinds else value              # a Counter leaves as a dict
        except Exception as error:
            reply = type(error).__name__, str(error)
        send(replies, (*reply, args), key)

def run_tests(requests, replies):
    """In another sandbox: run tests against a proxy of solution.py, print the nonce if all of them passed."""
    requests, replies = os.fdopen(requests, "wb"), os.fdopen(replies, "rb")
    ctypes.CDLL(None).prctl(4, 0)                          # PR_SET_DUMPABLE 0: nobody may read this process
    nonce, tests = json.load(sys.stdin)
    def ask(owner, name, args=None, kwargs={}):
        key = lambda x: x.__dict__["key"] if type(x) is Remote else None
        send(requests, (owner, name, args, kwargs), key)
        error, value, after = Receiver(replies, Remote).load()
        for old, new in zip(args or (), after or ()):
            if type(old) is type(new) is list:
                old[:] = new                               # it was changed in place
        if error is not None:
            known = vars(builtins).get(error)
            raise (known if isinstance(known, type) and issubclass(known, Exception) else RuntimeError)(value)
        return value
    class Remote:                                          # equals no plain value: the candidate would decide
        def __init__(self, key):
            self.__dict__["key"] = key
        def __getattr__(self, name):
            return ask(self, name)
        def __eq__(self, other):
            return type(other) is Remote and ask(self, "__eq__", (other,)) is True
    def method(name):
        return lambda self, *args, **kwargs: ask(self, name, args, kwargs)
    for name in ("call", "len", "getitem", "setitem", "delitem", "setattr", "iter", "next", "str", "repr",
                 "enter", "exit", "instancecheck"):
        setattr(Remote, f"__{name}__", method(f"__{name}__"))
    if isinstance(tests, dict):
        for args, expected in zip(tests["inputs"], tests["outputs"], strict=True):
            if isinstance(args, str):                      # one JSON value a line
                args, expected = [json.loads(line) for line in args.splitlines()], json.loads(expected)
            value = ask(None, tests["fn_name"], args)
            assert same_value(expected, value) or same_value(expected, [value])            # both are in use
    else:
        import pytest
        solution = sys.modules["solution"] = type(sys)("solution")
        solution.__getattr__ = lambda name: ask(None, name)
        class Tests(pytest.Module):                        # from memory: a candidate may look for files
            def _getobj(self):
                module = type(sys)("tests")
                exec(tests, vars(module))
                return module
            def pytest_collect_file(file_path, parent):
                return Tests.from_parent(parent, path=file_path)
        pathlib.Path("tests").touch()
        assert pytest.main(["-qxp", "no:cacheprovider", "tests"], [Tests]) == 0
    print(nonce)

def same_value(a, b):
    """Equal in type and value; a list may be a tuple, a dict's keys strings (JSON), floats agree to 1e-6."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return same_value(*[sorted((str(k), v) for k, v in x.items()) for x in (a, b)])
    if {type(a), type(b)} in ({int, float}, {float}):
        return abs(a - b) <= 1e-6 * max(1, abs(a))
    return type(a) is type(b) and a == b

def same_output(a, b):
    """Same words; words with a decimal point may differ as floats do."""
    def value(word, other):
        decimal = "." in word + other and re.fullmatch(r"[-+]?\d*\.?\d+(e[-+]?\d+)?", word)
        return float(word) if decimal else word
    a, b = a.split(), b.split()
    return len(a) == len(b) and all(x == y or same_value(value(x, y), value(y, x)) for x, y in zip(a, b))

def read_tests(tests):
    """A dict of inputs, outputs and perhaps fn_name (or its JSON), or text for pytest; None if empty or broken."""
    if isinstance(tests, str) and tests.lstrip().startswith("{"):
        try:
            tests = json.loads(tests)
        except ValueError:
            return None
    if isinstance(tests, dict):
        inputs, outputs = tests.get("inputs"), tests.get("outputs")
        return tests if inputs and isinstance(outputs, list) and len(inputs) == len(outputs) else None
    return tests if isinstance(tests, str) and tests.strip() else None

def check_code(code, tests, limits):
    """Status of a program under tests, see read_tests. For workers only: it ends all child processes."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as tests_folder:
        for place in folder, tests_folder:
            shutil.copy(__file__, os.path.join(place, "sandbox.py"))
        pathlib.Path(folder, "solution.py").write_text(code, "utf-8", "replace")
        if isinstance(tests, dict) and not tests.get("fn_name"):
            end = time.monotonic() + 4 * limits.seconds
            for pair in zip(tests["inputs"], tests["outputs"], strict=True):
                given, expected = [x if isinstance(x, str) else "\n".join(map(str, x)) for x in pair]
                status, output = run(["solution.py"], folder, limits, given)
                if status is None or time.monotonic() > end:
                    return "timeout"
                if status != 0 or not same_output(expected, output):
                    return "wrong"
            return "right"
        (asked, ask), (answers, answer), nonce = os.pipe(), os.pipe(), secrets.token_hex()
        launch(["sandbox.py", "candidate"], folder, limits, stdin=asked, stdout=answer)
        os.close(asked), os.close(answer)
        status, output = run(["sandbox.py", "tests", str(ask), str(answers)], tests_folder, limits,
                             json.dumps([nonce, tests]), pass_fds=(ask, answers))
        os.close(ask), os.close(answers)
        if status is None:
            return "timeout"
        return "right" if status == 0 and output.split()[-1] == nonce else "wrong"

if __name__ == "__main__":
    roles = {"candidate": serve_candidate, "tests": run_tests}
    roles[sys.argv[1]](*map(int, sys.argv[2:]))
