"""Programs that nobody trusts, under tests.

    check_code(code, tests, limits)       # in a worker: "right", "wrong", "timeout" or "error"

Each response has a supervisor of its own (cell.py), in bubblewrap where that works: it holds the tests and
starts cells, one for the program, which never sees a test. Nothing outlives the supervisor, and no response
meets what another left.
"""
import ast
import ctypes
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from support.answers import final_text

sys.set_int_max_str_digits(100_000)       # tests hold numbers of thousands of digits

class Limits(NamedTuple):
    seconds: float = 5.0              # of CPU for one run; four times as long for all runs of a response
    memory: int = 1 << 30             # bytes of address space
    output: int = 1 << 24             # bytes, of standard output and of every file

# What a program may import beside the standard library. Other packages may hold the answers of a data set.
PACKAGES = """numpy pandas scipy sklearn joblib threadpoolctl sympy mpmath gmpy2 networkx sortedcontainers
    dateutil pytz tzdata six regex more_itertools typing_extensions bs4 soupsieve yaml pytest _pytest py
    pluggy iniconfig packaging pygments exceptiongroup tomli""".split()

CELL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cell.py")
PYTHON = [os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "-ISB", "-X", "utf8"]

# What tests cannot have here: they would change the program's surroundings, look into its source, start
# processes, or run text that a program made; a DataFrame does not cross.
REFUSED = set("eval exec __import__ patch monkeypatch getsource subprocess multiprocessing pickle marshal "
              "fork system popen __code__ __globals__ pandas".split())

