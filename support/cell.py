"""What runs a program under tests: the supervisor of a response and its cells. sandbox.py starts this file.

A cell gives up everything by itself before it runs a line of others (confine): it is one process of a user of
its own, without capabilities, sockets, memory shared with others and any file but the interpreter's, some
packages' and those of its folder. The program has one cell; the tests, unless they are texts for standard
input, have another, where mirrors stand for the program's objects.
"""
import builtins
import collections
import ctypes
import importlib
import io
import json
import marshal
import numbers
import operator
import os
import re
import resource
import signal
import struct
import sys
import threading
import types
import warnings
from functools import lru_cache
from importlib.machinery import PathFinder

sys.set_int_max_str_digits(0)             # tests and results hold numbers of thousands of digits

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
               "OPENBLAS_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

# --- what a cell may do -------------------------------------------------------------------------------------

# System calls by number. Denied: socket, System V and POSIX IPC, memfd; fork, exec; other processes;
# namespaces; keys; file handles, perf, bpf, userfaultfd, the kernel's log. Own: they name a process.
CALLS = {"x86_64": dict(arch=0xC000003E, clone=56, prctl=157, own=[62, 234, 302], denied=[
            41, *range(29, 32), *range(64, 72), 220, *range(240, 246), 319, 57, 58, 59, 322, 101, 310, 311,
            312, 200, 129, 297, 141, 142, 144, 203, 251, 314, 256, 279, 272, 308, 248, 249, 250, 303, 304,
            298, 321, 323, 103]),
         "aarch64": dict(arch=0xC00000B7, clone=220, prctl=167, own=[129, 131, 261], denied=[
            198, *range(180, 198), 279, 221, 281, 117, 270, 271, 272, 130, 138, 240, 140, 118, 119, 122, 30,
            274, 238, 239, 97, 268, 217, 218, 219, 264, 265, 241, 280, 282, 116])}
NEW_CALLS = [436, 437, 439, 441, 449]     # close_range, openat2, faccessat2, epoll_pwait2, futex_waitv

def seccomp_filter(calls, pid):
    """Berkeley Packet Filter: one test and its answer a line, numbers of 2020 and later do not exist."""
    load, equal, at_least, has_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, (eperm, eagain, enosys) = 0x7FFF0000, (0x50000 + error for error in (1, 11, 38))
    lines = [(load, 0, 0, 4), (equal, 1, 0, calls["arch"]), (answer, 0, 0, 0x80000000), (load, 0, 0, 0)]
    for number in calls["denied"]:
        lines += [(equal, 0, 1, number), (answer, 0, 0, eperm)]
    for number in calls["own"]:
        itself = 0 if number == calls["own"][-1] else pid              # prlimit64's 0; kill's 0 is a group
        lines += [(equal, 0, 5, number), (load, 0, 0, 16), (equal, 2, 0, pid), (equal, 1, 0, itself),
                  (answer, 0, 0, eperm), (answer, 0, 0, allow)]
    lines += [(equal, 0, 4, calls["clone"]), (load, 0, 0, 16), (has_bit, 0, 1, 0x10000),
              (answer, 0, 0, allow), (answer, 0, 0, eagain),      # but for CLONE_THREAD
              (equal, 0, 4, calls["prctl"]), (load, 0, 0, 16), (equal, 0, 1, 1), (answer, 0, 0, eperm),
              (answer, 0, 0, allow)]                                       # but for PR_SET_PDEATHSIG
    for number in NEW_CALLS:
        lines += [(equal, 0, 1, number), (answer, 0, 0, allow)]
    lines += [(at_least, 0, 1, 424), (answer, 0, 0, enosys), (answer, 0, 0, allow)]
    return b"".join(struct.pack("<HBBI", *line) for line in lines), len(lines)

