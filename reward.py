"""Prompts and verifiable rewards: math, countdown, code.

    score_batch(responses, problems, workers=2)       # [Score(reward, status, answer), ...] in the same order

Plain numbers and countdown are exact arithmetic on at most 300 characters and are judged on the spot.
Expressions (sympy) and programs go to worker processes, which may hang, eat memory or die: that costs the
response its reward.
"""
import ast
import builtins
import ctypes
import json
import logging
import math
import os
import pathlib
import pickle
import re
import resource
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate
from queue import SimpleQueue
from typing import NamedTuple

from jinja2 import TemplateError

STATUSES = ("right", "wrong", "no_answer", "truncated", "timeout", "error")
MAX_ANSWER = 300                      # characters; a longer answer is wrong unread


class Score(NamedTuple):
    reward: float                     # 1.0 or 0.0
    status: str                       # one of STATUSES
    answer: str | None                # what was judged

# --- prompt and answer extraction ---------------------------------------------------------------------------

INSTRUCTIONS = {
    "math": "Please reason step by step, and put your final answer within \\boxed{}.",
    "countdown": "Use each number at most once with + - * / and parentheses. "
                 "Put the expression within \\boxed{}.",
    "code": "Write a complete Python program and put it in one ```python code block.",
}

def format_prompt(problem, tokenizer):
    """Token ids: the chat template if there is one, else the text and, but for countdown, the instruction."""
    task, text = problem.get("task", "math"), problem["problem"]
    if getattr(tokenizer, "chat_template", None):
        template = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
        try:
            text = template([{"role": "system", "content": INSTRUCTIONS[task]}, {"role": "user", "content": text}])
        except TemplateError:                              # it knows no system role
            text = template([{"role": "user", "content": f"{INSTRUCTIONS[task]}\n\n{text}"}])
        return tokenizer(text, add_special_tokens=False).input_ids         # the template wrote the BOS
    return tokenizer(text if task == "countdown" else f"{text}\n{INSTRUCTIONS[task]}\n").input_ids

def final_text(response):
    """What follows the thinking; nothing if the thinking did not end."""
    text = response.rpartition("</think>")[2]
    return "" if "<think>" in text else text

def closing_brace(text, start):
    """Index of the brace that closes the one before start; None if there is none."""
    depth = 1
    for brace in re.compile(r"\\.|[{}]").finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None

def extract_boxed(response):
    """Content of the last complete \\boxed{...} (braces may nest) after </think>; None if there is none."""
    text = final_text(response)
    boxes = list(re.finditer(r"\\(?:boxed|fbox)\s*(?:\{|(-?\d[\d./]*))", text))
    for box in boxes[:-6:-1]:                              # few of them, so that the time is linear
        if box[1]:
            return box[1].rstrip(".")                                      # \boxed 2
        end = closing_brace(text, box.end())
        if end is not None:
            return text[box.end():end]
    return None

def extract_code(response):
    """Content of the last closed ```python (or untagged) fence after </think>; None if there is none."""
    blocks = [part.partition("\n") for part in final_text(response).split("```")[1:-1:2]]
    python = [code for tag, _, code in blocks if tag.strip() in ("", "py", "python", "python3")]
    return python[-1] if python else None

# --- countdown ----------------------------------------------------------------------------------------------

def extract_expression(response):
    """The last box, else the last line that is not empty; in plain characters, up to the first =."""
    text = extract_boxed(response) or (final_text(response).strip().splitlines() or [""])[-1]
    text = text[:MAX_ANSWER + 1].translate(_SIGNS)
    for latex, plain in {"\\times": "*", "\\cdot": "*", "\\div": "/", "\\left": "", "\\right": ""}.items():
        text = text.replace(latex, plain)
    return text.partition("=")[0].strip(" .") or None

