"""The answer in a response, and whether two answers in LaTeX mean the same.

Both answers are read to their last character into a tree: numbers, letters, units, words, operators, lists, brackets.
Trees are compared part by part, expressions by their values, exactly or to more digits than anything in them could
hide. What cannot be read is equal only to itself, but for spaces and fonts: a verdict of right never rests on
characters that were thrown away.
"""
import itertools
import math
import re
import unicodedata
from collections import namedtuple
from fractions import Fraction
from functools import lru_cache
from random import Random

from mpmath import mp

# --- extraction ---------------------------------------------------------------------------------------------

def final_text(response):
    """What follows the thinking; nothing if the thinking did not end."""
    text = response.rpartition("</think>")[2]
    return "" if "<think>" in text else text

def extract_boxed(response):
    """Content of the last complete \\boxed{...} (braces may nest) after </think>; None if there is none."""
    text = final_text(response)
    boxes = list(re.finditer(r"\\(?:boxed|fbox)\s*(?:\{|(-?\d[\d./]*))", text))
    for box in boxes[:-6:-1]:                              # few of them, so that the time is linear
        if box[1]:
            return box[1].rstrip(".")                                      # \boxed 2
        depth = 1
        for brace in re.compile(r"\\.|[{}]").finditer(text, box.end()):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                return text[box.end():brace.start()]
    return None

# --- plain numbers ------------------------------------------------------------------------------------------

Number = namedtuple("Number", "value digits ulp")     # Fraction; significant digits of a decimal, else 0; last place
_NUMBER = re.compile(r"""\s*(-?)(?:(?=\.?\d)(\d*)(?:\.(\d+))?(?:[eE](\d|[-+]?\d\d{1,2})
    | \s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*\{?\s*(-?\d{1,3})\s*\}?)?
    | \\[dt]?frac\{(\d+)\}\{(\d+)\} | (\d+)/(\d+))\s*""", re.VERBOSE | re.ASCII)

@lru_cache(100_000)
def number(text):
    """-3, .25, 7/4, \\frac{7}{4}, 2e10, 2 \\times 10^{-7} as a Number, or None; 2e-7 may be Euler's e."""
    m = _NUMBER.fullmatch(text) if len(text) < 4000 else None              # int() reads 4,300 digits
    if not m:
        return None
    sign, integer, decimals, e, times, *fraction = m.groups()
    sign = -1 if sign else 1
    if integer is None:
        top, bottom = (int(n) for n in fraction if n)
        return Number(sign * Fraction(top, bottom), 0, Fraction(1)) if bottom else None
    ulp = Fraction(10) ** (int(e or times or 0) - len(decimals or ""))
    digits = len((integer + decimals).lstrip("0")) if decimals else 0
    return Number(sign * int(integer + (decimals or "")) * ulp, digits, ulp)

def same_number(a, b):
    """Equal; or one is a decimal with six digits or more that rounds, or cuts off, the other, which is exact
    and no integer. From 16 digits on a decimal is what a float prints."""
    if a.value == b.value or bool(a.digits) == bool(b.digits):
        return a.value == b.value
    decimal, exact = (a, b) if a.digits else (b, a)
    error = (exact.value - decimal.value) * (1 if decimal.value > 0 else -1)
    close = decimal.value.denominator > 1 and (2 * abs(error) <= decimal.ulp or 0 <= error < decimal.ulp)
    float_noise = decimal.digits >= 16 and abs(error) < abs(exact.value) / 2 ** 52
    return decimal.digits >= 6 and exact.value.denominator > 1 and (close or float_noise)

# --- notation -----------------------------------------------------------------------------------------------

_GREEK = ("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau "
          "upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell").split()
_SIGNS = r"""− - – - × \times · \cdot ⋅ \cdot ÷ / ∞ \infty ° \degree √ \sqrt ∪ \cup ∩ \cap ∖ \setminus ± \pm ≤ \le ≥ \ge
    ≠ \ne ≈ \approx ∈ \in ∅ \emptyset ½ \frac12 ¼ \frac14 ¾ \frac34 ⟨ ( ⟩ ) ⌊ \lfloor ⌋ \rfloor ⌈ \lceil ⌉ \rceil
    ℝ \mathbb{R} ℤ \mathbb{Z} ℕ \mathbb{N} ℚ \mathbb{Q} ′ ' ’ ' ∠ \angle""".split()
SIGNS = str.maketrans({**{sign: f"{tex} " for sign, tex in zip(_SIGNS[::2], _SIGNS[1::2])}, "$": "", "~": " ",
                       "\n": " ", ";": ",", **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")})
_GREEK = ("alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau "
          "upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell").split()
_SAME = dict(pair.split() for pair in r"""\dbinom \binom;
    \tbinom \binom;\leq \le;\leqslant \le;\geq \ge;\geqslant \ge;\lt <;\gt >;\neq \ne;\varnothing \emptyset;\langle (;
    \rangle );\lbrace \{;\rbrace \};\lbrack [;\rbrack ];\vert |;\lvert |;\rvert |;\mid |;\backslash \setminus;\cdot *;
    \times *;\ast *;\div /;\colon :;\simeq \approx;\lor "or;\land "and;\% %;"percent %;\varphi \phi;\prime ';"per /;
    \varepsilon \epsilon;\pounds £;"degrees \degree;"degree \degree;"to :;\arcsin \asin;\arccos \acos;\arctan \atan;
    \ln \log;< <;\le \le;\lnot \neg""".split(";"))
# One row a unit: its symbol, then other words for it. Words that change a number (hundredths, doubled) are none.
_UNITS = {word: row.split()[0] for row in """m meter meters metre metres;cm centimeter centimeters centimetres;km kilometer kilometers
    kilometres;mm millimeter millimeters;in inch inches;ft foot feet;yd yard yards;mi mile miles;kg kilogram kilograms;g gram grams;
    mg;lb lbs pound pounds;oz ounce ounces;ton tons;L l liter liters litre litres;mL ml milliliters;gal gallon gallons;
    s sec secs second seconds;min mins minute minutes;h hr hrs hour hours;day days;week weeks;month months;year years yr yrs;
    mph;rpm;N newton newtons;J joule joules;kJ;W watt watts;kW;V volt volts;A amp amps;Hz hertz;Pa;kPa;K kelvin;mol moles;
    erg ergs;eV;rad radian radians;C;F;%;\\degree;dollar dollars USD;cent cents;€ euro euros;£;元;个;am AM;pm PM;th st nd rd;acre acres;
    unit units;way ways;times;half-hours;people;men;women;children;boys;girls;students;points;apples;marbles;books;balls;cards;coins;
    pages;tickets;games;teams;numbers;integers;values;solutions;sides;vertices;triangles;steps;terms;digits;cars;cookies;eggs"""
          .split(";") for word in row.split()}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10 ** 3, "million": 10 ** 6, "billion": 10 ** 9, "trillion": 10 ** 12}
_WORDS = {"and", "or", "to", "per", "yes", "no", "on", "odd", "two", "square", "cubic", "percent", "degrees", "degree", *_SCALES}
_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "asin", "acos", "atan", "log", "exp"}