def read_tests(tests):
    """A dict of inputs, outputs and perhaps fn_name (or its JSON), or text for pytest. None for what is
    empty, broken or cannot be judged here: no import of solution, a word of REFUSED, a class that derives
    from one of the program's."""
    if isinstance(tests, str) and tests.lstrip().startswith("{"):
        try:
            tests = json.loads(tests)
        except ValueError:
            return None
    if isinstance(tests, dict):
        inputs, outputs = tests.get("inputs"), tests.get("outputs")
        return tests if inputs and isinstance(outputs, list) and len(inputs) == len(outputs) else None
    try:
        nodes = list(ast.walk(ast.parse(tests)))
    except (SyntaxError, ValueError, TypeError, RecursionError):
        return None
    words = {getattr(node, field, None) for node in nodes for field in ("id", "attr", "name", "arg")}
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "solution"]
    taken = {alias.asname or alias.name for node in imports for alias in node.names}
    bases = [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    derived = taken & {getattr(base, "id", None) for base in bases}
    return tests if (imports or "solution" in words) and not REFUSED & words and not derived else None

@lru_cache(1)
def places():
    """What a cell may read: trees, folders hidden in them, and packages with the folders that they are in."""
    prefixes = sys.base_prefix, "/usr", "/"
    roots = {os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64")}
    trees = [path for path in sorted(roots) if os.path.isdir(path)]
    trees += ["/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", PYTHON[0], CELL]
    hidden = [path for tree in trees for path in glob.glob(f"{os.path.realpath(tree)}/python*/*-packages")]
    site = [path for path in sys.path if path.endswith("-packages")]
    packages = [path for folder in site for name in PACKAGES for end in ("", ".py", ".libs", ".*.so")
                for path in glob.glob(f"{folder}/{name}{end}")]
    return {"trees": trees, "hidden": sorted(set(hidden)), "site": site, "packages": packages}

@lru_cache(1)
def sandbox():
    """(name, bwrap's command) of what works here: "bubblewrap" (no network, no processes and no files but its
    own and the interpreter's), else "Landlock", else "rlimits only"; all with seccomp, and if root starts it
    with a user of its own."""
    seen = places()
    view = ["bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc",
            "--unshare-uts", "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(64 << 20),
            "--tmpfs", "/tmp", "--chdir", "/tmp"]
    view += [] if os.getuid() == 0 else ["--unshare-user", "--cap-drop", "ALL"]
    for path in [*seen["trees"], *seen["hidden"], *seen["packages"]]:
        for parent in list(Path(path).parents)[-2::-1]:
            view += ["--perms", "0755", "--dir", str(parent)]
        hide = path in seen["hidden"]
        view += ["--perms", "0755", "--tmpfs", path] if hide else ["--ro-bind-try", path, path]
    trial = [*view, *PYTHON, "-c", "import ctypes"]
    if shutil.which("bwrap") and subprocess.run(trial, capture_output=True).returncode == 0:
        return "bubblewrap", view
    return "Landlock" if ctypes.CDLL(None).syscall(444, None, 0, 1) > 0 else "rlimits only", []

@lru_cache(1)
def log_sandbox():
    print(f"sandbox.py: programs run in the sandbox {sandbox()[0]!r}", file=sys.stderr)

def remove(folder):
    """Delete a folder, whatever a program made of it, or makes in the moment that it has left to live."""
    for _ in range(100):
        for command in ["/bin/chmod", "-R", "u+rwx"], ["/bin/rm", "-rf"]:
            subprocess.run([*command, folder], stderr=subprocess.DEVNULL)
        if not os.path.exists(folder):
            break
        time.sleep(0.1)

def check_code(code, tests, limits):
    """Status of a program under tests, see read_tests. For workers only: it waits for all child processes."""
    _, view = sandbox()
    folder = "/tmp" if view else tempfile.mkdtemp()
    runs = len(tests["inputs"]) if isinstance(tests, dict) else 2
    timeout = 20 * limits.seconds + 2 * runs               # of wall clock, on a busy machine
    user = 0
    if os.getuid() == 0:                                   # one for each worker, if the map has so many
        users = sum(int(entry.split()[2]) for entry in open("/proc/self/uid_map"))
        user = 1000 + os.getpid() % (users - 2000) + (100_000 if users > 1 << 30 else 0)
        os.chmod(folder, 0o711) if not view else None
    job = {**places(), "names": PACKAGES, "tests": tests, "code": code, "limits": limits, "folder": folder,
           "user": user}
    process = subprocess.Popen([*view, *PYTHON, CELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, cwd="/")
    try:
        return process.communicate(json.dumps(job).encode(), timeout)[0].decode().strip() or "error"
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        process.kill()
        while True:                                        # it adopts the cells of a killed supervisor
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        if not view:
            remove(folder)

def extract_code(response):
    """Content of the last closed code fence after </think> that is tagged as Python, else of the last one
    without a tag that does something; None if there is none. A fence inside a program ends nothing: a block
    ends at the first closing fence at which it is Python."""
    lines, found, i = final_text(response).splitlines(keepends=True), {True: [], False: []}, 0
    def parsed(code):
        try:
            return ast.parse(textwrap.dedent(code))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    while i < len(lines):
        opening = re.match(r"[ \t>*+\-\d.)]*?(`{3,}|~{3,})[ \t]*([^`\n]*)$", lines[i])
        i += 1
        if not opening:
            continue
        fence, tag = opening[1], re.match(r"[{. ]*([\w+#-]*)", opening[2].lower())[1]
        closing = re.compile(rf"(.*?){fence[0]}{{{len(fence)},}}\s*$")
        ends = [j for j in range(i, len(lines)) if closing.match(lines[j])][:20]
        blocks = [(j, "".join(lines[i:j]) + closing.match(lines[j])[1].rstrip(" \t")) for j in ends]
        if not blocks:
            continue
        python = tag in ("python", "python3", "py", "py3")
        whole = (block for block in blocks if (python or not tag) and parsed(block[1]))
        end, code = next(whole, blocks[0])
        tree = parsed(code)
        acts = (ast.Call, ast.FunctionDef, ast.ClassDef)
        if python or not tag and tree and any(isinstance(node, acts) for node in ast.walk(tree)):
            found[python].append(textwrap.dedent(code))
        i = end + 1
    return (found[True] or found[False] or [None])[-1]
