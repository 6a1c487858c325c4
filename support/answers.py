"""The answer in a response, and whether two answers in LaTeX mean the same.

Both answers are read to their last character into a tree: numbers, letters, units, words, operators, lists.
Trees are compared part by part, expressions by their values, to more digits than anything in them could hide.
What cannot be read is equal only to itself, but for spaces and fonts: a verdict of right never rests on
characters that were thrown away.
"""
import operator
import re
import unicodedata
from collections import namedtuple
from fractions import Fraction
from functools import lru_cache
from itertools import groupby, product
from random import Random

from mpmath import MPContext

# --- extraction ---------------------------------------------------------------------------------------------

def final_text(response):
    """What follows the thinking; nothing if the thinking did not end."""
    text = response.rpartition("</think>")[2]
    return "" if "<think>" in text else text

def extract_boxed(response):
    """Content of the last complete \\boxed{...} (braces may nest) after </think>; None if there is none.

    \\boxed 2 holds the rest of its formula or line, \\boxed(2) nothing. Of boxes in a box the outer one counts, unless
    it holds no more.
    """
    text, found = final_text(response), None
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*(\{)?", text))
    for box in boxes[:-6:-1]:                              # few of them, so that the time is linear
        if not box[1] and found is None:
            line = text[text.rfind("\n", 0, box.start()) + 1:box.start()]
            end = r"\$|\\[)\]]|\n|\Z" if line.count("$") % 2 else r"\\[)\]]|\n|\Z"
            content = text[box.end():re.compile(end).search(text, box.end()).start()]
            return content.rstrip().removesuffix("**").removesuffix(".") if re.match(r"[-+−.$\\\d]", content) else ""
        depth = bool(box[1])
        for brace in re.compile(r"\\.|[{}]").finditer(text, box.end()) if depth else ():
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                within = found and found[2] < brace.start() and text[box.end():brace.start()].strip()
                if found is None or within and within != text[found[0]:found[2] + 1]:
                    found = box.start(), box.end(), brace.start()
                break
    return found and text[found[1]:found[2]]

# --- plain numbers ------------------------------------------------------------------------------------------

Number = namedtuple("Number", "value digits ulp")     # Fraction; significant digits if a decimal; last place
_NUMBER = re.compile(r"\s*(-?)(?:(?=\.?\d)(\d*)(?:\.(\d+))?(?:[eE](\d{1,3}|-\d\d\d?))?"
                     r"|\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))\s*", re.ASCII)

@lru_cache(100_000)
def number(text):
    """-3, .25, 7/4, \\frac{7}{4}, 1.5e10 as a Number, or None; 2e-7 may be Euler's e."""
    m = _NUMBER.fullmatch(text) if len(text) < 4000 else None              # int() reads 4,300 digits
    if not m:
        return None
    sign, integer, decimals, exponent, *fraction = m.groups()
    sign = -1 if sign else 1
    if integer is None:
        top, bottom = (int(n) for n in fraction if n)
        return Number(sign * Fraction(top, bottom), 0, Fraction(1)) if bottom else None
    ulp = Fraction(10) ** (int(exponent or 0) - len(decimals or ""))
    digits = len((integer + decimals).lstrip("0")) if decimals else 0
    return Number(sign * int(integer + (decimals or "")) * ulp, digits, ulp)

def same_number(a, b, least=6):
    """Equal; or one is a decimal with six digits (least) or more that rounds, or cuts off, the other, which
    is exact and no integer. From 16 digits on a decimal is what a float prints."""
    if a.value == b.value or bool(a.digits) == bool(b.digits):
        return a.value == b.value
    decimal, exact = (a, b) if a.digits else (b, a)
    error = (exact.value - decimal.value) * (1 if decimal.value > 0 else -1)
    close = decimal.value.denominator > 1 and (2 * abs(error) <= decimal.ulp or 0 <= error < decimal.ulp)
    float_noise = decimal.digits >= 16 and abs(error) < abs(exact.value) / 2 ** 52
    return decimal.digits >= least and exact.value.denominator > 1 and (close or float_noise)

def gold_answer(wanted, solution):
    """The answer in a box or after GSM8K's ####, else all of it if it is no solution; "" if there is none."""
    if isinstance(wanted, (dict, bool)) or wanted != wanted:               # NaN
        return ""
    text = str(wanted)
    marked = re.search(r"####\s*(\S.*?)\s*$", text)
    boxed = extract_boxed(text) or (marked and marked[1])
    return boxed or ("" if solution and not number(text) else text)

# --- tokens -------------------------------------------------------------------------------------------------

def table(rows):
    """Every word of a row to the first word of that row."""
    return {word: row.split()[0] for row in rows.split(";") for word in row.split()}

_SIGNS = table(r"""- − –;\times ×;\cdot · ⋅;/ ÷ ⁄;\infty ∞;\degree °;\sqrt √;\cup ∪;\cap ∩;\setminus ∖;\pm ±
    ;\le ≤;\ge ≥;\ne ≠;\approx ≈;\in ∈;\emptyset ∅;( ⟨;) ⟩
    ;\mathbb{R} ℝ;\mathbb{C} ℂ;\mathbb{Z} ℤ;\mathbb{N} ℕ;\mathbb{Q} ℚ;' ′ ’
    ;\lfloor ⌊;\rfloor ⌋;\lceil ⌈;\rceil ⌉;\land ∧;\lor ∨;\neg ¬;\to →""")
SIGNS = str.maketrans({**{sign: f"{tex} " for sign, tex in _SIGNS.items() if sign not in _SIGNS.values()},
                       **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""), "~": " ", ";": ",",
                       "$": "\t", "\n": "\t"})    # a tab is a space that joins no digits