def repeating(m):
    """0.1\\overline{6}, 0.\\dot{1}4\\dot{2} as a fraction."""
    integer, decimals, period = m[1], m[2], (m[3] or m[4]) + (m[5] or "") + (m[6] or "")
    whole = int(integer + decimals + period) - int("0" + integer + decimals)
    return "\\frac{%d}{%d}" % Fraction(whole, (10 ** len(period) - 1) * 10 ** len(decimals)).as_integer_ratio()

def plain_unit(m):
    """12 hours, 5cm: letters after a number that are a unit become a word."""
    known = m[2] in _UNITS and (m[1] or m[2] in ("cm", "km", "kg", "mm", "ft")) and m[2] != "mg"
    return m[1] + '"' * bool(known) + m[2]

_CLEAN = [(re.compile(pattern), new) for pattern, new in [
    (r"^\s*\*\*(.*)\*\*\s*$", r"\1"), (r"\*\*", "^"), (r"\\(?:[dtc]|nice|s)?frac(?![a-z])\s*", r"\\frac"), (r"\\frac(\d)", r"\\frac{\1}"), (r"(\\frac\{[^{}]*\})\s*(\d)", r"\1{\2}"), (r"\\text\{,\}", "{,}"), (r">=", r"\\ge "), (r"<=", r"\\le "), (r"\\\\\s*(?:\[[\w.]+\])?|\\cr(?![a-z])", r"\\row "),
    (r"\\left\s*\\\{\s*\\begin\s*\{(?:array|aligned)\}", r"\\begin{cases}"), (r"\\(?:left|right)\s*\.", ""),
    (r"\\(begin|end)\s*\{(\w+)\*?\}", r"\\\1\2 "), (r"(\\begin(?:cases|array))\s*\{[clr|]+\}", r"\1 "),
    (r"\\(?:left|right|[bB]igg?[lr]?|(?:display|text)style|limits|bf|it|rm|boldsymbol|math(?:bf|it|sf|tt|cal)|underline|ensuremath"
     r"|boxed|bm)(?![a-zA-Z])|\\(?:textcolor|colorbox|color)\s*\{\w+\}|\\[hv]space\*?\s*\{[^{}]*\}", " "),
    (r"\\not\s*=", r"\\ne "), (r"\\mathbb\s*\{?\s*([A-Z])\s*\}?", r"\\\1\1 "), (r"\\RR\s*_\s*\{?\s*\\ge[a-z]*\s*0\s*\}?", r"[0,\\infty)"),
    (r"\^\s*\{?\s*\\(?:circ|degree)(?![a-z])\s*\}?", r"\\degree "),
    (r"(?<![\d^_.])\d{1,3}(?:(?:\{,\}|\\!,\\!|,\\!|\\!,|\\[,;: ]| |')\d{3})+(?!\d|\s*/|\s*\\[dt]?frac)",
     lambda m: re.sub(r"\D+", "", m[0])),                                   # 10{,}000
    (r"\\(?:q?quad(?![a-zA-Z])|[,;:!> ()]|\[|\](?!\d))", " "), (r"(?<=\d) +x +(?=10\s*\^)", r"\\times "), (r"\{:\}", ":"),
    (r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))(?:(\d*)\\dot\s*\{?(\d)\}?)?", repeating),
    (r"\b([aApP])\. ?[mM]\.?", r"\1m"), (r"\b(sq|in|ft|cm)\.", r"\1 "), (r"\+/-|^\s*\+-", r"\\pm "),
    (r"(?<=[\d)}])( *)([a-zA-Z]{2,})(?![a-zA-Z])", plain_unit)]]
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|[mh]box|emph|mathrm|operatorname)(?![a-z])\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_ORDINAL = re.compile(r'(?<=\d)\s*\^\s*\{?\s*"(st|nd|rd|th)\s*\}?')

class Unreadable(ValueError):
    """An answer that the grammar cannot read to its end."""