def verify_countdown(response, problem):
    """True if the final expression is + - * / ( ) on given integers, each used at most as often as given, and
    its exact value is the target."""
    operators = {ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__", ast.Div: "__truediv__"}
    text, numbers = extract_expression(response) or "", list(problem["numbers"])
    def value(node):
        if isinstance(node, ast.Constant):
            numbers.remove(node.value)                                     # ValueError: not given, or used up
            return Fraction(node.value)
        if isinstance(node, ast.UnaryOp):
            return value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
        return getattr(value(node.left), operators[type(node.op)])(value(node.right))
    try:
        plain = len(text) <= MAX_ANSWER and re.fullmatch(r"[\d+\-*/() ]+", text, re.ASCII)
        return bool(plain) and value(ast.parse(text, mode="eval").body) == problem["target"]
    except (SyntaxError, ValueError, KeyError, AttributeError, ZeroDivisionError, RecursionError):
        return False

# --- math: one notation; then lists piece by piece, numbers exactly, the rest by sympy ----------------------

_SIGNS = str.maketrans({
    "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "÷": "/", "π": "\\pi ", "∞": "\\infty ",
    "√": "\\sqrt ", "∪": "\\cup ", "±": "\\pm ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "°": "\\degree ",
    "∅": "\\emptyset ", "²": "^2 ", "³": "^3 ", "½": "\\frac12 ", "$": "", "~": " ", "\n": " ", ";": ","})
_COMMANDS = {
    **dict.fromkeys("left right bigl bigr Bigl Bigr big Big quad qquad displaystyle".split(), " "),
    **dict.fromkeys("mbox hbox textbf textit textrm mathrm mathbf mathit operatorname".split(), "\\text"),
    **dict.fromkeys("dfrac tfrac cfrac".split(), "\\frac"), "approx": "=", "varnothing": "\\emptyset ",
    "leq": "\\le ", "leqslant": "\\le ", "lt": "<", "geq": "\\ge ", "geqslant": "\\ge ", "gt": ">",
    "langle": "(", "rangle": ")", "lbrace": "\\{", "rbrace": "\\}", "lbrack": "[", "rbrack": "]"}
_NOTATION = [(re.compile(pattern), new) for pattern, new in [
    (r"^\s*\*\*(.*)\*\*\s*$", r"\1"), (r"\*\*", "^"),
    (r"(?<=\d)(?:\\[,!;: ]|\{,\}|(?:\\!)?,\\!|\\!,| )(?=\d{3}(?!\d))", ""),                   # 10{,}000
    (r"(?<!\\)\\(?:[!,;:>() ]|\[|\](?!\d))", " "),
    (r"\\([a-zA-Z]+)", lambda m: _COMMANDS.get(m[1], "\\" + m[1])),
    (r"(?<![\\a-zA-Z])(sqrt|pi)(?![a-zA-Z])", r"\\\1 "), (r"sqrt\s*\(([^()]*)\)", r"sqrt{\1}"),
    (r"(?:\\text\s*\{)?\s*\bthousand\b\s*\}?", r"\\times 10^3"),
    (r"(?:\\text\s*\{)?\s*\bmillion\b\s*\}?", r"\\times 10^6"),
    (r"(?:\\text\s*\{)?\s*\bbillion\b\s*\}?", r"\\times 10^9"),
    (r"\\text\s*\{\s*percent\s*\}|\bpercent\b|\\%", "%"), (r"\b([ap])\. ?m\.?", r"\1m"),
    (r"\^\s*\{?\s*\\circ\s*\}?|(?<!\\)\bdegrees?\b|\\text\s*\{\s*degrees?\s*\}", r"\\degree "),
    (r",?\s*(?:\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)", ","), (r"\+/-|^\+-", r"\\pm "),
    (r"^\s*\\text\s*\{([^{}]*)\}\s*$", r"\1"), (r"^\s*\(?(\w+)\)\s*$", r"\1"),              # \text{(C)}
    (r"\((\w+)\)(?=_)", r"\1"), (r"([\^_]) ?(-?\d+|\w)", r"\1{\2}"),
    (r"\\text\s*\{\s*([ei])\s*\}|(?<![\d)} ])\\text\s*\{\s*(\w)\s*\}", lambda m: m[1] or m[2]),
    (r"\\\{\s*\\\}", r"\\emptyset"),
    (r"\\\{ *[a-z] *(?:\\in *\\mathbb *\{?R\}? *)?(?:\\mid|[|:])(.*)\\\}", r"\1"),          # {x | x > 2}
]]
# In \text{} any words are a unit, but for numbers, lists and operations; outside of it no product of variables either.
_OPERATION = r"""\b(?:not|plus|minus|over|choose|mod|squared|cubed|factorial|root|pi|wrong|dozen|hundred|thousand|
    million|billion|trillion|halves|thirds?|fourths?|fifths?|sixths?|eighths?|\w*(?:redth|enth|sandth)s?)\b"""
_UNIT = re.compile(rf"""(
    [ ]?\\text\{{(?![^{{}}]*(?:,|(?<![\^{{])\d)|.*{_OPERATION})(?:[^{{}}]|\{{[^{{}}]*\}})*\}}
    | (?<=[\d)}}])[ ]?(?:[ckm]m|[km]g|ft|in|lbs?|oz|hrs?|min|sec|mph|days?|ways?|men|[apAP][mM])\b
    | (?<=[\d)}}])[ ](?!.*(?:\btimes\b|{_OPERATION}))[a-zA-Z]{{4,}}\b
    )(?:[ ]|/|\^[ ]?\{{?-?\d\}}?|\\cdot|\\text\{{[^{{}}]*\}}|[a-zA-Z]+\b)*$""", re.VERBOSE)
# A name has no sums, and no numbers but in subscripts, brackets and ^{-1}; = or \in follows.
_NAME = re.compile(r"""
    ((?:[^=<>+\-\d\\]|\\[a-zA-Z]+(?![a-zA-Z])|(?<=[_(])\d+|(?<=_\{)\d+|\^\{?-1\}?)+)
    (?:=|\\in(?![a-z]))(.*)""", re.VERBOSE | re.DOTALL)
_SUM = re.compile(r"""(?=[^=]*(?:\\frac|\d[ )}]*(?:[-+*/^]|\\times|\\cdot|\\div)[ ({]*\d))
    ((?:[\d .+\-*/^(){}]|\\(?:times|cdot|div|frac)(?![a-z]))+)=(.*)""", re.VERBOSE | re.DOTALL)
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|cup|cap|setminus|mathbb)(?![a-z])")
_SLOW = re.compile(r"\\binom\s*\{?\s*\d{5}|\d \d|\\(?:sum|prod|int|lim)(?![a-z])|(?:[-+] ?){3}")
_WORDS = re.compile(r"(?<![\\a-zA-Z{])[A-Za-z]{4}|^[A-Z]+$")
_NUMBER = re.compile(r"""
    ([-+]?)[ ]?(?:(\d+)[ ]+(?=\d+/))?                      # sign, whole part of a mixed number
    (?:(-?\d+)/(-?0*[1-9]\d*)                              # fraction
    | (?=\.?\d)(\d*)(\.?)(\d*)(?:[eE]([-+]?\d{1,3}))?)     # decimal""", re.VERBOSE)