_SAME = table(r"""\binom \dbinom \tbinom;\le \leq \leqslant;\ge \geq \geqslant;< \lt;> \gt;\ne \neq
    ;\emptyset \varnothing;( \langle;) \rangle;\{ \lbrace;\} \rbrace;[ \lbrack;] \rbrack
    ;| \vert \lvert \rvert \mid;\setminus \backslash;* \cdot \times \ast
    ;/ \div "per;: \colon "to;"or \lor \vee;"and \land \wedge;\to \rightarrow;\neg \lnot;£ \pounds;' \prime
    ;\quotes ";"% % \% "percent percent;"\degree \degree "degree "degrees degree degrees
    ;\phi \varphi;\epsilon \varepsilon;\asin \arcsin;\acos \arccos;\atan \arctan;\log \ln;2 "two""")
# Units and their other words. A word that changes a number (hundredths) is none. A count has no power.
_MEASURES = table("""m meter meters metre metres;cm centimeter centimeters;km kilometer kilometers;mm;in inch
    inches;ft foot feet;yd yard yards;mi mile miles;kg kilogram kilograms;g gram grams;mg;lb lbs pound pounds
    ;oz ounces;L l liter liters;mL ml;gal gallon gallons;s sec secs second seconds;min minute minutes;h hr hrs
    hour hours;day days;week weeks;month months;year years;N newtons;J joules;W watts;V volts;A amps
    ;Hz;K kelvin;mol;erg;mph;rad radians;unit units""")
_COUNTS = table(r"""$ dollar dollars USD;cent cents;€ euros;£;元;个;am AM;pm PM;C;F;%;\degree;th st nd rd
    ;way ways;times;half-hours;people;men;women;children;boys;girls;students;points;apples;books;balls
    ;cards;coins;pages;tickets;games;teams;numbers;integers;solutions;sides;triangles;steps;terms;digits""")
_UNITS = _MEASURES | _COUNTS
_FUNCTIONS = "sin cos tan cot sec csc sinh cosh tanh asin acos atan log exp".split()
_MACROS = {*_FUNCTIONS, *"arcsin arccos arctan ln sqrt pi infty".split()}
_WORDS = "and or to per yes no on odd two square cubic percent degrees degree".split()
_SILENT = {"\\ ", *r"""\left \right \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \displaystyle \textstyle
    \limits \bf \it \rm \boldsymbol \mathbf \mathit \mathsf \mathtt \mathcal \bm \underline \ensuremath \boxed
    \large \Large \LARGE \huge \Huge \small \quad \qquad \, \; \: \! \> \( \) \[ \]""".split()}

def repeating(m):
    """0.1\\overline{6} as a fraction."""
    integer, decimals, period = m[1], m[2], m[3] or m[4]
    whole = int(integer + decimals + period) - int("0" + integer + decimals)
    return f"{{\\frac{{{whole}}}{{{(10 ** len(period) - 1) * 10 ** len(decimals)}}}}}"

def mixed(m):
    """3 1/4 as a sum."""
    whole, top, bottom = m.groups()
    return f"({whole}+\\frac{{{top}}}{{{bottom}}})" if int(top) < int(bottom) else m[0]

def plain_unit(m):
    """12 hours, 5cm: letters after a number become a word if they are a unit."""
    known = m[2] in _UNITS and (m[1] or m[2] in ("cm", "km", "kg", "mm", "ft")) and m[2] != "mg"
    return f'{m[1]}"{m[2]}' if known else m[0]

_ALONE = r"(?<![\d^_.])(?<!\^[ ])(?<!sqrt)(?<!sqrt[ ])"    # before digits that nothing binds to what stands there
_CLEAN = [(re.compile(pattern, re.VERBOSE), new) for pattern, new in [
    (r"^\s*\*\*(.*)\*\*\s*$", r"\1"), (r"\*\*", "^"), (r">=", r"\\ge "), (r"<=", r"\\le "), (r"\{:\}", ":"),
    (r"\\not\s*=", r"\\ne "), (r"\\\\(?:\[[\d.]+(?:pt|ex|em|mm)\])?", r"\\row "),
    (r"\\(?:left|right)\s*\.", "\t"), (r"\\text\{,\}", "{,}"),
    (r"\\\{\s*\\begin\s*\{array\}", r"\\begin{cases}"), (r"\\(begin|end)\s*\{(\w+)\*?\}", r"\\\1\2 "),
    (r"(\\begin(?:cases|array))\s*\{[clr|]+\}", r"\1 "), (r"\\(?:textcolor|color)\s*\{\w+\}", " "),
    (r"\\[hv]space\*?\s*\{[^{}]*\}", "\t"), (r"\\(?:[dtc]|nice|s)?frac(?![a-z])\s*", r"\\frac "),
    (r"\\frac[ ](\d)", r"\\frac{\1}"), (r"\\frac[ ]?(\{[^{}]*\})\s*(\d)", r"\\frac\1{\2}"),
    (r"\\mathbb\s*(\{)?\s*([A-Z])\s*(?(1)\})", r"\\\2\2 "),
    (r"\\RR\s*_\s*\{\s*\\geq?(?:slant)?\s*0\s*\}", r"[0,\\infty)"),
    (r"\^\s*(\{)?\s*\\(?:circ|degree)(?![a-z])\s*(?(1)\})", r"\\degree "), (r"\+/-|^\s*\+-", r"\\pm "),
    (_ALONE + r"[1-9]\d{0,2}(?:(?:\{,\}|\\!,\\!|,\\!|\\!,|\\[,;:\ ]|[ ])\d{3})+(?!\d|\s*/|\s*\\frac)",
     lambda m: re.sub(r"\D+", "", m[0])),                                                          # 10{,}000
    (r"(?<=\d)[ ]+x[ ]+(?=10\s*\^)", r"\\times "),
    (r"(?<![\w.])(\d+\.\d+|\d+(?=[eE](?:\d|[-+]\d\d)))[eE]([-+]?\d+)(?![\d.])", r"\1\\cdot 10^{\2}"),
    (r"(\.\d*)\\dot(\{)?(\d)(?(2)\})(\d*)\\dot(\{)?(\d)(?(5)\})", r"\1\\overline{\3\4\6}"),
    (r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))", repeating),
    (_ALONE + r"(\d+)[ ](\d+)/(\d+)", mixed),
    (r"\b([aApP])\.[ ]?[mM]\.?", r"\1m"), (r"\b(sq|in|ft|cm)\.", r"\1 "),
    (r"(?<=[\d)}])([ \t]*)([a-zA-Z]{2,})(?![a-zA-Z])", plain_unit)]]
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|[mh]box|emph|mathrm|operatorname)(?![a-z])\s*"
                   r"\{((?:[^{}]|\{[^{}]*\})*)\}")