@lru_cache(50_000)
def tokenize(text):
    """The tokens of an answer, without fonts, colours and spaces. Words, and letters in \\text{...}, begin with a "."""
    text = text.replace("\\$", '"dollar ')
    for scripts, sign in ("⁰¹²³⁴-⁹⁻", "^"), ("₀-₉", "_"):
        text = re.sub(f"[{scripts}]+", lambda m: f"{sign}{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    text = unicodedata.normalize("NFKC", text.translate(SIGNS)).translate(SIGNS)
    text = re.sub("[α-ω]", lambda m: "\\%s " % unicodedata.name(m[0]).split()[-1].lower().replace("lamda", "lambda"), text)
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    text = text if "\\begin" in text else text.replace("\\\\", "\\")
    for pattern, new in _CLEAN:
        text = pattern.sub(new, text)
    for _ in range(4):
        text = _TEXT.sub(lambda m: re.sub(r'(?<![\\"a-zA-Z-])[^\W\d_]+(?:-[^\W\d_]+)*', r'"\g<0>', m[1]), text)
    text = _ORDINAL.sub(r'"\1', text)
    found = re.findall(r'\d+(?:\.\d+)?|\.\d+|\\[a-zA-Z]+|\\.|"?[^\W\d_]+(?:(?<="\w)\w*(?:-[^\W\d_]+)*)?|\S', text)
    plain = all(re.fullmatch(r"""["]?[\w-]+|[-,.'()]""", token) and not token[0].isdigit() for token in found)
    tokens = []
    for token in found:
        word = '"' + token
        if token.isalpha() and (not token.isascii() or token in _WORDS or len(token) > 3 and token in _UNITS or plain and
                                (len(token) > 3 or len(token) > 1 and token.isupper()) or re.match("[A-Z][a-z]{2}", token)):
            token = word
        if token.strip('\\"') in ("arcsin", "arccos", "arctan", "ln", "sqrt", "pi", "infty", *_FUNCTIONS):
            token = token if token == '"sec' else "\\" + token.strip('\\"')
        token = _SAME.get(token, token)
        tokens += token if token.isalpha() else [token]
    while tokens and tokens[-1] in (".", ",", ":"):
        tokens.pop()
    return tuple(tokens)

def spelled(tokens):
    """The tokens in one spelling: what is not read is equal only to itself."""
    words = (t if t.lstrip('"') in _UNITS or len(t) < 4 and t.isupper() or t[0] == "\\" else t.casefold() if len(t) > 1 else t for t in tokens)
    text = re.sub(r"\{ (\S+) \}", r"\1", " ".join(words))
    text = re.sub(r'(?<=\d) "(?:st|nd|rd|th)\b', "", text).replace('"', "")
    return re.sub(r"(?<!\d) | (?!\d)", "", text)

# --- grammar: a tree is a string (a number, a letter, '"cm') or a tuple (operator, *trees) -------------------

_RELATIONS = ("=", "\\approx", "\\in", "\\ne", "<", "\\le", ">", "\\ge")
_BINDS = {**dict.fromkeys((",", '"and', '"or', "\\row", "|"), 1), **dict.fromkeys(_RELATIONS, 2), "\\cup": 3, "\\cap": 3,
          "\\setminus": 3, ":": 4, "+": 5, "-": 5, "\\pm": 5, "*": 6, "/": 6, " ": 6, "^": 8, "_": 8, "!": 8, "'": 8}
_LETTER = re.compile(r'"?[A-Za-z]|\\(?:%s)' % "|".join(_GREEK))
_CLOSE = {"(": (")", "]"), "[": ("]", ")"), "\\{": ("\\}", "|", ":"), "|": ("|",), "\\lfloor": ("\\rfloor",), "\\lceil": ("\\rceil",)}
_QUESTION = ("\\gcd", "\\lcm", "\\max", "\\min", "\\det", "\\sum", "\\prod", "\\int", "\\lim", "\\bmod", "\\pmod", "\\mod")

_PHRASES = {**dict.fromkeys(("no solution", "no solutions", "no real solution", "no real solutions"), "\\emptyset"),
            **dict.fromkeys(("all real numbers", "all reals"), "\\RR"), "dne": ("words", "does not exist")}
_L = r"(?:[A-Za-z]|\\(?:%s))(?:_(?:\w+|\{[^{}]*\}))?'*" % "|".join(_GREEK)
_NAME = re.compile(rf"""{_L} | [A-Z]{{2,4}} | \\(?:angle|triangle|overline){{?[A-Z]{{1,3}}}}? | \|[A-Z]{{2}}\|
    | \\frac{{[A-Z]{{2}}}}{{[A-Z]{{2}}}} | \\frac{{dy}}{{dx}} | \w{{1,2}}(?::\w{{1,2}})+ | .*\\(?:gcd|lcm|max|min|det|sum|prod|int|lim|lfloor|lceil|[bp]?mod).*
    | (?:[A-Zfghnp]|\\EE)(?:_\w)?'*(?:\^{{-1}})?(?:\([^()+]*\)|\[[^\[\]+]*\]) | {_L}\({_L}\)
    | \({_L}(?:,{_L})+\) | (?:the)?(?:area|perimeter|volume|length|sum|distance|ratio|probability|answer)
    """, re.VERBOSE)
EPSILON = mp.mpf(10) ** -25
DIGITS = ".0123456789"

class Reader:
    """Operators by precedence; every method consumes what it returns, or raises Unreadable."""

    def __init__(self, tokens):
        self.tokens, self.at, self.bars = tokens, 0, 0

    def next(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else "\0"

    def accept(self, *texts):
        found = self.next() in texts
        self.at += found
        return found and self.tokens[self.at - 1]

    def expect(self, *texts):
        if self.next() not in texts:
            raise Unreadable(self.next())
        return self.accept(*texts)

    def tree(self, floor=0):
        """The longest tree from here whose operators bind tighter than floor."""
        start, sign = self.at, self.accept("-", "+", "\\pm")
        left = self.tree(max(floor, 5)) if sign else self.primary()
        left = ("neg", left) if sign == "-" else ("*", "±", left) if sign == "\\pm" else left
        while True:
            op = self.next() if self.next() in _BINDS else " "
            if op == " " and not self.begins() or _BINDS[op] <= floor or self.bars and op in ("|", ":"):
                return left
            self.accept(op)
            if op in ("!", "'"):
                left = (op, left)
            elif op in ("^", "_"):
                left = (op, left, self.script())
            elif _BINDS[op] == 1:
                if op == "\\row" and self.next()[:4] == "\\end":
                    return left
                op = {self.accept('"and', '"or') or op, left[1] if left[0] == "list" else ","}
                joint = '"or' if '"or' in op else '"and' if '"and' in op else ","
                left = ("list", joint, *(left[2:] if left[0] == "list" else (left,)), self.tree(1))
            elif _BINDS[op] == 2:
                ops, sides = left[2:4] if left[0] == "chain" else ((), (left,))
                name = left[1] if ops else spelled(self.tokens[start:self.at - 1])
                left = ("chain", name, (*ops, op), (*sides, self.tree(2)))
            else:
                left = ("+", left, ("*", "±", self.tree(5))) if op == "\\pm" else (op, left, self.tree(_BINDS[op]))
                if op == "/" and self.begins() and self.next().lstrip('"') not in _UNITS:
                    raise Unreadable("1/2x has two readings")

    def begins(self):
        """True if the next token begins a factor."""
        token, word = self.next(), self.next().lstrip('"')
        return (token in ("(", "[", "{", "\\frac", "\\sqrt", "\\binom", "%") or token == "|" and not self.bars or word in _UNITS or token[0] in DIGITS and self.tokens[self.at - 1] == "!"
                or word in (*_SCALES, "square", "cubic", "sq") or token[1:] in _FUNCTIONS or token[:6] == "\\begin" or bool(_LETTER.fullmatch(token)))

    def script(self):
        """What ^, _ or \\frac applies to: {...}, or one token with its sign."""
        if self.accept('"two'):
            return "2"
        return ("neg", self.primary()) if self.accept("-") else self.primary()

    def primary(self):
        """A number, letter, unit, run of words, bracket, or command with its arguments."""
        before, token, word = self.tokens[self.at - 1] if self.at else "(", self.next(), self.next().lstrip('"')
        self.at += 1
        if token[0] in ".0123456789":
            if self.next().isdigit() and self.tokens[self.at + 1:self.at + 2] == ("/",):              # 1 3/4
                return ("+", token, ("/", self.primary(), self.accept("/") and self.primary()))
            if token.isdigit() and self.next() == "\\frac":                                          # 1\frac34
                fraction = self.primary()
                mixed = all(x.isdigit() for x in fraction[1:] if isinstance(x, str)) and len(set(map(type, fraction))) == 1
                return ("+" if mixed and int(fraction[1]) < int(fraction[2]) else "*", token, fraction)
            return token
        if word in _SCALES and before[0] in ".0123456789":
            return str(_SCALES[word])
        if word in ("dollar", "€", "£") and self.next()[0].isdigit():
            return ("*", '"' + _UNITS[word], self.primary())
        if word in ("square", "cubic", "sq") and self.next().lstrip('"') in _UNITS:
            return ("^", self.primary(), "3" if word == "cubic" else "2")
        if word in _UNITS and (token[0] == '"' or not word.isalpha()) and re.search(r"""[\w)}%/*|]$""", before) and before not in _RELATIONS:
            return ("/", '"mi', '"h') if word == "mph" else '"' + _UNITS[word]
        follows = self.next()[0] == '"' and len(self.next()) > 2 and self.next() not in ('"and', '"or') and self.next()[1:] not in _UNITS
        if _LETTER.fullmatch(token) and not (token[0] == '"' and follows):
            start = self.at
            if self.accept("("):                           # f(2) and P(X=2), but not x(x+1)
                inside, _ = self.tree(), self.expect(")")
                if isinstance(inside, str) or inside[0] in ("list", "chain", "\\cup", "\\cap"):
                    return ("call", word, inside)
            self.at = start
            return word
        if token[0] == '"':
            while self.next()[0] == '"' and self.next() not in ('"and', '"or') or self.next().isalnum() or self.next() == "-":
                word += " " + self.accept(self.next()).lstrip('"')
            return _PHRASES.get(word.casefold(), ("words", re.sub(r"(?<=\d) (?:st|nd|rd|th)$", "", word.casefold())))
        if token in _CLOSE:
            return self.bracket(token)
        if token == "{":
            value, macro = self.tree(), self.accept("\\over", "\\choose")
            value = ({"\\over": "/", "\\choose": "\\binom"}[macro], value, self.tree()) if macro else value
            self.expect("}")
            return value
        if token in ("\\frac", "\\binom"):
            return ("/" if token == "\\frac" else token, self.script(), self.script())
        if token == "\\sqrt":
            index = self.accept("[") and (self.tree(), self.expect("]"))[0]
            return ("root", self.script(), index or "2")
        if token[1:] in _FUNCTIONS:
            base, power = self.accept("_") and self.script(), self.accept("^") and self.script()
            bare = self.next() not in ("(", "{", "|", "[")
            value = self.tree(6) if bare else self.primary()
            while bare and self.begins() and self.next() not in ("(", "{", "[") and self.next()[1:] not in _FUNCTIONS:
                value = (" ", value, self.tree(6))
            inverse = power == ("neg", "1")
            value = ("a" * inverse + token[1:], value)
            value = ("/", value, ("log", base)) if base else value
            return ("^", value, power) if power and not inverse else value
        if token in ("\\hat", "\\bar", "\\vec", "\\tilde", "\\overline", "\\angle", "\\triangle"):
            return ("call", token, self.tree(6) if token in ("\\angle", "\\triangle") else self.script())
        if token[:6] == "\\begin":
            return self.environment(token[6:])
        if token in ("\\pi", "\\infty", "\\emptyset", "\\RR", "\\ZZ", "\\NN", "\\QQ", "\\CC", "\\EE"):
            return token
        if token in _QUESTION:                             # no value, but it can stand left of =
            parts = [token]
            while op := self.accept("_", "^"):
                parts += [op, self.script()]
            return ("question", *parts, self.tree(5))
        raise Unreadable(token)

    def bracket(self, open):
        """(a, b], {a, b}, {x | condition}, |a|, or what stands in ( )."""
        if open == "\\{" and self.accept("\\}"):
            return "\\emptyset"
        if open == "\\{" and self.next() == "\\begincases":
            return self.primary()
        outer, self.bars = self.bars, open in ("|", "\\{")
        inside, close = self.tree(), self.expect(*_CLOSE[open])
        self.bars = outer
        if close in ("|", ":") and open != "|":
            conditions, _ = self.tree(), self.expect("\\}")
            if isinstance(inside, str) or inside[0] == "chain" and inside[2:] == (("\\in",), (inside[3][0], "\\RR")):
                return conditions
            return ("list", ",", inside, *(conditions[2:] if conditions[:2] == ("list", ",") else (conditions,)))
        if open in ("(", "[", "\\{") and inside[:2] == ("list", ","):
            return (open + close, *inside[2:])
        if open == "\\{" or inside[0] == "list":
            return (open + close, inside)
        if open in ("(", "["):
            if (open == "(") != (close == ")"):
                raise Unreadable("brackets")
            return inside
        return (open, inside)

    def environment(self, name):
        """A matrix; the equations of a system are a list."""
        if name not in ("cases", "aligned", "matrix", "pmatrix", "bmatrix", "array"):
            raise Unreadable(name)
        if name in ("cases", "aligned"):
            return (self.tree(), self.expect("\\endcases", "\\endaligned", "\\endarray"))[0]
        rows = [[self.tree(1)]]
        while not self.accept("\\end" + name):
            if self.expect("&", "\\row") == "&":
                rows[-1].append(self.tree(1))
            elif self.next() != "\\end" + name:
                rows.append([self.tree(1)])
        return ("matrix", *(("row", *row) for row in rows))

# --- values -------------------------------------------------------------------------------------------------

LIMIT = 1 << 21                                       # bits

def lift(x):
    return mp.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else x

def power(a, b):
    """a^b, exactly for fractions and an integer b."""
    exact = isinstance(a, Fraction) and isinstance(b, Fraction) and b.denominator == 1
    size = max(a.numerator.bit_length(), a.denominator.bit_length()) if exact else abs(mp.mag(a)) if a else 0
    if abs(b) > LIMIT or size * abs(b) > LIMIT:
        raise Unreadable("too large")
    return a ** b.numerator if exact else mp.power(lift(a), lift(b))

def root(a, n):
    """The real root of a negative number if n is odd."""
    a, n = lift(a), lift(n)
    real = mp.im(a) == 0 and mp.re(a) < 0 and mp.isint(n) and int(n) % 2
    return -power(-a, 1 / n) if real else power(a, 1 / n)

def whole(function, *args):
    """A factorial, or binomial coefficient, exactly for integers."""
    if abs(args[0]) > 20_000:
        raise Unreadable("too large")
    if all(isinstance(x, Fraction) and x.denominator == 1 and x >= 0 for x in args):
        return Fraction(getattr(math, function)(*map(int, args)))
    return getattr(mp, {"comb": "binomial"}.get(function, function))(*args)

_EXACT = ("+", "-", "*", " ", "/", "neg", "^", "|", "!", "\\binom")
_OPERATIONS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, " ": lambda a, b: a * b, "/": lambda a, b: a / b,
    "neg": lambda a: -a, "^": power, "root": root, "|": abs, "\\lfloor": mp.floor, "\\lceil": mp.ceil, "!": lambda n: whole("factorial", n),
    "\\binom": lambda n, k: whole("comb", n, k), **{name: getattr(mp, name) for name in _FUNCTIONS}}

class Values:
    """Evaluates trees where every letter has a value that depends on its name and on the number of the trial."""

    def __init__(self, trial, known):
        self.trial, self.known, self.symbols, self.scale = trial, known, set(), 8

    def __call__(self, tree):
        """The value: a Fraction, or a number of mpmath in its present precision."""
        value = self.rule(tree)
        parts = (value.numerator, value.denominator) if isinstance(value, Fraction) else (value,)
        for part in parts:
            self.scale = max(self.scale, abs(mp.mag(part)) if part and mp.isfinite(part) else 0)
        if not mp.isfinite(value) or self.scale > LIMIT:
            raise Unreadable("no number, or too large")
        return value

    def rule(self, tree):
        if tree in self.known:
            return self.known[tree]
        if tree[0] in DIGITS:
            return Fraction(tree)
        if tree in ("i", "e", "\\pi"):
            return {"i": mp.mpc(0, 1), "e": +mp.e, "\\pi": +mp.pi}[tree]
        if isinstance(tree, str) and _LETTER.fullmatch(tree) or tree[0] in ("_", "'", "call", '"'):
            self.symbols.add(tree)
            random = Random(f"{tree} {self.trial}")
            value = Fraction(random.randrange(101, 400), 97) ** random.choice((1, 1, -1))
            return value * {0: 1, 1: -1}.get(self.trial, random.choice((-1, 1)))
        op, *args = tree
        if op not in _OPERATIONS or op in ("\\lfloor", "\\lceil") and not letters(tree):
            raise Unreadable("not evaluated")
        known, self.known = self.known, {**self.known, '"\\degree': mp.pi / 180} if op in _FUNCTIONS else self.known
        try:
            values = [self(arg) for arg in args]
            exact = op in _EXACT and all(isinstance(value, Fraction) for value in values)
            return _OPERATIONS[op](*(values if exact else map(lift, values)))
        except (ZeroDivisionError, OverflowError, TypeError) as error:
            raise Unreadable(str(error)) from None
        finally:
            self.known = known

def leaves(tree):
    """The strings in a tree, without its operators."""
    return [tree] if isinstance(tree, str) else [leaf for part in tree[1:] for leaf in leaves(part)]

def letters(tree):
    return [leaf for leaf in leaves(tree) if _LETTER.fullmatch(leaf) and leaf not in ("e", "i", "\\pi")]

def replace(tree, old, new):
    if isinstance(tree, str):
        return new if tree == old else tree
    return (tree[0], *(replace(part, old, new) for part in tree[1:]))

def agree(a, b, known=()):
    """True if two trees have the same value, whatever their letters stand for."""
    for trial in range(6):
        digits = 30
        for _ in range(2):
            with mp.workdps(2 * digits):
                values = Values(trial, dict(known))
                x, y = values(a), values(b)
                if isinstance(x, Fraction) and isinstance(y, Fraction):
                    break
                if values.scale > 20_000:
                    raise Unreadable("too large")
                close, digits = abs(lift(x) - lift(y)) < mp.mpf(10) ** -digits, 40 + int(0.7 * values.scale)
        if x != y if isinstance(x, Fraction) and isinstance(y, Fraction) else not close:
            return False
        if not values.symbols:
            break
    return True

def constant(tree):
    """The value of a tree without letters; Unreadable."""
    with mp.workdps(60):
        values = Values(0, {'"unit': Fraction(1)})
        value = values(tree)
    if values.symbols or mp.im(value):
        raise Unreadable("no real number")
    return value

# --- comparison ---------------------------------------------------------------------------------------------

def numerator(tree):
    """(numerator, denominator) of sums and products of fractions, as trees."""
    if tree[0] in ("+", "-", "*", " ", "/"):
        (a, b), (c, d) = map(numerator, tree[1:])
        if tree[0] in "+-":
            return (tree[0], ("*", a, d), ("*", b, c)), ("*", b, d)
        return (("*", a, d), ("*", b, c)) if tree[0] == "/" else (("*", a, c), ("*", b, d))
    return tree, "1"

def proportional(a, b, positive):
    """True if one tree is a multiple of the other, by a positive number."""
    ratios = []
    with mp.workdps(300):
        for trial in range(6):
            values = Values(trial, {})
            x, y = values(a), values(b)
            if x == 0 or y == 0 or values.scale > 300 or not values.symbols:
                return False
            ratios.append(lift(x) / lift(y))
        return all(abs(r / ratios[0] - 1) < mp.mpf(10) ** -100 for r in ratios) and (not positive or mp.re(ratios[0]) > 0)

def inside(tree, x, names):
    """True if the number x is in the set that a tree describes; names collects the letters of its relations."""
    head, *parts = tree if isinstance(tree, tuple) else (tree,)
    if head in ("\\RR", "\\emptyset"):
        return head == "\\RR"
    if head in ("\\cup", "\\cap", "\\setminus", "-", "list"):
        found = [inside(part, x, names) for part in (parts[1:] if head == "list" else parts)]
        either = head == "\\cup" or head == "list" and parts[0] == '"or'
        return found[0] and not found[1] if head in ("\\setminus", "-") else any(found) if either else all(found)
    if head == "\\{\\}":
        return any(abs(lift(constant(part)) - x) < EPSILON for part in parts)
    if head in ("()", "(]", "[)", "[]") and len(parts) == 2:
        low, high = (mp.inf * (-1 if part[0] == "neg" else 1) if "\\infty" in leaves(part) else lift(constant(part)) for part in parts)
        if low >= high or head[0] == "[" and low == -mp.inf or head[1] == "]" and high == mp.inf:
            raise Unreadable("no interval")
        return (x - low > EPSILON or head[0] == "[" and abs(x - low) < EPSILON) and (high - x > EPSILON or head[1] == "]" and abs(high - x) < EPSILON)
    if head == "chain" and not {"=", "\\approx", "\\in"} & set(parts[1]):
        names |= {letter for side in parts[2] for letter in letters(side)}
        if len(names) != 1:
            raise Unreadable("several letters")
        values = [lift(Values(0, {name: x for name in names})(side)) for side in parts[2]]
        gaps = [b - a for a, b in zip(values, values[1:])]
        return all({"\\ne": abs(gap) > EPSILON, "<": gap > EPSILON, "\\le": gap > -EPSILON, ">": gap < -EPSILON, "\\ge": gap < EPSILON}[op]
                   for gap, op in zip(gaps, parts[1]))
    raise Unreadable("no set")

def same_sets(g, p):
    """Compare two sets of real numbers at, beside, between and beyond all numbers that occur in them."""
    with mp.workdps(60):
        edges = sorted({lift(constant(part)) for part in (*parts_of(g), *parts_of(p))} | {mp.mpf(0)})
        ends = [edges[0] - 7, *edges, edges[-1] + 7]
        points = [x + d for x in ends for d in (-EPSILON * 10 ** 9, 0, EPSILON * 10 ** 9)] + [(a + b) / 2 for a, b in zip(ends, ends[1:])]
        points += [mp.mpf(k) / 7 for k in range(-70, 70)] + [mp.mpf(10) ** 8, -mp.mpf(10) ** 8]
        names = set()
        g, p = (commas(tree, points) for tree in (g, p))
        return all(inside(g, x, names) == inside(p, x, names) for x in points)

def commas(tree, points):
    """x < 1, x > 2 is a union, 0 < x, x \\ne 1 an intersection: a comma between sets that meet is "and"."""
    if tree[:2] != ("list", ","):
        return tree
    meet = any(sum(inside(part, x, set()) for part in tree[2:]) > 1 for x in points)
    return ("list", '"and' if meet else '"or', *tree[2:])

def parts_of(tree):
    """All parts of a tree that are real numbers."""
    found = []
    try:
        constant(tree)
        found = [tree]
    except Unreadable:
        pass
    if isinstance(tree, tuple):
        for part in tree[1:]:
            for side in part if tree[0] == "chain" and isinstance(part, tuple) else (part,):
                found += parts_of(side)
    return found

def expand(tree):
    """a \\pm b as two items of its list or set."""
    head, items = ((tree[:2], tree[2:]) if tree[0] == "list" else (tree[:1], tree[1:]) if tree[0] == "\\{\\}" else (("list", ","), (tree,)))
    found = []
    for item in items:
        if leaves(item).count("±") > 1:
            raise Unreadable("signs that may or may not go together")
        found += [replace(item, "±", sign) for sign in ("1", ("neg", "1"))] if "±" in leaves(item) else [item]
    return found[0] if head[0] == "list" and not found[1:] else (*head, *found)

def meaning(tree):
    """A chain of = as ("named", name, value), ("equation", a, b) or its value, if all of it holds."""
    if tree[0] != "chain" or tree[2][0] not in ("=", "\\approx", "\\in"):
        return tree
    _, name, ops, sides = tree
    named = bool(_NAME.fullmatch(name))
    if ops == ("=",) and number(name) and isinstance(sides[1], str) and _LETTER.fullmatch(sides[1]):        # 5 = x
        return ("named", sides[1], sides[0])
    if ops == ("\\in",) and named:
        return ("named", name, sides[1])
    if set(ops) - {"=", "\\approx"} or not named and re.fullmatch(r"[\d.]+", name):
        raise Unreadable("5 = 5 says nothing")
    first = (*ops, "\\approx").index("\\approx") + 1
    exact, rough = sides[named:max(first, 1 + named)], sides[max(first, 1 + named):]
    if not named and len(sides) == 2 and (letters(exact[0]) or letters(exact[-1])) and not rough and not agree(*exact):
        return ("equation", *exact)
    if not all(same(exact[-1], x) for x in exact[:-1]) or not all(rounds(exact[-1], x) for x in rough):
        raise Unreadable("not equal")
    return ("named", name, exact[-1]) if named else exact[-1]

def decimal(tree):
    """-0.5, 1.5 \\cdot 10^{-7} or 0.5 cm as a Number, else None."""
    if isinstance(tree, str) or tree[0] == "neg" and isinstance(tree[1], str):
        return number(tree if isinstance(tree, str) else "-" + tree[1])
    if tree[0] == "*" and tree[2][:2] == ("^", "10") and (d := decimal(tree[1])) and d.digits:
        ten = power(Fraction(10), constant(tree[2][2]))
        return Number(d.value * ten, d.digits, d.ulp * ten)
    return decimal(tree[1]) if tree[0] == " " and all(leaf[0] == '"' for leaf in leaves(tree[2])) else None

def rounds(exact, rough):
    """True if a decimal is the exact value to its digits."""
    d = decimal(rough)
    return same(exact, rough) or bool(d) and abs(lift(constant(exact)) * (100 if '"%' in leaves(rough) else 1) - lift(d.value)) <= lift(d.ulp)

def same_value(g, p):
    """Compare expressions; a unit may be missing in one of them."""
    units = [{leaf for leaf in leaves(tree) if leaf[0] == '"'} - {'"unit', '"th'} for tree in (g, p)]
    known = {'"unit': Fraction(1), '"th': Fraction(1)}
    if ('"%' in units[0]) != ('"%' in units[1]):
        hundred = constant(replace(g if '"%' in units[0] else p, '"%', "1"))
        if not isinstance(hundred, Fraction):
            return False
        known['"%'] = Fraction(1)
        return agree(g, p, known) or (hundred / 100).denominator > 1 and agree(g, p, {'"%': Fraction(1, 100)})
    for a, b, unit in ((g, p, units[0] - units[1]), (p, g, units[1] - units[0])):                       # 5 J
        if unit and letters(b):
            for u in unit:
                a = replace(a, u, u[1:])
            if agree(a, b, known):
                return True
    if not units[0] or not units[1] or units[0] | units[1] < {'"\\degree', '"C', '"F'}:
        known |= {unit: Fraction(1) for unit in units[0] | units[1]}
    elif units[0] != units[1]:
        return agree(g, p, known)
    if agree(g, p, known):
        return True
    g, p = map(unitless, (g, p))
    numbers = [decimal(tree) for tree in (g, p)]
    if letters(g) or letters(p) or not any(d and d.digits for d in numbers):
        return False
    for i, tree in enumerate((g, p)):
        value = numbers[i] or constant(tree)
        exact = value if isinstance(value, (Fraction, Number)) else Fraction(mp.nstr(mp.re(value), 55))
        numbers[i] = exact if isinstance(exact, Number) else Number(exact, 0, 0)
    return same_number(*numbers)

def unitless(tree):
    """A product without its units."""
    if isinstance(tree, tuple) and tree[0] in ("*", " ", "/") and len(tree) == 3:
        a, b = (all(leaf[0] == '"' or tree[0] == "/" for leaf in leaves(part)) and any(leaf[0] == '"' for leaf in leaves(part)) for part in tree[1:])
        return unitless(tree[1]) if b else unitless(tree[2]) if a and tree[0] != "/" else tree
    return tree

def assigned(tree):
    """{name: value} of x = 1, y = 2 and of (x, y) = (1, 2), and whether the order of the names is given; else None."""
    items = [meaning(item) for item in tree[2:]] if tree[0] == "list" else [tree]
    if tree[0] == "list" and all(item[0] == "named" for item in items):
        names = {item[1]: item[2] for item in items}
        return (names, False) if len(names) == len(items) else None
    if tree[0] == "named" and tree[1][0] == "(" and tree[2][0] == "()":
        return dict(zip(tree[1][1:-1].split(","), tree[2][1:])), True

def bare(tree):
    """The items of a list or set; x = 1, x = 2 and x_1 = 1, x_2 = 2 and n = 2, 3 without their one name."""
    tree = expand(tree)
    items = [meaning(item) for item in tree[2 if tree[0] == "list" else 1:]]
    names = {item[1].split("_")[0] for item in items if item[0] == "named" and item[1][0] != "("}
    if len(names) == 1 and items[0][0] == "named" and tree[0] == "list" and not any("\\in" in item[2] for item in tree[2:] if item[0] == "chain"):
        items = [item[2] if item[0] == "named" else item for item in items]
    return items

def paired(a, b):
    """True if the items can be paired, in any order."""
    if len(a) != len(b):
        return False
    for x in a:
        match = next((i for i, y in enumerate(b) if same(x, y)), None)
        if match is None:
            return False
        b = b[:match] + b[match + 1:]
    return True

def same(g, p):
    """True if two trees mean the same."""
    if g == p:
        return True
    g, p = meaning(expand(g)), meaning(expand(p))
    if g[0] == "choice" or p[0] == "choice":
        (gl, gv), (pl, pv) = (t[1:] if t[0] == "choice" else (t, t) for t in (g, p))
        return same(gv, pv) and gl == pl if g[0] == p[0] else gl == pl or same(gv, pv)
    if g[0] == "named" and p[0] == "named":
        if g[1] == p[1]:
            return same(g[2], p[2])
        a, b = (re.fullmatch(r"(\w)\((\w)\)", t[1]) for t in (g, p))
        if a and b and a[1] == b[1]:                       # f(x) and f(t)
            return same(replace(g[2], a[2], "dummy"), replace(p[2], b[2], "dummy"))
    first, second = assigned(g), assigned(p)
    if first and second:
        return first[0].keys() == second[0].keys() and all(same(first[0][n], second[0][n]) for n in first[0]) or (
            first[1] == second[1] == False and len({n.split("_")[0] for n in (*first[0], *second[0])}) == 1 and paired(bare(g), bare(p)))
    for names, other, trusted in ((first, p, True), (second, g, False)):
        if names and other[0] == "()":
            if names[1] and not trusted and list(names[0]) != sorted(names[0]):
                return False
            values = list(names[0].values()) if names[1] else [names[0][n] for n in sorted(names[0])]
            return len(values) == len(other) - 1 and all(map(same, values, other[1:]))
    equations = [("-", *t[1:]) if t[0] == "equation" else ("-", t[1], t[2]) if t[0] == "named" and _LETTER.fullmatch(t[1]) and is_value(t[2]) else None for t in (g, p)]
    if all(equations):
        return proportional(*(numerator(e)[0] for e in equations), False)
    if (g[0] == "named") != (p[0] == "named") and "equation" not in (g[0], p[0]):
        return same(g[2] if g[0] == "named" else g, p[2] if p[0] == "named" else p)
    if "equation" in (g[0], p[0]) or "named" in (g[0], p[0]):
        return False
    if is_value(g) and is_value(p):
        return same_value(g, p)
    for a, b in ((g, p), (p, g)):
        if a[0] == "\\{\\}" and len(a) == 2 and is_value(b):
            return same(a[1], b)
        if a[0] == ":" and is_value(b) and is_value(a[1]) and is_value(a[2]) and not re.fullmatch(r"\d\d", str(a[2])):
            return same_value(("/", *a[1:]), b)
    if {g[0], p[0]} <= {"list", "\\{\\}"}:
        a, b = bare(g), bare(p)
        if "\\{\\}" in (g[0], p[0]):
            a, b = ([y for i, y in enumerate(x) if not any(same(y, z) for z in x[:i])] for x in (a, b))
        if paired(a, b):
            return not any(item[0] == "chain" for item in a) or g[:2] == p[:2]
    if g[0] == p[0] == "chain" and len(g[2]) == len(p[2]) == 1 and len(set(letters(("x", *g[3]))) | set(letters(("x", *p[3])))) > 1:
        flip = {">": "<", "\\ge": "\\le"}
        (a, b), (c, d) = ((t[3][::-1] if t[2][0] in flip else t[3]) for t in (g, p))
        return flip.get(g[2][0], g[2][0]) == flip.get(p[2][0], p[2][0]) and proportional(("-", a, b), ("-", c, d), g[2][0] != "\\ne")
    if g[0] == p[0] and g[0] in ("()", "[]", "(]", "[)", ":", "matrix", "row") and len(g) == len(p):
        return all(map(same, g[1:], p[1:]))
    if "matrix" in (g[0], p[0]):
        g, p = map(scaled, (g, p))
        return g[0] == p[0] == "matrix" and same(g, p) if "*" in (g[0], p[0]) or True and g[0] == p[0] and len(g) == len(p) else False
    return same_sets(g, p)

def is_value(tree):
    """True if a tree is a number, or an expression with a value for given letters."""
    return isinstance(tree, str) and tree not in ("\\RR", "\\ZZ", "\\QQ", "\\NN", "\\CC", "\\emptyset") or tree[0] in (*_OPERATIONS, "call", "'", "_")

def scaled(tree):
    """A number times a matrix, multiplied out."""
    if tree[0] in ("*", " ") and tree[2][0] == "matrix":
        return ("matrix", *(("row", *(("*", tree[1], x) for x in row[1:])) for row in tree[2][1:]))
    return tree

def read(tokens):
    """The tree of an answer; Unreadable."""
    words = [t.lstrip('"').lower() for t in tokens]
    if "answer" in words[:3] and len(tokens) > 1:
        skip = words.index("answer") + 1
        while words[skip:skip + 1] in (["is"], [":"]):
            skip += 1
        tokens = tokens[skip:]
    m = re.match(r'(\( )?"?([A-H])(?: \)(?: [.:-])?| [.:]| -(?= ")) (?=(\S+ \S)?)', " ".join(tokens) + " ")
    rest = tokens[len(m[0].split()):] if m else ()
    if m and (m[1] is None or ")" in m[0]) and (len(rest) > 1 or not rest or not _LETTER.fullmatch(rest[0])) and rest[:1] not in ((",",), ('"and',), ('"or',)):
        return ("choice", m[2], read(rest)) if rest else m[2]
    reader = Reader(tokens)
    reader.accept("=")
    tree = reader.tree()
    if reader.at < len(tokens):
        raise Unreadable(reader.next())
    return tree

def variants(text, gold):
    """Readings of an answer: 1,234 is a number or a list; 2e-7 in a response is a number or 2e - 7."""
    text = re.sub(r"(?<![\w.])(\d+\.\d+)[eE]([-+]?\d+)|(?<![\w.])(\d+)[eE](\d+|[-+]\d\d+)(?![\d.])",
                  lambda m: f"{m[1] or m[3]}\\cdot 10^{{{int(m[2] or m[4])}}}", text)
    found = [text]
    joined = re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)", lambda m: m[0].replace(",", ""), text)
    if joined != text and not re.search(r"[(\[]|\\\{", text):
        found = [joined] if ",0" in text else [text, joined]
    if not gold and re.fullmatch(r"\s*-?\d+[eE][-+]\d\s*", text):
        found.append(re.sub("[eE]", r"\\cdot 10^{", text.strip()) + "}")
    return found

def readable(answer):
    """False for a gold answer that is empty or broken: such a problem must never be scored as right."""
    try:
        tokens = tokenize(answer)
    except ValueError:
        return False
    text = spelled(tokens)
    balanced = tokens.count("{") == tokens.count("}")
    return balanced and any(t.lstrip('"\\')[:1].isalnum() and t not in ("\\frac", "\\sqrt") for t in tokens) and not re.search(r"(?<!\\)\{\}|[-+*/^_=(]$", text)

@lru_cache(50_000)
def same_answer(gold, pred):
    """True if two answers mean the same. May take any time and memory, so only workers call it."""
    if not readable(gold):
        return False
    if spelled(tokenize(gold)) == spelled(tokenize(pred)):
        return True
    trees = []
    for text in gold, pred:
        trees.append([])
        for variant in variants(text, text is gold):
            try:
                trees[-1].append(read(tokenize(variant)))
            except (Unreadable, RecursionError):
                pass
    for g, p in itertools.product(*trees):
        try:
            if same(g, p):
                return True
        except Unreadable:
            pass
    return False