class Number(NamedTuple):
    value: Fraction
    digits: int                       # significant digits of a decimal, 0 if it is written exactly
    ulp: Fraction                     # one unit in the last place of a decimal

@lru_cache(100_000)
def number(text):
    """-3, .25, 7/4, \\frac{7}{4}, 1 3/4, 2e-7, 2 \\times 10^{-7}, 0.1\\overline{6} as a Number, or None."""
    if text.isascii() and text.isdecimal():                # most answers
        return Number(Fraction(int(text)), 0, Fraction(1))
    text = re.sub(r" ?(?:\\times|\\cdot|\*) ?10 ?\^ ?\{? ?([-+]?\d+) ?\}?$", r"e\1", text.strip())
    text = re.sub(r"\\[dt]?frac ?\{ ?(-?\d+) ?\} ?\{ ?(-?\d+) ?\}$", r" \1/\2", text).strip()
    text = re.sub(r"(\d*)\.(\d*)\\overline ?\{ ?(\d+) ?\}$", lambda m: str(Fraction(
        int(m[1] + m[2] + m[3]) - int("0" + m[1] + m[2]), (10 ** len(m[3]) - 1) * 10 ** len(m[2]))), text)
    m = _NUMBER.fullmatch(text)
    if not m:
        return None
    sign, whole, top, bottom, integer, point, decimals, exponent = m.groups()
    power = int(exponent or 0) - len(decimals or "")
    ulp = Fraction(10 ** max(power, 0), 10 ** max(-power, 0))
    value = Fraction(int(top), int(bottom)) if top else int(integer + decimals) * ulp
    if whole and not 0 <= value < 1:
        return None                                                        # 2\frac{3}{2} is a product
    digits = len((integer + decimals).lstrip("0")) if point else 0
    return Number((value + int(whole or 0)) * (-1 if sign == "-" else 1), digits, ulp)