_TOKEN = re.compile(r'\d+(?:\.\d+)?|\.\d+|\\[a-zA-Z]+|\\.|"[^\W\d_]+(?:-[^\W\d_]+)*|[^\W\d_]+|\S')

class Unreadable(ValueError):
    """An answer, or a comparison, that the grammar has no meaning for."""

def compatible(text):
    """NFKC, but xⁿ is x^{n}, 5⅓ is mixed, and ① or ㎠, whose frame or place carries meaning, stays as it is."""
    frame = lambda sign: unicodedata.decomposition(sign).partition(">")[0].lstrip("<")
    parts = []
    for name, signs in groupby(unicodedata.normalize("NFC", text), frame):
        signs = "".join(signs)
        plain = unicodedata.normalize("NFKC", signs)
        if name in ("super", "sub"):
            plain = f"{'^' if name == 'super' else '_'}{{{plain}}}"
        elif name == "fraction":
            each = [unicodedata.normalize("NFKC", sign) for sign in signs]
            plain = "".join(re.sub(r"(\d+)⁄(\d+)", r"\\frac{\1}{\2} ", sign) for sign in each)
        elif name in ("circle", "square") or {"compat": re.search(r"\d", plain), "wide": "~" in plain}.get(name):
            plain = signs
        parts.append(plain)
    return "".join(parts)

@lru_cache(50_000)
def tokenize(text):
    """The tokens without fonts, colours and spaces. Words, and letters in \\text{...}, begin with a quotation
    mark."""
    text = text.replace("\\$", '"dollar ')
    text = compatible(text.translate(SIGNS)).translate(SIGNS)
    greek = lambda m: f"\\{unicodedata.name(m[0]).split()[-1].lower()} ".replace("lamda", "lambda")
    text = re.sub("[α-ω]", greek, text)
    text = text if "\\begin" in text else re.sub(r"\\\\(?=[a-zA-Z{}%$()\[\]])", r"\\", text)    # escaped twice
    for pattern, new in _CLEAN:
        text = pattern.sub(new, text)
    for _ in range(4):
        quoted = lambda m: re.sub(r'(?<![\\"a-zA-Z-])[^\W\d_]+(?:-[^\W\d_]+)*', r'"\g<0>', m[1]) + " "
        text = _TEXT.sub(quoted, text)
    text = re.sub(r'(?<=\d)\s*\^\s*(\{)?\s*"(st|nd|rd|th)\s*(?(1)\})', r'"\2', text)
    found = [token for token in _TOKEN.findall(text) if token not in _SILENT]
    prose = all(re.fullmatch(r"""["]?[^\W\d_][\w-]*|[-,.'()]""", token) for token in found)
    tokens = []
    for token in found:
        name = token.strip('\\"')
        word = not token.isascii() or token.lower() in _WORDS or re.match("[A-Z][a-z]{2}", token)
        word = word or prose and (len(token) > 3 or len(token) > 1 and token.isupper())
        if name in _MACROS and token != '"sec':
            token = "\\" + name
        elif token.isalpha() and (word or len(token) > 3 and token in _UNITS):
            token = '"' + token
        token = _SAME.get(token, token)
        tokens += token if token.isalpha() else [token]
    return tuple(tokens[:-1] if tokens[-1:] == ["."] else tokens)

def folded(word):
    """Without its case, unless that may carry meaning: AB, Aa, MHz, but not Yes or Red."""
    short = len(word) < 3 and word.lower() not in _WORDS or len(word) == 3 and not word.istitle()
    return word if short or word in _UNITS else word.casefold()

def spelled(tokens):
    """The tokens in one spelling: what is not read is equal only to itself."""
    text = " ".join(token + "·" if token[0] == "\\" else '"' * (token[0] == '"') + folded(token.lstrip('"'))
                    for token in tokens)
    text = re.sub(r'(?<=\d) "(?:st|nd|rd|th)\b', "", re.sub(r"\{ (\S|\\\S+) \}", r"\1", text))
    text = re.sub(r'(?<=\w\w) "(?=\w\w)', "~", text).replace('"', "")
    return re.sub(r"(?<![\d.]) | (?![\d.])", "", text)

# --- grammar: a tree is a string (a number, a letter, '"cm') or a tuple (operator, *trees) ------------------

_JOINTS = (",", '"and', '"or')
_RELATIONS = ("=", "\\approx", "\\in", "\\ne", "<", "\\le", ">", "\\ge", "\\equiv")
_BINDS = {"\\row": 1, "&": 2, **dict.fromkeys(_JOINTS, 3), **dict.fromkeys(_RELATIONS, 4), "\\over": 5,
          "\\choose": 5, "\\cup": 5, "\\cap": 5, "\\setminus": 5, ":": 6, "+": 7, "-": 7, "\\pm": 7,
          "*": 8, "/": 8, " ": 8, "^": 9, "_": 9, "!": 9}
