"""The answer in a response, and whether two answers in LaTeX mean the same.

One notation first; then lists piece by piece, numbers exactly, the rest by sympy and math-verify.
"""
import math
import re
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

# --- extraction ---------------------------------------------------------------------------------------------

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

# --- notation -----------------------------------------------------------------------------------------------

SIGNS = str.maketrans({
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
    text = (extract_boxed(text) or text).replace("\\$", "").translate(SIGNS)
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