def same_number(a, b):
    """Equal; or one is a decimal with six digits or more that rounds, or cuts off, the other, which is exact
    and no integer. From 16 digits on a decimal is what a float prints."""
    if a.value == b.value or bool(a.digits) == bool(b.digits):
        return a.value == b.value
    decimal, exact = (a, b) if a.digits else (b, a)
    error = (exact.value - decimal.value) * (1 if decimal.value > 0 else -1)
    close = 2 * abs(error) <= decimal.ulp or 0 <= error < decimal.ulp
    float_noise = decimal.digits >= 16 and abs(error) < abs(exact.value) / 2 ** 52
    return decimal.digits >= 6 and exact.value.denominator > 1 and (close or float_noise)

def unify(text):
    """An answer without wrappers, spacing, money signs, thousands separators; TeX arguments in braces."""
    text = (extract_boxed(text) or text).replace("\\$", "").translate(_SIGNS)
    if "\\begin" not in text:                              # there \\\\ ends a row, else it is escaped twice
        text = text.replace("\\\\", "\\")
    for pattern, new in _NOTATION:
        text = pattern.sub(new, text)
    commands = re.finditer(r"\\(?:frac|sqrt(?:\[\w+\])?|text|mathbb|overline)(?![a-z])", text)
    for command in reversed(list(commands)):
        end = command.end()
        for _ in range(2 if command[0] == "\\frac" else 1):
            token = re.compile(r"\s*(\{|\\[a-z]+|\d+|[^\s\\}])").match(text, end)
            if not token:
                break
            argument = token[1][0] if command[0] == "\\frac" and token[1].isdigit() else token[1]
            if argument != "{":
                text = f"{text[:end]}{{{argument}}}{text[token.start(1) + len(argument):]}"
            end = (closing_brace(text, text.index("{", end) + 1) or len(text)) + 1
    text = re.sub(r" +", " ", text).rstrip(" .,:").lstrip(" ,:")
    thousands = ", " in text or re.fullmatch(r"-?\d{1,3}(,\d{3})+(?!\d)[^,]*", text)      # (1,200) is a pair
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text) if thousands else text

def readable(answer):
    """False for a gold answer that is empty or broken: such a problem must never be scored as right."""
    text = answer if number(answer) else unify(answer)
    balanced = text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    return balanced and bool(re.search(r"\w", text)) and not re.search(r"\{\s*\}|[-+*/^_=(]$", text)

@lru_cache(50_000)
def same_answer(gold, pred):
    """True if two answers mean the same. May take any time and memory, so only workers call it."""
    return readable(gold) and same(unify(gold), unify(pred))

def value_of(text):
    """(name, value) of x = 5, f(x) = x, (x,y) = (1,2), x \\in [0,1], n = 1,2, 2+3 = 5; else (None, text)."""
    m = _NAME.fullmatch(text) or _SUM.fullmatch(text)
    if not m or "," in m[2] and "=" in m[2]:
        return None, text
    return m[1].replace(" ", ""), m[2].rpartition("=")[2].strip()