_CLOSE = {"(": (")", "]"), "[": ("]", ")"), "\\{": ("\\}", "|", ":"), "|": ("|",),
          "\\lfloor": ("\\rfloor",), "\\lceil": ("\\rceil",)}
_LETTER = re.compile(
    r'"?[A-Za-z]|\\(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma'
    r"|tau|upsilon|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell|pi|EE)")
_CONSTANTS = ("\\infty", "\\emptyset", "\\RR", "\\ZZ", "\\NN", "\\QQ", "\\CC")
_FACTORS = ("(", "[", "{", "\\frac", "\\sqrt", "\\binom", '"square', '"cubic', '"sq')
_PHRASES = {"no solution": "\\emptyset", "no solutions": "\\emptyset", "there is no solution": "\\emptyset",
            "all real numbers": "\\RR", "dne": ("words", "does not exist")}

def is_number(tree):
    return isinstance(tree, str) and tree.replace(".", "0").isdigit()

def is_fraction(tree):
    return tree[0] == "/" and all(map(is_number, tree[1:]))

def is_proper(tree):
    """A fraction that makes a mixed number of the whole number before it."""
    return is_fraction(tree) and Fraction(tree[1]) < Fraction(tree[2])

class Reader:
    """Precedence climbing; every method consumes what it returns, or raises Unreadable."""

    def __init__(self, tokens):
        self.tokens, self.at, self.bars = (*tokens, "\0", "\0"), 0, False

    @property
    def next(self):
        return self.tokens[self.at]

    def accept(self, *texts):
        found = self.next in texts and self.next
        self.at += bool(found)
        return found

    def expect(self, *texts):
        if self.next not in texts:
            raise Unreadable(self.next)
        return self.accept(*texts)

    def tree(self, floor=0):
        """The longest tree from here whose operators bind tighter than floor."""
        sign = self.accept("-", "+", "\\pm")
        left = self.tree(max(floor, 7)) if sign else self.primary()
        left = ("neg", left) if sign == "-" else ("*", "±", left) if sign == "\\pm" else left
        while True:
            op = self.next if self.next in _BINDS else " "
            if op == " " and not self.begins() or _BINDS[op] <= floor or self.bars and op == ":":
                return left
            self.accept(op)
            if op == "\\row" and self.next[:4] == "\\end":
                return left
            if _BINDS[op] == 9 and left[0] == '"' and (op != "^" or left[1:] not in _MEASURES):
                raise Unreadable("a power of a count")
            before = self.tokens[self.at - 2]
            if op == "!" and before == "!" or op == "^" and left[0] == "^" and before != ")":
                raise Unreadable("3!! and 2^3^2 have two readings")
            if op == "!":
                left = (op, left)
            elif op in ("^", "_"):
                left = (op, left, self.script())
            elif op in ("&", "\\row"):
                left = (op, *(left[1:] if left[0] == op else (left,)), self.tree(_BINDS[op]))
            elif op in _JOINTS:
                op = self.accept('"and', '"or') or op
                if {left[0], op} == {'"and', '"or'}:
                    raise Unreadable("and, or")
                items = left[1:] if left[0] in _JOINTS else (left,)
                left = (op if op != "," or left[0] not in _JOINTS else left[0], *items, self.tree(3))
            elif op in _RELATIONS:
                ops, sides = (left[1], left[2:]) if left[0] == "chain" else ("", (left,))
                left = ("chain", f"{ops} {op}".strip(), *sides, self.tree(4))
            elif op == "\\pm":
                left = ("+", left, ("*", "±", self.tree(7)))
            else:
                opening, right = self.next, self.tree(_BINDS[op])
                beside = is_proper(right) or opening == "{" and (is_number(right) or is_fraction(right))
                if op == " " and opening in ("{", "\\frac") and is_number(left) and beside:
                    raise Unreadable("a number beside a number")
                left = (op, left, right)
                if op == "/" and self.begins() and self.next.lstrip('"') not in _UNITS:
                    raise Unreadable("1/2x has two readings")

    def begins(self):
        """True if the next token begins a factor."""
        token = self.next
        return bool(token in _FACTORS or token.lstrip('"') in _UNITS or token[1:] in _FUNCTIONS
                    or token[:6] == "\\begin" or token == "|" and not self.bars or _LETTER.fullmatch(token)
                    or token[0].isdigit() and self.tokens[self.at - 1] == "!")

    def script(self):
        """What ^, _ or \\frac applies to: {...}, or one token with its sign."""
        return ("neg", self.primary(alone=True)) if self.accept("-") else self.primary(alone=True)

    def digit_or_group(self):
        if len(self.next) > 1 and self.next.isdigit():
            raise Unreadable("TeX takes the first digit only")
        return self.script()

    def primary(self, alone=False):
        """A number, letter, unit, run of words, bracket, or command with its arguments. 3\\frac14 is one, but not as
        what ^, _ or \\sqrt applies to (alone)."""
        before, token, word = self.tokens[self.at - 1] if self.at else "(", self.next, self.next.lstrip('"')
        self.at += 1
        ahead = " ".join(self.tokens[self.at:self.at + 8]) if token.isdigit() and not alone else ""
        part = re.fullmatch(r"\\frac \{ (\d+) \} \{ (\d+) \} [^^]+", ahead)
        if part and is_proper(("/", *part.groups())):
            self.at += 7
            return ("+", token, ("/", *part.groups()))
        if re.match(r"\.?\d", token):
            return token
        if word in ("dollar", "€", "£") and self.next[0].isdigit():
            return ("*", self.primary(), '"' + _UNITS[word])
        if word in ("square", "cubic", "sq") and self.next.lstrip('"') in _MEASURES:
            return ("^", self.primary(), "3" if word == "cubic" else "2")
        measured = re.search(r"[\w)}%/*|]$", before) and before not in _JOINTS
        if word in _UNITS and measured and not token.isalpha():
            return '"' + _UNITS[word] if word != "mph" else ("/", '"mi', '"h')
        if _LETTER.fullmatch(token) and not (token[0] == '"' and re.fullmatch(r'"\w\w.*', self.next)
                                             and self.next not in _JOINTS and self.next[1:] not in _UNITS):
            return self.letter(word)
        if token[0] == '"':
            while self.next[0] == '"' and self.next not in _JOINTS or self.next.isalnum() or self.next == "-":
                word += " " + self.accept(self.next).lstrip('"')
            return _PHRASES.get(word.casefold(), ("words", " ".join(map(folded, word.split()))))
        if token in _CLOSE:
            return self.bracket(token)
        if token == "{":
            return (self.tree(), self.expect("}"))[0]
        if token in ("\\frac", "\\binom"):
            return ("/" if token == "\\frac" else token, self.digit_or_group(), self.digit_or_group())
        if token == "\\sqrt":
            index = self.accept("[") and (self.tree(), self.expect("]"))[0]
            return ("root", self.script(), index or "2")
        if token[1:] in _FUNCTIONS:
            return self.function(token[1:])
        if token[:6] == "\\begin":
            return self.environment(token[6:])
        if token not in _CONSTANTS:
            raise Unreadable(token)
        return token

    def letter(self, word):
        """A letter; f(2), P(X=2) and \\mathbb{E}[X] are one too, x(x+1) is a product."""
        while self.accept("'"):
            word = ("'", word)
        start = self.at
        if self.accept("(", "[" if word == "\\EE" else "("):
            inside, _ = self.tree(), self.expect(")" if self.tokens[start] == "(" else "]")
            if isinstance(inside, str) or inside[0] in (*_JOINTS, "chain", "\\cup", "\\cap"):
                return ("call", word, inside)
        self.at = start
        return word

    def function(self, name):
        """\\sin x, \\sin^2 x, \\tan^{-1} x, \\log_2 8; without brackets of all factors to the next sign."""
        base, power = self.accept("_") and self.script(), self.accept("^") and self.script()
        bare = self.next not in ("(", "{", "|")
        value = self.tree(8) if bare else self.primary()
        while bare and self.begins() and self.next not in ("(", "{", "[") and self.next[1:] not in _FUNCTIONS:
            value = (" ", value, self.tree(8))
        value = ("a" * (power == ("neg", "1")) + name, replace(value, '"\\degree', ("/", "\\pi", "180")))
        value = ("/", value, ("log", base)) if base else value
        return ("^", value, power) if power and power != ("neg", "1") else value

    def bracket(self, opening):
        """(a, b], {a, b}, {x | condition}, |a|, or what stands in ( )."""
        if opening == "\\{" and self.accept("\\}"):
            return "\\emptyset"
        outer, self.bars = self.bars, opening in ("|", "\\{")
        inside, close = self.tree(), self.expect(*_CLOSE[opening])
        self.bars = outer
        if opening == "\\{" and close != "\\}":
            condition, _ = self.tree(), self.expect("\\}")
            name = inside[2] if inside[0] == "chain" and inside[3:] == ("\\RR",) else inside
            return condition if name in letters(condition) else (",", inside, condition)
        if opening + close in ("()", "[]") and inside[0] != ",":
            return inside
        if opening + close in ("(]", "[)") and inside[0] != ",":
            raise Unreadable("brackets")
        return (opening + close, *(inside[1:] if inside[0] == "," else (inside,)))

    def environment(self, name):
        """A matrix; the equations of a system are a list."""
        inside = self.tree()
        self.expect("\\end" + name, "\\endarray")
        if name not in ("matrix", "pmatrix", "bmatrix", "array", "cases", "aligned"):
            raise Unreadable(name)
        rows = inside[1:] if inside[0] == "\\row" else (inside,)
        return ("," if name in ("cases", "aligned") else "matrix", *rows)