def landlock(libc, readable, folder):
    """A ruleset: read what is readable, do everything in folder, nothing else. None: the kernel has none."""
    version = libc.syscall(444, None, 0, 1)
    if version < 1:
        return None
    everything = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14
    scope = struct.pack("<QQQ", everything, 0, 3)[:24 if version >= 6 else 8]    # 3: sockets, signals
    rules = libc.syscall(444, scope, len(scope), 0)
    devices = [(f"/dev/{name}", 6) for name in ("null", "zero", "full", "random", "urandom")]
    for path, access in [*readable, *devices, (folder, everything)]:
        if os.path.exists(path):
            fd = os.open(path, os.O_PATH)
            access &= everything if os.path.isdir(path) else 6
            libc.syscall(445, rules, 1, struct.pack("<Qi", access, fd), 0)
            os.close(fd)
    return rules

def without(tree, hidden):
    """(path, Landlock's rights) so that all of a tree can be read but for the hidden folders."""
    if tree in hidden or not any(path.startswith(tree + "/") for path in hidden):
        return [] if tree in hidden else [(tree, 12)]
    return [(tree, 8), *[pair for entry in os.scandir(tree) for pair in without(entry.path, hidden)]]

def confine(job):
    """Give up all that a program must not have; the first thing a cell does. The order matters."""
    libc, parent, calls = ctypes.CDLL(None, use_errno=True), os.getppid(), CALLS[os.uname().machine]
    for name, value in job["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    def reach(path):
        """The folder by a descriptor, where another user could not walk to it: a Python in /root."""
        parent, walkable = path, True
        while parent != "/":
            parent = os.path.dirname(parent)
            walkable = walkable and os.stat(parent).st_mode & 1
        return path if walkable or not job["user"] else f"/proc/self/fd/{os.open(path, os.O_PATH)}"
    site = [reach(path) for path in job["site"] if os.path.isdir(path)]
    sys.path[:] = [reach(path) for path in sys.path if os.path.isdir(path)]
    for module in list(sys.modules.values()):
        if getattr(module, "__path__", None):
            module.__path__ = [reach(path) for path in module.__path__]
    class Packages:
        def find_spec(name, path=None, target=None):
            return PathFinder.find_spec(name, site) if name in job["names"] else None
    sys.meta_path.append(Packages)
    readable = [pair for tree in job["trees"] for pair in without(os.path.realpath(tree), job["hidden"])]
    readable += [(path, 12) for path in job["packages"]] + [(path, 8) for path in job["site"]]
    rules = landlock(libc, readable, job["box"])
    os.chdir(job["box"])
    with open("/proc/self/oom_score_adj", "w") as file:                # it goes first, should memory run out
        file.write("1000")
    if job["user"]:
        os.setgroups([])
        os.setresgid(*[job["user"]] * 3)
        os.setresuid(*[job["user"]] * 3)
    for option, value in (38, 1), (4, 0), (1, signal.SIGKILL):             # NO_NEW_PRIVS, DUMPABLE, PDEATHSIG
        libc.prctl(option, value, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    if rules is not None and libc.syscall(446, rules, 0):
        os._exit(1)
    program, length = seccomp_filter(calls, os.getpid())
    kept = ctypes.create_string_buffer(program)
    if libc.prctl(22, 2, struct.pack("HP", length, ctypes.addressof(kept)), 0, 0):
        os._exit(1)
    threading.stack_size(16 << 20)         # else each thread reserves as much as the main one may use
    builtins.exit = builtins.quit = sys.exit
    os.environ["TMPDIR"] = job["box"]

def run_solution(code, name):
    """Run code as the module of this name, with what LeetCode imports for a class Solution."""
    module = sys.modules[name] = types.ModuleType(name)
    if "class Solution" in code:
        exec("from typing import *\nfrom collections import *\nfrom functools import *\n"
             "from itertools import *\nimport bisect, collections, functools, heapq, itertools, math, "
             "operator, random, re, string",
             vars(module))
    exec(compile(code, "solution.py", "exec"), vars(module))
    return module

def run_program(job):
    run_solution(job["code"], "__main__")

# --- values that cross between the cells --------------------------------------------------------------------

# Messages are JSON: what a program sends can only be data. Containers and these values cross as a list of
# their type's name and what makes them; any other object stays where it is and its key crosses.
VALUES = {"builtins.complex", "builtins.range", "builtins.slice", "builtins.bytearray", "fractions.Fraction",
          "decimal.Decimal", "datetime.date", "datetime.time", "datetime.datetime", "datetime.timedelta",
          "datetime.timezone", "collections.Counter", "pathlib.PosixPath"}
CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque,
              "dict": dict, "OrderedDict": collections.OrderedDict, "dict_items": lambda x: dict(x).items(),
              "dict_keys": lambda x: dict.fromkeys(x).keys(),
              "dict_values": lambda x: dict(enumerate(x)).values()}

def pack(x, stay):
    """x as JSON has it; stay(x) for what is no plain value."""
    kind = type(x)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if x is None or kind in (bool, int, float, str):
        return x
    if kind is bytes:
        return ["bytes", x.decode("latin-1")]
    label = "dict" if kind is collections.defaultdict else kind.__name__
    if label in CONTAINERS and kind.__module__ in ("builtins", "collections"):
        items = x.items() if isinstance(x, dict) else x
        return [label, *[pack(item, stay) for item in items]]
    if name in VALUES:
        return [name, *[pack(part, stay) for part in x.__reduce_ex__(2)[1] if part is not kind]]
    if kind.__module__ == "numpy" and hasattr(x, "tolist"):
        value = x.tolist()
        return ["ndarray", str(x.dtype), pack(value, stay)] if name == "numpy.ndarray" else pack(value, stay)
    return stay(x)

def unpack(x, find):
    """The value of what pack made; find(kind, *parts) for what stayed. Any exception: it is no such thing."""
    if not isinstance(x, list):
        return x
    kind, *parts = x
    if kind in CONTAINERS:
        return CONTAINERS[kind]([unpack(part, find) for part in parts])
    if kind == "bytes":
        return parts[0].encode("latin-1")
    if kind in VALUES:
        module, _, name = kind.rpartition(".")
        return getattr(importlib.import_module(module), name)(*[unpack(part, find) for part in parts])
    if kind == "ndarray":
        import numpy
        array = numpy.array(unpack(parts[1], find), parts[0])
        if array.ndim > 1 and not array.size:
            raise TypeError("an array without values equals all others by broadcasting")
        return array
    return find(kind, *parts)

class Line:
    """One end of the line between the cells: ask, and answer what is asked meanwhile."""
    def __init__(self, read, write, stay, find, answer):
        self.read, self.write, self.lock = os.fdopen(read, "rb"), os.fdopen(write, "wb"), threading.RLock()
        self.stay, self.find, self.answer = stay, find, answer

    def send(self, kind, message):
        self.write.write(json.dumps([kind, pack(message, self.stay)]).encode() + b"\n")
        self.write.flush()

    def wait(self):
        """Answer questions until the other end has answered; its answer."""
        while line := self.read.readline(1 << 26):
            kind, message = json.loads(line)
            message = unpack(message, self.find)
            if kind == "answer":
                return message
            answer = self.answer(*message)
            try:
                self.send("answer", answer)
            except (RecursionError, ValueError, TypeError) as error:
                self.send("answer", (error, None, None, "", "", []))
        raise EOFError("the other cell is gone")

    def ask(self, operation, target, args, kwargs):
        with self.lock:
            self.send("question", (operation, target, args, kwargs))
            return self.wait()

def resolve(module, name):
    return operator.attrgetter(name)(importlib.import_module(module))

def make_error(kind, text, args, attributes):
    """An exception of this kind; text is what str() of it says where kind does not know."""
    try:
        error = kind(*args)
    except TypeError:
        error = kind.__new__(kind)
        error.args = tuple(args)
    vars(error).update(attributes, text_of_the_program=text)
    return error

# --- the program's cell -------------------------------------------------------------------------------------

ARITHMETIC = "add sub mul truediv floordiv mod pow matmul divmod and or xor lshift rshift".split()
ARITHMETIC += ["r" + name for name in ARITHMETIC] + ["i" + name for name in ARITHMETIC]
ORDER = ["lt", "le", "gt", "ge"]
TO_A_NUMBER = "abs round trunc floor ceil int float complex index bool len".split()
SPECIAL = "neg pos invert iter next reversed getitem setitem delitem contains call enter exit str repr format"
SPECIAL = [*ARITHMETIC, *ORDER, *TO_A_NUMBER, *SPECIAL.split(), "hash"]
PLAIN, SCALARS = (dict, list, tuple, set, frozenset, collections.deque), (int, float, str, bytes)

def plain(x):
    """The content of x, if its type derives from one of Python's own, else None."""
    kind = next((kind for kind in PLAIN + SCALARS if issubclass(type(x), kind)), None)
    return kind and kind(x if kind in SCALARS else kind.items(x) if kind is dict else kind.__iter__(x))

def serve_program(job):
    """Do with the program's objects what the tests ask for; objects stay here, their keys leave."""
    out, err = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    objects, described, solution = {}, set(), []
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    sys.stdin, sys.stdout, sys.stderr = open(0), out, err
    class Stub:                                            # what can be called, and stays with the tests
        def __init__(self, key):
            self.key = key
        def __call__(self, *args, **kwargs):
            error, value, *_ = line.ask("call", self, args, kwargs)
            if error is not None:
                raise error
            return value
        def __iter__(self):
            return self
        def __next__(self):
            error, value, *_ = line.ask("next", self, (), {})
            if error is not None:
                raise error
            return value
    def stay(x):
        kind = type(x)
        if kind is Stub:
            return ["stub", x.key]
        if x is NotImplemented or x is Ellipsis or kind is type and vars(builtins).get(x.__name__) is x:
            return ["name", "builtins", getattr(x, "__name__", repr(x))]
        if isinstance(x, BaseException):
            return ["error", stay(kind), *[pack(part, stay) for part in (str(x), x.args, vars(x))]]
        objects[id(x)] = x
        if id(x) in described:
            return ["kept", id(x)]
        if isinstance(x, type):
            described.add(id(x))
            error = issubclass(x, BaseException)
            bases = [stay(base) for base in x.__bases__
                     if base.__module__ == "solution" or error and base is not object]
            special = [f"__{name}__" for name in SPECIAL
                       if any(f"__{name}__" in vars(parent) for parent in x.__mro__ if parent is not object)]
            base = next((base.__name__ for base in PLAIN if issubclass(x, base)), None)
            return ["class", id(x), x.__module__, x.__name__, bases, special, base, str(x.__doc__),
                    list(getattr(x, "__dataclass_fields__", []))]
        if issubclass(kind, SCALARS) and not hasattr(kind, "__members__"):            # an Enum's member stays
            return pack(plain(x), stay)
        if hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
            return ["iterator", id(x)]
        return ["coroutine" if hasattr(kind, "cr_code") else "object", id(x), stay(kind)]
    def find(kind, *parts):
        if kind == "kept":
            return objects[parts[0]]
        if kind == "error":
            return make_error(*[unpack(part, find) for part in parts])
        return Stub(*parts) if kind == "stub" else resolve(*parts)
    def module():
        if not solution:
            solution.append(run_solution(job["code"], "solution"))
        return solution[0]
    def get(x, name):
        if x is solution[0] and not hasattr(x, name) and hasattr(x, "Solution"):
            x = x.Solution()
        return getattr(x, name)
    operations = {"get": get, "set": setattr, "delete": delattr,
                  "call": lambda f, /, *args, **kwargs: f(*args, **kwargs),
                  "special": lambda x, name, /, *args, **kwargs: getattr(type(x), name)(x, *args, **kwargs),
                  "next": next, "list": list, "plain": plain,
                  "send": lambda x, value: x.send(value), "run": lambda x: resolve("asyncio", "run")(x),
                  "names": lambda x: [name for name in vars(x) if name[0] != "_"],
                  "parameters": lambda x: [(p.name, int(p.kind), p.default is not p.empty)
                                           for p in resolve("inspect", "signature")(x).parameters.values()]}
    def answer(operation, target, args, kwargs):
        before, value, error = json.dumps(pack([args, kwargs], id)), None, None
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                target = module() if target is None else target
                value = operations[operation](target, *args, **kwargs)
        except BaseException as exception:
            error = exception
        after = (args, kwargs) if json.dumps(pack([args, kwargs], id)) != before else None
        said = []
        for stream in (out, err):
            stream.flush()
            said.append(stream.buffer.getvalue().decode(errors="replace"))
            stream.seek(0)
            stream.truncate()
        return error, value, after, *said, [(w.category, str(w.message)) for w in warned]
    line = Line(job["read"], job["write"], stay, find, answer)
    line.wait()

# --- the tests' cell ----------------------------------------------------------------------------------------

def run_tests(job):
    """Run tests against mirrors of what the program has; write the nonce if all of them passed."""
    import copy, dataclasses, inspect
    tests, verdict = job["tests"], os.dup(1)
    words = set(re.findall(r"\w+", tests)) if isinstance(tests, str) else set()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    known, stubs, asked = {}, {}, 0

    def ask(operation, target, /, *args, **kwargs):
        nonlocal asked
        changes = ("__call__",), ("__setitem__",), ("__delitem__",)
        asked += operation in ("call", "set", "delete") or args[:1] in changes
        error, value, after, out, err, warned = line.ask(operation, target, args, kwargs)
        sys.stdout.write(out)
        sys.stderr.write(err)
        for category, text in warned:
            warnings.warn(text, category, 3)
        if after is not None:
            for old, new in zip([*args, *kwargs.values()], [*after[0], *after[1].values()], strict=True):
                renew(old, new)
        ends = StopIteration, StopAsyncIteration, GeneratorExit
        if isinstance(error, ends) and operation != "next" and args[:1] != ("__next__",):
            raise RuntimeError(f"the program raised {type(error).__name__}") from None         # it ends loops
        if error is not None:
            raise error
        return value

    def visible(name):
        if name[:2] == "__" and name[2:-2] not in ("name", "qualname", "doc", "annotations", "members"):
            raise AttributeError(name)                     # numpy, inspect, import, copy act on the others
        return name

    class Mirror(type):
        """A class of the program: what it makes are mirrors too."""
        def __call__(cls, /, *args, **kwargs):
            return ask("call", cls, *args, **kwargs)
        def __getattr__(cls, name):
            return ask("get", cls, visible(name))
        def __setattr__(cls, name, value):
            ask("set", cls, name, value)
        def members(cls):                                  # of an Enum: they do not change
            if "__listed__" not in vars(cls):
                type.__setattr__(cls, "__listed__", ask("list", cls))
            return vars(cls)["__listed__"]
        def __iter__(cls):
            return iter(Mirror.members(cls))
        def __len__(cls):
            return len(Mirror.members(cls))
        def __contains__(cls, x):
            return x in Mirror.members(cls)
        def __getitem__(cls, name):
            return ask("special", cls, "__getitem__", name)

    class Remote(metaclass=Mirror):
        """An object of the program. It never decides whether it equals a value of the tests."""
        __doc__ = property(lambda self: ask("get", self, "__doc__"))
        def __getattr__(self, name):
            if name == "__signature__":
                return inspect.Signature([
                    inspect.Parameter(name, kind, default=None if default else inspect.Parameter.empty)
                    for name, kind, default in ask("parameters", self)])
            if re.match("is[a-z]|(starts|ends)with", name) and not named(self):
                raise AttributeError(name)                 # it would judge a value of the tests
            return ask("get", self, visible(name))
        def __setattr__(self, name, value):
            ask("set", self, name, value)
        def __delattr__(self, name):
            ask("delete", self, name)
        def __eq__(self, other):
            if isinstance(other, Remote):
                return self is other or ask("special", self, "__eq__", other) is True
            content = ask("plain", self)
            return NotImplemented if content is None else content == other
        __hash__ = object.__hash__
        def __array__(self, *args, **kwargs):
            raise TypeError("an object of the program is no array")
        def __deepcopy__(self, memo):
            return ask("call", copy.deepcopy, self)

    def named(x):
        """The tests know its class, and not as a function's name: they test what such an object says."""
        name = type(x).__name__
        return name in words and name != name.lower()

    def special(name):
        bare = name.strip("_")
        def method(self, /, *args, **kwargs):
            mixed = not all(isinstance(arg, Remote) for arg in args)
            content = ask("plain", self) if mixed and bare in ORDER + ARITHMETIC else None
            if content is not None:
                return getattr(content, name)(*args)
            if (bare in ORDER and mixed or bare in TO_A_NUMBER and "mixed" in vars(self)
                    or bare == "contains" and not named(self)):
                raise TypeError("an object of the program does not compare itself with the tests' values")
            value = ask("special", self, name, *args, **kwargs)
            if bare in ARITHMETIC and mixed and value is not NotImplemented:
                if not isinstance(value, Remote):
                    raise TypeError("an object of the program does not reckon with the tests' values")
                vars(value)["mixed"] = True
            if bare == "len":
                vars(self)["length"] = asked, value
            return value
        def iterate(self):
            if "__len__" not in dir(type(self)):
                inner = ask("special", self, "__iter__")
                return inner if inner is self else iter(inner)
            items, (when, length) = ask("list", self), vars(self).get("length", (None, None))
            if not len(items) == len(self) == (length if when == asked else len(items)):
                raise TypeError("an object of the program has another length than it says")
            return iter(items)
        return iterate if bare == "iter" else method

    def mirror_class(key, module, name, bases, specials, base, doc, fields):
        bases = tuple(unpack(parent, find) for parent in bases)
        errors = tuple(parent for parent in bases if issubclass(parent, BaseException))
        real = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if errors and name in words and isinstance(real, type) and issubclass(real, Exception):
            return real                                    # of the standard library, and the tests have it
        if errors:
            text = lambda self: vars(self).get("text_of_the_program") or str(self.args)
            return type(name, errors, {"__key__": key, "__str__": text})
        own = {"__key__": key, "__doc__": doc if module == "solution" else vars(Remote)["__doc__"]}
        own |= {name: special(name) for name in specials if name[2:-2] in SPECIAL}
        if fields:
            own["__dataclass_fields__"] = dataclasses.make_dataclass(name, fields).__dataclass_fields__
        if base:
            own["__class__"] = property(lambda self: vars(builtins).get(base, collections.deque))
        return Mirror(name, bases or (Remote,), own)

    def generate(x):
        sent = None
        while True:
            try:
                value = ask("next", x) if sent is None else ask("send", x, sent)
            except StopIteration:
                return
            sent = yield value
    async def run(x):
        return ask("run", x)

    def find(kind, *parts):
        key = parts[0]
        if kind == "stub":
            return stubs[key]
        if kind == "name":
            value = vars(builtins)[parts[1]]
            if not isinstance(value, type) and value not in (NotImplemented, Ellipsis):
                raise TypeError("a function of the program runs there")
            return value
        if kind == "error":
            error, text, args, attributes = [unpack(part, find) for part in parts]
            ours = stubs.get(attributes.get("stub"))
            return ours if isinstance(ours, BaseException) else make_error(error, text, args, attributes)
        if key not in known and kind == "class":
            known[key] = mirror_class(*parts)
        if key not in known:
            x = known[key] = object.__new__(Remote if kind == "iterator" else unpack(parts[1], find))
            vars(x)["key"] = key
            if kind != "object":
                known[key] = generate(x) if kind == "iterator" else run(x)
        return known[key]

    def stay(x):
        if isinstance(x, Remote) or isinstance(x, type) and "__key__" in vars(x):
            return ["kept", vars(x).get("key") or vars(x)["__key__"]]
        stubs[id(x)] = x
        if isinstance(x, BaseException):
            kinds = [kind for kind in type(x).__mro__
                     if "__key__" in vars(kind) or kind.__module__ != "tests"]
            parts = kinds[0], str(x), x.args, {"stub": id(x)}
            return ["error", *[pack(part, stay) for part in parts]]
        module = getattr(getattr(x, "__objclass__", x), "__module__", None) or "builtins"
        name = getattr(x, "__qualname__", repr(x))
        try:
            if module != "tests" and resolve(module, name) is x:
                return ["name", module, name]
        except (ImportError, AttributeError, ValueError):
            pass
        return ["stub", id(x)]

    def answer(operation, f, args, kwargs):
        try:
            f = stubs[id(f)]                               # nothing else of ours is called from there
            return None, next(f) if operation == "next" else f(*args, **kwargs), None, "", "", []
        except Exception as error:
            return error, None, None, "", "", []

    def renew(old, new):
        if type(old) is type(new) is list:
            old[:] = new
        elif type(old) is type(new) and hasattr(old, "clear"):
            old.clear()
            (old.extend if hasattr(old, "extend") else old.update)(new)
        elif hasattr(old, "tolist"):
            old[...] = new

    line = Line(job["read"], job["write"], stay, find, answer)
    if isinstance(tests, dict):
        f = ask("get", None, tests["fn_name"])
        for args, expected in zip(tests["inputs"], tests["outputs"], strict=True):
            if isinstance(args, str):                      # one JSON value a line
                args = [json.loads(text) for text in args.split("\n") if text.strip()]
                expected = json.loads(expected)
            value = f(*args)
            assert same_value(expected, value) or same_value(expected, [value])            # both are in use
    else:
        run_pytest(tests, words, ask)
    os.write(verdict, job["nonce"].encode())

def run_pytest(tests, words, ask):
    import ast, pytest
    class Solution(types.ModuleType):
        def __getattr__(self, name):
            if name[:2] == "__":
                raise AttributeError(name)
            return ask("get", None, name)
    solution = sys.modules["solution"] = Solution("solution")
    nodes = list(ast.walk(ast.parse(tests)))
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        own = {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
        own |= {getattr(node, "name", None) or getattr(node, "arg", None) for node in nodes}
        own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= set(dir(builtins)) | sys.stdlib_module_names
        solution.__all__ = [name for name in ask("names", None) if name in words and name not in own]
    if "numpy" in words:
        import numpy
        for name in "isclose", "allclose":
            def compare(a, b, *args, own=getattr(numpy, name), **kwargs):
                a, b = numpy.asarray(a), numpy.asarray(b)
                if bool(a.size) != bool(b.size):
                    raise ValueError("nothing equals everything by broadcasting")
                return own(a, b, *args, **kwargs)
            setattr(numpy, name, compare)
    class Tests(pytest.Module):                            # from memory
        def _getobj(self):
            module = sys.modules["tests"] = types.ModuleType("tests")
            exec(compile(tests, "tests", "exec"), vars(module))
            return module
    class Plugin:                                          # else it looks where the program writes
        def pytest_collection(session):
            session.items = list(session.genitems(Tests.from_parent(session, path=session.path / "tests.py")))
            session.testscollected = len(session.items)
            return True
    options = ["-qx", "-c", os.devnull, "--noconftest", f"--rootdir={os.getcwd()}", "--basetemp=pytest"]
    for name in "cacheprovider faulthandler junitxml doctest pastebin stepwise logging".split():
        options += ["-p", f"no:{name}"]
    assert pytest.main(options, [Plugin]) == 0

# --- comparison ---------------------------------------------------------------------------------------------

def same_number(a, b, digits):
    """b is the number a, which was written as digits: integers exactly, floats to 1e-6 of a or to their last
    decimal from the sixth on, infinities by sign; not a number is only that."""
    if a == b or a != a and b != b:
        return True
    from decimal import Decimal
    if isinstance(a, int) or abs(a) == float("inf"):
        return False
    last = Decimal(digits).as_tuple().exponent
    rounding = 0.5 * 10.0 ** last if last <= -6 else 0
    return abs(a - float(b)) <= max(1e-6 * abs(a), rounding, 1e-9 if a == 0 else 0)

def same_value(a, b):
    """b is the value a from JSON: tuples, sets, arrays and iterators are lists, keys of a dict strings."""
    b = b.tolist() if hasattr(b, "tolist") else b
    if isinstance(a, (int, float)) and isinstance(b, numbers.Number):
        return same_number(a, b, repr(a))
    if isinstance(a, (list, tuple)) and hasattr(b, "__iter__") and not isinstance(b, (str, bytes, dict)):
        b = list(b)
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        a, b = [{str(key): value for key, value in x.items()} for x in (a, b)]
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b

def same_output(a, b):
    """Same words; numbers with a point or an exponent agree as floats do."""
    from decimal import Decimal
    def same(a, b):
        if a == b or not all(re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", word) for word in (a, b)):
            return a == b
        return same_number(float(a), Decimal(b), a) if set(a) & set(".e") else Decimal(a) == Decimal(b)
    a, b = a.split(), b.split()
    return len(a) == len(b) and all(map(same, a, b))

# --- the supervisor -----------------------------------------------------------------------------------------

def memory(content):
    """A descriptor of a file in memory."""
    file = os.fdopen(os.memfd_create("sandbox"), "r+b", closefd=False)
    file.write(content)
    file.seek(0)
    return file.fileno()

@lru_cache(1)
def compiled():
    with open(__file__) as file:
        return compile(file.read(), __file__, "exec")

def start(job, role, stdin=-3, stdout=-3, fds=(), **more):                 # -3: subprocess.DEVNULL
    """A cell in job["box"], with more for it to know. It runs this file, compiled once for all cells."""
    import subprocess
    known = {name: value for name, value in job.items() if name not in ("tests", "code")}
    fd = memory(marshal.dumps((compiled(), role, known | more)))
    load = f"import marshal, os\ncode, role, job = marshal.load(os.fdopen({fd}, 'rb'))\nexec(code)"
    process = subprocess.Popen([sys.executable, "-ISB", "-X", "utf8", "-c", load, "solution.py"], stdin=stdin,
                               stdout=stdout, stderr=-3, pass_fds=[fd, *fds], env=ENVIRONMENT,
                               start_new_session=True)
    os.close(fd)
    return process

def finish(process, seconds):
    """(status, CPU seconds) of a cell; the status of SIGKILL after so many seconds of wall clock."""
    signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _, status, usage = os.wait4(process.pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return status, usage.ru_utime + usage.ru_stime

def supervise(job):
    """Judge one response; print the status."""
    import secrets, tempfile
    prctl = ctypes.CDLL(None).prctl
    prctl(1, signal.SIGKILL), prctl(4, 0)                  # PDEATHSIG, DUMPABLE
    tests, code, (seconds, memory_limit, output_limit) = job["tests"], job["code"], job["limits"]
    resource.setrlimit(resource.RLIMIT_STACK, (512 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    job["rlimits"] = {"RLIMIT_CPU": int(seconds) + 1, "RLIMIT_AS": memory_limit, "RLIMIT_FSIZE": output_limit,
                      "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 256}
    def box():
        job["box"] = tempfile.mkdtemp(dir=job["folder"])
        if job["user"]:
            os.chown(job["box"], job["user"], job["user"])
    wall, used = 6 * seconds, 0
    if isinstance(tests, dict) and not tests.get("fn_name"):
        for pair in zip(tests["inputs"], tests["outputs"], strict=True):
            given, expected = [x if isinstance(x, str) else "\n".join(map(str, x)) for x in pair]
            box()
            stdin, stdout = memory(given.encode(errors="replace")), memory(b"")
            status, cpu = finish(start(job, "program", stdin, stdout, code=code), wall)
            used += max(0, cpu - 0.5)                      # the interpreter's own
            if status == signal.SIGKILL or used > 4 * seconds:
                return "timeout"
            output = os.pread(stdout, output_limit, 0).decode(errors="replace")
            if status or not same_output(expected, output):
                return "wrong"
            os.close(stdin), os.close(stdout)
        return "right"
    box()
    (asked, ask), (answers, answer), verdict, nonce = os.pipe(), os.pipe(), memory(b""), secrets.token_hex()
    program = start(job, "serve_program", fds=(asked, answer), code=code, read=asked, write=answer)
    os.close(asked), os.close(answer)
    job["rlimits"]["RLIMIT_CPU"] += 10
    judge = start(job, "run_tests", stdout=verdict, fds=(ask, answers), tests=tests, nonce=nonce,
                  read=answers, write=ask)
    status, _ = finish(judge, wall)
    os.close(ask), os.close(answers)
    _, cpu = finish(program, 1)
    if status == signal.SIGKILL or cpu > seconds:
        return "timeout"
    return "right" if os.pread(verdict, 100, 0).decode() == nonce else "wrong"

if __name__ == "__main__" and "job" not in globals():
    print(supervise(json.load(sys.stdin)))
elif __name__ == "__main__":                               # a cell: start gave job and role
    role, job = globals()["role"], globals()["job"]
    confine(job)
    sys.argv[:] = ["solution.py"]
    {"program": run_program, "serve_program": serve_program, "run_tests": run_tests}[role](job)