def elements(text):
    """(brackets, elements) of a tuple or interval, of a ratio (":"), of a set or list ("", no order)."""
    def cut(text, sign):
        depths = accumulate((c in "([{") - (c in ")]}") for c in text)
        ends = [i for i, (c, depth) in enumerate(zip(text, depths)) if c == sign and depth == 0]
        return [text[i:j].strip() for i, j in zip([0, *[i + 1 for i in ends]], [*ends, len(text)])]
    m = re.fullmatch(r"(\(|\[|\\\{)(.*)(\)|\]|\\\})", text, re.DOTALL)
    if m and 0 not in list(accumulate((c in "([{") - (c in ")]}") for c in text))[len(m[1]) - 1:-1]:
        brackets, parts = (m[1] + m[3]).replace("\\{\\}", ""), cut(m[2], ",")
        if not brackets or len(parts) > 1 and "\\pm" not in text:
            return brackets, parts
    parts = cut(text, ",")
    names = {value_of(part)[0] for part in parts}
    if len(names) == len(parts) > 1 and None not in names:                 # x = 1, y = 2 is (1,2)
        return "()", [value for _, value in sorted(map(value_of, parts))]
    if len(parts) == 1 and ":" in text:
        return ":", cut(text, ":")
    return "", [part.replace("\\pm", sign).replace("\\mp", "+-".replace(sign, ""))
                for part in parts for sign in ("+-" if re.search(r"\\[pm]{2}", part) else "+")]

def same(gold, pred):
    """True if two answers in the notation of unify mean the same: names, brackets, order, then each part."""
    if re.sub(r"(?<!\d) | (?!\d)", "", gold) == re.sub(r"(?<!\d) | (?!\d)", "", pred):
        return True
    (name_g, value_g), (name_p, value_p) = value_of(gold), value_of(pred)
    if name_g == name_p or not name_g and "=" not in gold or not name_p and "=" not in pred:
        if (gold, pred) != (value_g, value_p):
            return same(value_g, value_p)
    (brackets_g, a), (brackets_p, b) = elements(gold), elements(pred)
    if len(a) == len(b) and brackets_g == brackets_p:
        if len(a) == 1:
            return same_atom(a[0], b[0])
        if brackets_g:
            return all(map(same, a, b))
        for x in a:                                        # sets and lists of solutions have no order
            match = next((y for y in b if same(x, y)), None)
            if match is None:
                return False
            b.remove(match)
        return True
    if not _RELATION.search(gold + pred):
        return False
    return same_sets([gold] if brackets_g else a, [pred] if brackets_p else b)

def same_atom(gold, pred):
    """Compare two answers that are no lists: words, or a number or an expression with or without a unit."""
    units = [_UNIT.search(text) for text in (gold, pred)]
    units = [re.sub(r"[^a-z\d/]|text|s\b", "", m[0].lower()) if m else "" for m in units]
    if all(units) and units[0] != units[1]:
        return False
    if units[0]:
        pred = re.sub(rf"(?<=\d) ?{units[0]}$", "", pred)  # 1.5 m, if the gold answer is in metres
    def bare(text):
        text = re.sub(r"\\text\{((?:[^{}]|\{[^{}]*\})*)\}", r" \1 ", _UNIT.sub("", text)).strip()
        if re.search(r"\\[a-z]*(?:sin|cos|tan|cot|sec|csc)", text):
            return text
        return re.sub(r" ?\\degree ?[CF]?(?! ?\d)", "", text)
    g, p = bare(gold), bare(pred)
    percent = [g.endswith("%"), p.endswith("%")]
    g, p = g.rstrip(" %"), p.rstrip(" %")
    if _WORDS.search(g) or _WORDS.search(p) or g.isalpha() and g.casefold() == p.casefold():
        return len(g) > 1 and re.findall(r"[\w-]+", g.casefold()) == re.findall(r"[\w-]+", p.casefold())
    a, b = number(g), number(p)
    if a and b:
        if percent[0] != percent[1]:                       # 50\% is 50 to some and 1/2 to others
            hundred, other = (a, b) if percent[0] else (b, a)
            return other.value in (hundred.value, hundred.value / 100)
        return same_number(a, b)
    if re.search(r"\d[A-F]?_", g + p):                     # 101_2 is no product
        return g == p
    return g == p or same_expression(g, p)