_LABEL = re.compile(r'(?:"?the )?"?(?:answer|option|choice) (?:"?is |: )?', re.IGNORECASE)
_CHOICE = re.compile(r'(?:(\{ )?\( "?([A-H]) \)(?(1) \})(?: [.:-])?|"?([A-H])(?: [).:]| -(?= "))) '
                     r'(?!"?[A-Za-z] $| *(?:[,+]|"and|"or|-))')

def read(tokens):
    """The tree of an answer, without "the answer is" before it; (C) 12 is a choice with its value."""
    text = " ".join(tokens) + " "
    label = _LABEL.match(text)
    text = text[label.end():] if label else text
    choice = _CHOICE.match(text)
    if choice:
        letter, rest = choice[2] or choice[3], text[choice.end():].split()
        return ("choice", letter, read(rest)) if rest else letter
    reader = Reader(text.split())
    reader.accept("=")
    tree = reader.tree()
    reader.expect("\0")
    if reader.at < len(reader.tokens) - 1:
        raise Unreadable("a NUL before the end")
    return tree

def leaves(tree):
    """The strings in a tree, without its operators."""
    return [tree] if isinstance(tree, str) else [leaf for part in tree[1:] for leaf in leaves(part)]

def letters(*trees):
    return {leaf for leaf in leaves(("", *trees)) if _LETTER.fullmatch(leaf)} - {"e", "i", "\\pi"}

def replace(tree, old, new):
    if isinstance(tree, str):
        return new if tree == old else tree
    return (tree[0], *(replace(part, old, new) for part in tree[1:]))

# --- values -------------------------------------------------------------------------------------------------