@lru_cache(50_000)
def parse(text):
    """The sympy object that an answer in LaTeX stands for, not evaluated, without floats; None if it is
    unreadable or would be a number of millions of digits."""
    import sympy as sp
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    def bits(x):                                           # at least log2 |x|
        if getattr(x, "is_Rational", False):
            return math.log2(max(abs(x.p), x.q))
        n = [bits(arg) for arg in getattr(x, "args", ())]
        if isinstance(x, (sp.Pow, sp.factorial)):
            return n[0] * 2.0 ** min(n[-1], 60)
        return sum(n) + 1
    depth = accumulate((c in "([{") - (c in ")]}") for c in text)
    if _SLOW.search(text) or max(depth, default=0) > 20:
        return None
    text = re.sub(r"\d*\.\d+", lambda m: "\\frac{%d}{%d}" % Fraction(m[0]).as_integer_ratio(), text)
    text = re.sub(r"(?<=\d) ?\(", r"\\cdot(", text.replace("\\degree", "\\cdot\\frac{\\pi}{180}"))
    text = re.sub(r"(?<![\\a-zA-Z_])(?<!_\{)i(?![a-zA-Z])", r"\\sqrt{-1}", text)
    try:
        config = ConversionConfig(lowercase_symbols=False)
        result = latex2sympy(text, conversion_config=config, normalization_config=None)
        return result if bits(result) < 1 << 21 else None
    except Exception:                                      # the parser raises whatever it likes
        return None

def same_sets(gold, pred):
    """Compare two unions of sets and inequalities in one variable."""
    import sympy as sp
    sets = []
    for parts in gold, pred:
        parts = [part.as_set() if isinstance(part, (sp.Rel, sp.And)) else part for part in map(parse, parts)]
        if not all(isinstance(part, sp.Set) for part in parts):
            return False
        sets.append(sp.Union(*parts).doit())
    return sets[0] == sets[1] or (sets[0] ^ sets[1]).is_empty is True

def same_expression(gold, pred):
    """Compare by sympy: constants here and without tolerance, all else by math-verify."""
    import sympy as sp
    from math_verify import verify
    a, b = parse(gold), parse(pred)
    if a is None or b is None or isinstance(a, sp.Eq) != isinstance(b, sp.Eq):
        return False
    if isinstance(a, sp.Eq) and all(isinstance(side, sp.Expr) for side in a.args + b.args):
        # equations of one curve are multiples of each other
        a, b = [sp.expand((x.lhs - x.rhs).doit()) for x in (a, b)]
        symbols = sorted(a.free_symbols | b.free_symbols, key=str)
        if symbols and a.is_polynomial() and b.is_polynomial():
            return sp.Poly(a, symbols).monic() == sp.Poly(b, symbols).monic()
        a, b = sp.Eq(a, 0), sp.Eq(b, 0)
    if not (isinstance(a, sp.Expr) and isinstance(b, sp.Expr)):
        return verify(a, b, numeric_precision=100, allow_set_relation_comp=True, timeout_seconds=None)
    for decimal, exact in ((number(gold), b), (number(pred), a)):
        if decimal and decimal.digits and exact.is_number:
            exact = exact.evalf(60)
            return bool(exact.is_Float) and same_number(decimal, Number(Fraction(str(exact)), 0, 0))
    a, b = a.doit(), b.doit()
    difference = sp.expand(a - b)
    symbols = sorted(difference.free_symbols, key=str)
    if a == b or difference.is_Rational:
        return a == b or difference == 0
    if symbols:
        gap = difference.subs({x: sp.Rational(1009 + 97 * i, 701) for i, x in enumerate(symbols)}).evalf()
        if gap.is_Float and abs(gap) > 1e-9:               # they differ; simplify would take long to see it
            return False
        return verify(a, b, numeric_precision=100, timeout_seconds=None)
    size = min(1, abs(a.evalf(15)), abs(b.evalf(15)))
    return bool(abs(difference.evalf(15, maxn=1000)) < size * sp.Rational(1, 10 ** 80))