mp = MPContext()                                      # of its own, so that its precision is nobody else's
mp.dps = 60
LIMIT = 1 << 15                                       # bits of a number
EPSILON = mp.mpf(10) ** -25                           # between numbers of 60 digits

def power(a, n):
    if mp.mag(n) > 64:
        raise ValueError("an exponent that nobody means, and that takes seconds")
    return mp.power(a, n)

def root(a, n):
    """The real root of a negative number if n is odd."""
    odd = mp.im(n) == 0 and n % 2 == 1
    return -mp.power(-a, 1 / n) if odd and mp.im(a) == 0 and mp.re(a) < 0 else mp.power(a, 1 / n)

_VALUES = {"+": operator.add, "-": operator.sub, "neg": operator.neg, "||": abs, "^": power, "root": root,
           "!": mp.factorial, "\\binom": mp.binomial, "\\choose": mp.binomial, "/": operator.truediv,
           "\\over": operator.truediv, "*": operator.mul, " ": operator.mul,
           **{name: getattr(mp, name) for name in _FUNCTIONS}}
_NAMES = ("_", "'", "call")                           # x_1, f', f(2) have values as letters do

class Values:
    """Evaluates trees. A letter has a value that depends on its name and on the trial. scale: bits of the
    largest or the smallest number that occurred."""

    def __init__(self, trial=0, known=()):
        self.trial, self.letters, self.scale = trial, set(), 8
        self.known = {"i": mp.mpc(0, 1), "e": +mp.e, "\\pi": +mp.pi, **dict(known)}

    def __call__(self, tree):
        try:
            value = mp.mpmathify(self.known[tree] if tree in self.known else self.value(tree))
        except (ArithmeticError, ValueError, TypeError, KeyError) as error:
            raise Unreadable(str(error)) from None
        self.scale = max(self.scale, abs(mp.mag(value)) if value else 0)
        if not mp.isfinite(value) or self.scale > LIMIT:
            raise Unreadable("too large")
        return value

    def value(self, tree):
        if tree[0] in _NAMES or isinstance(tree, str) and (tree[0] == '"' or _LETTER.fullmatch(tree)):
            self.letters.add(tree)
            random = Random(f"{tree} {self.trial}")
            value = (mp.mpf(random.randrange(101, 400)) / 97) ** random.choice((1, -1))
            return value * {0: 1, 1: -1}.get(self.trial, random.choice((1, -1)))
        return tree if isinstance(tree, str) else _VALUES[tree[0]](*map(self, tree[1:]))