def verify_math(response, answer):
    """True if the last box of the response holds the answer."""
    return score_batch([response], [{"task": "math", "answer": answer}])[0].status == "right"

# --- code: programs run in a sandbox, the verdict is made outside of it -------------------------------------

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
    print(f"reward.py: programs run in the sandbox {sandbox()[0]!r}", file=sys.stderr)

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
            shutil.copy(__file__, os.path.join(place, "reward.py"))
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
        launch(["reward.py", "candidate"], folder, limits, stdin=asked, stdout=answer)
        os.close(asked), os.close(answer)
        status, output = run(["reward.py", "tests", str(ask), str(answers)], tests_folder, limits,
                             json.dumps([nonce, tests]), pass_fds=(ask, answers))
        os.close(ask), os.close(answers)
        if status is None:
            return "timeout"
        return "right" if status == 0 and output.split()[-1] == nonce else "wrong"

def verify_code(response, tests, limits=Limits()):
    """True if the last closed code fence of the response passes the tests."""
    return score_batch([response], [{"task": "code", "tests": tests, "limits": limits}])[0].status == "right"

# --- workers ------------------------------------------------------------------------------------------------

_free, _started, _lock = SimpleQueue(), [], threading.Lock()

class Worker:
    """A fresh interpreter in its own session; judges one item at a time and may be killed at any moment."""
    def __init__(self):
        kept = {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH"} & os.environ.keys()
        env = {name: os.environ[name] for name in kept} | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, os.path.abspath(__file__), "worker", str(os.getpid())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
                                        start_new_session=True)

    def judge(self, item, timeout):
        """Status of one item. The worker's own clock ends it, whatever it does; a new one takes its place."""
        if self.process.poll() is not None:
            self.__init__()                                # it died while idle: not this item's fault
        try:
            self.process.stdin.write(json.dumps({**item, "timeout": timeout}).encode() + b"\n")
            self.process.stdin.flush()
            if select.select([self.process.stdout], [], [], 20 * timeout + 60)[0]:
                return json.loads(self.process.stdout.readline())
        except (OSError, ValueError):                      # it is dead
            pass
        os.killpg(self.process.pid, signal.SIGKILL)
        died_of = -self.process.wait()
        self.__init__()
        return "timeout" if died_of in (signal.SIGALRM, signal.SIGKILL) else "error"

def start_workers(workers):
    """Start the pool, or enlarge it; call it before CUDA starts. RuntimeError if a worker misjudges."""
    with _lock:
        while len(_started) < workers:
            worker = Worker()
            questions = [{"answer": "0.5", "response": r} for r in ("\\frac{1}{\\sqrt{4}}", "1/3")]
            verdicts = [worker.judge(question, 60) for question in questions]
            if verdicts != ["right", "wrong"]:
                raise RuntimeError(f"a reward worker judges 1/sqrt(4) = 1/2 and 1/3 = 1/2 as {verdicts}; "
                                   "is math-verify installed?")
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
    if task == "code" or len(answer) <= MAX_ANSWER:
        gold, given = (number(str(problem["answer"])), number(answer)) if task == "math" else (None, None)
        return answer, None if not gold or not given else "right" if same_number(gold, given) else "wrong"
    return answer, "wrong"

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
    cut = truncated or [False] * len(looks)
    return [Score(float(status == "right"), "truncated" if c and status != "right" else status, answer)
            for (answer, status), c in zip(looks, cut, strict=True)]