def agree(a, b, known=(), scaled=False):
    """True if two trees have the same value, whatever their letters stand for (scaled: if one is a multiple
    of the other); with more digits than they can hide a difference in."""
    for trial in range(6):
        digits = 60
        for _ in range(2):
            with mp.workdps(digits):
                values, fixed = Values(trial, known), Values("fixed", known)
                x, y = values(a), values(b)
                equal = abs(x * fixed(b) - y * fixed(a) if scaled else x - y) < mp.mpf(10) ** (-digits // 2)
                equal = equal and (not scaled or min(abs(x), abs(y)) > EPSILON)
            digits = 80 + values.scale
        if not equal or not values.letters:
            return equal
    return True

def constant(tree, known=()):
    """The real number that a tree stands for."""
    values = Values(0, known)
    value = values(tree)
    if values.letters or mp.im(value):
        raise Unreadable("no real number")
    return mp.re(value)

# --- comparison ---------------------------------------------------------------------------------------------

def is_value(tree):
    """True for a number or an expression."""
    if isinstance(tree, str):
        return tree not in _CONSTANTS
    return tree[0] in _NAMES or tree[0] in _VALUES and all(map(is_value, tree[1:]))

def is_name(tree):
    """x, x_1, f(2), P(X=2), (x, y), the lengths AB, |AB|, AB:CD and AB/CD; but not xy, |x|, x^2."""
    op, *parts = tree
    if isinstance(tree, str):
        return bool(_LETTER.fullmatch(tree)) and tree != "\\pi"
    if op in (" ", "/", ":", "||"):
        capitals = [op == " " and re.fullmatch("[A-Z]", str(part)) for part in parts]
        return all(capital or part[0] == " " and is_name(part) for capital, part in zip(capitals, parts))
    return op == "call" or op in ("_", "'") and is_name(parts[0]) or op == "()" and all(map(is_name, parts))

_TESTS = {"<": lambda d: d > EPSILON, "\\le": lambda d: d > -EPSILON, ">": lambda d: d < -EPSILON,
          "\\ge": lambda d: d < EPSILON, "\\ne": lambda d: abs(d) > EPSILON}

def inside(tree, x, name):
    """True if the number x is in the set that a tree describes; name: the letter of its relations."""
    op, *parts = tree if isinstance(tree, tuple) else (tree,)
    if op in ("\\RR", "\\emptyset"):
        return op == "\\RR"
    relations = op in _JOINTS and all(part[0] in ("chain", *_JOINTS) for part in parts)
    if relations or op in ("\\cup", "\\cap", "\\setminus", "-"):
        found = [inside(part, x, name) for part in parts]
        if op in ("\\setminus", "-"):
            return found[0] and not found[1]
        return any(found) if op in ("\\cup", '"or') else all(found)
    if op == "\\{\\}":
        return any(abs(constant(part) - x) < EPSILON for part in parts)
    if op in ("()", "(]", "[)", "[]") and len(parts) == 2:
        if parts[0] == ("neg", "\\infty") and op[0] == "[" or parts[1] == "\\infty" and op[1] == "]":
            raise Unreadable("infinity is no number")
        signs = ("<" if op[0] == "(" else "\\le") + (" <" if op[1] == ")" else " \\le")
        op, parts, name = "chain", [signs, parts[0], "x", parts[1]], "x"
    if op != "chain" or not set(parts[0].split()) <= _TESTS.keys():
        raise Unreadable("no set")
    values = [constant(part, {name: x, "\\infty": 10 ** 40}) for part in parts[1:]]
    return all(_TESTS[sign](b - a) for sign, a, b in zip(parts[0].split(), values, values[1:]))

def numbers_in(tree):
    """The values of all parts of a tree that are real numbers."""
    found = [x for part in tree[1:] for x in numbers_in(part)] if isinstance(tree, tuple) else []
    try:
        return found + [constant(tree)]
    except Unreadable:
        return found

def same_sets(g, p):
    """Compare sets of real numbers at, beside, between and beyond all numbers that occur in them."""
    names = letters(g, p)
    if len(names) > 1:
        raise Unreadable("several letters")
    edges = sorted({mp.mpf(0), *numbers_in(g), *numbers_in(p)})
    points = [mp.mpf(k) / 7 for k in range(-80, 80)] + [(a + b) / 2 for a, b in zip(edges, edges[1:])]
    near = mp.mpf(10) ** -9
    points += [edge + step for edge in edges for step in (-10 ** 6, -near, 0, near, 10 ** 6)]
    found = [[inside(tree, x, min(names, default="")) for x in points] for tree in (g, p)]
    return any(found[0]) and found[0] == found[1]          # x < 0, x > 1 may mean "or"

def decimal(tree):
    """-0.5 as a Number, else None."""
    negative = tree[0] == "neg" and isinstance(tree[1], str)
    return number("-" + tree[1]) if negative else number(tree) if isinstance(tree, str) else None

def rounds(exact, rough, least=6):
    """True if a decimal of that many digits rounds, or cuts off, the exact value."""
    percent = rough[0] == " " and rough[2] == '"%'
    found = decimal(rough[1] if percent else rough)
    if not found:
        return False
    value = constant(exact) * (100 if percent else 1)
    return same_number(Number(Fraction(mp.nstr(value, 55)), 0, 0), found, least)

_ROUNDED = {"\\lfloor\\rfloor": 1, "\\lceil\\rceil": -1}     # the sign of what they take away

def whole_part(tree, whole):
    """True if a tree is the floor or ceiling of a number and has that value."""
    if tree[0] not in _ROUNDED:
        return False
    rest = constant(("-", tree[1], whole)) * _ROUNDED[tree[0]]
    return constant(whole) % 1 == 0 and (EPSILON < rest < 1 - EPSILON or agree(tree[1], whole))

def listed(op, *items):
    """A list or set, with both of a \\pm b; named if it is x = 1, x = 2 (a list) or x = 1, y = 2 (tuple)."""
    if any(leaves(item).count("±") > 1 for item in items):
        raise Unreadable("signs that may or may not go together")
    signs = {True: ("1", ("neg", "1")), False: ("1",)}
    items = [meaning(replace(item, "±", sign)) for item in items for sign in signs["±" in leaves(item)]]
    names = [item[1] for item in items if item[0] == "named"]
    if len(set(names)) == 1 and items[0][0] == "named":
        return ("named", names[0], (op, *(item[2] if item[0] == "named" else item for item in items)))
    if len(set(names)) == len(items) and op != '"or':
        names, values = zip(*sorted((item[1:] for item in items), key=str))
        return ("named", ("()", *names), ("()", *values))
    return (op, *items)

def times(factor, tree):
    """A number times a matrix, a row or an entry."""
    parts = (times(factor, part) for part in tree[1:])
    return (tree[0], *parts) if tree[0] in ("matrix", "&") else ("*", factor, tree)

def meaning(tree):
    """("named", name, value) for x = 5, x \\in S, and lists of them; ("equation", a, b); 5 for 2 + 3 = 5."""
    if tree[0] in (*_JOINTS, "\\{\\}"):
        return listed(*tree)
    if "±" in leaves(tree):
        return listed(",", tree)
    if tree[0] in ("*", " ") and tree[2][0] == "matrix" and is_value(tree[1]):
        return times(*tree[1:])
    if tree[0] != "chain" or not set(tree[1].split()) <= {"=", "\\approx", "\\in"}:
        return tree
    ops, sides = tree[1].split(), tree[2:]
    if decimal(sides[0]):
        if ops != ["="] or not _LETTER.fullmatch(str(sides[1])):
            raise Unreadable("5 = 5 says nothing")
        sides = sides[::-1]                                                # 5 = x
    named = is_name(sides[0])
    if ops == ["\\in"] and named and not is_value(sides[1]):
        return ("in" if sides[1] in _CONSTANTS else "named", *sides)
    if ops == ["="] and (not named and letters(tree) or _LETTER.fullmatch(str(sides[1]))):
        return ("equation", *sides)
    first = max(named, ops.index("\\approx") if "\\approx" in ops else len(ops)) + 1
    exact = sides[named:first]
    if "\\in" in ops or not all(same(exact[-1], x) or whole_part(x, exact[-1]) for x in exact[:-1]):
        raise Unreadable("not equal")
    if not all(rounds(exact[-1], x, least=1) for x in sides[first:]):
        raise Unreadable("not equal")
    return ("named", sides[0], exact[-1]) if named else exact[-1]

def same_value(g, p):
    """Compare expressions. One of them may lack a unit; p % is p, or p / 100 if that is no integer."""
    for unit in {leaf for leaf in leaves(g) if leaf[0] == '"'} - set(leaves(p)):
        p = replace(p, unit[1:], unit)                                     # 5 J
    units = [{leaf for leaf in leaves(tree) if leaf[0] == '"'} for tree in (g, p)]
    if ('"%' in units[0]) != ('"%' in units[1]):
        percent = constant(g if '"%' in units[0] else p, {'"%': 1})
        simple = abs(percent * 2520000 - mp.nint(percent * 2520000)) < EPSILON               # no root of 2 %
        return simple and leaves(("", g, p)).count('"%') == 1 and (percent >= 1 and agree(g, p, {'"%': 1})
            or percent % 100 != 0 and agree(g, p, {'"%': mp.mpf(1) / 100}))
    halves = [unit & {'"am', '"pm'} for unit in units]
    if all(halves) and halves[0] != halves[1]:                             # of the day: 0 am is not 0 pm
        return False
    one_sided = not all(units) or units[0] | units[1] < {'"\\degree', '"C', '"F'}
    if agree(g, p, dict.fromkeys(units[0] | units[1], 1) if one_sided else ()):
        return True
    return not letters(g, p) and not any(units) and (rounds(g, p) or rounds(p, g))

def unnamed(tree):
    """What a name stands for; x_1 = 1, x_2 = 2 is a list."""
    _, name, value = tree
    indexed = name[0] == "()" and len({x[1] if x[0] == "_" else x for x in name[1:]}) == 1
    return (",", *value[1:]) if indexed else value

def is_claim(tree):
    """A letter or words: "A or B" says less than "A and B", but roots are listed with any joint."""
    letter = isinstance(tree, str) and _LETTER.fullmatch(tree)
    return bool(letter) or tree[0] in ("words", "choice", "named", *_JOINTS)

def paired(a, b):
    """True if the items of two lists can be paired, in any order."""
    for x in a:
        fits = (i for i, y in enumerate(b) if (x[0] == "\\{\\}") == (y[0] == "\\{\\}") and same(x, y))
        found = next(fits, None)
        if found is None:
            return False
        b = b[:found] + b[found + 1:]
    return not b

def same(g, p):
    """True if two trees mean the same."""
    if g == p:
        return True
    g, p = meaning(g), meaning(p)
    kinds = g[0], p[0]
    if "choice" in kinds:
        (letter, value), (other, claim) = (t[1:] if t[0] == "choice" else (t, t) for t in (g, p))
        agreed = letter == other, same(value, claim)
        return all(agreed) if kinds[0] == kinds[1] else any(agreed)
    if all(kind in ("named", "equation") for kind in kinds):
        if g[1] == p[1] and "equation" not in kinds:
            return same(g[2], p[2])
        if g[1][0] == "call" and g[1][:2] == p[1][:2]:
            x, t = g[1][2], p[1][2]
            if x in letters(g[2]) - letters(p[2]) and t in letters(p[2]):
                return same(g[2], replace(p[2], t, x))                     # f(t) = t + 1 for f(x) = x + 1
        if g[1][0] == p[1][0] == "()":
            a, b = (dict(zip(names[1:], values[1:])) for _, names, values in (g, p))
            return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
        a, b = (("-", ("*", a, b[2]), b[1]) if b[0] == "/" else ("-", a, b) for _, a, b in (g, p))
        return is_value(a) and is_value(b) and agree(a, b, scaled=True)
    if kinds[0] != kinds[1] and {"named", "in"} & set(kinds):
        return same(*(unnamed(t) if t[0] in ("named", "in") else t for t in (g, p)))
    if "equation" in kinds or "words" in kinds:
        return False
    if is_value(g) and is_value(p):
        return same_value(g, p)
    for a, b in ((g, p), (p, g)):
        if a[0] == "\\{\\}" and len(a) == 2 and is_value(b):
            return same(a[1], b)
        if a[0] == ":" and len(a) == 3 and is_value(b) and not re.fullmatch(r"\d\d", str(a[2])):  # not 12:30
            return constant(b) % 1 != 0 and same_value(("/", *a[1:]), b)
    if kinds[0] == kinds[1] and kinds[0] in ("()", "[]", "(]", "[)", ":", "matrix", "&", *_ROUNDED):
        return len(g) == len(p) and all(map(same, g[1:], p[1:]))
    if kinds[0] == kinds[1] == "chain" and g[1] == p[1] and all(map(same, g[2:], p[2:])):
        return True
    lists = all(kind in (*_JOINTS, "\\{\\}") for kind in kinds)
    if lists and '"or' in kinds and kinds[0] != kinds[1] and any(map(is_claim, g[1:] + p[1:])):
        return False
    if lists and (kinds[0] == kinds[1] or g[1][0] != "chain") and paired(g[1:], p[1:]):
        return True
    return not is_value(g) and not is_value(p) and same_sets(g, p)

# --- answers ------------------------------------------------------------------------------------------------

def readings(text):
    """The trees of an answer: 1,234 is a number or a list."""
    joined = re.sub(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)", lambda m: m[0].replace(",", ""), text)
    joined = text if re.search(r"[(\[]|\\\{", text) else joined
    for variant in {joined} if ",0" in text else {text, joined}:
        try:
            yield read(tokenize(variant))
        except (Unreadable, RecursionError):
            pass

def readable(answer):
    """False for a gold answer that is empty or broken: such a problem must never be scored as right."""
    tokens = tokenize(answer)
    content = any(t.lstrip('"\\')[:1].isalnum() and t not in ("\\frac", "\\sqrt") for t in tokens)
    return content and tokens.count("{") == tokens.count("}") and not re.search(
        r"(?<!\\)\{\}|[-+*/^_=(]$|\d{4300}", spelled(tokens))

@lru_cache(50_000)
def same_answer(gold, pred):
    """True if two answers mean the same. May take any time and memory, so only workers call it."""
    if not readable(gold):
        return False
    if spelled(tokenize(gold)) == spelled(tokenize(pred)):
        return True
    for g, p in product(readings(gold), readings(pred)):
        try:
            if same(g, p):
                return True
        except Unreadable:
            pass
    return False