def work(parent):
    """A worker: reads items, one JSON a line, and answers with their statuses until its parent is gone."""
    def follow_parent():
        while os.getppid() == parent:
            time.sleep(0.5)
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
        clock = 6 * limits.seconds if code else item["timeout"]
        signal.setitimer(signal.ITIMER_REAL, clock)        # SIGALRM ends the process
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

def overlong_penalty(length, max_length, buffer):
    """DAPO's soft penalty (Yu et al. 2025, Eq. 13): 0 up to max_length - buffer tokens, -1 at max_length.

    >>> overlong_penalty(7, 10, 4)
    -0.25
    """
    return -max(0, length - (max_length - buffer)) / buffer if buffer else 0.0

# --- data ---------------------------------------------------------------------------------------------------

FIELDS = {"math": ["problem", "answer"], "code": ["problem", "tests"],
          "countdown": ["problem", "numbers", "target"]}
DAPO_INSTRUCTION = re.compile(r"^Solve the following math problem step by step\..*?\n\n"
                              r"|\n\nRemember to put your answer on .*$", re.DOTALL)

def as_problem(row):
    """A row of ours, of DAPO-Math-17k, Eurus-2-RL-Data, KodCode or a benchmark, with our names for what they
    share."""
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
        wanted = wanted if wanted is None else extract_boxed(str(wanted)) or str(wanted)
    ours = {"task": task, "problem": problem, **({names[0]: wanted} if names else {})}
    return {**row, **{name: value for name, value in ours.items() if value is not None}}

def load_problems(path):
    """Rows {**FIELDS[task], "task", "source", ...} of a jsonl file, or of a dataset on the hub given as "id",
    "id:split" or "id:config:split", in our columns or those of as_problem. ValueError for a row without one
    of the fields. Rows whose answer cannot be read, or that have no tests, are dropped and named in a
    warning; repeated prompts are dropped and counted."""
    if os.path.exists(path):
        with open(path, "rb") as file:
            rows = [(i, line) for i, line in enumerate(file, 1) if line.strip()]
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
            row = as_problem(json.loads(row) if isinstance(row, bytes) else row)     # not UTF-8: a ValueError
            task = row["task"]
            missing = [f"field {name!r} is missing; a {task} row has {FIELDS[task]}"
                       for name in FIELDS[task] if row.get(name) is None]
            kinds = {"problem": str, "numbers": list, "target": int}
            missing = missing or [f"field {name!r} is {row[name]!r}"[:120] for name in FIELDS[task]
                                  if not isinstance(row[name], kinds.get(name, object))
                                  or name == "numbers" and not all(isinstance(n, int) for n in row[name])]
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):
            missing = [f"{str(row)[:80]!r} is no JSON object in UTF-8 whose task is one of {list(FIELDS)}"]
        if missing:
            raise ValueError(f"{path}, row {i}: {missing[0]}")
        if row["problem"] in seen:
            repeated += 1
            continue
        seen.add(row["problem"])
        usable = task == "countdown" or task == "math" and readable(row["answer"])
        if task == "code":
            usable = read_tests(row["tests"]) is not None
        row["source"] = str(row.get("source") or os.path.basename(path).removesuffix(".jsonl"))
        (problems if usable else dropped).append(row if usable else i)
    if not problems:
        raise ValueError(f"{path}: no row can be used ({len(dropped)} without a readable answer or tests)")
    if dropped and os.environ.get("RANK", "0") == "0":
        print(f"warning: {path}: dropped {len(dropped)} rows without a readable answer or tests: {dropped}",
              file=sys.stderr)
    if repeated and os.environ.get("RANK", "0") == "0":
        print(f"warning: {path}: dropped {repeated} rows whose prompt occurred before", file=sys.stderr)
    return problems

if __name__ == "__main__" and len(sys.argv) > 1:
    roles = {"worker": work, "candidate": serve_candidate, "tests": run_tests}
    roles[sys.argv[1]](*map(int, sys.argv[2:]))
